"""Gemma's calls: `<|tool_call>call:NAME{key:<|"|>text<|"|>,count:42}<tool_call|>` (Gemma 4), or with
`<start_function_call>`, `<end_function_call>` and `<escape>` (FunctionGemma).

Keys are bare; strings stand between marks and hold anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from text.marks import Marks
from text.tool_calls.functions import Functions, as_json, is_json, json_string
from text.tool_calls.json_arguments import ParameterArguments
from text.tool_calls.nesting import Nesting

_QUOTES = ('<|"|>', "<escape>")
_ANY = frozenset({"null", "number", "boolean", "string"})
_HEAD = re.compile(r"call:\s*([\w.\-]{1,128})\s*\{")
_HEAD_TO_COME = re.compile(r"(?:c|ca|cal|call|call:\s*[\w.\-]{0,128}\s*)?")
_KEY = re.compile(r'(?:<\|"\|>|<escape>|")?([^:{}\[\],<>"]{1,200}?)(?:<\|"\|>|<escape>|")?\s*:')
_KEY_TO_COME = re.compile(r"[^:{}\[\],]{0,220}")
_DEEPEST = 64


class Gemma(ParameterArguments):
    _openers = ("<|tool_call>", "<start_function_call>")
    silent = Marks((*_openers, "<tool_call|>", "<end_function_call>"))
    marks = silent

    def __init__(self, functions: Functions, *, parallel: bool = True, new_id: Callable[[], str] | None = None) -> None:
        super().__init__(functions, parallel=parallel, new_id=new_id)
        self._name = ""
        self._key = ""
        self._nesting = Nesting(_QUOTES, ",}", escapes=False)

    @classmethod
    def opens(cls) -> frozenset[str]:
        return frozenset(cls._openers)

    @classmethod
    def tokens(cls) -> frozenset[str]:
        return super().tokens().union(_QUOTES)

    def _meet(self, mark: str) -> None:
        if mark in self._openers:
            self._keep_from(self._at)
            self._state = self._heading

    def _heading(self) -> bool:
        self._skip_blank()
        found = _HEAD.match(self._buffer, self._at)
        if found is None:
            if not self._final and _HEAD_TO_COME.fullmatch(self._buffer, self._at):
                return False
            self._release()
            return True
        self._at = found.end()
        self._name = found.group(1)
        self._commit(self._name)
        self._state = self._between
        return True

    def _between(self) -> bool:
        """Between parameters."""
        char = self._skip_blank()
        if char == ",":
            self._at += 1
        elif char == "}":
            self._at += 1
            self._close_object()
        elif char or self._final:
            return self._parameter()
        else:
            return False
        return True

    def _parameter(self) -> bool:
        found = _KEY.match(self._buffer, self._at)
        mark = self._mark_here()
        if found is not None and not mark:
            self._at = found.end()
            self._key = found.group(1).strip()
            self._nesting = Nesting(_QUOTES, ",}", escapes=False)
            self._state = self._valuing
        elif mark is not True and not self._final and _KEY_TO_COME.fullmatch(self._buffer, self._at):
            return False
        else:
            self._close_object()
        return True

    def _valuing(self) -> bool:
        if not self._nesting.at:
            self._skip_blank()
        end = self._nesting.end(self._buffer, self._at, final=self._final)
        if end < 0 and not self._final:
            return False
        if end >= 0 or not self._cut:
            source = self._buffer[self._at : end if end >= 0 else len(self._buffer)]
            self._tell_parameter(self._key, self._as_json(source))
        self._at = end if end >= 0 else len(self._buffer)
        self._state = self._between
        return True

    def _as_json(self, source: str) -> str:
        text = source.strip()
        types = self._functions.types(self._name, self._key)
        quoted = _quoted(text)
        if quoted is not None:
            return json_string(quoted) if "string" in types else as_json(quoted, types)
        if text[:1] in ("{", "["):
            return _Reader(text).value(_DEEPEST)
        return text if is_json(text) and text[:1] != '"' else as_json(text, _ANY)


def _quoted(text: str) -> str | None:
    """The string between a pair of marks."""
    for quote in _QUOTES:
        size = len(quote)
        if text.startswith(quote) and text.find(quote, size) == len(text) - size >= size:
            return text[size:-size]
    return None


class _Reader:
    """Reads an object or array in Gemma's notation into JSON text. What is missing at the end is taken to be there."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def value(self, depth: int) -> str:
        char = self._char()
        if depth == 0:
            rest, self._at = self._text[self._at :], len(self._text)
            return json_string(rest)
        if char == "{":
            return self._object(depth)
        if char == "[":
            return self._array(depth)
        nesting = Nesting(_QUOTES, ",}]", escapes=False)
        end = nesting.end(self._text, self._at, final=True)
        end = len(self._text) if end < 0 else end
        text = self._text[self._at : end].strip()
        self._at = end
        quoted = _quoted(text)
        if quoted is not None:
            return json_string(quoted)
        return text if is_json(text) else as_json(text, _ANY)

    def _object(self, depth: int) -> str:
        self._at += 1
        members = []
        while (char := self._char()) not in ("}", ""):
            if char == ",":
                self._at += 1
                continue
            found = _KEY.match(self._text, self._at)
            if found is None:
                key = ""
            else:
                key = found.group(1).strip()
                self._at = found.end()
            start = self._at
            members.append(f"{json_string(key)}: {self.value(depth - 1)}")
            self._at += self._at == start
        self._at += 1
        return "{" + ", ".join(members) + "}"

    def _array(self, depth: int) -> str:
        self._at += 1
        items: list[Any] = []
        while (char := self._char()) not in ("]", ""):
            if char == ",":
                self._at += 1
                continue
            start = self._at
            items.append(self.value(depth - 1))
            self._at += self._at == start
        self._at += 1
        return "[" + ", ".join(items) + "]"

    def _char(self) -> str:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]
