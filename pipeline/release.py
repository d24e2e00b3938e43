"""How KV that prefill pinned for nobody is freed, whatever became of its request (hard rule 3).

No engine has a call for it: a decode worker has to come for the blocks. So prefill's reply is read to its end, and a
decode call gets as far as the engine needs it, then it is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engines.base import Release
from pipeline.context import RequestContext
from pipeline.prefill_leg import PrefillLeg
from pipeline.reading import Reading
from pipeline.service import drop
from protocols.errors import (
    Blame,
    EngineAborted,
    EngineFailure,
    Enough,
    GatewayError,
    InvalidRequest,
    Overloaded,
    WorkerFailure,
    WorkerMisconfigured,
)
from protocols.options import OutputOptions, SamplingOptions, StopConditions
from protocols.outputs import LLMEngineOutput
from protocols.preprocessed import PreprocessedRequest, RequestPhase
from protocols.worker import Leg

if TYPE_CHECKING:
    from pipeline.dispatch import Lease, WorkerRouter

log = logging.getLogger(__name__)

PAUSES_S = (0.0, 0.25, 1.0, 4.0)
"""Before each round in which the decode workers are asked."""


def fetching(request: PreprocessedRequest) -> PreprocessedRequest:
    """A decode request for the sake of its reading the KV: one token, and nothing that a worker may refuse.

    What names the blocks stays, the prompt, adapter, media and cache namespace: decode keeps what it read in its own
    prefix cache.
    """
    routing = request.routing
    return replace(
        request,
        stop_conditions=StopConditions(max_tokens=1),
        sampling_options=SamplingOptions(),
        output_options=OutputOptions(),
        extra_args=None,
        require_reasoning=False,
        routing=None if routing is None else replace(routing, dp_rank=None, priority=None),
    )


class KvRelease:
    """Takes over an attempt's prefill leg and what there is of its decode leg, with both leases.

    `decode` is the attempt's last decode call and `failure` how it failed; `lease` the decode worker in hand, called or
    not. Making it is synchronous and detaches both legs from their client; `run` is for a task of the application.
    """

    __slots__ = (
        "_context",
        "_decode",
        "_inherited",
        "_lease",
        "_leg",
        "_lost",
        "_overloaded",
        "_request",
        "_router",
        "_tried",
    )

    def __init__(
        self,
        router: WorkerRouter,
        leg: PrefillLeg,
        request: PreprocessedRequest,
        context: RequestContext,
        *,
        decode: Reading[LLMEngineOutput] | None = None,
        lease: Lease | None = None,
        failure: GatewayError | None = None,
    ) -> None:
        self._router = router
        self._leg = leg
        self._request = request
        self._context = context.released()
        # Workers that are not asked again at all, and these with those that had their turn in this round.
        self._lost = set(context.migration.excluded_worker_ids())
        self._tried = set(self._lost)
        self._overloaded = False
        self._inherited = self._decode = decode
        self._lease = lease
        self._take_over(leg.reading)
        if decode is not None:
            self._take_over_decode(decode, failure)

    def _take_over(self, reading: Reading[LLMEngineOutput]) -> None:
        if reading.settled:
            return
        if reading.running and reading.began_at is None:
            # It may end before it has computed anything; if it has, it answers all the same.
            self._router.abort(reading)
        reading.outlive()

    def _take_over_decode(self, decode: Reading[LLMEngineOutput], failure: GatewayError | None) -> None:
        if decode.running or (decode.sent and failure is None):
            self._lease = None
            decode.sink_to(drop)
            decode.outlive()
        elif failure is not None:
            self._lost.discard(decode.lease.worker.id)
            self._failed(decode, failure)
        else:
            # It was being dialled: nothing was sent.
            decode.close()
            self._decode = None

    async def run(self) -> None:
        leg = self._leg
        try:
            if not leg.reading.settled:
                await leg.result()
            if leg.handoff is not None and not await self._freed():
                self._left("no decode worker came for it")
        except EngineAborted:
            # It ended before it had anything to pin.
            pass
        except GatewayError as error:
            self._left(error.message)
        finally:
            leg.close()
            self._end_decode()

    def _left(self, why: str) -> None:
        log.info("request %s: pinned KV is left to its lease: %s", self._context.request_id, why)

    # ---- whom to ask

    async def _freed(self) -> bool:
        """Lets decode workers come for the blocks, one after another, until one has."""
        if self._decode is not None and await self._read_by(self._decode):
            return True
        for pause_s in PAUSES_S:
            if pause_s:
                await asyncio.sleep(pause_s)
            while (lease := self._next()) is not None:
                if await self._fetch(lease):
                    return True
            if not self._readable() or (self._tried == self._lost and not self._overloaded):
                break
            self._tried = set(self._lost)
        return False

    def _readable(self) -> bool:
        """Whether a call that comes now finds the blocks, or nothing; never another request's."""
        leg = self._leg
        return not leg.restarted and (leg.lease.adapter.late_reads_fail or not leg.aged)

    def _next(self) -> Lease | None:
        """The worker in hand, else one that can pair and has not had its turn."""
        if not self._readable():
            return None
        lease = self._lease
        if lease is not None:
            self._lease = None
            return lease
        context = self._context.released()
        for worker_id in self._tried:
            context.migration.record_failure(worker_id, None)
        keys = frozenset({self._leg.lease.worker.pair_key()})
        try:
            return self._router.reserve(fetching(self._request), Leg.DECODE, context, pair_keys=keys)
        except GatewayError as error:
            self._overloaded = isinstance(error, Overloaded)
            return None

    # ---- one decode call

    async def _fetch(self, lease: Lease) -> bool:
        request = replace(
            fetching(self._request),
            prefill_result=self._leg.handoff,
            staged_kv_cleanup=True,
            phase=RequestPhase.DECODE,
        )
        decode = self._decode = self._router.reading(lease, request, self._context, drop)
        try:
            await decode.open()
        except GatewayError as error:
            return self._failed(decode, error)
        return await self._read_by(decode)

    async def _read_by(self, decode: Reading[LLMEngineOutput]) -> bool:
        """Waits until a decode call has got as far as its engine needs to free the blocks. False: it failed before."""
        if self._leg.lease.adapter.release_at is Release.HEADERS:
            decode.stop_at_head(self)
        else:
            decode.sink_to(self._enough)
        try:
            await decode.wait()
        except Enough as enough:
            if enough.owner is not self:
                raise
        except GatewayError as error:
            return self._failed(decode, error)
        return True

    def _failed(self, decode: Reading[LLMEngineOutput], error: GatewayError) -> bool:
        """Notes whether the worker may be asked again. True where its refusal has freed the blocks."""
        if decode.refused and decode.lease.adapter.refusal_frees(self._request, decode.refusal):
            return True
        if decode is self._inherited and isinstance(error, InvalidRequest):
            # What it refused was the client's: it stays in hand for a call that asks for nothing.
            decode.close()
            self._decode, self._lease = None, decode.lease
            return False
        worker_id = decode.lease.worker.id
        self._tried.add(worker_id)
        asked_by_us = decode is not self._inherited
        if not _answers(error) or (asked_by_us and isinstance(error, WorkerFailure) and error.blame is Blame.PAIR):
            self._lost.add(worker_id)
        self._end_decode()
        return False

    def _enough(self, outputs: Sequence[LLMEngineOutput]) -> None:
        raise Enough(self)

    def _end_decode(self) -> None:
        """Closes the decode call and frees its lease, or the one in hand, in this step."""
        decode, self._decode = self._decode, None
        if decode is not None:
            decode.close()
            decode.lease.release()
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()


def _answers(error: GatewayError) -> bool:
    """Whether the worker that failed so is there, and may do better another time."""
    if isinstance(error, (EngineFailure, EngineAborted, WorkerMisconfigured)):
        return True
    return isinstance(error, WorkerFailure) and error.blame is Blame.NOBODY
