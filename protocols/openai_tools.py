"""Checks `tools`, `tool_choice`, their deprecated forms, and `response_format`; all stay the JSON objects that came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocols.openai_errors import invalid, missing, wrong_type, wrong_value
from protocols.openai_messages import NAME

MAX_TOOLS = 1024
MAX_SCHEMA_NAME = 64
_MODES = ("none", "auto", "required")
_ALLOWED = "tool_choice.allowed_tools.tools"
_FORMATS = ("text", "json_object", "json_schema", "structural_tag")


def check_tools(tools: Any) -> list[dict[str, Any]]:
    """The tools as they came; an empty array means that there are none."""
    for index, tool in enumerate(_array("tools", tools)):
        place = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise wrong_type(place, "an object", tool)
        if "type" not in tool:
            raise missing(f"{place}.type")
        kind = tool["type"]
        if kind not in ("function", "custom"):
            raise wrong_value(f"{place}.type", kind, ("function", "custom"))
        if kind not in tool:
            raise missing(f"{place}.{kind}")
        check_definition(tool[kind], f"{place}.{kind}")
        if kind == "custom" and tool[kind].get("format") is not None:
            _check_format(tool[kind]["format"], f"{place}.custom.format")
    return tools  # type: ignore[no-any-return]


def _check_format(format_: Any, place: str) -> None:
    """Any text, or text by a grammar. OpenAI nests a grammar's members under its type's name, its clients do not."""
    if not isinstance(format_, dict):
        raise wrong_type(place, "an object", format_)
    kind = format_.get("type")
    if kind not in ("text", "grammar"):
        raise wrong_value(f"{place}.type", kind, ("text", "grammar"))
    if kind == "grammar":
        grammar = format_.get("grammar", format_)
        if not isinstance(grammar, dict):
            raise wrong_type(f"{place}.grammar", "an object", grammar)
        if not isinstance(grammar.get("definition"), str):
            raise wrong_type(f"{place}.grammar.definition", "a string", grammar.get("definition"))


def check_functions(functions: Any) -> list[dict[str, Any]]:
    """The deprecated form: bare definitions."""
    for index, definition in enumerate(_array("functions", functions)):
        check_definition(definition, f"functions[{index}]")
    return functions  # type: ignore[no-any-return]


def check_definition(definition: Any, place: str) -> None:
    """One function or custom tool. Absent parameters mean that it takes none."""
    if not isinstance(definition, dict):
        raise wrong_type(place, "an object", definition)
    check_name(definition, place)
    for member, kind, expected in (
        ("description", str, "a string"),
        ("parameters", dict, "an object"),
        ("strict", bool, "a boolean"),
    ):
        value = definition.get(member)
        if value is not None and not isinstance(value, kind):
            raise wrong_type(f"{place}.{member}", expected, value)


def check_name(holder: dict[str, Any], place: str, longest: int = 128) -> None:
    """`holder["name"]`: letters, digits, _ and -, at most `longest` of them."""
    if "name" not in holder:
        raise missing(f"{place}.name")
    name = holder["name"]
    if not isinstance(name, str):
        raise wrong_type(f"{place}.name", "a string", name)
    if len(name) > longest or not NAME.fullmatch(name):
        raise invalid(f"{place}.name", f"expected 1 to {longest} of the characters a-z, A-Z, 0-9, _ and -")


def check_tool_choice(choice: Any) -> Any:
    """`none`, `auto`, `required`, or an object that names a function, a custom tool or the allowed tools."""
    if isinstance(choice, str):
        if choice not in _MODES:
            raise wrong_value("tool_choice", choice, _MODES)
        return choice
    if not isinstance(choice, dict):
        raise wrong_type("tool_choice", "a string or an object", choice)
    kind = choice.get("type", "function")
    if kind not in ("function", "custom", "allowed_tools"):
        raise wrong_value("tool_choice.type", kind, ("function", "custom", "allowed_tools"))
    inner = choice.get(kind)
    if inner is None:
        raise missing(f"tool_choice.{kind}")
    if not isinstance(inner, dict):
        raise wrong_type(f"tool_choice.{kind}", "an object", inner)
    if kind != "allowed_tools":
        check_name(inner, f"tool_choice.{kind}")
    elif inner.get("mode") not in ("auto", "required"):
        raise wrong_value("tool_choice.allowed_tools.mode", inner.get("mode"), ("auto", "required"))
    else:
        _check_allowed(inner.get("tools"))
    return choice


def _check_allowed(tools: Any) -> None:
    """The tools that a choice allows, each with its name directly in it or under its kind."""
    if tools is None:
        raise missing(_ALLOWED)
    if not _array(_ALLOWED, tools):
        raise invalid(_ALLOWED, "expected at least 1 tool, but got an empty array instead")
    for index, tool in enumerate(tools):
        place = f"{_ALLOWED}[{index}]"
        if not isinstance(tool, dict):
            raise wrong_type(place, "an object", tool)
        kind = tool.get("type", "function")
        if kind not in ("function", "custom"):
            raise wrong_value(f"{place}.type", kind, ("function", "custom"))
        check_name(_holder_of_name(tool, kind), place)


def _holder_of_name(tool: dict[str, Any], kind: str) -> dict[str, Any]:
    inner = tool.get(kind)
    return inner if isinstance(inner, dict) else tool


def check_choice_against(choice: Any, tools: Sequence[dict[str, Any]]) -> None:
    """A choice that asks for a call needs tools, and a named one needs that tool."""
    if choice in (None, "none", "auto"):
        return
    if not tools:
        raise invalid("tool_choice", "it asks for a tool, but 'tools' names none")
    kind = choice.get("type", "function") if isinstance(choice, dict) else None
    if kind in ("function", "custom"):
        _check_known(f"tool_choice.{kind}", kind, choice[kind], tools)
    elif kind == "allowed_tools":
        for index, tool in enumerate(choice[kind]["tools"]):
            of = tool.get("type", "function")
            _check_known(f"{_ALLOWED}[{index}]", of, _holder_of_name(tool, of), tools)


def _check_known(place: str, kind: str, holder: dict[str, Any], tools: Sequence[dict[str, Any]]) -> None:
    name = holder["name"]
    if all(tool.get(kind, {}).get("name") != name for tool in tools):
        raise invalid(f"{place}.name", f"'{name}' is not among 'tools'")


def allowed_names(choice: Any) -> list[str] | None:
    """The names of the tools that a checked tool choice allows; None where it allows all."""
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return None
    tools = choice["allowed_tools"]["tools"]
    return [_holder_of_name(tool, tool.get("type", "function"))["name"] for tool in tools]


def tool_name(tool: dict[str, Any]) -> str:
    """The name of a checked tool."""
    return str(tool[tool["type"]]["name"])


def check_function_call(choice: Any) -> Any:
    """The deprecated tool choice: `none`, `auto`, or an object with a name."""
    if isinstance(choice, str):
        if choice not in ("none", "auto"):
            raise wrong_value("function_call", choice, ("none", "auto"))
    elif isinstance(choice, dict):
        check_name(choice, "function_call")
    else:
        raise wrong_type("function_call", "a string or an object", choice)
    return choice


def check_response_format(wanted: Any) -> dict[str, Any]:
    """Text, any JSON object, JSON by a schema, or a structural tag."""
    if not isinstance(wanted, dict):
        raise wrong_type("response_format", "an object", wanted)
    if "type" not in wanted:
        raise missing("response_format.type")
    kind = wanted["type"]
    if kind not in _FORMATS:
        raise wrong_value("response_format.type", kind, _FORMATS)
    if kind == "json_schema":
        place = "response_format.json_schema"
        holder = wanted.get("json_schema")
        if holder is None:
            raise missing(place)
        if not isinstance(holder, dict):
            raise wrong_type(place, "an object", holder)
        check_name(holder, place, MAX_SCHEMA_NAME)
        schema = holder.get("schema")
        if schema is not None and not isinstance(schema, dict):
            raise wrong_type(f"{place}.schema", "an object", schema)
    return wanted


def _array(path: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise wrong_type(path, "an array of objects", value)
    if len(value) > MAX_TOOLS:
        raise invalid(path, f"expected at most {MAX_TOOLS} items, but got {len(value)} instead")
    return value
