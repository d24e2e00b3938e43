"""One model, its workers, and all that stands between its requests and them; time moves when a test says so."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from engines import adapter_for
from engines.base import EngineAdapter
from engines.openai_text import OpenAIAdapter
from pipeline.background import Background
from pipeline.build import Resilience, TokenService, build_preprocessed_pipeline
from pipeline.context import RequestContext
from pipeline.deadlines import Deadlines
from pipeline.dispatch import WorkerRouter
from pipeline.handoff import PrefillOutcome
from pipeline.migration import MigrationLimits
from pipeline.prefill import PrefillRouter
from pipeline.service import Service, link
from pipeline.ticker import Ticker
from protocols.errors import GatewayError
from protocols.options import OutputOptions, SamplingOptions, StopConditions
from protocols.outputs import FinishReason
from protocols.preprocessed import PreprocessedRequest, RoutingHints
from protocols.worker import Engine, Leg, Role, Worker
from routers.load import Loads
from routers.modes import RouterMode, build_profile
from simulator.fleet import Simulator, running
from simulator.options import SimulatorOptions
from telemetry.tracker import RequestTracker
from tests.pipeline.dialects import PROMPT, Dialect
from tests.pipeline.doors import DoorClient
from tests.pipeline.scripted import PATIENCE_S, ScriptedWorker, scripted_worker
from workers.registry import Registry

MODEL = "m"
NEVER_S = 3600.0


class Clock:
    """The loop's time, moved on by `forward`; the loop's timers move along."""

    def __init__(self) -> None:
        self._skew = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._skew

    def rule(self, loop: Any) -> None:
        loop.time = self

    def forward(self, seconds: float) -> None:
        self._skew += seconds


class Seen:
    """An observer of everything."""

    def __init__(self) -> None:
        self.chosen_legs: list[Leg] = []
        self.refusals: list[GatewayError] = []
        self.failures: list[tuple[int, Leg, GatewayError]] = []
        self.outcomes: list[PrefillOutcome] = []
        self.migrations: list[str] = []

    def chosen(self, leg: Leg, removed: Mapping[str, Sequence[int]]) -> None:
        self.chosen_legs.append(leg)

    def refused(self, leg: Leg, error: GatewayError) -> None:
        self.refusals.append(error)

    def failed(self, worker: Worker, leg: Leg, error: GatewayError) -> None:
        self.failures.append((worker.id, leg, error))

    def prefilled(self, outcome: PrefillOutcome) -> None:
        self.outcomes.append(outcome)

    def migrating(self, kind: str, error: GatewayError) -> None:
        self.migrations.append(kind)


class Taken:
    """A sink that keeps what it is given. `then` is called with itself after each batch, and may raise."""

    def __init__(self, then: Callable[[Taken], None] | None = None) -> None:
        self.outputs: list[Any] = []
        self.batches = 0
        self.closed = False
        self._then = then
        self._more = asyncio.Event()

    def __call__(self, outputs: Sequence[Any]) -> None:
        assert not self.closed, "called after the call had ended"
        assert outputs
        self.batches += 1
        self.outputs += outputs
        self._more.set()
        if self._then is not None:
            self._then(self)

    @property
    def ids(self) -> list[int]:
        return [token_id for output in self.outputs for token_id in output.token_ids]

    @property
    def text(self) -> str:
        return "".join(output.text or "" for output in self.outputs)

    @property
    def finish(self) -> FinishReason | None:
        return self.outputs[-1].finish_reason if self.outputs else None

    @property
    def cached_tokens(self) -> int | None:
        """As a client is told: the first figure that came."""
        usages = [output.completion_usage for output in self.outputs if output.completion_usage is not None]
        return next((usage.cached_tokens() for usage in usages if usage.cached_tokens() is not None), None)

    async def holds(self, *ids: int) -> None:
        """Until these ids, and no others, have come."""
        async with asyncio.timeout(PATIENCE_S):
            while self.ids != list(ids):
                self._more.clear()
                await self._more.wait()


class Asked:
    """A request on its way."""

    def __init__(self, service: Service[Any, Any], request: Any, context: RequestContext, sink: Taken) -> None:
        self.context = context
        self.sink = sink
        self.task = asyncio.create_task(self._run(service, request))

    async def _run(self, service: Service[Any, Any], request: Any) -> None:
        try:
            await service(request, self.context, self.sink)
        finally:
            self.sink.closed = True

    async def ends(self) -> None:
        """Until the call has returned; raises what it raised."""
        async with asyncio.timeout(PATIENCE_S):
            await self.task

    async def fails(self) -> BaseException:
        """Until the call has raised, and what."""
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([self.task])
        error = self.task.exception()
        assert error is not None, "it ended well"
        return error

    async def leave(self) -> None:
        """The client leaves."""
        self.task.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([self.task])
        assert self.task.cancelled()


class Rig:
    """`policy`: what happens without prefill workers. `limits`: how far a resilient answer may wander."""

    def __init__(
        self, *, policy: str | None = None, limits: MigrationLimits | None = None, deadlines: Deadlines | None = None
    ) -> None:
        self.clock = Clock()
        self.loads = Loads()
        self.registry = Registry(_adapter, self.loads, clock=self.clock)
        self.client = DoorClient()
        self.ticker = Ticker(NEVER_S)
        self.background = Background()
        self.seen = Seen()
        self.complaints: list[str] = []
        """What the loop could hand to nobody."""
        self.router = WorkerRouter(
            MODEL,
            registry=self.registry,
            client=self.client,
            loads=self.loads,
            profiles={leg: build_profile(RouterMode.ROUND_ROBIN, MODEL, leg, random.Random(1)) for leg in Leg},
            deadlines=deadlines or Deadlines(),
            ticker=self.ticker,
            clock=self.clock,
            observer=self.seen,
        )
        self.prefill = PrefillRouter(self.router, policy=policy, observer=self.seen)
        self.resilience = Resilience(limits or MigrationLimits(), self.seen)
        self._stack = AsyncExitStack()
        self._next_id = 0

    async def __aenter__(self) -> Rig:
        self.registry.declare(MODEL)
        loop = asyncio.get_running_loop()
        self.clock.rule(loop)
        loop.set_exception_handler(lambda _, context: self.complaints.append(str(context)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.background.drain(0.0)
        self.ticker.close()
        self.client.close()
        await asyncio.sleep(0)
        complaints = list(self.complaints)
        # What the scripted servers' own tasks say when they are cancelled is Python 3.11's, not ours.
        await self._stack.aclose()
        assert not complaints, complaints

    # ---- workers

    async def scripted(self, dialect: type[Dialect], role: Role, **more: Any) -> ScriptedWorker:
        """A worker that a test plays."""
        scripted, url = await self._stack.enter_async_context(scripted_worker())
        settings = {**dialect.worker, "traits": dialect.traits, **more}
        scripted.worker = Worker(self._id(), url, dialect.engine, role, **settings)
        self._add(scripted.worker)
        return scripted

    async def pair(self, dialect: type[Dialect], **more: Any) -> tuple[ScriptedWorker, ScriptedWorker]:
        """A prefill and a decode worker."""
        return await self.scripted(dialect, Role.PREFILL, **more), await self.scripted(dialect, Role.DECODE, **more)

    def absent(self, dialect: type[Dialect], role: Role, **more: Any) -> Worker:
        """A worker that nobody can connect to."""
        settings = {**dialect.worker, "traits": dialect.traits, **more}
        worker = Worker(self._id(), "http://127.0.0.1:9", dialect.engine, role, **settings)
        self._add(worker)
        return worker

    async def simulated(self, options: SimulatorOptions, **more: Any) -> Simulator:
        simulator = await self._stack.enter_async_context(running(options))
        settings: dict[str, Any] = {**simulator.worker_kwargs, **more}
        engine, role, url = settings.pop("engine"), Role(settings.pop("role")), settings.pop("url")
        self._add(Worker(self._id(), url, Engine(engine), role, **settings))
        return simulator

    def _id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _add(self, worker: Worker) -> None:
        self.registry.add(MODEL, worker)
        self.registry.answered(worker.id)

    # ---- requests

    @property
    def tokens(self) -> TokenService:
        """One attempt, disaggregated or not."""
        return link(self.prefill, self.router)

    @property
    def resilient(self) -> TokenService:
        """Attempts until one completes."""
        return build_preprocessed_pipeline(self.prefill, self.router, self.resilience)

    def context(self, deadline: float | None = None) -> RequestContext:
        return RequestContext(
            "r1",
            MODEL,
            clock=self.clock,
            background=self.background,
            tracker=RequestTracker(self.clock),
            deadline=deadline,
        )

    def ask(
        self,
        request: Any = None,
        *,
        service: Service[Any, Any] | None = None,
        context: RequestContext | None = None,
        sink: Taken | None = None,
    ) -> Asked:
        return Asked(service or self.tokens, request or request_of(), context or self.context(), sink or Taken())

    # ---- time, and what is left

    def tick(self, seconds: float = 0.0) -> None:
        """So many seconds pass, and every deadline is looked at."""
        self.clock.forward(seconds)
        self.ticker.tick(self.clock())

    async def drained(self) -> None:
        """Until the application's own tasks are done."""
        async with asyncio.timeout(PATIENCE_S):
            await self.background.drain(PATIENCE_S)

    def held(self, *contexts: RequestContext) -> dict[str, Any]:
        """What is still counted, watched or under way; empty when nothing is."""
        states = self.registry.states()
        left = {
            "loads": {
                state.worker.id: (state.prefill, state.decode) for state in states if state.prefill or state.decode
            },
            "watches": len(self.ticker),
            "background": len(self.background),
            "replies": sum(len(context.flow) for context in contexts),
            "tasks": [task for task in asyncio.all_tasks() if "/pipeline/" in _file_of(task) and not _of_tests(task)],
        }
        return {name: value for name, value in left.items() if value}

    def standing(self, worker: ScriptedWorker | Worker) -> str:
        worker_id = worker.id
        return next(state.status.value for state in self.registry.states() if state.worker.id == worker_id)


def _adapter(worker: Worker, model: str) -> EngineAdapter:
    return OpenAIAdapter(worker, model) if worker.engine is Engine.OPENAI else adapter_for(worker, model)


def _file_of(task: asyncio.Task[Any]) -> str:
    coroutine: Any = task.get_coro()
    return str(coroutine.cr_code.co_filename)


def _of_tests(task: asyncio.Task[Any]) -> bool:
    return "/tests/" in _file_of(task)


def request_of(
    *,
    prompt: Sequence[int] = PROMPT,
    stop: Mapping[str, Any] | None = None,
    sampling: Mapping[str, Any] | None = None,
    output: Mapping[str, Any] | None = None,
    routing: Mapping[str, Any] | None = None,
    **more: Any,
) -> PreprocessedRequest:
    """Three prompt tokens, 64 to come, eos 2."""
    request = PreprocessedRequest(
        token_ids=tuple(prompt),
        model=MODEL,
        stop_conditions=StopConditions(**{"max_tokens": 64, **(stop or {})}),
        sampling_options=SamplingOptions(**(sampling or {})),
        output_options=OutputOptions(**(output or {})),
        eos_token_ids=(2,),
        routing=RoutingHints(**routing) if routing is not None else None,
    )
    return replace(request, **more)
