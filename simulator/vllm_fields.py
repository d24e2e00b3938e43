"""vLLM 0.32: reading a body's fields as its pydantic models do, and the words of their refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson

INT, FLOAT, BOOL, STR, MAP = "int", "float", "bool", "str", "dict"

_TYPE_ERRORS = {
    (INT, True): ("int_parsing", "Input should be a valid integer, unable to parse string as an integer"),
    (INT, False): ("int_type", "Input should be a valid integer"),
    (FLOAT, True): ("float_parsing", "Input should be a valid number, unable to parse string as a number"),
    (FLOAT, False): ("float_type", "Input should be a valid number"),
    (BOOL, True): ("bool_parsing", "Input should be a valid boolean, unable to interpret input"),
    (BOOL, False): ("bool_type", "Input should be a valid boolean"),
    (STR, False): ("string_type", "Input should be a valid string"),
    (MAP, True): ("dict_type", "Input should be a valid dictionary"),
    (MAP, False): ("dict_type", "Input should be a valid dictionary"),
}


_UNREAD = "Bad Request"
"""The type of a refusal by the body's validation."""


class Refused(Exception):
    """The request is answered with this status and error. `unread`: before any handler saw it."""

    def __init__(
        self, message: str, *, param: str | None = None, kind: str = "BadRequestError", status: int = 400
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.kind = kind
        self.status = status

    @property
    def unread(self) -> bool:
        return self.kind == _UNREAD

    def envelope(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


def invalid(message: str, param: str, value: Any = None) -> Refused:
    """A semantic refusal; vLLM repeats parameter and value in the text."""
    tail = f"(parameter={param})" if value is None else f"(parameter={param}, value={value})"
    return Refused(f"{message} {tail}", param=param)


def read_body(body: bytes, content_type: str) -> Mapping[str, Any]:
    """The JSON object of a request. Raises Refused with the words of vLLM's validation."""
    if "application/json" not in content_type:
        raise _one_error("Unsupported Media Type: Only 'application/json' is allowed", None)
    try:
        value = orjson.loads(body)
    except ValueError:
        raise _not_json(body) from None
    if not isinstance(value, dict):
        raise type_error("model_attributes_type", "body", "Input should be a valid dictionary or object", value)
    return value


def typed(body: Mapping[str, Any], kinds: Mapping[str, str], place: str = "body") -> dict[str, Any]:
    """The known fields, read as pydantic reads them in lax mode. Unknown fields are ignored, as vLLM does."""
    values = {}
    for name, kind in kinds.items():
        raw = body.get(name)
        if raw is None:
            continue
        value = _lax(raw, kind)
        if value is None:
            error, text = _TYPE_ERRORS.get(
                (kind, isinstance(raw, str)), ("string_type", "Input should be a valid string")
            )
            raise type_error(error, f"{place}.{name}", text, raw)
        values[name] = value
    return values


def _lax(raw: Any, kind: str) -> Any:
    if kind == BOOL:
        known = {"true": True, "false": False, "1": True, "0": False}
        return raw if isinstance(raw, bool) else known.get(str(raw).lower()) if isinstance(raw, (str, int)) else None
    if kind == STR:
        return raw if isinstance(raw, str) else None
    if kind == MAP:
        return raw if isinstance(raw, dict) else None
    if isinstance(raw, (list, dict)):
        return None
    try:
        number = float(raw)
    except ValueError:
        return None
    if kind == FLOAT:
        return number
    if number != int(number):
        return None
    return int(raw) if isinstance(raw, (int, str)) else int(number)


def whole(raw: Any, name: str) -> int:
    value = _lax(raw, INT)
    if value is None:
        error, text = _TYPE_ERRORS[INT, isinstance(raw, str)]
        raise type_error(error, f"body.{name}", text, raw)
    return int(value)


def _not_json(body: bytes) -> Refused:
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        return type_error("json_invalid", f"body.{error.pos}", "JSON decode error", {}, f"{{'error': {error.msg!r}}}")
    except UnicodeDecodeError:
        pass
    return type_error("json_invalid", "body.0", "JSON decode error", {}, "{'error': 'invalid utf-8'}")


def missing(place: str, body: Mapping[str, Any]) -> Refused:
    return type_error("missing", place, "Field required", dict(body))


def type_error(kind: str, place: str, text: str, raw: Any, context: str | None = None) -> Refused:
    if isinstance(raw, dict):
        shown = f"'<dict of {len(raw)} items>'"
    elif isinstance(raw, list):
        shown = f"'<list of {len(raw)} items>'"
    else:
        shown = repr(raw)
    tail = f", 'ctx': {context}" if context else ""
    return _one_error(f"{{'type': '{kind}', 'loc': '{place}', 'msg': '{text}', 'input': {shown}{tail}}}", place)


def _one_error(text: str, place: str | None) -> Refused:
    return Refused(f"1 validation error:\n  {text}", param=place, kind=_UNREAD)
