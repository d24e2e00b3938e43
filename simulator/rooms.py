"""Where the two halves of a concurrent pair meet, on the prefill worker (SGLang 0.5.23, and the native dialect).

Decode comes to the room by an HTTP call that stays open; its being open is the handshake. Prefill computes only then,
answers that call with the KV, and only after that answers its own client.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from simulator.http import Exchange
from simulator.jobs import Job, Output
from simulator.worker import SimulatedWorker

FAKE_HOST = "2.2.2.2"
"""The bootstrap host of health checks: no peer, no transfer."""


@dataclass(frozen=True)
class Bootstrap:
    """Where a pair meets: the prefill worker's bootstrap address, and the room."""

    host: str
    port: int
    room: int

    @property
    def fake(self) -> bool:
        return self.host == FAKE_HOST

    @property
    def pin(self) -> str:
        """The name that prefill keeps the blocks under until they are transferred."""
        return f"room-{self.room}"


class PrefillAnswer(Protocol):
    """What a room needs of prefill's half."""

    def submit_at(self, place: int) -> Job:
        """Decode has come: the engine may compute."""

    def transferred(self, place: int) -> None:
        """The KV has arrived at decode: now prefill answers its client."""

    def submitted(self, place: int) -> bool:
        """Whether the engine has this sequence already."""

    def fail(self, status: int, message: str) -> None:
        """The pair has failed."""


@dataclass(slots=True)
class _Half:
    """Prefill's half of a room."""

    answer: PrefillAnswer
    place: int
    timeout: asyncio.TimerHandle


class Rooms:
    """The rooms of one prefill worker. `timeout_s`: how long prefill waits for decode's handshake."""

    def __init__(self, worker: SimulatedWorker, timeout_s: float) -> None:
        self._worker = worker
        self._timeout_s = timeout_s
        self._prefills: dict[int, _Half] = {}
        self._decodes: dict[int, Exchange] = {}

    @property
    def count(self) -> int:
        """Rooms in which somebody is."""
        return len(self._prefills.keys() | self._decodes.keys())

    def join_prefill(self, room: int, answer: PrefillAnswer, place: int) -> None:
        """Prefill's client has asked: if decode is there, it starts; otherwise it waits."""
        timer = self._worker.later(self._timeout_s, lambda: self._nobody_came(room))
        self._prefills[room] = _Half(answer, place, timer)
        if room in self._decodes:
            self._begin(room)

    def join_decode(self, room: int, exchange: Exchange) -> None:
        """A decode worker shakes hands; the reply to it will be the KV."""
        self._decodes[room] = exchange
        exchange.on_close = lambda: self._decode_left(room, exchange)
        if room in self._prefills:
            self._begin(room)

    def leave_prefill(self, bootstrap: Bootstrap | None, answer: PrefillAnswer) -> None:
        """Prefill's half is over before its time. Decode is told nothing: it waits on, as the real one does."""
        half = self._prefills.get(bootstrap.room) if bootstrap is not None else None
        if bootstrap is not None and half is not None and half.answer is answer:
            self._worker.never(half.timeout)
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
        self._worker.never(half.timeout)
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
        if half is not None and half.answer.submitted(half.place):
            half.answer.fail(500, f"Prefill transfer failed for request with bootstrap_room={room}: decode is gone")

    def _nobody_came(self, room: int) -> None:
        half = self._prefills.get(room)
        if half is not None:
            half.answer.fail(
                500,
                f"Prefill bootstrap failed for request with bootstrap_room={room}: "
                f"timed out after {self._timeout_s:g}s in KVPoll.Bootstrapping",
            )

    def _unpin(self, room: int) -> None:
        for model in self._worker.models:
            model.cache.unpin(Bootstrap("", 0, room).pin)
            model.wake()
