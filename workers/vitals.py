"""What one worker's probes add up to, and when to probe next. Pure: findings in, verdicts out.

A refused connection or a bad status is the worker's own word and takes it out at once. Silence is not: a server deep in
a long prefill may miss a probe, so only the third miss in a row counts.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

from routers.base import Status

MISSES = 3
REIDENTIFY_EVERY = 12
"""Well-answered probes between two questions for identity, so that an unnoticed restart is found."""


class Sign(enum.Enum):
    """What a probe found."""

    WELL = "well"
    SILENT = "silent"
    UNWELL = "unwell"
    """It answered, but not that it is well."""
    REFUSED = "refused"
    """No connection: its process is gone or not there yet."""
    UNKNOWN = "unknown"
    """It has not told yet who it is."""


@dataclass(frozen=True, slots=True)
class Finding:
    sign: Sign
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often to probe, in seconds. `jitter` is the part by which each interval varies."""

    interval_s: float = 5.0
    first_retry_s: float = 0.5
    jitter: float = 0.2


@dataclass(frozen=True, slots=True)
class Verdict:
    """`status`: what the worker is now; None leaves it as it was. `next_s`: seconds until the next probe."""

    status: Status | None
    reason: str
    next_s: float


class Vitals:
    """One worker's history of findings.

    `known`: it has told who it is. `must_identify`: it is to be asked, again, before the next health probe. `gone`: the
    process that we knew refused a connection, so the one that answers next is taken for another.
    """

    __slots__ = ("_misses", "_retry_s", "_rhythm", "_rng", "_well", "gone", "known", "must_identify", "up")

    def __init__(self, rhythm: Rhythm, rng: random.Random) -> None:
        self._rhythm = rhythm
        self._rng = rng
        self.known = False
        self._misses = 0
        self._well = 0
        self._retry_s = rhythm.first_retry_s
        self.must_identify = True
        self.gone = False
        self.up = False

    def doubted(self) -> None:
        """A request failed there: it may be another process by now."""
        self.must_identify = True

    def identified(self) -> None:
        self.known = True
        self.must_identify = self.gone = False
        self._well = 0

    def take(self, finding: Finding, *, at_most_every_s: float | None = None) -> Verdict:
        """What the finding means. `at_most_every_s`: an answering worker is not to be probed more often than this."""
        least_s = at_most_every_s or 0.0
        if finding.sign is Sign.WELL:
            self._taken_well()
            return Verdict(Status.READY, "", max(self._jittered(self._rhythm.interval_s), least_s))
        if finding.sign is Sign.SILENT and self.up:
            self._misses += 1
            if self._misses < MISSES:
                return Verdict(None, finding.reason, max(self._jittered(self._rhythm.first_retry_s), least_s))
        self.up = False
        self.must_identify = True
        if finding.sign is Sign.REFUSED:
            self.gone = self.known
        status = Status.JOINING if finding.sign is Sign.UNKNOWN else Status.DOWN
        return Verdict(status, finding.reason, self._jittered(self._next_retry_s()))

    def _taken_well(self) -> None:
        self.up = True
        self._misses = 0
        self._retry_s = self._rhythm.first_retry_s
        self._well += 1
        if self._well >= REIDENTIFY_EVERY:
            self.must_identify = True

    def _next_retry_s(self) -> float:
        """Doubles from the first retry up to the interval."""
        retry_s = self._retry_s
        self._retry_s = min(retry_s * 2, self._rhythm.interval_s)
        return retry_s

    def _jittered(self, seconds: float) -> float:
        return seconds * (1.0 + self._rng.uniform(-self._rhythm.jitter, self._rhythm.jitter))
