"""Ids to text as an engine's front end does it: whole characters only, stop strings held back."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.vocabulary import Codec, Vocabulary

_BROKEN = "\ufffd"
_PROMPT_TAIL = 6
"""Prompt ids that are decoded along, so that the first word keeps its leading space."""


class TextStream:
    """One answer's text, delta by delta.

    `stopped` is the stop string that was found; the text ends before it (`include_stop`: with it). Without `hold_back`
    the beginning of a stop string may have been shown already when its end comes (TensorRT-LLM).
    """

    __slots__ = (
        "_codec",
        "_held",
        "_hold",
        "_ids",
        "_include",
        "_read",
        "_skip",
        "_start",
        "_stops",
        "length",
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
        hold_back: bool = True,
    ) -> None:
        self._codec = codec
        self._skip = vocabulary.special if skip_special else frozenset()
        self._ids = [i for i in prompt[-_PROMPT_TAIL:] if i not in self._skip]
        self._start, self._read = 0, len(self._ids)
        self._stops = tuple(stops)
        self._include = include_stop
        self._hold = max((len(stop) for stop in stops), default=1) - 1 if hold_back else 0
        self._held = ""
        self.stopped: str | None = None
        self.length = 0
        """Characters shown so far."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids make certain."""
        self._ids += [i for i in ids if i not in self._skip]
        return self._filter(self._decode(final=False))

    def finish(self, *, partial: bool = True) -> str:
        """What was still held back. `partial`: half a character comes as U+FFFD; otherwise it is dropped (vLLM)."""
        text = self._filter(self._decode(final=partial))
        if self.stopped is None:
            text, self._held = text + self._held, ""
        self.length += len(text)
        return text

    def _decode(self, final: bool) -> str:
        if self._read == len(self._ids):
            return ""
        before = self._codec.decode(self._ids[self._start : self._read])
        whole = self._codec.decode(self._ids[self._start :])
        if len(whole) <= len(before) or (whole.endswith(_BROKEN) and not final):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return whole[len(before) :]

    def _filter(self, delta: str) -> str:
        if not self._stops:
            return delta
        if self.stopped is not None:
            return ""
        text = self._held + delta
        found = (
            min((at, stop) for stop in self._stops if (at := text.find(stop)) >= 0)
            if any(stop in text for stop in self._stops)
            else None
        )
        if found is not None:
            at, self.stopped = found
            self._held = ""
            return text[: at + len(self.stopped)] if self._include else text[:at]
        cut = max(len(text) - self._hold, 0)
        self._held = text[cut:]
        return text[:cut]
