"""The functions a request offers, and what their schemas make of a value that came as text.

A custom tool is a function of one string, `input`: engines and templates know no other kind (see `custom_calls`).
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

STRING = frozenset({"string"})
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
CUSTOM_INPUT: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}

_TYPES = {
    "string": "string",
    "str": "string",
    "integer": "integer",
    "int": "integer",
    "number": "number",
    "float": "number",
    "boolean": "boolean",
    "bool": "boolean",
    "object": "object",
    "dict": "object",
    "array": "array",
    "list": "array",
    "null": "null",
}
"""JSON schema's names, and those that Python users write in their place."""
_DEEPEST = 8
"""How many references and alternatives are followed."""
_LONGEST_LITERAL = 100_000
_LONGEST_INTEGER = 1000
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class Functions:
    """A request's functions by name, in the order given."""

    __slots__ = ("_custom", "_known", "_schemas", "_strict")

    def __init__(
        self, schemas: Mapping[str, Mapping[str, Any]], strict: Iterable[str] = (), custom: Iterable[str] = ()
    ) -> None:
        self._schemas = schemas
        self._strict = frozenset(strict)
        self._custom = frozenset(custom)
        self._known: dict[tuple[str, str], frozenset[str]] = {}

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]]) -> Functions:
        """From checked OpenAI tools."""
        schemas: dict[str, Mapping[str, Any]] = {}
        strict, custom = [], []
        for tool in tools:
            kind = "custom" if tool.get("type") == "custom" else "function"
            definition = tool[kind]
            name = definition["name"]
            schemas[name] = CUSTOM_INPUT if kind == "custom" else definition.get("parameters") or ANY_OBJECT
            if definition.get("strict"):
                strict.append(name)
            if kind == "custom":
                custom.append(name)
        return cls(schemas, strict, custom)

    def only(self, names: Iterable[str]) -> Functions:
        """Those of them that are named."""
        kept = {name: self._schemas[name] for name in names if name in self._schemas}
        return Functions(kept, self._strict.intersection(kept), self._custom.intersection(kept))

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def __iter__(self) -> Iterator[str]:
        return iter(self._schemas)

    def __len__(self) -> int:
        return len(self._schemas)

    def schema(self, name: str) -> Mapping[str, Any]:
        """The JSON schema of a function's arguments; of one that takes none, and of an unknown one, any object."""
        return self._schemas.get(name, ANY_OBJECT)

    def is_custom(self, name: str) -> bool:
        """Is it a custom tool?"""
        return name in self._custom

    @property
    def custom(self) -> bool:
        """Is any of them a custom tool?"""
        return bool(self._custom)

    def is_strict(self, name: str) -> bool:
        """Must its arguments follow its schema?"""
        return name in self._strict

    @property
    def strict(self) -> bool:
        """Must the arguments of any of them follow its schema?"""
        return bool(self._strict)

    def types(self, name: str, parameter: str) -> frozenset[str]:
        """The JSON types a parameter may have; a string where nothing is said."""
        place = (name, parameter)
        if place not in self._known:
            root = self.schema(name)
            properties = root.get("properties")
            schema = properties.get(parameter) if isinstance(properties, Mapping) else None
            if schema is None:
                schema = root.get("additionalProperties")
            self._known[place] = frozenset(_types(schema, root, _DEEPEST)) or STRING
        return self._known[place]


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or depth == 0:
        return set()
    named = schema.get("type")
    found = {_TYPES[each] for each in ([named] if isinstance(named, str) else named or ()) if each in _TYPES}
    if not found:
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        found = {_type_of(value) for value in values} if isinstance(values, list) else set()
    for alternatives in ("anyOf", "oneOf", "allOf"):
        for alternative in schema.get(alternatives) or ():
            found |= _types(alternative, root, depth - 1)
    reference = schema.get("$ref")
    if isinstance(reference, str):
        found |= _types(_referred(reference, root), root, depth - 1)
    if not found and ("properties" in schema or "additionalProperties" in schema):
        return {"object"}
    return found or ({"array"} if "items" in schema else set())


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    place: Any = root
    for step in reference.removeprefix("#/").split("/"):
        place = place.get(step) if isinstance(place, Mapping) else None
    return place


def _type_of(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def as_json(raw: str, types: frozenset[str]) -> str:
    """A value that came as text, as JSON of one of `types`.

    Of a string nothing is made but a string, even when it looks like a number. What fits no type stays a string.
    """
    if types == STRING:
        return json_string(raw)
    text = raw.strip()
    if "null" in types and text.lower() in ("null", "none"):
        return "null"
    if not types.isdisjoint(("integer", "number")):
        number = _number(text, whole="number" not in types)
        if number is not None:
            return number
    if "boolean" in types and text.lower() in ("true", "false"):
        return text.lower()
    if text[:1] in ("{", "["):
        nested = _nested(text)
        if nested is not None and ("object" if nested[0] == "{" else "array") in types:
            return nested
    return json_string(raw)


def json_string(text: str) -> str:
    """A text as a JSON string, quotes included."""
    return orjson.dumps(text).decode()


def is_json(text: str) -> bool:
    """Is it one JSON value?"""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _number(text: str, *, whole: bool) -> str | None:
    if not _NUMBER.fullmatch(text):
        return None
    if whole and text.lstrip("+-").isdigit():
        return str(int(text)) if len(text) < _LONGEST_INTEGER else None
    value = float(text)
    if not math.isfinite(value):
        return None
    if whole:
        return str(int(value)) if value.is_integer() else None
    return text if is_json(text) else repr(value)


def _nested(text: str) -> str | None:
    """An object or array: JSON as it stands, or what Python's notation says."""
    if is_json(text):
        return text
    value = python_value(text)
    return None if value is None else json_text(value)


def python_value(text: str) -> Any:
    """What a Python literal stands for, None when it is none (or None itself). Nothing is run."""
    if len(text) > _LONGEST_LITERAL:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def json_text(value: Any) -> str | None:
    """A Python value as JSON, None when it has no such form (sets, bytes, complex numbers)."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        return None
