"""One call as a JSON object: its name and its arguments, in either order, among members that say nothing to us."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable

import orjson

from text.tool_calls.functions import Functions
from text.tool_calls.json_arguments import JsonArguments
from text.tool_calls.json_value import JsonValue, arguments_text

_SHORT = r'"(?:[^"\\]|\\.){0,200}'
"""The beginning of a key or a name; what is longer is neither."""
_LONGEST = 402
_STRING = re.compile(rf'{_SHORT}"')
_STRING_TO_COME = re.compile(rf"{_SHORT}\\?")
_NAMES = frozenset({"name", "function", "tool_name"})
_ARGUMENTS = frozenset({"arguments", "parameters"})
_BESIDE = frozenset({"type", "id", "index"})
"""What may stand in a call that has to prove itself, beside its name and arguments."""


class CallObject(JsonArguments):
    """A parser with states that read a call object. It is told as soon as its name is known; one that has to prove that
    it is a call, when it names a known function and its arguments begin."""

    def __init__(self, functions: Functions, *, parallel: bool = True, new_id: Callable[[], str] | None = None) -> None:
        super().__init__(functions, parallel=parallel, new_id=new_id)
        self._proof = False
        """Does the object have to prove that it is a call?"""
        self._name: str | None = None
        self._arguments_held: str | None = None
        self._called = False
        self._answered = False
        self._inner = False
        """Are we in the object that the member `function` holds?"""
        self._key = ""

    @abstractmethod
    def _leave_call(self) -> None:
        """Goes into the state behind an object that was a call."""

    @abstractmethod
    def _release_json(self) -> None:
        """Goes into the state behind an object that is broken; what is kept of it is content."""

    def _enter_object(self) -> None:
        self._at += 1
        self._name = None
        self._arguments_held = None
        self._called = self._answered = self._inner = False
        self._state = self._member

    def _member(self) -> bool:
        char = self._skip_blank()
        if char == '"':
            self._state = self._keying
        elif char == ",":
            self._at += 1
        elif char == "}":
            self._at += 1
            self._leave_object()
        elif char or self._final:
            self._fail()
        else:
            return False
        return True

    def _keying(self) -> bool:
        key = self._short_string()
        if key is not None:
            self._key = key
            self._state = self._colon
        return key is not None or self._state != self._keying

    def _short_string(self) -> str | None:
        """The string that begins here, stepped over. None: it is not whole yet, or it broke the object, as one does
        that a mark stands in."""
        found = _STRING.match(self._buffer, self._at)
        begun = self._buffer[self._at : self._at + _LONGEST] if found is None else found.group()
        marked = self.silent.find(begun) is not None
        if found is not None and not marked:
            self._at = found.end()
            return _text(begun)
        if marked or self._final or not _STRING_TO_COME.fullmatch(self._buffer, self._at):
            self._fail()
        return None

    def _colon(self) -> bool:
        char = self._skip_blank()
        if char == ":":
            self._at += 1
            self._state = self._before_value
        elif char or self._final:
            self._fail()
        else:
            return False
        return True

    def _before_value(self) -> bool:
        char, key = self._skip_blank(), self._key
        if not char:
            if self._final:
                self._fail()
            return self._final
        if key in _NAMES and char == '"' and self._name is None:
            self._state = self._naming
        elif key == "function" and char == "{" and self._name is None and not self._inner:
            self._at += 1
            self._inner = True
            self._state = self._member
        elif key in _ARGUMENTS and not self._answered:
            self._answer()
        elif self._proof and not self._called and key not in _BESIDE:
            self._fail()
        else:
            self._value = JsonValue()
            self._state = self._beside
        return True

    def _naming(self) -> bool:
        start = self._at
        name = self._short_string()
        if name is None:
            return self._state != self._naming
        if not name or (self._proof and name not in self._functions):
            self._at = start
            self._fail()
            return True
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
            self._leave_call()
        else:
            self._fail()

    def _fail(self) -> None:
        """The object is broken: a call that was told is over, what was no call is content."""
        if self._called:
            self._end()
            self._called = False
            if self._final:
                # The answer ends inside the call: what is left is its writing, not what the model says.
                self._at = len(self._buffer)
        self._release_json()


def _text(quoted: str) -> str:
    """What a short JSON string stands for, "" for a broken one."""
    try:
        return str(orjson.loads(quoted))
    except orjson.JSONDecodeError:
        return ""
