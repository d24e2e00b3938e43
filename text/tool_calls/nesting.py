"""Finds where a value ends among brackets and quotes, in a text that comes in pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PREFIXES = frozenset("rRbBfFuU")


class Nesting:
    """One value, in a notation with `quotes`, that ends before one of `ends` outside of all brackets and strings.

    `escapes`: a backslash takes the next character out of a string's syntax. Then it can be forgotten, too: a quote
    where no string can begin opens none.
    """

    __slots__ = ("_closing", "_depth", "_ends", "_escapes", "_inside", "_outside", "_quotes", "at")

    def __init__(self, quotes: Sequence[str], ends: str, *, escapes: bool) -> None:
        ordered = sorted(quotes, key=len, reverse=True)
        self._quotes = ordered
        self._ends = ends
        self._escapes = escapes
        self._outside = re.compile("|".join(map(re.escape, (*ordered, *"()[]{}", *ends))))
        self._closing = {
            quote: re.compile((r"\\.|" if escapes else "") + re.escape(quote), re.DOTALL) for quote in quotes
        }
        self._depth = 0
        self._inside = 0
        """How far an open string was searched for its end, from its beginning."""
        self.at = 0
        """How far was read, from the value's beginning."""

    def end(self, text: str, start: int, *, final: bool = False) -> int:
        """Where the value ends that begins at `start`; -1 when that is still to come. `final`: nothing more comes."""
        while True:
            found = self._outside.search(text, start + self.at)
            if found is None:
                self.at = self._settled(text, start) - start
                return -1
            sign = found.group()
            if sign in self._closing and self._escapes and not self._begins_string(text, start, found.start()):
                self.at = found.end() - start
                continue
            if sign in self._closing:
                place = self._string_end(text, found, final)
                if place < 0:
                    self.at = found.start() - start
                    return -1
                self.at = place - start
                continue
            if self._depth == 0 and sign in self._ends:
                self.at = found.start() - start
                return found.start()
            self._depth += 1 if sign in "([{" else -1 if sign in ")]}" else 0
            self.at = found.end() - start

    @staticmethod
    def _begins_string(text: str, start: int, place: int) -> bool:
        """Can a string begin at `place`? Not behind a word, unless the word is its prefix."""
        before = place - 1
        if before > start and text[before] in _PREFIXES:
            before -= 1
        while before >= start and text[before].isspace():
            before -= 1
        return before < start or not (text[before].isalnum() or text[before] == "_")

    def _settled(self, text: str, start: int) -> int:
        """Before a quote that may have begun."""
        for place in range(max(start + self.at, len(text) - len(self._quotes[0]) + 1), len(text)):
            if any(quote.startswith(text[place:]) for quote in self._quotes):
                return place
        return len(text)

    def _string_end(self, text: str, opened: re.Match[str], final: bool) -> int:
        """Behind the string that begins there; -1 when its end is still to come."""
        quote = opened.group()
        rest = text[opened.start() :]
        longer = [other for other in self._quotes if len(other) > len(quote) and other.startswith(quote)]
        if not final and any(len(rest) < len(other) and other.startswith(rest) for other in longer):
            return -1
        start = opened.start()
        place = max(opened.end(), start + self._inside)
        while (found := self._closing[quote].search(text, place)) is not None:
            place = found.end()
            if found.group() == quote:
                self._inside = 0
                return place
        # A backslash or half a closing quote may stand at the end.
        self._inside = max(place, len(text) - max(1, len(quote) - 1)) - start
        return -1
