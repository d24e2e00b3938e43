"""Ids to text as an engine's front end does it: whole characters only, stop strings held back or not."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from simulator.vocabulary import Codec, Vocabulary

_BROKEN = "\ufffd"
_PROMPT_TAIL = 6
"""Prompt ids that are decoded along, so that the first word keeps its leading space."""


class Hold(enum.Enum):
    """What an engine keeps back when there are stop strings.

    LENGTH: always as many characters as a stop string could still need (vLLM). PREFIX: only what may be the beginning
    of one (SGLang). NOTHING: the beginning may have been shown when the rest comes (TensorRT-LLM).
    """

    LENGTH = "length"
    PREFIX = "prefix"
    NOTHING = "nothing"


class TextStream:
    """One answer's text, delta by delta.

    `stopped` is the stop string that was found; the text ends before it (`include_stop`: with it).
    """

    __slots__ = (
        "_codec",
        "_hold",
        "_ids",
        "_include",
        "_longest",
        "_read",
        "_skip",
        "_start",
        "_stops",
        "_tail",
        "held",
        "stopped",
    )

    def __init__(
        self,
        codec: Codec,
        vocabulary: Vocabulary,
        prompt: Sequence[int] = (),
        stops: Sequence[str] = (),
        *,
        skip_special: bool = True,
        include_stop: bool = False,
        hold: Hold = Hold.LENGTH,
    ) -> None:
        self._codec = codec
        self._skip = vocabulary.special if skip_special else frozenset()
        self._ids = [i for i in prompt[-_PROMPT_TAIL:] if i not in self._skip]
        self._start, self._read = 0, len(self._ids)
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in stops), default=1)
        self._include = include_stop
        self._hold = hold
        self._tail = ""
        self.held = ""
        """Text that is certain but not shown yet, because a stop string may begin in it."""
        self.stopped: str | None = None

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids make certain and that may be shown."""
        self._ids += [i for i in ids if i not in self._skip]
        return self._filter(self._decode(partial=False))

    def finish(self, *, partial: bool = True) -> str:
        """What was still held back. `partial`: half a character comes as U+FFFD; otherwise it is dropped (vLLM)."""
        text = self._filter(self._decode(partial=partial))
        if self.stopped is None:
            text, self.held = text + self.held, ""
        return text

    def _decode(self, partial: bool) -> str:
        if self._read == len(self._ids):
            return ""
        before = self._codec.decode(self._ids[self._start : self._read])
        whole = self._codec.decode(self._ids[self._start :])
        if len(whole) <= len(before) or (whole.endswith(_BROKEN) and not partial):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return whole[len(before) :]

    def _filter(self, delta: str) -> str:
        if not self._stops:
            return delta
        if self.stopped is not None:
            return ""
        shown = len(self._tail)
        text = self._tail + self.held + delta
        found = min(((at, stop) for stop in self._stops if (at := text.find(stop)) >= 0), default=None)
        if found is not None:
            at, self.stopped = found
            self.held = ""
            return text[shown : at + len(self.stopped) if self._include else max(at, shown)]
        cut = len(text) - self._kept(text)
        self.held = text[cut:]
        if self._hold is Hold.NOTHING:
            self._tail = text[max(len(text) - self._longest + 1, 0) :]
        return text[shown:cut]

    def _kept(self, text: str) -> int:
        """How many characters at the end stay back."""
        most = min(self._longest - 1, len(text))
        if self._hold is Hold.LENGTH:
            return most
        if self._hold is Hold.NOTHING:
            return 0
        return next(
            (size for size in range(most, 0, -1) if any(stop.startswith(text[-size:]) for stop in self._stops)), 0
        )
