"""Splits one choice's text into thoughts and content.

Marks belong to neither. White space beside them neither: at both ends of the thoughts, and the empty lines before the
content behind them. Thoughts that never end are thoughts to the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

from text.marks import Marks
from text.reasoning.styles import ThinkingStyle

_WRITABLE = re.compile(r"<\w+>")
"""Marks that somebody might write without meaning them."""
_EMPTY_LINES = re.compile(r"\s*\n")
"""White space up to its last line break; what indents the first line of content stays."""


class Splitter(Protocol):
    """Splits one choice's text; see ReasoningSplitter."""

    @property
    def thinking(self) -> bool: ...

    def feed(self, text: str, /) -> tuple[str, str]: ...

    def finish(self) -> tuple[str, str]: ...


class ReasoningSplitter:
    """Fed with text in any cut; what it gives, joined, depends on the text alone.

    `thinking`: the answer begins inside thoughts. `structured`: the engine is bound to JSON, so an answer that begins
    with it has no thoughts before it. `interrupts`: marks that calls begin with; where the style says so they end the
    thoughts, and are content. Of them `<tool_call>` and its like count only at the beginning of a line: elsewhere the
    model may be speaking of them.
    """

    def __init__(
        self,
        style: ThinkingStyle,
        *,
        thinking: bool | None = None,
        structured: bool = False,
        interrupts: Iterable[str] = (),
    ) -> None:
        self.thinking = style.starts if thinking is None else thinking
        """Is the text that comes next a thought, as far as is known?"""
        self._style = style
        self._open_to_json = structured and self.thinking
        self._closes = frozenset(style.closes)
        self._inside = Marks((*style.closes, *style.opens, *(interrupts if style.interrupted else ())))
        self._outside = Marks((*style.opens, *(style.closes if style.closes_alone else ()), *style.wraps))
        self._held = ""
        self._fresh = True
        """Was nothing but white space read since thoughts or content began?"""
        self._thought = False
        self._closed = False
        self._wrapped = False
        self._line_start = True

    def feed(self, text: str) -> tuple[str, str]:
        """What was thought and what was said, as far as is certain when `text` follows."""
        if not self._held and not self._fresh:
            if not self.thinking:
                if self._outside.absent(text):
                    self._line_start = text.endswith("\n") if text else self._line_start
                    return "", text
            elif text and self._inside.absent(text) and not text[-1].isspace():
                self._line_start = False
                return text, ""
        return self._split(self._held + text, final=False)

    def finish(self) -> tuple[str, str]:
        """The rest, once."""
        return self._split(self._held, final=True)

    def _split(self, text: str, *, final: bool) -> tuple[str, str]:
        thoughts: list[str] = []
        content: list[str] = []
        at, going = 0, not self._open_to_json or self._decide(text, final)
        while going:
            if self.thinking:
                at, going = self._think(text, at, thoughts, final)
            else:
                at, going = self._speak(text, at, content, final)
        self._held = text[at:]
        return "".join(thoughts), "".join(content)

    def _decide(self, text: str, final: bool) -> bool:
        """Is it known whether the answer begins with JSON?"""
        first = text.lstrip()[:1]
        if not first and not final:
            return False
        self._open_to_json = False
        self.thinking = first not in ("{", "[")
        return True

    def _think(self, text: str, at: int, out: list[str], final: bool) -> tuple[int, bool]:
        """Reads thoughts: up to where, and whether there is more to read."""
        found = self._inside.find(text, at)
        if found is None:
            end = len(text) if final else self._inside.settled(text, at)
            shown = text[at:end].rstrip()
            self._tell_thought(shown, out)
            return end if final else at + len(shown), False
        mark, before = found.group(), text[at : found.start()]
        if mark in self._closes:
            self._tell_thought(before.rstrip(), out)
            self.thinking, self._fresh, self._closed, self._line_start = False, True, True, True
        elif mark in self._style.opens:
            if not self._fresh or before.strip():
                self._tell_thought(before + mark, out)
        elif not _WRITABLE.fullmatch(mark) or self._begins_line(before):
            self._tell_thought(before.rstrip(), out)
            self.thinking, self._fresh = False, False
            return found.start(), True
        else:
            self._tell_thought(before + mark, out)
        return found.end(), True

    def _begins_line(self, before: str) -> bool:
        """Is what follows `before` the first on its line?"""
        line = before.rpartition("\n")
        return not line[2].strip() and (bool(line[1]) or self._fresh)

    def _tell_thought(self, text: str, out: list[str]) -> None:
        if self._fresh:
            text = text.lstrip()
            if not text:
                return
            if self._thought:
                out.append("\n")
            self._fresh, self._thought = False, True
        out.append(text)

    def _speak(self, text: str, at: int, out: list[str], final: bool) -> tuple[int, bool]:
        """Reads content: up to where, and whether there is more to read."""
        found = self._outside.find(text, at)
        if found is None:
            end = len(text) if final else self._outside.settled(text, at)
            if self._fresh and not final and not text[at:end].strip():
                return at, False
            self._tell_content(text[at:end], out, final)
            return end, False
        self._tell_content(text[at : found.start()], out, False)
        mark = found.group()
        if mark in self._style.wraps:
            if (mark == self._style.wraps[0]) if self._fresh else self._wrapped:
                self._wrapped = not self._wrapped
            else:
                self._tell_content(mark, out, False)
        elif mark not in self._closes:
            if self._style.anywhere or self._line_start:
                self.thinking, self._fresh = True, True
            else:
                self._tell_content(mark, out, False)
        return found.end(), True

    def _tell_content(self, text: str, out: list[str], final: bool) -> None:
        if self._fresh:
            said = text.lstrip()
            if not said and (self._closed or not final):
                return
            if self._closed:
                lines = _EMPTY_LINES.match(text)
                text = said if lines is None else text[lines.end() :]
            self._fresh = False
        if text:
            out.append(text)
            self._line_start = text[-1] == "\n"
