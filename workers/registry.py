"""Which workers there are, how each stands, and whether a model can be served.

The one place where discovery, probes and requests meet: discovery adds and removes workers, the health monitor says
what its probes found, the pipeline says how requests fared. A request gets tuples that were made at the last change,
and copies nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from engines.base import EngineAdapter
from protocols.errors import WorkerFailure
from protocols.worker import Leg, Role, Worker, WorkerTraits
from routers.base import Candidate, Status
from routers.load import Loads
from workers.member import Member, WorkerState
from workers.pool import PairKeys, Pool, Servability

AdapterFor = Callable[[Worker, str], EngineAdapter]


class Listener(Protocol):
    """Told, synchronously, of what happens to workers."""

    def added(self, worker: Worker, /) -> None: ...

    def removed(self, worker: Worker, /) -> None: ...

    def doubted(self, worker: Worker, /) -> None:
        """A request failed there: it had better be probed at once."""


class Registry:
    """All workers of all models, by worker id. `adapter_for(worker, model)` makes the adapter of a worker's engine.

    Methods that take a `worker_id` do nothing for a worker that is no longer there, unless they say otherwise: what a
    request or a probe learns may come after the worker has left.
    """

    def __init__(self, adapter_for: AdapterFor, loads: Loads, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._adapter_for = adapter_for
        self._loads = loads
        self._clock = clock
        self._pools: dict[str, Pool] = {}
        self._members: dict[int, Member] = {}
        self._adapters: dict[int, EngineAdapter] = {}
        self._listeners: list[Listener] = []
        self._waiters: set[asyncio.Future[None]] = set()
        self._lapse = math.inf

    # ---- membership

    def declare(self, model: str, *, prefill_policy: str | None = None) -> None:
        """Makes a model known, with or without workers. `prefill_policy`: "local", "strict", None: its engine's own."""
        pool = self._pools.get(model) or self._pools.setdefault(model, Pool(self._may_serve_alone, self._policy_of))
        if prefill_policy is not None:
            pool.prefill_policy = prefill_policy

    def add(self, model: str, worker: Worker) -> None:
        """A worker to be probed before it gets work. Raises ValueError when its id is taken."""
        if worker.id in self._members:
            taken = self._members[worker.id]
            raise ValueError(f"worker id {worker.id} of {worker.url} is taken by {taken.worker.url} ({taken.model})")
        self.declare(model)
        member = Member(worker, model, self._loads.of(worker.id))
        self._members[worker.id] = self._pools[model].members[worker.id] = member
        self._changed(member)
        for listener in self._listeners:
            listener.added(worker)

    def remove(self, worker_id: int) -> None:
        """The worker gets no more work; requests on it run on, and their counts go with them."""
        member = self._members.pop(worker_id, None)
        if member is None:
            return
        del self._pools[member.model].members[worker_id]
        self._adapters.pop(worker_id, None)
        self._loads.forget(worker_id)
        self._changed(member)
        for listener in self._listeners:
            listener.removed(member.worker)

    def replace(self, worker: Worker) -> None:
        """The worker of that id as we know it now (a refused call taught us something). Its standing stays."""
        member = self._members.get(worker.id)
        if member is None or member.worker == worker:
            return
        member.worker = worker
        self._adapters.pop(worker.id, None)
        self._changed(member)

    def listen(self, listener: Listener) -> None:
        """From now on; workers already there are not told of."""
        self._listeners.append(listener)

    def models(self) -> tuple[str, ...]:
        return tuple(self._pools)

    def workers(self) -> tuple[Worker, ...]:
        return tuple(member.worker for member in self._members.values())

    def worker(self, worker_id: int) -> Worker | None:
        member = self._members.get(worker_id)
        return member.worker if member is not None else None

    def states(self) -> list[WorkerState]:
        """Every worker's standing now, for /health, metrics and the dashboard."""
        now = self._now()
        return [
            WorkerState(
                member.worker,
                member.model,
                member.status(now),
                member.why(now),
                member.load.prefill,
                member.load.decode,
                member.incarnation,
                member.failures,
            )
            for member in self._members.values()
        ]

    # ---- for a request

    def candidates(self, model: str, leg: Leg) -> tuple[Candidate, ...]:
        """Whom a leg of this model can be routed to, good standing or not; the router's filters see to that.

        Prefill workers for the prefill leg, decode and aggregated ones for the decode leg.
        """
        pool = self._pools.get(model)
        return pool.candidates(leg, self._now()) if pool is not None else ()

    def pair_keys(self, model: str, leg: Leg, *, excluded: frozenset[int] = frozenset()) -> PairKeys:
        """The pair keys that this leg's workers (not the excluded ones) offer its peers now."""
        pool = self._pools.get(model)
        return pool.pair_keys(leg, excluded, self._now()) if pool is not None else frozenset()

    def adapter(self, worker_id: int) -> EngineAdapter:
        """How to speak to the worker. Raises KeyError when there is none of that id."""
        adapter = self._adapters.get(worker_id)
        if adapter is None:
            member = self._members[worker_id]
            adapter = self._adapters[worker_id] = self._adapter_for(member.worker, member.model)
        return adapter

    def disaggregated(self, model: str) -> bool:
        """Has the model prefill or decode workers, up or not?"""
        pool = self._pools.get(model)
        return pool is not None and pool.disaggregated(self._now())

    def has_aggregated(self, model: str) -> bool:
        """Is an aggregated worker of the model up?"""
        pool = self._pools.get(model)
        return pool is not None and pool.has_aggregated(self._now())

    def context_length(self, model: str) -> int | None:
        """The most tokens per request that all of the model's workers hold, where they have told or are configured."""
        pool = self._pools.get(model)
        return pool.context_length(self._now()) if pool is not None else None

    def default_prefill_policy(self, model: str) -> str:
        """ "local" or "strict": what the engine of the model's decode workers would have."""
        pool = self._pools.get(model)
        return pool.engine_policy() if pool is not None else "strict"

    def incarnation(self, worker_id: int) -> int:
        """Counts the processes seen behind the worker's URL; 0 when there is no such worker.

        What a worker pinned, or what a peer knows of it, is void when this has changed.
        """
        member = self._members.get(worker_id)
        return member.incarnation if member is not None else 0

    # ---- how requests fared

    def observed_success(self, worker_id: int) -> None:
        """A reply was complete."""
        member = self._members.get(worker_id)
        if member is not None and not member.untroubled and member.succeeded():
            self._changed(member)

    def observed_failure(self, worker_id: int, error: WorkerFailure) -> None:
        """A call failed. Only what is the worker's own fault, or its overload, changes its standing."""
        member = self._members.get(worker_id)
        if member is None:
            return
        doubted = member.failed(error, self._clock())
        self._changed(member)
        if doubted:
            for listener in self._listeners:
                listener.doubted(member.worker)

    def cool(self, worker_id: int, seconds: float, reason: str) -> None:
        """No work for the worker for so long, or until a probe is answered."""
        member = self._members.get(worker_id)
        if member is not None:
            member.cool(Status.COOLING, seconds, reason, self._clock())
            self._changed(member)

    # ---- what probes found

    def identified(self, worker_id: int, traits: WorkerTraits, *, restarted: bool = False) -> None:
        """Takes what the worker told of itself.

        What probes cannot tell but calls have taught stays, unless the process is another one: told by `restarted`, or
        by a changed `incarnation` of the traits. Then whatever was held against it is dropped as well.
        """
        member = self._members.get(worker_id)
        if member is None:
            return
        known = member.worker.traits
        if restarted or (known.incarnation is not None and traits.incarnation not in (None, known.incarnation)):
            member.restarted()
            self._adapters.pop(worker_id, None)
            self._changed(member)
        else:
            traits = _merged(known, traits)
        self.replace(replace(member.worker, traits=traits))

    def answered(self, worker_id: int) -> None:
        """A health probe was answered well, by a worker that is identified: it is ready, and no longer cools down."""
        member = self._members.get(worker_id)
        if member is not None and member.answered():
            self._changed(member)

    def lost(self, worker_id: int, status: Status, reason: str) -> None:
        """Probes found the worker JOINING (not yet identified) or DOWN."""
        member = self._members.get(worker_id)
        if member is not None and member.lost(status, reason):
            self._changed(member)

    # ---- can a model be served?

    def servable(self, model: str) -> Servability:
        """The honest answer for /health and for the 503 of a model that is known but not ready."""
        pool = self._pools.get(model)
        return pool.servable(self._now()) if pool is not None else Servability(False, "no such model")

    async def wait_for(self, model: str, count: int, *, timeout_s: float | None) -> None:
        """Until so many of the model's workers, of any role, are up. 0 waits for nothing. Raises TimeoutError."""
        await self._wait(
            lambda: sum(role.up for role in self.servable(model).roles.values()) >= count,
            f"timed out waiting for {count} initial workers of {model}",
            timeout_s,
        )

    async def wait_until_servable(self, model: str, *, timeout_s: float | None) -> None:
        """Raises TimeoutError, saying what is still missing."""
        await self._wait(lambda: self.servable(model).ok, f"timed out waiting for {model} to be servable", timeout_s)

    async def _wait(self, met: Callable[[], bool], message: str, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not met():
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiters.add(waiter)
                    try:
                        await waiter
                    finally:
                        self._waiters.discard(waiter)
        except TimeoutError:
            raise TimeoutError(message) from None

    # ---- inside

    def _changed(self, member: Member) -> None:
        pool = self._pools[member.model]
        pool.changed()
        self._lapse = min(self._lapse, member.lapse())
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _now(self) -> float:
        """The time, after what has lapsed since the last look."""
        now = self._clock()
        if now >= self._lapse:
            for member in self._members.values():
                if member.lapse() <= now:
                    member.status(now)
                    self._pools[member.model].changed()
            self._lapse = min((member.lapse() for member in self._members.values()), default=math.inf)
        return now

    def _may_serve_alone(self, member: Member) -> bool:
        role = member.worker.role
        return role is Role.AGGREGATED or self.adapter(member.worker.id).plain(role)

    def _policy_of(self, member: Member) -> str:
        return self.adapter(member.worker.id).default_prefill_policy


def _merged(known: WorkerTraits, told: WorkerTraits) -> WorkerTraits:
    """`told`, with what it leaves open taken from `known`."""
    open_fields = [f.name for f in dataclasses.fields(told) if getattr(told, f.name) is None]
    return replace(told, **{name: getattr(known, name) for name in open_fields})
