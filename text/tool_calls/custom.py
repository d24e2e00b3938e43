"""Calls of custom tools: the model calls a function of one string, the client is told the string.

Wraps a parser whose functions stand for custom tools, and turns the arguments of their calls into the input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import orjson

from text.answer_pieces import AnswerPiece, ArgumentsDelta, CallStarted
from text.tool_calls.base import ToolCallParser

_BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_BEGIN_TO_COME = re.compile(r'\s*(?:\{\s*(?:"(?:i(?:n(?:p(?:u(?:t(?:"\s*(?::\s*)?)?)?)?)?)?)?)?)?')
_HEX = "[0-9a-fA-F]"
_HIGH = rf"\\u[dD][89abAB]{_HEX}{{2}}"
_HALF = rf"\\?\Z|\\u{_HEX}{{0,3}}\Z"
_CHARACTERS = re.compile(
    rf'(?:[^"\\]|\\[^u]|{_HIGH}(?:\\u{_HEX}{{4}}|(?!{_HALF}))|\\u(?![dD][89abAB]){_HEX}{{4}}'
    rf"|\\u(?!{_HEX}{{4}}|{_HEX}{{0,3}}\Z))*"
)
"""What is whole of a string: no half escape, no half of a surrogate pair. Escapes that are none pass."""
_ESCAPE = re.compile(rf"\\(?:u({_HEX}{{4}})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"'}


class CustomCalls:
    """Reads as the parser does, but tells the calls of `names` with `custom` set and their input for arguments."""

    def __init__(self, parser: ToolCallParser, names: frozenset[str]) -> None:
        self._parser = parser
        self._names = names
        self._input: InputText | None = None
        """The input of the call that is open, where it is a custom tool's."""
        self._index = -1

    @property
    def calls(self) -> int:
        return self._parser.calls

    def feed(self, text: str) -> Sequence[AnswerPiece]:
        return list(self._told(self._parser.feed(text)))

    def finish(self, *, cut: bool = False) -> Sequence[AnswerPiece]:
        return [*self._told(self._parser.finish(cut=cut)), *self._rest()]

    def _told(self, pieces: Iterable[AnswerPiece]) -> Iterable[AnswerPiece]:
        for piece in pieces:
            if isinstance(piece, CallStarted):
                yield from self._rest()
                custom = piece.name in self._names
                self._input, self._index = InputText() if custom else None, piece.index
                yield replace(piece, custom=custom)
            elif isinstance(piece, ArgumentsDelta) and self._input is not None:
                yield from self._delta(self._input.feed(piece.text))
            else:
                yield piece

    def _rest(self) -> Iterable[AnswerPiece]:
        rest = "" if self._input is None else self._input.finish()
        self._input = None
        return self._delta(rest)

    def _delta(self, text: str) -> Iterable[AnswerPiece]:
        return [ArgumentsDelta(self._index, text, custom=True)] if text else []


class InputText:
    """The string in `{"input": "…"}`, as it comes. Arguments of another form are the input as they stand."""

    def __init__(self) -> None:
        self._held = ""
        self._begun = False
        self._done = False

    def feed(self, text: str) -> str:
        self._held += text
        if not self._begun:
            begin = _BEGIN.match(self._held)
            if begin is None:
                return ""
            self._begun = True
            self._held = self._held[begin.end() :]
        return self._take()

    def finish(self) -> str:
        """What is left once the call is over."""
        if self._begun:
            return ""
        text, self._held = self._held, ""
        # A beginning that the answer's length cut off has no input in it yet.
        return "" if _BEGIN_TO_COME.fullmatch(text) else _input_of(text)

    def _take(self) -> str:
        if self._done:
            return ""
        whole = _CHARACTERS.match(self._held)
        assert whole is not None
        self._held = self._held[whole.end() :]
        self._done = self._held.startswith('"')
        return _unescaped(whole.group())


def _unescaped(text: str) -> str:
    """The text of a JSON string. Half surrogate pairs become replacement characters."""
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_character, text)
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _character(escape: re.Match[str]) -> str:
    code, sign = escape.groups()
    return chr(int(code, 16)) if code is not None else _ESCAPES.get(sign, escape.group())


def _input_of(arguments: str) -> str:
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    found = value.get("input") if isinstance(value, dict) else value
    if isinstance(found, str):
        return found
    return "" if value == {} else arguments
