"""SGLang's states: rooms and handshakes, aborts by prefix, late disconnects, draining. Timeouts last milliseconds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from simulator.fleet import Simulator, running
from simulator.generation import ReplyRule
from simulator.model import Pace
from simulator.options import SglangOptions, SimulatorOptions
from simulator.vocabulary import Codec
from tests.simulator.wire_form import Reply, exchange, get, post, until

SLOW = Pace(ttft_s=0, prefill_s=0, decode_s=0.005, batch_s=0)
OPTIONS = SimulatorOptions(
    engine="sglang", model="m", pace=Pace(speed=0), sglang=SglangOptions(health_s=0.02, stream_leave_s=0.02)
)
PROMPT = list(range(100, 140))


def body_of(**changes: Any) -> dict[str, Any]:
    return {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 6, "temperature": 0}, **changes}


def generate(**changes: Any) -> bytes:
    return post("/generate", body_of(**changes))


def at(prefill: Simulator, room: int) -> dict[str, Any]:
    """The three fields that a pair shares."""
    port = prefill.worker_kwargs["bootstrap_port"]
    return {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room}


def pair(**limits: Any) -> tuple[Any, Any]:
    options = replace(OPTIONS, sglang=replace(OPTIONS.sglang, **limits))
    return running(replace(options, role="prefill")), running(replace(options, role="decode"))


async def both(prefill: Simulator, decode: Simulator, **changes: Any) -> tuple[Reply, Reply]:
    raw = generate(**changes)
    return await asyncio.gather(exchange(prefill.worker.port, raw), exchange(decode.worker.port, raw))


def zero(*simulators: Simulator) -> bool:
    names = ("blocks_used", "pins", "requests_running", "requests_waiting", "answers", "rooms")
    return not any(simulator.state()[name] for simulator in simulators for name in names)


async def test_a_pair_says_what_one_worker_alone_says() -> None:
    first, second = pair()
    async with running(OPTIONS) as alone, first as prefill, second as decode:
        expected = await exchange(alone.worker.port, generate())
        half, whole = await both(prefill, decode, **at(prefill, 2**62 + 1))

        assert whole.json()["output_ids"] == expected.json()["output_ids"]
        assert half.json()["output_ids"] == expected.json()["output_ids"][:1]
        assert zero(prefill, decode)
        assert prefill.state()["timers"] == 0


async def test_prefill_waits_for_decode_and_answers_only_after_the_transfer() -> None:
    first, second = pair()
    async with first as prefill, second as decode:
        raw = generate(**at(prefill, 7))
        half = asyncio.ensure_future(exchange(prefill.worker.port, raw))
        await until(lambda: prefill.state()["rooms"] == 1)
        await asyncio.sleep(0.01)
        assert not half.done()
        assert prefill.state()["blocks_used"] == 0

        await exchange(decode.worker.port, raw)

        assert (await half).status == 200


async def test_a_prefill_that_nobody_joins_fails_after_its_timeout() -> None:
    first, _ = pair(bootstrap_timeout_s=0.02)
    async with first as prefill:
        reply = await exchange(prefill.worker.port, generate(**at(prefill, 7)))

        assert reply.status == 500
        assert "Prefill bootstrap failed" in reply.json()["message"]
        assert zero(prefill)


async def test_a_decode_whose_prefill_never_comes_fails_after_its_timeout() -> None:
    first, second = pair(waiting_timeout_s=0.02)
    async with first as prefill, second as decode:
        reply = await exchange(decode.worker.port, generate(**at(prefill, 7)))

        assert reply.status == 500
        assert "Decode transfer failed" in reply.json()["message"]
        await until(lambda: zero(prefill, decode))


async def test_a_decode_whose_prefill_dies_fails_after_two_missed_heartbeats() -> None:
    first, second = pair(heartbeat_s=0.01)
    async with first as prefill, second as decode:
        answer = asyncio.ensure_future(exchange(decode.worker.port, generate(stream=True, **at(prefill, 7))))
        await until(lambda: prefill.state()["rooms"] == 1)
        prefill.kill()

        finish = (await answer).events()[0]["meta_info"]["finish_reason"]

        assert (finish["type"], finish["status_code"]) == ("abort", 500)
        assert zero(decode)


async def test_decode_leaving_in_the_middle_fails_prefill() -> None:
    slow = replace(OPTIONS, role="prefill", pace=replace(SLOW, decode_s=1.0))
    async with running(slow) as prefill, running(replace(OPTIONS, role="decode")) as decode:
        raw = generate(**at(prefill, 7))
        half = asyncio.ensure_future(exchange(prefill.worker.port, raw))
        whole = asyncio.ensure_future(exchange(decode.worker.port, raw))
        await until(lambda: prefill.state()["requests_running"] == 1)
        decode.kill()

        assert (await half).status == 500
        assert (await whole).status == 0
        assert zero(prefill)


async def test_prefill_leaving_tells_decode_nothing() -> None:
    first, second = pair()
    async with first as prefill, second as decode:
        raw = generate(rid="p", **at(prefill, 7))
        half = asyncio.ensure_future(exchange(prefill.worker.port, raw))
        await until(lambda: prefill.state()["rooms"] == 1)
        await exchange(prefill.worker.port, post("/abort_request", {"rid": "p"}))
        whole = asyncio.ensure_future(exchange(decode.worker.port, raw))
        await until(lambda: prefill.state()["rooms"] == 1)

        assert (await half).json()["meta_info"]["finish_reason"]["type"] == "abort"
        assert not whole.done()
        decode.kill()
        await whole


async def test_the_fake_host_needs_no_peer_and_says_garbage() -> None:
    first, second = pair()
    fake = {"bootstrap_host": "2.2.2.2", "bootstrap_port": 1, "bootstrap_room": 0}
    async with running(OPTIONS) as alone, first as prefill, second as decode:
        half, whole = await both(prefill, decode, **fake)
        expected = await exchange(alone.worker.port, generate())

        assert (half.status, whole.status) == (200, 200)
        assert whole.json()["output_ids"] != expected.json()["output_ids"]
        assert zero(prefill, decode)


async def test_another_prompt_at_decode_reads_foreign_kv() -> None:
    first, second = pair()
    other = [*PROMPT[:-1], 999]
    async with running(OPTIONS) as alone, first as prefill, second as decode:
        here = at(prefill, 7)
        _, whole = await asyncio.gather(
            exchange(prefill.worker.port, generate(**here)),
            exchange(decode.worker.port, generate(**{**here, "input_ids": other})),
        )
        expected = await exchange(alone.worker.port, generate(input_ids=other))

    assert whole.json()["output_ids"][1:] != expected.json()["output_ids"][1:]


async def test_a_batch_takes_one_room_after_the_other() -> None:
    first, second = pair()
    async with first as prefill, second as decode:
        prompts = [PROMPT, PROMPT[:20]]
        half, whole = await both(prefill, decode, input_ids=prompts, **at(prefill, 100))

        assert [len(part["output_ids"]) for part in half.json()] == [1, 1]
        assert [len(part["output_ids"]) for part in whole.json()] == [6, 6]
        assert zero(prefill, decode)


async def test_the_room_says_which_prefill_rank() -> None:
    ranks = replace(OPTIONS, role="prefill", dp_size=4)
    async with running(ranks) as prefill, running(replace(OPTIONS, role="decode")) as decode:
        await both(prefill, decode, **at(prefill, 4 * 10 + 3))

        assert [model.steps > 0 for model in prefill.worker.models] == [False, False, False, True]


async def test_the_bootstrap_port_has_a_health_of_its_own() -> None:
    first, _ = pair()
    async with first as prefill:
        reply = await exchange(prefill.worker_kwargs["bootstrap_port"], get("/health"))

    assert reply.body == b"OK"


async def test_an_abort_matches_by_prefix() -> None:
    async with running(replace(OPTIONS, pace=SLOW)) as simulator:
        port = simulator.worker.port
        long = {"max_new_tokens": 500}
        answers = [
            asyncio.ensure_future(exchange(port, generate(rid=rid, sampling_params=long)))
            for rid in ("r1", "r10", "r2")
        ]
        await until(lambda: simulator.state()["requests_running"] == 3)
        await exchange(port, post("/abort_request", {"rid": "r1"}))

        replies = await asyncio.gather(*answers[:2])

        assert [reply.json()["meta_info"]["finish_reason"]["type"] for reply in replies] == ["abort", "abort"]
        assert not answers[2].done()
        await exchange(port, post("/abort_request", {"rid": "", "abort_all": True}))
        assert (await answers[2]).status == 200


async def test_a_live_rid_is_refused_a_second_time() -> None:
    async with running(replace(OPTIONS, pace=SLOW)) as simulator:
        port = simulator.worker.port
        first = asyncio.ensure_future(exchange(port, generate(rid="same")))
        await until(lambda: simulator.state()["requests_running"] == 1)
        second = await exchange(port, generate(rid="same"))
        await first
        third = await exchange(port, generate(rid="same"))

    assert second.json() == {"error": {"message": "Duplicate request ID detected: same"}}
    assert third.status == 200


async def test_a_stream_is_200_even_when_the_request_is_refused() -> None:
    async with running(OPTIONS) as simulator:
        reply = await exchange(simulator.worker.port, generate(input_ids=[5] * 9000, stream=True))

    assert reply.status == 200
    assert reply.events()[0]["error"]["code"] == 400
    assert reply.events()[1] == "[DONE]"


async def test_too_many_tokens_are_refused_and_not_clamped() -> None:
    async with running(OPTIONS) as simulator:
        reply = await exchange(simulator.worker.port, generate(sampling_params={"max_new_tokens": 9000}))

    assert reply.status == 400
    assert "Requested token count exceeds" in reply.json()["error"]["message"]


@pytest.mark.parametrize("incremental", [False, True])
async def test_streams_are_cumulative_unless_the_server_says_otherwise(incremental: bool) -> None:
    options = replace(OPTIONS, sglang=replace(OPTIONS.sglang, incremental=incremental))
    async with running(options) as simulator:
        whole = (await exchange(simulator.worker.port, generate())).json()
        reply = await exchange(simulator.worker.port, generate(stream=True))

    ids = [event["output_ids"] for event in reply.events()[:-1]]
    expected = [[i] for i in whole["output_ids"]] if incremental else [whole["output_ids"][:n] for n in range(1, 7)]
    assert ids == expected


async def test_an_event_is_withheld_while_a_stop_string_may_begin_in_it() -> None:
    texts = {900: "a", 901: "st", 902: "ay", 903: "sto", 904: "p"}
    codec = Codec(lambda text: [], lambda ids: "".join(texts[i] for i in ids))
    options = replace(OPTIONS, codec=codec, rule=ReplyRule(text=(900, 901, 902, 903, 904)))
    async with running(options) as simulator:
        sampling = {"max_new_tokens": 9, "stop": ["stop"]}
        reply = await exchange(simulator.worker.port, generate(input_ids=[902], stream=True, sampling_params=sampling))

    events = reply.events()[:-1]
    assert [(event["text"], len(event["output_ids"])) for event in events] == [
        ("a", 1),
        ("astay", 3),
        ("astay", 5),
    ]
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": "stop"}


async def test_prompt_logprobs_come_from_prefill_only() -> None:
    first, second = pair()
    async with first as prefill, second as decode:
        half, whole = await both(prefill, decode, return_logprob=True, logprob_start_len=0, **at(prefill, 7))

    assert len(half.json()["meta_info"]["input_token_logprobs"]) == len(PROMPT)
    assert half.json()["meta_info"]["input_token_logprobs"][0][0] is None
    assert whole.json()["meta_info"]["input_token_logprobs"] == []
    assert len(whole.json()["meta_info"]["output_token_logprobs"]) == 6


async def test_a_client_that_leaves_is_noticed_late() -> None:
    async with running(replace(OPTIONS, pace=SLOW)) as simulator:

        async def client() -> None:
            async with httpx.AsyncClient() as http:
                await http.post(f"{simulator.url}/generate", json=body_of(stream=True, sampling_params={}))

        asking = asyncio.ensure_future(client())
        await until(lambda: simulator.state()["requests_running"] == 1)
        asking.cancel()
        await until(lambda: simulator.state()["connections"] == 0)

        assert simulator.state()["requests_running"] == 1
        await until(lambda: zero(simulator))


async def test_health_is_deep_and_slow_and_ready_is_not() -> None:
    async with running(OPTIONS) as simulator:
        started = asyncio.get_running_loop().time()
        health = await exchange(simulator.worker.port, get("/health"))
        elapsed = asyncio.get_running_loop().time() - started
        ready = await exchange(simulator.worker.port, get("/ready"))

        assert (health.status, ready.status, elapsed >= 0.02) == (200, 200, True)
        assert simulator.engine.steps == 1


async def test_a_draining_worker_is_unready_but_takes_what_comes() -> None:
    async with running(replace(OPTIONS, pace=SLOW)) as simulator:
        port = simulator.worker.port
        running_on = asyncio.ensure_future(exchange(port, generate()))
        await until(lambda: simulator.state()["requests_running"] == 1)
        stopping = asyncio.ensure_future(simulator.stop())
        await asyncio.sleep(0)
        statuses = [(await exchange(port, get(path))).status for path in ("/ready", "/health")]
        late = await exchange(port, generate(sampling_params={"max_new_tokens": 2}))
        await stopping

    assert statuses == [503, 503]
    assert late.json()["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    assert (await running_on).status == 200


async def test_a_full_queue_is_a_503_in_its_own_words() -> None:
    limited = replace(OPTIONS, pace=replace(SLOW, slots=1), sglang=replace(OPTIONS.sglang, max_queued=0))
    async with running(limited) as simulator:
        native = await exchange(simulator.worker.port, generate())
        stream = await exchange(simulator.worker.port, generate(stream=True))
        openai = await exchange(simulator.worker.port, post("/v1/completions", {"model": "m", "prompt": PROMPT}))

    message = "The request queue is full."
    assert native.json() == {"object": "error", "message": message, "type": "503", "param": None, "code": 503}
    assert stream.events()[0]["meta_info"]["finish_reason"]["status_code"] == 503
    assert (openai.status, openai.json()["type"]) == (503, "SERVICE_UNAVAILABLE")


async def test_a_busy_cache_is_not_flushed() -> None:
    async with running(replace(OPTIONS, pace=SLOW)) as simulator:
        port = simulator.worker.port
        asking = asyncio.ensure_future(exchange(port, generate()))
        await until(lambda: simulator.state()["requests_running"] == 1)
        busy = await exchange(port, post("/flush_cache", {}))
        await asking
        idle = await exchange(port, post("/flush_cache", {}))

    assert (busy.status, idle.status) == (400, 200)


async def test_loads_tell_of_queue_and_memory() -> None:
    async with running(OPTIONS) as simulator:
        reply = await exchange(simulator.worker.port, get("/v1/loads"))

    load = reply.json()["loads"][0]
    assert (load["dp_rank"], load["num_running_reqs"], load["token_usage"]) == (0, 0, 0.0)
