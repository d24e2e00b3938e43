"""Tools in the shape that chat templates read: functions, with a schema of their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from text.tool_calls.functions import ANY_OBJECT, CUSTOM_INPUT

Tool = dict[str, Any]


def template_tools(tools: Sequence[Mapping[str, Any]]) -> list[Tool]:
    """Checked OpenAI tools as they came, but for custom ones: those are functions of one string, `input`."""
    return [_as_function(tool) if tool.get("type") == "custom" else dict(tool) for tool in tools]


def completed_tools(tools: Sequence[Mapping[str, Any]]) -> list[Tool]:
    """The same with what OpenAI lets clients leave out and some templates need: descriptions, parameters."""
    return [{**tool, "function": _completed(tool.get("function") or {})} for tool in tools]


def _as_function(tool: Mapping[str, Any]) -> Tool:
    custom = tool["custom"]
    described = {"description": custom["description"]} if custom.get("description") else {}
    return {"type": "function", "function": {"name": custom["name"], **described, "parameters": dict(CUSTOM_INPUT)}}


def _completed(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters") or ANY_OBJECT
    properties = {
        name: {**schema, "description": schema.get("description") or ""} if isinstance(schema, Mapping) else schema
        for name, schema in (parameters.get("properties") or {}).items()
    }
    return {
        **function,
        "description": function.get("description") or "",
        "parameters": {**parameters, "properties": properties},
    }
