"""Health as an operator sees it while workers come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protocols.worker import worker_id_of
from tests.stories.house import House, pair, solo

OpenHouse = Callable[..., House]
WATCHFUL = {"interval_s": 0.05}


def health(house: House) -> tuple[int, dict[str, Any]]:
    reply = house.http.get("/health")
    return reply.status_code, reply.json()


def bury(house: House, model: str, role: str | None = None) -> None:
    """Kills all workers of a role, and waits until the gateway has noticed."""
    for worker in house.workers(model, role):
        house.kill(worker)
    urls = {worker.url for worker in house.workers(model, role)}
    house.eventually(
        lambda: all(
            state.status.value == "down" for state in house.gateway.registry.states() if state.worker.url in urls
        )
    )


def test_all_is_well(open_house: OpenHouse) -> None:
    house = open_house(pair("vllm"), solo("sglang"))

    status, told = health(house)

    assert (status, told["status"]) == (200, "healthy")
    assert told["models"]["pair-vllm"] == {
        "servable": True,
        "workers": {"prefill": {"up": 2, "total": 2}, "decode": {"up": 2, "total": 2}},
    }


def test_one_model_of_two_is_enough_to_be_healthy_and_the_other_says_why_it_is_not(open_house: OpenHouse) -> None:
    house = open_house(pair("vllm"), solo("sglang"), health=WATCHFUL)

    bury(house, "pair-vllm", "decode")

    status, told = health(house)
    assert (status, told["status"]) == (200, "healthy")
    assert told["models"]["solo-sglang"]["servable"] is True
    broken = told["models"]["pair-vllm"]
    assert broken["servable"] is False
    assert broken["reason"] == "no ready decode worker (2 down)"
    assert broken["workers"] == {"prefill": {"up": 2, "total": 2}, "decode": {"up": 0, "total": 2}}


def test_none_is_too_few(open_house: OpenHouse) -> None:
    house = open_house(pair("sglang"), solo("vllm"), health=WATCHFUL)

    bury(house, "pair-sglang", "prefill")
    bury(house, "solo-vllm")

    status, told = health(house)
    assert (status, told["status"]) == (503, "unhealthy")
    assert "prefill" in told["models"]["pair-sglang"]["reason"]
    assert house.http.get("/live").status_code == 200


def test_a_pair_whose_decode_can_prefill_is_servable_without_prefill_workers(open_house: OpenHouse) -> None:
    house = open_house(pair("vllm"), health=WATCHFUL)

    bury(house, "pair-vllm", "prefill")

    assert health(house)[0] == 200
    reply = house.http.post("/v1/completions", json={"model": "pair-vllm", "prompt": "Hi", "max_tokens": 4})
    assert reply.status_code == 200


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "native", "openai"])
def test_a_worker_that_comes_back_is_given_work_again(open_house: OpenHouse, engine: str) -> None:
    house = open_house(solo(engine), health=WATCHFUL)
    model = f"solo-{engine}"
    (worker,) = house.workers(model)
    bury(house, model)
    assert health(house)[0] == 503

    house.revive(worker)

    house.eventually(lambda: house.gateway.registry.servable(model).ok, within_s=2)
    reply = house.http.post("/v1/completions", json={"model": model, "prompt": "Hi", "max_tokens": 4})
    assert (health(house)[0], reply.status_code) == (200, 200)


def test_the_models_are_told_whoever_is_down(open_house: OpenHouse) -> None:
    house = open_house(solo("vllm"), health=WATCHFUL)

    bury(house, "solo-vllm")

    assert [model.id for model in house.sdk.models.list()] == ["solo-vllm"]


def test_metrics_name_the_worker_that_is_down(open_house: OpenHouse) -> None:
    house = open_house(solo("vllm", workers=2), health=WATCHFUL)
    victim, survivor = house.workers("solo-vllm")
    house.kill(victim)
    states = house.gateway.registry.states
    house.eventually(lambda: any(state.status.value == "down" for state in states()))

    lines = house.http.get("/metrics").text.splitlines()

    up = {line.split('worker="')[1].split('"')[0]: line.rpartition(" ")[2] for line in lines if "_worker_up{" in line}
    assert up == {str(worker_id_of(victim.url)): "0.0", str(worker_id_of(survivor.url)): "1.0"}
    assert 'tandem_model_ready{model="solo-vllm"} 1.0' in lines
