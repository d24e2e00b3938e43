"""Stop strings across any cut of the text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text.stop_filter import StopFilter

AB = st.text(st.sampled_from("ab"), max_size=12)
STOPS = st.lists(st.text(st.sampled_from("ab"), min_size=1, max_size=4), min_size=1, max_size=4)


def run(stop_filter: StopFilter, portions: list[str]) -> tuple[str, str | None]:
    """All that was shown, and the stop that matched."""
    shown = ""
    for portion in portions:
        text, match = stop_filter.feed(portion)
        shown += text
        if match is not None:
            return shown, match
    return shown + stop_filter.flush(), None


def first_stop(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The meaning, spelt out: look after every character; of the stops that end there the longest counts."""
    for end in range(1, len(text) + 1):
        ending_here = [stop for stop in stops if text[:end].endswith(stop)]
        if ending_here:
            stop = max(ending_here, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


@given(AB, STOPS, st.booleans(), st.lists(st.integers(0, 12), max_size=5))
def test_any_cut_of_the_text_ends_at_the_same_place(
    text: str, stops: list[str], include: bool, places: list[int]
) -> None:
    assert run(StopFilter(stops, include=include), cut(text, places)) == first_stop(text, stops, include)


@given(AB, STOPS, st.booleans(), st.integers(0, 12))
def test_a_new_filter_goes_on_where_another_stood(text: str, stops: list[str], include: bool, place: int) -> None:
    first = StopFilter(stops, include=include)
    shown, match = first.feed(text[:place])
    if match is None:
        more, match = run(StopFilter(stops, include=include, jailed=first.jailed), [text[place:]])
        shown += more
    assert (shown, match) == first_stop(text, stops, include)


@given(AB, STOPS, st.lists(st.integers(0, 12), max_size=5))
def test_no_more_is_withheld_than_may_become_a_stop(text: str, stops: list[str], places: list[int]) -> None:
    stop_filter = StopFilter(stops, include=False)
    fed = ""
    for portion in cut(text, places):
        fed += portion
        if stop_filter.feed(portion)[1] is not None:
            return
        longest = max((n for n in range(1, 4) if any(s[:n] == fed[-n:] and len(s) > n for s in stops)), default=0)
        assert stop_filter.jailed == fed[len(fed) - longest :]


@pytest.mark.parametrize("stops", [["he", "re"], ["re", "he"]])
def test_the_first_match_in_the_text_wins_not_the_first_in_the_list(stops: list[str]) -> None:
    assert StopFilter(stops, include=False).feed("there") == ("t", "he")


def test_of_two_stops_that_end_together_the_longer_is_cut() -> None:
    assert StopFilter(["c", "abc"], include=False).feed("xabcd") == ("x", "abc")


def test_a_stop_inside_another_ends_the_text_first() -> None:
    assert StopFilter(["abcde", "bc"], include=False).feed("xabcde") == ("xa", "bc")


def test_a_matched_stop_is_kept_when_asked_for() -> None:
    assert StopFilter(["END"], include=True).feed("the END.") == ("the END", "END")


def test_a_false_alarm_is_shown() -> None:
    stop_filter = StopFilter(["STOP"], include=False)
    assert stop_filter.feed("no ST") == ("no ", None)
    assert stop_filter.jailed == "ST"
    assert stop_filter.feed("ART") == ("START", None)


def test_half_a_stop_at_the_end_is_shown() -> None:
    stop_filter = StopFilter(["STOP"], include=False)
    stop_filter.feed("STO")
    assert stop_filter.flush() == "STO"
    assert stop_filter.flush() == ""


def test_a_false_alarm_may_hide_the_real_one() -> None:
    assert run(StopFilter(["aab"], include=False), ["a", "a", "a", "b", "c"]) == ("a", "aab")


def test_without_stops_text_passes() -> None:
    assert StopFilter((), include=False).feed("text") == ("text", None)


def test_without_stops_a_seed_is_shown() -> None:
    assert StopFilter((), include=False, jailed="ST").feed("OP") == ("STOP", None)


def test_empty_stops_are_ignored() -> None:
    assert StopFilter(["", "b"], include=False).feed("ab") == ("a", "b")


def test_an_unarmed_filter_lets_a_stop_pass() -> None:
    assert StopFilter(["b"], include=False).feed("abc", armed=False) == ("abc", None)


def test_a_stop_begun_unarmed_may_be_completed_armed() -> None:
    stop_filter = StopFilter(["STOP"], include=False)
    assert stop_filter.feed("a ST", armed=False) == ("a ", None)
    assert stop_filter.feed("OP b") == ("", "STOP")


def test_a_stop_completed_unarmed_does_not_count_later() -> None:
    stop_filter = StopFilter(["ab", "xabc"], include=False)
    assert stop_filter.feed("xab", armed=False) == ("", None)
    assert stop_filter.feed("d") == ("xabd", None)
