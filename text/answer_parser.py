"""From a choice's text to thoughts, content and calls; the one place where the parsers of both meet.

`ModelMarkup` is a model's, made once. `AnswerReading` is a request's; a request whose text needs no reading has none,
and pays nothing. `AnswerParser` is a choice's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocols.quick_init import quick_init
from text.answer_pieces import AnswerPiece, ContentText, ReasoningText
from text.reasoning.count import ReasoningCount
from text.reasoning.splitter import Splitter
from text.reasoning.styles import STYLES, ThinkingStyle, reasoning_for_template, style_name
from text.reasoning.table import reasoning_splitter
from text.tool_calls.base import ToolCallParser
from text.tool_calls.rules import CallMode, CallRules
from text.tool_calls.table import markup_tokens, opening_marks, parser_for_template, parser_name, tool_call_parser

NONE = "none"
"""What an operator writes to switch a parser off."""
HARMONY = "harmony"
CHANNELS = "gpt_oss"


@dataclass(frozen=True, slots=True)
class ModelMarkup:
    """How a model marks calls and thoughts: names of parsers, None for none."""

    tool_calls: str | None = None
    reasoning: str | None = None

    @classmethod
    def choose(cls, tool_calls: str | None, reasoning: str | None, template: str | None) -> ModelMarkup:
        """What the operator says; where that is None, what the chat template tells; `none` for no parser.

        Raises ValueError for an unknown name.
        """
        if tool_calls is None:
            tool_calls = parser_for_template(template or "")
        else:
            tool_calls = None if tool_calls == NONE else parser_name(tool_calls)
        if reasoning is None:
            reasoning = reasoning_for_template(template or "")
        else:
            reasoning = None if reasoning == NONE else style_name(reasoning)
        # Harmony's messages are one markup: what one half leaves would not be understood by another parser.
        if tool_calls == HARMONY or reasoning == CHANNELS:
            return cls(tool_calls and HARMONY, CHANNELS)
        return cls(tool_calls, reasoning)

    def reading(
        self,
        rules: CallRules | None,
        prompt: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        *,
        continued: bool = False,
        structured: bool = False,
    ) -> AnswerReading | None:
        """How to read the answer to a request, None when its text is content as it stands.

        `rules`: None when nothing may be called. `prompt`, `arguments`, `continued`: see ThinkingStyle.starts_thinking.
        `structured`: the engine is bound to JSON (calls that are forced, response_format).
        """
        style = None if self.reasoning is None else STYLES[self.reasoning]
        called = self.tool_calls if rules is not None else None
        if called is None and rules is not None and rules.mode is not CallMode.AUTO:
            called = "default"
        if style is None and called is None:
            return None
        thinking = style is not None and style.starts_thinking(prompt, arguments, continued=continued)
        return AnswerReading(called, style, rules, thinking, structured)


@quick_init
@dataclass(frozen=True, slots=True)
class AnswerReading:
    """How one request's answers are read."""

    tool_calls: str | None
    style: ThinkingStyle | None
    rules: CallRules | None
    thinking: bool
    """Do answers begin inside thoughts?"""
    structured: bool
    told: bool = True
    """Are thoughts told?"""

    def parser(self, new_id: Callable[[], str] | None = None) -> AnswerParser:
        """A fresh parser for one choice. `new_id`: makes the calls' ids."""
        calls = None
        if self.tool_calls is not None and self.rules is not None:
            calls = tool_call_parser(self.tool_calls, self.rules, new_id)
        if self.style is None or (self.style.channels and self.tool_calls == HARMONY):
            return AnswerParser(None, calls)
        return AnswerParser(self._splitter(self.style), calls, told=self.told)

    def count(self) -> ReasoningCount | None:
        """A fresh count of one choice's thoughts, None where there are none to be told from content."""
        if self.style is None or self.style.appends:
            return None
        return ReasoningCount(self._splitter(self.style))

    def tokens(self) -> frozenset[str]:
        """The strings that have to be left in the text though they may be special tokens."""
        tokens = frozenset() if self.style is None else self.style.tokens()
        if self.tool_calls is not None:
            tokens |= markup_tokens(self.tool_calls)
        if self.style is not None and self.style.channels:
            tokens |= markup_tokens(HARMONY)
        return tokens

    def _splitter(self, style: ThinkingStyle) -> Splitter:
        interrupts = opening_marks(self.tool_calls) if self.tool_calls is not None else ()
        return reasoning_splitter(style, thinking=self.thinking, structured=self.structured, interrupts=interrupts)


class AnswerParser:
    """Reads one choice. What it tells, joined, does not depend on how the text was cut."""

    __slots__ = ("_calls", "_splitter", "_told")

    def __init__(self, splitter: Splitter | None, calls: ToolCallParser | None, *, told: bool = True) -> None:
        """`told`: are thoughts told?"""
        self._splitter = splitter
        self._calls = calls
        self._told = told

    @property
    def calls(self) -> int:
        """How many calls were told until now."""
        return 0 if self._calls is None else self._calls.calls

    def feed(self, text: str) -> Sequence[AnswerPiece]:
        """What is certain when `text` follows what was fed before."""
        if self._splitter is None:
            return self._said(text)
        thought, said = self._splitter.feed(text)
        if not thought or not self._told:
            return self._said(said)
        return [ReasoningText(thought), *self._said(said)]

    def finish(self, *, cut: bool = False) -> Sequence[AnswerPiece]:
        """The rest, once. `cut`: the answer was ended by its length, not by the model: a call that is open stays so."""
        pieces: list[AnswerPiece] = []
        if self._splitter is not None:
            thought, said = self._splitter.finish()
            if thought and self._told:
                pieces.append(ReasoningText(thought))
            pieces += self._said(said)
        if self._calls is not None:
            pieces += self._calls.finish(cut=cut)
        return pieces

    def _said(self, text: str) -> Sequence[AnswerPiece]:
        if not text:
            return ()
        return (ContentText(text),) if self._calls is None else self._calls.feed(text)
