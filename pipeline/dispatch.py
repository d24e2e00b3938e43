"""Choosing a worker and sending to it: `WorkerRouter`, the service at the bottom of the chain.

Two public steps, `reserve` and `run`; as a service it does both in a row. Between the choice and the count there is no
`await`, so two requests cannot both see the same idle worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from engines.base import Call, EngineAdapter, Release
from pipeline.context import RequestContext, new_ids
from pipeline.deadlines import Deadlines
from pipeline.reading import Reading
from pipeline.service import Sink
from pipeline.talk import TokenTalk
from pipeline.ticker import Ticker
from protocols.errors import Blame, Enough, GatewayError, WorkerFailure, WorkerSilent
from protocols.outputs import LLMEngineOutput
from protocols.preprocessed import PreprocessedRequest
from protocols.worker import Leg, Worker
from routers.base import Candidate, Choice, Profile, Query, Usual, choose
from routers.load import Loads, Reservation
from workers.client import WorkerClient
from workers.registry import Registry

T = TypeVar("T")

log = logging.getLogger(__name__)


class WorkerObserver(Protocol):
    """Told of what a model's requests meet on their way to workers."""

    def chosen(self, leg: Leg, removed: Mapping[str, Sequence[int]], /) -> None:
        """A worker was chosen; `removed`: by filter, the workers it removed."""

    def refused(self, leg: Leg, error: GatewayError, /) -> None:
        """Nobody could be chosen."""

    def failed(self, worker: Worker, leg: Leg, error: GatewayError, /) -> None:
        """A call failed; told once."""


_NOBODY: Mapping[str, Sequence[int]] = {}


class Lease:
    """A chosen worker, counted as busy from this moment on. `release` is idempotent.

    `alone`: the worker serves the request without a peer, whatever its role.
    """

    __slots__ = ("_reservation", "adapter", "alone", "choice", "ids", "leg", "rank")

    def __init__(
        self, choice: Choice, adapter: EngineAdapter, leg: Leg, reservation: Reservation, *, alone: bool
    ) -> None:
        self.choice = choice
        self.adapter = adapter
        self.leg = leg
        self.alone = alone
        self.rank = choice.dp_rank
        self.ids = new_ids()
        self._reservation = reservation

    @property
    def worker(self) -> Worker:
        return self.adapter.worker

    @property
    def for_handoff(self) -> bool:
        """The call only prefills: what it brings is for a decode worker."""
        return self.leg is Leg.PREFILL and not self.alone

    def release(self) -> None:
        self._reservation.release()


class WorkerRouter:
    """One model's way to its workers."""

    def __init__(
        self,
        model: str,
        *,
        registry: Registry,
        client: WorkerClient,
        loads: Loads,
        profiles: Mapping[Leg, Profile],
        deadlines: Deadlines,
        ticker: Ticker,
        clock: Callable[[], float],
        observer: WorkerObserver,
    ) -> None:
        self.model = model
        self.registry = registry
        self.client = client
        self.deadlines = deadlines
        self.ticker = ticker
        self.clock = clock
        self._loads = loads
        self._profiles = profiles
        self._usual = {leg: Usual() for leg in profiles}
        self._observer = observer

    # ---- step one

    def reserve(
        self,
        request: PreprocessedRequest,
        leg: Leg,
        context: RequestContext,
        *,
        pair_keys: frozenset[tuple[object, ...]] | None = None,
        alone: bool = False,
    ) -> Lease:
        """Chooses a worker for a leg and counts it.

        Raises Unavailable; InvalidRequest for an impossible pin; UnsupportedParameter where only workers are left that
        cannot honour one.
        `pair_keys`: only workers that can pair with one of these. `alone`: only workers that may serve without a peer.
        """
        query = Query(
            leg=leg,
            hints=request.routing,
            excluded=context.migration.excluded_worker_ids(),
            pair_keys=pair_keys,
            alone=alone,
        )
        try:
            choice = self._choose(request, query)
        except GatewayError as error:
            self._observer.refused(leg, error)
            raise
        self._observer.chosen(leg, choice.casualties if choice.steps else _NOBODY)
        adapter = self.registry.adapter(choice.worker.id)
        context.choices.append((leg, choice))
        return Lease(choice, adapter, leg, self._loads.reserve(choice.worker.id, leg), alone=alone)

    def _choose(self, request: PreprocessedRequest, query: Query) -> Choice:
        """Only capable workers count. Nearly all requests suit all workers, so the chosen one is asked first."""
        profile, candidates = self._profiles[query.leg], self.registry.candidates(self.model, query.leg)
        try:
            choice = choose(profile, candidates, query, self._usual[query.leg])
        except GatewayError:
            incapable = self._incapable(request, candidates)
            if not incapable:
                raise
        else:
            if self.registry.adapter(choice.worker.id).unsupported(request) is None:
                return choice
            incapable = self._incapable(request, candidates)
        return choose(profile, candidates, replace(query, incapable=incapable))

    def unsupported(self, request: PreprocessedRequest) -> str | None:
        """A parameter of the request that none of the model's workers can honour; None where one honours them all."""
        candidates = [candidate for leg in Leg for candidate in self.registry.candidates(self.model, leg)]
        incapable = self._incapable(request, candidates)
        return next(iter(incapable.values()), None) if all(c.id in incapable for c in candidates) else None

    def _incapable(self, request: PreprocessedRequest, candidates: Sequence[Candidate]) -> dict[int, str]:
        """Who of them cannot honour which parameter."""
        found = ((c.id, self.registry.adapter(c.id).unsupported(request)) for c in candidates)
        return {worker_id: parameter for worker_id, parameter in found if parameter is not None}

    # ---- step two

    def reading(
        self, lease: Lease, request: PreprocessedRequest, context: RequestContext, sink: Sink[LLMEngineOutput]
    ) -> Reading[LLMEngineOutput]:
        """The call that `lease` stands for, not yet sent."""
        return Reading(self, lease, TokenTalk(request), context, sink)

    async def run(
        self, lease: Lease, request: PreprocessedRequest, context: RequestContext, sink: Sink[LLMEngineOutput]
    ) -> None:
        """Sends, reads to the end, releases."""
        await self.read(self.reading(lease, request, context, sink))

    async def read(self, reading: Reading[T]) -> None:
        """Sends a call, reads its reply to the end, releases its lease."""
        lease = reading.lease
        reading.context.tracker.record_worker(Leg.DECODE, lease.worker.id, lease.rank)
        try:
            await reading.open()
            await reading.wait()
        except Enough:
            self.succeeded(lease)
            raise
        finally:
            self.abandon(reading)
            lease.release()
        self.succeeded(lease)

    async def __call__(
        self, request: PreprocessedRequest, context: RequestContext, sink: Sink[LLMEngineOutput]
    ) -> None:
        await self.run(self.reserve(request, Leg.DECODE, context, alone=True), request, context, sink)

    def abandon(self, reading: Reading[Any]) -> None:
        """Ends a call in this step, whether it was answered or not.

        An engine that sees a closed connection only late is told by a call of its own, from a task of the application.
        """
        unfinished = reading.abandoned
        reading.close()
        if unfinished and reading.lease.adapter.release_at is Release.NONE:
            self.abort(reading)

    def abort(self, reading: Reading[Any]) -> None:
        """Has a worker end what it was asked, where its engine takes such a call. The connection stays."""
        lease, context = reading.lease, reading.context
        calls = lease.adapter.abort_calls(lease.ids)
        if calls:
            context.background.spawn(self._abort(lease.worker, calls, context.request_id), "abort")

    async def _abort(self, worker: Worker, calls: Sequence[Call], request_id: str) -> None:
        for call in calls:
            try:
                await self.post(worker, call)
            except GatewayError as error:
                log.info("request %s: abort was not delivered: %s", request_id, error)

    async def post(self, worker: Worker, call: Call) -> None:
        """Sends a control call and reads its reply, whatever it says. Raises WorkerFailure when it cannot be sent."""
        exchange = await self.client.send(worker.url, call, _Unread(), fresh=True)
        try:
            async with asyncio.timeout(self.deadlines.first_token_s):
                await exchange.wait()
        except TimeoutError as error:
            raise WorkerSilent("no reply to a control call", worker_id=worker.id) from error
        finally:
            exchange.close()

    # ---- what was learnt on the way

    def learn(self, lease: Lease, learnt: Worker) -> None:
        """The lease's worker turned out to be different from what we knew: it is spoken to accordingly from now on."""
        if self.registry.worker(learnt.id) == lease.worker:
            self.registry.replace(learnt)
            lease.adapter = self.registry.adapter(learnt.id)
        else:
            # It has left, or is another by now: this concerns the call alone.
            lease.adapter = type(lease.adapter)(learnt, self.model)

    def succeeded(self, lease: Lease) -> None:
        self.registry.observed_success(lease.worker.id)

    def record(self, error: GatewayError, lease: Lease, context: RequestContext) -> GatewayError:
        """Books a failure on the worker to blame, for this request and for all."""
        if not isinstance(error, WorkerFailure) or error.worker_id is not None:
            return error
        error.worker_id = lease.worker.id
        if context.outlives:
            # Whoever fetches for a request that is over may be asking a peer that is gone: no fault of its own.
            return error
        if lease.leg is Leg.PREFILL:
            error.in_prefill()
        if error.blame in (Blame.WORKER, Blame.PAIR):
            context.migration.record_failure(lease.worker.id, error)
        else:
            context.migration.record_error(error)
        self.registry.observed_failure(lease.worker.id, error)
        self._observer.failed(lease.worker, lease.leg, error)
        return error


class _Unread:
    """A reader that wants nothing of the reply."""

    def head(self, status: int) -> None:
        """Any status will do."""

    def data(self, data: bytes) -> None:
        """Dropped."""
