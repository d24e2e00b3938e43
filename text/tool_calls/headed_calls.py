"""Calls with a head before their JSON: DeepSeek V3 to V3.1, and Kimi K2."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

from text.marks import Marks
from text.tool_calls.functions import Functions
from text.tool_calls.json_arguments import JsonArguments

_LONGEST_HEAD = 256
_NAME = re.compile(r"[\w.\-/:]{1,128}")
_ENDED_NAME = re.compile(r"([\w.\-/:]{1,128})(?=[\s<`{])")
_NAME_TO_COME = re.compile(r"[\w.\-/:]{0,128}")
_FENCE = re.compile(r"```(?:json)?(?=[\s{\[<])")
_FENCE_TO_COME = re.compile(r"`{0,3}|```(?:j|js|jso|json)")
_FENCE_END = re.compile(r"\s*```")
_FENCE_END_TO_COME = re.compile(r"\s*`{0,2}")


class HeadedCalls(JsonArguments):
    """`begin` head `separator` arguments `end`; `sections` stand around calls."""

    begin: ClassVar[str]
    separator: ClassVar[str]
    end: ClassVar[str]
    sections: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.marks = cls.silent = Marks((cls.begin, cls.separator, cls.end, *cls.sections))

    def __init__(self, functions: Functions, *, parallel: bool = True, new_id: Callable[[], str] | None = None) -> None:
        super().__init__(functions, parallel=parallel, new_id=new_id)
        self._head = ""

    @classmethod
    def opens(cls) -> frozenset[str]:
        return frozenset((cls.begin, *cls.sections[:1]))

    def _meet(self, mark: str) -> None:
        if mark == self.begin:
            self._keep_from(self._at)
            self._state = self._heading

    def _heading(self) -> bool:
        """Before the separator."""
        found = self.marks.find(self._buffer, self._at)
        if found is not None and found.start() - self._at <= _LONGEST_HEAD and found.group() == self.separator:
            self._head = self._buffer[self._at : found.start()].strip()
            self._at = found.end()
            self._state = self._headed
        elif found is not None or self._final or len(self._buffer) - self._at > _LONGEST_HEAD + len(self.separator):
            self._release()
        else:
            return False
        return True

    def _headed(self) -> bool:
        """Behind the separator: commits, or releases the head."""
        raise NotImplementedError


class DeepSeekV3(HeadedCalls):
    """V3 and R1: `<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\\n```json\\n{…}\\n```<｜tool▁call▁end｜>`; V3.1:
    `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`. Both are read, whichever was asked for."""

    begin = "<｜tool▁call▁begin｜>"
    separator = "<｜tool▁sep｜>"
    end = "<｜tool▁call▁end｜>"
    sections = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

    def _headed(self) -> bool:
        if self._skip_blank() == "{" and _NAME.fullmatch(self._head):
            self._commit(self._head)
            self._await_arguments(self._fence_end)
            return True
        found = _ENDED_NAME.match(self._buffer, self._at)
        if found is not None:
            self._at = found.end()
            self._head = found.group(1)
            self._state = self._fence
        elif not self._final and _NAME_TO_COME.fullmatch(self._buffer, self._at):
            return False
        else:
            self._release()
        return True

    def _fence(self) -> bool:
        """Between the name and the arguments."""
        char = self._skip_blank()
        if char == "`":
            found = _FENCE.match(self._buffer, self._at)
            if found is not None:
                self._at = found.end()
            elif not self._final and _FENCE_TO_COME.fullmatch(self._buffer, self._at):
                return False
            else:
                self._release()
                return True
        elif not char:
            if self._final:
                self._release()
            return self._final
        self._commit(self._head)
        self._await_arguments(self._fence_end)
        return True

    def _fence_end(self) -> bool:
        fence = _FENCE_END.match(self._buffer, self._at)
        if fence is not None:
            self._at = fence.end()
        elif not self._final and _FENCE_END_TO_COME.fullmatch(self._buffer, self._at):
            return False
        return self._finish_call()


class KimiK2(HeadedCalls):
    """`<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`. The head is the call's id,
    which the template takes back; a head that is a bare number means the only function there is."""

    begin = "<|tool_call_begin|>"
    separator = "<|tool_call_argument_begin|>"
    end = "<|tool_call_end|>"
    sections = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")

    def __init__(self, functions: Functions, *, parallel: bool = True, new_id: Callable[[], str] | None = None) -> None:
        super().__init__(functions, parallel=parallel, new_id=new_id)
        self._ids: set[str] = set()

    def _headed(self) -> bool:
        path, colon, number = self._head.rpartition(":")
        name = (path if colon and number.strip().isdigit() else self._head).rpartition(".")[2].strip()
        if name.isdigit() and len(self._functions) == 1:
            name, path = next(iter(self._functions)), ""
        if not _NAME.fullmatch(name) or name.isdigit():
            self._release()
            return True
        own = self._head if path and colon and self._head not in self._ids else None
        self._ids.add(self._head)
        self._commit(name, own)
        self._await_arguments(self._finish_call)
        return True
