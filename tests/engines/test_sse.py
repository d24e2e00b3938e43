"""Server-Sent Events: any line ends, any cut, bounded size."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.sse import SseParser
from protocols.errors import ProtocolViolation


def pieces(parser: SseParser, *data: bytes) -> list[bytes]:
    return [payload for piece in data for payload in parser.feed(piece)]


def named(*data: bytes) -> list[tuple[bytes, bytes]]:
    parser = SseParser()
    return [event for piece in data for event in parser.feed_named(piece)]


@pytest.mark.parametrize(
    ("data", "payloads"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a \n\n", [b" a "]),
        (b"data\n\n", [b""]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\r\n\r\ndata: b\r\r", [b"a", b"b"]),
        (b": ping\n\ndata: a\n\n", [b"a"]),
        (b"id: 5\nretry: 9\nx: y\ndata: a\n\n", [b"a"]),
        (b"event: x\n\ndata: a\n\n", [b"a"]),
        (b"\n\n\ndata: a\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a: b\n\n", [b"a: b"]),
        (b"data: a", []),
        (b"data: a\n", []),
        (b"", []),
    ],
)
def test_events(data, payloads):
    assert pieces(SseParser(), data) == payloads


def test_an_events_name_is_its_own():
    assert named(b"event: error\ndata: a\n\n", b"data: b\n\n", b"event: x\n\ndata: c\n\n") == [
        (b"error", b"a"),
        (b"", b"b"),
        (b"", b"c"),
    ]


def test_a_line_end_cut_in_two_is_one_line_end():
    assert pieces(SseParser(), b"data: a\r", b"\n", b"\r", b"\n", b"data: b\n\n") == [b"a", b"b"]


def test_a_line_feed_after_a_cut_line_end_is_a_line_of_its_own():
    assert pieces(SseParser(), b"data: a\r", b"\n", b"\n") == [b"a"]


LINES = st.sampled_from(
    [b"data: x", b"data: {}", b"data:", b": note", b"event: e", b"id: 1", b"", b"", b"data: \xc3\xa9"]
)


@given(
    lines=st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=12),
    cuts=st.lists(st.integers(0, 120), max_size=8),
)
def test_any_cut_gives_the_same_events(lines, cuts):
    """A few dozen milliseconds: a hundred drawn streams."""
    data = b"".join(line + end for line, end in lines)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]

    whole = named(data)

    assert named(*[data[start:stop] for start, stop in pairwise(edges)]) == whole
    assert pieces(SseParser(), data) == [payload for _, payload in whole]


def test_unfinished_tells_of_bytes_that_became_no_event():
    parser = SseParser()
    parser.feed(b"data: a\n\n")
    before = parser.unfinished
    parser.feed(b"da")

    assert (before, parser.unfinished) == (False, True)


@pytest.mark.parametrize(
    "data",
    [
        (b"data: " + b"x" * 11 + b"\n\n",),
        (b"data: " + b"x" * 5, b"x" * 6),
        (b"data: xxxxx\n", b"data: xxxxxx\n"),
        (b"x" * 20,),
    ],
)
def test_an_event_beyond_the_limit_is_a_violation(data):
    parser = SseParser(max_event_bytes=10)

    with pytest.raises(ProtocolViolation):
        pieces(parser, b": hi\n", *data)


def test_the_events_before_one_beyond_the_limit_are_not_lost():
    parser = SseParser(max_event_bytes=10)

    events = parser.feed(b"data: a\n\ndata: " + b"x" * 50)

    assert events == [b"a"]
    with pytest.raises(ProtocolViolation):
        parser.feed(b"data: b\n\n")
    with pytest.raises(ProtocolViolation):
        parser.feed(b"")


def test_many_small_events_are_no_large_one():
    parser = SseParser(max_event_bytes=10)

    assert len(pieces(parser, *[b"data: abc", b"d\n\n"] * 50)) == 50
