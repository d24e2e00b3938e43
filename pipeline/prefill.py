"""Disaggregation: whether a request is prefilled elsewhere, and how the two legs are run (the seeds' PrefillRouter)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from pipeline.bootstrap import ConcurrentPair
from pipeline.context import RequestContext
from pipeline.dispatch import Lease, WorkerRouter
from pipeline.handoff import PrefillOutcome, SequentialPair
from pipeline.service import Service, Sink
from protocols.errors import (
    Blame,
    CannotConnect,
    EngineFailure,
    Enough,
    GatewayError,
    Unavailable,
    UnsupportedParameter,
    WorkerBusy,
    WorkerFailure,
)
from protocols.outputs import CompletionUsage, LLMEngineOutput, PromptTokensDetails
from protocols.preprocessed import PreprocessedRequest, RoutingHints
from protocols.worker import Leg
from workers.exchange import push

MOST_DECODES = 3
"""Decode workers that one hand-off is offered to."""


class PrefillObserver(Protocol):
    def prefilled(self, outcome: PrefillOutcome) -> None: ...


class Ending:
    """Passes outputs up and withholds the finishing one, which goes up when the attempt has ended well.

    `cached`: the prompt's cache hits as prefill reported them. They are told with the first output, since the last may
    never come, and replace decode's own (hard rule 9).
    """

    __slots__ = ("_enough", "_prompt_tokens", "_sink", "_told", "cached", "output")

    def __init__(self, sink: Sink[LLMEngineOutput], prompt_tokens: int) -> None:
        self._sink = sink
        self._prompt_tokens = prompt_tokens
        self._told = False
        self._enough: Enough | None = None
        self.cached: PromptTokensDetails | None = None
        self.output: LLMEngineOutput | None = None

    def __call__(self, outputs: Sequence[LLMEngineOutput]) -> None:
        last = outputs[-1]
        if last.finish_reason is not None:
            self.output, outputs = last, outputs[:-1]
            if not outputs:
                return
        if not self._told:
            self._told = True
            if self.cached is not None and outputs[0].completion_usage is None:
                outputs[0].completion_usage = self._prompt_usage()
        try:
            self._sink(outputs)
        except Enough as enough:
            if self.output is None or not enough.takes_ending:
                raise
            self._enough = enough

    def hand_up(self) -> None:
        """Hands the finishing output up, if there was one. Raises the `Enough` that was kept for it."""
        output = self.output
        if output is not None:
            if self.cached is not None:
                usage = output.completion_usage or self._prompt_usage()
                output.completion_usage = replace(usage, prompt_tokens_details=self.cached)
            push(self._sink, [output])
        if self._enough is not None:
            raise self._enough

    def _prompt_usage(self) -> CompletionUsage:
        return CompletionUsage(self._prompt_tokens, 0, self._prompt_tokens, self.cached)


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
        except (Unavailable, UnsupportedParameter):
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
        except UnsupportedParameter:
            if registry.has_aggregated(model):
                return None
            raise
        try:
            pair_keys = frozenset({prefill.worker.pair_key()})
            return prefill, self._router.reserve(request, Leg.DECODE, context, pair_keys=pair_keys)
        except (Unavailable, UnsupportedParameter):
            prefill.release()
            if registry.has_aggregated(model):
                return None
            raise
        except GatewayError:
            prefill.release()
            raise

    def _may_prefill_locally(self) -> bool:
        return self._prefers_local() or self._router.registry.has_aggregated(self._router.model)

    def _prefers_local(self) -> bool:
        registry, model = self._router.registry, self._router.model
        return (self._policy or registry.default_prefill_policy(model)) == "local"

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
        ending = Ending(sink, len(request.token_ids))
        bootstrap = prefill.adapter.bootstrap(prefill.ids, prefill.rank)
        pair: SequentialPair | ConcurrentPair
        if bootstrap is None:
            pair = SequentialPair(self._router, prefill, decode, request, context, ending)
            running = self._run_sequential(pair, ending)
        else:
            tied = replace(request, bootstrap_info=bootstrap)
            pair = ConcurrentPair(self._router, prefill, decode, tied, context, ending)
            running = self._run_concurrent(pair, ending)
        try:
            await running
        except WorkerFailure as error:
            pair.outcome = PrefillOutcome.FAILED
            _blame_peer(error, pair, context)
            raise
        finally:
            pair.let_go()
            if pair.outcome is not None:
                self._observer.prefilled(pair.outcome)
        ending.hand_up()

    async def _run_concurrent(self, pair: ConcurrentPair, ending: Ending) -> None:
        await pair.run(self._router.deadlines.prefill_tail_s)
        ending.cached = pair.cached

    async def _run_sequential(self, pair: SequentialPair, ending: Ending) -> None:
        given = await pair.run_prefill()
        if isinstance(given, LLMEngineOutput):
            pair.outcome = PrefillOutcome.TERMINAL
            _answer(given, ending)
            return
        if given is None:
            pair.outcome = PrefillOutcome.LOCAL
        else:
            pair.outcome = PrefillOutcome.REMOTE
            ending.cached = given.prompt_tokens_details
        await self._decode(pair, ending)

    async def _decode(self, pair: SequentialPair, ending: Ending) -> None:
        """Decodes; a worker that refused before taking the request leaves the hand-off good for the next one."""
        for _ in range(MOST_DECODES - 1):
            self._check_fresh(pair, ending)
            try:
                await pair.run_decode()
                return
            except (CannotConnect, WorkerBusy) as error:
                if pair.void:
                    raise
                pair.next_decode(self._next_decode_worker(pair, error))
        self._check_fresh(pair, ending)
        await pair.run_decode()

    def _next_decode_worker(self, pair: SequentialPair, error: GatewayError) -> Lease:
        keys = frozenset({pair.prefill_worker.pair_key()})
        try:
            lease = self._router.reserve(pair.request, Leg.DECODE, pair.context, pair_keys=keys)
        except GatewayError:
            raise error from None
        pair.context.tracker.record_worker(Leg.DECODE, lease.worker.id, lease.rank)
        return lease

    def _check_fresh(self, pair: SequentialPair, ending: Ending) -> None:
        """Hard rule 8."""
        if pair.handoff is None or not pair.stale():
            return
        decode = pair.decode_lease
        if not self._prefers_local() or not decode.adapter.plain(decode.worker.role):
            raise EngineFailure(
                "the hand-off is too old, or its prefill worker was restarted: it cannot be read safely",
                blame=Blame.NOBODY,
            )
        pair.drop_handoff()
        ending.cached = None
        pair.outcome = PrefillOutcome.LOCAL


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
    push(ending, [given, finish])


def _blame_peer(error: WorkerFailure, pair: SequentialPair | ConcurrentPair, context: RequestContext) -> None:
    """Excludes the other worker too where the failing one says that its peer, or the pair, is at fault."""
    if error.blame in (Blame.PEER, Blame.PAIR):
        failed_prefill = error.worker_id == pair.prefill_worker.id
        peer = pair.decode_worker if failed_prefill else pair.prefill_worker
        context.migration.record_failure(peer.id, error)
