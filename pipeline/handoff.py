"""A prefill leg and a decode leg in turn (vLLM, TensorRT-LLM, native).

The rules are those of docs/disaggregation.md, "hard rules". A pair never restores anything: it knows how far it got
(`prefill` sent, hand-off in hand, decode sent, decode taken, first token), and so whether something may be pinned when
it is over; freeing that is `KvRelease`'s.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engines.base import Release
from pipeline.context import RequestContext
from pipeline.prefill_leg import PrefillLeg
from pipeline.reading import Reading
from pipeline.release import KvRelease
from pipeline.service import Sink, drop
from protocols.errors import Enough, GatewayError
from protocols.outputs import LLMEngineOutput
from protocols.preprocessed import PrefillResult, PreprocessedRequest, RequestPhase
from protocols.worker import Worker

if TYPE_CHECKING:
    from pipeline.dispatch import Lease, WorkerRouter


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


class Gate:
    """A sink that can be shut: after `shut` nothing passes, whatever still arrives below."""

    __slots__ = ("_sink",)

    def __init__(self, sink: Sink[LLMEngineOutput]) -> None:
        self._sink: Sink[LLMEngineOutput] = sink

    def __call__(self, outputs: Sequence[LLMEngineOutput]) -> None:
        self._sink(outputs)

    def shut(self) -> None:
        self._sink = drop


class SequentialPair:
    """Prefill first, then decode with what prefill gave.

    Owns both leases from its making: `let_go` releases them, at once or by the task that it makes. `outcome` is None
    until it is known how the prompt was prefilled.
    """

    __slots__ = (
        "_failure",
        "_gate",
        "_router",
        "context",
        "decode",
        "decode_lease",
        "decode_worker",
        "handoff",
        "outcome",
        "prefill",
        "prefill_worker",
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
        self._failure: GatewayError | None = None
        self.request = request
        self.context = context
        self.prefill: PrefillLeg | None = PrefillLeg(router, prefill_lease, request, context)
        self.prefill_worker: Worker = prefill_lease.worker
        self.decode_lease = decode_lease
        self.decode_worker: Worker = decode_lease.worker
        self.decode: Reading[LLMEngineOutput] | None = None
        self.handoff: PrefillResult | None = None
        self.void = False
        """The hand-off's blocks were freed: no further decode call can use it."""
        self.outcome: PrefillOutcome | None = None

    # ---- the two legs

    async def run_prefill(self) -> LLMEngineOutput | PrefillResult | None:
        """Reads prefill's reply to its end. What it gives, as `EngineAdapter.handoff` says."""
        assert self.prefill is not None
        given = await self.prefill.run()
        self.handoff = self.prefill.handoff
        return given

    def stale(self) -> bool:
        """Hard rule 8: the hand-off's parameters may no longer stand for the prompt's KV, for they are too old or
        another process is behind prefill's URL by now.
        """
        return self.prefill is not None and (self.prefill.restarted or self.prefill.aged)

    def drop_handoff(self) -> None:
        """Decode is to prefill itself: what prefill pinned is freed meanwhile."""
        leg, self.prefill, self.handoff = self.prefill, None, None
        if leg is not None:
            self._release(KvRelease(self._router, leg, self.request, self.context))

    async def run_decode(self) -> None:
        """Decodes with the hand-off in hand (or without, when nothing was pinned)."""
        lease = self.decode_lease
        self._failure = None
        decode = self.decode = self._router.reading(lease, self._decode_request(), self.context, self._gate)
        try:
            await decode.open()
            await decode.wait()
        except Enough:
            self._router.succeeded(lease)
            raise
        except GatewayError as error:
            self._failure = None if decode.running else error
            freed = decode.refused and lease.adapter.refusal_frees(self.request, decode.refusal)
            self.void = freed and self.handoff is not None
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
        """The decode worker in hand is gone or refused before taking the request: same hand-off, another worker."""
        if self.decode is not None:
            self.decode.close()
            self.decode = None
        self.decode_lease.release()
        self.decode_lease, self.decode_worker, self._failure = lease, lease.worker, None

    # ---- the end

    def let_go(self) -> None:
        """The attempt is over, well or not, or its client has left: detaches, and sees to the release. Synchronous."""
        self._gate.shut()
        leg, self.prefill = self.prefill, None
        if leg is not None and leg.may_pin and not self.void and not self._freed(leg):
            lease, decode, failure = self.decode_lease, self.decode, self._failure
            self._release(
                KvRelease(self._router, leg, self.request, self.context, decode=decode, lease=lease, failure=failure)
            )
            return
        if leg is not None:
            leg.close()
        if self.decode is not None:
            self.decode.close()
        self.decode_lease.release()

    def _freed(self, leg: PrefillLeg) -> bool:
        """Decode got as far as its engine needs to free prefill's blocks."""
        decode = self.decode
        if decode is None:
            return False
        first = not decode.running or leg.lease.adapter.release_at is Release.FIRST_TOKEN
        return decode.outputs_seen if first else decode.taken

    def _release(self, release: KvRelease) -> None:
        self.context.background.spawn(release.run(), "release-kv")
