"""The seam between bytes and characters."""

from __future__ import annotations

import codecs
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from text.utf8 import Utf8Tail, incomplete_tail

BYTE_SOUP = st.lists(
    st.sampled_from([b"a", b"\x7f", b"\x80", b"\xa0", b"\xbf", b"\xc0", b"\xc3", b"\xe0", b"\xe2", b"\xed", b"\xef"])
    | st.sampled_from([b"\xf0", b"\xf1", b"\xf4", b"\x90", b"\x9f", b"\x98", b"\xf5", b"\xff", "é€😀\ufffd".encode()]),
    max_size=12,
).map(b"".join)
SURROGATE_AT_THE_END = re.compile(rb"\xed[\xa0-\xbf]\Z")


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b"", 0),
        (b"abc", 0),
        (b"a\xc3", 1),
        (b"\xc3\xa9", 0),
        (b"\xe2\x82", 2),
        (b"\xf0\x9f\x98", 3),
        (b"\xf0\x9f\x98\x80", 0),
        (b"\xe0\x80", 0),  # never a character: too long a form
        (b"\xed\xa0", 0),  # a surrogate
        (b"\xf5", 0),
        (b"\x80\x80\x80", 0),
        (b"\xe2\xe2", 1),
    ],
)
def test_the_tail_is_what_further_bytes_could_make_a_character(data: bytes, size: int) -> None:
    assert incomplete_tail(data) == size


@given(BYTE_SOUP)
def test_the_tail_is_what_an_incremental_decoder_would_keep(data: bytes) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    # Python's keeps the first two bytes of a surrogate as well, for the error handler that would let it pass.
    assume(not SURROGATE_AT_THE_END.search(data))
    assert incomplete_tail(data) == len(decoder.getstate()[0])


@given(BYTE_SOUP, st.integers(0, 50))
def test_text_is_the_same_however_the_bytes_are_cut(data: bytes, cut: int) -> None:
    tail = Utf8Tail(lambda byte: bytes([byte]))
    text = tail.push(data[:cut]) + tail.push(data[cut:]) + tail.break_off()
    assert text == data.decode("utf-8", "replace")


@given(BYTE_SOUP, BYTE_SOUP)
def test_pending_ids_alone_restore_the_tail(before: bytes, after: bytes) -> None:
    first = Utf8Tail(lambda byte: bytes([byte]))
    text = first.push(before)
    second = Utf8Tail(lambda byte: bytes([byte]))
    second.prime((), first.pending)
    text += second.push(after) + second.break_off()
    assert text == (before + after).decode("utf-8", "replace")


def answer_behind(prompt: bytes, answer: bytes) -> str:
    tail = Utf8Tail(lambda byte: bytes([byte]))
    tail.prime(prompt, ())
    return tail.push(answer) + tail.break_off()


def test_a_character_begun_by_the_prompt_and_completed_by_the_answer_is_shown_whole() -> None:
    assert answer_behind(b"cost: \xe2\x82", b"\xac5") == "€5"


def test_a_character_begun_by_the_prompt_and_broken_by_the_answer_is_not_shown() -> None:
    assert answer_behind(b"cost: \xe2\x82", b"five") == "five"


def test_a_character_begun_by_the_prompt_and_never_gone_on_with_is_not_shown() -> None:
    assert answer_behind(b"cost: \xe2\x82", b"") == ""


def test_a_broken_character_that_the_answer_had_a_part_in_is_shown_as_broken() -> None:
    assert answer_behind(b"cost: \xf0\x9f", b"\x98!") == "\ufffd!"


def test_a_replacement_character_spelt_out_across_the_seam_is_a_character() -> None:
    assert answer_behind(b"\xef\xbf", b"\xbd") == "\ufffd"


def test_a_tail_of_the_prompt_alone_is_not_pending() -> None:
    tail = Utf8Tail(lambda byte: bytes([byte]))
    tail.prime(b"\xe2\x82", ())
    assert tail.pending == ()


def test_pending_reaches_back_into_the_prompt_when_the_character_does() -> None:
    tail = Utf8Tail(lambda byte: bytes([byte]))
    tail.prime(b"a\xf0\x9f", ())
    tail.push(b"\x98")
    assert tail.pending == (0xF0, 0x9F, 0x98)
