"""Strings that mean something in a text, found whole however the text is cut."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise


class Marks:
    """A set of marks. None may begin another, so that a complete one is known as soon as it is complete."""

    __slots__ = ("_longest", "_pattern", "_starts", "strings")

    def __init__(self, strings: Iterable[str]) -> None:
        """Raises ValueError for an empty mark and for one that another begins with."""
        ordered = sorted(set(strings))
        if "" in ordered:
            raise ValueError("an empty mark")
        for mark, follower in pairwise(ordered):
            if follower.startswith(mark):
                raise ValueError(f"the mark {follower!r} begins with {mark!r}")
        self.strings = tuple(ordered)
        self._starts = frozenset(mark[0] for mark in ordered)
        self._longest = max(map(len, ordered), default=0)
        self._pattern = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")

    def absent(self, text: str) -> bool:
        """Can no mark begin in `text`? The one check that ordinary text costs."""
        return self._starts.isdisjoint(text)

    def find(self, text: str, start: int = 0) -> re.Match[str] | None:
        """The first mark at or after `start`."""
        return self._pattern.search(text, start)

    def at(self, text: str, start: int) -> re.Match[str] | None:
        """The mark that stands at `start`."""
        return self._pattern.match(text, start)

    def settled(self, text: str, start: int = 0) -> int:
        """Up to where `text`, which has no mark from `start` on, cannot be part of a mark to come."""
        for place in range(max(start, len(text) - self._longest + 1), len(text)):
            if text[place] in self._starts:
                tail = text[place:]
                if any(mark.startswith(tail) for mark in self.strings):
                    return place
        return len(text)
