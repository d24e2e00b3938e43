"""What binds an engine to calls: a JSON schema, or a structural tag that keeps the model to its own markup.

A tag is xgrammar's (vLLM and SGLang take it); models call better in their own markup than in a JSON list they were
never taught. Markups that have no tag here are bound by the schema, whatever the engine takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocols.options import GuidedDecoding
from text.tool_calls.functions import Functions
from text.tool_calls.rules import CallMode, CallRules
from text.tool_calls.tag_formats import FORMATS

Format = Mapping[str, Any]


def constraint_for(
    rules: CallRules, parser: str | None, *, structural_tags: bool = False, answer: Mapping[str, Any] | None = None
) -> GuidedDecoding | None:
    """The constraint that a request's rules put on its answer; None for none.

    `parser`: its name in `PARSERS`. `structural_tags`: do the engines take them? `answer`: the schema that
    `response_format` gives for an answer that is no call.

    A call that is forced excludes any other answer, so then `answer` says nothing. Where calls are free, `answer` binds
    what is no call only where a tag can say both, and must not be applied alone: a model bound to it could never call.
    Free calls without `answer` are bound to their schemas where a function asks for it (`strict`).
    """
    markup = FORMATS.get(parser or "") if structural_tags else None
    if rules.mode is CallMode.AUTO:
        if markup is None or not (answer is not None or rules.functions.strict):
            return None
        if answer is None:
            return _tag(markup.free(rules))
        return _tag(markup.either(rules, answer))
    if markup is not None:
        return _tag(markup.bound(rules))
    if rules.mode is CallMode.NAMED:
        return GuidedDecoding(json=arguments_schema(rules.functions, next(iter(rules.functions))))
    return GuidedDecoding(json=calls_schema(rules))


def _tag(format_: Format) -> GuidedDecoding:
    return GuidedDecoding(structural_tag={"type": "structural_tag", "format": format_})


def arguments_schema(functions: Functions, name: str) -> dict[str, Any]:
    """The schema of a function's arguments: always an object's."""
    return {"type": "object", **functions.schema(name)}


def calls_schema(rules: CallRules) -> dict[str, Any]:
    """The schema of a list of calls, at least one, at most one where no more may be made at once."""
    definitions: dict[str, Any] = {}
    choices = [_call_schema(rules.functions, name, definitions) for name in rules.functions]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": choices}}
    if not rules.parallel:
        schema["maxItems"] = 1
    if definitions:
        schema["$defs"] = definitions
    return schema


def _call_schema(functions: Functions, name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    parameters: Any = arguments_schema(functions, name)
    if _refers(parameters):
        # Its references start at its own root: so the whole of it is a definition, and they go through that.
        definitions[name] = _rerooted(parameters, f"#/$defs/{name}")
        parameters = {"$ref": f"#/$defs/{name}"}
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [name]}, "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _refers(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "$ref" in value or any(map(_refers, value.values()))
    return isinstance(value, list) and any(map(_refers, value))


def _rerooted(value: Any, root: str) -> Any:
    if isinstance(value, list):
        return [_rerooted(item, root) for item in value]
    if not isinstance(value, Mapping):
        return value
    moved = {key: _rerooted(item, root) for key, item in value.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = root + reference[1:]
    return moved
