"""Ids to text in an engine's front end: whole characters, and what each engine keeps back before a stop string."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from simulator.text import Hold, TextStream
from simulator.vocabulary import Codec, Vocabulary

VOCABULARY = Vocabulary(256, (2,), frozenset({0, 1, 2}), tuple(range(97, 123)))
BYTES = Codec(lambda text: list(text.encode()), lambda ids: bytes(ids).decode(errors="replace"))


def shown(stream: TextStream, text: str) -> list[str]:
    return [stream.push([byte]) for byte in text.encode()] + [stream.finish()]


def stream(stops: Sequence[str] = (), hold: Hold = Hold.LENGTH, **options: bool) -> TextStream:
    return TextStream(BYTES, VOCABULARY, (), stops, hold=hold, **options)


def test_half_a_character_is_not_shown() -> None:
    assert shown(stream(), "aé🙂") == ["a", "", "é", "", "", "", "🙂", ""]


def test_half_a_character_at_the_end_is_dropped_or_comes_broken() -> None:
    kept, dropped = stream(), stream()
    kept.push("🙂".encode()[:2])
    dropped.push("🙂".encode()[:2])

    assert kept.finish() == "\ufffd"
    assert dropped.finish(partial=False) == ""


def test_special_ids_are_not_shown() -> None:
    assert stream().push([97, 2, 98]) == "ab"
    assert TextStream(BYTES, VOCABULARY, skip_special=False).push([97, 2]) == "a\x02"


@pytest.mark.parametrize(
    ("hold", "deltas"),
    [
        (Hold.LENGTH, ["", "", "x", "y", "z", "", ""]),
        (Hold.PREFIX, ["x", "y", "z", "", "", "", ""]),
        (Hold.NOTHING, ["x", "y", "z", "s", "t", "", ""]),
    ],
)
def test_engines_keep_back_different_amounts_before_a_stop(hold: Hold, deltas: list[str]) -> None:
    found = stream(["stp", "sto"], hold)

    result = shown(found, "xyzsto")

    assert (result, found.stopped) == (deltas, "sto")


def test_what_is_kept_back_comes_when_no_stop_was_in_it() -> None:
    assert "".join(shown(stream(["stop"]), "xyz sto")) == "xyz sto"


def test_the_stop_itself_is_shown_when_asked() -> None:
    assert "".join(shown(stream(["st"], include_stop=True), "xyst!")) == "xyst"


def test_the_earliest_stop_in_the_text_wins() -> None:
    found = stream(["later", "now"])

    found.push(b"x now later")

    assert found.stopped == "now"
