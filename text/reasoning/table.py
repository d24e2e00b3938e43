"""The splitter of each style."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from text.answer_pieces import AnswerPiece, ContentText, ReasoningText
from text.reasoning.splitter import ReasoningSplitter, Splitter
from text.reasoning.styles import ThinkingStyle
from text.tool_calls.functions import Functions
from text.tool_calls.harmony import Harmony


def reasoning_splitter(
    style: ThinkingStyle,
    *,
    thinking: bool | None = None,
    structured: bool = False,
    interrupts: Iterable[str] = (),
) -> Splitter:
    """A fresh splitter for one choice; see ReasoningSplitter for what it takes."""
    if style.channels:
        return ChannelSplitter()
    if style.appends:
        return OpeningMark(style.opens[0])
    return ReasoningSplitter(style, thinking=thinking, structured=structured, interrupts=interrupts)


class OpeningMark:
    """Splits nothing off: the mark that the prompt ended with is put before the text."""

    thinking = False

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def feed(self, text: str, /) -> tuple[str, str]:
        if not text or not self._mark:
            return "", text
        mark, self._mark = self._mark, ""
        return "", mark + text

    def finish(self) -> tuple[str, str]:
        return "", ""


class ChannelSplitter:
    """Harmony's messages without calls: what is said in any channel but that of the thoughts is content."""

    def __init__(self) -> None:
        self._messages = Harmony(Functions({}))

    @property
    def thinking(self) -> bool:
        return self._messages.thinking

    def feed(self, text: str, /) -> tuple[str, str]:
        return _split(self._messages.feed(text))

    def finish(self) -> tuple[str, str]:
        return _split(self._messages.finish())


def _split(pieces: Sequence[AnswerPiece]) -> tuple[str, str]:
    thoughts = "".join(piece.text for piece in pieces if isinstance(piece, ReasoningText))
    return thoughts, "".join(piece.text for piece in pieces if isinstance(piece, ContentText))
