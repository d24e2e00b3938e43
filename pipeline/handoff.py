"""A prefill leg and a decode leg in turn, and who releases what prefill pinned (vLLM, TensorRT-LLM, native).

The rules are those of docs/disaggregation.md, "hard rules". A pair never restores anything: it knows how far it got
(`prefill` sent, reply begun, hand-off in hand, decode sent, decode taken, first token) and so what is still to be done
when its client leaves or its decode fails.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engines.base import Release
from pipeline.context import RequestContext
from pipeline.reading import Reading
from pipeline.service import Sink
from protocols.errors import Enough, GatewayError, IncompleteReply, InvalidRequest
from protocols.outputs import LLMEngineOutput
from protocols.preprocessed import PrefillResult, PreprocessedRequest, RequestPhase
from protocols.worker import Leg, Worker

if TYPE_CHECKING:
    from pipeline.dispatch import Lease, WorkerRouter

log = logging.getLogger(__name__)


class PrefillOutcome(enum.Enum):
    """How a request of a disaggregated model was prefilled; counted once per attempt, when the attempt is over."""

    REMOTE = "remote"
    LOCAL = "local"
    """The decode worker prefilled itself: no prefill worker was left, or prefill pinned nothing."""
    BYPASSED = "bypassed"
    """One token was asked for: a prefill worker answered alone."""
    TERMINAL = "terminal"
    """Prefill was the answer."""
    FAILED = "failed"
    """The attempt failed, in whichever leg."""
    TAIL_CUT = "tail_cut"
    """The answer was complete, prefill still running after `prefill_tail_s`."""


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
    """Prefill first, then decode with what prefill gave.

    Owns both leases from its making: `let_go` releases them, at once or by the task that it makes. `outcome` is None
    until it is known how the prompt was prefilled.
    """

    __slots__ = (
        "_decode_failed",
        "_gate",
        "_incarnation",
        "_router",
        "context",
        "decode",
        "decode_lease",
        "decode_worker",
        "handoff",
        "outcome",
        "outputs",
        "prefill",
        "request",
        "void",
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
        self._incarnation = router.registry.incarnation(prefill_lease.worker.id)
        self.request = request
        self.context = context
        self.outputs: list[LLMEngineOutput] = []
        self.prefill = router.reading(prefill_lease, replace(request, phase=RequestPhase.PREFILL), context, self._take)
        self.decode_lease: Lease | None = decode_lease
        self.decode_worker: Worker = decode_lease.worker
        self.decode: Reading[LLMEngineOutput] | None = None
        self.handoff: PrefillResult | None = None
        self.void = False
        """No further decode call can use the hand-off, be it for the answer or to free the blocks."""
        self.outcome: PrefillOutcome | None = None

    @property
    def prefill_worker(self) -> Worker:
        return self.prefill.lease.worker

    # ---- the two legs

    async def run_prefill(self) -> LLMEngineOutput | PrefillResult | None:
        """Reads prefill's reply to its end. What it gives, as `EngineAdapter.handoff` says."""
        await self.prefill.open()
        await self.prefill.wait()
        return self._take_handoff()

    def _take(self, outputs: Sequence[LLMEngineOutput]) -> None:
        if not self.outputs:
            self.context.tracker.record_prefill_complete()
        self.outputs += outputs

    def _take_handoff(self) -> LLMEngineOutput | PrefillResult | None:
        lease, context = self.prefill.lease, self.prefill.context
        if not self.outputs:
            raise self._router.record(IncompleteReply("prefill returned no output"), lease, context)
        try:
            given = lease.adapter.handoff(self.outputs)
        except GatewayError as error:
            raise self._router.record(error, lease, context) from error.__cause__
        self._router.succeeded(lease)
        if isinstance(given, PrefillResult):
            self.handoff = given
        return given

    def stale(self) -> bool:
        """Hard rule 8: the hand-off's parameters may no longer stand for the prompt's KV, for they are too old or
        another process is behind prefill's URL by now.
        """
        incarnation = self._router.registry.incarnation(self.prefill_worker.id)
        if incarnation not in (0, self._incarnation):
            return True
        lease_s, began_at = self.prefill.lease.adapter.lease_s, self.prefill.began_at
        if lease_s is None or began_at is None:
            return False
        margin = min(self._router.deadlines.lease_margin_s, lease_s / 2)
        return self._router.clock() - began_at > lease_s - margin

    async def run_decode(self) -> None:
        """Decodes with the hand-off in hand (or without, when nothing was pinned)."""
        lease = self.decode_lease
        assert lease is not None
        self._decode_failed = False
        decode = self.decode = self._router.reading(lease, self._decode_request(), self.context, self._gate)
        try:
            await decode.open()
            await decode.wait()
        except Enough:
            self._router.succeeded(lease)
            raise
        except GatewayError as error:
            self._decode_failed = not decode.running
            freed = decode.refused and lease.adapter.refusal_frees(self.request)
            # What one worker refuses as the client's fault, no other takes.
            self.void = self.handoff is not None and (freed or isinstance(error, InvalidRequest))
            raise
        self._router.succeeded(lease)

    def _decode_request(self) -> PreprocessedRequest:
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
        self.decode_lease, self.decode_worker = lease, lease.worker

    # ---- the end

    def let_go(self) -> None:
        """The attempt is over, well or not, or its client has left: detaches, and sees to the release. Synchronous."""
        self._gate.shut()
        if self._may_be_pinned():
            self.prefill.outlive()
            self.context.background.spawn(self._release(), "release-kv")
        else:
            self._close()

    def _may_be_pinned(self) -> bool:
        """Prefill may hold blocks that only a decode worker's read, or its lease's end, frees."""
        prefill = self.prefill
        if prefill.began_at is None or prefill.refused or prefill.lease.adapter.release_at is Release.NONE:
            return False
        if not prefill.settled:
            return True
        return self.handoff is not None and not self.void and not self._freed()

    def _freed(self) -> bool:
        """Decode got as far as its engine needs to free prefill's blocks."""
        decode = self.decode
        if decode is None:
            return False
        first = self._decode_failed or self.prefill.lease.adapter.release_at is Release.FIRST_TOKEN
        return decode.outputs_seen if first else decode.taken

    def _close(self) -> None:
        """Ends both legs and frees both leases, in this step."""
        self.prefill.close()
        self.prefill.lease.release()
        if self.decode is not None:
            self.decode.close()
        if self.decode_lease is not None:
            self.decode_lease.release()
            self.decode_lease = None

    # ---- hard rule 3

    async def _release(self) -> None:
        """Reads prefill's reply to its end and lets a decode worker fetch, and so free, the pinned KV."""
        try:
            if not self.prefill.settled:
                await self.prefill.wait()
                self._take_handoff()
            if self.handoff is not None and not self.stale():
                await self._fetch()
        except GatewayError as error:
            log.info("request %s: pinned KV is left to its lease: %s", self.context.request_id, error)
        finally:
            self._close()

    async def _fetch(self) -> None:
        decode = self.decode
        if decode is not None and decode.running:
            decode.outlive()
        else:
            decode = await self._send_fetching()
        if self.prefill.lease.adapter.release_at is Release.HEADERS:
            decode.sink_to(_drop)
            decode.stop_at_head(self)
        else:
            decode.sink_to(self._enough)
        try:
            await decode.wait()
        except Enough as enough:
            if enough.owner is not self:
                raise

    async def _send_fetching(self) -> Reading[LLMEngineOutput]:
        """A decode call for the sake of its reading the KV: one token, and nothing that would keep its reply back."""
        context, request = self.context.released(), self._decode_request()
        one_token = replace(request.stop_conditions, max_tokens=1, min_tokens=None)
        plain = replace(request.output_options, prompt_logprobs=None)
        lease = self._lease_for_release(context)
        self.next_decode(lease)
        decode = self.decode = self._router.reading(
            lease, replace(request, stop_conditions=one_token, output_options=plain), context, _drop
        )
        await decode.open()
        return decode

    def _lease_for_release(self, context: RequestContext) -> Lease:
        """The lease in hand if its worker has not failed, else one on another worker that can pair."""
        lease = self.decode_lease
        if lease is not None and not self._decode_failed:
            self.decode_lease = None
            return lease
        if lease is not None:
            context.migration.record_failure(lease.worker.id, None)
        keys = frozenset({self.prefill_worker.pair_key()})
        return self._router.reserve(self.request, Leg.DECODE, context, pair_keys=keys)

    def _enough(self, outputs: Sequence[LLMEngineOutput]) -> None:
        raise Enough(self)
