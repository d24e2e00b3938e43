"""With one worker for each part, a death is told at once and honestly, or makes no difference; then all goes on.

Every test here kills an engine, which the next one finds started anew.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.real.fleets import Fleet, on
from tests.real.processes import ENGINE_MODEL, GatewayServer, eventually
from tests.real.prompts import LONG, TOKENS, Known

AT_ONCE_S = 1.0
NOTICED_S = {"vllm": 1.0, "sglang": 10.0}
"""A server's own time to see that the engine under it has died; SGLang 0.5.23 looks every few seconds."""
LEASE_S = 30.0
LONG_IDS = [300 + n for n in range(1_900)]
"""Some seconds of prefill."""
PREFILL_IS_AT_IT_S = 0.7
GONE = {"worker_failed", "prefill_failed", "no_available_workers"}


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def asked(prompt: Any, max_tokens: int) -> dict[str, Any]:
    salt = {"cache_salt": uuid.uuid4().hex, "ignore_eos": True}
    return {"model": "smol", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "extra_body": salt}


def asked_aside(pool: ThreadPoolExecutor, gateway: GatewayServer) -> Future[httpx.Response]:
    """A whole answer to a long prompt, waited for by another thread; the call returns when prefill is at it."""
    body = asked(LONG_IDS, 8)
    extra = body.pop("extra_body")
    answer = pool.submit(httpx.post, f"{gateway.url}/v1/completions", json=body | extra, timeout=120)
    time.sleep(PREFILL_IS_AT_IT_S)
    assert not answer.done()
    return answer


@on("vllm", "vllm-pair", "sglang", "sglang-pair")
def test_a_death_in_mid_stream_is_told_at_once(fleet: Fleet, whole_gateway: GatewayServer) -> None:
    chunks = iter(whole_gateway.sdk.completions.create(stream=True, **asked(LONG, 200)))
    shown = [next(chunks).choices[0].text for _ in range(5)]

    killed_at = fleet.last.kill()
    with pytest.raises(openai.APIError) as told:
        list(chunks)

    assert time.monotonic() - killed_at < AT_ONCE_S
    assert any(shown)
    assert told.value.code in GONE


@on("vllm", "vllm-pair", "sglang", "sglang-pair")
def test_the_death_of_an_engine_under_its_server_is_told_when_the_server_sees_it(
    fleet: Fleet, whole_gateway: GatewayServer
) -> None:
    chunks = iter(whole_gateway.sdk.completions.create(stream=True, **asked(LONG, 400)))
    next(chunks)

    killed_at = fleet.last.kill_part("EngineCore" if fleet.engine == "vllm" else "scheduler")
    with pytest.raises(openai.APIError) as told:
        list(chunks)

    assert time.monotonic() - killed_at < NOTICED_S[fleet.engine]
    assert told.value.code in GONE
    eventually(lambda: not fleet.last.running, 30)


@on("vllm-pair", "sglang-pair")
def test_the_death_of_prefill_after_its_part_is_no_matter(
    fleet: Fleet, whole_gateway: GatewayServer, known: Known
) -> None:
    request = {"model": "smol", "prompt": LONG, "max_tokens": TOKENS, "temperature": 0}
    chunks = iter(
        whole_gateway.sdk.completions.create(stream=True, **request, extra_body={"cache_salt": uuid.uuid4().hex})
    )
    told = [next(chunks).choices[0].text]

    fleet.role("prefill").kill()

    told += [choice.text for chunk in chunks for choice in chunk.choices]
    assert "".join(told) == known.long


@on("vllm-pair")
def test_when_prefill_dies_over_a_prompt_decode_computes_it(
    fleet: Fleet, whole_gateway: GatewayServer, background: ThreadPoolExecutor
) -> None:
    answer = asked_aside(background, whole_gateway)

    fleet.role("prefill").kill()

    body = {"model": ENGINE_MODEL, "prompt": LONG_IDS, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    told = answer.result(60).json()["choices"][0]["text"]
    assert told == fleet.role("decode").ask("/v1/completions", body | {"cache_salt": "other"})["choices"][0]["text"]


@on("vllm-pair", "sglang-pair")
def test_when_prefill_dies_over_a_prompt_and_nobody_else_may_it_is_told_at_once(
    fleet: Fleet, open_gateway: Callable[..., GatewayServer], background: ThreadPoolExecutor
) -> None:
    strict = open_gateway("strict", prefill_policy="strict")
    answer = asked_aside(background, strict)

    killed_at = fleet.role("prefill").kill()

    reply = answer.result(60)
    assert time.monotonic() - killed_at < AT_ONCE_S
    assert reply.status_code in (502, 503)
    assert reply.json()["error"]["code"] in GONE
    eventually(lambda: not fleet.role("decode").busy(), 5)


@on("sglang-pair")
def test_when_decode_dies_over_a_prompt_it_is_told_at_once(
    fleet: Fleet, whole_gateway: GatewayServer, background: ThreadPoolExecutor
) -> None:
    answer = asked_aside(background, whole_gateway)

    killed_at = fleet.role("decode").kill()

    reply = answer.result(60)
    assert time.monotonic() - killed_at < AT_ONCE_S
    assert reply.json()["error"]["code"] in GONE
    eventually(lambda: not fleet.role("prefill").busy(), 20)


@on("vllm-pair")
def test_when_decode_dies_over_a_prompt_its_blocks_go_with_their_lease(
    fleet: Fleet, whole_gateway: GatewayServer, background: ThreadPoolExecutor
) -> None:
    prefill, expired = fleet.role("prefill"), fleet.expired()
    answer = asked_aside(background, whole_gateway)

    fleet.role("decode").kill()

    reply = answer.result(60)
    assert reply.status_code in (502, 503)
    assert reply.json()["error"]["code"] in GONE
    assert prefill.busy() > 0
    eventually(lambda: not prefill.busy(), LEASE_S + 5)
    assert prefill.metric("vllm:nixl_num_kv_expired_reqs_total") == expired + 1
