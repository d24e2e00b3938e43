"""Answers that have to be calls: what binds the engine to them, and how what it then sends is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.text.readings import TOOLS, cuts, read
from text.tool_calls.constraint import constraint_for
from text.tool_calls.rules import call_rules
from text.tool_calls.table import PARSERS, tool_call_parser
from text.tool_calls.tag_formats import FORMATS

REQUIRED = call_rules(TOOLS, "required")
NAMED = call_rules(TOOLS, {"type": "function", "function": {"name": "get_weather"}})
AUTO = call_rules(TOOLS)
A = '{"city": "Paris"}'
BOUND = f'[{{"name": "get_weather", "parameters": {A}}}, {{"name": "get_time", "parameters": {{}}}}]'
CALLS = [("get_weather", A), ("get_time", "{}")]
ALL = pytest.mark.parametrize("parser", PARSERS)


@ALL
def test_a_bound_list_is_read_as_calls(parser: str) -> None:
    assert read(parser, BOUND, REQUIRED) == ("", CALLS)
    assert read(parser, list(f"\n{BOUND}\n"), REQUIRED) == ("", CALLS)


@ALL
def test_a_bound_object_is_the_named_functions_arguments(parser: str) -> None:
    assert read(parser, A, NAMED) == ("", [("get_weather", A)])
    assert read(parser, list(f" {A} "), NAMED) == ("", [("get_weather", A)])


@pytest.mark.parametrize("rules", [REQUIRED, NAMED], ids=["required", "named"])
def test_the_models_own_markup_is_read_as_well(rules) -> None:
    text = f'<tool_call>\n{{"name": "get_weather", "arguments": {A}}}\n</tool_call>'
    assert read("hermes", text, rules) == ("", [("get_weather", A)])
    assert read("pythonic", '[get_weather(city="Paris")]', rules) == ("", [("get_weather", A)])


@pytest.mark.parametrize("rules", [REQUIRED, NAMED], ids=["required", "named"])
def test_prose_stays_content(rules) -> None:
    assert read("hermes", "I cannot do that.", rules) == ("I cannot do that.", [])
    assert read("hermes", "  ", rules) == ("  ", [])


def test_a_named_call_that_names_itself_is_no_argument() -> None:
    text = f'{{"name": "get_weather", "parameters": {A}}}'
    assert read("hermes", list(text), NAMED) == ("", [("get_weather", A)])


def test_a_parameter_called_name_is_an_argument() -> None:
    tool = {"name": "greet", "parameters": {"type": "object", "properties": {"name": {"type": "string"}}}}
    rules = call_rules([{"type": "function", "function": tool}], {"type": "function", "function": {"name": "greet"}})
    assert read("hermes", '{"name": "Ann"}', rules) == ("", [("greet", '{"name": "Ann"}')])


def test_bound_arguments_come_as_they_are_written() -> None:
    assert NAMED is not None
    parser = tool_call_parser("hermes", NAMED)
    parser.feed('{"city": ')
    assert [piece.text for piece in parser.feed('"Par')] == ['"Par']
    assert parser.calls == 1


@pytest.mark.parametrize("end", range(0, len(BOUND), 7))
def test_wherever_the_length_cuts_a_bound_list_what_was_told_stays(end: int) -> None:
    whole = read("hermes", BOUND[:end], REQUIRED, cut=True)
    assert read("hermes", cuts(BOUND[:end], [3, 20, 50]), REQUIRED, cut=True) == whole


def test_required_binds_to_a_list_of_the_functions_calls() -> None:
    assert REQUIRED is not None
    guided = constraint_for(REQUIRED, "llama3_json", structural_tags=True)
    assert guided is not None
    items = guided.json["items"]["anyOf"]
    assert guided.json["minItems"] == 1
    assert "maxItems" not in guided.json
    assert [item["properties"]["name"]["enum"] for item in items] == [["get_weather"], ["get_time"]]
    assert items[0]["properties"]["parameters"] == TOOLS[0]["function"]["parameters"]
    assert items[1]["properties"]["parameters"] == {"type": "object"}


def test_one_call_at_most_where_no_more_are_allowed_at_once() -> None:
    rules = call_rules(TOOLS, "required", parallel=False)
    assert rules is not None
    guided = constraint_for(rules, None)
    assert guided is not None
    assert guided.json["maxItems"] == 1


def test_a_named_function_binds_to_its_arguments() -> None:
    assert NAMED is not None
    guided = constraint_for(NAMED, None)
    assert guided is not None
    assert guided.json == TOOLS[0]["function"]["parameters"]


def test_references_in_a_schema_still_lead_to_their_place() -> None:
    schema = {
        "type": "object",
        "properties": {"node": {"$ref": "#/$defs/Node"}},
        "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
    }
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in ("f", "g")]
    rules = call_rules(tools, "required")
    assert rules is not None
    guided = constraint_for(rules, None)
    assert guided is not None
    bound: Any = guided.json
    assert bound["items"]["anyOf"][1]["properties"]["parameters"] == {"$ref": "#/$defs/g"}
    assert bound["$defs"]["g"]["properties"]["node"] == {"$ref": "#/$defs/g/$defs/Node"}
    assert bound["$defs"]["g"]["$defs"]["Node"]["properties"]["next"] == {"$ref": "#/$defs/g/$defs/Node"}


def test_free_calls_bind_nothing() -> None:
    assert AUTO is not None
    assert constraint_for(AUTO, "hermes", structural_tags=True) is None


# ---- structural tags


def written(format_: Any, arguments: dict[str, str]) -> str:
    """A text that a format allows: every sequence in turn, of every choice the last, of every list all."""
    match format_["type"]:
        case "const_string":
            return format_["value"]
        case "sequence":
            return "".join(written(element, arguments) for element in format_["elements"])
        case "optional":
            return ""
        case "regex":
            return "0"
        case "tag":
            return format_["begin"] + written(format_["content"], arguments) + format_["end"]
        case "tags_with_separator":
            return format_["separator"].join(written(tag, arguments) for tag in format_["tags"])
        case "json_schema":
            style = format_.get("style", "json")
            return arguments[style] if "city" in format_["json_schema"].get("properties", ()) else empty(style)
    raise AssertionError(format_["type"])


def empty(style: str) -> str:
    return "{}" if style == "json" else ""


STYLES = {
    "json": A,
    "qwen_xml": "<parameter=city>\nParis\n</parameter>",
    "glm_xml": "<arg_key>city</arg_key><arg_value>Paris</arg_value>",
    "minimax_xml": '<parameter name="city">Paris</parameter>\n',
    "deepseek_xml": '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n',
}


@pytest.mark.parametrize("parser", FORMATS)
def test_what_a_tag_binds_to_is_what_the_parser_reads(parser: str) -> None:
    assert REQUIRED is not None
    guided = constraint_for(REQUIRED, parser, structural_tags=True)
    assert guided is not None
    assert guided.structural_tag["type"] == "structural_tag"
    content, calls = read(parser, list(written(guided.structural_tag["format"], STYLES)), REQUIRED)
    assert content == ""
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [
        ("get_weather", {"city": "Paris"}),
        ("get_time", {}),
    ]


@pytest.mark.parametrize("parser", FORMATS)
def test_a_named_tag_ends_after_its_one_call(parser: str) -> None:
    assert NAMED is not None
    guided = constraint_for(NAMED, parser, structural_tags=True)
    assert guided is not None
    assert '"stop_after_first": true' in json.dumps(guided.structural_tag)
    assert "get_time" not in json.dumps(guided.structural_tag)


@pytest.mark.parametrize("parser", FORMATS)
def test_tags_are_only_given_to_engines_that_take_them(parser: str) -> None:
    assert REQUIRED is not None
    guided = constraint_for(REQUIRED, parser)
    assert guided is not None
    assert guided.structural_tag is None
    assert guided.json is not None


def test_a_strict_function_is_bound_where_it_may_be_called() -> None:
    tools = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}, TOOLS[1]]
    rules = call_rules(tools)
    assert rules is not None
    guided = constraint_for(rules, "qwen3_coder", structural_tags=True)
    assert guided is not None
    format_ = guided.structural_tag["format"]
    assert (format_["type"], format_["triggers"]) == ("triggered_tags", ["<tool_call>"])
    assert all(tag["begin"].startswith("<tool_call>") for tag in format_["tags"])
    assert constraint_for(rules, "qwen3_coder") is None


def test_a_bound_answer_leaves_calls_possible() -> None:
    assert AUTO is not None
    schema = {"type": "object"}
    guided = constraint_for(AUTO, "hermes", structural_tags=True, answer=schema)
    assert guided is not None
    answer, calls = guided.structural_tag["format"]["elements"]
    assert guided.structural_tag["format"]["type"] == "or"
    assert answer == {"type": "json_schema", "json_schema": schema}
    assert calls["type"] == "tags_with_separator"
    assert constraint_for(AUTO, "hermes", answer=schema) is None


def test_a_forced_call_leaves_no_other_answer() -> None:
    assert REQUIRED is not None
    bound = constraint_for(REQUIRED, "hermes", structural_tags=True)
    assert constraint_for(REQUIRED, "hermes", structural_tags=True, answer={"type": "object"}) == bound
