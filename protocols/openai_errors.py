"""How a faulty request is refused, in OpenAI's manner: field and limit are named, `param` is a dotted path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from protocols.errors import InvalidRequest
from protocols.nesting import MAX_DEPTH

_SHOWN_CHARS = 60

_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "string_type": "a string",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}

_LIMITS = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
}

_LENGTHS = {
    "string_too_short": ("min_length", "a string of at least {} characters"),
    "string_too_long": ("max_length", "a string of at most {} characters"),
    "too_short": ("min_length", "at least {} items"),
    "too_long": ("max_length", "at most {} items"),
}


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a decimal",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), "null")


def shown(value: Any) -> str:
    """A value as an error message quotes it: short."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def missing(path: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: '{path}'.", param=path)


def wrong_type(path: str, expected: str, value: Any) -> InvalidRequest:
    """`expected` with its article: "an integer", "a string or an array of strings"."""
    return InvalidRequest(
        f"Invalid type for '{path}': expected {expected}, but got {kind_of(value)} instead.", param=path
    )


def wrong_value(path: str, value: Any, supported: Iterable[str]) -> InvalidRequest:
    """A value that is none of those supported."""
    names = ", ".join(f"'{name}'" for name in supported)
    return InvalidRequest(f"Invalid value for '{path}': {shown(value)}. Supported values are: {names}.", param=path)


def invalid(path: str, reason: str) -> InvalidRequest:
    """`reason` is a sentence without its full stop."""
    return InvalidRequest(f"Invalid '{path}': {reason}.", param=path)


def dotted(place: Sequence[int | str]) -> str:
    """`("messages", 0, "content")` -> `messages[0].content`."""
    path = ""
    for step in place:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def refusal(error: ValidationError) -> InvalidRequest:
    """The first of pydantic's findings, in our words."""
    finding = error.errors(include_url=False)[0]
    return _worded(finding, dotted(finding["loc"]))


def _worded(finding: ErrorDetails, path: str) -> InvalidRequest:
    kind, value, context = finding["type"], finding["input"], finding.get("ctx", {})
    if kind == "missing":
        return missing(path)
    if kind == "extra_forbidden":
        return InvalidRequest(f"Unknown parameter: '{path}'.", param=path)
    if kind in _EXPECTED:
        return wrong_type(path, _EXPECTED[kind], value)
    if kind in _LIMITS:
        name, sign = _LIMITS[kind]
        return invalid(path, f"expected a value {sign} {_plain(context[name])}, but got {shown(value)} instead")
    if kind in _LENGTHS:
        name, words = _LENGTHS[kind]
        return invalid(path, f"expected {words.format(context[name])}, but got {len(value)} instead")
    if kind == "literal_error":
        words = f"Invalid value for '{path}': {shown(value)}. Supported values are: {context['expected']}."
        return InvalidRequest(words, param=path)
    return invalid(path, finding["msg"])


def _plain(limit: float) -> str:
    """`2`, not `2.0`."""
    return str(int(limit)) if limit == int(limit) else str(limit)


def too_deep() -> InvalidRequest:
    return InvalidRequest(f"The request body is nested too deeply: expected at most {MAX_DEPTH} levels.")
