"""What TensorRT-LLM is asked: whole bodies against the goldens, then one rule at a time."""

from dataclasses import replace

import orjson
import pytest

from engines.base import AttemptIds
from engines.trtllm import TrtllmAdapter
from engines.trtllm_request import TRTLLM, Band, band_of, unsupported_parameter
from protocols.errors import InvalidRequest
from protocols.options import GuidedDecoding, OutputOptions, SamplingOptions, StopConditions
from protocols.outputs import PromptTokensDetails
from protocols.preprocessed import MultimodalData, PrefillResult, PreprocessedRequest, RoutingHints
from protocols.worker import Engine, Leg, Role, Worker, WorkerTraits

IDS = AttemptIds("5f0c3b7a9d1e4c0f8a2b6d4e7f901a01", 1234567890123456)
REQUEST = PreprocessedRequest(
    token_ids=(1, 450, 7483),
    model="demo",
    stop_conditions=StopConditions(max_tokens=3),
    sampling_options=SamplingOptions(temperature=0.0),
)
WITH_LOGPROBS = replace(REQUEST, output_options=OutputOptions(logprobs=2))
VERSIONS = {"v11": "1.1.0", "v12": "1.2.0", "v13": "1.3.0"}


def adapter(version="1.2.0", **more):
    worker = Worker(7, "http://w", Engine.TRTLLM, Role.DECODE, served_name="m", version=version, **more)
    return TrtllmAdapter(worker, "demo")


def body_of(request, version="1.2.0", **more):
    return orjson.loads(adapter(version, **more).generate_call(request, IDS).body)


def stopping(**stop):
    return replace(REQUEST, stop_conditions=StopConditions(max_tokens=3, **stop))


def sampling(**options):
    return replace(REQUEST, sampling_options=SamplingOptions(temperature=0.0, **options))


def guided(**constraint):
    return sampling(guided_decoding=GuidedDecoding(**constraint))


# ---- whole bodies


@pytest.mark.parametrize("band", ["v12", "v13"])
def test_a_plain_call_is_the_golden_one(golden, band):
    want = golden(f"trtllm/{band}_stream.req")

    call = adapter(VERSIONS[band]).generate_call(REQUEST, IDS)

    assert (call.method, call.path, orjson.loads(call.body)) == ("POST", want.path, want.json())


def test_stop_ids_are_sent_and_kept_in_the_answer(golden):
    request = replace(stopping(stop_token_ids=(13,), stop_token_ids_hidden=(2,)), eos_token_ids=(2,))

    assert body_of(request) == golden("trtllm/v12_stream_stop_token_kept.req").json()


@pytest.mark.parametrize("band", ["v12", "v13"])
def test_logprobs_are_asked_for(golden, band):
    assert body_of(WITH_LOGPROBS, VERSIONS[band]) == golden("trtllm/v12_stream_logprobs.req").json()


@pytest.mark.parametrize("band", ["v11", "v12", "v13"])
def test_the_prefill_call_is_the_golden_one(golden, band):
    call = adapter(VERSIONS[band]).prefill_call(REQUEST, IDS)

    assert orjson.loads(call.body) == golden(f"trtllm/{band}_context_only.req").json()


def test_prefill_is_asked_for_logprobs_too(golden):
    call = adapter().prefill_call(WITH_LOGPROBS, IDS)

    assert orjson.loads(call.body) == golden("trtllm/v12_context_only_logprobs.req").json()


def test_prefill_keeps_max_tokens_and_gets_no_stream_options():
    body = orjson.loads(
        adapter().prefill_call(replace(REQUEST, stop_conditions=StopConditions(max_tokens=900)), IDS).body
    )

    assert (body["max_tokens"], body["stream"], "stream_options" in body) == (900, False, False)


@pytest.mark.parametrize("band", ["v12", "v13"])
def test_decode_gets_prefills_parameters_and_nothing_of_ours(golden, band):
    worker = adapter(VERSIONS[band])
    reply = golden(f"trtllm/{band}_context_only_logprobs.resp").body
    parser = worker.parser(WITH_LOGPROBS, Leg.PREFILL)
    handed = worker.handoff([*parser.feed(reply), *parser.end()])

    call = worker.generate_call(replace(WITH_LOGPROBS, prefill_result=handed), IDS)

    assert orjson.loads(call.body) == golden(f"trtllm/{band}_generation_only_logprobs.req").json()


def test_a_transfer_id_above_2_to_the_53_stays_exact():
    number = 2**63 - 25
    body = adapter().prefill_call(REQUEST, AttemptIds("0" * 32, number)).body

    assert b'"disagg_request_id":9223372036854775783' in body


# ---- bands


@pytest.mark.parametrize(
    ("version", "band"),
    [
        ("1.0.0", Band.UP_TO_1_1),
        ("1.1.0rc5", Band.UP_TO_1_1),
        ("0.21.0", Band.UP_TO_1_1),
        ("1.2.0", Band.FROM_1_2),
        ("1.2.0rc3", Band.FROM_1_2),
        ("1.3.0rc2", Band.FROM_1_2),
        ("1.3.0rc22", Band.FROM_1_3),
        ("1.3.0", Band.FROM_1_3),
        ("v1.4.1", Band.FROM_1_3),
        ("2.0.0", Band.FROM_1_3),
        ("nightly", Band.FROM_1_2),
        (None, Band.FROM_1_2),
    ],
)
def test_the_band_is_read_from_the_version(version, band):
    assert band_of(version) is band


def test_the_version_that_the_worker_told_counts_where_none_is_configured():
    worker = Worker(7, "http://w", Engine.TRTLLM, traits=WorkerTraits(version="1.3.0"))
    request = sampling(logit_bias={5: 1.0})

    assert TrtllmAdapter(worker, "m").unsupported(request) is None


# ---- single rules


def test_defaults_are_said_aloud():
    body = body_of(replace(REQUEST, sampling_options=SamplingOptions()))

    assert (body["temperature"], body["top_p"], body["top_k"]) == (1.0, 1.0, 0)


def test_without_max_tokens_the_context_is_filled_where_it_is_known():
    request = replace(REQUEST, stop_conditions=StopConditions())

    assert body_of(request, context_length=4096)["max_tokens"] == 4093
    assert body_of(request)["max_tokens"] == 16


def test_stop_strings_are_left_to_our_filter():
    assert body_of(stopping(stop=("\n\n",))) == body_of(REQUEST)


def test_with_a_minimum_length_stop_ids_are_left_to_our_decoder():
    body = body_of(stopping(stop_token_ids=(13,), min_tokens=4))

    assert body["min_tokens"] == 4
    assert "stop_token_ids" not in body


def test_ignored_eos_is_not_sent_as_a_stop_id():
    request = replace(stopping(stop_token_ids=(13,), stop_token_ids_hidden=(2,), ignore_eos=True), eos_token_ids=(2,))

    body = body_of(request)

    assert (body["ignore_eos"], body["stop_token_ids"]) == (True, [13])


def test_zero_logprobs_are_asked_as_one():
    assert body_of(replace(REQUEST, output_options=OutputOptions(logprobs=0)))["logprobs"] == 1


def test_a_negative_top_k_means_off():
    assert body_of(sampling(top_k=-1))["top_k"] == 0


def test_a_negative_seed_becomes_unsigned():
    assert body_of(sampling(seed=-1))["seed"] == 2**64 - 1


def test_penalties_and_min_p_pass():
    options = {"min_p": 0.1, "repetition_penalty": 1.2, "presence_penalty": -0.5, "frequency_penalty": 0.5}

    assert body_of(sampling(**options)).items() >= options.items()


def test_a_logit_bias_passes_to_new_servers_only():
    request = sampling(logit_bias={17: -100.0})

    assert body_of(request, "1.3.0")["logit_bias"] == {"17": -100.0}
    assert "logit_bias" not in body_of(request, "1.2.0")


def test_a_thinking_budget_of_zero_passes_to_new_servers():
    assert body_of(stopping(max_thinking_tokens=0), "1.3.0")["thinking_token_budget"] == 0


@pytest.mark.parametrize(
    ("constraint", "format_"),
    [
        ({"json": {"type": "object"}}, {"type": "json", "schema": {"type": "object"}}),
        ({"json": '{"type":"array"}'}, {"type": "json", "schema": {"type": "array"}}),
        ({"regex": "[0-9]+"}, {"type": "regex", "regex": "[0-9]+"}),
        ({"grammar": 'root ::= "a"'}, {"type": "ebnf", "ebnf": 'root ::= "a"'}),
        ({"choice": ("yes", 'say "no"\n')}, {"type": "ebnf", "ebnf": 'root ::= "yes" | "say \\"no\\"\\n"'}),
        (
            {"structural_tag": {"format": {"type": "any_text"}}},
            {"type": "structural_tag", "format": {"type": "any_text"}},
        ),
        (
            {"structural_tag": '{"type":"structural_tag","structures":[],"triggers":[]}'},
            {"type": "structural_tag", "structures": [], "triggers": []},
        ),
    ],
)
def test_a_constraint_becomes_a_response_format(constraint, format_):
    assert body_of(guided(**constraint))["response_format"] == format_


def test_a_schema_that_is_not_json_is_the_clients_fault():
    with pytest.raises(InvalidRequest) as caught:
        body_of(guided(json="{"))

    assert caught.value.param == "guided_json"


@pytest.mark.parametrize("levels", [129, 300])
def test_a_tag_that_is_nested_too_deeply_is_the_clients_fault(levels):
    with pytest.raises(InvalidRequest, match="nested too deeply") as caught:
        body_of(guided(structural_tag='{"a":' * levels + "1" + "}" * levels))

    assert caught.value.param == "structural_tag"


def test_a_clients_unknown_fields_do_not_pass():
    request = replace(REQUEST, extra_args={"extra_body": {"mirostat": 2, "user": "u"}})

    assert body_of(request) == body_of(REQUEST)


@pytest.mark.parametrize(
    ("request_", "version", "parameter"),
    [
        (replace(REQUEST, routing=RoutingHints(cache_namespace="tenant-a")), "1.3.0", "cache_salt"),
        (replace(REQUEST, routing=RoutingHints(lora_name="sql")), "1.3.0", "lora_name"),
        (replace(REQUEST, prompt_embeds="AAAA"), "1.3.0", "prompt_embeds"),
        (
            replace(REQUEST, multi_modal_data={"image": (MultimodalData("Url", "http://x/y.png"),)}),
            "1.3.0",
            "multi_modal_data",
        ),
        (replace(REQUEST, output_options=OutputOptions(prompt_logprobs=0)), "1.3.0", "prompt_logprobs"),
        (replace(REQUEST, output_options=OutputOptions(logprobs=1)), "1.1.0", "logprobs"),
        (replace(REQUEST, output_options=OutputOptions(logprobs=1)), "1.2.0", None),
        (sampling(logit_bias={1: 1.0}), "1.2.0", "logit_bias"),
        (sampling(logit_bias={1: 1.0}), "1.3.0", None),
        (sampling(use_beam_search=True), "1.3.0", "use_beam_search"),
        (sampling(best_of=4), "1.3.0", "best_of"),
        (sampling(n=2, best_of=2), "1.3.0", None),
        (stopping(max_thinking_tokens=0), "1.2.0", "thinking_token_budget"),
        (guided(regex="a", whitespace_pattern=" "), "1.3.0", "guided_whitespace_pattern"),
        (guided(json={}, disable_additional_properties=True), "1.3.0", "disable_additional_properties"),
        (replace(REQUEST, extra_args={"extra_body": {"bad_words": ["x"]}}), "1.3.0", "bad_words"),
        (replace(REQUEST, extra_args={"extra_body": {"top_a": 1}}), "1.3.0", None),
        (REQUEST, None, None),
    ],
)
def test_what_cannot_be_honoured_is_named(request_, version, parameter):
    assert unsupported_parameter(request_, band_of(version)) == parameter


@pytest.mark.parametrize(
    "field",
    ["model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "top_p_min", "repetition_penalty",
     "presence_penalty", "frequency_penalty", "seed", "n", "best_of", "use_beam_search", "length_penalty",
     "early_stopping", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens",
     "skip_special_tokens", "spaces_between_special_tokens", "truncate_prompt_tokens", "logit_bias", "logprobs",
     "return_context_logits", "echo", "suffix", "detokenize", "add_special_tokens", "response_format", "lora_request",
     "stream", "stream_options", "disaggregated_params", "priority", "conversation_params", "thinking_token_budget",
     "prompt_ignore_length", "user", "messages", "prompt_token_ids", "prompt_token_ids_b64", "cache_salt", "tools",
     "tool_choice", "reasoning_effort", "chat_template", "chat_template_kwargs", "max_completion_tokens",
     "top_logprobs", "mm_processor_kwargs", "agent_hierarchy"],
)  # fmt: skip
def test_rule_7_every_field_of_its_request_models_stands_in_a_table_and_none_passes(field):
    request = replace(REQUEST, extra_args={"extra_body": {field: 7}})

    assert TRTLLM.table_of(field) in ("reserved", "mapped", "refused")
    assert body_of(request, "1.3.0") == body_of(REQUEST, "1.3.0")


def test_decode_without_a_handoff_is_a_plain_call():
    assert "disaggregated_params" not in body_of(REQUEST)


def test_decode_relays_members_that_nobody_knows():
    given = PrefillResult(
        {"request_type": "generation_only", "ctx_request_id": 17, "of_tomorrow": {"a": [1]}}, PromptTokensDetails(1)
    )

    body = body_of(replace(REQUEST, prefill_result=given))

    assert body["disaggregated_params"] == given.disaggregated_params
