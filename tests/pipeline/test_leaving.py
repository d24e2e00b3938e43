"""A client that leaves at any moment, or whose deadline passes: nothing is held, counted, watched or pinned after it.

Against simulated workers. The moments: every point where the request's task waits, both while it still waits and in the
step in which what it waited for has come; and every token. A moment that a request does not reach is its end.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Generator
from typing import Any

import pytest

from pipeline.detokenize import Detokenizer
from pipeline.migration import Migration
from pipeline.service import Service, link
from protocols.errors import DeadlineExceeded
from simulator.fleet import Simulator
from simulator.model import Pace
from simulator.options import NativeOptions, SglangOptions, SimulatorOptions, TrtllmOptions, VllmOptions
from tests.pipeline.rig import Rig, Taken, request_of
from tests.pipeline.scripted import PATIENCE_S
from tests.text.small_tokenizers import byte_level

LEASE_S = 60.0
"""How long simulated prefill keeps what nobody reads: longer than any test waits."""
HELD = ("blocks_pinned", "pins", "requests_running", "requests_waiting", "answers", "rooms")
QUICK = Pace(ttft_s=0.0005, prefill_s=1e-6, decode_s=0.0005, batch_s=0.0, transfer_s=1e-5)
PROMPT = tuple(range(200, 240))

ENGINES: dict[str, dict[str, Any]] = {
    "vllm": {"vllm": VllmOptions(lease_s=LEASE_S)},
    "sglang": {"sglang": SglangOptions(stream_leave_s=0.02, unary_leave_s=0.02)},
    "trtllm": {"trtllm": TrtllmOptions(leave_s=0.01, transfer_timeout_s=LEASE_S)},
    "native": {"native": NativeOptions(pin_s=LEASE_S)},
    "native-tied": {"native": NativeOptions(pin_s=LEASE_S, bootstrap=True)},
}
STEPS = 8
"""One more than a request waits: connecting takes two turns for each leg, then come both replies."""


async def _pair(rig: Rig, engine: str) -> list[Simulator]:
    simulators = []
    for role in ("prefill", "decode"):
        options = SimulatorOptions(engine=engine.split("-")[0], role=role, pace=QUICK, **ENGINES[engine])
        simulators.append(await rig.simulated(options, served_name="sim-model"))
    return simulators


def _texts(rig: Rig) -> Service[Any, Any]:
    detokenizer = Detokenizer(byte_level())
    migration = Migration(rig.resilience.limits, detokenizer.length_ending, rig.seen)
    return link(migration, link(detokenizer, rig.tokens))


async def _at_rest(rig: Rig, simulators: list[Simulator], *contexts: Any) -> None:
    await rig.drained()
    assert rig.held(*contexts) == {}

    def held() -> list[str]:
        return [
            f"{simulator.options.role} {name} {count}"
            for simulator in simulators
            for name in HELD
            if (count := simulator.state()[name])
        ]

    for _ in range(200):
        if not held():
            break
        await asyncio.sleep(0.01)
    assert held() == []
    assert simulators[0].state()["expired_pins"] == 0
    assert rig.registry.states()[0].failures == rig.registry.states()[1].failures == 0
    gc.collect()
    assert rig.complaints == []


class Interrupted:
    """Runs a coroutine, and `interrupt` at its n-th wait: at once, or just as what it waits for comes."""

    def __init__(self, work: Any, wait: int, interrupt: Callable[[], object], *, late: bool) -> None:
        self._work = work
        self._wait = wait
        self._interrupt = interrupt
        self._late = late
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, None]:
        send: Callable[[], Any] = lambda: self._work.send(None)  # noqa: E731
        while True:
            try:
                waited = send()
            except StopIteration:
                return
            self.waits += 1
            if self.waits == self._wait:
                self._begin(waited)
            try:
                yield waited
            except BaseException as error:
                send = lambda error=error: self._work.throw(error)  # noqa: E731
            else:
                send = lambda: self._work.send(None)  # noqa: E731

    def _begin(self, waited: Any) -> None:
        if self._late and waited is not None:
            waited.add_done_callback(lambda _: self._interrupt())
        else:
            asyncio.get_running_loop().call_soon(self._interrupt)


@pytest.mark.parametrize("event", ["leaves", "deadline"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("wait", range(1, STEPS))
@pytest.mark.parametrize("engine", ENGINES)
async def test_a_request_that_ends_at_any_wait_leaves_nothing_behind(
    rig: Rig, engine: str, wait: int, late: bool, event: str
) -> None:
    simulators = await _pair(rig, engine)
    deadline = rig.clock() + 100
    context, taken, service = rig.context(deadline=deadline), Taken(), _texts(rig)
    work = service(request_of(prompt=PROMPT, stop={"max_tokens": 4}), context, taken)

    async def asked() -> None:
        interrupt = task.cancel if event == "leaves" else lambda: rig.ticker.tick(deadline + 1)
        try:
            await Interrupted(work, wait, interrupt, late=late)
        finally:
            taken.closed = True

    task = asyncio.create_task(asked())
    await asyncio.wait([task], timeout=PATIENCE_S)

    assert task.done()
    assert task.cancelled() or isinstance(task.exception(), DeadlineExceeded | None)
    await _at_rest(rig, simulators, context)


@pytest.mark.parametrize("soon", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("engine", ENGINES)
async def test_a_client_that_leaves_at_any_token_leaves_nothing_behind(
    rig: Rig, engine: str, count: int, soon: bool
) -> None:
    simulators = await _pair(rig, engine)
    loop = asyncio.get_running_loop()

    def leave(taken: Taken) -> None:
        if len(taken.ids) >= count:
            (loop.call_soon if soon else lambda call: call())(asked.task.cancel)

    asked = rig.ask(request_of(prompt=PROMPT, stop={"max_tokens": 4}), service=_texts(rig), sink=Taken(leave))
    await asyncio.wait([asked.task], timeout=PATIENCE_S)

    assert asked.task.done()
    await _at_rest(rig, simulators, asked.context)
