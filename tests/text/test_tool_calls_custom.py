"""Calls of custom tools are told by their input."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage
from pydantic import TypeAdapter

from tests.text.readings import cuts, numbered_ids, told
from text.answer_parser import ModelMarkup
from text.chat_message import delta_of, message_of
from text.tool_calls.custom import InputText
from text.tool_calls.rules import call_rules

TOOLS = [
    {"type": "custom", "custom": {"name": "shell", "description": "Runs."}},
    {"type": "function", "function": {"name": "get_time"}},
]
INPUT = 'echo "a\\b" <é😀>\n\tdone'
TEXTS = {
    "hermes": "<tool_call>\n{}\n</tool_call>".replace(
        "{}", json.dumps({"name": "shell", "arguments": {"input": INPUT}})
    ),
    "qwen3_coder": f"<tool_call>\n<function=shell>\n<parameter=input>\n{INPUT}\n</parameter>\n</function></tool_call>",
}
TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
CUSTOM = {"id": "call_0", "type": "custom", "custom": {"name": "shell", "input": INPUT}}


def pieces_of(parser: str, parts: Any, choice: Any = None, **how: bool) -> list[Any]:
    reading = ModelMarkup(parser, None).reading(call_rules(TOOLS, choice))
    assert reading is not None
    return told(reading.parser(numbered_ids()), parts, **how)


@pytest.mark.parametrize("parser", TEXTS)
def test_a_custom_tools_call_is_told_by_its_input(parser: str) -> None:
    message = message_of(pieces_of(parser, list(TEXTS[parser])), legacy=False)

    assert message["tool_calls"] == [CUSTOM]
    TypeAdapter(ChatCompletionMessage).validate_python(message, strict=True)


def test_a_function_beside_it_keeps_its_arguments() -> None:
    calls = message_of(pieces_of("hermes", list(TEXTS["hermes"] + TIME)), legacy=False)["tool_calls"]

    assert calls == [
        CUSTOM,
        {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}},
    ]


def test_its_deltas_name_it_once_and_join_to_its_input() -> None:
    deltas = [
        call
        for piece in pieces_of("hermes", list(TEXTS["hermes"]))
        for call in delta_of(piece, legacy=False)["tool_calls"]
    ]

    assert deltas[0] == {"index": 0, "id": "call_0", "type": "custom", "custom": {"name": "shell", "input": ""}}
    assert all(delta.keys() == {"index", "custom"} for delta in deltas[1:])
    assert "".join(delta["custom"]["input"] for delta in deltas) == INPUT
    assert len(deltas) > 10


@pytest.mark.parametrize("choice", ["required", {"type": "custom", "custom": {"name": "shell"}}])
def test_one_that_is_forced_is_told_so_too(choice: Any) -> None:
    bound = json.dumps({"input": INPUT})
    text = f'[{{"name": "shell", "parameters": {bound}}}]' if choice == "required" else bound
    assert message_of(pieces_of("hermes", list(text), choice), legacy=False)["tool_calls"] == [CUSTOM]


def input_of(parts: list[str]) -> str:
    reader = InputText()
    return "".join([*map(reader.feed, parts), reader.finish()])


@given(st.text(), st.lists(st.integers(0, 80), max_size=6), st.booleans())
def test_no_cut_changes_the_input(text: str, places: list[int], escaped: bool) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=escaped)
    assert input_of(cuts(arguments, places)) == text


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"command": "ls"}', '{"command": "ls"}'),
        ('{"other": 1, "input": "ls"}', "ls"),
        ('"ls"', "ls"),
        ("ls -l", "ls -l"),
        ("{}", ""),
        ("", ""),
        ('{"inp', ""),
        ('{"input": "ls -l /ho', "ls -l /ho"),
        ('{"input": "a\\ud83d', "a"),
        ('{"input": "a\\ud83dx\\udc00\\ud83d\\u0041\\q\\uzz"}', "a\ufffdx\ufffd\ufffdA\\q\\uzz"),
        ('{"input": 5}', '{"input": 5}'),
    ],
)
def test_arguments_of_another_form_are_the_input(arguments: str, given: str) -> None:
    assert input_of([arguments]) == given
    assert input_of(list(arguments)) == given
