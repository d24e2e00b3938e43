"""SGLang's replies beyond the recordings: streams of deltas, refusals inside a 200, aborts, logprobs, usage."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from engines.sglang import SglangAdapter
from protocols.errors import (
    Blame,
    ContextLengthExceeded,
    EngineAborted,
    EngineFailure,
    IncompleteReply,
    InvalidRequest,
    ProtocolViolation,
    WorkerBusy,
    WorkerMisconfigured,
)
from protocols.outputs import (
    CompletionTokensDetails,
    FinishReason,
    PromptLogprobEntry,
    TopLogprob,
    prompt_logprobs_of,
)
from protocols.worker import Engine, Leg, Role, WorkerTraits
from tests.engine_calls import request, worker
from tests.engine_replies import read

DONE = b"data: [DONE]\n\n"
LENGTH = {"type": "length", "length": 9}


def parser(asked=None, incremental: bool | None = None, role: Role = Role.AGGREGATED):
    adapter = SglangAdapter(worker(Engine.SGLANG, role, traits=WorkerTraits(incremental=incremental)), "m")
    return adapter.parser(asked or request(), Leg.DECODE)


def event(ids: list[int], count: int | None, finish: Any = None, **meta: Any) -> bytes:
    counted = {"completion_tokens": count} if count is not None else {}
    told = {"finish_reason": finish, "prompt_tokens": 3, "cached_tokens": 0, **counted, **meta}
    return b"data: " + orjson.dumps({"text": "…", "output_ids": ids, "meta_info": told}) + b"\n\n"


def error(message: str, code: Any, kind: str = "invalid_request_error") -> bytes:
    told = {"error": {"message": message, "type": kind, "code": code, "retryable": False}}
    return b"data: " + orjson.dumps(told) + b"\n\n" + DONE


def aborted(message: str, status: int | None) -> dict[str, Any]:
    return {"type": "abort", "message": message, "status_code": status, "err_type": None}


CUMULATIVE = event([5], 1) + event([5, 6, 7], 3) + event([5, 6, 7, 8], 4, LENGTH) + DONE
DELTAS = event([5], 1) + event([6, 7], 3) + event([8], 4, LENGTH) + DONE


# ---- ids


@pytest.mark.parametrize("incremental", [None, False, True])
@pytest.mark.parametrize("body", [CUMULATIVE, DELTAS])
def test_whether_events_are_cumulative_is_told_by_the_events_whatever_the_server_said(body, incremental):
    answer = read(parser(incremental=incremental), body)

    assert (answer.ids, answer.finish, answer.counts(), answer.error) == (
        [5, 6, 7, 8],
        FinishReason.LENGTH,
        (3, 4, 0),
        None,
    )


@pytest.mark.parametrize(("incremental", "body"), [(False, CUMULATIVE), (None, CUMULATIVE), (True, DELTAS)])
def test_events_that_do_not_count_are_read_as_the_server_said(incremental, body):
    uncounted = body.replace(b'"completion_tokens"', b'"x"')

    assert read(parser(incremental=incremental), uncounted).ids == [5, 6, 7, 8]


def test_each_event_that_brings_ids_is_an_output():
    outputs = parser().feed(event([5], 1) + event([5, 6], 2) + event([5, 6], 2))

    assert [output.token_ids for output in outputs] == [[5], [6]]


def test_a_delta_that_got_lost_is_a_violation():
    assert type(read(parser(), event([5], 1) + event([8], 4)).error) is ProtocolViolation


@pytest.mark.parametrize("ids", [[5, 6], [6]])
@pytest.mark.parametrize("count", [2, None])
def test_the_abort_that_repeats_the_last_token_brings_none(ids, count):
    """From the tokenizer's side, with a short meta_info: cumulative, or in a stream of deltas the last id again."""
    first = event([5], 1) + (event([5, 6], 2) if len(ids) == 2 else event([6], 2))
    last = {"id": "r", "finish_reason": {"type": "abort", "message": "Abort in waiting queue"}, "e2e_latency": 1.0}
    if count is not None:
        last["completion_tokens"] = count
    end = b"data: " + orjson.dumps({"text": "", "output_ids": ids, "meta_info": last}) + b"\n\n"

    answer = read(parser(incremental=len(ids) == 1), first + end + DONE)

    assert (answer.ids, type(answer.error)) == ([5, 6], EngineAborted)


@pytest.mark.parametrize("tail", [b"", b"data: {broken\n\n", error("late", 500), event([5, 6, 7], 3)])
def test_after_the_finish_nothing_more_is_read(tail):
    answer = read(parser(), event([5], 1, LENGTH) + tail)

    assert (answer.ids, answer.finish, answer.error) == ([5], FinishReason.LENGTH, None)


@pytest.mark.parametrize("body", [b"", event([5], 1), event([5], 1) + DONE, b'{"text":"x"'])
def test_a_reply_without_a_finish_is_incomplete(body):
    assert type(read(parser(), body).error) is IncompleteReply


@pytest.mark.parametrize(
    "body",
    [
        b"data: {}\n\n",
        b"data: []\n\n",
        b'data: {"output_ids":[5],"meta_info":{}}\n\n',
        event([5], 1, {"type": "enough"}),
        event([5], 1, "length"),
        b"[]",
        b'{"text":"x"}',
    ],
)
def test_what_is_not_the_protocol_is_a_violation(body):
    assert type(read(parser(), body).error) is ProtocolViolation


# ---- finishes


@pytest.mark.parametrize(
    ("stop", "matched", "expected"),
    [
        ({}, 2, (FinishReason.EOS, None)),
        ({"stop_token_ids": (30,)}, 30, (FinishReason.STOP, 30)),
        ({"stop_token_ids": (2,)}, 2, (FinishReason.EOS, None)),
        ({"stop_token_ids": (2,), "ignore_eos": True}, 2, (FinishReason.STOP, 2)),
        ({"stop": ("end",)}, "end", (FinishReason.STOP, "end")),
        ({}, 77, (FinishReason.EOS, None)),
        ({}, None, (FinishReason.EOS, None)),
    ],
)
def test_what_was_matched_is_a_stop_reason_only_where_it_was_asked_for(stop, matched, expected):
    """77: a grammar that is complete "matches" whatever came last."""
    answer = read(parser(request(stop=stop)), event([5], 1, {"type": "stop", "matched": matched}) + DONE)

    assert (answer.finish, answer.stop_reason) == expected


# ---- refusals and failures inside a 200


@pytest.mark.parametrize(
    ("message", "code", "expected"),
    [
        ("temperature must be non-negative", 400, InvalidRequest),
        ("Requested token count exceeds the model's maximum context length", 400, ContextLengthExceeded),
        ("Disaggregated request received without bootstrap room id.", 400, WorkerMisconfigured),
        ("Duplicate request ID detected: x", 400, EngineFailure),
        ("The request queue is full.", 503, WorkerBusy),
        ("Decode transfer failed", 500, EngineFailure),
        ("invalid", None, InvalidRequest),
    ],
)
def test_a_refusal_in_a_stream_is_the_error_it_would_have_been(message, code, expected):
    answer = read(parser(), error(message, code))

    assert type(answer.error) is expected
    assert message in answer.error.message


@pytest.mark.parametrize(
    ("message", "status", "expected"),
    [
        ("The request queue is full.", 503, WorkerBusy),
        ("KVTransferError(bootstrap_room=1): Prefill bootstrap failed", 500, EngineFailure),
        ("invalid stop_regex", 400, InvalidRequest),
        ("Aborted", None, EngineAborted),
    ],
)
def test_an_abort_is_what_its_status_says(message, status, expected):
    assert type(read(parser(), event([], 0, aborted(message, status)) + DONE).error) is expected


def test_a_worker_that_gives_up_after_tokens_is_not_busy():
    answer = read(parser(), event([5], 1) + event([5], 1, aborted("aborted by a higher priority request", 503)))

    assert (type(answer.error), answer.error.blame, answer.ids) == (EngineFailure, Blame.NOBODY, [5])


@pytest.mark.parametrize(
    ("role", "blame"), [(Role.DECODE, Blame.PAIR), (Role.PREFILL, Blame.PAIR), (Role.AGGREGATED, Blame.WORKER)]
)
def test_a_failure_on_a_leg_of_a_pair_may_be_its_peers(role, blame):
    body = event([], 0, aborted("Decode transfer failed", 500))

    assert read(parser(role=role), body).error.blame is blame


# ---- logprobs


def logprob_events(*, deltas: bool) -> bytes:
    triples = [[-0.5, 5, None], [-1.5, 6, None], [-2.5, 7, None]]
    tops = [[[-0.5, 5, None], [-3.0, 9, None]], [[-0.1, 8, None], [-1.5, 6, None]], [[-0.2, 8, None], [-0.3, 9, None]]]
    out = b""
    for start, stop in ((0, 1), (1, 3)):
        first = start if deltas else 0
        finish = LENGTH if stop == 3 else None
        meta = {"output_token_logprobs": triples[first:stop], "output_top_logprobs": tops[first:stop]}
        out += event([5, 6, 7][first:stop], stop, finish, **meta)
    return out + DONE


@pytest.mark.parametrize("deltas", [False, True])
def test_logprobs_are_aligned_and_ranked_in_both_kinds_of_stream(deltas):
    answer = read(parser(request(output={"logprobs": 2})), logprob_events(deltas=deltas))

    assert answer.log_probs == [-0.5, -1.5, -2.5]
    assert answer.top_logprobs == [
        [TopLogprob(1, 5, None, -0.5), TopLogprob(2, 9, None, -3.0)],
        [TopLogprob(1, 8, None, -0.1), TopLogprob(2, 6, None, -1.5)],
        [TopLogprob(1, 8, None, -0.2), TopLogprob(2, 9, None, -0.3), TopLogprob(3, 7, None, -2.5)],
    ]


def test_more_alternatives_than_were_asked_for_are_left_out():
    """One number serves prompt and answer there."""
    answer = read(parser(request(output={"logprobs": 1, "prompt_logprobs": 2})), logprob_events(deltas=False))

    assert [[top.token_id for top in tops] for tops in answer.top_logprobs] == [[5], [8, 6], [8, 7]]


def test_logprobs_of_other_tokens_are_a_violation():
    body = event([5], 1, LENGTH, output_token_logprobs=[[-0.5, 6, None]])

    assert type(read(parser(request(output={"logprobs": 0})), body).error) is ProtocolViolation


def test_the_prompts_logprobs_stand_with_the_first_output():
    meta = {
        "input_token_logprobs": [[None, 1, None], [-3.1, 450, None], [-0.8, 7483, "x"]],
        "input_top_logprobs": [None, [[-0.2, 9, None], [-3.0, 8, None]], [[-0.8, 7483, "x"], [-2.0, 3, None]]],
        "output_token_logprobs": [[-0.5, 5, None]],
    }
    body = b'{"text":"","output_ids":[5],"meta_info":' + orjson.dumps(
        {"finish_reason": LENGTH, "prompt_tokens": 3, "completion_tokens": 1, **meta}
    )

    outputs = parser(request(output={"prompt_logprobs": 1})).feed(body + b"}")

    assert prompt_logprobs_of(outputs[0].engine_data) == [
        None,
        {450: PromptLogprobEntry(-3.1, None, None), 9: PromptLogprobEntry(-0.2, 1, None)},
        {7483: PromptLogprobEntry(-0.8, 1, "x")},
    ]
    assert outputs[0].log_probs is None


# ---- usage


@pytest.mark.parametrize(("cached", "expected"), [(2, 2), (5, 3), (None, None)])
def test_cached_tokens_never_exceed_the_prompt_and_may_be_unknown(cached, expected):
    answer = read(parser(), event([5], 1, LENGTH, cached_tokens=cached) + DONE)

    assert answer.counts() == (3, 1, expected)


def test_reasoning_tokens_are_told_where_there_are_some():
    some = read(parser(), event([5], 1, LENGTH, reasoning_tokens=1) + DONE).usage
    none = read(parser(), event([5], 1, LENGTH, reasoning_tokens=0) + DONE).usage

    assert some.completion_tokens_details == CompletionTokensDetails(reasoning_tokens=1)
    assert none.completion_tokens_details is None


def test_an_ending_without_counts_has_no_usage():
    assert read(parser(), event([5], 1, LENGTH, prompt_tokens=None) + DONE).usage is None
