"""What the gateway tells of itself, before any worker has said a word."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.config_document import ConfigDocument
from app.gateway import Gateway
from app.main import Front
from app.settings import settings_of
from app.simulate import DEMO_MODEL
from tests.app.client_turn import TurnTransport

PATH = str(DEMO_MODEL)
MODELS: list[dict[str, Any]] = [
    {
        "name": "pairs",
        "path": PATH,
        "aliases": ["org/alias"],
        "workers": [
            {"url": "http://127.0.0.1:1", "engine": "vllm", "role": "prefill"},
            {"url": "http://127.0.0.1:2", "engine": "vllm", "role": "decode"},
        ],
    },
    {
        "name": "short",
        "path": PATH,
        "context_length": 100,
        "workers": [{"url": "http://127.0.0.1:3", "engine": "sglang"}],
    },
    {"name": "other", "workers": [{"url": "http://127.0.0.1:4", "engine": "openai"}]},
]


@pytest.fixture(scope="module")
def gateway() -> Gateway:
    """Composed, with its workers known, but not started: it listens nowhere and asks nobody."""
    gateway = Gateway(settings_of(ConfigDocument("test", {"models": MODELS})))
    for model in gateway.settings.models:
        for worker in gateway.settings.workers_of(model):
            gateway.registry.add(model.name, worker)
    return gateway


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    transport = TurnTransport(Front(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://tandem.test") as client:
        yield client


# ---- health


async def test_a_gateway_without_a_ready_worker_lives_but_is_not_healthy(client: httpx.AsyncClient) -> None:
    live, health = await client.get("/live"), await client.get("/health")

    assert (live.status_code, live.json()) == (200, {"status": "live"})
    assert (health.status_code, health.json()["status"]) == (503, "unhealthy")


async def test_health_says_of_each_model_what_is_missing(client: httpx.AsyncClient) -> None:
    models = (await client.get("/health")).json()["models"]

    assert list(models) == ["pairs", "short", "other"]
    assert [model["servable"] for model in models.values()] == [False] * 3
    assert "decode" in models["pairs"]["reason"]
    assert models["pairs"]["workers"] == {"prefill": {"up": 0, "total": 1}, "decode": {"up": 0, "total": 1}}
    assert models["other"]["workers"] == {"aggregated": {"up": 0, "total": 1}}


async def test_a_gateway_that_is_shutting_down_says_so(gateway: Gateway, client: httpx.AsyncClient) -> None:
    gateway.draining = True
    try:
        health = await client.get("/health")
    finally:
        gateway.draining = False

    assert (health.status_code, health.json()["status"]) == (503, "draining")


# ---- models


async def test_models_are_listed_whether_or_not_they_can_be_served(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/models")).json()

    assert listed["object"] == "list"
    assert [(model["id"], model["object"]) for model in listed["data"]] == [
        ("pairs", "model"),
        ("org/alias", "model"),
        ("short", "model"),
        ("other", "model"),
    ]


async def test_a_model_tells_its_context_and_an_alias_its_model(client: httpx.AsyncClient) -> None:
    short, alias, other = [(await client.get(f"/v1/models/{name}")).json() for name in ("short", "org/alias", "other")]

    assert short["max_model_len"] == 100
    assert (alias["id"], alias["root"]) == ("org/alias", "pairs")
    assert "max_model_len" not in other


# ---- metrics


async def metrics(client: httpx.AsyncClient) -> dict[str, list[Any]]:
    reply = await client.get("/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {family.name: family.samples for family in text_string_to_metric_families(reply.text)}


@pytest.mark.parametrize(
    "family", ["tandem_router_choices", "tandem_router_refusals", "tandem_router_removed_candidates", "tandem_prefills"]
)
async def test_the_routers_metrics_are_there_as_zeros_from_the_start(client: httpx.AsyncClient, family: str) -> None:
    samples = (await metrics(client))[family]

    assert {sample.labels["model"] for sample in samples} >= {"pairs", "short", "other"}
    assert {sample.value for sample in samples} == {0.0}


async def test_both_legs_have_a_series_of_choices(client: httpx.AsyncClient) -> None:
    samples = (await metrics(client))["tandem_router_choices"]

    assert {sample.labels["leg"] for sample in samples if sample.labels["model"] == "short"} == {"prefill", "decode"}


async def test_workers_and_models_that_are_not_up_are_told_as_zeros(client: httpx.AsyncClient) -> None:
    told = await metrics(client)

    assert {sample.labels["model"]: sample.value for sample in told["tandem_model_ready"]} == {
        "pairs": 0.0,
        "short": 0.0,
        "other": 0.0,
    }
    assert [(sample.labels["role"], sample.value) for sample in told["tandem_worker_up"]] == [
        ("prefill", 0.0),
        ("decode", 0.0),
        ("aggregated", 0.0),
        ("aggregated", 0.0),
    ]


async def test_what_clients_ask_for_never_becomes_a_label(client: httpx.AsyncClient) -> None:
    before = sum(map(len, (await metrics(client)).values()))

    for number in range(20):
        await client.get(f"/scan/{number}")
        await client.post("/v1/completions", json={"model": f"guess-{number}", "prompt": "Hi"})

    after = sum(map(len, (await metrics(client)).values()))
    assert after - before <= 1  # the one series of unknown models that were not found


async def test_answers_take_minutes_and_the_buckets_know(client: httpx.AsyncClient) -> None:
    samples = (await metrics(client))["tandem_request_duration_seconds"]

    assert max(float(s.labels["le"]) for s in samples if s.labels.get("le", "+Inf") != "+Inf") >= 3600


# ---- refusals


async def test_a_model_that_cannot_be_served_is_a_503_that_says_why(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/completions", json={"model": "pairs", "prompt": "Hi"})

    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (503, "no_available_workers")
    assert "'pairs'" in error["message"]
    assert "decode" in error["message"]
    assert int(reply.headers["retry-after"]) >= 1


async def test_a_wrong_request_is_told_so_even_when_nobody_could_serve_it(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/completions", json={"model": "pairs", "prompt": 5})

    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt")


async def test_a_bug_of_our_own_is_a_500_in_the_envelope(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Gateway):
        def metrics_text(self) -> bytes:
            raise ZeroDivisionError

    broken = Broken(settings_of(ConfigDocument("test", {"models": MODELS[2:]})))
    transport = TurnTransport(Front(broken))
    async with httpx.AsyncClient(transport=transport, base_url="http://tandem.test") as client:
        with caplog.at_level(logging.CRITICAL):
            reply = await client.get("/metrics", headers={"x-request-id": "trace-1"})

    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
    assert reply.headers.get_list("x-request-id") == ["trace-1"]
    assert "ZeroDivision" not in reply.text
