"""Asks every worker who it is and how it is, again and again, and tells the registry.

Each worker has its own task, so a slow one delays nobody. Probes go over fresh connections: stock servers close idle
ones after 5 s, and a probe that meets such a closing would take a healthy worker for a dead one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import httpx

from engines.base import Probe, ProbeReply
from protocols.errors import GatewayError
from protocols.worker import Worker, WorkerTraits
from routers.base import Status
from workers.registry import Registry
from workers.vitals import Finding, Rhythm, Sign, Vitals

log = logging.getLogger(__name__)

MAX_REPLY_BYTES = 16 * 1024 * 1024
MODELS_PATH = "/v1/models"

Pause = Callable[[asyncio.Event, float], Awaitable[None]]
"""Returns when the event is set or so many seconds have passed."""


class Prober(Protocol):
    """The part of an engine's adapter that knows its control plane."""

    def health_probe(self) -> Probe: ...

    def healthy(self, reply: ProbeReply) -> bool: ...

    def info_probes(self) -> Sequence[Probe]: ...

    def traits(self, replies: Mapping[str, ProbeReply]) -> WorkerTraits: ...


def probe_client() -> httpx.AsyncClient:
    """A client for probes: no connection is kept, no proxy of the environment is used. The caller closes it."""
    return httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0), trust_env=False, follow_redirects=False)


async def _pause(woken: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await woken.wait()


class _Watch:
    """One worker under watch."""

    __slots__ = ("asked_at", "task", "told", "vitals", "woken", "worker_id")

    def __init__(self, worker_id: int, vitals: Vitals) -> None:
        self.worker_id = worker_id
        self.vitals = vitals
        self.woken = asyncio.Event()
        self.asked_at = float("-inf")
        self.told: Status | None = None
        self.task: asyncio.Task[None] | None = None


class HealthMonitor:
    """A registry's listener; `start` begins with the workers already there, `close` ends all watches.

    `interval_s`: between the probes of a worker that is up; one that is down is probed sooner, from 0.5 s on. `http`:
    the caller's client, which stays open; without one the monitor has its own. `prober_for` gives the control-plane
    part of a worker's adapter. `clock` in seconds; `pause` waits between probes.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        interval_s: float = 5.0,
        http: httpx.AsyncClient | None = None,
        prober_for: Callable[[Worker], Prober] | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Pause = _pause,
        rng: random.Random | None = None,
    ) -> None:
        self._registry = registry
        self._http = http if http is not None else probe_client()
        self._closes_http = http is None
        self._prober_for = prober_for or (lambda worker: registry.adapter(worker.id))
        self._rhythm = Rhythm(interval_s=interval_s)
        self._clock = clock
        self._pause = pause
        self._rng = rng or random.Random()
        self._watches: dict[int, _Watch] = {}

    def start(self) -> None:
        self._registry.listen(self)
        for worker in self._registry.workers():
            self.added(worker)

    async def close(self) -> None:
        tasks = [watch.task for watch in self._watches.values() if watch.task is not None]
        self._watches.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._closes_http:
            await self._http.aclose()

    # ---- the registry's listener

    def added(self, worker: Worker, /) -> None:
        self._begin(worker.id)

    def _begin(self, worker_id: int, *, after_s: float = 0.0) -> None:
        watch = _Watch(worker_id, Vitals(self._rhythm, self._rng))
        self._watches[worker_id] = watch
        watch.task = asyncio.create_task(self._run(watch, after_s), name=f"health-{worker_id}")
        watch.task.add_done_callback(lambda task: self._ended(watch, task))

    def removed(self, worker: Worker, /) -> None:
        watch = self._watches.pop(worker.id, None)
        if watch is not None and watch.task is not None:
            watch.task.cancel()

    def doubted(self, worker: Worker, /) -> None:
        watch = self._watches.get(worker.id)
        if watch is not None and watch.vitals.up:
            watch.vitals.doubted()
            watch.woken.set()

    # ---- one worker's watch

    async def _run(self, watch: _Watch, after_s: float) -> None:
        if after_s:
            await self._pause(watch.woken, after_s)
        while (worker := self._registry.worker(watch.worker_id)) is not None:
            watch.woken.clear()
            prober = self._prober_for(worker)
            finding = await self._examine(watch, worker, prober)
            verdict = watch.vitals.take(finding, at_most_every_s=prober.health_probe().interval_s)
            self._tell(watch, worker, verdict.status, verdict.reason)
            await self._pause(watch.woken, verdict.next_s)

    def _tell(self, watch: _Watch, worker: Worker, status: Status | None, reason: str) -> None:
        if status is None:
            log.warning("worker %d at %s missed a probe: %s", worker.id, worker.url, reason)
            return
        if status is Status.READY:
            self._registry.answered(worker.id)
        else:
            self._registry.lost(worker.id, status, reason)
        if status is not watch.told:
            watch.told = status
            level = logging.INFO if status is Status.READY else logging.WARNING
            log.log(
                level, "worker %d at %s is %s%s", worker.id, worker.url, status.value, f": {reason}" if reason else ""
            )

    def _ended(self, watch: _Watch, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("the health watch of worker %d failed", watch.worker_id, exc_info=error)
        self._registry.lost(watch.worker_id, Status.DOWN, f"its health watch failed: {error}")
        if self._watches.get(watch.worker_id) is watch:
            self._begin(watch.worker_id, after_s=self._rhythm.interval_s)

    async def _examine(self, watch: _Watch, worker: Worker, prober: Prober) -> Finding:
        """Who it is, where that is in question, then how it is."""
        if watch.vitals.must_identify:
            obstacle = await self._identify(watch, worker, prober)
            if obstacle is not None:
                return obstacle
            prober = self._prober_for(self._registry.worker(worker.id) or worker)
        probe = prober.health_probe()
        if probe.interval_s is not None and watch.vitals.up and self._clock() - watch.asked_at < probe.interval_s:
            return Finding(Sign.WELL)  # it has just told who it is, and is not to be asked more often
        watch.asked_at = self._clock()
        reply = await self._ask(worker, probe)
        if isinstance(reply, Finding):
            return reply
        if prober.healthy(reply):
            return Finding(Sign.WELL)
        return Finding(Sign.UNWELL, f"{probe.path} answered {reply.status}")

    async def _identify(self, watch: _Watch, worker: Worker, prober: Prober) -> Finding | None:
        """Asks for the worker's identity and hands it to the registry. What stands in the way, or None."""
        replies: dict[str, ProbeReply] = {}
        for probe in prober.info_probes():
            reply = await self._ask(worker, probe)
            if isinstance(reply, Finding):
                return reply
            if reply.status == 503:  # still loading: what the other routes tell is not the whole of it
                return Finding(Sign.UNWELL if watch.vitals.known else Sign.UNKNOWN, f"{probe.path} answered 503")
            replies[probe.path] = reply
        try:
            traits = prober.traits(replies)
        except (GatewayError, ValueError, TypeError, LookupError, AttributeError) as error:
            return Finding(Sign.UNKNOWN, f"what it tells of itself is not understood: {error!r}")
        missing = _missing(worker, traits, replies)
        if missing:
            return Finding(Sign.UNKNOWN, missing)
        self._registry.identified(worker.id, traits, restarted=watch.vitals.gone)
        watch.vitals.identified()
        return None

    async def _ask(self, worker: Worker, probe: Probe) -> ProbeReply | Finding:
        """The reply, or what its absence says."""
        headers = {"content-type": "application/json"} if probe.body is not None else {}
        if worker.api_key is not None:
            headers["authorization"] = f"Bearer {worker.api_key}"
        body = bytearray()
        try:
            async with (
                asyncio.timeout(probe.timeout_s),
                self._http.stream(
                    probe.method, worker.url + probe.path, content=probe.body, headers=headers, timeout=None
                ) as response,
            ):
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MAX_REPLY_BYTES:
                        break
        except TimeoutError:
            return Finding(Sign.SILENT, f"{probe.path} was not answered within {probe.timeout_s:g} s")
        # AttributeError: anyio 4 under uvloop, when a connection breaks just as it is made.
        except (httpx.HTTPError, httpx.InvalidURL, AttributeError) as error:
            return Finding(Sign.REFUSED, f"{probe.path}: {error or type(error).__name__}")
        return ProbeReply(response.status_code, bytes(body))


def _missing(worker: Worker, traits: WorkerTraits, replies: Mapping[str, ProbeReply]) -> str:
    """What keeps the worker from being given requests though it answers; empty when nothing does."""
    if traits.role is not None and traits.role is not worker.role:
        return f"it was started as {traits.role.value}, but is configured as {worker.role.value}"
    models = replies.get(MODELS_PATH)
    if models is not None and (worker.served_name or traits.served_name) is None:
        return f"its name for the model is not known: {MODELS_PATH} answered {models.status} without one"
    return ""
