"""The requests as JSON schemas, for the OpenAPI document: pydantic's own, completed where a field has its own checker.

A schema is never stricter than the parser. What only several fields together can tell is not in it.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from protocols.json_schema import REF, Schema, an_object, array, ref
from protocols.openai_chat import ChatCompletionRequest
from protocols.openai_completions import CompletionRequest
from protocols.openai_embeddings import FLAT_PARTS, MAX_INPUTS, EmbeddingRequest
from protocols.openai_fields import MAX_STOPS
from protocols.openai_tokenization import DetokenizeRequest, TokenizeChatRequest, TokenizeRequest
from protocols.openai_tools import MAX_SCHEMA_NAME, MAX_TOOLS
from protocols.token_ids import MAX_TOKEN_ID

REQUESTS = (
    ChatCompletionRequest,
    CompletionRequest,
    EmbeddingRequest,
    TokenizeRequest,
    TokenizeChatRequest,
    DetokenizeRequest,
)


def request_schemas() -> dict[str, Schema]:
    """Every request and what it refers to, by name. Takes some 40 ms: to be called away from the event loop."""
    _, found = models_json_schema([(model, "validation") for model in REQUESTS], ref_template=REF)
    schemas: dict[str, Schema] = {name: _plain(schema) for name, schema in found["$defs"].items()}
    for schema in schemas.values():
        for name, known in schema.get("properties", {}).items():
            shape = _CHECKED.get(name)
            if known == {}:
                schema["properties"][name] = shape
            elif known.get("anyOf", [None])[0] == {}:
                schema["properties"][name] = {"anyOf": [shape, {"type": "null"}]}
    for name in ("TokenizeRequest", "TokenizeChatRequest", "DetokenizeRequest"):
        # Where one model is served, its name may be left out.
        schemas[name]["required"] = [each for each in schemas[name]["required"] if each != "model"]
        schemas[name]["properties"]["model"] = _maybe(_TEXT)
    schemas["CompletionRequest"]["anyOf"] = [{"required": ["prompt"]}, {"required": ["prompt_embeds"]}]
    return schemas | _SHAPES


def _plain(schema: Any) -> Any:
    """Without titles, which only repeat names, and without the default of what may be absent."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {}
    for key, value in schema.items():
        if key == "properties":
            plain[key] = {name: _plain(inner) for name, inner in value.items()}
        elif key != "title" and not (key == "default" and value is None):
            plain[key] = _plain(value)
    return plain


# ---- what has a checker of its own


def _maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _one_of(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


_TEXT: Schema = {"type": "string"}
_SAID: Schema = {"type": "string", "minLength": 1}
_OBJECT: Schema = {"type": "object"}
_TOKEN_ID: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}
_NAME: Schema = {"type": "string", "pattern": "^[a-zA-Z0-9_-]+$", "minLength": 1, "maxLength": 128}
_TEXT_OR_OBJECT: Schema = {"anyOf": [_TEXT, _OBJECT]}
_CONTENT: Schema = {"anyOf": [_TEXT, array(ref("ContentPart"))]}
_URL: Schema = {"anyOf": [an_object("url", url=_TEXT), _TEXT]}
_PARTS: dict[str, Schema] = {
    "text": _TEXT,
    "refusal": _TEXT,
    "image_url": _URL,
    "video_url": _URL,
    "audio_url": _URL,
    "input_audio": an_object("data", data=_TEXT),
    "file": _OBJECT,
}
_FUNCTION_CALL = an_object("name", "arguments", name=_TEXT, arguments=_TEXT)


def _named(kind: str, inner: Schema) -> Schema:
    """`{"type": kind, kind: inner}`."""
    return {"type": "object", "required": ["type", kind], "properties": {"type": {"const": kind}, kind: inner}}


def _message(roles: tuple[str, ...], required: tuple[str, ...], **properties: Schema) -> Schema:
    return an_object("role", *required, role={"enum": list(roles)}, name=_maybe(_TEXT), **properties)


_SHAPES: dict[str, Schema] = {
    "ContentPart": {
        "description": "A part of a kind that OpenAI does not have is kept for the chat template.",
        "anyOf": [
            *(_named(kind, inner) for kind, inner in _PARTS.items()),
            an_object("type", type={"type": "string", "not": {"enum": list(_PARTS)}}),
        ],
    },
    "Message": {
        "anyOf": [
            _message(("system", "developer", "user"), ("content",), content=_CONTENT),
            _message(
                ("assistant",),
                (),
                content=_maybe(_CONTENT),
                refusal=_maybe(_TEXT),
                tool_calls=_maybe(array(ref("ToolCall"))),
                function_call=_maybe(_FUNCTION_CALL),
            ),
            _message(("tool",), ("content", "tool_call_id"), content=_CONTENT, tool_call_id=_TEXT),
            an_object("role", "content", "name", role={"const": "function"}, content=_maybe(_CONTENT), name=_TEXT),
        ]
    },
    "ToolCall": {
        "anyOf": [
            an_object("function", id=_maybe(_TEXT), type={"const": "function"}, function=_FUNCTION_CALL),
            an_object(
                "type",
                "custom",
                id=_maybe(_TEXT),
                type={"const": "custom"},
                custom=an_object("name", "input", name=_TEXT, input=_TEXT),
            ),
        ]
    },
    "Definition": an_object(
        "name",
        name=_NAME,
        description=_maybe(_TEXT),
        parameters=_maybe(_OBJECT),
        strict=_maybe({"type": "boolean"}),
    ),
    "Tool": {"anyOf": [_named(kind, ref("Definition")) for kind in ("function", "custom")]},
    "ToolChoice": {
        "anyOf": [
            _one_of("none", "auto", "required"),
            an_object("function", type={"const": "function"}, function=an_object("name", name=_NAME)),
            _named("custom", an_object("name", name=_NAME)),
            _named("allowed_tools", an_object("mode", mode=_one_of("auto", "required"))),
        ]
    },
    "ResponseFormat": {
        "anyOf": [
            an_object("type", type=_one_of("text", "json_object", "structural_tag")),
            _named(
                "json_schema",
                an_object("name", name={**_NAME, "maxLength": MAX_SCHEMA_NAME}, schema=_maybe(_OBJECT)),
            ),
        ]
    },
}
"""The objects that requests are made of and that stay as they came."""

_INPUTS: list[Schema] = [_SAID, array(_TOKEN_ID, minItems=1)]

_CHECKED: dict[str, Schema] = {
    "messages": array(ref("Message"), minItems=1),
    "tools": array(ref("Tool"), maxItems=MAX_TOOLS),
    "tool_choice": ref("ToolChoice"),
    "functions": array(ref("Definition"), maxItems=MAX_TOOLS),
    "function_call": {"anyOf": [_one_of("none", "auto"), an_object("name", name=_NAME)]},
    "response_format": ref("ResponseFormat"),
    "stop": {"anyOf": [_SAID, array({"anyOf": [_SAID, _TOKEN_ID]}, maxItems=MAX_STOPS)]},
    "stop_token_ids": array(_TOKEN_ID),
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]+$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
    "guided_json": _TEXT_OR_OBJECT,
    "structural_tag": _TEXT_OR_OBJECT,
    "prompt": {"anyOf": [_TEXT, array(_SAID), array(_TOKEN_ID), array(array(_TOKEN_ID, minItems=1))]},
    "prompt_embeds": {"type": "string", "contentEncoding": "base64"},
    "input": {
        "anyOf": [
            *_INPUTS,
            *(array(each, minItems=1, maxItems=MAX_INPUTS) for each in _INPUTS),
            array(
                {
                    "anyOf": [
                        ref("ContentPart"),
                        {
                            "type": "object",
                            "not": {"required": ["type"]},
                            "properties": {"text": _maybe(_TEXT)},
                            "anyOf": [{"required": [name]} for name in FLAT_PARTS],
                        },
                    ]
                },
                minItems=1,
                maxItems=MAX_INPUTS,
            ),
        ]
    },
    "tokens": array(_TOKEN_ID),
}
"""By field: what its checker takes."""
