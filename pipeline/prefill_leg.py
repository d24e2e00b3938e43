"""The prefill leg of a pair in turn: one call, what it hands over, and how long that stands for pinned KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engines.base import Release
from pipeline.context import RequestContext
from protocols.errors import GatewayError, IncompleteReply
from protocols.outputs import LLMEngineOutput
from protocols.preprocessed import PrefillResult, PreprocessedRequest, RequestPhase

if TYPE_CHECKING:
    from pipeline.dispatch import Lease, WorkerRouter


class PrefillLeg:
    """`reading` is the call; `handoff` what decode needs, None before the reply's end and where nothing was pinned."""

    __slots__ = ("_incarnation", "_router", "handoff", "outputs", "reading")

    def __init__(
        self, router: WorkerRouter, lease: Lease, request: PreprocessedRequest, context: RequestContext
    ) -> None:
        self._router = router
        self._incarnation = router.registry.incarnation(lease.worker.id)
        self.outputs: list[LLMEngineOutput] = []
        self.handoff: PrefillResult | None = None
        self.reading = router.reading(lease, replace(request, phase=RequestPhase.PREFILL), context, self._take)

    @property
    def lease(self) -> Lease:
        return self.reading.lease

    async def run(self) -> LLMEngineOutput | PrefillResult | None:
        """Sends the call and reads its reply. What that gives, as `EngineAdapter.handoff` says."""
        await self.reading.open()
        return await self.result()

    async def result(self) -> LLMEngineOutput | PrefillResult | None:
        """Reads the reply to its end."""
        await self.reading.wait()
        lease, context = self.lease, self.reading.context
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

    def _take(self, outputs: Sequence[LLMEngineOutput]) -> None:
        if not self.outputs and not self.reading.context.outlives:
            self.reading.context.tracker.record_prefill_complete()
        self.outputs += outputs

    # ---- what it may have pinned

    @property
    def may_pin(self) -> bool:
        """Prefill holds, or may come to hold, blocks that only a decode worker's read, or their lease's end, frees.

        That is so from the call's sending on: closing it frees nothing where prefill has just ended.
        """
        reading = self.reading
        if not reading.sent or reading.refused or self.lease.adapter.release_at is Release.NONE:
            return False
        return self.handoff is not None or not reading.settled

    @property
    def restarted(self) -> bool:
        """Another process is behind the worker's URL by now: what was pinned is gone."""
        return self._router.registry.incarnation(self.lease.worker.id) not in (0, self._incarnation)

    @property
    def aged(self) -> bool:
        """The engine's lease on the blocks ends soon, or has ended. Its clock starts with the reply's first byte."""
        lease_s, began_at = self.lease.adapter.lease_s, self.reading.began_at
        if lease_s is None or began_at is None:
            return False
        margin = min(self._router.deadlines.lease_margin_s, lease_s / 2)
        return self._router.clock() - began_at > lease_s - margin

    def close(self) -> None:
        """Ends the call and frees its lease, in this step. Idempotent."""
        self.reading.close()
        self.lease.release()
