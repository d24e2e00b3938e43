"""Starting simulated workers: one, many, or one for good in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from simulator.faults import Faults
from simulator.model import EngineModel
from simulator.native import NativeWorker
from simulator.openai import OpenAIWorker
from simulator.options import SimulatorOptions
from simulator.sglang import SglangWorker
from simulator.trtllm import TrtllmWorker
from simulator.vllm import VllmWorker
from simulator.worker import SimulatedWorker, exit_now

_WORKERS: dict[str, type[SimulatedWorker]] = {
    "vllm": VllmWorker,
    "sglang": SglangWorker,
    "trtllm": TrtllmWorker,
    "openai": OpenAIWorker,
    "native": NativeWorker,
}


@dataclass(frozen=True)
class Simulator:
    """A running simulated worker."""

    worker: SimulatedWorker

    @property
    def options(self) -> SimulatorOptions:
        return self.worker.options

    @property
    def url(self) -> str:
        host = self.worker.options.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.worker.port}"

    @property
    def worker_kwargs(self) -> dict[str, Any]:
        """What a gateway's configuration says of this worker, beside id and model."""
        options = self.worker.options
        kwargs: dict[str, Any] = {"url": self.url, "engine": options.engine, "role": options.role}
        if self.worker.bootstrap_port:
            kwargs |= {"bootstrap_host": self.worker.advertised_host, "bootstrap_port": self.worker.bootstrap_port}
        if options.dp_size > 1:
            kwargs["dp_size"] = options.dp_size
        return kwargs

    @property
    def faults(self) -> Faults:
        return self.worker.faults

    @property
    def engine(self) -> EngineModel:
        """The pure model of the first rank."""
        return self.worker.model

    def state(self) -> dict[str, Any]:
        """The counters of `GET /_sim/state`."""
        return self.worker.state()

    def kill(self) -> None:
        """Ends the worker as `kill -9` ends a process."""
        self.worker.kill()

    async def stop(self) -> None:
        """Ends the worker as SIGTERM does."""
        if not self.worker.dead:
            await self.worker.shutdown()


async def start(options: SimulatorOptions) -> Simulator:
    """Starts one worker in the running loop. Raises OSError when its port is taken."""
    worker = _WORKERS[options.engine](options)
    await worker.start()
    return Simulator(worker)


@contextlib.asynccontextmanager
async def running(options: SimulatorOptions) -> AsyncIterator[Simulator]:
    """One worker in the running loop; it is gone when the block is left."""
    simulator = await start(options)
    try:
        yield simulator
    finally:
        simulator.worker.close()
        await asyncio.sleep(0)


class Fleet:
    """Many workers in the running loop, in the order of their options."""

    def __init__(self, options: Iterable[SimulatorOptions]) -> None:
        self._options = list(options)
        self.simulators: list[Simulator] = []

    async def __aenter__(self) -> Fleet:
        try:
            for options in self._options:
                self.simulators.append(await start(options))
        except OSError:
            self._close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._close()
        await asyncio.sleep(0)

    def _close(self) -> None:
        for simulator in self.simulators:
            simulator.worker.close()

    def select(
        self, *, model: str | None = None, engine: str | None = None, role: str | None = None
    ) -> list[Simulator]:
        """The workers with this model name, engine and role."""
        wanted = {"model": model, "engine": engine, "role": role}
        return [
            simulator
            for simulator in self.simulators
            if all(value is None or getattr(simulator.options, name) == value for name, value in wanted.items())
        ]


def run(options: SimulatorOptions) -> None:
    """Serves one worker in this process until SIGTERM or SIGINT; each engine shuts down in its own way."""
    asyncio.run(_serve(options))


async def _serve(options: SimulatorOptions) -> None:
    worker = _WORKERS[options.engine](options, exit_process=exit_now)
    await worker.start()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def told() -> None:
        """The second time it is meant: an engine that drains without limit goes at once."""
        if stop.is_set():
            worker.kill()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    simulator = Simulator(worker)
    print(f"{options.engine} {options.role} worker of {options.model} on {simulator.url}", flush=True)
    await stop.wait()
    await worker.shutdown()
