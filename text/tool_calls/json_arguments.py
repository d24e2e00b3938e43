"""Arguments on their way out: as JSON that the model wrote, or made of parameters that came one by one."""

from __future__ import annotations

from text.tool_calls.base import MarkupParser, State
from text.tool_calls.functions import json_string
from text.tool_calls.json_value import JsonValue, arguments_text


class JsonArguments(MarkupParser):
    """A parser with a state that reads arguments. JSON is told as it comes, anything else when it is whole."""

    _value: JsonValue
    _held: str
    _plain: bool
    """Is what is read known to be told as it comes?"""
    _then: State

    def _read_arguments(self, then: State) -> None:
        """Goes on to read the value that begins here; `then` is the state behind it."""
        self._value = JsonValue()
        self._held = ""
        self._plain = False
        self._then = then
        self._state = self._arguments

    def _await_arguments(self, then: State) -> None:
        """Goes on to read arguments of any kind, white space before them; what is no JSON goes up to the next mark."""
        self._then = then
        self._state = self._awaited

    def _awaited(self) -> bool:
        char = self._skip_blank()
        if char in ("{", "[", '"'):
            self._read_arguments(self._then)
        elif char:
            self._state = self._raw
        elif self._final:
            self._state = self._then
        else:
            return False
        return True

    def _raw(self) -> bool:
        found = self.marks.find(self._buffer, self._at)
        if found is not None:
            end = found.start()
        else:
            end = len(self._buffer) if self._final else self.marks.settled(self._buffer, self._at)
        self._argue(self._buffer[self._at : end])
        self._at = end
        if found is None and not self._final:
            return False
        self._state = self._then
        return True

    def _finish_call(self) -> bool:
        """The state behind arguments that nothing else follows."""
        self._end()
        self._state = self._content
        return True

    def _arguments(self) -> bool:
        if self._at == len(self._buffer):
            if self._final:
                self._break_off()
            return self._final
        text, self._at = self._value.take(self._buffer, self._at)
        self._pass(text)
        if self._value.done:
            self._settle()
            self._state = self._then
            return True
        if self._value.stopped:
            return self._at_angle()
        return self._final

    def _at_angle(self) -> bool:
        """A `<` where JSON has none: markup ends the arguments, anything else is the model's own fault and passes."""
        mark = self._mark_here()
        if mark is None:
            return False
        if mark:
            self._break_off()
        else:
            self._pass("<")
            self._at += 1
        return True

    def _pass(self, text: str) -> None:
        if self._plain:
            self._argue(text)
            return
        self._held += text
        # Python's notation gives itself away by the quotes around its first key.
        if self._value.kind in "{[" and self._held[1:].lstrip()[:1] not in ("", "'"):
            self._plain = True
            self._argue(self._held)
            self._held = ""

    def _settle(self) -> None:
        if self._held:
            self._argue(arguments_text(self._held))
            self._held = ""

    def _break_off(self) -> None:
        """The arguments never end: what there is of them was told."""
        self._settle()
        self._end()
        self._state = self._content


class ParameterArguments(JsonArguments):
    """A parser that makes the arguments' object from parameters."""

    _keys = 0

    def _commit(self, name: str, own_id: str | None = None) -> None:
        self._keys = 0
        super()._commit(name, own_id)

    def _tell_parameter(self, key: str, text: str) -> None:
        """A parameter, and the JSON that is known of its value by now."""
        self._argue(f"{', ' if self._keys else '{'}{json_string(key)}: {text}")
        self._keys += 1

    def _close_object(self) -> None:
        """The call is over. An answer that was cut off there leaves its object open."""
        if self._keys and not (self._cut and self._at == len(self._buffer)):
            self._argue("}")
        self._end()
        self._state = self._content
