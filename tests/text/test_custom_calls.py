"""Calls of custom tools: told as OpenAI tells them, with the text that the model meant as their input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.text.readings import TOOLS, numbered_ids, told
from text.answer_parser import AnswerReading, ModelMarkup
from text.answer_pieces import ArgumentsDelta, CallStarted, InputDelta
from text.chat_message import delta_of, message_of
from text.tool_calls.custom_calls import InputText
from text.tool_calls.rules import call_rules

SHELL = {"type": "custom", "custom": {"name": "shell", "description": "Runs it."}}
AUTO = call_rules([SHELL, *TOOLS])
HERMES = ModelMarkup("hermes")
TEXT = 'print("héllo 😀")\n\t# \\ and "more"'


def call_of(arguments: str, name: str = "shell") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def parser_of(rules: Any = AUTO, markup: ModelMarkup = HERMES) -> Any:
    reading = markup.reading(rules)
    assert isinstance(reading, AnswerReading)
    return reading.parser(numbered_ids())


def inputs_of(pieces: Any) -> list[tuple[str, str]]:
    calls = message_of(pieces, legacy=False)["tool_calls"]
    return [(call[call["type"]]["name"], call["custom"]["input"]) for call in calls if call["type"] == "custom"]


# ---- the input


@pytest.mark.parametrize("ascii_only", [True, False])
def test_an_input_is_the_models_own_text_however_it_is_cut(ascii_only: bool) -> None:
    arguments = json.dumps({"input": TEXT}, ensure_ascii=ascii_only)

    for cut in range(len(arguments)):
        text = InputText()
        assert text.feed(arguments[:cut]) + text.feed(arguments[cut:]) + text.finish() == TEXT
    text = InputText()
    assert "".join(map(text.feed, arguments)) == TEXT


def test_an_input_is_told_as_it_comes() -> None:
    text = InputText()

    assert [text.feed(part) for part in ('{"inp', 'ut": "a', "b", "\\", "nc", '"', "}")] == [
        *("", "a", "b", "", "\nc", "", ""),
    ]


@pytest.mark.parametrize(
    ("arguments", "told_"),
    [
        ('{"input": "cut off', "cut off"),
        ('{"input": "cut off \\', "cut off "),
        ('{"input": "cut off \\u00e', "cut off "),
        ('{"input": "half \\ud83d', "half \ufffd"),
        ('{"input": "half \\ud83d!"}', "half \ufffd!"),
        ('{"input": "half \\ud83d\\ud83d\\ude00"}', "half \ufffd😀"),
        ('{"input": "half \\ude00"}', "half \ufffd"),
        ('{"input": ""}', ""),
        ('{"before": 1, "input": "late"}', "late"),
        ('"bare"', "bare"),
        ('{"input": {"not": "text"}}', '{"input": {"not": "text"}}'),
        ('{"command": "ls"}', '{"command": "ls"}'),
        ('{"comm', '{"comm'),
        ("ls -l", "ls -l"),
        ("", ""),
    ],
)
def test_an_input_of_another_form_is_told_as_it_stands(arguments: str, told_: str) -> None:
    for cut in range(len(arguments) + 1):
        text = InputText()
        assert text.feed(arguments[:cut]) + text.feed(arguments[cut:]) + text.finish() == told_


# ---- the calls


def test_a_custom_call_is_told_as_one_and_a_function_as_a_function() -> None:
    answer = "Now: " + call_of(json.dumps({"input": TEXT})) + call_of('{"city": "Paris"}', "get_weather")
    pieces = told(parser_of(), list(answer))

    assert message_of(pieces, legacy=False)["tool_calls"] == [
        {"id": "call_0", "type": "custom", "custom": {"name": "shell", "input": TEXT}},
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
        },
    ]


def test_a_custom_calls_first_delta_names_it_and_the_others_go_on_with_its_input() -> None:
    deltas = [
        delta_of(piece, legacy=False)
        for piece in told(parser_of(), ['<tool_call>{"name": "shell", "arguments": {"input": "l', 's"}}</tool_call>'])
    ]

    assert deltas == [
        {
            "tool_calls": [
                {"index": 0, "id": "call_0", "type": "custom", "custom": {"name": "shell", "input": ""}},
            ]
        },
        {"tool_calls": [{"index": 0, "custom": {"input": "l"}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": "s"}}]},
    ]


def test_calls_are_the_same_however_the_answer_is_cut() -> None:
    answer = call_of(json.dumps({"input": TEXT})) + call_of('{"wrong": 1}') + call_of('{"input": "x"}')

    whole = inputs_of(told(parser_of(), [answer]))

    assert whole == [("shell", TEXT), ("shell", '{"wrong": 1}'), ("shell", "x")]
    for cut in range(1, len(answer)):
        assert inputs_of(told(parser_of(), [answer[:cut], answer[cut:]])) == whole


@pytest.mark.parametrize(
    "answer", ['{"input": "ls"}', '[{"name": "shell", "parameters": {"input": "ls"}}]', call_of('{"input": "ls"}')]
)
def test_a_forced_custom_call_is_one_too(answer: str) -> None:
    rules = call_rules([SHELL], {"type": "custom", "custom": {"name": "shell"}})

    assert inputs_of(told(parser_of(rules), list(answer))) == [("shell", "ls")]


def test_a_custom_call_in_tags_is_one_too() -> None:
    answer = "<tool_call><function=shell><parameter=input>\nls -l\n</parameter></function></tool_call>"

    assert inputs_of(told(parser_of(markup=ModelMarkup("qwen3_coder")), list(answer))) == [("shell", "ls -l")]


def test_a_call_that_was_cut_off_has_the_input_so_far() -> None:
    pieces = told(parser_of(), ['<tool_call>{"name": "shell", "arguments": {"input": "ls \\'], cut=True)

    assert pieces == [CallStarted(0, "call_0", "shell", custom=True), InputDelta(0, "ls ")]


def test_a_request_without_custom_tools_pays_nothing() -> None:
    pieces = told(parser_of(call_rules(TOOLS)), [call_of('{"input": "ls"}', "get_time")])

    assert pieces == [CallStarted(0, "call_0", "get_time"), ArgumentsDelta(0, '{"input": "ls"}')]
