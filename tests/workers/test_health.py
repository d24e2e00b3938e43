"""The watch over workers, against real sockets; only the time between probes is a fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack

import httpx
import orjson
import pytest

from engines.base import Probe, ProbeReply
from protocols.errors import CannotConnect
from protocols.worker import Engine, Leg, Role, Worker, WorkerTraits
from routers.base import Status
from routers.load import Loads
from tests.workers.wire_server import Peer, wire_server
from workers.health import HealthMonitor, probe_client
from workers.registry import Registry


class Prober:
    """An engine that is asked for its models and its info, and has a cheap /health."""

    default_prefill_policy = "local"

    def __init__(self, worker: Worker, model: str) -> None:
        self.worker = worker

    def plain(self, role: Role) -> bool:
        return True

    def info_probes(self) -> tuple[Probe, ...]:
        return Probe("/v1/models"), Probe("/info", method="POST", body=b"{}")

    def traits(self, replies: Mapping[str, ProbeReply]) -> WorkerTraits:
        models = orjson.loads(replies["/v1/models"].body)["data"]
        info = orjson.loads(replies["/info"].body)
        role = info.get("role")
        return WorkerTraits(
            served_name=models[0]["id"] if models else None,
            incarnation=info.get("incarnation"),
            role=Role(role) if role else None,
        )

    def health_probe(self) -> Probe:
        return Probe("/health")

    def healthy(self, reply: ProbeReply) -> bool:
        return reply.status == 200


class CostlyProber(Prober):
    """An engine whose health probe is real work."""

    def health_probe(self) -> Probe:
        return Probe("/health", interval_s=30.0)


class HastyProber(Prober):
    """An engine that is thought silent after 50 ms."""

    def health_probe(self) -> Probe:
        return Probe("/health", timeout_s=0.05)


class SimulatedProcess:
    """What answers behind a worker's URL: a status and body per path. A path set to None is never answered."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.routes: dict[str, tuple[int, bytes] | None] = {
            "/v1/models": (200, b'{"data": [{"id": "llama"}]}'),
            "/info": (200, b'{"incarnation": "a"}'),
            "/health": (200, b""),
        }

    async def __call__(self, peer: Peer) -> None:
        head, _ = await peer.request()
        path = head.split(" ")[1]
        self.asked.append(path)
        answer = self.routes.get(path, (404, b""))
        if answer is None:
            await peer.gone()
            return
        status, body = answer
        await peer.send(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n" % (status, len(body)), body)

    def asked_since(self, count: int) -> list[str]:
        return self.asked[count:]


class Beat:
    """Time between probes. `turn` lets a waiting watch go on to its next probe and waits until that is done."""

    def __init__(self) -> None:
        self.waits: dict[int, float] = {}
        self._events: dict[int, asyncio.Event] = {}
        self._rested = asyncio.Condition()
        self.rests: dict[int, int] = {}

    async def pause(self, woken: asyncio.Event, seconds: float) -> None:
        worker = int(asyncio.current_task().get_name().removeprefix("health-"))
        async with self._rested:
            self.rests[worker] = self.rests.get(worker, 0) + 1
            self.waits[worker] = seconds
            self._events[worker] = woken
            self._rested.notify_all()
        await woken.wait()

    async def rested(self, worker: int, times: int) -> None:
        """Until the watch of this worker has rested so many times."""
        async with asyncio.timeout(5), self._rested:
            await self._rested.wait_for(lambda: self.rests.get(worker, 0) >= times)

    async def turn(self, worker: int = 1) -> None:
        before = self.rests[worker]
        self._events[worker].set()
        await self.rested(worker, before + 1)


class House:
    """A registry under watch, and the processes its workers stand for."""

    def __init__(self, registry: Registry, beat: Beat, stack: AsyncExitStack) -> None:
        self.registry = registry
        self.beat = beat
        self.now = 0.0
        self._stack = stack

    async def settle(
        self, worker_id: int = 1, process: Callable[[Peer], object] | None = None, **more
    ) -> SimulatedProcess:
        """A new worker, after its first probe."""
        process = process or SimulatedProcess()
        server = await self._stack.enter_async_context(wire_server(process))
        self.registry.add("m", Worker(worker_id, server.url, Engine.VLLM, **more))
        await self.beat.rested(worker_id, 1)
        return process

    def status(self, worker_id: int = 1) -> Status:
        return {c.id: c.status for c in self.registry.candidates("m", Leg.DECODE)}[worker_id]

    def reason(self) -> str:
        return self.registry.states()[0].reason


async def open_house(prober) -> AsyncIterator[House]:
    beat = Beat()
    registry = Registry(prober, Loads())
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(probe_client())
        house = House(registry, beat, stack)
        monitor = HealthMonitor(registry, http=http, pause=beat.pause, clock=lambda: house.now)
        monitor.start()
        stack.push_async_callback(monitor.close)
        yield house


@pytest.fixture
async def house():
    async for opened in open_house(Prober):
        yield opened


@pytest.fixture
async def costly_house():
    async for opened in open_house(CostlyProber):
        yield opened


async def test_a_worker_is_ready_once_it_has_said_who_it_is_and_that_it_is_well(house):
    process = await house.settle()

    assert process.asked == ["/v1/models", "/info", "/health"]
    assert house.status() is Status.READY
    assert house.registry.worker(1).traits.served_name == "llama"


async def test_workers_there_before_the_watch_began_are_watched_too():
    beat = Beat()
    registry = Registry(Prober, Loads())
    async with wire_server(SimulatedProcess()) as server, probe_client() as http:
        registry.add("m", Worker(1, server.url, Engine.VLLM))
        monitor = HealthMonitor(registry, http=http, pause=beat.pause)
        monitor.start()
        await beat.rested(1, 1)
        await monitor.close()

    assert registry.servable("m").ok


async def test_a_worker_that_still_loads_is_asked_until_its_model_is_known(house):
    process = SimulatedProcess()
    process.routes["/v1/models"] = (503, b"")
    await house.settle(process=process)
    assert house.status() is Status.JOINING

    process.routes["/v1/models"] = (200, b'{"data": []}')
    await house.beat.turn()
    assert (house.status(), house.reason()) == (
        Status.JOINING,
        "its name for the model is not known: /v1/models answered 200 without one",
    )

    process.routes["/v1/models"] = (200, b'{"data": [{"id": "llama"}]}')
    await house.beat.turn()
    assert house.status() is Status.READY


async def test_a_configured_name_does_not_wait_for_the_workers_own(house):
    process = SimulatedProcess()
    process.routes["/v1/models"] = (200, b'{"data": []}')

    await house.settle(process=process, served_name="llama")

    assert house.status() is Status.READY


async def test_a_reply_that_is_not_understood_leaves_the_worker_joining_not_the_watch_dead(house):
    process = SimulatedProcess()
    process.routes["/v1/models"] = (200, b"<html>")
    await house.settle(process=process)
    assert house.status() is Status.JOINING
    assert "is not understood" in house.reason()

    process.routes["/v1/models"] = (200, b'{"data": [{"id": "llama"}]}')
    await house.beat.turn()
    assert house.status() is Status.READY


async def test_a_server_started_in_another_role_than_configured_gets_no_work(house):
    process = SimulatedProcess()
    process.routes["/info"] = (200, b'{"role": "decode"}')

    await house.settle(process=process)

    assert house.status() is Status.JOINING
    assert house.reason() == "it was started as decode, but is configured as aggregated"


@pytest.fixture
async def hasty_house():
    async for opened in open_house(HastyProber):
        yield opened


async def test_a_worker_that_says_it_is_unwell_is_out_at_once_and_back_when_well(house):
    process = await house.settle()

    process.routes["/health"] = (503, b"")
    await house.beat.turn()
    assert (house.status(), house.reason()) == (Status.DOWN, "/health answered 503")

    process.routes["/health"] = (200, b"")
    await house.beat.turn()
    assert house.status() is Status.READY


async def test_a_worker_deep_in_a_long_prefill_may_miss_two_probes(hasty_house):
    """Takes 150 ms: three probes that are truly not answered."""
    house = hasty_house
    process = await house.settle()
    process.routes["/health"] = None

    await house.beat.turn()
    await house.beat.turn()
    assert house.status() is Status.READY

    await house.beat.turn()
    assert (house.status(), house.reason()) == (Status.DOWN, "/health was not answered within 0.05 s")


async def test_a_known_worker_that_is_not_yet_itself_again_is_down_not_new(house):
    process = await house.settle()
    process.routes["/info"] = (503, b"")

    house.registry.observed_failure(1, CannotConnect("connection refused"))
    await house.beat.rested(1, 2)

    assert (house.status(), house.reason()) == (Status.DOWN, "/info answered 503")


async def test_a_worker_that_nobody_listens_for_is_down(house):
    async with wire_server(SimulatedProcess()) as server:
        url = server.url
    house.registry.add("m", Worker(1, url, Engine.VLLM))
    await house.beat.rested(1, 1)

    assert house.status() is Status.DOWN
    assert "/v1/models: " in house.reason()


async def test_a_connection_that_breaks_without_a_reply_is_a_dead_process(house):
    async def die(peer: Peer) -> None:
        await peer.request()

    await house.settle(process=die)

    assert house.status() is Status.DOWN


async def test_a_broken_request_has_the_worker_probed_at_once_and_back_as_soon_as_it_answers(house):
    process = await house.settle()
    asked = len(process.asked)

    house.registry.observed_failure(1, CannotConnect("connection refused"))
    assert house.status() is Status.COOLING

    await house.beat.rested(1, 2)
    assert house.status() is Status.READY
    assert process.asked_since(asked) == ["/v1/models", "/info", "/health"]


async def test_a_restart_between_two_probes_is_noticed_by_what_the_process_tells(house):
    process = await house.settle()
    process.routes["/info"] = (200, b'{"incarnation": "b"}')

    house.registry.observed_failure(1, CannotConnect("connection refused"))
    await house.beat.rested(1, 2)

    assert house.registry.incarnation(1) == 2


async def test_a_slow_worker_delays_nobody(house):
    answering = asyncio.Event()

    async def hang(peer: Peer) -> None:
        answering.set()
        await peer.gone()

    slow_server = await house._stack.enter_async_context(wire_server(hang))
    house.registry.add("m", Worker(1, slow_server.url, Engine.VLLM))
    await answering.wait()

    await house.settle(2)

    assert (house.status(1), house.status(2)) == (Status.JOINING, Status.READY)


async def test_probes_do_not_share_connections(house):
    process = SimulatedProcess()
    server = await house._stack.enter_async_context(wire_server(process))
    house.registry.add("m", Worker(1, server.url, Engine.VLLM))
    await house.beat.rested(1, 1)

    assert server.connections == len(process.asked) == 3


async def test_a_removed_worker_is_not_watched_any_more(house):
    process = await house.settle()
    asked = len(process.asked)

    house.registry.remove(1)
    await asyncio.sleep(0)

    assert [task for task in asyncio.all_tasks() if task.get_name() == "health-1"] == []
    assert process.asked_since(asked) == []


async def test_a_costly_health_probe_is_not_repeated_when_the_worker_has_just_shown_life(costly_house):
    house = costly_house
    process = await house.settle()
    asked = len(process.asked)

    house.now += 1.0
    house.registry.observed_failure(1, CannotConnect("connection refused"))
    await house.beat.rested(1, 2)

    assert process.asked_since(asked) == ["/v1/models", "/info"]
    assert house.status() is Status.READY
    assert house.beat.waits[1] >= 30.0


async def test_a_watch_that_fails_takes_the_worker_out_and_says_so(caplog):
    class Broken(Prober):
        def info_probes(self):
            raise RuntimeError("a bug")

    beat = Beat()
    registry = Registry(Broken, Loads())
    async with probe_client() as http:
        monitor = HealthMonitor(registry, http=http, pause=beat.pause)
        monitor.start()
        registry.add("m", Worker(1, "http://127.0.0.1:9", Engine.VLLM))
        await asyncio.wait(monitor_tasks())
        await asyncio.sleep(0)
        await monitor.close()

    assert registry.states()[0].reason == "its health watch failed: a bug"
    assert "the health watch of worker 1 failed" in caplog.text


async def test_a_watch_that_failed_begins_anew_after_a_rest(caplog):
    bugs = [RuntimeError("a bug")]

    class Mending(Prober):
        def info_probes(self):
            if bugs:
                raise bugs.pop()
            return super().info_probes()

    async for house in open_house(Mending):
        await house.settle()
        assert house.status() is Status.DOWN
        assert house.beat.waits[1] == 5.0

        await house.beat.turn()

        assert house.status() is Status.READY
    assert "the health watch of worker 1 failed" in caplog.text


def monitor_tasks() -> set[asyncio.Task[None]]:
    return {task for task in asyncio.all_tasks() if task.get_name().startswith("health-")}


async def test_the_probe_client_uses_no_proxy_of_the_environment(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")

    async with wire_server(SimulatedProcess()) as server, probe_client() as http:
        assert isinstance(http, httpx.AsyncClient)
        assert (await http.get(server.url + "/health")).status_code == 200
