"""The client leaves without a word: everything is freed on every worker, and it is counted once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from simulator.model import Pace
from simulator.options import TrtllmOptions
from tests.stories.house import PAIRED, House, pair, solo
from tests.stories.oracle import answer
from tests.stories.wire import Wire

SLOW = Pace(ttft_s=0.05, prefill_s=1e-6, decode_s=0.01, batch_s=0.0, transfer_s=1e-6)
FAR = replace(SLOW, ttft_s=0.001, transfer_s=0.1)
LONG: dict[str, Any] = {"prompt": "Tell me of the sea.", "max_tokens": 2000, "temperature": 0}
"""20 s of work for these workers: what is freed within one was stopped."""
MODELS = [*(f"pair-{engine}" for engine in PAIRED), *(f"solo-{engine}" for engine in PAIRED), "solo-openai"]


@pytest.fixture(scope="module")
def slow_house() -> Iterator[House]:
    trtllm = TrtllmOptions(leave_s=0.01)
    models = [
        *(pair(engine, pace=SLOW, trtllm=trtllm) for engine in PAIRED),
        *(solo(engine, pace=SLOW, trtllm=trtllm) for engine in PAIRED),
        solo("openai", pace=SLOW),
        *(pair(engine, f"far-{engine}", pace=FAR, trtllm=trtllm) for engine in PAIRED),
    ]
    with House(models) as house:
        yield house


@pytest.fixture
def house(slow_house: House) -> Iterator[House]:
    yield slow_house
    slow_house.rest()


def begin(house: House, model: str, **fields: Any) -> Wire:
    wire = house.wire()
    wire.post("/v1/completions", {"model": model, **LONG, **fields})
    return wire


def wait_until_at_work(house: House, model: str, sequences: int = 1) -> None:
    """Until workers have taken the request."""
    workers = house.workers(model)
    house.eventually(lambda: sum(len(worker.worker.answers) for worker in workers) >= sequences)


def cancelled(house: House, model: str) -> tuple[float, float]:
    return (
        house.count("finished", model=model, status="error", error_type="cancelled"),
        house.count("disconnects", model=model, endpoint="completions"),
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_first_byte_frees_everything(house: House, model: str, stream: bool) -> None:
    counted, dropped = cancelled(house, model)
    wire = begin(house, model, stream=stream)
    wait_until_at_work(house, model)

    wire.close()

    house.settle(within_s=1)
    assert cancelled(house, model) == (counted + 1, dropped + 1)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("way", ["close", "reset"])
def test_leaving_in_the_middle_of_a_stream_frees_everything(house: House, model: str, way: str) -> None:
    counted, dropped = cancelled(house, model)
    wire = begin(house, model, stream=True)
    pieces = wire.pieces(wire.head())
    for _ in range(3):
        next(pieces)

    wire.reset() if way == "reset" else wire.close()

    house.settle(within_s=1)
    assert cancelled(house, model) == (counted + 1, dropped + 1)


@pytest.mark.parametrize("model", MODELS)
def test_leaving_a_whole_answer_that_is_under_way_frees_everything(house: House, model: str) -> None:
    counted, dropped = cancelled(house, model)
    wire = begin(house, model, stream=False)
    workers = house.workers(model)
    house.eventually(lambda: any(job.generated > 1 for worker in workers for job in worker.engine.running))

    wire.close()

    house.settle(within_s=1)
    assert cancelled(house, model) == (counted + 1, dropped + 1)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stream", [False, True])
def test_leaving_several_choices_frees_them_all(house: House, model: str, stream: bool) -> None:
    counted, dropped = cancelled(house, model)
    wire = begin(house, model, stream=stream, n=3, temperature=1, seed=1)
    wait_until_at_work(house, model, 1 if model == "solo-openai" else 3)

    wire.close()

    house.settle(within_s=1)
    assert cancelled(house, model) == (counted + 1, dropped + 1)


@pytest.mark.parametrize("engine", ["vllm", "trtllm", "native"])
@pytest.mark.parametrize("stream", [False, True])
def test_leaving_while_the_kv_travels_lets_it_arrive_and_frees_it(house: House, engine: str, stream: bool) -> None:
    model = f"far-{engine}"
    counted, dropped = cancelled(house, model)
    wire = begin(house, model, stream=stream)
    house.eventually(lambda: any(worker.state()["blocks_pinned"] for worker in house.workers(model, "prefill")))

    wire.close()

    house.eventually(lambda: house.gateway.telemetry.metrics.model(model).inflight.value == 0, within_s=0.1)
    house.settle(within_s=1)
    assert [worker.state()["expired_pins"] for worker in house.workers(model)] == [0] * 4
    assert cancelled(house, model) == (counted + 1, dropped + 1)


@pytest.mark.parametrize("engine", PAIRED)
@pytest.mark.parametrize("choices", [1, 3])
def test_what_decode_refuses_is_freed_for_all_choices(house: House, engine: str, choices: int) -> None:
    """One refusal ends the whole request, whatever its other choices are at."""
    model = f"pair-{engine}"
    victims = house.workers(model, "decode")
    for victim in victims:
        house.call(victim.faults.add, "status=400@request")

    reply = house.http.post("/v1/completions", json={"model": model, **LONG, "n": choices, "temperature": 1})

    assert reply.status_code == 400
    for victim in victims:
        house.call(victim.faults.clear)
    house.settle(within_s=1)


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_while_the_legs_meet_frees_both(house: House, stream: bool) -> None:
    wire = begin(house, "far-sglang", stream=stream)
    house.eventually(lambda: any(worker.engine.loading for worker in house.workers("far-sglang", "decode")))

    wire.close()

    house.settle(within_s=1)


@pytest.mark.parametrize("model", ["pair-vllm", "pair-sglang", "pair-trtllm", "pair-native"])
def test_leaving_costs_the_next_client_nothing(house: House, model: str) -> None:
    begin(house, model, stream=True).close()
    begin(house, model, stream=False).close()

    reply = house.http.post("/v1/completions", json={"model": model, **LONG, "max_tokens": 12})

    assert reply.json()["choices"][0]["text"] == answer(LONG["prompt"], 12)


def test_leaving_in_the_middle_of_a_body_is_no_request(house: House) -> None:
    before = house.count("finished")
    with house.wire() as wire:
        wire.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n")
        wire.send(b'content-length: 1000\r\n\r\n{"model": "solo-vllm", ')
        house.eventually(lambda: house.gateway.bodies.requests == 1)

    house.settle()
    assert house.count("finished", error_type="cancelled", model="unknown") >= 1
    assert house.count("finished") == before + 1


def test_leaving_as_the_answer_ends_is_no_failure(house: House) -> None:
    for tokens in range(1, 9):
        wire = begin(house, "solo-vllm", stream=True, max_tokens=8)
        pieces = wire.pieces(wire.head())
        for _ in range(tokens):
            next(pieces, None)
        wire.close()

    house.settle()
