"""vLLM's replies beyond the recordings: errors inside them, odd chunks, logprobs, and what counts as usage."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from engines.base import MAX_EVENT_BYTES, MAX_UNARY_BYTES
from engines.vllm import VllmAdapter
from engines.vllm_request import PROMPT_LOGPROBS
from protocols.errors import (
    Blame,
    ContextLengthExceeded,
    EngineAborted,
    EngineFailure,
    IncompleteReply,
    InvalidRequest,
    ProtocolViolation,
)
from protocols.outputs import (
    FinishReason,
    PromptLogprobEntry,
    PromptTokensDetails,
    TopLogprob,
    prompt_logprobs_of,
)
from protocols.preprocessed import PrefillResult
from protocols.worker import Engine, Leg
from tests.engine_calls import request, worker
from tests.engine_replies import read
from tests.golden_files import recording

DONE = b"data: [DONE]\n\n"
HANDED_OVER = {"do_remote_prefill": True, "remote_prefill_cached_tokens": 2}


def parser(asked=None, leg=Leg.DECODE):
    return VllmAdapter(worker(Engine.VLLM), "m").parser(asked or request(), leg)


def event(**members: Any) -> bytes:
    return b"data: " + orjson.dumps(members) + b"\n\n"


def chunk(ids: Any, finish: str | None = None, stop_reason: Any = None, logprobs: Any = None, index: int = 0) -> bytes:
    choice = {"index": index, "text": "", "logprobs": logprobs, "finish_reason": finish}
    return event(choices=[{**choice, "stop_reason": stop_reason, "token_ids": ids}])


def usage(prompt: int, completion: int, details: Any = None) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return event(choices=[], usage={**counts, "prompt_tokens_details": details})


def error(code: Any, message: str, kind: str = "InternalServerError") -> bytes:
    return event(error={"message": message, "type": kind, "param": None, "code": code})


# ---- ids


def test_each_event_that_brings_ids_is_an_output():
    outputs = parser().feed(chunk([5]) + chunk([6, 7]) + chunk([8]))

    assert [output.token_ids for output in outputs] == [[5], [6, 7], [8]]


def test_a_chunk_without_ids_is_no_output():
    assert list(parser().feed(chunk([]))) == []


def test_the_last_ids_come_before_the_ending_and_the_ending_waits_for_the_usage():
    reply = parser()

    ids = reply.feed(chunk([5], "length"))
    seen, waiting = reply.finish_seen, list(reply.feed(usage(3, 1)))
    ending = reply.feed(DONE)

    assert ([output.token_ids for output in ids], ids[0].finish_reason) == ([[5]], None)
    assert (seen, waiting) == (True, [])
    assert [(output.token_ids, output.finish_reason) for output in ending] == [([], FinishReason.LENGTH)]
    assert ending[0].completion_usage.total_tokens == 4
    assert reply.done


def test_whatever_follows_the_end_marker_is_ignored():
    reply = parser()
    reply.feed(chunk([5], "stop") + DONE)

    assert (list(reply.feed(chunk([6]))), list(reply.end()), reply.error) == ([], [], None)


def test_ids_after_the_finish_are_ignored():
    assert read(parser(), chunk([5], "stop") + chunk([6]) + DONE).ids == [5]


@pytest.mark.parametrize("tail", [b"", b"data: {broken\n\n", error(500, "too late"), b"data: 5\n\n", usage(3, 1)[:-4]])
def test_a_reply_that_breaks_off_after_its_finish_is_a_success(tail):
    answer = read(parser(), chunk([5], "length") + tail)

    assert (answer.ids, answer.finish, answer.error) == ([5], FinishReason.LENGTH, None)


@pytest.mark.parametrize("body", [b"", b"\n\n", chunk([5]), chunk([5]) + DONE, b'{"choices":[', b": ping\n\n"])
def test_a_reply_without_a_finish_is_incomplete(body):
    assert type(read(parser(), body).error) is IncompleteReply


@pytest.mark.parametrize(
    "body",
    [
        b"data: {broken\n\n",
        b"data: 5\n\n",
        b"data: \n\n",
        event(id="x"),
        event(choices=[5]),
        event(choices=[{"index": 0}]),
        chunk("5"),
        chunk([5], index=1),
        chunk([], "enough"),
        chunk([5], logprobs={"content": []}),
        chunk([5], logprobs={"tokens": ["token_id:5"]}),
        b'{"choices":[{"index":0}]}',
        b"[]",
    ],
)
def test_what_is_not_the_protocol_is_a_violation_after_what_came_before(body):
    reply = parser()
    before = reply.feed(chunk([4])) if body.startswith(b"data") else ()

    outputs = [*before, *reply.feed(body), *reply.end()]

    assert type(reply.error) is ProtocolViolation
    assert [output.token_ids for output in outputs] == ([[4]] if before else [])


# ---- finishes


@pytest.mark.parametrize(
    ("finish", "matched", "expected"),
    [
        ("stop", None, (FinishReason.EOS, None)),
        ("stop", 2, (FinishReason.EOS, None)),
        ("stop", 30, (FinishReason.STOP, 30)),
        ("stop", "end", (FinishReason.STOP, "end")),
        ("length", None, (FinishReason.LENGTH, None)),
        ("repetition", "repetition_detected", (FinishReason.STOP, "repetition_detected")),
        ("content_filter", None, (FinishReason.CONTENT_FILTER, None)),
    ],
)
def test_finishes(finish, matched, expected):
    answer = read(parser(), chunk([5], finish, matched) + DONE)

    assert (answer.finish, answer.stop_reason) == expected


def test_an_eos_that_the_client_stops_at_while_eos_is_ignored_is_its_stop():
    asked = request(stop={"ignore_eos": True, "stop_token_ids": (2,)})

    answer = read(parser(asked), chunk([2], "stop", 2) + DONE)

    assert (answer.finish, answer.stop_reason) == (FinishReason.STOP, 2)


def test_an_abort_that_nobody_asked_for_is_a_failure_after_its_tokens():
    reply = parser()

    outputs = reply.feed(chunk([5]) + chunk([6], "abort") + DONE)

    assert [output.token_ids for output in outputs] == [[5], [6]]
    assert type(reply.error) is EngineAborted
    assert not reply.finish_seen


# ---- errors inside a 200


@pytest.mark.parametrize(
    ("code", "message", "kind", "expected"),
    [
        (500, "Internal server error", "InternalServerError", EngineFailure),
        (503, "Request failed; please retry", "ServiceUnavailableError", EngineFailure),
        (503, "The engine is currently busy", "Service Unavailable", EngineFailure),
        (400, "temperature must be non-negative", "BadRequestError", InvalidRequest),
        (400, "This model's maximum context length is 8 tokens.", "BadRequestError", ContextLengthExceeded),
        (None, "out of memory", "InternalServerError", EngineFailure),
    ],
)
def test_an_error_event_is_what_its_code_says(code, message, kind, expected):
    answer = read(parser(), chunk([5]) + error(code, message, kind) + DONE)

    assert (type(answer.error), answer.error.message, answer.ids) == (expected, message, [5])


@pytest.mark.parametrize(
    ("before", "message", "blame"),
    [
        (b"", "Internal server error", Blame.PAIR),
        (chunk([5]), "Internal server error", Blame.WORKER),
        (b"", "EngineCore encountered an issue.", Blame.WORKER),
    ],
)
def test_a_failure_before_the_first_token_of_a_handed_over_answer_may_be_the_pairs(before, message, blame):
    asked = request(prefill_result=PrefillResult(HANDED_OVER))

    assert read(parser(asked), before + error(500, message)).error.blame is blame


# ---- logprobs


def test_logprobs_by_id_are_ranked_and_aligned():
    top = {"token_id:5": -2.0, "token_id:9": -0.1, "token_id:8": -3.0}
    logprobs = {"tokens": ["token_id:5"], "token_logprobs": [-2.0], "top_logprobs": [top], "text_offset": [0]}

    answer = read(parser(), chunk([5], logprobs=logprobs) + chunk([], "length") + DONE)

    assert answer.log_probs == [-2.0]
    assert answer.top_logprobs == [
        [TopLogprob(1, 9, None, -0.1), TopLogprob(2, 5, None, -2.0), TopLogprob(3, 8, None, -3.0)]
    ]


def test_the_recorded_logprobs_of_both_routes_agree():
    """The chosen token and the other one are equally likely; vLLM itself ranks the chosen one second."""
    body = recording("vllm", "41_generate_request_id_logprobs").body
    generate = read(parser(), body)
    completions = read(parser(), recording("vllm", "21_completion_ids_logprobs").body)

    assert generate.log_probs == completions.log_probs
    assert generate.log_probs[0] == -1.9875777959823608
    assert generate.top_logprobs[0] == [
        TopLogprob(1, 504, None, -1.9875777959823608),
        TopLogprob(2, 60, None, -1.9875777959823608),
    ]
    assert [(top.rank, top.token_id, top.token) for top in completions.top_logprobs[0]] == [
        (1, -1, "The"),
        (2, 60, "L"),
        (3, -1, "La"),
    ]


def test_outputs_with_logprobs_are_not_joined():
    logprobs = {"content": [{"token_id": 5, "logprob": -1.0, "rank": 1, "top_logprobs": []}]}

    outputs = parser().feed(chunk([5], logprobs=logprobs) + chunk([5], logprobs=logprobs) + chunk([6]))

    assert [(output.token_ids, output.log_probs) for output in outputs] == [([5], [-1.0]), ([5], [-1.0]), ([6], None)]


def test_the_prompts_logprobs_of_a_unary_reply_go_with_its_first_output():
    outputs = parser().feed(recording("vllm", "31_completion_prompt_logprobs").body)

    prompt = prompt_logprobs_of(outputs[0].engine_data)
    assert prompt is not None
    assert prompt[0] is None
    assert prompt[2] == {282: PromptLogprobEntry(-0.3499116897583008, 1, " of")}


def test_prompt_logprobs_that_prefill_computed_go_with_decodes_first_output():
    told = [None, {"450": {"logprob": -1.0, "rank": 1, "decoded_token": "x"}}]
    asked = request(prefill_result=PrefillResult({**HANDED_OVER, PROMPT_LOGPROBS: told}))

    outputs = parser(asked).feed(chunk([5])), parser(asked).feed(chunk([5], "stop") + DONE)

    assert [output.engine_data for output in outputs[0]] == [{"prompt_logprobs": told}]
    assert [output.engine_data for output in outputs[1]] == [{"prompt_logprobs": told}, None]


# ---- usage


def test_cached_tokens_are_absent_when_the_worker_does_not_tell():
    assert read(parser(), chunk([5], "stop") + usage(3, 1) + DONE).counts() == (3, 1, None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (PrefillResult({"remote_prefill_cached_tokens": 2}, PromptTokensDetails(cached_tokens=1)), 1),
        (PrefillResult({"remote_prefill_cached_tokens": 2}), 3),
        (PrefillResult({"remote_block_ids": [[1]]}), None),
    ],
)
def test_cached_tokens_of_a_handed_over_answer_are_prefills(given, expected):
    """Without the hand-off's own member vLLM's decode counts the transferred tokens as cached."""
    answer = read(parser(request(prefill_result=given)), chunk([5], "stop") + usage(3, 1, {"cached_tokens": 3}) + DONE)

    assert answer.counts() == (3, 1, expected)


def test_usage_on_every_chunk_is_superseded_by_the_last():
    running = orjson.loads(chunk([5], "stop")[6:])
    running["usage"] = {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}

    assert read(parser(), event(**running) + usage(3, 1) + DONE).counts() == (3, 1, None)


@pytest.mark.parametrize("counts", [None, 5, {}, {"prompt_tokens": "3", "completion_tokens": 1}])
def test_usage_that_cannot_be_read_is_left_out(counts):
    answer = read(parser(), chunk([5], "stop") + event(choices=[], usage=counts) + DONE)

    assert (answer.usage, answer.error) == (None, None)


# ---- documents


def test_a_unary_reply_is_done_at_its_closing_brace():
    reply, body = parser(), recording("vllm", "20_completion_ids").body

    before = reply.feed(body[:-1])
    outputs = reply.feed(body[-1:])

    assert (list(before), reply.done, len(outputs)) == ([], True, 2)


def test_a_unary_reply_with_braces_in_its_text_is_complete_at_its_end():
    whole = orjson.loads(recording("vllm", "20_completion_ids").body)
    whole["choices"][0]["text"] = "{{ }"

    answer = read(parser(), orjson.dumps(whole))

    assert (answer.error, len(answer.ids)) == (None, 8)


def test_an_error_in_a_unary_reply_is_the_engines():
    assert type(read(parser(), b'{"error":{"message":"boom","type":"x","code":500}}').error) is EngineFailure


def test_an_oversized_reply_is_refused():
    """64 MB go by."""
    reply = parser()

    outputs = [*reply.feed(b"{"), *reply.feed(b" " * MAX_UNARY_BYTES)]

    assert (outputs, type(reply.error)) == ([], ProtocolViolation)


def test_an_oversized_event_is_refused_after_the_tokens_before_it():
    """16 MB go by."""
    reply = parser()

    outputs = [*reply.feed(chunk([5]) + b"data: "), *reply.feed(b"x" * MAX_EVENT_BYTES)]

    assert [output.token_ids for output in outputs] == [[5]]
    assert type(reply.error) is ProtocolViolation
