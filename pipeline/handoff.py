"""A prefill leg and a decode leg of one attempt, and who releases what prefill pinned.

The rules are those of docs/disaggregation.md, "hard rules". A pair never restores anything: it knows how far it got
(`prefill` sent, reply begun, hand-off in hand, decode sent, decode taken, first token) and so what is still to be done
when its client leaves or its decode fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engines.base import Release
from pipeline.context import RequestContext
from pipeline.reading import Reading
from pipeline.service import Sink
from protocols.errors import Enough, GatewayError, IncompleteReply
from protocols.outputs import LLMEngineOutput
from protocols.preprocessed import PrefillResult, PreprocessedRequest, RequestPhase
from protocols.worker import Leg

if TYPE_CHECKING:
    from pipeline.dispatch import Lease, WorkerRouter

log = logging.getLogger(__name__)


def _drop(outputs: Sequence[LLMEngineOutput]) -> None:
    """Takes outputs that nobody wants any more."""


class Gate:
    """A sink that can be shut: after `shut` nothing passes, whatever still arrives below."""

    __slots__ = ("_sink",)

    def __init__(self, sink: Sink[LLMEngineOutput]) -> None:
        self._sink: Sink[LLMEngineOutput] = sink

    def __call__(self, outputs: Sequence[LLMEngineOutput]) -> None:
        self._sink(outputs)

    def shut(self) -> None:
        self._sink = _drop


class SequentialPair:
    """Prefill first, then decode with what prefill gave (vLLM, TensorRT-LLM, native).

    Owns both leases from its making; `close` or the task made by `let_go` releases them.
    """

    __slots__ = (
        "_decode_failed",
        "_gate",
        "_router",
        "context",
        "decode",
        "decode_lease",
        "handoff",
        "outputs",
        "prefill",
        "request",
    )

    def __init__(
        self,
        router: WorkerRouter,
        prefill_lease: Lease,
        decode_lease: Lease,
        request: PreprocessedRequest,
        context: RequestContext,
        sink: Sink[LLMEngineOutput],
    ) -> None:
        self._router = router
        self._gate = Gate(sink)
        self._decode_failed = False
        self.request = request
        self.context = context
        self.outputs: list[LLMEngineOutput] = []
        self.prefill = router.reading(
            prefill_lease, replace(request, phase=RequestPhase.PREFILL), context, self.outputs.extend
        )
        self.decode_lease: Lease | None = decode_lease
        self.decode: Reading[LLMEngineOutput] | None = None
        self.handoff: PrefillResult | None = None

    # ---- the two legs

    async def run_prefill(self) -> LLMEngineOutput | PrefillResult | None:
        """Reads prefill's reply to its end. What it gives, as `EngineAdapter.handoff` says."""
        await self.prefill.open()
        await self.prefill.wait()
        return self.take_handoff()

    def take_handoff(self) -> LLMEngineOutput | PrefillResult | None:
        lease = self.prefill.lease
        if not self.outputs:
            raise self._router.record(IncompleteReply("prefill returned no output"), lease, self.context)
        try:
            given = lease.adapter.handoff(self.outputs)
        except GatewayError as error:
            raise self._router.record(error, lease, self.context) from error.__cause__
        self._router.succeeded(lease)
        if isinstance(given, PrefillResult):
            self.handoff = given
        return given

    def too_old(self) -> bool:
        """Hard rule 8: the hand-off's parameters may no longer stand for the prompt's KV."""
        lease_s, began_at = self.prefill.lease.adapter.lease_s, self.prefill.began_at
        if lease_s is None or began_at is None:
            return False
        margin = min(self._router.deadlines.lease_margin_s, lease_s / 2)
        return self._router.clock() - began_at > lease_s - margin

    async def run_decode(self) -> None:
        """Decodes with the hand-off in hand (or without, when nothing was pinned)."""
        assert self.decode_lease is not None
        self._decode_failed = False
        self.decode = self._router.reading(self.decode_lease, self.decode_request(), self.context, self._gate)
        try:
            await self.decode.open()
            await self.decode.wait()
        except GatewayError:
            self._decode_failed = True
            raise
        self._router.succeeded(self.decode_lease)

    def decode_request(self) -> PreprocessedRequest:
        return replace(
            self.request,
            prefill_result=self.handoff,
            staged_kv_cleanup=self.handoff is not None,
            phase=RequestPhase.DECODE,
        )

    def next_decode(self, lease: Lease) -> None:
        """The reserved decode worker is gone or refused before taking the request: same hand-off, another worker."""
        if self.decode is not None:
            self.decode.close()
            self.decode = None
        if self.decode_lease is not None:
            self.decode_lease.release()
        self.decode_lease = lease

    # ---- the end

    def may_be_pinned(self) -> bool:
        """Prefill may hold blocks that only a decode worker's read, or its lease's end, frees."""
        if self.prefill.began_at is None or (self.prefill.lease.adapter.release_at is Release.NONE):
            return False
        if not self.prefill.ended:
            return True
        return self.handoff is not None and not self._released()

    def _released(self) -> bool:
        """Decode got as far as its engine needs to free prefill's blocks."""
        decode = self.decode
        if decode is None:
            return False
        first = self._decode_failed or self.prefill.lease.adapter.release_at is Release.FIRST_TOKEN
        return decode.outputs_seen if first else decode.taken

    def let_go(self) -> None:
        """The client has left, or the attempt failed: detach, and see to the release. Synchronous."""
        self._gate.shut()
        if self.may_be_pinned():
            self.context.background.spawn(self._release(), "release-kv")
        else:
            self.close()

    def close(self) -> None:
        """Ends both legs and frees both leases, in this step."""
        self._gate.shut()
        self.prefill.close()
        self.prefill.lease.release()
        if self.decode is not None:
            self.decode.close()
        if self.decode_lease is not None:
            self.decode_lease.release()
            self.decode_lease = None

    async def _release(self) -> None:
        """Hard rule 3: reads prefill's reply to its end and lets a decode worker fetch, and so free, the pinned KV."""
        try:
            if not self.prefill.ended:
                await self.prefill.wait()
                self.take_handoff()
            if self.handoff is not None and not self.too_old():
                await self._fetch()
        except GatewayError as error:
            log.info("request %s: pinned KV is left to its lease: %s", self.context.request_id, error)
        finally:
            self.close()

    async def _fetch(self) -> None:
        decode = self.decode
        if decode is None or self._decode_failed or not decode.sent:
            context = self.context.released()
            self.next_decode(self._decode_lease_for_release(context))
            assert self.decode_lease is not None
            decode = self.decode = self._router.reading(self.decode_lease, self.decode_request(), context, _drop)
            await decode.open()
        else:
            decode.leave_flow()
        self._stop_when_fetched(decode)
        try:
            await decode.wait()
        except Enough as enough:
            if enough.owner is not self:
                raise

    def _decode_lease_for_release(self, context: RequestContext) -> Lease:
        """The lease in hand if its worker has not failed, else one on another worker that can pair."""
        lease = self.decode_lease
        if lease is not None and not self._decode_failed:
            self.decode_lease = None
            return lease
        if lease is not None:
            context.migration.record_failure(lease.worker.id, None)
        keys = frozenset({self.prefill.lease.worker.pair_key()})
        return self._router.reserve(self.request, Leg.DECODE, context, pair_keys=keys)

    def _stop_when_fetched(self, decode: Reading[LLMEngineOutput]) -> None:
        if self.prefill.lease.adapter.release_at is Release.HEADERS:
            decode.sink_to(_drop)
            decode.stop_at_head(self)
        else:
            decode.sink_to(self._enough)

    def _enough(self, outputs: Sequence[LLMEngineOutput]) -> None:
        raise Enough(self)


class ConcurrentPair:
    """Both legs at once, tied by a bootstrap that was drawn before either was sent (SGLang).

    A prefill failure interrupts decode at once; a decode success waits for prefill's end (hard rules 1 and 2).
    """

    __slots__ = (
        "_gate",
        "_held",
        "_prefill_error",
        "_router",
        "_wants_prompt_logprobs",
        "context",
        "decode",
        "outputs",
        "prefill",
    )

    def __init__(
        self,
        router: WorkerRouter,
        prefill_lease: Lease,
        decode_lease: Lease,
        request: PreprocessedRequest,
        context: RequestContext,
        sink: Sink[LLMEngineOutput],
    ) -> None:
        self._router = router
        self._gate = Gate(sink)
        self._held: list[LLMEngineOutput] | None = None
        self._prefill_error: GatewayError | None = None
        self.context = context
        self.outputs: list[LLMEngineOutput] = []
        decode_sink: Sink[LLMEngineOutput] = self._gate
        if request.output_options.prompt_logprobs is not None:
            self._held, decode_sink = [], self._hold
        self.prefill = router.reading(
            prefill_lease, replace(request, phase=RequestPhase.PREFILL), context, self.outputs.extend
        )
        self.decode = router.reading(decode_lease, replace(request, phase=RequestPhase.DECODE), context, decode_sink)

    async def run(self, tail_s: float) -> bool:
        """Runs both legs. False when prefill was still running `tail_s` seconds after the answer was complete."""
        await self.prefill.open()
        watch = asyncio.create_task(self._read_prefill())
        try:
            await self.decode.open()
            if self._prefill_error is not None:
                raise self._prefill_error
            enough = await self._read_decode()
            in_time = await self._prefill_ended(watch, tail_s)
        finally:
            watch.cancel()
        if enough is not None:
            raise enough
        return in_time

    async def _read_decode(self) -> Enough | None:
        """Decode's reply to its end; an `Enough` that passes is a success as well, and is handed back."""
        try:
            await self.decode.wait()
        except Enough as enough:
            return enough
        self._router.succeeded(self.decode.lease)
        return None

    async def _prefill_ended(self, watch: asyncio.Task[None], tail_s: float) -> bool:
        done, _ = await asyncio.wait([watch], timeout=tail_s)
        if self._prefill_error is not None:
            raise self._prefill_error
        return bool(done)

    async def _read_prefill(self) -> None:
        """Reads prefill's reply; its failure becomes decode's, its prompt logprobs go in front of decode's outputs."""
        lease = self.prefill.lease
        try:
            await self.prefill.wait()
            if not self.outputs:
                raise self._router.record(IncompleteReply("prefill returned no output"), lease, self.context)
            lease.adapter.handoff(self.outputs)
        except GatewayError as error:
            self._prefill_error = self._router.record(error, lease, self.context)
            self.decode.fail(self._prefill_error)
            return
        self._router.succeeded(lease)
        self.context.tracker.record_prefill_complete()
        self._let_held_pass()

    def _hold(self, outputs: Sequence[LLMEngineOutput]) -> None:
        if self._held is None:
            self._gate(outputs)
        else:
            self._held += outputs

    def _let_held_pass(self) -> None:
        """Hard rule 10: decode's outputs waited for the prompt's logprobs, which only prefill computes."""
        held, self._held = self._held, None
        if held is None:
            return
        data = next((output.engine_data for output in self.outputs if output.engine_data), None)
        if not held:
            held = [LLMEngineOutput()]
        held[0].engine_data = data
        try:
            self._gate(held)
        except Enough as enough:
            self.decode.fail(enough)

    def close(self) -> None:
        """Ends both legs and frees both leases, in this step."""
        self._gate.shut()
        for reading in (self.prefill, self.decode):
            reading.close()
            reading.lease.release()

    def let_go(self) -> None:
        """Closes both calls; whoever did not end by itself is told to abort, by a task of the application."""
        unfinished = [reading for reading in (self.prefill, self.decode) if reading.sent and not reading.ended_well]
        self.close()
        if unfinished:
            self.context.background.spawn(self._abort(unfinished), "abort-pair")

    async def _abort(self, readings: Sequence[Reading[LLMEngineOutput]]) -> None:
        for reading in readings:
            for call in reading.lease.adapter.abort_calls(reading.lease.ids):
                try:
                    await self._router.post(reading.lease.worker, call)
                except GatewayError as error:
                    log.info("request %s: abort was not delivered: %s", self.context.request_id, error)
