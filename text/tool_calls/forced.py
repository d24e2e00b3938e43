"""Answers that have to be calls (`tool_choice` required or named).

The engine was bound to JSON: a list of `{"name": …, "parameters": …}`, or the named function's arguments alone; or to
the model's own markup; or to nothing, where it cannot be. The first characters tell which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from text.answer_pieces import AnswerPiece
from text.marks import Marks
from text.tool_calls.base import ToolCallParser
from text.tool_calls.functions import Functions
from text.tool_calls.json_arguments import JsonArguments
from text.tool_calls.json_markups import Llama3Json
from text.tool_calls.rules import CallMode, CallRules

_NAMED_AFTER_ALL = re.compile(r'\{\s*"name"\s*:')
_NAMED_AFTER_ALL_TO_COME = re.compile(r'\{\s*(?:"|"n|"na|"nam|"name)?(?:"name"\s*)?')


class BareArguments(JsonArguments):
    """One call whose arguments are all there is."""

    marks = silent = Marks(())

    def __init__(self, functions: Functions, *, parallel: bool = True, new_id: Callable[[], str] | None = None) -> None:
        super().__init__(functions, parallel=parallel, new_id=new_id)
        self._state = self._beginning
        self._idle = False

    def _meet(self, mark: str) -> None:
        """There are no marks."""

    def _beginning(self) -> bool:
        self._commit(next(iter(self._functions)))
        self._await_arguments(self._finish_call)
        return True


class ForcedCalls(ToolCallParser):
    """Reads JSON where the answer begins with it, else what `native` reads."""

    def __init__(self, native: ToolCallParser, rules: CallRules, new_id: Callable[[], str]) -> None:
        super().__init__(rules.functions, parallel=rules.parallel, new_id=new_id)
        self._native = native
        self._named = rules.mode is CallMode.NAMED
        self._held = ""
        self._chosen: ToolCallParser | None = None

    @property
    def calls(self) -> int:
        return 0 if self._chosen is None else self._chosen.calls

    def feed(self, text: str) -> Sequence[AnswerPiece]:
        if self._chosen is not None:
            return self._chosen.feed(text)
        self._held += text
        self._chosen = self._choose(final=False)
        return () if self._chosen is None else self._chosen.feed(self._held)

    def finish(self, *, cut: bool = False) -> Sequence[AnswerPiece]:
        if self._chosen is not None:
            return self._chosen.finish(cut=cut)
        chosen = self._chosen = self._choose(final=True) or self._native
        return [*chosen.feed(self._held), *chosen.finish(cut=cut)]

    def _choose(self, *, final: bool) -> ToolCallParser | None:
        """Who reads the answer; None as long as that is open."""
        text = self._held.lstrip()
        if text[:1] == "[":
            follower = text[1:].lstrip()[:1]
            if not follower and not final:
                return None
            return self._json() if follower == "{" else self._native
        if text[:1] != "{":
            return self._native if text else None
        if not self._named or _NAMED_AFTER_ALL.match(text):
            return self._json()
        if not final and self._may_be_named() and _NAMED_AFTER_ALL_TO_COME.fullmatch(text):
            return None
        return BareArguments(self._functions, parallel=self._parallel, new_id=self._new_id)

    def _json(self) -> ToolCallParser:
        if self._named and not self._may_be_named():
            return BareArguments(self._functions, parallel=self._parallel, new_id=self._new_id)
        return Llama3Json(self._functions, parallel=self._parallel, new_id=self._new_id)

    def _may_be_named(self) -> bool:
        """Does `name` in an object name the function, because it is none of its parameters?"""
        name = next(iter(self._functions))
        return "name" not in (self._functions.schema(name).get("properties") or ())
