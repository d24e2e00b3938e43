"""What prefill pinned is free long before its lease ends, by prefill's own count of its blocks, and nothing runs on.

Prefill is looked at first and alone: a step that a test gives to decode might be what moves a release on.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.real.fleets import DECODE_CONTEXT, DECODE_LOGPROBS, Fleet, on
from tests.real.processes import ENGINE_MODEL, GatewayServer, eventually
from tests.real.prompts import CONTEXT, LONG

VLLM_PAIRS = ("vllm-pair", "vllm-pair-completions")
SOON_S = 3.0
"""A tenth of the lease."""
FETCHED_S = 10.0
"""A third: of a long prompt 85 MB have to move."""
PREFILL_S = 20.0
"""The step of a long prompt cannot be broken off."""
PREFILL_IS_AT_IT_S = 1.0
LONG_IDS = [300 + n for n in range(1_900)]
FETCHED = "vllm:nixl_bytes_transferred_sum"
ANSWERED = "vllm:request_success_total"


@pytest.fixture(autouse=True)
def nothing_expires(fleet: Fleet, whole_gateway: GatewayServer) -> Iterator[None]:
    before = fleet.expired()
    yield
    eventually(lambda: not fleet.busy(), SOON_S)
    assert fleet.expired() == before


def asked(**more: Any) -> dict[str, Any]:
    return {
        "model": "smol",
        "prompt": LONG,
        "max_tokens": 100,
        "temperature": 0,
        "ignore_eos": True,
        "cache_salt": uuid.uuid4().hex,
        **more,
    }


def prefill_is_free(fleet: Fleet, within_s: float) -> None:
    """It keeps no block and runs no request."""
    took = eventually(lambda: not fleet.role("prefill").busy(), within_s, 0.1)
    print(f"prefill is free after {took:.2f} s")


# ---- a client that leaves


@on("vllm-pair")
@pytest.mark.parametrize("stream", [False, True])
def test_before_prefills_answer_prefill_is_aborted_and_nothing_is_fetched(
    fleet: Fleet, gateway: GatewayServer, stream: bool
) -> None:
    decode = fleet.role("decode")
    fetched = decode.metric(FETCHED)

    with gateway.client(asked(prompt=LONG_IDS, stream=stream)):
        time.sleep(PREFILL_IS_AT_IT_S)

    prefill_is_free(fleet, PREFILL_S)
    assert decode.metric(FETCHED) == fetched


@on("vllm-pair-completions")
@pytest.mark.parametrize("stream", [False, True])
def test_before_prefills_answer_where_vllm_takes_no_aborts_the_blocks_are_fetched(
    fleet: Fleet, gateway: GatewayServer, stream: bool
) -> None:
    prefill = fleet.role("prefill")
    answered = prefill.metric(ANSWERED)

    with gateway.client(asked(prompt=LONG_IDS, stream=stream)):
        time.sleep(PREFILL_IS_AT_IT_S)

    eventually(lambda: prefill.metric(ANSWERED) > answered, PREFILL_S, 0.1)
    prefill_is_free(fleet, FETCHED_S)


@on(*VLLM_PAIRS)
@pytest.mark.parametrize("stream", [False, True])
def test_between_prefills_answer_and_decodes(fleet: Fleet, gateway: GatewayServer, stream: bool) -> None:
    prefill, decode = fleet.role("prefill"), fleet.role("decode")
    answered = prefill.metric(ANSWERED)

    with decode.paused():
        with gateway.client(asked(stream=stream)):
            eventually(lambda: prefill.metric(ANSWERED) > answered, PREFILL_S, 0.05)
        assert prefill.busy() > 0

    prefill_is_free(fleet, SOON_S)


@on(*VLLM_PAIRS)
def test_while_decode_is_busy_with_another_prompt(fleet: Fleet, gateway: GatewayServer) -> None:
    """What decode is told meanwhile, it takes up all at once, when the other's step is done."""
    prefill, decode = fleet.role("prefill"), fleet.role("decode")
    answered = prefill.metric(ANSWERED)

    with decode.client(
        {"model": ENGINE_MODEL, "prompt": LONG_IDS[:1_200], "max_tokens": 1, "cache_salt": uuid.uuid4().hex}
    ):
        with gateway.client(asked()):
            eventually(lambda: prefill.metric(ANSWERED) > answered, PREFILL_S, 0.05)
        prefill_is_free(fleet, PREFILL_S)


@on(*VLLM_PAIRS)
def test_after_the_first_tokens(fleet: Fleet, gateway: GatewayServer) -> None:
    with gateway.http.stream("POST", "/v1/completions", json=asked(stream=True)) as reply:
        lines = (line for line in reply.iter_lines() if line.startswith("data: {"))
        events = [next(lines) for _ in range(4)]

    assert len(events) == 4
    prefill_is_free(fleet, SOON_S)


# ---- a decode worker that refuses


@pytest.fixture
def believing(open_gateway: Callable[..., GatewayServer]) -> GatewayServer:
    """A gateway that believes in prefill's limits, not in decode's."""
    return open_gateway("believing", context_length=CONTEXT)


@on(*VLLM_PAIRS)
@pytest.mark.parametrize("stream", [False, True])
def test_after_a_refusal_inside_decodes_stream(fleet: Fleet, believing: GatewayServer, stream: bool) -> None:
    refused(fleet, believing, asked(logprobs=DECODE_LOGPROBS + 1, stream=stream))


@on("vllm-pair-completions")
@pytest.mark.parametrize("stream", [False, True])
def test_after_a_refusal_by_decodes_handler(fleet: Fleet, believing: GatewayServer, stream: bool) -> None:
    """The prompt is too long for decode, so no decode call could fetch its blocks."""
    refused(fleet, believing, asked(prompt=[300 + n for n in range(DECODE_CONTEXT + 8)], stream=stream))


def refused(fleet: Fleet, gateway: GatewayServer, body: dict[str, Any]) -> None:
    prefill = fleet.role("prefill")
    answered = prefill.metric(ANSWERED)

    reply = httpx.post(f"{gateway.url}/v1/completions", json=body, timeout=60)

    assert reply.status_code == 400
    assert prefill.metric(ANSWERED) == answered + 1
    prefill_is_free(fleet, SOON_S)
