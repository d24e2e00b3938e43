"""Calls written as JSON objects: `{"name": …, "arguments": …}`, one or a list, marked or bare.

A bare object is a call only when it names a known function, has arguments and nothing else that calls do not have; any
other JSON in the text is content, and no call is looked for inside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

from text.marks import Marks
from text.tool_calls.call_object import CallObject
from text.tool_calls.functions import Functions
from text.tool_calls.json_value import JsonValue

_FENCE = "```"
_OTHER_JSON = re.compile(r'[{\[]\s*["{\[]')


class JsonCalls(CallObject):
    """`openers` and `closers` are marks; `shapes` begin a call, or else they are content; `fences` are shapes that end
    by ```` ``` ````. Behind a bare brace or a fence an object has to prove that it is a call."""

    openers: ClassVar[tuple[str, ...]] = ()
    closers: ClassVar[tuple[str, ...]] = ()
    shapes: ClassVar[tuple[str, ...]] = ()
    bare: ClassVar[tuple[str, ...]] = ()
    fences: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.silent = Marks(cls.openers + cls.closers)
        cls.marks = Marks(cls.openers + cls.closers + cls.shapes + cls.bare + cls.fences)

    def __init__(self, functions: Functions, *, parallel: bool = True, new_id: Callable[[], str] | None = None) -> None:
        super().__init__(functions, parallel=parallel, new_id=new_id)
        self._fenced = False
        self._listed = False
        self._brace = 0
        """Where JSON begins, from where text is kept."""

    @classmethod
    def opens(cls) -> frozenset[str]:
        return frozenset(cls.openers)

    def _meet(self, mark: str) -> None:
        if mark in self.closers:
            return
        start = self._at if mark in self.openers else self._at - len(mark)
        self._keep_from(start)
        if mark in self.bare:
            self._at = start
        self._proof = mark in self.bare or mark in self.fences
        self._fenced = mark in self.fences
        self._listed = False
        self._state = self._opened

    def _opened(self) -> bool:
        """Behind the mark: an object or a list."""
        char = self._skip_blank()
        if not char and not self._final:
            return False
        self._brace = self._at - self._from
        if char == "[":
            self._at += 1
            self._listed = True
            self._state = self._item
        elif char == "{":
            self._enter_object()
        else:
            self._open_other()
        return True

    def _open_other(self) -> None:
        """What follows the mark is no JSON."""
        self._release()

    def _item(self) -> bool:
        """In a list, before or behind an object."""
        char = self._skip_blank()
        if char == "{":
            if self._from < 0:
                self._keep_from(self._at)
                self._brace = 0
            self._enter_object()
        elif char == "," and self._from < 0:
            self._at += 1
        elif char == "]" and self._from < 0:
            self._at += 1
            self._state = self._behind
        elif char or self._final:
            self._release_json()
        else:
            return False
        return True

    def _leave_call(self) -> None:
        self._state = self._item if self._listed else self._behind

    def _behind(self) -> bool:
        """Behind a call that is in no list: another may follow, and a fence ends."""
        start = self._at
        char = self._skip_blank()
        place, self._at = self._at, start
        if char in (";", ","):
            follower = self._blank_end(place + 1)
            if follower == len(self._buffer) and not self._final:
                return False
            char = self._buffer[follower : follower + 1]
        else:
            follower = place
        if char == "{":
            self._keep_from(place)
            self._at = follower
            self._brace = follower - place
            self._enter_object()
            return True
        if self._fenced and _FENCE.startswith(char):
            rest = self._buffer[place : place + len(_FENCE)]
            if rest != _FENCE and _FENCE.startswith(rest) and not self._final:
                return False
            if rest == _FENCE:
                self._at = place + len(_FENCE)
        elif not char and not self._final:
            return False
        self._state = self._content
        return True

    def _release_json(self) -> None:
        """What was kept is content. The rest of the JSON it began is so too, calls or not."""
        brace = self._from + self._brace
        if self._from < 0 or not self._proof or not _OTHER_JSON.match(self._buffer, brace):
            self._release()
            return
        self._at = brace
        self._release()
        self._value = JsonValue(repair=False)
        self._state = self._other_json

    def _other_json(self) -> bool:
        start = self._at
        if start < len(self._buffer):
            _, self._at = self._value.take(self._buffer, start)
            self._say(self._buffer[start : self._at])
        if self._value.done or self._value.stopped or self._final:
            self._state = self._content
            return True
        return False
