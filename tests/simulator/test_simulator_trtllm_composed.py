"""The TensorRT-LLM dialect against payloads composed from its documentation: replies of the same form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.fleet import running
from simulator.model import Pace
from simulator.options import SimulatorOptions, TrtllmOptions
from simulator.vocabulary import Codec, Vocabulary
from tests.simulator.wire_form import exchange, forms, golden_body, golden_reply, golden_request, with_body

OPTIONS = SimulatorOptions(
    engine="trtllm",
    model="m",
    vocabulary=Vocabulary(32_000, (2,), frozenset({0, 1, 2}), tuple(range(20_000, 32_000))),
    codec=Codec(
        lambda text: [11],
        lambda ids: "".join(f" w{i}" for i in ids),
        lambda messages: [1, 2, 3, 4, 5, 6, 7, 8],
    ),
    pace=Pace(speed=0),
    block_size=32,
    blocks=256,
    context_length=4096,
)
LOOSE = frozenset({"cached_tokens", "host"})
"""How much of three tokens is a hit depends on partial blocks, which the simulator does not reuse."""


def of_band(name: str) -> SimulatorOptions:
    return replace(OPTIONS, trtllm=TrtllmOptions(band={"v11": "1.1", "v12": "1.2"}.get(name[:3], "1.3")))


ANSWERS = [
    "v12_version",
    "v13_version",
    "models",
    "health",
    "v13_stream",
    "v12_stream",
    "v12_stream_logprobs",
    "v12_unary",
    "v13_unary",
    "v11_context_only",
    "v12_context_only",
    "v12_context_only_logprobs",
    "v13_context_only",
    "v13_context_only_logprobs",
    "v12_chat_stream",
    "v12_chat_unary",
    "v12_server_info",
    "v13_server_info",
]


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_has_the_composed_form(name: str) -> None:
    async with running(of_band(name)) as simulator:
        reply = await exchange(simulator.worker.port, golden_request(f"trtllm/{name}"))

    assert settled(forms(reply, LOOSE)) == settled(forms(golden_reply(f"trtllm/{name}"), LOOSE))


def settled(value: Any) -> Any:
    """Versions are the simulator's own choice within a band, and 1.1 numbers its context requests itself."""
    if isinstance(value, tuple) and value and value[0] in ("version", "ctx_request_id"):
        return (value[0], "any")
    if isinstance(value, (list, tuple)):
        return type(value)(settled(item) for item in value)
    return value


PAIRS = [
    ("v11_context_only", "v11_generation_only", "v12_generation_only"),
    ("v12_context_only", "v12_generation_only", "v12_generation_only"),
    ("v13_context_only", "v13_generation_only", "v13_generation_only"),
    ("v12_context_only_logprobs", "v12_generation_only_logprobs", "v12_generation_only_logprobs_first_missing"),
    ("v13_context_only_logprobs", "v13_generation_only_logprobs", "v13_generation_only_logprobs"),
]


@pytest.mark.parametrize(("context", "generation", "expected"), PAIRS)
async def test_a_pair_answers_in_the_composed_form(context: str, generation: str, expected: str) -> None:
    async with running(of_band(context)) as prefill, running(of_band(context)) as decode:
        first = await exchange(prefill.worker.port, golden_request(f"trtllm/{context}"))
        params = first.json()["choices"][0]["disaggregated_params"]
        body = golden_body(f"trtllm/{generation}")
        body["disaggregated_params"] = {**params, "request_type": "generation_only"}
        second = await exchange(decode.worker.port, with_body(golden_request(f"trtllm/{generation}"), body))

        assert forms(second, LOOSE) == forms(golden_reply(f"trtllm/{expected}"), LOOSE)
        assert second.events()[0]["choices"][0]["token_ids"] == params["first_gen_tokens"]
        assert prefill.state()["blocks_used"] == decode.state()["blocks_used"] == 0


REFUSALS = {
    "error_unknown_field": {"cache_salt": "tenant-a"},
    "error_wrong_type": {"max_tokens": "many"},
    "error_too_long_num_tokens": {"prompt": [5] * 9000},
    "error_too_long_seq_len": {"prompt": [5] * 4000, "max_tokens": 200},
    "error_unsupported_option": {"response_format": {"type": "json_object"}},
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_refusal_has_the_composed_status_and_words(name: str) -> None:
    body = {**golden_body("trtllm/v12_unary"), **REFUSALS[name]}
    async with running(OPTIONS) as simulator:
        reply = await exchange(simulator.worker.port, with_body(golden_request("trtllm/v12_unary"), body))

    assert (reply.status, reply.body) == (golden_reply(f"trtllm/{name}").status, golden_reply(f"trtllm/{name}").body)


async def test_a_state_that_leads_nowhere_is_the_composed_transfer_failure() -> None:
    async with running(of_band("v12")) as decode:
        reply = await exchange(decode.worker.port, golden_request("trtllm/v12_generation_only"))

    recorded = golden_reply("trtllm/error_transfer")
    assert (reply.status, reply.body) == (recorded.status, recorded.body)


@pytest.mark.parametrize(
    ("band", "field"),
    [
        ("1.2", {"priority": 0.5}),
        ("1.1", {"disaggregated_params": {"request_type": "context_only", "schedule_style": 0}}),
    ],
)
async def test_a_field_of_a_newer_band_is_unknown_to_an_older_one(band: str, field: dict[str, Any]) -> None:
    body = {**golden_body("trtllm/v12_unary"), **field}
    async with running(replace(OPTIONS, trtllm=TrtllmOptions(band=band))) as simulator:
        reply = await exchange(simulator.worker.port, with_body(golden_request("trtllm/v12_unary"), body))

    assert reply.status == 400
    assert "Extra inputs are not permitted" in reply.json()["error"]


async def test_one_token_may_become_two_in_builds_with_that_fault() -> None:
    options = replace(OPTIONS, trtllm=TrtllmOptions(two_tokens=True))
    async with running(options) as prefill, running(options) as decode:
        first = await exchange(prefill.worker.port, golden_request("trtllm/v13_context_only"))
        params = {**first.json()["choices"][0]["disaggregated_params"], "request_type": "generation_only"}
        body = {**golden_body("trtllm/v13_generation_only"), "max_tokens": 1, "disaggregated_params": params}
        reply = await exchange(decode.worker.port, with_body(golden_request("trtllm/v13_generation_only"), body))

    assert forms(reply, LOOSE) == forms(golden_reply("trtllm/v12_generation_only_two_tokens_for_one"), LOOSE)
    assert sum(len(event["choices"][0]["token_ids"]) for event in reply.events()[:-2]) == 2


async def test_metrics_are_gone_once_read() -> None:
    async with running(OPTIONS) as simulator:
        await exchange(simulator.worker.port, golden_request("trtllm/v12_unary"))
        first = await exchange(simulator.worker.port, golden_request("trtllm/metrics"))
        second = await exchange(simulator.worker.port, golden_request("trtllm/metrics"))

    assert list(first.json()[0]) == list(golden_reply("trtllm/metrics").json()[0])
    assert second.body == golden_reply("trtllm/metrics_idle").body
