"""What a value should have been, read off the settings' JSON schema and said in words.

The schema is a plain mapping, so nothing here knows the library that made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.config_problems import Place, Problem, shown, suggestion

Schema = Mapping[str, Any]


class ConfigSchema:
    """A JSON schema with definitions under `$defs`, asked by place."""

    def __init__(self, root: Schema) -> None:
        self._root = root

    def at(self, place: Place) -> Schema | None:
        """The schema of the value at a place, or None when no such place is known."""
        node: Schema | None = self._root
        for step in place:
            if node is None:
                return None
            node = node.get("items") if isinstance(step, int) else node.get("properties", {}).get(step)
            node = None if node is None else self._resolved(node)
        return node

    def is_text(self, place: Place) -> bool:
        """Whether the value at a place is text, so that `123` there means the text and not the number."""
        return (self.at(place) or {}).get("type") == "string"

    def problem(self, place: Place, kind: str, value: object, message: str) -> Problem:
        """The problem that validation found at a place.

        `kind` is the validator's name for it; `message` its own words, used where the schema knows nothing better.
        """
        node = self.at(place)
        if kind == "extra_forbidden":
            return Problem(place, self._unknown_key(place))
        if kind == "missing":
            return Problem(place, f"is missing. {_meaning(node)}".rstrip())
        if kind == "value_error" or node is None:
            return Problem(place, message.removeprefix("Value error, "))
        return Problem(place, f"should be {expected(node)}, but is {_as_found(node, value)}")

    def _unknown_key(self, place: Place) -> str:
        known = sorted((self.at(place[:-1]) or {}).get("properties", {}))
        return f"unknown key{suggestion(str(place[-1]), known)} (known here: {', '.join(known)})"

    def _resolved(self, node: Schema) -> Schema:
        """The node behind references and "or null", with the meaning that stands beside them."""
        inner = node
        while True:
            if "anyOf" in inner:
                inner = next(option for option in inner["anyOf"] if option.get("type") != "null")
            elif "$ref" in inner:
                inner = self._root["$defs"][inner["$ref"].rpartition("/")[2]]
            else:
                break
        return {**inner, **{key: node[key] for key in ("description", "default") if key in node}}


def expected(node: Schema) -> str:
    """What a value should be: `a whole number from 1 to 65535`, `one of prefill, decode`."""
    if choices := _choices(node):
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    match node.get("type"):
        case "integer":
            return f"a whole number{_range(node)}"
        case "number":
            return f"a number{_range(node)}"
        case "string":
            return "text that is not empty" if node.get("minLength") else "text"
        case "boolean":
            return "true or false"
        case "array":
            return "a list with at least one item" if node.get("minItems") else "a list"
    return f"a mapping with the keys {', '.join(node.get('properties', {}))}"


def _choices(node: Schema) -> Sequence[str]:
    if "const" in node:
        return [str(node["const"])]
    return [str(choice) for choice in node.get("enum", ())]


def _range(node: Schema) -> str:
    highest = node["exclusiveMaximum"] - 1 if "exclusiveMaximum" in node else node.get("maximum")
    if "exclusiveMinimum" in node:
        return f" above {_plain(node['exclusiveMinimum'])}" + (
            "" if highest is None else f", at most {_plain(highest)}"
        )
    if "minimum" in node:
        lowest = _plain(node["minimum"])
        return f" of at least {lowest}" if highest is None else f" from {lowest} to {_plain(highest)}"
    return ""


def _plain(number: float) -> str:
    """A limit without a needless fraction, whether the schema holds it as 5 or as 5.0."""
    return str(int(number)) if number == int(number) else str(number)


def _as_found(node: Schema, value: object) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list" if value else "an empty list"
    if isinstance(value, str) and (choices := _choices(node)):
        return f"{shown(value)}{suggestion(value, choices)}"
    if node.get("type") == "string" and not isinstance(value, str):
        return f"{shown(value)}; put it in quotes"
    return shown(value)


def _meaning(node: Schema | None) -> str:
    return str((node or {}).get("description", ""))
