"""What vLLM does with the blocks that prefill pins: what the gateway's release rests on, and the simulator imitates.

The engines are asked past the gateway.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.real.fleets import DECODE_LOGPROBS, Fleet, on
from tests.real.processes import ENGINE_MODEL, PATIENCE_S, EngineServer, eventually

VLLM_PAIRS = ("vllm-pair", "vllm-pair-completions")
GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"
ROUTES = {"vllm-pair": GENERATE, "vllm-pair-completions": COMPLETIONS}
ABORT = "/inference/v1/abort_requests"
HAND_OVER = {"do_remote_decode": True, "do_remote_prefill": False}
PROMPT = [300 + n for n in range(200)]
LONG_IDS = [300 + n for n in range(1_900)]
BUSY_IDS = LONG_IDS[:1_200]
"""What keeps decode busy for one step of some seconds."""
PREFILL_IS_AT_IT_S = 1.0
AT_ONCE_S = 1.0
SOON_S = 3.0
PREFILL_S = 20.0
LEASE_S = 30.0
LATER_S = 2.0
"""Long enough for a read that was under way."""


@pytest.fixture
def prefill(fleet: Fleet) -> Iterator[EngineServer]:
    fleet.mend()
    eventually(lambda: not fleet.busy(), LEASE_S + 5)
    return fleet.role("prefill")


@pytest.fixture
def decode(fleet: Fleet, prefill: EngineServer) -> EngineServer:
    return fleet.role("decode")


def body_for(route: str, prompt: list[int], kv: Any, *, stream: bool = False, **sampling: Any) -> dict[str, Any]:
    sampling = {"max_tokens": 1, "temperature": 0} | sampling
    asked = {"model": ENGINE_MODEL, "stream": stream, "cache_salt": uuid.uuid4().hex, "kv_transfer_params": kv}
    if route == GENERATE:
        return {"token_ids": prompt, "sampling_params": sampling} | asked
    return {"prompt": prompt} | sampling | asked


def post(server: EngineServer, path: str, body: Any, **headers: str) -> httpx.Response:
    return httpx.post(server.url + path, json=body, headers=headers, timeout=PATIENCE_S)


def handed_over(fleet: Fleet, prompt: list[int]) -> Any:
    """What prefill gives for a prompt that it has computed."""
    route = ROUTES[fleet.name]
    return fleet.role("prefill").ask(route, body_for(route, prompt, HAND_OVER))["kv_transfer_params"]


def pins(server: EngineServer) -> bool:
    return server.busy() > 0


# ---- aborts


@on("vllm-pair")
def test_an_aborted_prefill_answers_at_once_and_hands_nothing_over(fleet: Fleet, prefill: EngineServer) -> None:
    expired = fleet.expired()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, prefill, GENERATE, body_for(GENERATE, LONG_IDS, HAND_OVER), **{"X-Request-Id": "a"})
        time.sleep(PREFILL_IS_AT_IT_S)
        aborted_at = time.monotonic()
        assert post(prefill, ABORT, {"request_ids": ["generate-tokens-a"]}).status_code == 200
        reply = answer.result().json()
        took = time.monotonic() - aborted_at

    assert reply["choices"][0]["finish_reason"] == "abort"
    assert reply["kv_transfer_params"] is None
    assert took < AT_ONCE_S
    eventually(lambda: not pins(prefill), PREFILL_S)
    assert fleet.expired() == expired


@on("vllm-pair")
def test_an_abort_after_the_answer_frees_nothing(fleet: Fleet, prefill: EngineServer, decode: EngineServer) -> None:
    body = body_for(GENERATE, PROMPT, HAND_OVER)
    given = post(prefill, GENERATE, body, **{"X-Request-Id": "b"}).json()["kv_transfer_params"]

    post(prefill, ABORT, {"request_ids": ["generate-tokens-b", given["remote_request_id"]]})
    time.sleep(LATER_S)

    assert pins(prefill)
    post(decode, GENERATE, body_for(GENERATE, PROMPT, given))
    eventually(lambda: not pins(prefill), SOON_S)


# ---- reads


@on(*VLLM_PAIRS)
@pytest.mark.parametrize("again", range(5))
def test_a_decode_call_that_is_closed_at_its_head_frees_the_blocks(
    fleet: Fleet, prefill: EngineServer, decode: EngineServer, again: int
) -> None:
    route, expired = ROUTES[fleet.name], fleet.expired()
    given = handed_over(fleet, PROMPT)
    assert pins(prefill)

    with httpx.stream("POST", decode.url + route, json=body_for(route, PROMPT, given, stream=True)) as reply:
        assert reply.status_code == 200

    print(f"free after {eventually(lambda: not pins(prefill), SOON_S, 0.05):.2f} s")
    assert fleet.expired() == expired


@on(*VLLM_PAIRS)
def test_so_does_one_that_decode_has_not_taken_up_yet(
    fleet: Fleet, prefill: EngineServer, decode: EngineServer
) -> None:
    """It is busy with a long step of another prompt. An empty read tells prefill that nobody comes."""
    route, expired = ROUTES[fleet.name], fleet.expired()
    given, moved = handed_over(fleet, PROMPT), decode.metric("vllm:nixl_bytes_transferred_sum")

    with decode.client({"model": ENGINE_MODEL, "prompt": BUSY_IDS, "max_tokens": 1, "cache_salt": uuid.uuid4().hex}):
        time.sleep(PREFILL_IS_AT_IT_S)
        with httpx.stream("POST", decode.url + route, json=body_for(route, PROMPT, given, stream=True)) as reply:
            assert reply.status_code == 200
        print(f"free after {eventually(lambda: not pins(prefill), PREFILL_S, 0.05):.2f} s")

    assert fleet.expired() == expired
    assert decode.metric("vllm:nixl_bytes_transferred_sum") == moved


# ---- refusals

BY_SAMPLING = {"temperature": -1}
BY_TYPE = {"temperature": "warm"}
BY_VALIDATOR = {"logprobs": -3}
BY_ENGINE = {"logprobs": DECODE_LOGPROBS + 1}
REFUSALS: dict[str, list[tuple[dict[str, Any], bool, int, str, bool]]] = {
    "vllm-pair-completions": [
        (BY_SAMPLING, True, 400, "BadRequestError", True),
        (BY_TYPE, True, 400, "Bad Request", False),
        (BY_VALIDATOR, True, 400, "BadRequestError", False),
        (BY_ENGINE, False, 400, "BadRequestError", True),
        (BY_ENGINE, True, 200, "BadRequestError", False),
    ],
    "vllm-pair": [
        (BY_SAMPLING, True, 400, "BadRequestError", False),
        (BY_ENGINE, False, 400, "BadRequestError", False),
        (BY_ENGINE, True, 200, "BadRequestError", False),
    ],
}
"""What is wrong and whether a stream was asked for: the status, the error's type, and whether prefill's blocks go."""
KIND = re.compile(r'"type": ?"([^"]*)"')


@on(*VLLM_PAIRS)
def test_which_refusals_at_decode_free_the_blocks(fleet: Fleet, prefill: EngineServer, decode: EngineServer) -> None:
    """Those that the completions handler made before it had a stream to give."""
    route = ROUTES[fleet.name]

    def tried(wrong: dict[str, Any], stream: bool) -> tuple[int, str, bool]:
        given = handed_over(fleet, PROMPT)
        reply = post(decode, route, body_for(route, PROMPT, given, stream=stream, **wrong))
        time.sleep(LATER_S)
        freed = not pins(prefill)
        post(decode, route, body_for(route, PROMPT, given))
        eventually(lambda: not pins(prefill), SOON_S)
        return reply.status_code, KIND.findall(reply.text)[0], freed

    expected = REFUSALS[fleet.name]
    assert [(wrong, stream, *tried(wrong, stream)) for wrong, stream, *_ in expected] == expected
