"""Constraints on an answer's text, in each engine's spelling, and texts that keep to them.

Followed: JSON schemas, regular expressions, grammars, choices, and xgrammar's structural tags with JSON in them. A tag
that only says how calls must look, should there be any, binds nothing by itself.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.patterns import Unfollowed, derived, matching
from simulator.schemas import Example, Words

_ANY_OBJECT = {"type": "object"}
_SPELLINGS = {
    "json": "json", "json_schema": "json", "regex": "regex", "grammar": "grammar", "ebnf": "grammar",
    "choice": "choice", "structural_tag": "tag",
}  # fmt: skip
"""Members of vLLM's `structured_outputs` and of SGLang's sampling parameters."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the text is bound to. `kind`: json, regex, grammar, choice or tag."""

    kind: str
    value: Any


def constraint_in(sampling: Mapping[str, Any]) -> Constraint | None:
    """The constraint that a request's sampling parameters ask for, whatever the engine."""
    named = sampling.get("structured_outputs")
    for source in (named if isinstance(named, Mapping) else {}, sampling):
        for name, kind in _SPELLINGS.items():
            if source.get(name) is not None:
                return Constraint(kind, _parsed(source[name]) if kind in ("json", "tag") else source[name])
    wanted = sampling.get("response_format")
    return _of_format(wanted) if isinstance(wanted, Mapping) else None


def _of_format(wanted: Mapping[str, Any]) -> Constraint | None:
    """OpenAI's `response_format`, and TensorRT-LLM's."""
    kind = wanted.get("type")
    if kind == "json_schema":
        return Constraint("json", (wanted.get("json_schema") or {}).get("schema") or _ANY_OBJECT)
    if kind in ("json", "json_object"):
        return Constraint("json", wanted.get("schema") or _ANY_OBJECT)
    if kind == "regex":
        return Constraint("regex", wanted["regex"])
    if kind == "ebnf":
        return Constraint("grammar", wanted["ebnf"])
    return Constraint("tag", wanted) if kind == "structural_tag" else None


def _parsed(value: Any) -> Any:
    """A schema or tag, or its JSON as text."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return None
    return value


def is_any_object(constraint: Constraint) -> bool:
    """Whether an object is asked for without a word on what is in it (OpenAI's JSON mode)."""
    return constraint.kind == "json" and constraint.value == _ANY_OBJECT


def shown_schema(prompt: str) -> Any:
    """The last schema of an object that is written in a prompt, as clients do that ask for JSON mode; else None."""
    reader, found, at = json.JSONDecoder(), None, prompt.find("{")
    while at >= 0:
        try:
            value, end = reader.raw_decode(prompt, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            found = value if isinstance(value.get("properties"), dict) else found
        at = prompt.find("{", end)
    return found


def text_for(constraint: Constraint, rng: random.Random, words: Words) -> str | None:
    """A text within the constraint; None when any text is. Raises Unfollowed."""
    value = constraint.value
    try:
        if constraint.kind == "json":
            return _json(value, rng, words)
        if constraint.kind == "regex":
            return matching(value, rng)
        if constraint.kind == "grammar":
            return derived(value, rng)
        if constraint.kind == "choice":
            return str(rng.choice(value))
        return _Tag(rng, words).text(value["format"])
    except (KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise Unfollowed(f"cannot follow {constraint.kind} {value!r:.100}: {error}") from error


def _json(schema: Any, rng: random.Random, words: Words) -> str:
    return json.dumps(Example(schema, rng, words).value(), ensure_ascii=False)


class _Tag:
    """Writes what a structural tag's format asks for."""

    def __init__(self, rng: random.Random, words: Words) -> None:
        self._rng = rng
        self._words = words
        self._kinds: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
            "const_string": lambda part: str(part["value"]),
            "json_schema": self._json,
            "regex": lambda part: matching(part["pattern"], self._rng),
            "grammar": lambda part: derived(part["grammar"], self._rng),
            "any_text": lambda part: self._words(3),
            "optional": lambda part: "",
            "sequence": lambda part: self._row(part["elements"]),
            "or": lambda part: self.text(self._rng.choice(part["elements"])),
            "tag": lambda part: f"{part['begin']}{self.text(part['content']) or ''}{part['end']}",
            "tags_with_separator": lambda part: self.text(self._rng.choice(part["tags"])),
            "triggered_tags": lambda part: None,
        }

    def text(self, part: Mapping[str, Any]) -> str | None:
        """None: any text will do."""
        if part["type"] not in self._kinds:
            raise Unfollowed(f"cannot follow a structural tag's {part['type']!r}")
        return self._kinds[part["type"]](part)

    def _row(self, parts: Sequence[Mapping[str, Any]]) -> str:
        return "".join(self.text(part) or "" for part in parts)

    def _json(self, part: Mapping[str, Any]) -> str:
        if part.get("style", "json") != "json":
            raise Unfollowed(f"cannot follow the style {part['style']!r}")
        return _json(part["json_schema"], self._rng, self._words)
