"""One request on its way through a simulated worker: its exchange, its jobs, and the fault it may meet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from simulator.faults import Fault
from simulator.http import Exchange
from simulator.jobs import Job, Output, Spec
from simulator.model import EngineModel

if TYPE_CHECKING:
    from simulator.worker import SimulatedWorker

GARBAGE = b"\x00\xff\x15\x03\x01 this is not the protocol you are looking for\r\n\x00"


_SPOKEN = frozenset({"status", "error", "abort"})
"""Faults that the engine puts into words, in a reply of its own."""


class Answer(ABC):
    """A subclass is one engine's way to answer one request; it writes events as outputs come.

    The life of an answer ends once: by `settle` (all is said), by `abandon` (nobody listens, or the worker dies), or by
    a fault. Its jobs end with it, so nothing stays held.
    """

    def __init__(
        self, worker: SimulatedWorker, exchange: Exchange, *, leave_s: float = 0.0, fault: Fault | None = None
    ) -> None:
        self.worker = worker
        self.exchange = exchange
        self.jobs: dict[int, Job] = {}
        self.over = False
        self.fault = fault
        self._leave_s = leave_s
        self._sent_tokens = 0
        self._models: dict[int, EngineModel] = {}
        exchange.on_close = self._left
        worker.answers.add(self)

    # ---- jobs

    def submit(self, model: EngineModel, spec: Spec, place: int) -> Job:
        """Gives the engine this answer's sequence number `place`."""

        def sink(job: Job, output: Output) -> None:
            if not self.over:
                self.on_output(place, job, output)

        job = model.submit(spec, sink)
        self.jobs[place] = job
        self._models[place] = model
        return job

    def stop_job(self, place: int) -> None:
        """Ends one sequence early; the answer goes on."""
        if place in self.jobs and self._models[place].abort(self.jobs[place]):
            self.on_job_aborted(self.jobs[place])

    @abstractmethod
    def on_output(self, place: int, job: Job, output: Output) -> None:
        """The `place`th job brought something."""

    @abstractmethod
    def fail(self, status: int, message: str) -> None:
        """Ends the answer as the engine's own failure: a status while the head is not out, an error event after."""

    @abstractmethod
    def abort(self) -> None:
        """Ends the answer as the engine does when somebody asked it to abort the request."""

    def settle(self) -> None:
        """All is said: the reply was finished."""
        self._end()

    def abandon(self) -> None:
        """Nobody listens any more: the jobs end and their blocks go."""
        self._end()

    def _end(self) -> None:
        if self.over:
            return
        self.over = True
        self.exchange.on_close = None
        self.exchange.on_drain = None
        for place, job in self.jobs.items():
            if self._models[place].abort(job):
                self.on_job_aborted(job)
        self.on_end()
        self.worker.answer_ended(self)

    def on_job_aborted(self, job: Job) -> None:
        """A job ended before its time (and what it had asked of a peer must be called off)."""
        return

    def on_end(self) -> None:
        """For what a subclass still has to give back."""
        return

    def _left(self) -> None:
        if self._leave_s:
            self.worker.later(self._leave_s, self.abandon)
        else:
            self.abandon()

    # ---- writing, with whatever fault is due

    def meets_fault(self, moment: str, due: bytes = b"") -> bool:
        """Commits the answer's fault if this is its moment. True: the answer is over, write nothing more.

        `due` is what would be written now.
        """
        fault = self.fault
        if fault is None or fault.moment != moment or (moment == "token" and self._sent_tokens < fault.tokens):
            return False
        self.fault = None
        return self._commit(fault, due)

    def write(self, data: bytes, tokens: int = 0) -> bool:
        """Writes one piece of the body that brings `tokens` new ids. False: a fault came instead, or nobody reads."""
        if self.over or (self.fault is not None and self.meets_fault("token", data)):
            return False
        self._sent_tokens += tokens
        self.exchange.write(data)
        return True

    def reply(self, status: int, value: Any) -> None:
        """A whole reply, with whatever fault is due in it, and the end of the answer."""
        body = orjson.dumps(value)
        fault, self.fault = self.fault, None
        if fault is None or (fault.kind == "slow" and self._commit(fault, body)):
            fault = None
        if fault is None:
            if not self.over:
                self._end()
                self.exchange.reply(status, body, headers=self.reply_headers())
        elif fault.kind in _SPOKEN:
            self._commit(fault, body)
        else:
            self.exchange.start(status, "application/json", len(body), self.reply_headers())
            if fault.kind != "truncate":
                self.exchange.write(body[: len(body) // 2])
            self._commit(fault, body)

    def reply_headers(self) -> Mapping[str, str]:
        """What the engine adds to every reply."""
        return {}

    def _commit(self, fault: Fault, due: bytes) -> bool:
        """True: the answer is over."""
        exchange = self.exchange
        if fault.kind == "slow":
            exchange.hold(fault.value)
            return False
        if fault.kind == "status":
            self.fail(int(fault.value), "a fault was asked for")
        elif fault.kind == "error":
            self.fail(500, "a fault was asked for")
        elif fault.kind == "abort":
            self.abort()
        elif fault.kind == "die":
            self.worker.die()
        else:
            self._end()
            self._break(fault, due)
        return True

    def _break(self, fault: Fault, due: bytes) -> None:
        exchange = self.exchange
        if fault.kind == "silence":
            return
        if fault.kind == "reset":
            exchange.reset()
            return
        if fault.kind == "garbage":
            exchange.raw(GARBAGE)
        elif fault.kind == "truncate":
            exchange.truncated(due)
        exchange.close()
