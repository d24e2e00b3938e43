"""Every markup, well-formed: one call, several, text around them; in one piece, and character by character."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.text.call_samples import HARMONY_W, KIMI_T, KIMI_W, SAMPLES, TIME, WEATHER, A, Sample, T, W, kimi
from tests.text.readings import (
    AUTO,
    calls_of,
    content_of,
    joined,
    numbered_ids,
    read,
    reasoning_of,
    through_the_sdk,
    told,
)
from text.answer_pieces import CallStarted
from text.tool_calls.table import PARSERS, tool_call_parser

every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.parser)


def parsed(calls: list[tuple[str, str]]) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]


def test_every_parser_has_a_sample() -> None:
    assert {sample.parser for sample in SAMPLES} == set(PARSERS)


@every_sample
def test_a_call_alone_leaves_no_content(sample: Sample) -> None:
    content, calls = read(sample.parser, sample.one)
    assert (content, parsed(calls)) == ("", [WEATHER])


@every_sample
def test_all_calls_of_an_answer_are_told(sample: Sample) -> None:
    content, calls = read(sample.parser, sample.two)
    assert (content, parsed(calls)) == ("", [WEATHER, TIME])


@every_sample
def test_text_before_and_behind_is_content(sample: Sample) -> None:
    content, calls = read(sample.parser, f"I will look.\n\n{sample.two}\nDone.")
    assert (content.split(), parsed(calls)) == (["I", "will", "look.", "Done."], [WEATHER, TIME])


@every_sample
@pytest.mark.parametrize("text", ["{}", "Hm.\n{}", "\n\n{}\n"])
def test_character_by_character_the_same_is_told(sample: Sample, text: str) -> None:
    whole = text.format(sample.two)
    at_once = told(tool_call_parser(sample.parser, AUTO, numbered_ids()), [whole])
    slowly = told(tool_call_parser(sample.parser, AUTO, numbered_ids()), whole)
    assert joined(slowly) == joined(at_once)


@every_sample
def test_the_sdk_joins_what_was_streamed(sample: Sample) -> None:
    message = through_the_sdk(told(tool_call_parser(sample.parser, AUTO), f"Well. {sample.two}"))
    assert message.content == "Well."
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]
    assert calls == [WEATHER, TIME]
    assert len({call.id for call in message.tool_calls}) == 2
    assert all(call.id for call in message.tool_calls)


@every_sample
def test_the_name_is_told_before_the_call_is_over(sample: Sample) -> None:
    parser = tool_call_parser(sample.parser, AUTO)
    pieces = [piece for character in sample.one.rpartition("3")[0] for piece in parser.feed(character)]
    assert [piece.name for piece in pieces if isinstance(piece, CallStarted)] == ["get_weather"]


@every_sample
def test_ordinary_text_passes_at_once(sample: Sample) -> None:
    parser = tool_call_parser(sample.parser, AUTO)
    parser.feed("The")
    assert content_of(parser.feed(" weather is fine")) == " weather is fine"


@every_sample
def test_only_the_first_call_is_told_when_one_is_allowed(sample: Sample) -> None:
    one_at_once = AUTO.__class__(AUTO.functions, parallel=False)
    parser = tool_call_parser(sample.parser, one_at_once)
    assert parsed(calls_of(told(parser, [sample.two]))) == [WEATHER]
    assert parser.calls == 1


def test_harmony_tells_thoughts_and_preambles_too() -> None:
    text = (
        "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>commentary<|message|>One moment."
        f"<|end|><|start|>assistant{HARMONY_W}"
    )
    pieces = told(tool_call_parser("harmony", AUTO), text)
    assert reasoning_of(pieces) == "Look it up."
    assert content_of(pieces) == "One moment."
    assert parsed(calls_of(pieces)) == [WEATHER]


def test_harmony_keeps_the_models_own_tools_from_the_user() -> None:
    text = "<|channel|>commentary to=browser.search code<|message|>{}<|call|>"
    text += "<|start|>assistant<|channel|>final<|message|>Hi"
    pieces = told(tool_call_parser("harmony", AUTO), text)
    assert (reasoning_of(pieces), content_of(pieces), calls_of(pieces)) == ("{}", "Hi", [])


def test_kimis_ids_are_the_models_own() -> None:
    pieces = told(tool_call_parser("kimi_k2", AUTO), kimi(KIMI_W + KIMI_T))
    ids = [piece.id for piece in pieces if isinstance(piece, CallStarted)]
    assert ids == ["functions.get_weather:0", "functions.get_time:1"]


def test_an_id_that_kimi_repeats_is_replaced() -> None:
    pieces = told(tool_call_parser("kimi_k2", AUTO, numbered_ids()), kimi(KIMI_W + KIMI_W))
    ids = [piece.id for piece in pieces if isinstance(piece, CallStarted)]
    assert ids == ["functions.get_weather:0", "call_0"]


def test_mistrals_ids_are_such_as_its_templates_take() -> None:
    pieces = told(tool_call_parser("mistral", AUTO), f"[TOOL_CALLS][{W}, {T}]")
    ids = [piece.id for piece in pieces if isinstance(piece, CallStarted)]
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    assert len(set(ids)) == 2


def test_an_id_that_mistral_gives_is_kept() -> None:
    pieces = told(tool_call_parser("mistral", AUTO), f"[TOOL_CALLS]get_weather[CALL_ID]Ab3dE6gH9[ARGS]{A}")
    assert [piece.id for piece in pieces if isinstance(piece, CallStarted)] == ["Ab3dE6gH9"]
    assert parsed(calls_of(pieces)) == [WEATHER]


def test_ids_of_different_answers_differ() -> None:
    ids = {told(tool_call_parser("hermes", AUTO), [SAMPLES[0].one])[0].id for _ in range(50)}
    assert len(ids) == 50
    assert all(each.startswith("call_") for each in ids)
