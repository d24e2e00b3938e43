"""Calls whose parameters stand in tags, one by one: `<function=NAME><parameter=KEY>VALUE</parameter></function>`.

Values are plain text; the function's schema tells what they are. Strings are passed on as they come, any other value
when it is whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

from text.marks import Marks
from text.tool_calls.functions import STRING, Functions, as_json, json_string
from text.tool_calls.json_arguments import ParameterArguments

_LONGEST_KEY = 400
_ATTRIBUTE = re.compile(r"""\s*["']?([^"'<>]{1,200})["']?""")
_HEAD = re.compile(r"""["']?([\w.\-/:]{1,128})["']?[^<>]{0,64}>""")
_HEAD_TO_COME = re.compile(r"""["']?[\w.\-/:]{0,128}(?:["']?[^<>]{0,64})?""")


class TaggedCalls(ParameterArguments):
    """The names of the tags. `call` and `parameter` are open tags up to the name in them.

    `wrappers`, open and close, stand around calls; outside of them only known functions are called. `strays`: further
    marks that are never content. `trimmed`: one line break at each end of a value belongs to the tags.
    """

    call: ClassVar[str]
    call_end: ClassVar[str]
    parameter: ClassVar[str]
    key_end: ClassVar[str] = ">"
    parameter_end: ClassVar[str]
    wrappers: ClassVar[tuple[tuple[str, str], ...]] = ()
    strays: ClassVar[tuple[str, ...]] = ()
    trimmed: ClassVar[bool] = False
    head: ClassVar[re.Pattern[str]] = _HEAD
    head_to_come: ClassVar[re.Pattern[str]] = _HEAD_TO_COME
    inner: ClassVar[Marks]
    """What may stand between parameters."""
    strange: ClassVar[Marks]
    """What ends text that should not be there."""
    ends: ClassVar[Marks]
    """What ends a value: its own end, or what follows where that is missing."""

    def __init_subclass__(cls) -> None:
        wrappers = [mark for pair in cls.wrappers for mark in pair]
        around = (cls.call, cls.call_end, *wrappers)
        cls.silent = Marks((cls.call_end, *wrappers, *cls.strays))
        cls.marks = Marks((*around, *cls.strays))
        cls.inner = Marks((*around, cls.parameter))
        cls.strange = Marks((*around, cls.parameter, *cls.strays))
        cls.ends = Marks((*around, cls.parameter, cls.parameter_end))

    def __init__(self, functions: Functions, *, parallel: bool = True, new_id: Callable[[], str] | None = None) -> None:
        super().__init__(functions, parallel=parallel, new_id=new_id)
        self._wrapped = False
        self._name = ""
        self._parameter = ""
        self._types = STRING
        self._seen = 0
        """How far a value was searched, from `_at`."""
        self._opened = False
        self._own_lines = False
        """Do the value's tags have lines of their own?"""

    @classmethod
    def opens(cls) -> frozenset[str]:
        return frozenset(opening for opening, _ in cls.wrappers) or frozenset((cls.call,))

    @classmethod
    def tokens(cls) -> frozenset[str]:
        return super().tokens().union(cls.ends.strings)

    def _meet(self, mark: str) -> None:
        if mark == self.call:
            known_only = bool(self.wrappers) and not self._wrapped
            self._keep_from(self._at - len(mark) if known_only else self._at)
            self._state = self._heading
        else:
            for opening, closing in self.wrappers:
                if mark in (opening, closing):
                    self._wrapped = mark == opening

    def _heading(self) -> bool:
        """Behind the open tag of a call: its name."""
        self._skip_blank()
        found = self.head.match(self._buffer, self._at)
        if found is None:
            if not self._final and self.head_to_come.fullmatch(self._buffer, self._at):
                return False
            self._release()
            return True
        name = found.group(1)
        if self.wrappers and not self._wrapped and name not in self._functions:
            self._release()
            return True
        self._at = found.end()
        self._name = name
        self._commit(name)
        self._state = self._between
        return True

    def _between(self) -> bool:
        """Between parameters."""
        char = self._skip_blank()
        found = self.inner.at(self._buffer, self._at)
        if found is not None:
            if found.group() == self.parameter:
                self._at = found.end()
                self._state = self._key
            else:
                if found.group() == self.call_end:
                    self._at = found.end()
                self._close_object()
        elif not char and self._final:
            self._close_object()
        elif not char or (not self._final and self.inner.settled(self._buffer, self._at) == self._at):
            return False
        elif char == "{" and self._empty:
            self._read_arguments(self._between)
        else:
            self._state = self._strange
        return True

    def _strange(self) -> bool:
        """Text where a parameter should be."""
        found = self.strange.find(self._buffer, self._at)
        if found is not None:
            end = found.start()
        else:
            end = len(self._buffer) if self._final else self.strange.settled(self._buffer, self._at)
        self._say(self._buffer[self._at : end])
        self._at = end
        if found is None and not self._final:
            return False
        if found is not None and self.inner.at(self._buffer, end) is None:
            self._at = found.end()
        self._state = self._between
        return True

    # ---- one parameter

    def _key(self) -> bool:
        end = self._buffer.find(self.key_end, self._at, self._at + _LONGEST_KEY)
        other = self.inner.find(self._buffer, self._at)
        if end < 0 and other is None and len(self._buffer) - self._at < _LONGEST_KEY and not self._final:
            return False
        if end < 0 and other is None and self._cut:
            # A tag that the answer's length cut in two names nothing.
            self._at = len(self._buffer)
            self._state = self._between
            return True
        if end < 0 or (other is not None and other.start() < end):
            self._state = self._strange
            return True
        found = _ATTRIBUTE.match(self._buffer, self._at, end)
        if found is None:
            self._state = self._strange
            return True
        self._parameter = found.group(1).strip()
        self._types = self._types_of(self._parameter, self._buffer[found.end() : end])
        self._at = end + len(self.key_end)
        self._seen = 0
        self._opened = False
        self._own_lines = False
        if self._types == STRING:
            self._tell_parameter(self._parameter, '"')
            self._state = self._string
        else:
            self._state = self._other
        return True

    def _types_of(self, key: str, rest: str) -> frozenset[str]:
        """The types of a parameter; `rest`: what its tag says behind the key."""
        return self._functions.types(self._name, key)

    def _string(self) -> bool:
        """A string, told as it comes."""
        if not self._open_value():
            return False
        found, end = self._value_end(self._at)
        if found is not None or (self._final and not self._cut):
            text = self._buffer[self._at : end]
            self._argue(json_string(text.removesuffix("\n") if self.trimmed else text)[1:])
            self._leave_value(found)
            return True
        if self.trimmed and not self._final and self._buffer.endswith("\n", self._at, end):
            end -= 1
        self._argue(json_string(self._buffer[self._at : end])[1:-1])
        self._at = end
        if self._final:
            self._state = self._content
        return self._final

    def _other(self) -> bool:
        """A value that is no string, told when it is whole. One that was cut off is not told."""
        if not self._open_value():
            return False
        found, end = self._value_end(self._at + self._seen)
        if found is None and not self._final:
            self._seen = end - self._at
            return False
        if found is not None or not self._cut:
            self._tell_parameter(self._parameter, self._as_json(self._buffer[self._at : end]))
        self._at = end
        self._leave_value(found)
        return True

    def _open_value(self) -> bool:
        """Steps over the line break that belongs to the opening tag; False as long as one may still come."""
        if not self._opened and self.trimmed:
            if self._at == len(self._buffer) and not self._final:
                return False
            self._own_lines = self._buffer.startswith("\n", self._at)
            self._at += self._own_lines
        self._opened = True
        return True

    def _value_end(self, start: int) -> tuple[re.Match[str] | None, int]:
        """The mark that ends the value, and where the value ends as far as is known."""
        found = self.ends.find(self._buffer, start)
        while found is not None:
            ends = self._ends_value(found)
            if ends is None:
                return None, found.start()
            if ends:
                return found, found.start()
            start = found.end()
            found = self.ends.find(self._buffer, start)
        return None, len(self._buffer) if self._final else self.ends.settled(self._buffer, start)

    def _ends_value(self, mark: re.Match[str]) -> bool | None:
        """Where tags have lines of their own, one in the midst of a line counts only if another tag follows: values may
        be about tags. None: that is still to be seen."""
        start = mark.start()
        if not self._own_lines or (start > self._at and self._buffer[start - 1] == "\n"):
            return True
        behind = self._blank_end(mark.end())
        if behind == len(self._buffer):
            return True if self._final else None
        if self.inner.at(self._buffer, behind) is not None:
            return True
        return None if not self._final and self.inner.settled(self._buffer, behind) == behind else False

    def _as_json(self, raw: str) -> str:
        return as_json(raw.removesuffix("\n") if self.trimmed else raw, self._types)

    def _leave_value(self, found: re.Match[str] | None) -> None:
        if found is None:
            self._at = len(self._buffer)
        else:
            self._at = found.end() if found.group() == self.parameter_end else found.start()
        self._state = self._between
