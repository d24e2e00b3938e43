"""Disaggregation: whether a request is prefilled elsewhere, and how the two legs are run (the seeds' PrefillRouter)."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from pipeline.context import RequestContext
from pipeline.dispatch import Lease, WorkerRouter
from pipeline.handoff import ConcurrentPair, SequentialPair
from pipeline.service import Service, Sink
from protocols.errors import Blame, CannotConnect, EngineFailure, GatewayError, Unavailable, WorkerBusy, WorkerFailure
from protocols.outputs import CompletionUsage, LLMEngineOutput, PromptTokensDetails
from protocols.preprocessed import PreprocessedRequest, RoutingHints
from protocols.worker import Leg


class PrefillOutcome(enum.Enum):
    """How a request of a disaggregated model was prefilled; counted once per attempt."""

    REMOTE = "remote"
    LOCAL = "local"
    """The decode worker prefilled itself: no prefill worker was left, or prefill pinned nothing."""
    BYPASSED = "bypassed"
    """One token was asked for: a prefill worker answered alone."""
    TERMINAL = "terminal"
    """Prefill was the answer."""
    FAILED = "failed"
    TAIL_CUT = "tail_cut"
    """The answer was complete, prefill still running after `prefill_tail_s`."""


class PrefillObserver(Protocol):
    def prefilled(self, outcome: PrefillOutcome) -> None: ...


class Ending:
    """Passes outputs up and withholds the finishing one, which goes up when the attempt has ended well.

    `cached`: the prompt's cache hits as prefill reported them; they replace decode's own (hard rule 9).
    """

    __slots__ = ("_sink", "cached", "output")

    def __init__(self, sink: Sink[LLMEngineOutput]) -> None:
        self._sink = sink
        self.cached: PromptTokensDetails | None = None
        self.output: LLMEngineOutput | None = None

    def __call__(self, outputs: Sequence[LLMEngineOutput]) -> None:
        if outputs[-1].finish_reason is None:
            self._sink(outputs)
            return
        self.output = outputs[-1]
        if len(outputs) > 1:
            self._sink(outputs[:-1])

    def hand_up(self, prompt_tokens: int) -> None:
        """Hands the finishing output up, if there was one."""
        output = self.output
        if output is None:
            return
        if self.cached is not None:
            usage = output.completion_usage or CompletionUsage(prompt_tokens, 0, prompt_tokens)
            output.completion_usage = replace(usage, prompt_tokens_details=self.cached)
        self._sink([output])


class PrefillRouter:
    """The operator around a model's worker router.

    `policy` "local": when no prefill worker is left, or the hand-off is too old, the decode worker prefills itself;
    "strict": it does not.
    """

    def __init__(self, router: WorkerRouter, *, policy: str | None, observer: PrefillObserver) -> None:
        self._router = router
        self._policy = policy
        self._observer = observer

    async def __call__(
        self,
        request: PreprocessedRequest,
        context: RequestContext,
        sink: Sink[LLMEngineOutput],
        downstream: Service[PreprocessedRequest, LLMEngineOutput],
    ) -> None:
        if not self._router.registry.disaggregated(self._router.model):
            await downstream(request, context, sink)
            return
        if request.stop_conditions.max_tokens == 1 and (lease := self._reserve_alone(request, context)) is not None:
            self._observer.prefilled(PrefillOutcome.BYPASSED)
            await self._router.run(lease, request, context, sink)
            return
        leases = self._reserve_pair(request, context)
        if leases is None:
            self._observer.prefilled(PrefillOutcome.LOCAL)
            await downstream(request, context, sink)
            return
        await self._run_pair(*leases, request, context, sink)

    # ---- choosing

    def _reserve_alone(self, request: PreprocessedRequest, context: RequestContext) -> Lease | None:
        """A prefill worker that may answer a one-token request without a peer."""
        try:
            return self._router.reserve(request, Leg.PREFILL, context, alone=True)
        except Unavailable:
            return None

    def _reserve_pair(self, request: PreprocessedRequest, context: RequestContext) -> tuple[Lease, Lease] | None:
        """Both legs' workers, reserved before a byte is sent; None when decode is to prefill itself."""
        registry, model = self._router.registry, self._router.model
        keys = registry.pair_keys(model, Leg.DECODE, excluded=context.migration.excluded_worker_ids())
        try:
            prefill = self._router.reserve(request, Leg.PREFILL, context, pair_keys=keys)
        except Unavailable:
            if self._may_prefill_locally():
                return None
            raise
        try:
            pair_keys = frozenset({prefill.worker.pair_key()})
            return prefill, self._router.reserve(request, Leg.DECODE, context, pair_keys=pair_keys)
        except GatewayError:
            prefill.release()
            raise

    def _may_prefill_locally(self) -> bool:
        registry, model = self._router.registry, self._router.model
        policy = self._policy or registry.default_prefill_policy(model)
        return policy == "local" or registry.has_aggregated(model)

    # ---- running

    async def _run_pair(
        self,
        prefill: Lease,
        decode: Lease,
        request: PreprocessedRequest,
        context: RequestContext,
        sink: Sink[LLMEngineOutput],
    ) -> None:
        request = _with_ranks(request, prefill, decode)
        context.tracker.record_workers(prefill.worker.id, prefill.rank, decode.worker.id, decode.rank)
        ending = Ending(sink)
        bootstrap = prefill.adapter.bootstrap(prefill.ids, prefill.rank)
        try:
            if bootstrap is None:
                await self._run_sequential(
                    SequentialPair(self._router, prefill, decode, request, context, ending), ending
                )
            else:
                tied = replace(request, bootstrap_info=bootstrap)
                await self._run_concurrent(ConcurrentPair(self._router, prefill, decode, tied, context, ending))
        except WorkerFailure as error:
            self._observer.prefilled(PrefillOutcome.FAILED)
            _blame_peer(error, prefill, decode, context)
            raise
        ending.hand_up(len(request.token_ids))

    async def _run_concurrent(self, pair: ConcurrentPair) -> None:
        try:
            in_time = await pair.run(self._router.deadlines.prefill_tail_s)
            self._observer.prefilled(PrefillOutcome.REMOTE if in_time else PrefillOutcome.TAIL_CUT)
        finally:
            pair.let_go()

    async def _run_sequential(self, pair: SequentialPair, ending: Ending) -> None:
        try:
            given = await pair.run_prefill()
            pair.context.tracker.record_prefill_complete()
            if isinstance(given, LLMEngineOutput):
                self._observer.prefilled(PrefillOutcome.TERMINAL)
                _answer(given, ending)
                return
            if given is None:
                self._observer.prefilled(PrefillOutcome.LOCAL)
            else:
                self._observer.prefilled(PrefillOutcome.REMOTE)
                ending.cached = given.prompt_tokens_details
            await self._decode(pair)
        finally:
            pair.let_go()

    async def _decode(self, pair: SequentialPair) -> None:
        """Decodes; a worker that refused before taking the request leaves the hand-off good for the next one."""
        while True:
            self._check_age(pair)
            try:
                await pair.run_decode()
                return
            except (CannotConnect, WorkerBusy) as error:
                keys = frozenset({pair.prefill.lease.worker.pair_key()})
                try:
                    lease = self._router.reserve(pair.request, Leg.DECODE, pair.context, pair_keys=keys)
                except Unavailable:
                    raise error from None
                pair.next_decode(lease)

    def _check_age(self, pair: SequentialPair) -> None:
        """Hard rule 8."""
        if pair.handoff is None or not pair.too_old():
            return
        if not self._may_prefill_locally():
            raise EngineFailure("the hand-off is too old to be read safely", blame=Blame.NOBODY)
        pair.handoff = None
        self._observer.prefilled(PrefillOutcome.LOCAL)


def _with_ranks(request: PreprocessedRequest, prefill: Lease, decode: Lease) -> PreprocessedRequest:
    """The request with the chosen data-parallel ranks, where there are any."""
    if prefill.rank is None and decode.rank is None:
        return request
    hints = request.routing or RoutingHints()
    return replace(request, routing=replace(hints, dp_rank=decode.rank, prefill_dp_rank=prefill.rank))


def _answer(given: LLMEngineOutput, ending: Ending) -> None:
    """Prefill was the answer: its ids, then its finish; nothing of the hand-off."""
    finish = LLMEngineOutput(
        finish_reason=given.finish_reason, stop_reason=given.stop_reason, completion_usage=given.completion_usage
    )
    given.finish_reason = given.stop_reason = given.completion_usage = given.disaggregated_params = None
    ending([given, finish])


def _blame_peer(error: WorkerFailure, prefill: Lease, decode: Lease, context: RequestContext) -> None:
    """Excludes the other worker too where the failing one says that its peer, or the pair, is at fault."""
    if error.blame in (Blame.PEER, Blame.PAIR):
        peer = prefill if error.worker_id == decode.worker.id else decode
        context.migration.record_failure(peer.worker.id, error)
