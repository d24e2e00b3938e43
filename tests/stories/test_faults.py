"""Whatever goes wrong at a worker, short of its death: with another of its kind there, nobody notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from simulator.options import NativeOptions, SglangOptions, TrtllmOptions, VllmOptions
from tests.stories.house import PAIRED, House, pair, solo
from tests.stories.test_death import SAID, USAGE, asked, told
from tests.stories.wire import events_of

IN_A_STREAM = ("reset", "close", "garbage", "truncate", "error", "abort")
AT_THE_START = ("reset@request", "garbage@head", "abort@request")
STATUSES = ("status=500", "status=503", "status=429", "status=401")
AMBIGUOUS = ("status=500", "status=401")
"""TensorRT-LLM answers nearly every failure of its own by 400: which of them are the client's, only its words tell."""
BRIEFLY = {
    "vllm": VllmOptions(lease_s=0.5),
    "trtllm": TrtllmOptions(transfer_timeout_s=0.5, leave_s=0.01),
    "sglang": SglangOptions(stream_leave_s=0.01, unary_leave_s=0.01, heartbeat_s=0.1),
    "native": NativeOptions(pin_s=0.5, handshake_s=0.5),
}


@pytest.fixture(scope="module")
def sturdy_house() -> Iterator[House]:
    models = [
        *(pair(engine, **BRIEFLY) for engine in PAIRED),
        *(solo(engine, workers=2, **BRIEFLY) for engine in (*PAIRED, "openai")),
    ]
    with House(models, health={"interval_s": 0.25}) as house:
        yield house


@pytest.fixture
def house(sturdy_house: House) -> Iterator[House]:
    """When a story has ended nobody holds anything."""
    yield sturdy_house
    for simulator in sturdy_house.fleet.simulators:
        sturdy_house.call(simulator.faults.clear)
    sturdy_house.rest(within_s=2)


def wait_until_well(house: House, model: str) -> None:
    """Until what an earlier story did to the model's workers is forgotten."""

    def well() -> bool:
        return all(state.status.value == "ready" for state in house.gateway.registry.states() if state.model == model)

    house.eventually(well, within_s=5)


def suffer(house: House, model: str, role: str, fault: str) -> None:
    """Requests, one of which meets the fault; all must be answered as if nothing had been."""
    wait_until_well(house, model)
    victim = house.workers(model, role)[0]
    committed = victim.faults.committed
    house.call(victim.faults.add, fault)

    replies = [asked(house, model, stream=stream) for stream in (True, False, True)]

    assert victim.faults.committed == committed + 1
    assert [told(reply) for reply in replies] == [(SAID, "length", USAGE)] * 3


@pytest.mark.parametrize("engine", PAIRED)
@pytest.mark.parametrize("kind", ["close", "error", "abort"])
def test_a_broken_stream_of_a_whole_worker_goes_on_elsewhere(house: House, engine: str, kind: str) -> None:
    suffer(house, f"solo-{engine}", "aggregated", f"{kind}@token:5")


@pytest.mark.parametrize("engine", PAIRED)
@pytest.mark.parametrize("kind", IN_A_STREAM)
def test_a_broken_stream_of_a_decode_worker_goes_on_elsewhere(house: House, engine: str, kind: str) -> None:
    suffer(house, f"pair-{engine}", "decode", f"{kind}@token:5")


def told_apart(engines: Sequence[str], faults: Sequence[str]) -> list[tuple[str, str]]:
    """Each engine with each fault that it has."""
    return [(engine, fault) for fault in faults for engine in engines if engine != "trtllm" or fault not in AMBIGUOUS]


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize(("engine", "fault"), told_apart(PAIRED, (*AT_THE_START, "status=500", "status=503")))
def test_a_leg_that_does_not_begin_is_tried_elsewhere(house: House, engine: str, role: str, fault: str) -> None:
    suffer(house, f"pair-{engine}", role, fault)


@pytest.mark.parametrize(("engine", "fault"), told_apart((*PAIRED, "openai"), (*AT_THE_START[:-1], *STATUSES)))
def test_an_answer_that_does_not_begin_is_tried_elsewhere(house: House, engine: str, fault: str) -> None:
    suffer(house, f"solo-{engine}", "aggregated", fault)


@pytest.mark.parametrize(
    ("engine", "fault"), [("vllm", "silence@request"), ("sglang", "silence@token:5"), ("trtllm", "silence@token:5")]
)
def test_a_worker_that_falls_silent_is_left(open_house: Callable[..., House], engine: str, fault: str) -> None:
    deadlines = {"first_token_s": 1.0, "first_token_per_1000_s": 0.0, "between_tokens_s": 1.0}
    house = open_house(pair(engine, **BRIEFLY), deadlines=deadlines)

    suffer(house, f"pair-{engine}", "decode", fault)


@pytest.mark.parametrize("engine", PAIRED)
def test_a_worker_whose_port_is_closed_is_passed_over(house: House, engine: str) -> None:
    wait_until_well(house, f"pair-{engine}")
    victim = house.workers(f"pair-{engine}", "decode")[0]
    for connection in list(victim.worker.server.connections):
        house.call(connection.transport.close)
    house.call(victim.faults.add, "refuse@connect*0")

    replies = [asked(house, f"pair-{engine}", stream=stream) for stream in (True, False)]

    assert [told(reply) for reply in replies] == [(SAID, "length", USAGE)] * 2


@pytest.mark.parametrize("engine", PAIRED)
def test_what_breaks_after_the_finish_is_no_failure(house: House, engine: str) -> None:
    before = house.count("leg_failures")

    suffer(house, f"solo-{engine}", "aggregated", "reset@done")

    assert house.count("leg_failures") == before


@pytest.mark.parametrize("fault", ["close@token:5", "error@token:5"])
def test_a_broken_stream_of_an_openai_server_is_told(house: House, fault: str) -> None:
    wait_until_well(house, "solo-openai")
    for worker in house.workers("solo-openai"):
        house.call(worker.faults.add, fault)

    events = events_of(asked(house, "solo-openai", stream=True).body)

    assert SAID.startswith(events.text())
    assert events.text()
    assert events.error is not None
    assert events.error["code"] == "worker_failed"
    assert (events.finishes(), events.done) == ([], 0)


@pytest.mark.parametrize("engine", [*PAIRED, "openai"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_worker_that_refuses_the_request_as_the_clients_fault_is_believed(
    house: House, engine: str, stream: bool
) -> None:
    wait_until_well(house, f"solo-{engine}")
    choices = house.count("choices", model=f"solo-{engine}")
    for worker in house.workers(f"solo-{engine}"):
        house.call(worker.faults.add, "status=400")

    reply = asked(house, f"solo-{engine}", stream=stream)

    assert (reply.status, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert reply.json()["error"]["message"] == "a fault was asked for"
    assert house.count("choices", model=f"solo-{engine}") == choices + 1
