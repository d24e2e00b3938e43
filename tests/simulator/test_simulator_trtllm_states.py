"""TensorRT-LLM's states: what pins, what never frees, who comes first. Timeouts here last milliseconds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from simulator.fleet import Simulator, running
from simulator.generation import ReplyRule
from simulator.model import Pace
from simulator.options import SimulatorOptions, TrtllmOptions
from tests.simulator.wire_form import Reply, exchange, post, received, until

SLOW = Pace(ttft_s=0, prefill_s=0, decode_s=0.005, batch_s=0)
OPTIONS = SimulatorOptions(engine="trtllm", model="m", pace=Pace(speed=0), trtllm=TrtllmOptions(leave_s=0.02))
PROMPT = list(range(100, 140))
X = 2**50 + 1


def body_of(**changes: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "detokenize": False, **changes}


def completion(**changes: Any) -> bytes:
    return post("/v1/completions", body_of(**changes))


def context(style: int = 0, disagg_id: int = X) -> dict[str, Any]:
    return {"request_type": "context_only", "disagg_request_id": disagg_id, "schedule_style": style}


def choice(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200
    found: dict[str, Any] = reply.json()["choices"][0]
    return found


async def handed_over(prefill: Simulator) -> dict[str, Any]:
    """What prefill gave, as decode gets it."""
    reply = await exchange(prefill.worker.port, completion(disaggregated_params=context()))
    return {**choice(reply)["disaggregated_params"], "request_type": "generation_only"}


async def test_a_pair_says_what_one_worker_alone_says() -> None:
    async with running(OPTIONS) as prefill, running(OPTIONS) as decode:
        alone = choice(await exchange(decode.worker.port, completion()))["token_ids"]
        params = await handed_over(prefill)
        assert prefill.state()["blocks_pinned"] == 3

        together = choice(await exchange(decode.worker.port, completion(disaggregated_params=params)))["token_ids"]

        assert together == alone
        assert together[:1] == params["first_gen_tokens"]
        assert prefill.state()["blocks_used"] == 0


async def test_decode_that_never_comes_costs_the_transfer_timeout() -> None:
    async with running(replace(OPTIONS, trtllm=TrtllmOptions(transfer_timeout_s=0.01))) as prefill:
        await handed_over(prefill)

        await until(lambda: prefill.state()["blocks_used"] == 0)

        assert prefill.state()["expired_pins"] == 1


async def test_without_a_timeout_blocks_stay_for_ever() -> None:
    async with running(replace(OPTIONS, trtllm=TrtllmOptions(transfer_timeout_s=None))) as prefill:
        await handed_over(prefill)

        assert prefill.engine.due() is None
        assert prefill.state()["blocks_pinned"] == 3


async def test_a_second_decode_with_the_same_state_fails() -> None:
    async with running(OPTIONS) as prefill, running(OPTIONS) as decode:
        params = await handed_over(prefill)
        await exchange(decode.worker.port, completion(disaggregated_params=params))

        again = await exchange(decode.worker.port, completion(disaggregated_params=params))

        assert (again.status, again.json()["message"]) == (400, f"KV cache transfer failed for request {X}")


async def test_a_dead_prefill_is_a_400_at_decode() -> None:
    async with running(OPTIONS) as prefill, running(OPTIONS) as decode:
        params = await handed_over(prefill)
        prefill.kill()

        reply = await exchange(decode.worker.port, completion(disaggregated_params=params, stream=True))

        assert reply.status == 400
        assert decode.state()["blocks_used"] == 0


async def test_another_prompt_at_decode_reads_foreign_kv() -> None:
    other = [*PROMPT[:-1], 999]
    async with running(OPTIONS) as prefill, running(OPTIONS) as decode:
        params = await handed_over(prefill)
        wrong = choice(await exchange(decode.worker.port, completion(prompt=other, disaggregated_params=params)))
        right = choice(await exchange(prefill.worker.port, completion(prompt=other)))

    assert wrong["token_ids"][1:] != right["token_ids"][1:]


async def test_a_first_token_that_is_the_last_is_answered_by_prefill_and_pins_nothing() -> None:
    options = replace(OPTIONS, rule=ReplyRule(text=(PROMPT[-1],)))
    async with running(options) as prefill:
        reply = choice(await exchange(prefill.worker.port, completion(disaggregated_params=context())))

        assert (reply["finish_reason"], reply["token_ids"], reply["disaggregated_params"]) == ("stop", [2], None)
        assert prefill.state()["blocks_used"] == 0


async def client(simulator: Simulator, **changes: Any) -> None:
    async with httpx.AsyncClient() as http:
        await http.post(f"{simulator.url}/v1/completions", json=body_of(**changes))


async def test_leaving_during_prefill_frees_after_the_poll() -> None:
    # The prompt takes longer than the poll's period.
    slow = replace(OPTIONS, pace=Pace(ttft_s=0.2))
    async with running(slow) as prefill:
        asking = asyncio.ensure_future(client(prefill, disaggregated_params=context()))
        await until(lambda: prefill.state()["requests_running"] == 1)
        asking.cancel()
        await until(lambda: prefill.state()["connections"] == 0)

        assert prefill.state()["requests_running"] == 1
        await until(lambda: prefill.state()["blocks_used"] == 0)


async def test_leaving_after_prefill_has_computed_frees_nothing() -> None:
    quick = replace(OPTIONS, pace=Pace(ttft_s=0.01), trtllm=TrtllmOptions(leave_s=0.1))
    async with running(quick) as prefill:
        asking = asyncio.ensure_future(client(prefill, disaggregated_params=context()))
        await until(lambda: prefill.state()["requests_running"] == 1)
        asking.cancel()

        await until(lambda: prefill.state()["blocks_pinned"] == 3)
        await until(lambda: prefill.state()["answers"] == 0)

        assert prefill.state()["blocks_pinned"] == 3


async def test_a_decode_closed_before_its_first_token_leaves_prefill_pinned() -> None:
    late = replace(OPTIONS, pace=Pace(transfer_s=0.05), trtllm=TrtllmOptions(leave_s=0.0))
    async with running(OPTIONS) as prefill, running(late) as decode:
        params = await handed_over(prefill)
        asking = asyncio.ensure_future(client(decode, disaggregated_params=params))
        await until(lambda: decode.state()["requests_waiting"] == 1)
        asking.cancel()
        await until(lambda: decode.state()["answers"] == 0)

        assert decode.state()["blocks_used"] == 0
        assert prefill.state()["blocks_pinned"] == 3


@pytest.mark.parametrize("decode_first", [True, False])
async def test_generation_first_meets_by_id_whoever_comes_first(decode_first: bool) -> None:
    async with running(OPTIONS) as prefill, running(OPTIONS) as decode:
        alone = choice(await exchange(decode.worker.port, completion()))["token_ids"]
        endpoint = prefill.worker.endpoint  # type: ignore[attr-defined]
        generation = {
            **context(style=1),
            "request_type": "generation_only",
            "ctx_request_id": X,
            "ctx_info_endpoint": endpoint,
        }
        calls = [
            (decode, completion(disaggregated_params=generation)),
            (prefill, completion(disaggregated_params=context(style=1))),
        ]
        ordered = calls if decode_first else calls[::-1]
        tasks = []
        for simulator, raw in ordered:
            tasks.append(asyncio.ensure_future(exchange(simulator.worker.port, raw)))
            await until(lambda: prefill.state()["rooms"] == 1 or len(tasks) == 2)
        replies = await asyncio.gather(*(tasks if decode_first else tasks[::-1]))

        assert choice(replies[0])["token_ids"] == alone
        assert prefill.state()["blocks_used"] == decode.state()["blocks_used"] == prefill.state()["rooms"] == 0


@pytest.mark.parametrize(("band", "told"), [("1.2", False), ("1.3", True)])
async def test_an_error_inside_a_stream_is_told_or_cut_by_band(band: str, told: bool) -> None:
    options = replace(OPTIONS, trtllm=TrtllmOptions(band=band))
    async with running(options) as simulator:
        simulator.faults.add("error@token:2")
        data, orderly = await received(simulator.worker.port, completion(stream=True))

    assert orderly
    assert (b'"error"' in data, b"[DONE]" in data) == (told, told)


@pytest.mark.parametrize(("kept", "ids"), [(True, [900, 901]), (False, [900])])
async def test_a_stop_id_stays_only_when_asked(kept: bool, ids: list[int]) -> None:
    options = replace(OPTIONS, rule=ReplyRule(text=(900, 901, 902)))
    async with running(options) as simulator:
        raw = completion(stop_token_ids=[901], include_stop_str_in_output=kept)
        reply = await exchange(simulator.worker.port, raw)

    assert (choice(reply)["token_ids"], choice(reply)["stop_reason"]) == (ids, 901)
    assert reply.json()["usage"]["completion_tokens"] == len(ids)


async def test_a_stop_string_is_a_suffix_of_ids_without_detokenizing() -> None:
    options = replace(OPTIONS, rule=ReplyRule(text=(900, 901, 902, 903)))
    async with running(options) as simulator:
        reply = await exchange(simulator.worker.port, completion(stop=["w901 w902"]))

    assert (choice(reply)["token_ids"], choice(reply)["stop_reason"]) == ([900], "w901 w902")


async def test_the_first_half_of_a_stop_string_is_shown_before_it_is_known() -> None:
    options = replace(OPTIONS, rule=ReplyRule(text=(900, 901, 902, 903)))
    async with running(options) as simulator:
        raw = completion(detokenize=True, stop=[" w901 w902"], stream=True)
        events = (await exchange(simulator.worker.port, raw)).events()

    assert [event["choices"][0]["text"] for event in events[:-1]] == [" w900", " w901", ""]


async def test_usage_comes_only_with_stream_options() -> None:
    async with running(OPTIONS) as simulator:
        without = await exchange(simulator.worker.port, completion(stream=True))
        with_it = await exchange(simulator.worker.port, completion(stream=True, stream_options={}))
        wrong = await exchange(simulator.worker.port, completion(stream_options={"include_usage": True}))

    assert [event["usage"] for event in without.events()[:-1]] == [None] * 6
    assert with_it.events()[-2]["usage"]["completion_tokens"] == 6
    assert wrong.status == 400
