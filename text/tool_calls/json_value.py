"""Follows one JSON value through a text that comes in pieces, up to its end.

Models write JSON that is nearly right. Raw control characters inside strings are escaped on the way; strings in single
quotes are followed, so that the end is found; nothing else is changed.
"""

from __future__ import annotations

import re

import orjson

from text.tool_calls.functions import nested_text

_STRUCTURE = re.compile(r"[{}\[\]\"'<]")
_IN_STRING = {quote: re.compile(rf"[{quote}\\\x00-\x1f]") for quote in "\"'"}
_SCALAR_END = re.compile(r"[\s,;\]}<]")
_BEFORE_QUOTE = frozenset("{[,:")


class JsonValue:
    """One value. `done`: its end was found. `stopped`: at the place returned stands a `<`, which no JSON has there; the
    caller knows whether markup begins with it, and may `take` on behind it."""

    __slots__ = ("_depth", "_escaped", "_last", "_quote", "_repair", "done", "kind", "stopped")

    def __init__(self, *, repair: bool = True) -> None:
        self._repair = repair
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self._last = ""
        self.kind = ""
        """The value's first character, by which its type is known."""
        self.done = False
        self.stopped = False

    def take(self, text: str, start: int) -> tuple[str, int]:
        """Reads on from `start`; at first there stands the value's first character. What was read, and where it ends:
        at the end of the value, of the text, or before a `<`."""
        if not self.kind:
            self.kind = text[start]
        parts: list[str] = []
        self.stopped = False
        if self.kind not in "{[\"'":
            found = _SCALAR_END.search(text, start)
            self.done = found is not None
            end = len(text) if found is None else found.start()
            return text[start:end], end
        at = start
        while at < len(text) and not self.done and not self.stopped:
            at = self._in_string(text, at, parts) if self._quote else self._outside(text, at, parts)
        return "".join(parts), at

    def _outside(self, text: str, at: int, parts: list[str]) -> int:
        found = _STRUCTURE.search(text, at)
        end = len(text) if found is None else found.start()
        between = text[at:end].rstrip()
        if between:
            self._last = between[-1]
        if found is None:
            parts.append(text[at:])
            return end
        char = found.group()
        if char == "<":
            parts.append(text[at:end])
            self.stopped = True
            return end
        if char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.done = self._depth <= 0
        elif not self._last or self._last in _BEFORE_QUOTE:
            # Elsewhere it is a quote that a string before it should have escaped.
            self._quote = char
        self._last = char
        parts.append(text[at : end + 1])
        return end + 1

    def _in_string(self, text: str, at: int, parts: list[str]) -> int:
        if self._escaped:
            self._escaped = False
            parts.append(text[at])
            return at + 1
        found = _IN_STRING[self._quote].search(text, at)
        if found is None:
            parts.append(text[at:])
            return len(text)
        char, end = found.group(), found.end()
        if char < " " and self._repair:
            parts.append(text[at : end - 1] + orjson.dumps(char)[1:-1].decode())
            return end
        parts.append(text[at:end])
        if char == "\\":
            self._escaped = True
        elif char == self._quote:
            self._quote = ""
            self.done = self._depth == 0
        return end


def string_value(text: str) -> str | None:
    """What a JSON string stands for; None for what is none. Raw control characters in it pass."""
    value, end = JsonValue(), 0
    if not text.startswith('"'):
        return None
    read, end = value.take(text, 0)
    if not value.done or end != len(text):
        return None
    try:
        found = orjson.loads(read)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, str) else None


def arguments_text(raw: str) -> str:
    """Arguments that did not come as a JSON object: a string holds them, null means that there are none, and Python's
    notation says what JSON would."""
    text = raw.strip()
    if text in ("", "null"):
        return "{}"
    if text[0] == "{":
        return nested_text(text) or text
    inner = string_value(text)
    if inner is None:
        return text
    return inner if inner.strip() else "{}"
