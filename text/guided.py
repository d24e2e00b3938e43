"""Which constraint a request puts on the text of its answer, said in one of a dozen ways.

OpenAI says `response_format`, vLLM `structured_outputs` (until 0.11 `guided_*`), SGLang `regex`, `ebnf` and
`json_schema`. One constraint at most; two are refused rather than ranked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from protocols.errors import InvalidRequest
from protocols.nesting import MAX_DEPTH, is_too_deep
from protocols.openai import GenerationRequest
from protocols.openai_errors import invalid, wrong_type
from protocols.options import SWITCHES, GuidedDecoding

_ANY_OBJECT = {"type": "object"}
_FIELDS = frozenset(
    {
        "response_format", "structured_outputs", "structural_tag", "guided_json", "guided_regex", "guided_choice",
        "guided_grammar", "regex", "ebnf", "json_schema",
    }
)  # fmt: skip
"""The request's fields that may hold a constraint."""
_CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

Found = tuple[str, str, Any]
"""Where it was said, which kind of constraint it is, and its value."""


def guided_decoding(request: GenerationRequest) -> GuidedDecoding | None:
    """The request's constraint, None when it has none. Raises InvalidRequest when it has two or an unusable one."""
    if request.model_fields_set.isdisjoint(_FIELDS):
        return None
    found = [*_from_response_format(request), *_from_fields(request), *_from_structured_outputs(request)]
    if not found:
        return None
    if len(found) > 1:
        places = ", ".join(f"'{place}'" for place, _, _ in found)
        message = f"Only one constraint on the answer's format is allowed, but got {places}."
        raise InvalidRequest(message, param=found[1][0].partition(".")[0])
    place, kind, value = found[0]
    structured = request.structured_outputs or {}
    whitespace = request.guided_whitespace_pattern or structured.get("whitespace_pattern")
    return GuidedDecoding(
        **{kind: _usable(place, kind, value)},
        backend=request.guided_decoding_backend,
        whitespace_pattern=_text("structured_outputs.whitespace_pattern", whitespace) if whitespace else None,
        disable_any_whitespace=structured.get("disable_any_whitespace") or None,
        disable_additional_properties=structured.get("disable_additional_properties") or None,
    )


def _from_response_format(request: GenerationRequest) -> Iterator[Found]:
    wanted = request.response_format
    if wanted is None or wanted["type"] == "text":
        return
    if wanted["type"] == "structural_tag":
        yield "response_format", "structural_tag", wanted
    elif wanted["type"] == "json_object":
        yield "response_format", "json", _ANY_OBJECT
    else:
        yield "response_format", "json", wanted["json_schema"].get("schema") or _ANY_OBJECT


def _from_fields(request: GenerationRequest) -> Iterator[Found]:
    for field, kind, value in (
        ("guided_json", "json", request.guided_json),
        ("guided_regex", "regex", request.guided_regex),
        ("guided_choice", "choice", request.guided_choice),
        ("guided_grammar", "grammar", request.guided_grammar),
        ("structural_tag", "structural_tag", request.structural_tag),
        ("regex", "regex", request.regex),
        ("ebnf", "grammar", request.ebnf),
        ("json_schema", "json", request.json_schema),
    ):
        if value is not None:
            yield field, kind, value


def _from_structured_outputs(request: GenerationRequest) -> Iterator[Found]:
    for member, value in (request.structured_outputs or {}).items():
        place = f"structured_outputs.{member}"
        if value is None or value is False:
            continue
        if member == "json_object":
            if value is not True:
                raise wrong_type(place, "a boolean", value)
            yield place, "json", _ANY_OBJECT
        elif member in _CONSTRAINTS:
            yield place, member, value
        elif member in SWITCHES:
            if value is not True:
                raise wrong_type(place, "a boolean", value)
        elif member != "whitespace_pattern":
            raise InvalidRequest(f"Unknown parameter: '{place}'.", param=place)


def _usable(place: str, kind: str, value: Any) -> Any:
    if kind == "json":
        return _schema(place, value)
    if kind == "choice":
        return _choices(place, value)
    if kind == "structural_tag":
        if not isinstance(value, (str, Mapping)):
            raise wrong_type(place, "a string or an object", value)
        return value
    return _text(place, value)


def _schema(place: str, value: Any) -> Mapping[str, Any]:
    """A JSON schema, or its JSON as text."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise invalid(place, f"not a JSON schema: {error.msg}") from None
        if is_too_deep(value):
            raise invalid(place, f"it is nested too deeply: expected at most {MAX_DEPTH} levels")
    if not isinstance(value, Mapping):
        raise wrong_type(place, "a JSON schema (an object)", value)
    return value


def _choices(place: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise wrong_type(place, "an array of strings", value)
    if not value:
        raise invalid(place, "expected at least 1 choice, but got an empty array instead")
    return tuple(_text(f"{place}[{index}]", item) for index, item in enumerate(value))


def _text(place: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong_type(place, "a string", value)
    if not value:
        raise invalid(place, "expected at least 1 character, but got an empty string instead")
    return value
