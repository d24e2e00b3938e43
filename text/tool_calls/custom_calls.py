"""Calls of custom tools: to the model they are functions of one string, to the client calls with an `input`.

So the input is read out of the arguments while they come. Arguments of another form than the model was shown are told
as they are, when the call is over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import orjson

from text.answer_pieces import AnswerPiece, ArgumentsDelta, CallStarted, InputDelta
from text.tool_calls.base import ToolCallParser
from text.tool_calls.functions import Functions

_INPUT = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_PLAIN = re.compile(r'[^"\\]+')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")


class InputText:
    """The text of one call's `input`, out of its arguments' JSON. What it gives, joined, does not depend on the cut."""

    __slots__ = ("_held", "_high", "_inside", "_over")

    def __init__(self) -> None:
        self._held = ""
        self._high = ""
        """The first half of a character that JSON writes in two."""
        self._inside = False
        self._over = False

    def feed(self, arguments: str) -> str:
        """What is certain when `arguments` follow those fed before."""
        if self._over:
            return ""
        self._held += arguments
        if not self._inside:
            begun = _INPUT.match(self._held)
            if begun is None:
                return ""
            self._inside = True
            self._held = self._held[begun.end() :]
        return "".join(self._characters())

    def finish(self) -> str:
        """The rest, once."""
        if self._inside:
            return "\ufffd" if self._high and not self._over else ""
        try:
            said = orjson.loads(self._held)
        except orjson.JSONDecodeError:
            return self._held
        value = said.get("input") if isinstance(said, dict) else said
        return value if isinstance(value, str) else self._held

    def _characters(self) -> Iterator[str]:
        at, held = 0, self._held
        while at < len(held):
            plain = _PLAIN.match(held, at)
            if plain is not None:
                yield self._lone() + plain.group()
                at = plain.end()
                continue
            if held[at] == '"':
                yield self._lone()
                self._over = True
                break
            length = 6 if held[at + 1 : at + 2] == "u" else 2
            if at + length > len(held):
                break
            yield self._escaped(held[at + 1 : at + length])
            at += length
        self._held = held[at:]

    def _escaped(self, escape: str) -> str:
        """What follows a backslash."""
        if escape[0] != "u" or not _HEX.fullmatch(escape[1:]):
            return self._lone() + _ESCAPES.get(escape, escape)
        unit = int(escape[1:], 16)
        if 0xD800 <= unit < 0xDC00:
            before, self._high = self._lone(), chr(unit)
            return before
        if 0xDC00 <= unit < 0xE000:
            pair, self._high = self._high, ""
            return (pair + chr(unit)).encode("utf-16", "surrogatepass").decode("utf-16") if pair else "\ufffd"
        return self._lone() + chr(unit)

    def _lone(self) -> str:
        """A first half that no second one follows is no character."""
        if not self._high:
            return ""
        self._high = ""
        return "\ufffd"


class CustomCalls(ToolCallParser):
    """Tells what `inner` tells, but for the calls of custom tools."""

    def __init__(self, inner: ToolCallParser, functions: Functions) -> None:
        super().__init__(functions)
        self._inner = inner
        self._open: tuple[int, InputText] | None = None

    @property
    def calls(self) -> int:
        return self._inner.calls

    def feed(self, text: str) -> Sequence[AnswerPiece]:
        pieces = self._inner.feed(text)
        return [*self._told(pieces)] if pieces else pieces

    def finish(self, *, cut: bool = False) -> Sequence[AnswerPiece]:
        return [*self._told(self._inner.finish(cut=cut)), *self._close()]

    def _told(self, pieces: Sequence[AnswerPiece]) -> Iterator[AnswerPiece]:
        for piece in pieces:
            if isinstance(piece, CallStarted):
                yield from self._close()
                piece.custom = self._functions.is_custom(piece.name)
                if piece.custom:
                    self._open = piece.index, InputText()
            elif isinstance(piece, ArgumentsDelta) and self._open is not None:
                yield from self._input(self._open[1].feed(piece.text))
                continue
            yield piece

    def _close(self) -> Iterator[AnswerPiece]:
        if self._open is not None:
            yield from self._input(self._open[1].finish())
            self._open = None

    def _input(self, text: str) -> Iterator[AnswerPiece]:
        if text and self._open is not None:
            yield InputDelta(self._open[0], text)
