"""Ends a text at a stop string, holding back no more than might still become one.

The answer ends at the first moment a stop string is complete in it, as if the text had come character by character:
the match that ends first wins, whatever the order of the list; of two that end together, the longer. (vLLM 0.32 decides
likewise, but for the last.) So the result does not depend on how the text was cut.
"""

from __future__ import annotations

from collections.abc import Sequence

_NOTHING: frozenset[str] = frozenset()


class StopFilter:
    """Fed with text, gives out what may be shown.

    `stops`: empty strings in it are ignored. `include`: a matched stop string stays in the text. `jailed`: text that
    an earlier filter withheld. After a match, feed it nothing more.
    """

    __slots__ = ("_include", "_longest", "_starts", "_stops", "jailed")

    def __init__(self, stops: Sequence[str], *, include: bool, jailed: str = "") -> None:
        self._stops = tuple(dict.fromkeys(filter(None, stops))) if stops else ()
        self._starts = frozenset(stop[0] for stop in self._stops) if stops else _NOTHING
        self._longest = max(map(len, self._stops), default=0) if stops else 0
        self._include = include
        self.jailed = jailed
        """The text withheld: a stop string may begin with it. What is complete in it already does not count."""

    def feed(self, text: str, *, armed: bool = True) -> tuple[str, str | None]:
        """What may be shown now, and the stop string that `text` made complete, or None.

        `armed=False` (min_tokens are not reached): a stop string complete within this text does not end the answer; one
        that only begins in it still may.
        """
        if not self.jailed and self._starts.isdisjoint(text):
            return text, None
        held, text = len(self.jailed), self.jailed + text
        self.jailed = ""
        if armed:
            match = self._first_match(text, held)
            if match is not None:
                start, end, stop = match
                return text[: end if self._include else start], stop
        cut = self._safe_length(text)
        self.jailed = text[cut:]
        return text[:cut], None

    def flush(self) -> str:
        """Gives out what was withheld: the text is over, and it was no stop string."""
        text, self.jailed = self.jailed, ""
        return text

    def _first_match(self, text: str, held: int) -> tuple[int, int, str] | None:
        """Start, end and string of the match that ends first; the first `held` characters were searched before."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop, max(0, held - len(stop) + 1))
            if start < 0:
                continue
            end = start + len(stop)
            if best is None or (end, start) < (best[1], best[0]):
                best = start, end, stop
        return best

    def _safe_length(self, text: str) -> int:
        """How much of `text` cannot be part of a stop string to come."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._starts:
                tail = text[start:]
                if any(len(tail) < len(stop) and stop.startswith(tail) for stop in self._stops):
                    return start
        return len(text)
