"""The vLLM dialect against what a real vLLM 0.32 sent: the same reply but for ids, times and text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.fleet import Simulator, running
from simulator.generation import ReplyRule
from simulator.model import Pace
from simulator.options import SimulatorOptions, VllmOptions
from simulator.vocabulary import Codec, Vocabulary
from tests.simulator.wire_form import (
    exchange,
    forms,
    golden_body,
    golden_reply,
    golden_request,
    with_body,
)

CHAT_PROMPT = golden_body("vllm/20_completion_ids")["prompt"]
PARIS, DOT = 7042, 30
TEXTS = {PARIS: " Paris", DOT: "."}


def decode(ids: Any) -> str:
    return "".join(TEXTS.get(i, f" w{i}") for i in ids)


def encode(text: str) -> list[int]:
    return [504, 3575, 282, 4649, 314]


OPTIONS = SimulatorOptions(
    model="smollm2-135m",
    vocabulary=Vocabulary(49152, (2,), frozenset({0, 1, 2}), tuple(range(20_000, 49_000))),
    codec=Codec(encode, decode, lambda messages: CHAT_PROMPT),
    pace=Pace(speed=0),
    block_size=32,
    blocks=256,
    context_length=2048,
    vllm=VllmOptions(request_id_headers=True),
)


def options_for(name: str, **changes: Any) -> SimulatorOptions:
    """A worker that will end this answer as the recorded one ended: by length, by end-of-text, or by a stop."""
    recorded = golden_reply(name)
    if recorded.status != 200:
        return replace(OPTIONS, **changes)
    last = recorded.events()[-2] if recorded.streamed else recorded.json()
    finished = recorded.events() if recorded.streamed else [recorded.json()]
    choices = [choice for event in finished if isinstance(event, dict) for choice in event["choices"]]
    if choices[-1]["finish_reason"] != "stop":
        return replace(OPTIONS, **changes)
    if choices[-1]["stop_reason"] is not None:
        return replace(OPTIONS, rule=ReplyRule(text=(PARIS, DOT)), **changes)
    tokens = last["usage"]["completion_tokens"]
    return replace(OPTIONS, rule=ReplyRule(text=tuple(range(30_000, 30_000 + tokens - 1))), **changes)


def cached_tokens(name: str) -> int:
    recorded = golden_reply(name)
    usages = recorded.events() if recorded.streamed else [recorded.json()]
    details = [
        event["usage"].get("prompt_tokens_details")
        for event in usages
        if isinstance(event, dict) and event.get("usage")
    ]
    return max((one["cached_tokens"] for one in details if one), default=0)


WARM_BY = {"vllm/b1_prefix_cold": "vllm/20_completion_ids", "vllm/b3_prefix_warm_generate": "vllm/b2_prefix_warm"}
"""Where the recorded hits came from another request's prompt."""


async def replayed(simulator: Simulator, name: str) -> Any:
    """The reply to a recorded request, with a prefix cache as warm as it was then."""
    if cached_tokens(name):
        await exchange(simulator.worker.port, golden_request(WARM_BY.get(name, name)))
    return await exchange(simulator.worker.port, golden_request(name))


ANSWERS = [
    f"vllm/{name}"
    for name in [
        "20_completion_ids",
        "21_completion_ids_logprobs",
        "22_completion_ids_stream",
        "23_completion_ids_stream_continuous_usage",
        "24_completion_text_stream_plain",
        "25_completion_batch2_ids",
        "26_completion_batch2_stream",
        "27_completion_n2_seed",
        "28_completion_stop_string",
        "29_completion_stop_token",
        "32_completion_request_id_header",
        "33_completion_cache_salt_priority",
        "35_completion_json_schema",
        "36_completion_ignore_eos",
        "40_generate",
        "41_generate_request_id_logprobs",
        "42_generate_stream",
        "43_generate_stream_continuous_usage_logprobs",
        "44_generate_text_mode",
        "45_generate_text_mode_stream",
        "46_generate_n2",
        "47_generate_no_detok",
        "48_generate_stop_string",
        "49_generate_default_max_tokens_stream_abort_seen",
        "52_generate_from_render",
        "82_err_prompt_plus_max_tokens_too_long",
        "95_err_unknown_field_accepted",
        "b1_prefix_cold",
        "b2_prefix_warm",
        "b3_prefix_warm_generate",
        "x8_generate_from_render",
        "y1_header_request_id_generate",
        "y2_two_stop_reasons",
        "y3_stop_token_reason",
        "y4_eos_finish",
        "y5_stop_string_stream",
        "y6_generate_stop_string_text_mode_stream",
    ]
]


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_has_the_recorded_form(name: str) -> None:
    async with running(options_for(name)) as simulator:
        reply = await replayed(simulator, name)

    assert forms(reply) == forms(golden_reply(name))


@pytest.mark.parametrize("name", ["30_completion_echo_logprobs", "31_completion_prompt_logprobs"])
async def test_prompt_logprobs_have_the_recorded_form(name: str) -> None:
    async with running(OPTIONS) as simulator:
        reply = await replayed(simulator, f"vllm/{name}")

    assert forms(reply) == forms(golden_reply(f"vllm/{name}"))
    assert reply.json()["choices"][0]["prompt_logprobs"][0] is None


@pytest.mark.parametrize("name", ["60_chat", "61_chat_stream_usage", "63_chat_stream_return_token_ids_logprobs"])
async def test_a_chat_answer_has_the_recorded_form(name: str) -> None:
    async with running(OPTIONS) as simulator:
        reply = await replayed(simulator, f"vllm_chat/{name}")

    assert forms(reply) == forms(golden_reply(f"vllm_chat/{name}"))


ERRORS = [
    f"vllm/{name}"
    for name in [
        "34_completion_max_tokens_0",
        "80_err_bad_json",
        "81_err_too_long_ids",
        "83_err_unknown_model",
        "84_err_unknown_lora",
        "85_err_negative_temperature",
        "86_err_missing_prompt",
        "87_err_empty_prompt_list",
        "88_err_token_out_of_vocab",
        "89_err_wrong_content_type",
        "90_err_404",
        "91_err_405",
        "92_err_too_many_logprobs",
        "93_err_negative_max_tokens",
        "94_err_wrong_type",
        "97_err_stream_error_before_start",
        "98_err_generate_bad_json",
        "98_err_generate_empty",
        "98_err_generate_neg_token",
        "98_err_generate_negative_temperature",
        "98_err_generate_no_sampling_params",
        "98_err_generate_out_of_vocab",
        "98_err_generate_too_long",
        "98_err_generate_unknown_model",
        "a7_abort_bad_body",
        "08_server_info",
    ]
]


@pytest.mark.parametrize("name", [*ERRORS, "vllm_chat/96_err_chat_no_messages"])
async def test_a_refusal_has_the_recorded_status_and_words(name: str) -> None:
    async with running(OPTIONS) as simulator:
        reply = await exchange(simulator.worker.port, golden_request(name))

    recorded = golden_reply(name)
    assert (reply.status, reply.body) == (recorded.status, recorded.body)


@pytest.mark.parametrize("name", ["d01_generate_disabled_403", "d04_abort_disabled"])
async def test_scale_out_routes_are_closed_unless_enabled(name: str) -> None:
    async with running(replace(OPTIONS, vllm=VllmOptions(scale_out=False))) as simulator:
        reply = await exchange(simulator.worker.port, golden_request(f"vllm/{name}"))

    recorded = golden_reply(f"vllm/{name}")
    assert (reply.status, reply.body) == (recorded.status, recorded.body)


@pytest.mark.parametrize("name", ["01_models", "02_health", "03_version", "a4_abort_requests", "a6_abort_requests_2"])
async def test_a_control_route_answers_in_the_recorded_form(name: str) -> None:
    async with running(OPTIONS) as simulator:
        reply = await exchange(simulator.worker.port, golden_request(f"vllm/{name}"))

    assert forms(reply) == forms(golden_reply(f"vllm/{name}"))


@pytest.mark.parametrize("name", ["20_completion_ids", "22_completion_ids_stream", "83_err_unknown_model"])
async def test_a_reply_has_the_recorded_headers(name: str) -> None:
    async with running(OPTIONS) as simulator:
        reply = await exchange(simulator.worker.port, golden_request(f"vllm/{name}"))

    assert sorted(reply.headers) == sorted(golden_reply(f"vllm/{name}").headers)


PAIRS = [
    ("01_prefill_completions", "02_decode_completions"),
    ("05_prefill_for_stream", "06_decode_stream"),
    ("11_prefill_generate", "12_decode_generate"),
    ("13_prefill_generate_for_stream", "14_decode_generate_stream"),
    ("30_prefill_short_prompt", "31_decode_short_prompt"),
]


@pytest.mark.parametrize(("prefill_name", "decode_name"), PAIRS)
async def test_a_pair_hands_over_as_recorded(prefill_name: str, decode_name: str) -> None:
    prefill_name, decode_name = f"vllm/pd_nixl_{prefill_name}", f"vllm/pd_nixl_{decode_name}"
    options = options_for(decode_name)
    async with running(options) as prefill, running(options) as decode:
        first = await exchange(prefill.worker.port, golden_request(prefill_name))
        body = {**golden_body(decode_name), "kv_transfer_params": first.json()["kv_transfer_params"]}
        second = await exchange(decode.worker.port, with_body(golden_request(decode_name), body))

        assert forms(first) == forms(golden_reply(prefill_name))
        assert forms(second) == forms(golden_reply(decode_name))
        assert prefill.state()["blocks_used"] == decode.state()["blocks_used"] == 0


@pytest.mark.parametrize(
    "name", ["32_prefill_stream", "38_prefill_max_tokens_4", "00_aggregated_completions", "10_aggregated_generate"]
)
async def test_a_lone_call_of_a_pair_answers_as_recorded(name: str) -> None:
    async with running(OPTIONS) as simulator:
        reply = await exchange(simulator.worker.port, golden_request(f"vllm/pd_nixl_{name}"))

    assert forms(reply) == forms(golden_reply(f"vllm/pd_nixl_{name}"))


async def test_an_unreachable_prefill_worker_is_the_recorded_500() -> None:
    name = "vllm/pd_nixl_40_fault_peer_port_unreachable"
    async with running(OPTIONS) as decode:
        reply = await exchange(decode.worker.port, golden_request(name))

    assert (reply.status, reply.body) == (golden_reply(name).status, golden_reply(name).body)


async def test_too_few_block_ids_end_the_worker_with_the_recorded_500() -> None:
    name = "vllm/pd_nixl_46_fault_too_few_remote_block_ids"
    async with running(replace(OPTIONS, vllm=VllmOptions(crash_delay_s=0))) as decode:
        reply = await exchange(decode.worker.port, golden_request(name))

        assert (reply.status, reply.body) == (golden_reply(name).status, golden_reply(name).body)
        assert decode.worker.dead
