"""A whole gateway and its simulated workers, serving real sockets from a thread of their own.

The loop is the one of production (uvloop). A story talks to the house from outside, with blocking clients as anyone
would; `call` looks inside, on the loop itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import openai
import uvloop

from app.config_document import ConfigDocument
from app.gateway import Gateway
from app.settings import Settings, settings_of
from app.simulate import DEMO_MODEL, tokenizer_of
from protocols.worker import worker_id_of
from simulator.fleet import Fleet, Simulator, start
from simulator.model import Pace
from simulator.options import SimulatorOptions
from simulator.vocabulary import Codec, Vocabulary
from tests.stories.wire import Wire

T = TypeVar("T")

QUICK = Pace(ttft_s=0.0005, prefill_s=1e-6, decode_s=0.0005, batch_s=0.0, transfer_s=1e-6)
PAIRED = ("vllm", "sglang", "trtllm", "native")
"""The engines that take token ids, alone or in pairs."""
QUOTED = 'He said "data: [DONE]",\n\ndata: [DONE]\n\nthen left 👩‍👩‍👧 for 日本語 — naïve café \u2028 end.'
"""What the model "quoted" always says."""
HELD = (
    "blocks_used",
    "blocks_pinned",
    "pins",
    "requests_running",
    "requests_waiting",
    "answers",
    "rooms",
)
"""The counters of a worker that are zero when nobody wants anything of it."""


@functools.cache
def demo_tokenizer() -> tuple[Codec, Vocabulary]:
    return tokenizer_of(DEMO_MODEL)


@dataclass(frozen=True)
class Hosted:
    """A model and its workers, one for each of `roles`. `options` are the simulator's, `settings` the model's."""

    name: str
    engine: str
    roles: Sequence[str] = ("aggregated",)
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def simulators(self) -> list[SimulatorOptions]:
        codec, vocabulary = demo_tokenizer()
        shared = SimulatorOptions(
            engine=self.engine,
            model=self.name,
            model_path=str(DEMO_MODEL),
            vocabulary=vocabulary,
            codec=codec,
            pace=QUICK,
            blocks=640,
        )
        return [dataclasses.replace(shared, role=role, **self.options) for role in self.roles]


def pair(engine: str, name: str = "", *, prefill: int = 2, decode: int = 2, **options: Any) -> Hosted:
    """A disaggregated model."""
    return Hosted(name or f"pair-{engine}", engine, ("prefill",) * prefill + ("decode",) * decode, options)


def solo(engine: str, name: str = "", *, workers: int = 1, **options: Any) -> Hosted:
    """A model of aggregated workers."""
    return Hosted(name or f"solo-{engine}", engine, ("aggregated",) * workers, options)


def second() -> float:
    """A second, as long as it takes a machine that has other work to do, too."""
    return max(1.0, os.getloadavg()[0])


class House:
    """`settings`: the sections of the configuration beside `models`, by name; `outside`: models of workers elsewhere.

    As a context manager it is open, with every model servable, from entry to exit.
    """

    def __init__(
        self, models: Sequence[Hosted], outside: Sequence[Mapping[str, Any]] = (), **settings: Mapping[str, Any]
    ) -> None:
        self.models = list(models)
        self._outside = outside
        self.faults: list[str] = []
        """What the loop could hand to nobody: always somebody's bug."""
        self._sections = settings
        self._opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="house", daemon=True)
        self._wires: list[Wire] = []
        self._stuck = False
        self._sdk: openai.OpenAI | None = None
        self._http: httpx.Client | None = None
        self.gateway: Gateway
        self.fleet: Fleet

    # ---- its life

    def __enter__(self) -> House:
        self._thread.start()
        self._opened.result(20)
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        self.closed()

    def leave(self) -> None:
        """Begins to close."""
        self.hang_up()
        for client in (self._sdk, self._http):
            if client is not None:
                client.close()
        self.loop.call_soon_threadsafe(self._closing.set)

    def closed(self) -> None:
        """Until it is closed."""
        self._thread.join(20)
        assert not self._thread.is_alive(), "the house did not close"
        assert self.faults == []

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._live())
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)

    async def _live(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(lambda _, context: self.faults.append(_told(context)))
        self._closing = asyncio.Event()
        options = [option for model in self.models for option in model.simulators()]
        async with Fleet(options) as self.fleet, Gateway(self._settings()) as self.gateway:
            await self.gateway.ready(10)
            self._opened.set_result(None)
            await self._closing.wait()

    def _settings(self) -> Settings:
        models = [dict(model) for model in self._outside]
        for model in self.models:
            workers = [simulator.worker_kwargs for simulator in self.workers(model.name)]
            path = {} if model.engine == "openai" else {"path": str(DEMO_MODEL)}
            models.append({"name": model.name, **path, "workers": workers, **model.settings})
        server = {"port": 0, "shutdown_timeout_s": 1.0, **self._sections.get("server", {})}
        return settings_of(ConfigDocument("stories", {**self._sections, "server": server, "models": models}))

    # ---- clients

    @property
    def base_url(self) -> str:
        host, port = self.gateway.address
        return f"http://{host}:{port}"

    @property
    def sdk(self) -> openai.OpenAI:
        """The real client, told not to try again by itself."""
        if self._sdk is None:
            self._sdk = openai.OpenAI(base_url=f"{self.base_url}/v1", api_key="unused", max_retries=0, timeout=10)
        return self._sdk

    @property
    def http(self) -> httpx.Client:
        if self._http is None:
            self._http = httpx.Client(base_url=self.base_url, timeout=10)
        return self._http

    def wire(self, **options: Any) -> Wire:
        """A bare connection."""
        self._wires.append(Wire(*self.gateway.address, **options))
        return self._wires[-1]

    def narrow(self) -> None:
        """From now on, the kernel holds little of what is sent to clients."""
        server = self.gateway._server
        assert server is not None
        for listener in (listener for listening in server.servers for listener in listening.sockets):
            with socket.socket(fileno=os.dup(listener.fileno())) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)

    def hang_up(self) -> None:
        """Ends the connections that a story has left open."""
        while self._wires:
            self._wires.pop().close()

    # ---- a look inside

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls it on the house's loop."""

        async def called() -> T:
            return function(*arguments)

        return self.wait(called())

    def wait(self, work: Coroutine[Any, Any, T], timeout_s: float = 10.0) -> T:
        """Runs it on the house's loop. A loop that once did not turn is not asked again."""
        assert not self._stuck, "the house's loop does not turn"
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)
        except TimeoutError:
            self._stuck = True
            raise

    def workers(self, model: str, role: str | None = None) -> list[Simulator]:
        """A model's workers, whatever they call it."""
        first = 0
        for hosted in self.models:
            count = len(hosted.roles)
            if hosted.name == model:
                found = self.fleet.simulators[first : first + count]
                return [simulator for simulator in found if role in (None, simulator.options.role)]
            first += count
        raise KeyError(model)

    def by_id(self, worker_id: str | int) -> Simulator:
        """The worker that an explanation names."""
        return next(sim for sim in self.fleet.simulators if worker_id_of(sim.url) == int(worker_id))

    def kill(self, simulator: Simulator) -> None:
        self.call(simulator.kill)

    def revive(self, simulator: Simulator) -> None:
        """Starts a dead worker again, at its old port."""
        worker = simulator.worker
        options = dataclasses.replace(worker.options, port=worker.port, bootstrap_port=worker.bootstrap_port)
        place = self.fleet.simulators.index(simulator)
        self.fleet.simulators[place] = self.wait(start(options))

    def count(self, family: str, **labels: str) -> float:
        """The sum over a metric's series with these labels; `family` is the name of an attribute of `Metrics`."""
        return self.call(self._count, family, labels)

    def _count(self, family: str, labels: Mapping[str, str]) -> float:
        series = getattr(self.gateway.telemetry.metrics, family)
        wanted = set(labels.items())
        return sum(
            child.value for values, child in series.items() if wanted <= set(zip(series.labels, values, strict=True))
        )

    def eventually(self, true: Callable[[], Any], within_s: float = 1.0) -> float:
        """Until `true()` holds, asked on the house's loop; how long it took, in seconds.

        `within_s` are seconds of a machine that has nothing else to do.
        """
        within_s *= second()
        return self.wait(_eventually(true, within_s), within_s + 5)

    def rest(self, within_s: float = 1.0) -> None:
        """The end of a story: what it left is closed, and nobody may hold anything or have shown a bug."""
        self.hang_up()
        self.settle(within_s)
        assert self.faults == []

    def settle(self, within_s: float = 1.0) -> None:
        """Until nobody holds anything: no worker, no load, no counter. Raises AssertionError saying what is left."""
        try:
            self.eventually(lambda: not self._left(), within_s)
        except AssertionError:
            raise AssertionError(f"still held after {within_s} s: {self.call(self._left)}") from None

    def _left(self) -> list[str]:
        return [*self._left_at_workers(), *self._left_at_gateway()]

    def _left_at_workers(self) -> Iterator[str]:
        for simulator in self.fleet.simulators:
            if not simulator.worker.dead:
                state = simulator.state()
                name = f"{simulator.options.model} {simulator.options.role}"
                yield from (f"{name}: {key} {state[key]}" for key in HELD if state[key])

    def _left_at_gateway(self) -> Iterator[str]:
        gateway = self.gateway
        yield from (
            f"{state.model} {state.role.value}: load {state.prefill} {state.decode}"
            for state in gateway.registry.states()
            if state.prefill or state.decode
        )
        counted = {
            "background tasks": len(gateway.background),
            "bodies": gateway.bodies.bytes,
            "requests": gateway.bodies.requests,
            "ticker watches": len(gateway.ticker),
            "tasks of requests": sum(map(_of_a_request, asyncio.all_tasks())),
        }
        counted |= {gauge: self._count(gauge, {}) for gauge in ("inflight", "waiting")}
        yield from (f"{name} {count}" for name, count in counted.items() if count)


async def _eventually(true: Callable[[], Any], within_s: float) -> float:
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > within_s:
            raise AssertionError(f"not within {within_s} s")
        await asyncio.sleep(0.003)
    return time.monotonic() - began


def _of_a_request(task: asyncio.Task[Any]) -> bool:
    """Was the task made for a request, by the server or on its way down?"""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and ("/pipeline/" in code.co_filename or code.co_qualname == "Turn.run")


def _told(context: Mapping[str, Any]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r}"
