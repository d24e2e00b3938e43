"""TensorRT-LLM's replies, read from the goldens in every way of cutting them.

These tests feed each body some 1,500 times; they are over 50 ms for that.
"""

from dataclasses import replace

import pytest

from engines.base import ProbeReply, Release
from engines.error_body import error_body
from engines.trtllm import TrtllmAdapter
from engines.trtllm_reply import TrtllmReply, reported_error
from protocols.errors import (
    Blame,
    ContextLengthExceeded,
    EngineFailure,
    InvalidRequest,
    WorkerBusy,
    WorkerMisconfigured,
)
from protocols.options import OutputOptions
from protocols.outputs import FinishReason, PromptTokensDetails, TopLogprob
from protocols.preprocessed import PrefillResult, PreprocessedRequest
from protocols.worker import Engine, Leg, Role, Worker

ADAPTER = TrtllmAdapter(Worker(7, "http://w", Engine.TRTLLM, Role.DECODE, version="1.2.0"), "m")
REQUEST = PreprocessedRequest(token_ids=(1, 450, 7483), eos_token_ids=(2,))
WITH_LOGPROBS = replace(REQUEST, output_options=OutputOptions(logprobs=2))
HANDED = PrefillResult({"request_type": "generation_only", "ctx_request_id": 17, "first_gen_tokens": [2110]})
FIRST = {"logprob": -0.25, "top": [{"rank": 1, "token_id": 2110, "token": " Par", "logprob": -0.25}]}
HANDED_LOGPROB = PrefillResult({**HANDED.disaggregated_params, "_first_token": FIRST})


def streamed(request=REQUEST):
    return lambda: ADAPTER.parser(request, Leg.DECODE)


# ---- streams


@pytest.mark.parametrize(
    "name",
    ["v12_stream", "v13_stream", "v12_stream_continuous_usage", "v12_stream_several_tokens_in_a_chunk"],
)
def test_a_stream_gives_ids_then_one_finish_with_usage(golden, read_cut, name):
    read = read_cut(streamed(), golden(f"trtllm/{name}.resp").body)

    assert read.token_ids == [2110, 275, 310]
    assert read.ending.finish_reason == FinishReason.LENGTH
    assert (read.ending.completion_usage.prompt_tokens, read.ending.completion_usage.completion_tokens) == (3, 3)
    assert read.ending.completion_usage.prompt_tokens_details == PromptTokensDetails(cached_tokens=0)
    assert read.error is None


@pytest.mark.parametrize(
    ("name", "ids", "finish", "stop_reason"),
    [
        ("v12_stream_eos", [2110, 275, 2], FinishReason.EOS, None),
        ("v12_stream_stop_token_kept", [2110, 275, 13], FinishReason.STOP, 13),
        ("v12_stream_stop_token_trimmed", [2110, 275], FinishReason.STOP, 13),
        ("v12_stream_done_twice", [2110, 275], FinishReason.LENGTH, None),
    ],
)
def test_a_stream_ends_as_the_engine_said(golden, read_cut, name, ids, finish, stop_reason):
    read = read_cut(streamed(), golden(f"trtllm/{name}.resp").body)

    assert (read.token_ids, read.ending.finish_reason, read.ending.stop_reason) == (ids, finish, stop_reason)


def test_a_stop_id_that_is_eos_is_told_as_eos(golden, read_all):
    request = replace(REQUEST, eos_token_ids=(2, 13))

    read = read_all(streamed(request)(), golden("trtllm/v12_stream_stop_token_kept.resp").body)

    assert (read.ending.finish_reason, read.ending.stop_reason) == (FinishReason.EOS, None)


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("v12_stream_cut_before_any_token", []),
        ("v12_stream_cut_between_events", [2110, 275]),
        ("v12_stream_cut_inside_event", [2110]),
        ("v12_stream_ended_without_finish", [2110, 275]),
    ],
)
def test_a_stream_that_breaks_off_is_incomplete(golden, read_cut, name, ids):
    read = read_cut(streamed(), golden(f"trtllm/{name}.resp").body)

    assert (read.token_ids, read.ending) == (ids, None)
    assert read.error.startswith("IncompleteReply")


def test_a_cut_leaves_the_reader_to_say_that_the_connection_broke(golden):
    parser = streamed()()
    parser.feed(golden("trtllm/v12_stream_cut_between_events.resp").body)
    parser.end()

    assert not parser.done


def test_a_cut_after_the_finish_is_a_success(golden, read_cut):
    read = read_cut(streamed(), golden("trtllm/v12_stream_cut_after_finish.resp").body)

    assert (read.token_ids, read.ending.finish_reason, read.error) == ([2110, 275], FinishReason.LENGTH, None)
    assert read.ending.completion_usage is None


@pytest.mark.parametrize("name", ["v13_stream_error_event", "v13_stream_error_event_done_twice"])
def test_an_error_event_comes_after_the_tokens_before_it(golden, read_cut, name):
    read = read_cut(streamed(), golden(f"trtllm/{name}.resp").body)

    assert (read.token_ids, read.ending) == ([2110], None)
    assert read.error == "EngineFailure: Error while generating: executor worker died"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("v12_stream_cancelled", "EngineAborted: the engine cancelled the answer"),
        ("v12_stream_timeout", "EngineFailure: the engine ended the answer by timeout"),
    ],
)
def test_the_engines_own_end_is_a_failure(golden, read_cut, name, error):
    read = read_cut(streamed(), golden(f"trtllm/{name}.resp").body)

    assert (read.token_ids, read.ending, read.error) == ([2110], None, error)


def test_finish_seen_is_told_before_the_ending_is_out(golden):
    parser = streamed()()
    finish = golden("trtllm/v12_stream.resp").body.split(b"\n\n")[2] + b"\n\n"

    outputs = parser.feed(finish)

    assert ([output.token_ids for output in outputs], parser.finish_seen, parser.done) == ([[310]], True, False)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "not an object"),
        (b"{}", "malformed"),
        (b'{"choices":[5]}', "malformed"),
        (b'{"choices":5}', "malformed"),
        (b'{"choices":[{"token_ids":["2110"]}]}', "expected a token id"),
        (b'{"choices":[{"token_ids":[-1]}]}', "expected a token id"),
        (b'{"choices":[{"finish_reason":"bored"}]}', "unknown finish reason 'bored'"),
        (b'{"choices":[{"finish_reason":"not_finished"}]}', "unknown finish reason"),
        (b'{"choices":[],"usage":5}', "malformed"),
    ],
)
def test_what_is_not_the_protocol_is_said_so(read_all, event, words):
    read = read_all(streamed()(), b"data: " + event + b"\n\n")

    assert read.error.startswith("ProtocolViolation")
    assert words in read.error


def test_an_event_without_end_is_refused_at_its_limit():
    parser = streamed()()

    parser.feed(b"data: " + b"x" * (16 * 1024 * 1024 + 1))

    assert "exceeds" in str(parser.error)


# ---- decode after a hand-off


def test_decode_begins_with_prefills_token(golden, read_cut):
    request = replace(REQUEST, prefill_result=HANDED)

    read = read_cut(streamed(request), golden("trtllm/v12_generation_only.resp").body)

    assert (read.token_ids, read.error) == ([2110, 275, 310], None)


def test_decode_that_left_prefills_token_out_is_a_failure_of_the_pair(golden):
    parser = streamed(replace(REQUEST, prefill_result=HANDED))()

    outputs = parser.feed(golden("trtllm/v12_generation_only_without_first_token.resp").body)

    assert outputs == []
    assert "prefill had sampled 2110" in str(parser.error)
    assert parser.error.blame is Blame.PAIR


def test_two_tokens_where_one_was_asked_are_passed_on(golden, read_all):
    """Several builds check the budget one step late; the decoder cuts."""
    read = read_all(
        streamed(replace(REQUEST, prefill_result=HANDED))(),
        golden("trtllm/v12_generation_only_two_tokens_for_one.resp").body,
    )

    assert read.token_ids == [2110, 275]


# ---- logprobs


def test_logprobs_belong_to_their_tokens(golden, read_cut):
    read = read_cut(streamed(WITH_LOGPROBS), golden("trtllm/v12_stream_logprobs.resp").body)

    assert read.log_probs == [-0.25, -0.5, -0.125]
    assert read.top[0] == [TopLogprob(1, 2110, " Par", -0.25), TopLogprob(2, -1, " the", -1.5)]


def test_zero_logprobs_give_the_chosen_token_only(golden, read_all):
    request = replace(REQUEST, output_options=OutputOptions(logprobs=0))

    read = read_all(streamed(request)(), golden("trtllm/v12_stream_logprobs.resp").body)

    assert (read.log_probs, read.top) == ([-0.25, -0.5, -0.125], [None] * 3)


@pytest.mark.parametrize(
    "name",
    [
        "v12_generation_only_logprobs_first_missing",
        "v12_generation_only_logprobs_first_missing_in_a_joint_chunk",
    ],
)
def test_rule_10_the_first_tokens_logprob_comes_from_prefill_and_shifts_nothing(golden, read_cut, name):
    request = replace(WITH_LOGPROBS, prefill_result=HANDED_LOGPROB)

    read = read_cut(streamed(request), golden(f"trtllm/{name}.resp").body)

    assert (read.token_ids, read.log_probs) == ([2110, 275, 310], [-0.25, -0.5, -0.125])
    assert [entries[0].token for entries in read.top] == [" Par", "is", "."]


def test_rule_10_a_first_logprob_that_nobody_has_shifts_nothing(golden, read_cut):
    request = replace(WITH_LOGPROBS, prefill_result=HANDED)

    read = read_cut(streamed(request), golden("trtllm/v12_generation_only_logprobs_first_missing.resp").body)

    assert read.log_probs == [None, -0.5, -0.125]


def test_a_newer_server_tells_the_first_logprob_itself(golden, read_all):
    other = PrefillResult({**HANDED.disaggregated_params, "_first_token": {"logprob": -9.0, "top": None}})
    request = replace(WITH_LOGPROBS, prefill_result=other)

    read = read_all(streamed(request)(), golden("trtllm/v13_generation_only_logprobs.resp").body)

    assert read.log_probs == [-0.25, -0.5, -0.125]


def test_rule_10_holds_for_a_whole_reply(golden, read_all):
    request = replace(WITH_LOGPROBS, prefill_result=HANDED_LOGPROB)

    read = read_all(
        TrtllmReply(request, Leg.DECODE),
        golden("trtllm/v12_generation_only_unary_logprobs_first_missing.resp").body,
    )

    assert read.log_probs == [-0.25, -0.5, -0.125]


def test_logprobs_that_fit_no_token_are_refused(read_all):
    event = b'data: {"choices":[{"token_ids":[5],"logprobs":{"token_logprobs":[-1.0,-2.0],"tokens":[]}}]}\n\n'

    read = read_all(streamed(WITH_LOGPROBS)(), event)

    assert read.error == "ProtocolViolation: 2 logprobs for 1 tokens"


# ---- whole replies


@pytest.mark.parametrize("name", ["v12_unary", "v13_unary"])
def test_a_whole_reply_gives_the_same_as_a_stream(golden, read_cut, name):
    read = read_cut(lambda: TrtllmReply(REQUEST, Leg.DECODE), golden(f"trtllm/{name}.resp").body)

    assert (read.token_ids, read.ending.finish_reason) == ([2110, 275, 310], FinishReason.LENGTH)


def test_a_whole_reply_that_was_cut_is_incomplete(golden, read_cut):
    parser = lambda: ADAPTER.parser(REQUEST, Leg.PREFILL)  # noqa: E731

    read = read_cut(parser, golden("trtllm/v12_context_only_cut.resp").body)

    assert read.error == "IncompleteReply: the worker's reply is cut off"


def test_an_empty_reply_is_incomplete(read_all):
    assert read_all(ADAPTER.parser(REQUEST, Leg.PREFILL), b"").error.startswith("IncompleteReply")


# ---- refusals


@pytest.mark.parametrize(
    ("name", "kind", "blame"),
    [
        ("error_unknown_field", WorkerMisconfigured, Blame.WORKER),
        ("error_wrong_type", InvalidRequest, None),
        ("error_too_long_num_tokens", ContextLengthExceeded, None),
        ("error_too_long_seq_len", ContextLengthExceeded, None),
        ("error_unsupported_option", InvalidRequest, None),
        ("error_internal_type", InvalidRequest, None),
        ("error_transfer", EngineFailure, Blame.PAIR),
        ("error_transfer_timeout", EngineFailure, Blame.PAIR),
        ("error_no_transceiver", EngineFailure, Blame.PAIR),
        ("error_executor", EngineFailure, Blame.WORKER),
        ("error_cancelled", EngineFailure, Blame.WORKER),
        ("error_plain_text_500", EngineFailure, Blame.WORKER),
        ("health_executor_dead", WorkerBusy, Blame.NOBODY),
    ],
)
def test_a_refusal_is_judged_by_its_words(golden, name, kind, blame):
    reply = golden(f"trtllm/{name}.resp")

    error = ADAPTER.rejection(reply.status, reply.body)

    assert type(error) is kind
    assert getattr(error, "blame", None) is blame
    assert error_body(reply.body).message in error.message


def test_a_refusal_that_speaks_of_the_transfer_may_be_tried_elsewhere(golden):
    error = reported_error(error_body(golden("trtllm/error_transfer.resp").body), InvalidRequest)

    assert error.retryable


# ---- control plane and constants


@pytest.mark.parametrize(("band", "version", "block"), [("v12", "1.2.0", None), ("v13", "1.3.0", 32)])
def test_the_probes_tell_version_name_and_block_size(golden, band, version, block):
    names = {"/version": f"{band}_version", "/v1/models": "models", "/server_info": f"{band}_server_info"}
    replies = {path: ProbeReply(200, golden(f"trtllm/{name}.resp").body) for path, name in names.items()}

    traits = ADAPTER.traits(replies)

    assert [probe.path for probe in ADAPTER.info_probes()] == list(names)
    assert (traits.version, traits.served_name, traits.page_size) == (version, "m", block)


@pytest.mark.parametrize(
    "reply",
    [ProbeReply(404, b"{}"), ProbeReply(200, b"not json"), ProbeReply(200, b"[]"), ProbeReply(200, b'{"data":[5]}')],
)
def test_a_probe_that_tells_nothing_teaches_nothing(reply):
    paths = ("/version", "/v1/models", "/server_info")

    traits = ADAPTER.traits(dict.fromkeys(paths, reply))

    assert (traits.version, traits.served_name, traits.page_size) == (None, None, None)


def test_health_is_a_status(golden):
    well, dead = golden("trtllm/health.resp"), golden("trtllm/health_executor_dead.resp")

    assert ADAPTER.health_probe().path == "/health"
    assert ADAPTER.healthy(ProbeReply(well.status, well.body))
    assert not ADAPTER.healthy(ProbeReply(dead.status, dead.body))


def test_every_role_may_serve_alone_and_nothing_aborts_but_closing():
    assert all(ADAPTER.plain(role) for role in Role)
    assert ADAPTER.abort_calls(None) == ()
    assert (ADAPTER.release_at, ADAPTER.lease_s) == (Release.FIRST_TOKEN, 60.0)
