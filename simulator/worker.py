"""What all simulated workers share: models and their runners, routes, peers' reads, faults, state, the way they end."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import orjson

from simulator.answers import Answer
from simulator.constraints import Constraint
from simulator.faults import Fault, Faults
from simulator.generation import Voice
from simulator.http import Connection, Exchange, Handler, HttpServer
from simulator.jobs import Job
from simulator.kv_cache import KvCache
from simulator.model import EngineModel
from simulator.options import SimulatorOptions
from simulator.runner import Runner
from simulator.scribe import Scribe
from simulator.vocabulary import word_codec

Exit = Callable[["SimulatedWorker"], None]


class SimulatedWorker:
    """One server process of an engine, pretended. A subclass adds the engine's routes and rules.

    `exit_process`: what a dying worker does after its sockets are gone; the default does nothing, so that a worker that
    shares a process with others dies alone.
    """

    def __init__(self, options: SimulatorOptions, *, exit_process: Exit | None = None) -> None:
        self.options = options
        self.vocabulary = options.vocabulary
        self.codec = options.codec or word_codec(options.vocabulary)
        rule = (
            options.rule
            if options.reply is None
            else replace(options.rule, text=tuple(self.codec.encode(options.reply)))
        )
        self.voice = Voice(options.vocabulary, rule, options.seed)
        self._scribe = (
            Scribe(options.codec, options.vocabulary, options.seed, calls_tools=options.calls_tools)
            if options.codec is not None and not rule.text
            else None
        )
        self.faults = Faults(options.faults)
        self.answers: set[Answer] = set()
        self.engine_ids = [str(uuid.uuid4()) for _ in range(options.dp_size)]
        self.started_at = time.time()
        self.dead = False
        self.draining = False
        self.models: list[EngineModel] = []
        self.server = HttpServer(self._handle, self._connected, options.segment_bytes)
        self.port = 0
        self.bootstrap_port = 0
        """Where decode peers find this worker (SGLang prefill); 0: nowhere."""
        self._exit_process = exit_process
        self._runners: list[Runner] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._silence: asyncio.Event | None = None
        self._timers: set[asyncio.TimerHandle] = set()
        self.routes: dict[str, dict[str, Handler]] = {
            "/_sim/state": {"GET": self._state_route},
            "/_sim/faults": {
                "POST": self._faults_route,
                "DELETE": self._clear_faults_route,
                "GET": self._show_faults_route,
            },
            "/_sim/kv/read": {"POST": self._kv_read_route},
            "/_sim/kv/release": {"POST": self._kv_release_route},
            "/_sim/kv/extend": {"POST": self._kv_extend_route},
        }

    # ---- life

    async def start(self) -> None:
        """Listens; raises OSError when the port is taken."""
        self.loop = asyncio.get_running_loop()
        options = self.options
        for _ in range(options.dp_size):
            cache = KvCache(options.blocks, options.block_size, options.reuse)
            model = EngineModel(self.voice, cache, self.loop.time, options.pace, load=self.load)
            self.models.append(model)
            self._runners.append(Runner(model, self.loop))
        self.port = await self.server.listen(options.host, options.port)
        self.faults.changed = self._refuse_or_listen
        self._refuse_or_listen()

    def kill(self) -> None:
        """Ends at once, as a killed process does: nothing more is written, connections break, the port is closed."""
        self.dead = True
        self._halt()
        self.server.kill()

    def close(self) -> None:
        """Ends at once, but closes the connections in good order."""
        self.dead = True
        self._halt()
        self.server.close()

    def die(self) -> None:
        """The engine takes its process down with it."""
        self.kill()
        if self._exit_process is not None:
            self._exit_process(self)

    async def shutdown(self) -> None:
        """What SIGTERM does, to the end: by default all running answers are waited for, new connections refused."""
        self.draining = True
        self.server.stop_listening()
        await self.quiet()
        self.close()

    async def quiet(self, timeout_s: float | None = None) -> None:
        """Waits until no answer is under way, but not longer than `timeout_s`."""
        if self.answers:
            self._silence = asyncio.Event()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._silence.wait()
            except TimeoutError:
                pass

    def answer_ended(self, answer: Answer) -> None:
        self.answers.discard(answer)
        if not self.answers and self._silence is not None:
            self._silence.set()

    def _halt(self) -> None:
        for runner in self._runners:
            runner.stop()
        for task in list(self._tasks):
            task.cancel()
        for timer in list(self._timers):
            timer.cancel()
        self._timers.clear()
        for answer in list(self.answers):
            answer.abandon()

    # ---- what subclasses use

    def script(
        self, prompt: Sequence[int], constraint: Constraint | None, temperature: float, seed: int | None
    ) -> tuple[int, ...]:
        """The answer that a constraint or the tools in the prompt lead to; none where the model says what it likes."""
        return () if self._scribe is None else self._scribe.script(prompt, constraint, temperature, seed)

    @property
    def model(self) -> EngineModel:
        """The first rank's model; the only one unless `dp_size` says otherwise."""
        return self.models[0]

    @property
    def advertised_host(self) -> str:
        return self.options.advertised_host or self.options.host

    @property
    def waiting(self) -> int:
        return sum(len(model.waiting) + len(model.loading) for model in self.models)

    @property
    def running(self) -> int:
        return sum(len(model.running) for model in self.models)

    def least_loaded(self) -> int:
        """The rank with the fewest sequences."""
        return min(
            range(len(self.models)), key=lambda rank: len(self.models[rank].running) + len(self.models[rank].waiting)
        )

    def rank_of(self, engine_id: object) -> int | None:
        return self.engine_ids.index(engine_id) if engine_id in self.engine_ids else None

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that ends with the worker."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """A timer that ends with the worker."""

        def fire() -> None:
            self._timers.discard(handle)
            call()

        handle = self.loop.call_later(seconds, fire)
        self._timers.add(handle)
        return handle

    def never(self, timer: asyncio.TimerHandle) -> None:
        """Cancels what `later` returned."""
        timer.cancel()
        self._timers.discard(timer)

    def load(self, job: Job) -> None:
        """The model asks for a peer's KV. Engines that hand KV over say how."""
        raise NotImplementedError(f"{type(self).__name__} takes no KV from peers")

    def unknown_route(self, exchange: Exchange) -> None:
        exchange.json(404, {"detail": "Not Found"})

    def wrong_method(self, exchange: Exchange, allowed: list[str]) -> None:
        exchange.json(405, {"detail": "Method Not Allowed"}, {"allow": ", ".join(allowed)})

    def gauges(self) -> dict[str, int]:
        """More counters for `/_sim/state`."""
        return {}

    def state(self) -> dict[str, Any]:
        """What is going on inside; all of the first line of counters are zero when nothing is held or running."""
        caches = [model.cache for model in self.models]
        return {
            "blocks_used": sum(cache.used for cache in caches),
            "blocks_pinned": sum(cache.pinned for cache in caches),
            "pins": sum(cache.pins for cache in caches),
            "requests_running": self.running,
            "requests_waiting": self.waiting,
            "answers": len(self.answers),
            "rooms": 0,
            **self.gauges(),
            "blocks_free": sum(cache.free for cache in caches),
            "expired_pins": sum(cache.expired_pins for cache in caches),
            "preemptions": sum(model.preemptions for model in self.models),
            "connections": len(self.server.connections),
            "timers": len(self._timers),
            "tasks": len(self._tasks),
            "faults_committed": self.faults.committed,
            "faults_pending": len(self.faults.pending),
        }

    # ---- HTTP

    def _handle(self, exchange: Exchange) -> None:
        methods = self.routes.get(exchange.path)
        if methods is None:
            methods = self.dynamic_route(exchange.path)
        if methods is None:
            self.unknown_route(exchange)
            return
        handler = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if handler is None:
            self.wrong_method(exchange, list(methods))
            return
        handler(exchange)

    def dynamic_route(self, path: str) -> dict[str, Handler] | None:
        """Routes with a variable part."""
        return None

    def _connected(self, connection: Connection) -> None:
        fault = self.faults.at_connect()
        if fault is None:
            return
        if fault.kind == "reset":
            connection.reset()
        elif fault.kind == "close":
            connection.transport.close()
        elif fault.kind == "silence":
            connection.deaf = True
        elif fault.kind == "die":
            self.die()

    def _refuse_or_listen(self) -> None:
        if self.dead:
            return
        refusal = self.faults.refusal
        if refusal is not None and self.server.listening:
            self.server.stop_listening()
            if refusal.value:
                self.later(refusal.value, lambda: self.faults.remove(refusal))
        elif refusal is None and not self.server.listening and not self.draining:
            self.spawn(self.server.listen_again())

    def _state_route(self, exchange: Exchange) -> None:
        exchange.json(200, self.state())

    def _show_faults_route(self, exchange: Exchange) -> None:
        exchange.json(200, {"faults": [str(fault) for fault in self.faults.pending]})

    def _clear_faults_route(self, exchange: Exchange) -> None:
        self.faults.clear()
        exchange.json(200, {"faults": []})

    def _faults_route(self, exchange: Exchange) -> None:
        """Body: `{"faults": ["reset@token:5", …]}`."""
        try:
            faults = [Fault.parse(text) for text in orjson.loads(exchange.body)["faults"]]
        except (ValueError, TypeError, KeyError) as error:
            exchange.json(400, {"error": str(error)})
            return
        for fault in faults:
            self.faults.add(fault)
        exchange.json(200, {"faults": [str(fault) for fault in self.faults.pending]})

    # ---- what peers ask for

    def _kv_read_route(self, exchange: Exchange) -> None:
        """A one-sided read: `{engine_id, name, blocks, tokens}`. Gives what the blocks hold now, whose they may be.

        The reader's notification is in it: a pin of that name is released; a pin that is gone is only counted.
        """
        asked = orjson.loads(exchange.body)
        rank = self.rank_of(asked["engine_id"])
        if rank is None:
            exchange.json(409, {"error": "no such engine"})
            return
        model = self.models[rank]
        contents = model.cache.read(asked["blocks"], asked["tokens"])
        known = model.cache.unpin(asked["name"])
        self.kv_was_read(asked["name"], known)
        model.wake()
        exchange.json(200, {"contents": contents, "block_size": model.cache.block_size, "known": known})

    def _kv_release_route(self, exchange: Exchange) -> None:
        asked = orjson.loads(exchange.body)
        known = any(model.cache.unpin(asked["name"]) for model in self.models)
        for model in self.models:
            model.wake()
        exchange.json(200, {"known": known})

    def _kv_extend_route(self, exchange: Exchange) -> None:
        asked = orjson.loads(exchange.body)
        until = self.loop.time() + self.lease_extension_s()
        exchange.json(200, {"known": any(model.cache.extend(asked["name"], until) for model in self.models)})

    def kv_was_read(self, name: str, known: bool) -> None:
        """A peer has read pinned blocks (`known`), or blocks that were not pinned any more."""

    def lease_extension_s(self) -> float:
        """How far a reader's heartbeat moves a lease."""
        return 0.0


def exit_now(worker: SimulatedWorker) -> None:
    """For a worker that has a process to itself."""
    os._exit(1)
