"""No cut of the text changes what is told, whatever the text is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.call_samples import SAMPLES
from tests.text.readings import AUTO, TOOLS, cuts, joined, numbered_ids, told
from text.answer_parser import ModelMarkup
from text.answer_pieces import AnswerPiece, ReasoningText
from text.reasoning.styles import STYLES
from text.tool_calls.rules import call_rules
from text.tool_calls.table import PARSERS, tool_call_parser

RULES = (
    AUTO,
    call_rules(TOOLS, "required"),
    call_rules(TOOLS, {"type": "function", "function": {"name": "get_weather"}}),
    call_rules(TOOLS, "auto", False),
)
WORDS = (
    *("{", "}", "[", "]", "(", ")", ",", ":", ";", "=", '"', "'", "\\", "<", ">", "/", "`", " ", "\n", "é", "|"),
    *("text", "get_weather", "get_time", "name", "city", "days", "3", "null", "true", "Paris", "function", "```json\n"),
    *(
        '{"name": "get_weather", "arguments": {"city": "Paris"}}',
        '{"name":"get_time"',
        '"parameters": ',
        '"arguments":{',
    ),
    *("functions.get_weather:0", "call:get_weather{", "city:", 'city="x"', "get_weather(", 'string="true"', '"a\\"b"'),
    *("to=functions.get_time", "analysis", "commentary", "final", "functools", "[TOOL_CALLS]", "```"),
)
PLACES = st.lists(st.integers(0, 200), max_size=12)


def texts(marks: frozenset[str], samples: Sequence[str] = ()) -> st.SearchStrategy[str]:
    """Texts of the marks, of what may stand between them and of parts of samples, in any order."""
    words = [st.sampled_from(each) for each in (WORDS, sorted(marks)) if each]
    if samples:
        spans = st.tuples(st.sampled_from(samples), st.integers(0, 40), st.integers(0, 400))
        words.append(spans.map(lambda span: span[0][span[1] // 4 * 4 :][: span[2]]))
    return st.lists(st.one_of(words), max_size=20).map("".join)


SAMPLES_OF = {
    name: [text for sample in SAMPLES if sample.parser == name for text in (sample.one, sample.two)] for name in PARSERS
}


@pytest.mark.parametrize("name", PARSERS)
def test_no_cut_changes_the_calls_and_the_content(name: str) -> None:
    """Slow: some dozens of texts a parser, each read three times."""

    @settings(max_examples=60)
    @given(texts(PARSERS[name].tokens(), SAMPLES_OF[name]), st.sampled_from(RULES), st.booleans(), PLACES)
    def holds(text: str, rules: object, cut: bool, places: list[int]) -> None:
        whole, parts, slow = (
            joined(told(tool_call_parser(name, rules, numbered_ids()), portions, cut=cut))
            for portions in ([text], cuts(text, places), text)
        )
        assert parts == whole
        assert slow == whole

    holds()


@pytest.mark.parametrize("style", STYLES)
def test_no_cut_changes_the_thoughts(style: str) -> None:
    """Slow: some dozens of texts a style, each read three times."""
    markup = ModelMarkup("qwen3_coder", style)
    reading = markup.reading(AUTO)
    assert reading is not None

    @settings(max_examples=60)
    @given(texts(reading.tokens()), st.booleans(), st.booleans(), PLACES)
    def holds(text: str, thinking: bool, structured: bool, places: list[int]) -> None:
        tail = "<think>" if thinking else None
        reading = markup.reading(AUTO, tail, structured=structured)
        assert reading is not None
        whole, parts, slow = (
            _by_kind(told(reading.parser(numbered_ids()), portions)) for portions in ([text], cuts(text, places), text)
        )
        assert parts == whole
        assert slow == whole

    holds()


def _by_kind(pieces: list[AnswerPiece]) -> list[list[list[Any]]]:
    """Thoughts apart from the rest: one read may bring both, and only their own order is certain."""
    thoughts = [piece for piece in pieces if isinstance(piece, ReasoningText)]
    return [joined(thoughts), joined([piece for piece in pieces if not isinstance(piece, ReasoningText)])]
