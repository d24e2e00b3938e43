"""Over a pair the prompt's KV really moves, from the worker that computed it to the one that answers."""

from __future__ import annotations

import math
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.real.fleets import PAIRS, Fleet, on
from tests.real.processes import GatewayServer, eventually
from tests.real.prompts import LONG, SHORT, TOKENS, Known

VLLM_PAIRS = ("vllm-pair", "vllm-pair-completions")
KV_BYTES = 30 * 2 * 3 * 64 * 4
"""Per token: layers, keys and values, heads, their size, float32."""
BLOCK = 32
OUTCOMES = ("remote", "local", "failed", "tail_cut")
AT_REST_S = 2.0


def salted(**more: Any) -> dict[str, Any]:
    """A request for LONG of which nobody can have anything in a cache."""
    return {
        "model": "smol",
        "prompt": LONG,
        "max_tokens": TOKENS,
        "temperature": 0,
        "extra_body": {"cache_salt": uuid.uuid4().hex} | more,
    }


@on(*VLLM_PAIRS)
def test_vllm_fetches_every_token_of_the_prompt(fleet: Fleet, gateway: GatewayServer, known: Known) -> None:
    prefill, decode = fleet.role("prefill"), fleet.role("decode")
    sources = "vllm:prompt_tokens_by_source_total"

    def counts() -> dict[str, float]:
        return {
            "computed by prefill": prefill.metric(sources, source="local_compute"),
            "computed by decode": decode.metric(sources, source="local_compute"),
            "fetched": decode.metric(sources, source="external_kv_transfer"),
            "external hits": decode.metric("vllm:external_prefix_cache_hits_total"),
            "bytes": decode.metric("vllm:nixl_bytes_transferred_sum"),
        }

    before = counts()
    answer = gateway.sdk.completions.create(**salted())

    tokens = known.long_tokens
    expected = {
        "computed by prefill": tokens,
        "computed by decode": 0,
        "fetched": tokens,
        "external hits": tokens,
        "bytes": math.ceil(tokens / BLOCK) * BLOCK * KV_BYTES,
    }
    assert answer.choices[0].text == known.long
    eventually(lambda: {name: value - before[name] for name, value in counts().items()} == expected, 5)


@on("sglang-pair")
def test_sglang_sends_every_token_of_the_prompt(fleet: Fleet, gateway: GatewayServer, known: Known) -> None:
    prefill, decode = fleet.role("prefill"), fleet.role("decode")

    def counts() -> dict[str, float]:
        return {
            "MB": prefill.metric("sglang:kv_transfer_total_mb_sum"),
            "prefill batches of decode": decode.said("Prefill batch"),
        }

    before = counts()
    answer = gateway.sdk.completions.create(**salted())

    assert answer.choices[0].text == known.long
    eventually(lambda: counts()["MB"] > before["MB"], 5)
    moved = {name: value - before[name] for name, value in counts().items()}
    assert moved["MB"] == pytest.approx(known.long_tokens * KV_BYTES / 2**20, rel=0.01)
    assert moved["prefill batches of decode"] == 0


@on(*PAIRS)
def test_prefill_has_ended_well_when_the_answer_ends(fleet: Fleet, gateway: GatewayServer) -> None:
    def outcomes() -> dict[str, float]:
        return {outcome: gateway.count("tandem_prefills_total", outcome=outcome) for outcome in OUTCOMES}

    before = outcomes()
    gateway.sdk.completions.create(**salted())

    assert {name: value - before[name] for name, value in outcomes().items()} == {
        **dict.fromkeys(OUTCOMES, 0),
        "remote": 1,
    }


@on(*PAIRS)
@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_names_both_workers(fleet: Fleet, gateway: GatewayServer, stream: bool) -> None:
    asked = {"model": "smol", "prompt": SHORT, "max_tokens": 4, "stream": stream}

    reply = gateway.http.post("/v1/completions", json=asked, headers={"x-tandem-explain": "1"})

    named = [reply.headers[f"x-tandem-{role}-worker"] for role in ("prefill", "decode")]
    assert named == [fleet.role(role).worker_id for role in ("prefill", "decode")]


@on(*PAIRS)
def test_hits_in_a_cache_are_those_of_prefill(fleet: Fleet, gateway: GatewayServer, known: Known) -> None:
    asked = salted()

    first, second = (gateway.sdk.completions.create(**asked).usage.prompt_tokens_details for _ in range(2))

    assert first.cached_tokens == 0
    assert known.long_tokens - 33 <= second.cached_tokens < known.long_tokens


@on(*PAIRS)
def test_one_token_is_answered_whoever_may(fleet: Fleet, gateway: GatewayServer, known: Known) -> None:
    answer = gateway.sdk.completions.create(model="smol", prompt=LONG, max_tokens=1, temperature=0)

    assert known.long.startswith(answer.choices[0].text)
    assert answer.usage.completion_tokens == 1


@on(*PAIRS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_of_ours_leaves_nothing_behind(fleet: Fleet, gateway: GatewayServer, known: Known, stream: bool) -> None:
    # A least length (SGLang) and a fifth stop string (vLLM) leave stopping to the gateway.
    stop = known.long[40:46]
    asked = {
        **salted(min_tokens=2),
        "max_tokens": 400,
        "stop": ["\x01", "\x02", "\x03", "\x04", stop],
        "stream": stream,
    }
    extra = asked.pop("extra_body")

    reply = gateway.http.post("/v1/completions", json={**asked, **extra})

    assert reply.status_code == 200
    assert ("stop" in reply.text) is True
    eventually(lambda: not fleet.busy(), AT_REST_S)


@on(*PAIRS)
def test_several_at_once_each_get_their_own_answer(fleet: Fleet, gateway: GatewayServer, known: Known) -> None:
    def ask(prompt: str) -> str:
        return gateway.sdk.completions.create(model="smol", prompt=prompt, max_tokens=8, temperature=0).choices[0].text

    with ThreadPoolExecutor(6) as pool:
        told = list(pool.map(ask, [LONG, SHORT] * 3))

    assert [known.long.startswith(told[0]), known.short.startswith(told[1])] == [True, True]
    assert told == told[:2] * 3
