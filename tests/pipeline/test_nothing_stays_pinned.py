"""However a prefill's work comes to be thrown away, its blocks are read or released, long before their lease ends.

Engine by moment by way, against simulated workers whose time is the rig's. The leases last thirty seconds or for ever;
what is held five seconds after the event was forgotten. Each takes some 50 ms, some twice as long: every simulated
second costs turns of the loop, in which the workers' sockets are served.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pipeline.deadlines import Deadlines
from protocols.errors import DeadlineExceeded, Enough, InvalidRequest, WorkerSilent
from protocols.preprocessed import PreprocessedRequest
from protocols.worker import WorkerTraits
from simulator.fleet import Simulator
from simulator.model import Pace
from simulator.options import NativeOptions, SimulatorOptions, TrtllmOptions, VllmOptions
from tests.pipeline.rig import Asked, Rig, Taken, request_of
from tests.pipeline.scripted import PATIENCE_S

SLOW = Pace(ttft_s=0.5, prefill_s=0.0, decode_s=0.05, batch_s=0.0, transfer_s=0.05)
"""A prefill takes half a second, and the KV's way about as long."""
PROMPT = tuple(range(200, 360))
WITHIN_S = 5.0
HELD = ("blocks_used", "blocks_pinned", "pins", "requests_running", "requests_waiting", "answers", "rooms")

OPEN = {"traits": WorkerTraits(served_name="sim-model", generate=True)}
ENGINES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vllm": ({}, OPEN),
    "vllm-closed": ({"vllm": VllmOptions(scale_out=False)}, {"served_name": "sim-model"}),
    "trtllm": ({"trtllm": TrtllmOptions(transfer_timeout_s=None)}, {"served_name": "sim-model"}),
    "native": ({"native": NativeOptions(pin_s=1e9)}, {"served_name": "sim-model"}),
    "native-tied": ({"native": NativeOptions(pin_s=1e9, bootstrap=True)}, {"served_name": "sim-model"}),
    "sglang": ({}, {"served_name": "sim-model"}),
}
"""What the simulator is told, and what the gateway knows of it."""
IN_TURN = ("vllm", "vllm-closed", "trtllm", "native")


QUICK_TURNS = 100
"""Steps of simulated time before it slows down."""


@dataclass
class Scene:
    """A pair (with more decode workers where a story wants them) and a request that is on its way to it."""

    rig: Rig
    prefill: Simulator
    decodes: list[Simulator]
    asked: Asked

    @property
    def decode(self) -> Simulator:
        return self.decodes[0]

    async def passes(self, seconds: float) -> None:
        """Simulated time, in steps that sockets can follow."""
        for _ in range(round(seconds / 0.05)):
            self.rig.tick(0.05)
            for _ in range(4):
                await asyncio.sleep(0)

    async def until(self, true: Callable[[], bool]) -> None:
        """Time passes until it holds, and the loop does not turn once more.

        Sockets may be slower than simulated time: after a while that goes on slowly, so that they keep up.
        """
        patience = time.monotonic() + PATIENCE_S
        turns = 0
        while time.monotonic() < patience:
            for _ in range(4):
                await asyncio.sleep(0)
                if true():
                    return
            turns += 1
            if turns > QUICK_TURNS:
                time.sleep(0.001)
            if turns <= QUICK_TURNS or turns % 10 == 0:
                self.rig.tick(0.05)
        raise AssertionError("it never came to that")

    def held(self) -> list[str]:
        return [
            f"{simulator.options.role}: {name} {count}"
            for simulator in (self.prefill, *self.decodes)
            if not simulator.worker.dead
            for name in HELD
            if (count := simulator.state()[name])
        ]

    async def rests(self, within_s: float = WITHIN_S) -> None:
        """Within so many simulated seconds nothing is held by anybody, and no lease has had to see to it."""
        for _ in range(round(within_s / 0.25)):
            if not self.held() and not self.rig.background:
                break
            await self.passes(0.25)
        patience = time.monotonic() + PATIENCE_S
        while (self.held() or self.rig.background) and time.monotonic() < patience:
            # What sockets still have to bring, in no time of theirs.
            time.sleep(0.001)
            await asyncio.sleep(0)
        assert self.held() == []
        assert self.rig.held(self.asked.context) == {}
        assert self.prefill.state()["expired_pins"] == 0
        assert self.rig.complaints == []


Stage = Callable[..., Awaitable[Scene]]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """Sets a scene. `faults` are the first decode worker's, `prefill_faults` the prefill worker's."""
    async with Rig(deadlines=Deadlines(first_token_s=8.0, first_token_per_1000_s=0.0)) as rig:

        async def set_scene(
            engine: str,
            *faults: str,
            decodes: int = 1,
            prefill_faults: tuple[str, ...] = (),
            request: PreprocessedRequest | None = None,
            sink: Taken | None = None,
        ) -> Scene:
            dialect, known = ENGINES[engine]
            options = SimulatorOptions(engine=engine.split("-")[0], pace=SLOW, **dialect)
            prefill = await rig.simulated(replace(options, role="prefill"), **known)
            workers = [await rig.simulated(replace(options, role="decode"), **known) for _ in range(decodes)]
            for fault in faults:
                workers[0].faults.add(fault)
            for fault in prefill_faults:
                prefill.faults.add(fault)
            asked = rig.ask(
                request or request_of(prompt=PROMPT),
                context=rig.context(deadline=rig.clock() + 1000),
                sink=sink,
            )
            return Scene(rig, prefill, workers, asked)

        yield set_scene


# ---- moments of a request


async def prefill_begins(scene: Scene) -> None:
    await scene.until(lambda: scene.prefill.state()["answers"] > 0)


async def prefill_computes(scene: Scene) -> None:
    await scene.until(lambda: scene.prefill.state()["requests_running"] + scene.decode.state()["answers"] > 0)


async def prefill_has_answered_and_nobody_has_read_it(scene: Scene) -> None:
    await prefill_begins(scene)
    scene.rig.client.look_away(scene.prefill.url)
    await scene.until(lambda: scene.prefill.state()["pins"] > 0)


async def decode_begins(scene: Scene) -> None:
    await scene.until(lambda: scene.decode.state()["answers"] > 0)


async def the_kv_travels(scene: Scene) -> None:
    await scene.until(lambda: bool(scene.decode.engine.loading))


async def the_first_token_is_there(scene: Scene) -> None:
    await scene.until(lambda: bool(scene.asked.sink.ids))


MOMENTS = (
    prefill_begins,
    prefill_computes,
    prefill_has_answered_and_nobody_has_read_it,
    decode_begins,
    the_kv_travels,
    the_first_token_is_there,
)


# ---- ways of throwing it away


async def the_client_leaves(scene: Scene) -> None:
    await scene.asked.leave()


async def its_deadline_passes(scene: Scene) -> None:
    scene.asked.context.deadline = scene.rig.clock()
    await scene.until(scene.asked.task.done)
    assert isinstance(scene.asked.task.exception(), DeadlineExceeded)


async def it_is_cancelled_twice(scene: Scene) -> None:
    scene.asked.task.cancel()
    scene.asked.task.cancel()
    await asyncio.sleep(0)
    scene.asked.task.cancel()
    await asyncio.wait([scene.asked.task])


WAYS = (the_client_leaves, its_deadline_passes, it_is_cancelled_twice)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
@pytest.mark.parametrize("engine", ENGINES)
async def test_nothing_stays_pinned_for_a_request_that_ends_early(
    stage: Stage, engine: str, moment: Callable[[Scene], Awaitable[None]], way: Callable[[Scene], Awaitable[None]]
) -> None:
    scene = await stage(engine)
    await moment(scene)

    await way(scene)

    await scene.rests()


REFUSALS = (
    "status=400@request",
    "status=404@request",
    "status=422@request",
    "status=429@request",
    "status=503@request",
)
BROKEN_AT_HEAD = ("close@head", "garbage@head", "error@head", "abort@request")
BREAKS = ("status=500@request", "reset@request", *BROKEN_AT_HEAD)
LEFT_ALONE = [
    *((engine, fault) for engine in IN_TURN for fault in (*REFUSALS, "status=500@request", "reset@request")),
    # vLLM's release is over with the head of the reply.
    *((engine, fault) for engine in ("trtllm", "native") for fault in BROKEN_AT_HEAD),
]


@pytest.mark.parametrize("fault", [*REFUSALS, "status=500@request", "error@head", "abort@request"])
@pytest.mark.parametrize("engine", ENGINES)
async def test_nothing_stays_pinned_when_the_only_decode_worker_refuses(stage: Stage, engine: str, fault: str) -> None:
    """It is asked again, for less."""
    scene = await stage(engine, fault)
    await scene.until(scene.asked.task.done)

    await scene.rests()


@pytest.mark.parametrize("fault", [*REFUSALS, *BREAKS, "die@request", "die@head"])
@pytest.mark.parametrize("engine", ENGINES)
async def test_nothing_stays_pinned_when_one_of_two_decode_workers_fails(stage: Stage, engine: str, fault: str) -> None:
    scene = await stage(engine, fault, decodes=2)
    await scene.until(scene.asked.task.done)

    await scene.rests()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("engine", IN_TURN)
async def test_a_busy_decode_worker_is_asked_again_after_a_while(
    stage: Stage, engine: str, status: int, count: int
) -> None:
    scene = await stage(engine, f"status={status}@request*{count}")
    await scene.until(scene.asked.task.done)

    await scene.rests(within_s=8)


@pytest.mark.parametrize("moment", [MOMENTS[1], MOMENTS[2], MOMENTS[4]], ids=lambda moment: moment.__name__)
@pytest.mark.parametrize(("engine", "fault"), LEFT_ALONE)
async def test_nothing_stays_pinned_when_the_client_has_left_and_one_decode_worker_fails_too(
    stage: Stage, engine: str, fault: str, moment: Callable[[Scene], Awaitable[None]]
) -> None:
    scene = await stage(engine, decodes=2)
    await moment(scene)
    scene.decode.faults.add(fault)

    await scene.asked.leave()

    await scene.rests()


@pytest.mark.parametrize("fault", [*REFUSALS, *BREAKS])
@pytest.mark.parametrize("engine", ENGINES)
async def test_nothing_stays_pinned_when_the_client_leaves_in_the_step_in_which_decode_fails(
    stage: Stage, engine: str, fault: str
) -> None:
    """How it failed is found out by who releases."""
    scene = await stage(engine, fault, decodes=2)
    await scene.until(lambda: scene.rig.client.is_over(scene.decode.url))

    scene.asked.task.cancel()
    await asyncio.wait([scene.asked.task])

    await scene.rests()


@pytest.mark.parametrize("engine", ENGINES)
async def test_nothing_stays_pinned_when_the_first_token_is_enough(stage: Stage, engine: str) -> None:
    def enough(taken: Taken) -> None:
        raise Enough(taken)

    scene = await stage(engine, sink=Taken(enough))
    await scene.until(scene.asked.task.done)

    assert isinstance(scene.asked.task.exception(), Enough)
    await scene.rests()


@pytest.mark.parametrize("engine", ENGINES)
async def test_nothing_stays_pinned_when_prefill_was_the_answer(stage: Stage, engine: str) -> None:
    first = await stage(engine, request=request_of(prompt=PROMPT, stop={"max_tokens": 2}))
    await first.until(first.asked.task.done)
    (token_id, _) = first.asked.sink.ids
    again = request_of(prompt=PROMPT, stop={"stop_token_ids": (token_id,)})
    scene = replace(first, asked=first.rig.ask(again))

    await scene.until(scene.asked.task.done)

    assert len(scene.asked.sink.ids) == 1
    await scene.rests()


@pytest.mark.parametrize("engine", IN_TURN)
async def test_nothing_stays_pinned_when_prefill_was_silent_for_too_long(stage: Stage, engine: str) -> None:
    """It answers four seconds after it was given up."""
    scene = await stage(engine, prefill_faults=("slow=12@request",))
    await scene.until(scene.asked.task.done)
    assert isinstance(scene.asked.task.exception(), WorkerSilent)

    await scene.rests(within_s=8)


@pytest.mark.parametrize("engine", ["trtllm", "native"])
async def test_nothing_stays_pinned_when_the_handoff_has_aged(stage: Stage, engine: str) -> None:
    scene = await stage(engine, "status=503@request", decodes=2)
    scene.rig.router.deadlines = replace(scene.rig.router.deadlines, lease_margin_s=1e6)
    scene.rig.registry.replace(replace(scene.rig.registry.states()[0].worker, lease_s=0.01))
    await scene.until(scene.asked.task.done)

    await scene.rests()


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_request_that_decode_refuses_is_still_the_clients_fault(stage: Stage, engine: str) -> None:
    scene = await stage(engine, "status=400@request")
    await scene.until(scene.asked.task.done)

    assert isinstance(scene.asked.task.exception(), InvalidRequest)
    assert scene.rig.registry.states()[1].failures == 0


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
@pytest.mark.parametrize("engine", ENGINES)
async def test_a_shutdown_waits_for_what_is_being_released(
    stage: Stage, engine: str, moment: Callable[[Scene], Awaitable[None]]
) -> None:
    scene = await stage(engine)
    await moment(scene)
    await scene.asked.leave()

    draining = asyncio.create_task(scene.rig.background.drain(WITHIN_S))
    await scene.until(draining.done)

    await scene.rests(within_s=2)


@pytest.mark.parametrize("steps", [0, 1, 2, 4, 7, 11])
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
@pytest.mark.parametrize("engine", IN_TURN)
async def test_a_shutdown_that_does_not_wait_leaves_nothing_here(
    stage: Stage, engine: str, moment: Callable[[Scene], Awaitable[None]], steps: int
) -> None:
    """What the workers hold is left to them."""
    scene = await stage(engine)
    await moment(scene)
    await scene.asked.leave()
    await scene.passes(0.05 * steps)

    await scene.rig.background.drain(0.0)

    assert scene.rig.held(scene.asked.context) == {}
    assert scene.rig.complaints == []
