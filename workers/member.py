"""One worker's standing: what probes said of it, and the cool-downs that its failures brought. Pure: time is given.

Probes decide whether it is up. Requests decide, on top of that, whether it rests for a while:

    broken     its connection broke                       5 s, or until a probe is answered
    busy       it refused work as overloaded (429, 503)   0.5 s, doubling to 10 s; a success ends it
    suspect    three failures in a row, of any kind       5 s, doubling to 60 s; a success ends it, a probe does not

A suspect is still taken when nobody better is left, so one request that makes engines fail cannot empty the pool.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from protocols.errors import Blame, CannotConnect, Disconnected, WorkerBusy, WorkerFailure
from protocols.worker import Role, Worker
from routers.base import Candidate, Status
from routers.load import Load

BROKEN_S = 5.0
BUSY_S, MOST_BUSY_S, MOST_RETRY_AFTER_S = 0.5, 10.0, 30.0
SUSPECT_S, MOST_SUSPECT_S, SUSPECT_AFTER = 5.0, 60.0, 3

_PRECEDENCE = (Status.COOLING, Status.BUSY, Status.SUSPECT)


@dataclass(frozen=True, slots=True)
class CoolDown:
    """`until` in the clock's seconds; `seconds` its whole length."""

    until: float
    seconds: float
    reason: str


class Member:
    """A worker, its model, its load and its standing.

    `incarnation` counts the processes seen behind its URL, `failures` the calls that ever failed there.
    """

    __slots__ = (
        "_busy_times",
        "_cool",
        "_in_a_row",
        "_suspect_times",
        "_up",
        "failures",
        "incarnation",
        "load",
        "model",
        "reason",
        "worker",
    )

    def __init__(self, worker: Worker, model: str, load: Load) -> None:
        self.worker = worker
        self.model = model
        self.load = load
        self.reason = "not yet probed"
        self.incarnation = 1
        self.failures = 0
        self._up: Status = Status.JOINING
        self._cool: dict[Status, CoolDown] = {}
        self._in_a_row = self._busy_times = self._suspect_times = 0

    # ---- what it is now

    def status(self, now: float) -> Status:
        """Also drops the cool-downs that are over."""
        for status in [status for status, cool in self._cool.items() if cool.until <= now]:
            del self._cool[status]
        if self._up is not Status.READY:
            return self._up
        return next((status for status in _PRECEDENCE if status in self._cool), Status.READY)

    def candidate(self, now: float, *, alone: bool) -> Candidate:
        status = self.status(now)
        cool = self._cool.get(status)
        pair_key = self.worker.pair_key()
        return Candidate(self.worker, self.load, status, alone, pair_key, cool.seconds if cool else None)

    def why(self, now: float) -> str:
        """Why it is not ready; empty when it is."""
        status = self.status(now)
        if status is Status.READY:
            return ""
        cool = self._cool.get(status)
        return cool.reason if cool else self.reason

    def lapse(self) -> float:
        """When the next cool-down ends, in the clock's seconds."""
        return min((cool.until for cool in self._cool.values()), default=math.inf)

    @property
    def untroubled(self) -> bool:
        """There is nothing that a success could end."""
        return not (self._in_a_row or self._busy_times or self._suspect_times)

    # ---- what probes say

    def answered(self) -> bool:
        """A probe was answered well. True when that changed anything."""
        changed = self._up is not Status.READY or Status.COOLING in self._cool
        self._up = Status.READY
        self._cool.pop(Status.COOLING, None)
        return changed

    def lost(self, status: Status, reason: str) -> bool:
        """A probe found it JOINING or DOWN. True when its status changed."""
        changed = self._up is not status
        self._up, self.reason = status, reason
        return changed

    def restarted(self) -> None:
        """Another process is behind the URL: what was held against the last one is void."""
        self.incarnation += 1
        self._cool.clear()
        self._in_a_row = self._busy_times = self._suspect_times = 0

    # ---- what requests say

    def cool(self, status: Status, seconds: float, reason: str, now: float) -> None:
        """A cool-down of this kind; a longer one that runs already stays."""
        running = self._cool.get(status)
        if running is None or running.until < now + seconds:
            self._cool[status] = CoolDown(now + seconds, seconds, reason)

    def succeeded(self) -> bool:
        """True when that ended a cool-down."""
        self._in_a_row = self._busy_times = self._suspect_times = 0
        busy, suspect = self._cool.pop(Status.BUSY, None), self._cool.pop(Status.SUSPECT, None)
        return busy is not None or suspect is not None

    def failed(self, error: WorkerFailure, now: float) -> bool:
        """True when the worker had better be probed at once. What is not the worker's fault changes nothing."""
        self.status(now)
        self.failures += 1
        if isinstance(error, WorkerBusy):
            self._refused(error, now)
            return False
        if error.blame is not Blame.WORKER:
            return False
        self._in_a_row += 1
        if self._in_a_row >= SUSPECT_AFTER and Status.SUSPECT not in self._cool:
            seconds = min(SUSPECT_S * 2**self._suspect_times, MOST_SUSPECT_S)
            self._suspect_times += 1
            self.cool(Status.SUSPECT, seconds, f"{self._in_a_row} failures in a row, last: {error.message}", now)
        if isinstance(error, (CannotConnect, Disconnected)):
            self.cool(Status.COOLING, BROKEN_S, error.message, now)
        return True

    def _refused(self, error: WorkerBusy, now: float) -> None:
        """Refusals of requests that were on their way together count as one."""
        if Status.BUSY in self._cool:
            return
        seconds = min(BUSY_S * 2**self._busy_times, MOST_BUSY_S)
        self._busy_times += 1
        if error.retry_after is not None:
            seconds = max(seconds, min(error.retry_after, MOST_RETRY_AFTER_S))
        self.cool(Status.BUSY, seconds, error.message, now)


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker as /health, the metrics and the dashboard show it. Loads in requests of this gateway."""

    worker: Worker
    model: str
    status: Status
    reason: str
    prefill: int
    decode: int
    incarnation: int
    failures: int

    @property
    def role(self) -> Role:
        return self.worker.role
