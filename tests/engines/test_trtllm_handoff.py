"""What TensorRT-LLM's prefill gives decode: hard rules 4, 5 and 10 of the hand-off, and the seeds' rules."""

from dataclasses import replace

import pytest

from engines.trtllm import TrtllmAdapter
from protocols.errors import EngineAborted, EngineFailure, IncompleteReply
from protocols.options import OutputOptions
from protocols.outputs import (
    CompletionUsage,
    FinishReason,
    LLMEngineOutput,
    PromptTokensDetails,
)
from protocols.preprocessed import PrefillResult, PreprocessedRequest
from protocols.worker import Engine, Leg, Role, Worker

REQUEST = PreprocessedRequest(token_ids=(1, 450, 7483), eos_token_ids=(2,))
WITH_LOGPROBS = replace(REQUEST, output_options=OutputOptions(logprobs=2))


def adapter(version="1.2.0"):
    return TrtllmAdapter(Worker(7, "http://w", Engine.TRTLLM, Role.PREFILL, version=version), "m")


def read(message, request=REQUEST, version="1.2.0"):
    parser = adapter(version).parser(request, Leg.PREFILL)
    outputs = [*parser.feed(message.body), *parser.end()]
    return outputs, parser.error


def handoff(message, request=REQUEST, version="1.2.0"):
    outputs, error = read(message, request, version)
    assert error is None
    return adapter(version).handoff(outputs)


@pytest.mark.parametrize(("band", "version"), [("v11", "1.1.0"), ("v12", "1.2.0")])
def test_prefills_object_goes_on_with_another_request_type(golden, band, version):
    given = golden(f"trtllm/{band}_context_only.resp").json()["choices"][0]["disaggregated_params"]

    result = handoff(golden(f"trtllm/{band}_context_only.resp"), version=version)

    assert isinstance(result, PrefillResult)
    assert result.disaggregated_params == {**given, "request_type": "generation_only"}


def test_a_newer_decode_server_is_told_prefills_usage(golden):
    result = handoff(golden("trtllm/v13_context_only.resp"), version="1.3.0")

    assert result.disaggregated_params["ctx_usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_cached_tokens_come_from_prefill(golden):
    assert handoff(golden("trtllm/v12_context_only.resp")).prompt_tokens_details == PromptTokensDetails(2)


def test_rule_10_the_handoff_carries_the_first_tokens_logprob(golden):
    result = handoff(golden("trtllm/v12_context_only_logprobs.resp"), WITH_LOGPROBS)

    first = result.disaggregated_params["_first_token"]
    assert first["logprob"] == -0.25
    assert [entry["token"] for entry in first["top"]] == [" Par", " the"]


@pytest.mark.parametrize("name", ["v12_context_only", "v12_context_only_not_finished", "v12_context_only_null_finish"])
def test_rule_4_length_and_its_like_mean_handoff(golden, name):
    assert isinstance(handoff(golden(f"trtllm/{name}.resp")), PrefillResult)


@pytest.mark.parametrize(
    ("name", "ids", "finish", "stop_reason"),
    [
        ("v12_context_only_eos", [2], FinishReason.EOS, None),
        ("v12_context_only_stop_token", [13], FinishReason.STOP, 13),
    ],
)
def test_rule_4_a_prefill_that_ends_is_the_answer(golden, name, ids, finish, stop_reason):
    answer = handoff(golden(f"trtllm/{name}.resp"))

    assert isinstance(answer, LLMEngineOutput)
    assert (answer.token_ids, answer.finish_reason, answer.stop_reason) == (ids, finish, stop_reason)
    assert answer.completion_usage.completion_tokens == 1
    assert answer.disaggregated_params is None


def test_rule_4_a_filtered_prefill_is_the_answer():
    finish = LLMEngineOutput(finish_reason=FinishReason.CONTENT_FILTER)

    answer = adapter().handoff([LLMEngineOutput(token_ids=[9]), finish])

    assert (answer.token_ids, answer.finish_reason) == ([9], FinishReason.CONTENT_FILTER)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("v12_context_only_cancelled", EngineAborted), ("v12_context_only_timeout", EngineFailure)],
)
def test_rule_4_the_engines_own_end_is_a_failure(golden, name, kind):
    outputs, error = read(golden(f"trtllm/{name}.resp"))

    assert (outputs, type(error)) == ([], kind)


@pytest.mark.parametrize(
    ("finish", "kind"),
    [
        (FinishReason.error("backend prefill failed"), EngineFailure),
        (FinishReason.error(""), EngineFailure),
        (FinishReason.CANCELLED, EngineAborted),
    ],
)
def test_rule_4_a_failed_finish_is_raised(finish, kind):
    with pytest.raises(kind):
        adapter().handoff([LLMEngineOutput(finish_reason=finish, disaggregated_params={"ctx_request_id": 42})])


@pytest.mark.parametrize(
    "name",
    [
        "v12_context_only_without_params",
        "v12_context_only_null_ctx_request_id",
        "v12_context_only_missing_ctx_request_id",
    ],
)
def test_rule_5_a_handoff_without_usable_ctx_request_id_fails_before_decode(golden, name):
    with pytest.raises(EngineFailure, match="no usable ctx_request_id"):
        handoff(golden(f"trtllm/{name}.resp"))


@pytest.mark.parametrize(("name", "count"), [("v12_context_only_two_choices", 2), ("v12_context_only_no_choice", 0)])
def test_rule_5_prefill_gives_exactly_one_choice(golden, name, count):
    _, error = read(golden(f"trtllm/{name}.resp"))

    assert type(error) is EngineFailure
    assert f"but gave {count}" in error.message


def test_a_prompt_of_another_length_is_refused_before_decode(golden):
    _, error = read(golden("trtllm/v12_context_only_other_prompt_length.resp"))

    assert type(error) is EngineFailure
    assert "prefill read 4 prompt tokens instead of 3" in error.message


def test_an_empty_prefill_reply_is_no_output():
    with pytest.raises(IncompleteReply, match="no output"):
        adapter().handoff([])


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, None])
def test_the_seeds_smallest_handoff_is_taken(finish):
    result = adapter().handoff([LLMEngineOutput(finish_reason=finish, disaggregated_params={"ctx_request_id": 42})])

    assert result.disaggregated_params == {"ctx_request_id": 42, "request_type": "generation_only"}


def test_usage_may_come_with_any_output_and_its_first_details_count():
    usages = [CompletionUsage(3, 1, 4), CompletionUsage(3, 1, 4, PromptTokensDetails(2))]
    outputs = [LLMEngineOutput(completion_usage=usage, disaggregated_params={"ctx_request_id": 1}) for usage in usages]

    assert adapter().handoff(outputs).prompt_tokens_details == PromptTokensDetails(2)
