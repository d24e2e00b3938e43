"""gpt-oss's messages: thoughts, preambles, calls and the answer, each in a channel of its own.

`<|channel|>analysis<|message|>…<|end|>`, then
`<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>`, where the recipient
may stand before the channel too, or `<|start|>assistant<|channel|>final<|message|>…<|return|>`. The prompt ends with
`<|start|>assistant`, so an answer begins inside a head. What is addressed to a tool that is no function (the model's
own browser, Python) is a thought: it is not for the user.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from text.answer_pieces import AnswerPiece, ReasoningText
from text.marks import Marks
from text.tool_calls.functions import Functions
from text.tool_calls.json_arguments import JsonArguments

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_LONGEST_HEAD = 500
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_BARE_HEAD = "to="
_TO = r"\s*(?:to=[^\s<]*)?\s*"
_HEAD_WORDS = re.compile(
    rf"\s*(?:assistant\b)?{_TO}(?:<\|channel\|>\s*)?(?:(?:analysis|commentary|final)\b)?{_TO}"
    r"(?:<\|constrain\|>\s*)?(?:json\b)?\s*",
    re.IGNORECASE,
)
"""What a head is made of."""


class Harmony(JsonArguments):
    """Tells thoughts beside content and calls. Without functions, messages to functions are content."""

    silent = Marks((_START, _CHANNEL, _CONSTRAIN, _MESSAGE, "<|end|>", "<|call|>", "<|return|>"))
    marks = silent
    ends = Marks(("<|end|>", "<|return|>", "<|call|>", _START, _CHANNEL))

    def __init__(self, functions: Functions, *, parallel: bool = True, new_id: Callable[[], str] | None = None) -> None:
        super().__init__(functions, parallel=parallel, new_id=new_id)
        self._state = self._beginning
        self._idle = False
        self._thought = False
        """Was anything thought until now?"""
        self._break = ""
        """What stands between this message and the last of its kind."""

    @property
    def thinking(self) -> bool:
        """Is the text that comes next a thought, as far as is known?"""
        return self._state == self._thoughts

    def feed(self, text: str) -> Sequence[AnswerPiece]:
        if self._thought and self._at == len(self._buffer) and self.thinking and self.marks.absent(text):
            return (ReasoningText(text),) if text else ()
        return super().feed(text)

    def _passes(self) -> bool:
        return (self._state == self._words and not self._break) or super()._passes()

    def _beginning(self) -> bool:
        """An answer may begin with its recipient."""
        place = self._blank_end(self._at)
        rest = self._buffer[place : place + len(_BARE_HEAD)]
        if rest == _BARE_HEAD:
            self._state = self._head
        elif not self._final and _BARE_HEAD.startswith(rest):
            return False
        else:
            self._state = self._content
        return True

    def _meet(self, mark: str) -> None:
        if mark in (_START, _CHANNEL):
            self._at -= len(mark)
            self._state = self._head

    def _head(self) -> bool:
        """Up to the message. Where another mark or the end comes first, or nothing for long, it was no head: of that
        only a head's own words are passed over."""
        opening = self.marks.at(self._buffer, self._at)
        start = self._at if opening is None else opening.end()
        found = self._first_strange(start, after_start=opening is None or opening.group() == _START)
        if found is not None and found.group() == _MESSAGE:
            head = self._buffer[self._at : found.start()]
            self._at = found.end()
            self._open(head)
            return True
        if found is None and len(self._buffer) - self._at < _LONGEST_HEAD and not self._final:
            return False
        if found is None and self._cut:
            self._at = len(self._buffer)
        elif opening is not None:
            words = _HEAD_WORDS.match(self._buffer, start, len(self._buffer) if found is None else found.start())
            self._at = start if words is None else words.end()
        self._state = self._content
        return True

    def _first_strange(self, start: int, *, after_start: bool) -> re.Match[str] | None:
        """The first mark that does not stand inside heads."""
        inside = {_CONSTRAIN, _CHANNEL} if after_start else {_CONSTRAIN}
        found = self.marks.find(self._buffer, start)
        while found is not None and found.group() in inside:
            inside -= {found.group()}
            found = self.marks.find(self._buffer, found.end())
        return found

    def _open(self, head: str) -> None:
        """A message begins."""
        recipient = _RECIPIENT.search(head)
        channel = _CHANNEL_NAME.search(head)
        path = "" if recipient is None else recipient.group(1)
        name = path.removeprefix("functions.")
        if name in self._functions or (name != path and len(self._functions)):
            self._commit(name)
            self._await_arguments(self._finish_call)
            return
        if (path and name == path) or (channel is not None and channel.group(1) == "analysis"):
            self._break = "\n" if self._thought else ""
            self._thought = False
            self._state = self._thoughts
            return
        self._break = "\n" if self._said else ""
        self._state = self._words

    def _thoughts(self) -> bool:
        text, going = self._body()
        if text:
            self._pieces.append(ReasoningText(self._break + text))
            self._break = ""
            self._thought = True
        return going

    def _words(self) -> bool:
        text, going = self._body()
        if text and self._break:
            text, self._break = self._break + text, ""
        self._say(text)
        return going

    def _body(self) -> tuple[str, bool]:
        """More of the message. The end is left for the state outside of messages."""
        found = self.ends.find(self._buffer, self._at)
        if found is not None:
            end = found.start()
            self._state = self._content
        else:
            end = len(self._buffer) if self._final else self.ends.settled(self._buffer, self._at)
        text = self._buffer[self._at : end]
        self._at = end
        return text, found is not None
