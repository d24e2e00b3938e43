"""Values that came as text become what the function's schema says; everything else about a request's functions."""

from __future__ import annotations

import json

import pytest

from protocols.openai import ChatCompletionRequest
from tests.text.readings import read
from text.tool_calls.functions import Functions, as_json
from text.tool_calls.pythonic import value_text
from text.tool_calls.rules import CallMode, CallRules, call_rules, request_rules

PROPERTIES = {
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "items": {"type": "array"},
    "place": {"type": "object"},
    "zip": {"type": "string"},
    "note": {"type": ["string", "null"]},
    "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "level": {"enum": [1, 2]},
    "unit": {"enum": ["c", "f"]},
    "node": {"$ref": "#/$defs/Node"},
    "free": {"description": "anything"},
}
SCHEMA = {"type": "object", "properties": PROPERTIES, "$defs": {"Node": {"properties": {"v": {"type": "integer"}}}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
RULES = call_rules([TOOL])
SAID = {
    "count": "3",
    "flag": "true",
    "items": "[1]",
    "zip": "01234",
    "place": '{"a": 1}',
    "ratio": "0.50",
    "note": "null",
}
MEANT = {"count": 3, "flag": True, "items": [1], "zip": "01234", "place": {"a": 1}, "ratio": 0.5, "note": None}


def qwen(values: dict[str, str]) -> str:
    tags = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=f>\n{tags}</function>\n</tool_call>"


def glm(values: dict[str, str]) -> str:
    pairs = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in values.items())
    return f"<tool_call>f{pairs}</tool_call>"


def minimax(values: dict[str, str]) -> str:
    tags = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in values.items())
    return f'<minimax:tool_call>\n<invoke name="f">\n{tags}</invoke>\n</minimax:tool_call>'


MARKUPS = pytest.mark.parametrize(("parser", "write"), [("qwen3_coder", qwen), ("glm47", glm), ("minimax_m2", minimax)])


@MARKUPS
def test_values_in_tags_have_the_types_of_the_schema(parser, write) -> None:
    assert json.loads(read(parser, write(SAID), RULES)[1][0][1]) == MEANT


@MARKUPS
def test_streamed_and_at_once_the_types_are_the_same(parser, write) -> None:
    assert read(parser, list(write(SAID)), RULES) == read(parser, write(SAID), RULES)


@pytest.mark.parametrize(
    ("parameter", "said", "meant"),
    [
        ("count", " 7\n", "7"),
        ("count", "7.0", "7"),
        ("count", "+7", "7"),
        ("count", "007", "7"),
        ("count", "seven", '"seven"'),
        ("count", "7.5", '"7.5"'),
        ("ratio", "1e3", "1e3"),
        ("ratio", ".5", "0.5"),
        ("ratio", "1e999", '"1e999"'),
        ("flag", "True", "true"),
        ("flag", "yes", '"yes"'),
        ("items", "['a', 1]", '["a",1]'),
        ("items", "a, b", '"a, b"'),
        ("items", '{"a": 1}', '"{\\"a\\": 1}"'),
        ("place", "{'a': True, 'b': None}", '{"a":true,"b":null}'),
        ("place", "{'a': '\\d', 'b': 0x1for 2}", "\"{'a': '\\\\d', 'b': 0x1for 2}\""),
        ("place", "{'a': '\\d'}", '{"a":"\\\\d"}'),
        ("place", "{1, 2}", '"{1, 2}"'),
        ("zip", "true", '"true"'),
        ("zip", " a ", '" a "'),
        ("note", "no", '"no"'),
        ("size", "None", "null"),
        ("size", "4", "4"),
        ("level", "2", "2"),
        ("unit", "2", '"2"'),
        ("node", '{"v": 1}', '{"v": 1}'),
        ("free", "5", '"5"'),
        ("unheard", "5", '"5"'),
    ],
)
def test_a_value_is_what_its_schema_allows_or_a_string(parameter: str, said: str, meant: str) -> None:
    assert RULES is not None
    assert as_json(said, RULES.functions.types("f", parameter)) == meant


@pytest.mark.parametrize(
    ("source", "types", "meant"),
    [
        ("'it\\'s'", ["string"], '"it\'s"'),
        ('"5"', ["integer"], "5"),
        ("5", ["string"], '"5"'),
        ("-2.5", ["number"], "-2.5"),
        ("celsius", ["string"], '"celsius"'),
        ("true", ["boolean"], "true"),
        ("None", ["null"], "null"),
        ("[1, 'a', {'b': False}]", ["array"], '[1,"a",{"b":false}]'),
        ("{1: 2}", ["object"], '{"1":2}'),
        ("(1, 2)", ["array"], "[1,2]"),
        ("f(x)", ["string"], '"f(x)"'),
        ("'\\d'", ["string"], '"\\\\d"'),
        ("'a\nb'", ["string"], '"a\\nb"'),
        ("__import__('os')", ["string"], "\"__import__('os')\""),
    ],
)
def test_a_python_value_is_read_and_never_run(source: str, types: list[str], meant: str) -> None:
    assert value_text(source, frozenset(types)) == meant


def test_arguments_without_names_take_the_schemas_in_order() -> None:
    arguments = read("pythonic", "[f(3, 0.5, zip='x')]", RULES)[1][0][1]
    assert json.loads(arguments) == {"count": 3, "ratio": 0.5, "zip": "x"}


@pytest.mark.parametrize("value", ["a, b) c", "it's", 'say "x"', "[1", "\\", "'''"])
def test_signs_inside_python_strings_are_text(value: str) -> None:
    text = f"[f(zip={value!r}, note={value!r})]"
    assert json.loads(read("pythonic", list(text), RULES)[1][0][1]) == {"zip": value, "note": value}


def test_gemmas_notation_nests() -> None:
    place = '{a:<|"|>x, {y}<|"|>,b:[1,<|"|>z<|"|>,true,{}]}'
    text = f'<|tool_call>call:f{{place:{place},items:[],zip:<|"|>01<|"|>}}<tool_call|>'
    arguments = {"place": {"a": "x, {y}", "b": [1, "z", True, {}]}, "items": [], "zip": "01"}
    assert json.loads(read("gemma", list(text), RULES)[1][0][1]) == arguments


def test_dsml_says_itself_what_is_a_string() -> None:
    values = [("zip", "true", "5"), ("unheard", "false", "[1]"), ("count", "false", "x")]
    tags = "".join(
        f'<｜DSML｜parameter name="{key}" string="{is_string}">{value}</｜DSML｜parameter>\n'
        for key, is_string, value in values
    )
    text = f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n{tags}</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    assert json.loads(read("deepseek_v3_2", text, RULES)[1][0][1]) == {"zip": "5", "unheard": [1], "count": "x"}


def test_strings_are_told_as_they_come() -> None:
    text = qwen({"zip": 'a "b"\nc\\d\te'})
    content, calls = read("qwen3_coder", list(text), RULES)
    assert (content, json.loads(calls[0][1])) == ("", {"zip": 'a "b"\nc\\d\te'})


def test_only_the_line_breaks_of_the_tags_are_taken_off_a_value() -> None:
    assert json.loads(read("qwen3_coder", list(qwen({"zip": "\n x \n"})), RULES)[1][0][1]) == {"zip": "\n x \n"}


def test_additional_properties_have_their_own_type() -> None:
    functions = Functions({"f": {"type": "object", "additionalProperties": {"type": "integer"}}})
    assert functions.types("f", "anything") == {"integer"}


@pytest.mark.parametrize("reference", ["#/$defs/A~1B%5Bint%5D", "#/items/1", "#/properties/own"])
def test_a_reference_is_a_json_pointer(reference: str) -> None:
    number = {"type": "integer"}
    schema = {
        "properties": {"a": {"$ref": reference}, "own": number},
        "$defs": {"A/B[int]": number},
        "items": [{"type": "string"}, number],
    }
    assert Functions({"f": schema}).types("f", "a") == {"integer"}


@pytest.mark.parametrize("reference", ["#", "#/items/7", "#/nowhere/a", "https://example.com/schema"])
def test_a_reference_that_leads_nowhere_says_nothing(reference: str) -> None:
    schema = {"properties": {"a": {"$ref": reference}}, "items": []}
    assert Functions({"f": schema}).types("f", "a") in ({"string"}, {"object"})


def test_a_schema_that_refers_to_itself_ends_somewhere() -> None:
    loop = {"type": "object", "properties": {"a": {"$ref": "#/$defs/L"}}, "$defs": {"L": {"$ref": "#/$defs/L"}}}
    assert Functions({"f": loop}).types("f", "a") == {"string"}


# ---- rules


def names(rules: CallRules | None) -> list[str]:
    assert rules is not None
    return list(rules.functions)


def tool(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(("tools", "choice"), [(None, None), ([], None), ([tool("f")], "none")])
def test_nothing_is_parsed_where_nothing_may_be_called(tools, choice) -> None:
    assert call_rules(tools, choice) is None


def test_a_named_function_is_the_only_one() -> None:
    assert names(call_rules([tool("f"), tool("g")], tool("g"))) == ["g"]


def test_allowed_tools_narrow_the_choice() -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool("g"), {"name": "h"}]}}
    assert names(call_rules([tool("f"), tool("g"), tool("h")], allowed)) == ["g", "h"]


def test_a_named_function_that_is_not_among_the_tools_takes_anything() -> None:
    assert names(call_rules([tool("f")], tool("g"))) == ["g"]


def chat(**fields: object) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "?"}], **fields}
    )


def test_a_chats_rules_come_from_its_tools_or_its_functions() -> None:
    assert request_rules(chat()) is None
    assert names(request_rules(chat(tools=[tool("f")]))) == ["f"]
    rules = request_rules(chat(functions=[{"name": "f"}], function_call={"name": "f"}))
    assert rules is not None
    assert (rules.mode, rules.parallel, rules.legacy) == (CallMode.NAMED, False, True)
    assert request_rules(chat(functions=[{"name": "f"}], function_call="none")) is None


@pytest.mark.parametrize(
    ("choice", "finish", "calls", "told"),
    [
        ("auto", "stop", 1, "tool_calls"),
        ("auto", "stop", 0, "stop"),
        ("auto", "length", 1, "length"),
        ("required", "stop", 2, "tool_calls"),
        ("required", "length", 1, "length"),
        (tool("f"), "stop", 1, "stop"),
        ("auto", "content_filter", 1, "content_filter"),
    ],
)
def test_an_answer_that_ended_with_calls_says_so(choice, finish: str, calls: int, told: str) -> None:
    rules = call_rules([tool("f")], choice)
    assert rules is not None
    assert rules.finish_name(finish, calls) == told


def test_an_answer_to_functions_ends_in_their_word() -> None:
    rules = request_rules(chat(functions=[{"name": "f"}]))
    assert rules is not None
    assert rules.finish_name("stop", 1) == "function_call"


def test_a_custom_tool_is_a_function_of_one_string() -> None:
    rules = call_rules([{"type": "custom", "custom": {"name": "shell"}}])
    assert rules is not None
    assert rules.functions.schema("shell")["required"] == ["input"]
