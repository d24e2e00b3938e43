"""The SGLang dialect against what a real SGLang 0.5.23 sent: the same reply but for ids, times and text."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from simulator.fleet import running
from simulator.generation import ReplyRule
from simulator.model import Pace
from simulator.options import SglangOptions, SimulatorOptions
from simulator.vocabulary import Codec, Vocabulary
from tests.simulator.wire_form import (
    Reply,
    exchange,
    forms,
    golden_body,
    golden_reply,
    golden_request,
    with_body,
)

PARIS, DOT = 7042, 30
TEXTS = {PARIS: " Paris", DOT: "."}


def decode(ids: Any) -> str:
    return "".join(TEXTS.get(i, f" w{i}") for i in ids)


OPTIONS = SimulatorOptions(
    engine="sglang",
    model="smollm2-135m",
    vocabulary=Vocabulary(49152, (2,), frozenset({0, 1, 2}), tuple(range(20_000, 49_000))),
    codec=Codec(lambda text: [504, 3575, 282, 4649, 314], decode),
    pace=Pace(speed=0),
    block_size=1,
    blocks=8192,
    context_length=2048,
    sglang=SglangOptions(health_s=0.0),
)


def events_of(reply: Reply) -> list[Any]:
    if reply.streamed:
        return [event for event in reply.events() if isinstance(event, dict)]
    document = reply.json()
    return document if isinstance(document, list) else [document]


def options_for(name: str, **changes: Any) -> SimulatorOptions:
    """A worker that ends this answer as the recorded one ended."""
    finish = events_of(golden_reply(name))[-1]["meta_info"]["finish_reason"]
    if finish["type"] != "stop":
        return replace(OPTIONS, **changes)
    if finish["matched"] != 2:
        return replace(OPTIONS, rule=ReplyRule(text=(PARIS, DOT)), **changes)
    tokens = events_of(golden_reply(name))[-1]["meta_info"]["completion_tokens"]
    return replace(OPTIONS, rule=ReplyRule(text=tuple(range(30_000, 30_000 + tokens - 1))), **changes)


ANSWERS = [
    f"sglang/{name}"
    for name in [
        "10_generate_ids",
        "11_generate_ids_logprobs_rid",
        "12_generate_ids_stream",
        "13_generate_ids_stream_logprob",
        "15_generate_batch",
        "16_generate_stop",
        "17_generate_stop_token",
        "18_generate_cached_second",
        "19_generate_n2",
        "51_bootstrap_fields_on_normal_server",
    ]
]


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_has_the_recorded_form(name: str) -> None:
    async with running(options_for(name)) as simulator:
        if events_of(golden_reply(name))[0]["meta_info"]["cached_tokens"]:
            await exchange(simulator.worker.port, golden_request(name))
        reply = await exchange(simulator.worker.port, golden_request(name))

    assert forms(reply) == forms(golden_reply(name))


async def test_a_prompt_as_text_is_answered_in_the_recorded_form() -> None:
    name = "sglang/14_generate_text"
    async with running(OPTIONS) as simulator:
        await exchange(simulator.worker.port, golden_request(name))
        reply = await exchange(simulator.worker.port, golden_request(name))

    assert forms(reply, loose={"cached_tokens", "device"}) == forms(
        golden_reply(name), loose={"cached_tokens", "device"}
    )


ERRORS = [
    f"sglang/{name}"
    for name in [
        "30_err_bad_json",
        "31_err_too_long",
        "32_err_negative_temperature",
        "33_err_no_input",
        "37_err_lora_unknown",
    ]
]


@pytest.mark.parametrize("name", ERRORS)
async def test_a_refusal_has_the_recorded_status_and_words(name: str) -> None:
    async with running(OPTIONS) as simulator:
        reply = await exchange(simulator.worker.port, golden_request(name))

    assert (reply.status, reply.body) == (golden_reply(name).status, golden_reply(name).body)


@pytest.mark.parametrize("name", ["sglang/34_err_out_of_vocab", "sglang/98_err_out_of_vocab_kills_server"])
async def test_an_id_outside_the_vocabulary_kills_the_server_without_a_byte(name: str) -> None:
    async with running(OPTIONS) as simulator:
        reply = await exchange(simulator.worker.port, golden_request(name))

        assert reply.status == golden_reply(name).status == 0
        assert simulator.worker.dead


@pytest.mark.parametrize("name", ["00_health", "01_models", "42_abort_request"])
async def test_a_control_route_answers_in_the_recorded_form(name: str) -> None:
    async with running(OPTIONS) as simulator:
        reply = await exchange(simulator.worker.port, golden_request(f"sglang/{name}"))

    assert forms(reply) == forms(golden_reply(f"sglang/{name}"))


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("05_server_info2", "aggregated"),
        ("sglpd_mooncake_30_prefill_server_info", "prefill"),
        ("sglpd_mooncake_31_decode_server_info", "decode"),
    ],
)
async def test_server_info_tells_of_the_recorded_what_it_tells(name: str, role: str) -> None:
    async with running(replace(OPTIONS, role=role)) as simulator:
        reply = await exchange(simulator.worker.port, golden_request(f"sglang/{name}"))

    recorded, told = golden_reply(f"sglang/{name}").json(), reply.json()
    assert [key for key in recorded if key in told] == list(told)
    assert {key: type(value) for key, value in told.items() if key != "max_running_requests"} == {
        key: type(recorded[key]) for key in told if key != "max_running_requests"
    }
    assert told["disaggregation_mode"] == recorded["disaggregation_mode"]


PAIRS = ["10_generate_france", "11_generate_light", "20_generate_stream", "21_generate_logprob"]


@pytest.mark.parametrize("name", PAIRS)
async def test_both_halves_of_a_pair_answer_in_the_recorded_form(name: str) -> None:
    halves = [f"sglang/sglpd_mooncake_{name}_{half}" for half in ("prefill", "decode")]
    options = options_for(halves[1])
    async with (
        running(replace(options, role="prefill")) as prefill,
        running(replace(options, role="decode")) as decode,
    ):
        if events_of(golden_reply(halves[0]))[0]["meta_info"]["cached_tokens"] == 36:
            await pair(prefill, decode, halves[0], room=1)
        replies = await pair(prefill, decode, halves[0], room=2)

        loose = set() if name != "11_generate_light" else {"cached_tokens", "device"}
        recorded = [forms(golden_reply(half), loose) for half in halves]
        assert [cold(forms(reply, loose)) for reply in replies] == [cold(one) for one in recorded]
        assert prefill.state()["blocks_used"] == decode.state()["blocks_used"] == prefill.state()["rooms"] == 0


async def pair(prefill: Any, decode: Any, name: str, room: int) -> list[Reply]:
    address = prefill.worker_kwargs
    body = {**golden_body(name), "bootstrap_room": room, "bootstrap_port": address["bootstrap_port"]}
    raw = with_body(golden_request(name), body)
    return list(await asyncio.gather(exchange(prefill.worker.port, raw), exchange(decode.worker.port, raw)))


def cold(value: Any) -> Any:
    """Details of cache hits are an object only where there were hits."""
    if isinstance(value, tuple) and value and value[0] == "cached_tokens_details":
        return ("cached_tokens_details", "any")
    if isinstance(value, (list, tuple)):
        return type(value)(cold(item) for item in value)
    return value


@pytest.mark.parametrize("half", ["prefill", "decode"])
async def test_a_worker_of_a_pair_refuses_a_plain_request_in_the_recorded_words(half: str) -> None:
    name = f"sglang/sglpd_mooncake_40_no_bootstrap_{half}"
    async with running(replace(OPTIONS, role=half)) as simulator:
        body = {**golden_body(name), "rid": "54819911ecc448f19efa5e8c9198ced6"}
        reply = await exchange(simulator.worker.port, with_body(golden_request(name), body))

    message = golden_reply("sglang/sglpd_mooncake_40_no_bootstrap_decode").json()
    assert (reply.status, reply.json()) == (400, message)


async def test_a_stream_aborted_by_rid_ends_in_the_recorded_form() -> None:
    name = "sglang/41_generate_stream_aborted"
    pace = Pace(ttft_s=0, prefill_s=0, decode_s=0.001, batch_s=0)
    async with running(replace(OPTIONS, pace=pace)) as simulator:
        port = simulator.worker.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(golden_request(name))
        await reader.readuntil(b'"completion_tokens":3')
        aborted = await exchange(port, golden_request("sglang/42_abort_request"))
        rest = await reader.read()
        writer.close()

        last = rest.split(b"data: ")[-2]
        assert (aborted.status, aborted.body) == (200, b"")
        assert b'"finish_reason":{"type":"abort","message":"Aborted","status_code":null,"err_type":null}' in last
        assert simulator.state()["blocks_used"] == 0
