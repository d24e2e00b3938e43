"""Calls written as JSON objects: `{"name": …, "arguments": …}`, one or a list, marked or bare.

A bare object is a call only when it names a known function, has arguments and nothing else that calls do not have; any
other JSON in the text is content, and no call is looked for inside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

import orjson

from text.marks import Marks
from text.tool_calls.functions import Functions
from text.tool_calls.json_arguments import JsonArguments
from text.tool_calls.json_value import JsonValue, arguments_text

_SHORT = r'"(?:[^"\\]|\\.){0,200}'
"""The beginning of a key or a name; what is longer is neither."""
_KEY = re.compile(rf'({_SHORT}")\s*:\s*(?=\S)')
_KEY_TO_COME = re.compile(rf'{_SHORT}\\?(?:"\s*(?::\s*)?)?')
_NAME = re.compile(rf'{_SHORT}"')
_NAME_TO_COME = re.compile(rf"{_SHORT}\\?")
_NAMES = frozenset({"name", "function", "tool_name"})
_ARGUMENTS = frozenset({"arguments", "parameters"})
_BESIDE = frozenset({"type", "id", "index"})
"""What may stand in a bare call beside its name and arguments."""
FENCE = "```"
_OTHER_JSON = re.compile(r'[{\[]\s*["{\[]')


class JsonCalls(JsonArguments):
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
        self._proof = False
        self._fenced = False
        self._listed = False
        self._brace = 0
        """Where JSON begins, from where text is kept."""
        self._name: str | None = None
        self._arguments_held: str | None = None
        self._called = False
        self._answered = False
        self._inner = False

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

    # ---- one object

    def _enter_object(self) -> None:
        self._at += 1
        self._name = None
        self._arguments_held = None
        self._called = self._answered = self._inner = False
        self._state = self._member

    def _member(self) -> bool:
        char = self._skip_blank()
        if char == '"':
            return self._key()
        if char == ",":
            self._at += 1
        elif char == "}":
            self._at += 1
            self._leave_object()
        elif char or self._final:
            self._fail()
        else:
            return False
        return True

    def _key(self) -> bool:
        found = _KEY.match(self._buffer, self._at)
        if found is None:
            if not self._final and _KEY_TO_COME.fullmatch(self._buffer, self._at):
                return False
            self._fail()
            return True
        self._at = found.end()
        key, char = _text(found.group(1)), self._buffer[self._at]
        if key in _NAMES and char == '"' and self._name is None:
            self._state = self._naming
        elif key == "function" and char == "{" and self._name is None and not self._inner:
            self._at += 1
            self._inner = True
        elif key in _ARGUMENTS and not self._answered:
            self._answer()
        elif self._proof and not self._called and key not in _BESIDE:
            self._fail()
        else:
            self._value = JsonValue()
            self._state = self._beside
        return True

    def _naming(self) -> bool:
        found = _NAME.match(self._buffer, self._at)
        if found is None:
            if not self._final and _NAME_TO_COME.fullmatch(self._buffer, self._at):
                return False
            self._fail()
            return True
        name = _text(found.group())
        if not name or (self._proof and name not in self._functions):
            self._fail()
            return True
        self._at = found.end()
        self._name = name
        if not self._proof or self._arguments_held is not None:
            self._call()
        self._state = self._member
        return True

    def _call(self) -> None:
        """The object is a call: its name is known."""
        assert self._name is not None
        self._called = True
        self._commit(self._name)
        if self._arguments_held is not None:
            self._argue(arguments_text(self._arguments_held))

    def _answer(self) -> None:
        """Arguments begin here."""
        self._answered = True
        if self._name is None:
            self._value = JsonValue()
            self._arguments_held = ""
            self._state = self._held_arguments
            return
        if not self._called:
            self._call()
        self._read_arguments(self._member)

    def _held_arguments(self) -> bool:
        """Arguments before the name."""
        text, self._at = self._value.take(self._buffer, self._at)
        self._arguments_held = (self._arguments_held or "") + text
        return self._follow(self._value)

    def _beside(self) -> bool:
        """A value that says nothing to us."""
        _, self._at = self._value.take(self._buffer, self._at)
        return self._follow(self._value)

    def _follow(self, value: JsonValue) -> bool:
        if value.done:
            self._state = self._member
        elif value.stopped or self._final:
            self._fail()
        else:
            return False
        return True

    def _leave_object(self) -> None:
        if self._inner:
            self._inner = False
        elif self._called:
            self._end()
            self._state = self._item if self._listed else self._behind
        else:
            self._fail()

    def _fail(self) -> None:
        """The object is broken: a call that was told is over, what was no call is content."""
        if self._called:
            self._end()
            self._called = False
        self._release_json()

    # ---- around objects

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
        if self._fenced and FENCE.startswith(char):
            rest = self._buffer[place : place + len(FENCE)]
            if rest != FENCE and FENCE.startswith(rest) and not self._final:
                return False
            if rest == FENCE:
                self._at = place + len(FENCE)
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


def _text(quoted: str) -> str:
    """What a short JSON string stands for, "" for a broken one."""
    try:
        return str(orjson.loads(quoted))
    except orjson.JSONDecodeError:
        return ""
