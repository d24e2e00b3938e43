"""Both legs of an attempt at once, tied by a bootstrap that was drawn before either was sent (SGLang, native).

Prefill's reply is read by a task of its own; its failure becomes decode's, and so comes out where decode is awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.context import RequestContext
from pipeline.handoff import Gate, PrefillOutcome
from pipeline.service import Sink
from protocols.errors import Enough, GatewayError, IncompleteReply, WorkerSilent
from protocols.outputs import LLMEngineOutput, PromptTokensDetails
from protocols.preprocessed import PrefillResult, PreprocessedRequest, RequestPhase
from protocols.worker import Worker
from workers.exchange import push

if TYPE_CHECKING:
    from pipeline.dispatch import Lease, WorkerRouter


class ConcurrentPair:
    """A prefill failure interrupts decode at once; a decode success waits for prefill's end (hard rules 1 and 2).

    Owns both leases from its making; `let_go` releases them. `cached`: the prompt's cache hits, where prefill told
    them. `outcome` is None until it is known how the prompt was prefilled.
    """

    __slots__ = (
        "_enough",
        "_gate",
        "_held",
        "_preface",
        "_router",
        "cached",
        "context",
        "decode",
        "outcome",
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
        self._enough: Enough | None = None
        self._held: list[LLMEngineOutput] | None = None
        self._preface: Any = None
        self.context = context
        self.outputs: list[LLMEngineOutput] = []
        self.cached: PromptTokensDetails | None = None
        self.outcome: PrefillOutcome | None = None
        decode_sink: Sink[LLMEngineOutput] = self._gate
        if request.output_options.prompt_logprobs is not None:
            self._held, decode_sink = [], self._hold
        self.prefill = router.reading(
            prefill_lease, replace(request, phase=RequestPhase.PREFILL), context, self.outputs.extend
        )
        self.decode = router.reading(decode_lease, replace(request, phase=RequestPhase.DECODE), context, decode_sink)

    @property
    def prefill_worker(self) -> Worker:
        return self.prefill.lease.worker

    @property
    def decode_worker(self) -> Worker:
        return self.decode.lease.worker

    async def run(self, tail_s: float) -> None:
        """Runs both legs. Prefill may take `tail_s` seconds more when the answer is complete, then it is given up."""
        await self.prefill.open()
        reading_prefill = asyncio.create_task(self._read_prefill())
        reading_prefill.add_done_callback(self._prefill_over)
        try:
            await self.decode.open()
            await self._read_decode()
            await self._await_prefill(reading_prefill, tail_s)
        finally:
            reading_prefill.cancel()
        if self._enough is not None:
            raise self._enough

    def let_go(self) -> None:
        """The attempt is over, well or not, or its client has left: ends both legs, frees both leases. Synchronous."""
        self._gate.shut()
        for reading in (self.prefill, self.decode):
            self._router.abandon(reading)
            reading.lease.release()

    # ---- decode

    async def _read_decode(self) -> None:
        """Decode's reply to its end; an `Enough` that passes is a success as well."""
        try:
            await self.decode.wait()
        except Enough as enough:
            self._enough = enough
        self._router.succeeded(self.decode.lease)

    async def _await_prefill(self, reading: asyncio.Task[None], tail_s: float) -> None:
        done, _ = await asyncio.wait([reading], timeout=tail_s)
        if done:
            reading.result()
            self.outcome = PrefillOutcome.REMOTE
        elif self._held is not None:
            late = WorkerSilent(f"prefill did not tell the prompt's logprobs within {tail_s:g} s of the answer's end")
            raise self._router.record(late, self.prefill.lease, self.context)
        else:
            self.outcome = PrefillOutcome.TAIL_CUT

    # ---- prefill

    async def _read_prefill(self) -> None:
        lease = self.prefill.lease
        await self.prefill.wait()
        if not self.outputs:
            raise self._router.record(IncompleteReply("prefill returned no output"), lease, self.context)
        try:
            given = lease.adapter.handoff(self.outputs)
        except GatewayError as error:
            raise self._router.record(error, lease, self.context) from error.__cause__
        if isinstance(given, PrefillResult):
            self.cached = given.prompt_tokens_details
        self._router.succeeded(lease)
        self.context.tracker.record_prefill_complete()
        self._let_held_pass()

    def _prefill_over(self, reading: asyncio.Task[None]) -> None:
        if not reading.cancelled() and (error := reading.exception()) is not None:
            self.decode.fail(error)

    # ---- hard rule 10: decode's outputs wait for the prompt's logprobs, which only prefill computes

    def _hold(self, outputs: Sequence[LLMEngineOutput]) -> None:
        if self._held is not None:
            self._held += outputs
            return
        outputs[0].engine_data, self._preface = self._preface or outputs[0].engine_data, None
        self._gate(outputs)

    def _let_held_pass(self) -> None:
        held, self._held = self._held, None
        if held is None:
            return
        self._preface = next((output.engine_data for output in self.outputs if output.engine_data), None)
        if not held:
            return
        try:
            push(self._hold, held)
        except Enough as enough:
            self._enough = enough
            self.decode.fail(enough)
