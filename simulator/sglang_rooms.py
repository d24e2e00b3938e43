"""SGLang 0.5.23: where the two halves of a disaggregated request meet, on the prefill worker.

Decode comes to the room by an HTTP call that stays open; its being open is the handshake. Prefill computes only then,
answers that call with the KV, and only after that answers its own client.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulator.http import Exchange
from simulator.model import Job, Output
from simulator.sglang_requests import Bootstrap

if TYPE_CHECKING:
    from simulator.sglang import SglangWorker
    from simulator.sglang_answer import SglangAnswer


@dataclass(slots=True)
class _Half:
    """Prefill's half of a room."""

    answer: SglangAnswer
    place: int
    timeout: asyncio.TimerHandle


class Rooms:
    """The rooms of one prefill worker."""

    def __init__(self, worker: SglangWorker) -> None:
        self._worker = worker
        self._prefills: dict[int, _Half] = {}
        self._decodes: dict[int, Exchange] = {}

    @property
    def count(self) -> int:
        """Rooms in which somebody is."""
        return len(self._prefills.keys() | self._decodes.keys())

    def join_prefill(self, room: int, answer: SglangAnswer, place: int) -> None:
        """Prefill's client has asked: if decode is there, it starts; otherwise it waits."""
        limit = self._worker.options.sglang.bootstrap_timeout_s
        timer = self._worker.later(limit, lambda: self._nobody_came(room))
        self._prefills[room] = _Half(answer, place, timer)
        if room in self._decodes:
            self._begin(room)

    def join_decode(self, room: int, exchange: Exchange) -> None:
        """A decode worker shakes hands; the reply to it will be the KV."""
        self._decodes[room] = exchange
        exchange.on_close = lambda: self._decode_left(room, exchange)
        if room in self._prefills:
            self._begin(room)

    def leave_prefill(self, bootstrap: Bootstrap | None, answer: SglangAnswer) -> None:
        """Prefill's half is over before its time. Decode is told nothing: it waits on, as the real one does."""
        half = self._prefills.get(bootstrap.room) if bootstrap is not None else None
        if bootstrap is not None and half is not None and half.answer is answer:
            half.timeout.cancel()
            del self._prefills[bootstrap.room]
            self._unpin(bootstrap.room)

    def prefilled(self, room: int, job: Job, output: Output) -> None:
        """The prompt is computed and the first id drawn: the transfer begins."""
        pace = self._worker.options.pace
        seconds = pace.scaled(pace.transfer_s * len(job.pinned_blocks))
        if seconds:
            self._worker.later(seconds, lambda: self._transfer(room, job, output))
        else:
            self._transfer(room, job, output)

    def _begin(self, room: int) -> None:
        half = self._prefills[room]
        half.timeout.cancel()
        half.answer.submit_at(half.place)

    def _transfer(self, room: int, job: Job, output: Output) -> None:
        half, exchange = self._prefills.pop(room, None), self._decodes.pop(room, None)
        if half is None or exchange is None:
            return
        exchange.on_close = None
        exchange.json(200, self._payload(job, output))
        self._unpin(room)
        half.answer.transferred(half.place)

    def _payload(self, job: Job, output: Output) -> dict[str, Any]:
        cache = next(model.cache for model in self._worker.models if model.cache.has_pin(job.spec.pin or ""))
        return {
            "contents": cache.read(job.pinned_blocks, job.prompt_tokens),
            "block_size": cache.block_size,
            "first_ids": output.ids,
            "cached_tokens": job.cached_tokens,
        }

    def _decode_left(self, room: int, exchange: Exchange) -> None:
        if self._decodes.get(room) is not exchange:
            return
        del self._decodes[room]
        half = self._prefills.get(room)
        if half is not None and half.place in half.answer.jobs:
            half.answer.fail(500, f"Prefill transfer failed for request with bootstrap_room={room}: decode is gone")

    def _nobody_came(self, room: int) -> None:
        half = self._prefills.get(room)
        if half is not None:
            limit = self._worker.options.sglang.bootstrap_timeout_s
            half.answer.fail(
                500,
                f"Prefill bootstrap failed for request with bootstrap_room={room}: "
                f"timed out after {limit:g}s in KVPoll.Bootstrapping",
            )

    def _unpin(self, room: int) -> None:
        for model in self._worker.models:
            model.cache.unpin(f"room-{room}")
            model.wake()
