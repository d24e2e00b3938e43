"""Values by JSON schemas: what a model that is bound to a schema says."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simulator.patterns import Unfollowed, matching

Words = Callable[[int], str]
"""So many words of the model."""

_DEEP = 5
"""From this depth on nothing is added that may be left out."""
_TRIES = 20
_SPAN = 100
_DAY, _TIME = r"20[12]\d-0[1-9]-[12]\d", r"[01]\d:[0-5]\d:[0-5]\d"
_FORMATS = {
    "date": _DAY,
    "time": f"{_TIME}Z",
    "date-time": f"{_DAY}T{_TIME}Z",
    "duration": r"P[1-9]D",
    "email": r"[a-z]{4,8}@example\.com",
    "hostname": r"[a-z]{4,8}\.example\.com",
    "ipv4": r"10\.0\.\d\.[1-9]",
    "ipv6": r"fd00::[1-9]",
    "uri": r"https://example\.com/[a-z]{4,8}",
}
_TYPE_OF = {
    "properties": "object", "required": "object", "additionalProperties": "object", "items": "array",
    "prefixItems": "array", "minItems": "array", "pattern": "string", "format": "string", "minLength": "string",
    "maxLength": "string", "minimum": "number", "maximum": "number", "multipleOf": "number",
}  # fmt: skip
"""What a schema without a type speaks of."""


class Example:
    """Draws values by one schema. Raises Unfollowed where none can be found."""

    def __init__(self, schema: Any, rng: random.Random, words: Words) -> None:
        self._root = schema
        self._rng = rng
        self._words = words
        self._kinds: dict[str, Callable[[Mapping[str, Any], int], Any]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
            "boolean": lambda schema, depth: self._rng.random() < 0.5,
            "null": lambda schema, depth: None,
        }

    def value(self) -> Any:
        return self._value(self._root, 0)

    def _value(self, schema: Any, depth: int) -> Any:
        if schema is True:
            return self._words(1)
        if not isinstance(schema, Mapping):
            raise Unfollowed(f"no value is valid by {schema!r}")
        schema = self._plain(schema, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._rng.choice(schema["enum"])
        return self._kind(schema, depth)(schema, depth)

    def _plain(self, schema: Mapping[str, Any], depth: int) -> Mapping[str, Any]:
        """The schema with its references, alternatives and conjunctions resolved."""
        for _ in range(_TRIES):
            if "$ref" in schema:
                rest = {key: value for key, value in schema.items() if key != "$ref"}
                schema = _both(self._referred(schema["$ref"]), rest)
            elif "allOf" in schema:
                parts, schema = schema["allOf"], {key: value for key, value in schema.items() if key != "allOf"}
                for part in parts:
                    schema = _both(schema, part)
            elif "anyOf" in schema or "oneOf" in schema:
                key = "anyOf" if "anyOf" in schema else "oneOf"
                chosen = self._chosen(schema[key], depth)
                schema = _both({name: value for name, value in schema.items() if name != key}, chosen)
            else:
                return schema
        raise Unfollowed("the schema refers to itself")

    def _chosen(self, options: Sequence[Any], depth: int) -> Any:
        if depth < _DEEP:
            return self._rng.choice(options)
        return min(options, key=lambda option: ("$ref" in option, option.get("type") in ("object", "array")))

    def _referred(self, reference: str) -> Mapping[str, Any]:
        if not reference.startswith("#"):
            raise Unfollowed(f"cannot follow {reference!r}")
        found = self._root
        for part in reference.lstrip("#/").split("/") if reference.strip("#/") else ():
            found = found[part.replace("~1", "/").replace("~0", "~")]
        return dict(found)

    def _kind(self, schema: Mapping[str, Any], depth: int) -> Callable[[Mapping[str, Any], int], Any]:
        kind = schema.get("type") or next((_TYPE_OF[key] for key in schema if key in _TYPE_OF), "string")
        if not isinstance(kind, str):
            kind = "null" if depth >= _DEEP and "null" in kind else self._rng.choice(list(kind))
        if kind not in self._kinds:
            raise Unfollowed(f"cannot follow the type {kind!r}")
        return self._kinds[kind]

    # ---- kinds

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        names = [name for name in properties if name in required or depth < _DEEP]
        names += [name for name in required if name not in properties]
        more = schema.get("additionalProperties", True)
        value = {name: self._value(properties.get(name, more), depth + 1) for name in names}
        least = schema.get("minProperties") or 0
        if not properties and more is not False and depth < _DEEP:
            least = max(least, 1)
        while len(value) < least:
            value[f"{self._words(1)}{len(value)}"] = self._value(more, depth + 1)
        return value

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        value = [self._value(item, depth + 1) for item in schema.get("prefixItems") or ()]
        items = schema.get("items", not value)
        least, most = schema.get("minItems") or 0, schema.get("maxItems")
        wanted = least if depth >= _DEEP else max(least, 1) + self._rng.randrange(2)
        wanted = wanted if most is None else min(wanted, most)
        if items is False:
            return value
        for _ in range(_TRIES + wanted):
            if len(value) >= wanted:
                break
            item = self._value(items, depth + 1)
            if not schema.get("uniqueItems") or item not in value:
                value.append(item)
        return value

    def _string(self, schema: Mapping[str, Any], depth: int) -> str:
        least, most = schema.get("minLength") or 0, schema.get("maxLength")
        if schema.get("format") == "uuid":
            return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        pattern = schema.get("pattern") or _FORMATS.get(schema.get("format", ""))
        if pattern is None:
            text = self._words(self._rng.randint(1, 3))
            while len(text) < least:
                text += f" {self._words(1)}"
            return text if most is None else text[:most]
        for _ in range(_TRIES):
            text = matching(pattern, self._rng)
            if len(text) >= least and (most is None or len(text) <= most):
                return text
        raise Unfollowed(f"found no text of {least} to {most} characters for {pattern!r}")

    def _integer(self, schema: Mapping[str, Any], depth: int) -> int:
        low, high = _bounds(schema, 1)
        step = int(schema.get("multipleOf") or 1)
        first = -(-int(low) // step)
        return self._rng.randint(first, max(int(high // step), first)) * step

    def _number(self, schema: Mapping[str, Any], depth: int) -> float:
        step = schema.get("multipleOf")
        if step:
            low, high = _bounds(schema, step)
            return round(float(self._rng.randint(int(-(-low // step)), int(high // step)) * step), 6)
        low, high = _bounds(schema, 0.01)
        return round(min(max(self._rng.uniform(low, high), low), high), 2) if high - low > 1 else (low + high) / 2


def _both(first: Mapping[str, Any], second: Any) -> Mapping[str, Any]:
    """A schema that says what both say; where they differ, the second's word."""
    if second is True:
        return first
    if not isinstance(second, Mapping):
        raise Unfollowed(f"no value is valid by {second!r}")
    both = {**first, **second}
    if "properties" in first and "properties" in second:
        both["properties"] = {**first["properties"], **second["properties"]}
    if "required" in first and "required" in second:
        both["required"] = [*first["required"], *second["required"]]
    return both


def _bounds(schema: Mapping[str, Any], step: float) -> tuple[float, float]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + step
    if "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - step
    if low is None:
        low = 0 if high is None or high >= 0 else high - _SPAN
    if high is None:
        high = low + _SPAN
    if low > high:
        raise Unfollowed(f"no number is from {low} to {high}")
    return low, high
