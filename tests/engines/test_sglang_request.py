"""What SGLang is sent: one body for both legs, its own names, and the room that ties the legs."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from engines.base import AttemptIds, Release
from engines.sglang import SglangAdapter
from protocols.errors import EngineAborted, EngineFailure, IncompleteReply
from protocols.options import GuidedDecoding
from protocols.outputs import CompletionUsage, FinishReason, LLMEngineOutput, PromptTokensDetails
from protocols.preprocessed import BootstrapInfo, MultimodalData, PrefillResult
from protocols.worker import Engine, Role, WorkerTraits
from tests.engine_calls import IDS, PROMPT, answer_body, body_of, prefill_body, request, worker
from tests.golden_files import recording

TIED = BootstrapInfo("10.0.0.5", 8998, 2**62 + 1)


def adapter(role: Role = Role.AGGREGATED, *, traits: WorkerTraits | None = None, **more) -> SglangAdapter:
    return SglangAdapter(worker(Engine.SGLANG, role, traits=traits, **more), "gateway-name")


def sampling(asked):
    return answer_body(adapter(), asked)["sampling_params"]


# ---- plain requests


def test_a_plain_call_says_everything_the_server_would_otherwise_choose():
    call = adapter().generate_call(request(), IDS)

    assert (call.method, call.path, call.content_type, call.headers) == ("POST", "/generate", "application/json", ())
    assert body_of(call) == {
        "rid": IDS.name,
        "input_ids": list(PROMPT),
        "sampling_params": {
            "max_new_tokens": 64,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        },
        "stream": True,
    }


@pytest.mark.parametrize("name", ["12_generate_ids_stream", "sglpd_mooncake_20_generate_stream_decode"])
def test_the_members_we_send_are_those_that_a_real_server_was_recorded_with(name):
    recorded = recording("sglang", name).request

    sent = answer_body(adapter(), request(bootstrap_info=TIED))

    assert set(recorded) <= set(sent)
    assert set(recorded["sampling_params"]) <= set(sent["sampling_params"])


def test_every_sampling_option_is_mapped_to_sglangs_name():
    asked = request(
        sampling={
            "temperature": 0.0,
            "top_p": 0.5,
            "top_k": 40,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.2,
            "frequency_penalty": 0.3,
            "seed": 2**62,
            "include_stop_str_in_output": True,
            "logit_bias": {5: -100.0},
        },
        stop={
            "stop": ("a", "b", "c", "d", "e"),
            "stop_token_ids": (9,),
            "stop_token_ids_hidden": (2,),
            "ignore_eos": True,
        },
        output={"skip_special_tokens": False},
        extra_args={"stream_interval": 16},
    )

    assert sampling(asked) == {
        "max_new_tokens": 64,
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 40,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "sampling_seed": 2**62,
        "no_stop_trim": True,
        "logit_bias": {"5": -100.0},
        "skip_special_tokens": False,
        "stream_interval": 16,
        "stop": ["a", "b", "c", "d", "e"],
        "stop_token_ids": [9],
        "ignore_eos": True,
    }


def test_before_the_minimum_stop_strings_are_our_filters_business():
    told = sampling(request(stop={"min_tokens": 99, "stop": ("a",), "stop_token_ids": (9,)}))

    assert (told["min_new_tokens"], told["stop_token_ids"], "stop" in told) == (64, [9], False)


@pytest.mark.parametrize(("length", "expected"), [(100, 96), (None, 16), (3, 1)])
def test_without_a_limit_of_its_own_an_answer_may_fill_the_context_less_one(length, expected):
    body = answer_body(adapter(context_length=length), request(stop={"max_tokens": None}))

    assert body["sampling_params"]["max_new_tokens"] == expected


def test_an_answer_is_never_asked_to_be_longer_than_the_context_has_room_for():
    # SGLang refuses a request that does not fit; it does not shorten the answer.
    body = answer_body(adapter(context_length=20), request(stop={"max_tokens": 64}))

    assert body["sampling_params"]["max_new_tokens"] == 17


@pytest.mark.parametrize(
    ("guided", "expected"),
    [
        (GuidedDecoding(json={"type": "object"}), {"json_schema": '{"type":"object"}'}),
        (GuidedDecoding(json='{"a":1}'), {"json_schema": '{"a":1}'}),
        (GuidedDecoding(regex="a+"), {"regex": "a+"}),
        (GuidedDecoding(choice=("a b", "c.d", "(e)")), {"regex": r"(a b|c\.d|\(e\))"}),
        (GuidedDecoding(grammar="root ::= x"), {"ebnf": "root ::= x"}),
        (GuidedDecoding(structural_tag={"a": 1}), {"structural_tag": '{"a":1}'}),
        (GuidedDecoding(), {}),
    ],
)
def test_a_constraint_is_always_text(guided, expected):
    told = sampling(request(sampling={"guided_decoding": guided}))

    assert {name: told[name] for name in ("json_schema", "regex", "ebnf", "structural_tag") if name in told} == expected


def test_thinking_is_limited_and_required_by_the_request():
    body = answer_body(adapter(), request(stop={"max_thinking_tokens": 0}, require_reasoning=True))

    assert (body["max_thinking_tokens"], body["require_reasoning"]) == (0, True)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({}, {}),
        ({"logprobs": 0}, {"return_logprob": True, "top_logprobs_num": 0}),
        ({"logprobs": 3}, {"return_logprob": True, "top_logprobs_num": 3}),
        ({"prompt_logprobs": 2}, {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}),
        (
            {"logprobs": 1, "prompt_logprobs": 0},
            {"return_logprob": True, "top_logprobs_num": 1, "logprob_start_len": 0},
        ),
    ],
)
def test_logprobs(output, expected):
    body = answer_body(adapter(), request(output=output))

    assert {
        name: body[name] for name in ("return_logprob", "top_logprobs_num", "logprob_start_len") if name in body
    } == (expected)
    assert body["stream"] is ("prompt_logprobs" not in output)


# ---- routing


@pytest.mark.parametrize(("sign", "expected"), [(None, 5), (1, 5), (-1, -5), (0, None)])
def test_salt_adapter_and_priority(sign, expected):
    asked = request(routing={"lora_name": "poet", "cache_namespace": "tenant", "priority": 5})

    body = answer_body(adapter(traits=WorkerTraits(priority_sign=sign)), asked)

    assert (body["lora_path"], body["cache_salt"], body.get("priority")) == ("poet", "tenant", expected)


def test_ranks_are_the_legs_own_and_decode_is_told_prefills():
    asked = request(routing={"dp_rank": 1, "prefill_dp_rank": 3}, bootstrap_info=TIED)

    prefill, decode = prefill_body(adapter(), asked), answer_body(adapter(), asked)

    assert (prefill["routed_dp_rank"], "disagg_prefill_dp_rank" in prefill) == (3, False)
    assert (decode["routed_dp_rank"], decode["disagg_prefill_dp_rank"]) == (1, 3)


def test_a_plain_request_names_no_prefill_rank():
    body = answer_body(adapter(), request(routing={"dp_rank": 1, "prefill_dp_rank": 3}))

    assert (body["routed_dp_rank"], "disagg_prefill_dp_rank" in body) == (1, False)


# ---- pairs


def test_both_legs_get_the_same_body_but_for_streaming_and_ids():
    asked = request(
        stop={"min_tokens": 3, "stop_token_ids": (9,)},
        sampling={"guided_decoding": GuidedDecoding(regex="a"), "seed": 1},
        output={"logprobs": 2, "prompt_logprobs": 1},
        routing={"lora_name": "poet", "cache_namespace": "tenant", "priority": 1},
        extra_args={"stream_interval": 4, "extra_body": {"json_schema": {"type": "object"}}},
        bootstrap_info=TIED,
    )

    prefill, decode = prefill_body(adapter(Role.PREFILL), asked), answer_body(adapter(Role.DECODE), asked)

    assert (prefill.pop("stream"), decode.pop("stream")) == (False, True)
    assert prefill == decode
    assert (decode["bootstrap_host"], decode["bootstrap_port"], decode["bootstrap_room"]) == (
        "10.0.0.5",
        8998,
        2**62 + 1,
    )


def test_the_room_is_an_exact_integer_on_the_wire():
    call = adapter().generate_call(request(bootstrap_info=replace(TIED, bootstrap_room=2**63 - 1)), IDS)

    assert b'"bootstrap_room":9223372036854775807' in call.body


@pytest.mark.parametrize("number", [2**40, 2**62 + 12345, 2**63 - 1, 2**63 - 7])
@pytest.mark.parametrize(("dp_size", "rank"), [(8, 0), (8, 7), (3, 2), (8, None), (1, 0), (1, None)])
def test_a_room_fits_63_bits_and_names_the_prefill_rank(number, dp_size, rank):
    room = adapter(dp_size=dp_size).bootstrap(AttemptIds("x", number), rank).bootstrap_room

    assert 1 <= room < 2**63
    assert abs(room - number) < 2 * dp_size
    assert rank is None or room % dp_size == rank


def test_the_number_of_ranks_may_be_what_the_server_told():
    chosen = adapter(traits=WorkerTraits(dp_size=4, bootstrap_port=9001))

    info = chosen.bootstrap(IDS, 3)

    assert (info.bootstrap_room % 4, info.bootstrap_port) == (3, 9001)


@pytest.mark.parametrize(
    ("told", "host", "port"),
    [
        ({}, "10.0.0.5", 8998),
        ({"bootstrap_host": "192.168.0.1", "bootstrap_port": 9000}, "192.168.0.1", 9000),
        ({"bootstrap_host": "fd00::1"}, "[fd00::1]", 8998),
        ({"bootstrap_host": "[fd00::1]"}, "[fd00::1]", 8998),
        ({"traits": WorkerTraits(bootstrap_port=9001), "bootstrap_port": 9000}, "10.0.0.5", 9000),
    ],
)
def test_decode_is_told_where_prefill_listens(told, host, port):
    info = adapter(**told).bootstrap(IDS, None)

    assert (info.bootstrap_host, info.bootstrap_port, info.bootstrap_room) == (host, port, IDS.number)


def test_prefills_end_is_checked_and_its_cache_hits_are_kept():
    usage = CompletionUsage(3, 1, 4, PromptTokensDetails(cached_tokens=2))
    outputs = [
        LLMEngineOutput(token_ids=[5]),
        LLMEngineOutput(finish_reason=FinishReason.LENGTH, completion_usage=usage),
    ]

    assert adapter(Role.PREFILL).handoff(outputs) == PrefillResult(None, PromptTokensDetails(cached_tokens=2))


@pytest.mark.parametrize(
    ("outputs", "kind"),
    [
        ([], IncompleteReply),
        ([LLMEngineOutput(token_ids=[5])], IncompleteReply),
        ([LLMEngineOutput.failed("boom")], EngineFailure),
        ([LLMEngineOutput.cancelled()], EngineAborted),
    ],
)
def test_a_prefill_that_did_not_end_well_is_refused(outputs, kind):
    with pytest.raises(kind):
        adapter(Role.PREFILL).handoff(outputs)


# ---- the client's own fields


def test_a_clients_fields_pass_by_the_table_to_both_legs_alike():
    asked = request(
        extra_body={
            "spaces_between_special_tokens": False,
            "bootstrap_host": "evil",
            "http_worker_ipc": "ipc:///evil",
            "rid": "mine",
            "lora_path": "/etc",
            "custom_params": {"x": 1},
            "max_new_tokens": 9,
            "no_such_field": 1,
        },
        bootstrap_info=TIED,
    )

    bodies = prefill_body(adapter(), asked), answer_body(adapter(), asked)

    passed = {"spaces_between_special_tokens": False}
    plain = prefill_body(adapter(), request(bootstrap_info=TIED)), answer_body(adapter(), request(bootstrap_info=TIED))
    for body, without in zip(bodies, plain, strict=True):
        # SGLang ignores what it does not know.
        assert body == {**without, "no_such_field": 1, "sampling_params": {**without["sampling_params"], **passed}}


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (request(), None),
        (request(prompt_embeds="AAAA"), "prompt_embeds"),
        (request(multi_modal_data={"image": (MultimodalData("Url", "http://x"),)}), "multi_modal_data"),
        (request(sampling={"use_beam_search": True}), "use_beam_search"),
        (request(sampling={"best_of": 2}), "best_of"),
        (
            request(sampling={"guided_decoding": GuidedDecoding(regex="a", whitespace_pattern=" ")}),
            "guided_whitespace_pattern",
        ),
        (request(extra_body={"bad_words": ["x"]}), "bad_words"),
        (request(extra_body={"bad_words": []}), None),
    ],
)
def test_what_cannot_be_honoured_is_named(asked, named):
    assert adapter().unsupported(asked) == named


# ---- what the adapter says of itself


def test_an_abort_names_our_own_id():
    (call,) = adapter().abort_calls(IDS)

    assert (call.path, orjson.loads(call.body)) == ("/abort_request", {"rid": IDS.name})


@pytest.mark.parametrize(("role", "alone"), [(Role.AGGREGATED, True), (Role.PREFILL, False), (Role.DECODE, False)])
def test_a_worker_of_a_pair_never_answers_alone(role, alone):
    assert adapter(role).plain(role) is alone


def test_nothing_is_dispatched_to_release():
    assert (SglangAdapter.release_at, SglangAdapter.default_prefill_policy) == (Release.NONE, "strict")
    assert adapter().lease_s is None
