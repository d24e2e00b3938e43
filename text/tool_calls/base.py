"""What all parsers of calls share: the text not yet understood, and how pieces are told.

What is content: all text that is not part of a call, without the marks themselves, wherever they stand. So text that
markup held without being a call is content, never lost, and no mark reaches the client. White space beside a call is
content only between two texts.

What is a call: it begins when its name is known and can no longer turn out to be something else. From then on what
was read of its arguments is told and stays told, whatever follows.
"""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from text.answer_pieces import AnswerPiece, ArgumentsDelta, CallStarted, ContentText
from text.marks import Marks
from text.tool_calls.functions import Functions

State = Callable[[], bool]
"""Reads on; False when it needs more text than there is."""

_BLANK = re.compile(r"\s*")


def call_id() -> str:
    """A call's id: unique among all answers."""
    return f"call_{secrets.token_hex(12)}"


class ToolCallParser(ABC):
    """Finds the calls in one choice's text. What it tells, joined, does not depend on how the text was cut."""

    def __init__(self, functions: Functions, *, parallel: bool = True, new_id: Callable[[], str] | None = None) -> None:
        """`parallel=False`: only the first call is told. `new_id`: makes ids where the markup has none."""
        self._functions = functions
        self._parallel = parallel
        self._new_id = new_id or self.make_id
        self._pieces: list[AnswerPiece] = []
        self._index = -1
        self._empty = True
        self._blank = ""
        """White space that is content if text follows."""
        self._before = ""
        """That which stood before the last calls."""
        self._said = False
        self._called_last = False
        """Was nothing but white space said since a call?"""
        self._final = False
        self._cut = False

    @staticmethod
    def make_id() -> str:
        """A new call's id, in the form that the model's chat template takes back."""
        return call_id()

    @property
    def calls(self) -> int:
        """How many calls were told until now."""
        return self._index + 1 if self._parallel else min(self._index + 1, 1)

    @abstractmethod
    def feed(self, text: str) -> Sequence[AnswerPiece]:
        """What is certain when `text` follows what was fed before."""

    @abstractmethod
    def finish(self, *, cut: bool = False) -> Sequence[AnswerPiece]:
        """The rest, once. `cut`: the answer was ended by its length, so a call that is open stays as it is; else its
        arguments are closed where that makes them whole."""

    # ---- telling

    def _take_pieces(self) -> Sequence[AnswerPiece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _say(self, text: str) -> None:
        """Content; white space at its end waits for what follows."""
        if self._called_last and not self._said:
            text = text.lstrip()
        shown = text.rstrip()
        if not shown:
            self._blank += text
            return
        self._pieces.append(ContentText(self._before + self._blank + shown))
        self._before, self._blank = "", text[len(shown) :]
        self._said = True
        self._called_last = False

    def _start(self, name: str, own_id: str | None = None) -> None:
        """A call begins."""
        if self._said and not self._called_last:
            self._before = self._blank
        self._blank = ""
        self._called_last = True
        self._index += 1
        self._empty = True
        if self._parallel or self._index == 0:
            self._pieces.append(CallStarted(self._index, own_id or self._new_id(), name))

    def _argue(self, text: str) -> None:
        """More of the open call's arguments."""
        if not text:
            return
        self._empty = False
        if self._parallel or self._index == 0:
            last = self._pieces[-1] if self._pieces else None
            if isinstance(last, ArgumentsDelta) and last.index == self._index:
                last.text += text
            else:
                self._pieces.append(ArgumentsDelta(self._index, text))

    def _end(self) -> None:
        """The open call is over; without arguments it has an empty object."""
        if self._empty and not self._cut:
            self._argue("{}")

    def _close_content(self) -> None:
        """White space at the end is content where nothing was called."""
        if self._index < 0 and self._blank:
            self._pieces.append(ContentText(self._blank))
        self._blank = ""


class MarkupParser(ToolCallParser):
    """A parser that moves from state to state over a buffer, found by marks."""

    marks: ClassVar[Marks]
    silent: ClassVar[Marks]
    """Those of them that are never content, not even in what turns out to be no call."""

    def __init__(self, functions: Functions, *, parallel: bool = True, new_id: Callable[[], str] | None = None) -> None:
        super().__init__(functions, parallel=parallel, new_id=new_id)
        self._buffer = ""
        self._at = 0
        self._from = -1
        """Where text begins that may turn out to be content; -1: none such is kept."""
        self._state: State = self._content
        self._idle = True

    @classmethod
    def opens(cls) -> frozenset[str]:
        """The marks with which calls begin."""
        return frozenset()

    @classmethod
    def tokens(cls) -> frozenset[str]:
        """All strings of the markup that may be tokens of their own."""
        return frozenset(cls.marks.strings)

    def feed(self, text: str) -> Sequence[AnswerPiece]:
        if self._idle and self.marks.absent(text):
            if not text:
                return ()
            if not self._called_last and not self._blank and not text[-1].isspace():
                self._said = True
                return (ContentText(text),)
            self._say(text)
            return self._take_pieces()
        keep = self._at if self._from < 0 else self._from
        self._buffer = self._buffer[keep:] + text
        self._at -= keep
        if self._from > 0:
            self._from = 0
        self._run()
        self._idle = self._at == len(self._buffer) and self._passes()
        return self._take_pieces()

    def finish(self, *, cut: bool = False) -> Sequence[AnswerPiece]:
        self._final = True
        self._cut = cut
        self._run()
        self._close_content()
        return self._take_pieces()

    def _passes(self) -> bool:
        """Is text without marks content as it stands?"""
        return self._state == self._content

    def _run(self) -> None:
        while self._state():
            pass

    # ---- states and their steps

    def _content(self) -> bool:
        found = self.marks.find(self._buffer, self._at)
        if found is None:
            end = self.marks.settled(self._buffer, self._at)
            # Behind a call, what the answer's length cut off in the midst of a mark was to be that mark.
            if self._final and not (self._cut and self._called_last):
                end = len(self._buffer)
            self._say(self._buffer[self._at : end])
            self._at = end
            return False
        self._say(self._buffer[self._at : found.start()])
        self._at = found.end()
        self._meet(found.group())
        return True

    @abstractmethod
    def _meet(self, mark: str) -> None:
        """A mark ends at `_at`: goes into the state it opens; one that opens nothing is passed over."""

    def _skip_blank(self) -> str:
        """Steps over white space; the character behind it, "" when there is none yet."""
        self._at = self._blank_end(self._at)
        return self._buffer[self._at : self._at + 1]

    def _blank_end(self, place: int) -> int:
        """Where the white space ends that begins at `place`."""
        blank = _BLANK.match(self._buffer, place)
        return place if blank is None else blank.end()

    def _keep_from(self, place: int) -> None:
        """What begins at `place` is a call, or else content."""
        self._from = place

    def _commit(self, name: str, own_id: str | None = None) -> None:
        """What was kept is a call."""
        self._from = -1
        self._start(name, own_id)

    def _release(self) -> None:
        """What was kept is no call: content up to here, and on."""
        self._state = self._content
        if self._from < 0:
            return
        start, self._from = self._from, -1
        self._say_unmarked(self._buffer[start : self._at])

    def _say_unmarked(self, text: str) -> None:
        """Content, without the marks in it."""
        start = 0
        while (found := self.silent.find(text, start)) is not None:
            self._say(text[start : found.start()])
            start = found.end()
        self._say(text[start:])

    def _mark_here(self) -> bool | None:
        """Does a mark stand here? None: that is still to be seen."""
        if self.marks.at(self._buffer, self._at) is not None:
            return True
        if not self._final and self.marks.settled(self._buffer, self._at) == self._at < len(self._buffer):
            return None
        return False
