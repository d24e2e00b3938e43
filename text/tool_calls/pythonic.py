"""Calls written as Python: `[get_weather(city="Paris", days=3), get_time()]`; Llama 4, Llama 3.2, LFM 2.

A list in brackets is a call when it begins with a known function. Values are Python's or JSON's literals; what is
neither is a string as it stands.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

from text.marks import Marks
from text.tool_calls.functions import STRING, Functions, as_json, json_string, json_text, quiet_syntax
from text.tool_calls.json_arguments import ParameterArguments
from text.tool_calls.nesting import Nesting

_HEAD = re.compile(r"([A-Za-z_][\w.\-]{0,127})\s*\(")
_HEAD_TO_COME = re.compile(r"([A-Za-z_][\w.\-]{0,127})?\s*")
_KEY = re.compile(r"([A-Za-z_]\w{0,127})\s*=(?=[^=])")
_KEY_TO_COME = re.compile(r"([A-Za-z_]\w{0,127})?\s*=?")
_QUOTES = ('"""', "'''", '"', "'")
_WORDS = {"true": True, "false": False, "null": None, "none": None}
_LONGEST = 200_000


class Pythonic(ParameterArguments):
    silent = Marks(("<|python_start|>", "<|python_end|>", "<|python_tag|>", "<|tool_call_start|>", "<|tool_call_end|>"))
    marks = Marks((*silent.strings, "["))

    def __init__(self, functions: Functions, *, parallel: bool = True, new_id: Callable[[], str] | None = None) -> None:
        super().__init__(functions, parallel=parallel, new_id=new_id)
        self._name = ""
        self._key = ""
        self._positions: list[str] = []
        self._nesting = Nesting(_QUOTES, ",)", escapes=True)

    def _meet(self, mark: str) -> None:
        if mark == "[":
            self._keep_from(self._at - 1)
            self._state = self._heading

    def _heading(self) -> bool:
        """A function's name and its parenthesis. The first in a list has to be known."""
        self._skip_blank()
        found = _HEAD.match(self._buffer, self._at)
        if found is None:
            begun = None if self._final else _HEAD_TO_COME.fullmatch(self._buffer, self._at)
            if begun is not None and (self._from < 0 or self._may_become(begun.group(1) or "")):
                return False
            self._release()
            return True
        name = found.group(1)
        if self._from >= 0 and name not in self._functions:
            self._release()
            return True
        self._at = found.end()
        self._name = name
        self._positions = list(self._functions.schema(name).get("properties") or ())
        self._commit(name)
        self._state = self._between
        return True

    def _may_become(self, begun: str) -> bool:
        return any(name.startswith(begun) for name in self._functions)

    def _between(self) -> bool:
        """Between arguments."""
        char = self._skip_blank()
        if char == ",":
            self._at += 1
        elif char == ")":
            self._at += 1
            self._close_object()
            self._state = self._behind
        elif char:
            return self._argument()
        elif self._final:
            self._close_object()
        else:
            return False
        return True

    def _argument(self) -> bool:
        found = _KEY.match(self._buffer, self._at)
        if found is not None:
            self._at = found.end()
            self._key = found.group(1)
        elif not self._final and _KEY_TO_COME.fullmatch(self._buffer, self._at):
            return False
        else:
            place = self._keys
            self._key = self._positions[place] if place < len(self._positions) else f"argument_{place + 1}"
        self._nesting = Nesting(_QUOTES, ",)", escapes=True)
        self._state = self._valuing
        return True

    def _valuing(self) -> bool:
        if not self._nesting.at:
            self._skip_blank()
        end = self._nesting.end(self._buffer, self._at, final=self._final)
        if end < 0 and not self._final:
            return False
        if end >= 0 or not self._cut:
            source = self._buffer[self._at : end if end >= 0 else len(self._buffer)].strip()
            self._tell_parameter(self._key, value_text(source, self._functions.types(self._name, self._key)))
        self._at = end if end >= 0 else len(self._buffer)
        self._state = self._between
        return True

    def _behind(self) -> bool:
        """Behind a call: the next one, or the end of the list."""
        start = self._at
        char = self._skip_blank()
        if char == ",":
            self._at += 1
            self._state = self._heading
        elif char == "]":
            self._at += 1
            self._state = self._content
        else:
            # The white space is no longer the list's: it is content if text follows.
            self._at = start
            if not char and not self._final:
                return False
            self._state = self._content
        return True


def value_text(source: str, types: frozenset[str]) -> str:
    """A Python value as JSON of one of `types`: models quote numbers, and forget to quote strings."""
    try:
        if len(source) > _LONGEST:
            raise ValueError("too long to be looked into")
        with quiet_syntax():
            value = _literal(ast.parse(source, mode="eval").body)
        text = json_text(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return _unparsed(source, types)
    if text is None:
        return _unparsed(source, types)
    if isinstance(value, str):
        return text if "string" in types else as_json(value, types)
    if types == STRING and value is not None:
        return json_string(source)
    return text


def _unparsed(source: str, types: frozenset[str]) -> str:
    if len(source) > 1 and source[0] in "\"'" and source[-1] == source[0]:
        source = source[1:-1]
    return as_json(source, types)


def _literal(node: ast.AST) -> Any:
    """What a literal stands for, JSON's words among them. Raises ValueError for anything that would have to be run."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) if name.lower() in _WORDS:
            return _WORDS[name.lower()]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.UnaryOp(op=ast.UAdd(), operand=ast.Constant(value=int() | float() as value)):
            return value
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            return [_literal(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _literal(value) for key, value in zip(keys, values, strict=True)}
        case _:
            raise ValueError("no literal")


def _key(node: ast.AST | None) -> str:
    if node is None:
        raise ValueError("no literal")
    value = _literal(node)
    return value if isinstance(value, str) else str(value)
