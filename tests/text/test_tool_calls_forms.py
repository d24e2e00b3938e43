"""The forms in which a call may come, and those in which it is none."""

from __future__ import annotations

import json

import pytest

from tests.text.readings import TOOLS, read
from text.tool_calls.rules import call_rules

A = '{"city": "Paris"}'
W = f'{{"name": "get_weather", "arguments": {A}}}'


def test_arguments_before_the_name_wait_for_it() -> None:
    assert read("hermes", f'<tool_call>{{"arguments": {A}, "name": "get_weather"}}</tool_call>')[1] == [
        ("get_weather", A)
    ]


@pytest.mark.parametrize("nothing", ['"arguments": {}', '"arguments": null', '"arguments": ""', '"id": "x"'])
def test_no_arguments_are_an_empty_object(nothing: str) -> None:
    assert read("hermes", f'<tool_call>{{"name": "get_time", {nothing}}}</tool_call>')[1] == [("get_time", "{}")]


def test_arguments_in_a_string_are_taken_out_of_it() -> None:
    text = f'<tool_call>{{"name": "get_weather", "arguments": {json.dumps(A)}}}</tool_call>'
    assert read("hermes", text)[1] == [("get_weather", A)]


def test_a_call_within_a_function_object_is_read() -> None:
    assert read("default", f'{{"type": "function", "function": {W}}}') == ("", [("get_weather", A)])


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ann", "arguments": {}}',
        '{"name": "get_weather"}',
        '{"name": "get_weather", "description": "Weather", "parameters": {}}',
        f'{{"calls": [{W}]}}',
        f'["x", {W}]',
        "{x} and [1, 2] and []",
        '```json\n{"a": {"name": "get_time", "arguments": {}}}\n```\n',
    ],
)
@pytest.mark.parametrize("parser", ["llama3_json", "default"])
def test_bare_json_that_is_no_call_is_content(parser: str, text: str) -> None:
    assert read(parser, text) == (text, [])
    assert read(parser, list(text)) == (text, [])


def test_a_call_behind_other_json_is_found() -> None:
    assert read("llama3_json", f'{{"a": 1}} {W}') == ('{"a": 1}', [("get_weather", A)])


def test_a_bare_list_that_no_known_function_begins_is_content() -> None:
    assert read("pythonic", "see [1] and [get_wether(city='x')]") == ("see [1] and [get_wether(city='x')]", [])


def test_functools_in_a_text_is_content() -> None:
    assert read("phi4", "functools.partial and functools[0]") == ("functools.partial and functools[0]", [])


def test_tags_of_another_program_are_content() -> None:
    xml = '<parameter name="a">1</parameter> <invoke name="other">'
    assert read("minimax_m2", xml) == (xml, [])


def test_unknown_functions_in_a_markup_are_calls_all_the_same() -> None:
    assert read("hermes", '<tool_call>{"name": "get_wether", "arguments": {}}</tool_call>')[1] == [("get_wether", "{}")]


def test_deepseek_v3_2_takes_arguments_as_json_too() -> None:
    invoke = f'<｜DSML｜invoke name="get_weather">\n{A}\n</｜DSML｜invoke>\n'
    text = f"<｜DSML｜function_calls>\n{invoke}</｜DSML｜function_calls>"
    assert read("deepseek_v3_2", text) == ("", [("get_weather", A)])


def test_kimis_bare_number_means_the_only_function() -> None:
    text = "<|tool_call_begin|>0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    assert read("kimi_k2", text, call_rules(TOOLS[1:])) == ("", [("get_time", "{}")])
    assert read("kimi_k2", text) == ("0{}", [])
