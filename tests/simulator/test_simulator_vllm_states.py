"""vLLM's states: pins and leases, late and wrong reads, aborts by id, shutdown. Leases here last milliseconds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from simulator.fleet import Simulator, running
from simulator.model import Pace
from simulator.options import SimulatorOptions, VllmOptions
from tests.simulator.wire_form import exchange, get, post, until

FAST = Pace(speed=0)
SLOW = Pace(ttft_s=0, prefill_s=0, decode_s=0.005, batch_s=0)
OPTIONS = SimulatorOptions(model="m", pace=FAST)
PROMPT = list(range(100, 140))
ASK = {"do_remote_decode": True, "do_remote_prefill": False}


def completion(**body: Any) -> bytes:
    defaults = {"model": "m", "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "return_token_ids": True}
    return post("/v1/completions", {**defaults, **body})


async def prefilled(prefill: Simulator, **body: Any) -> dict[str, Any]:
    """What a prefill hands out."""
    reply = await exchange(prefill.worker.port, completion(max_tokens=1, kv_transfer_params=ASK, **body))
    params: dict[str, Any] = reply.json()["kv_transfer_params"]
    return params


async def ids_of(simulator: Simulator, **body: Any) -> list[int]:
    reply = await exchange(simulator.worker.port, completion(**body))
    assert reply.status == 200
    ids: list[int] = reply.json()["choices"][0]["token_ids"]
    return ids


async def metric(simulator: Simulator, name: str) -> float:
    text = (await exchange(simulator.worker.port, get("/metrics"))).body.decode()
    line = next(line for line in text.splitlines() if line.startswith(f"vllm:{name}{{"))
    return float(line.rpartition(" ")[2])


async def test_prefill_pins_until_decode_has_read() -> None:
    async with running(OPTIONS) as prefill, running(OPTIONS) as decode:
        alone = await ids_of(decode)
        params = await prefilled(prefill)
        assert prefill.state()["blocks_pinned"] == 3

        together = await ids_of(decode, kv_transfer_params=params)

        assert together == alone
        assert prefill.state()["blocks_used"] == 0
        assert decode.state()["timers"] == 0


async def test_decode_counts_what_came_from_its_peer() -> None:
    async with running(OPTIONS) as prefill, running(OPTIONS) as decode:
        await ids_of(decode, kv_transfer_params=await prefilled(prefill))

        assert await metric(decode, "external_prefix_cache_hits_total") == len(PROMPT)
        assert await metric(decode, "nixl_bytes_transferred_count") == 1


async def test_an_unused_pin_ends_with_its_lease_and_is_counted() -> None:
    async with running(replace(OPTIONS, vllm=VllmOptions(lease_s=0.01))) as prefill:
        await prefilled(prefill)

        await until(lambda: prefill.state()["blocks_used"] == 0)

        assert await metric(prefill, "nixl_num_kv_expired_reqs_total") == 1


async def test_a_late_decode_is_answered_200_with_other_ids_and_only_prefill_knows() -> None:
    small = replace(OPTIONS, blocks=4, context_length=64, vllm=VllmOptions(lease_s=0.01))
    async with running(small) as prefill, running(OPTIONS) as decode:
        params = await prefilled(prefill)
        await until(lambda: prefill.state()["blocks_used"] == 0)
        await ids_of(prefill, prompt=list(range(500, 560)), max_tokens=1)

        late = await ids_of(decode, kv_transfer_params=params)

        assert late != await ids_of(prefill)
        assert await metric(prefill, "nixl_num_notifications_after_expiry_total") == 1


async def test_heartbeats_keep_the_lease_while_decode_queues() -> None:
    # Three leases of 60 ms pass while another request holds decode's only slot.
    lease = VllmOptions(lease_s=0.06)
    async with (
        running(replace(OPTIONS, vllm=lease)) as prefill,
        running(replace(OPTIONS, pace=replace(SLOW, slots=1), vllm=lease)) as decode,
    ):
        busy = asyncio.ensure_future(ids_of(decode, max_tokens=36, prompt=[7, 8, 9]))
        await until(lambda: decode.state()["requests_running"] == 1)
        params = await prefilled(prefill)

        late = await ids_of(decode, kv_transfer_params=params)

        assert late == await ids_of(prefill)
        assert prefill.state()["expired_pins"] == 0
        await busy


async def test_params_of_an_engine_that_was_restarted_fail() -> None:
    async with running(OPTIONS) as prefill, running(OPTIONS) as decode:
        params = {**await prefilled(prefill), "remote_engine_id": "somebody else"}

        reply = await exchange(decode.worker.port, completion(kv_transfer_params=params))

        assert (reply.status, reply.json()["error"]["type"]) == (500, "InternalServerError")
        assert decode.state()["blocks_used"] == 0


async def test_with_the_policy_recompute_a_lost_prefill_costs_only_time() -> None:
    recompute = replace(OPTIONS, vllm=VllmOptions(recompute=True))
    async with running(OPTIONS) as prefill, running(recompute) as decode:
        params = await prefilled(prefill)
        alone = await ids_of(prefill)
        prefill.kill()

        assert await ids_of(decode, kv_transfer_params=params) == alone


async def test_a_prefill_killed_between_the_calls_is_a_500_and_inside_a_stream_an_error_event() -> None:
    async with running(OPTIONS) as prefill, running(OPTIONS) as decode:
        params = await prefilled(prefill)
        prefill.kill()

        unary = await exchange(decode.worker.port, completion(kv_transfer_params=params))
        stream = await exchange(decode.worker.port, completion(kv_transfer_params=params, stream=True))

    assert unary.status == 500
    assert stream.status == 200
    assert stream.events()[0]["error"]["code"] == 500


async def test_a_decode_that_leaves_while_it_queues_frees_prefill() -> None:
    async with running(OPTIONS) as prefill, running(replace(OPTIONS, pace=replace(SLOW, slots=1))) as decode:
        busy = asyncio.ensure_future(ids_of(decode, max_tokens=200, prompt=[7, 8, 9]))
        await until(lambda: decode.state()["requests_running"] == 1)
        params = await prefilled(prefill)
        queued = asyncio.ensure_future(
            leaving(decode, {"prompt": PROMPT, "max_tokens": 6, "kv_transfer_params": params})
        )
        await until(lambda: decode.state()["requests_waiting"] == 1)
        queued.cancel()

        await until(lambda: prefill.state()["blocks_pinned"] == 0)

        assert decode.state()["requests_waiting"] == 0
        busy.cancel()


async def leaving(simulator: Simulator, body: dict[str, Any]) -> None:
    """A client that can be cancelled, which closes its connection."""
    async with httpx.AsyncClient(timeout=5) as client:
        await client.post(f"{simulator.url}/v1/completions", json={"model": "m", **body})


COMPLETIONS, TOKENS_IN = "/v1/completions", "/inference/v1/generate"
REFUSALS = [
    # By the route's handler, by the body's validation, and by the engine, which a stream's head has left before.
    (COMPLETIONS, {"temperature": -1}, True, 400, "BadRequestError", True),
    (COMPLETIONS, {"temperature": "warm"}, True, 400, "Bad Request", False),
    (COMPLETIONS, {"logprobs": 30}, False, 400, "BadRequestError", True),
    (COMPLETIONS, {"logprobs": 30}, True, 200, "BadRequestError", False),
    (COMPLETIONS, {"prompt": [10**9]}, True, 200, "BadRequestError", False),
    (TOKENS_IN, {"temperature": -1}, True, 400, "BadRequestError", False),
    (TOKENS_IN, {"logprobs": 30}, False, 400, "BadRequestError", False),
    (TOKENS_IN, {"logprobs": 30}, True, 200, "BadRequestError", False),
    (TOKENS_IN, {"prompt": [10**9]}, True, 200, "BadRequestError", False),
    (TOKENS_IN, {"prompt": [5] * 70}, True, 200, "BadRequestError", False),
]


@pytest.mark.parametrize(("route", "wrong", "stream", "status", "kind", "freed"), REFUSALS)
async def test_a_refused_decode_releases_prefill_only_where_the_openai_handler_refuses(
    route: str, wrong: dict[str, Any], stream: bool, status: int, kind: str, freed: bool
) -> None:
    async with running(OPTIONS) as prefill, running(replace(OPTIONS, context_length=64)) as decode:
        params = await prefilled(prefill)
        asked = {"stream": stream, "kv_transfer_params": params}
        reply = await exchange(decode.worker.port, post(route, {**_on(route, {"prompt": PROMPT} | wrong), **asked}))
        told = reply.events() if reply.streamed else [reply.json()]
        await asyncio.sleep(0.01)

        assert reply.status == status
        assert (told[0]["error"]["code"], told[0]["error"]["type"]) == (400, kind)
        assert told[1:] == (["[DONE]"] if status == 200 else [])
        assert (prefill.state()["blocks_pinned"] == 0) is freed
        assert decode.state()["answers"] == 0


def _on(route: str, asked: dict[str, Any]) -> dict[str, Any]:
    if route == COMPLETIONS:
        return asked
    return {"token_ids": asked.pop("prompt"), "sampling_params": asked}


async def test_a_client_that_leaves_frees_everything_at_once() -> None:
    async with running(replace(OPTIONS, pace=SLOW)) as simulator:
        client = asyncio.ensure_future(leaving(simulator, {"prompt": PROMPT, "max_tokens": 500, "stream": True}))
        await until(lambda: simulator.state()["requests_running"] == 1)
        client.cancel()

        await until(lambda: simulator.state()["answers"] == 0)

        assert simulator.state()["blocks_used"] == 0


async def test_a_streamed_prefill_pins_and_loses_the_handle() -> None:
    async with running(OPTIONS) as prefill:
        reply = await exchange(prefill.worker.port, completion(max_tokens=1, stream=True, kv_transfer_params=ASK))

        assert b"kv_transfer_params" not in reply.body
        assert prefill.state()["blocks_pinned"] == 3


ABORTED = [
    ("/v1/completions", "cmpl-x", False),
    ("/v1/completions", "cmpl-x-0", True),
    ("/v1/completions", "x", False),
    ("/inference/v1/generate", "x", False),
    ("/inference/v1/generate", "generate-tokens-x", True),
    ("/v1/chat/completions", "chatcmpl-x", True),
]


@pytest.mark.parametrize(("route", "name", "works"), ABORTED)
async def test_only_the_engines_own_id_aborts(route: str, name: str, works: bool) -> None:
    body = {
        "model": "m",
        "request_id": "x",
        "prompt": PROMPT,
        "token_ids": PROMPT,
        "messages": [{"role": "user", "content": "hi"}],
        "sampling_params": {"max_tokens": 30},
        "max_tokens": 30,
    }
    async with running(replace(OPTIONS, pace=SLOW)) as simulator:
        port = simulator.worker.port
        answer = asyncio.ensure_future(exchange(port, post(route, body)))
        await until(lambda: simulator.state()["requests_running"] == 1)
        aborted = await exchange(port, post("/inference/v1/abort_requests", {"request_ids": [name]}))
        reply = await answer

    assert (aborted.status, aborted.body) == (200, b"")
    assert reply.status == 200
    assert (reply.json()["choices"][0]["finish_reason"] == "abort") is works


async def test_an_aborted_prefill_hands_nothing_over_and_one_that_has_answered_keeps_its_blocks() -> None:
    computing = replace(OPTIONS, pace=replace(SLOW, ttft_s=0.02))
    async with running(computing) as prefill:
        port = prefill.worker.port
        asked = completion(max_tokens=1, request_id="x", kv_transfer_params=ASK)
        abort = post("/inference/v1/abort_requests", {"request_ids": ["cmpl-x-0"]})
        answer = asyncio.ensure_future(exchange(port, asked))
        await until(lambda: prefill.state()["requests_running"] == 1)
        await exchange(port, abort)
        aborted = (await answer).json()

        assert (aborted["choices"][0]["finish_reason"], aborted["kv_transfer_params"]) == ("abort", None)
        assert prefill.state()["blocks_used"] == 0

        await exchange(port, asked)
        await exchange(port, abort)
        assert prefill.state()["blocks_pinned"] == 3


async def test_an_aborted_stream_says_abort_and_done() -> None:
    async with running(replace(OPTIONS, pace=SLOW)) as simulator:
        port = simulator.worker.port
        answer = asyncio.ensure_future(exchange(port, completion(stream=True, max_tokens=500, request_id="x")))
        await until(lambda: simulator.state()["requests_running"] == 1)
        await exchange(port, post("/inference/v1/abort_requests", {"request_ids": ["cmpl-x-0"]}))
        events = (await answer).events()

    assert events[-2]["choices"][0]["finish_reason"] == "abort"
    assert events[-2]["system_fingerprint"]
    assert events[-1] == "[DONE]"


async def test_shutdown_ends_streams_with_abort() -> None:
    async with running(replace(OPTIONS, pace=SLOW)) as simulator:
        answer = asyncio.ensure_future(exchange(simulator.worker.port, completion(stream=True, max_tokens=500)))
        await until(lambda: simulator.state()["requests_running"] == 1)
        await simulator.stop()

        assert (await answer).events()[-2]["choices"][0]["finish_reason"] == "abort"


async def test_a_draining_worker_finishes_what_it_has_and_aborts_what_comes() -> None:
    draining = replace(OPTIONS, pace=SLOW, vllm=VllmOptions(shutdown_timeout_s=1))
    async with running(draining) as simulator:
        port = simulator.worker.port
        answer = asyncio.ensure_future(exchange(port, completion(max_tokens=10)))
        await until(lambda: simulator.state()["requests_running"] == 1)
        stopping = asyncio.ensure_future(simulator.stop())
        await asyncio.sleep(0)
        late = await exchange(port, completion())
        health = await exchange(port, get("/health"))
        await stopping

    assert (await answer).json()["choices"][0]["finish_reason"] == "length"
    assert (late.status, late.json()["choices"][0]["finish_reason"]) == (200, "abort")
    assert health.status == 200


async def test_a_full_queue_is_a_503() -> None:
    limited = replace(OPTIONS, pace=replace(SLOW, slots=1), vllm=VllmOptions(max_queued=1))
    async with running(limited) as simulator:
        port = simulator.worker.port
        taken = [asyncio.ensure_future(exchange(port, completion(max_tokens=20)))]
        await until(lambda: simulator.state()["requests_running"] == 1)
        taken.append(asyncio.ensure_future(exchange(port, completion(max_tokens=20))))
        await until(lambda: simulator.state()["requests_waiting"] == 1)

        refused = await exchange(port, completion())

        assert (refused.status, refused.json()["error"]["type"]) == (503, "Service Unavailable")
        assert [reply.status for reply in await asyncio.gather(*taken)] == [200, 200]


@pytest.mark.parametrize(("header", "status"), [("1", 200), ("2", 400), ("one", 200)])
async def test_a_rank_header_is_checked_only_when_it_is_a_number(header: str, status: int) -> None:
    raw = completion(max_tokens=1, kv_transfer_params=ASK)
    raw = raw.replace(b"host: x", f"host: x\r\nX-data-parallel-rank: {header}".encode())
    async with running(replace(OPTIONS, dp_size=2)) as simulator:
        reply = await exchange(simulator.worker.port, raw)

        assert reply.status == status
        chosen = [model.cache.pinned for model in simulator.worker.models]
        assert chosen == ([0, 3] if header == "1" else [3, 0] if status == 200 else [0, 0])


async def test_several_choices_differ_only_when_they_are_sampled() -> None:
    async with running(OPTIONS) as simulator:
        reply = await exchange(simulator.worker.port, completion(n=3, temperature=0.8, seed=5))
        greedy = await exchange(simulator.worker.port, completion(n=2))

    answers = [tuple(choice["token_ids"]) for choice in reply.json()["choices"]]
    assert len(set(answers)) == 3
    assert greedy.status == 400


async def test_a_stream_interval_thins_events_and_loses_nothing() -> None:
    async with running(OPTIONS) as simulator:
        whole = await ids_of(simulator, max_tokens=20)
        reply = await exchange(simulator.worker.port, completion(max_tokens=20, stream=True, stream_interval=6))

    pieces = [event["choices"][0]["token_ids"] for event in reply.events()[:-1]]
    assert [len(piece) for piece in pieces] == [1, 6, 6, 6, 1]
    assert [token for piece in pieces for token in piece] == whole


async def test_a_chat_call_takes_ids_in_its_transfer_params() -> None:
    body = {"model": "m", "messages": [], "max_tokens": 6, "temperature": 0, "return_token_ids": True}
    async with running(OPTIONS) as simulator:
        given = {**body, "kv_transfer_params": {"prompt_token_ids": PROMPT}}
        reply = await exchange(simulator.worker.port, post("/v1/chat/completions", given))

        assert reply.json()["choices"][0]["token_ids"] == await ids_of(simulator)


@pytest.mark.parametrize(
    "body", [{"prompt": 5}, {"prompt": [[]]}, {"stop_token_ids": 7}, {"logprobs": [1]}, {"stop": ["a"] * 5}]
)
async def test_any_nonsense_is_a_400_and_not_a_broken_connection(body: dict[str, Any]) -> None:
    async with running(OPTIONS) as simulator:
        reply = await exchange(simulator.worker.port, completion(**body))

    assert reply.status == 400
    assert reply.json()["error"]["message"]
