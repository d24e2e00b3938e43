"""Every recorded reply of a real SGLang 0.5.23 on its native route, for any split of its bytes.

The expected values were read off the recordings by hand, not by the parser.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.sglang import SglangAdapter
from protocols.errors import (
    ContextLengthExceeded,
    EngineAborted,
    IncompleteReply,
    InvalidRequest,
    ModelNotFound,
    ProtocolViolation,
    WorkerMisconfigured,
)
from protocols.outputs import FinishReason, TopLogprob
from protocols.worker import Engine, Leg, Role, WorkerTraits
from tests.engine_calls import IDS, request, worker
from tests.engine_replies import Told, read
from tests.golden_files import names, recording

LENGTH, STOP, EOS = FinishReason.LENGTH, FinishReason.STOP, FinishReason.EOS
PARIS = "504 3575 282 4649 314 7042 30 2"

# name, ids, finish, stop reason, (prompt, completion, cached tokens)
ANSWERS = [
    ("10_generate_ids", PARIS, EOS, None, (37, 8, 0)),
    ("11_generate_ids_logprobs_rid", "504 3575 282 4649", LENGTH, None, (37, 4, 36)),
    ("12_generate_ids_stream", PARIS, EOS, None, (37, 8, 36)),
    ("13_generate_ids_stream_logprob", "504 3575 282 4649", LENGTH, None, (37, 4, 36)),
    ("14_generate_text", "7042 30 198 198 504 2988 314 42", LENGTH, None, (5, 8, 2)),
    ("16_generate_stop", "7042 30", STOP, ".", (5, 2, 4)),
    ("17_generate_stop_token", "7042 30", STOP, 30, (5, 2, 4)),
    ("18_generate_cached_second", PARIS, EOS, None, (37, 8, 36)),
    ("51_bootstrap_fields_on_normal_server", PARIS, EOS, None, (37, 8, 0)),
    ("sglpd_mooncake_10_generate_france_decode", PARIS, EOS, None, (37, 8, 0)),
    (
        "sglpd_mooncake_11_generate_light_decode",
        "504 33059 436 2837 288 2037 260 4051 429 260 3426 30 378 3102 282 407",
        LENGTH,
        None,
        (141, 16, 24),
    ),
    (
        "sglpd_mooncake_12_generate_short_decode",
        "19556 665 17 339 5248 1535 288 724 351 750 1942 282 4833 2385 1391 30",
        LENGTH,
        None,
        (33, 16, 24),
    ),
    ("sglpd_mooncake_20_generate_stream_decode", PARIS, EOS, None, (37, 8, 36)),
    ("sglpd_mooncake_21_generate_logprob_decode", "504 3575 282 4649", LENGTH, None, (37, 4, 36)),
]

# name, its one id, (prompt, completion, cached tokens)
PREFILLS = [
    ("sglpd_mooncake_10_generate_france_prefill", 504, (37, 1, 0)),
    ("sglpd_mooncake_11_generate_light_prefill", 504, (141, 1, 24)),
    ("sglpd_mooncake_12_generate_short_prefill", 19556, (33, 1, 24)),
    ("sglpd_mooncake_20_generate_stream_prefill", 504, (37, 1, 36)),
    ("sglpd_mooncake_21_generate_logprob_prefill", 504, (37, 1, 36)),
]

# name, ids before the failure, what it is
FAILED_ANSWERS = [
    ("15_generate_batch", "", ProtocolViolation),
    ("19_generate_n2", "", ProtocolViolation),
    ("40_client_abort_stream", "504 3575 282 4649", IncompleteReply),
    (
        "41_generate_stream_aborted",
        PARIS + " 198 2 1 9690 198 2 198 1 4093 198 57",
        EngineAborted,
    ),
]

# name, what it is, part of its words
REFUSALS = [
    ("30_err_bad_json", InvalidRequest, "JSON decode error"),
    ("31_err_too_long", ContextLengthExceeded, "The input (2100 tokens) is longer than the model's context length"),
    ("32_err_negative_temperature", InvalidRequest, "temperature must be a non-negative finite number, got -1."),
    ("33_err_no_input", InvalidRequest, "Either text, input_ids or input_embeds should be provided."),
    ("37_err_lora_unknown", ModelNotFound, "LoRA adapter 'nope' was requested"),
    ("sglpd_mooncake_40_no_bootstrap_decode", WorkerMisconfigured, "without bootstrap room id"),
    ("sglpd_mooncake_40_no_bootstrap_prefill", WorkerMisconfigured, "without bootstrap room id"),
]

WITHOUT_A_BYTE = ["34_err_out_of_vocab", "98_err_out_of_vocab_kills_server", "sglpd_mooncake_41_decode_half_only"]
PROBED = [
    "00_health",
    "01_models",
    "05_server_info2",
    "sglpd_mooncake_30_prefill_server_info",
    "sglpd_mooncake_31_decode_server_info",
]
"""Read in test_sglang_worker.py."""
ABORT = "42_abort_request"

ANSWERED = [row[0] for table in (ANSWERS, PREFILLS, FAILED_ANSWERS) for row in table]
STOPPING = request(stop={"stop": (".",), "stop_token_ids": (30,), "stop_token_ids_hidden": (2,)})


def told(name: str, cuts: tuple[int, ...] = (), traits: WorkerTraits | None = None, asked=STOPPING) -> Told:
    adapter = SglangAdapter(worker(Engine.SGLANG, traits=traits), "m")
    return read(adapter.parser(asked, Leg.DECODE), recording("sglang", name).body, cuts)


def numbers(ids: str) -> list[int]:
    return [int(token_id) for token_id in ids.split()]


@pytest.mark.parametrize("incremental", [None, False])
@pytest.mark.parametrize(("name", "ids", "finish", "stop_reason", "counts"), ANSWERS, ids=lambda value: str(value)[:40])
def test_a_recorded_answer_is_read_as_it_was_meant(name, ids, finish, stop_reason, counts, incremental):
    answer = told(name, traits=WorkerTraits(incremental=incremental))

    assert answer.error is None
    assert answer.ids == numbers(ids)
    assert (answer.finish, answer.stop_reason, answer.counts()) == (finish, stop_reason, counts)


@pytest.mark.parametrize(("name", "token_id", "counts"), PREFILLS)
def test_a_recorded_prefill_did_its_part(name, token_id, counts):
    adapter = SglangAdapter(worker(Engine.SGLANG, Role.PREFILL), "m")
    parser, body = adapter.parser(request(), Leg.PREFILL), recording("sglang", name).body
    outputs = [*parser.feed(body), *parser.end()]

    given = adapter.handoff(outputs)

    assert (given.disaggregated_params, given.prompt_tokens_details.cached_tokens) == (None, counts[2])
    assert (told(name).ids, told(name).finish, told(name).counts()) == ([token_id], LENGTH, counts)


@pytest.mark.parametrize(("name", "ids", "kind"), FAILED_ANSWERS)
def test_a_recorded_failure_comes_after_the_tokens_before_it(name, ids, kind):
    answer = told(name)

    assert (type(answer.error), answer.ids) == (kind, numbers(ids))


@pytest.mark.parametrize(("name", "kind", "words"), REFUSALS)
def test_a_recorded_refusal_keeps_the_engines_words(name, kind, words):
    refusal = recording("sglang", name)

    error = SglangAdapter(worker(Engine.SGLANG), "m").rejection(refusal.status, refusal.body)

    assert type(error) is kind
    assert words in error.message


@pytest.mark.parametrize("name", WITHOUT_A_BYTE)
def test_a_server_that_dies_or_waits_sends_nothing(name):
    assert recording("sglang", name).status == 0
    assert type(told(name).error) is IncompleteReply


def test_a_recorded_abort_has_the_shape_of_ours():
    asked = recording("sglang", ABORT)
    (ours,) = SglangAdapter(worker(Engine.SGLANG), "m").abort_calls(IDS)

    assert (ours.method, ours.path, list(asked.request)) == (asked.method, asked.path, ["rid"])
    assert (asked.status, asked.body) == (200, b"")


def test_every_recording_is_accounted_for():
    refused = [row[0] for row in REFUSALS]

    assert {*ANSWERED, *refused, *WITHOUT_A_BYTE, *PROBED, ABORT} == set(names("sglang"))


def test_recorded_logprobs_unary():
    answer = told("11_generate_ids_logprobs_rid", asked=request(output={"logprobs": 2}))

    assert answer.log_probs == [
        -1.7518467903137207,
        -0.021746283397078514,
        -0.010265645571053028,
        -0.010125933215022087,
    ]
    assert answer.top_logprobs[0] == [
        TopLogprob(1, 504, "The", -1.7518467903137207),
        TopLogprob(2, 60, "L", -2.0018467903137207),
    ]


@pytest.mark.parametrize("name", ["13_generate_ids_stream_logprob", "sglpd_mooncake_21_generate_logprob_decode"])
def test_recorded_logprobs_without_alternatives_are_the_chosen_tokens(name):
    answer = told(name, asked=request(output={"logprobs": 0}))

    assert len(answer.log_probs) == 4
    assert [[(top.rank, top.token_id) for top in tops] for tops in answer.top_logprobs] == [
        [(1, 504)],
        [(1, 3575)],
        [(1, 282)],
        [(1, 4649)],
    ]
    assert [tops[0].logprob for tops in answer.top_logprobs] == answer.log_probs


@pytest.mark.parametrize("name", [name for name in ANSWERED if len(recording("sglang", name).body) < 4500])
def test_a_reply_reads_the_same_cut_at_any_place(name):
    """Up to half a second each: a real reply is parsed once for each of its bytes."""
    asked = request(output={"logprobs": 0 if "logprob" in name else None})
    whole, size = told(name, asked=asked), len(recording("sglang", name).body)

    assert all(told(name, (cut,), asked=asked).same(whole) for cut in range(1, size))


@pytest.mark.parametrize("name", ANSWERED)
def test_a_reply_reads_the_same_byte_by_byte(name):
    whole, size = told(name), len(recording("sglang", name).body)

    assert told(name, tuple(range(1, size))).same(whole)


@pytest.mark.parametrize("name", ANSWERED)
@given(fractions=st.lists(st.floats(0, 1), min_size=1, max_size=6))
@settings(max_examples=10, deadline=None)
def test_a_reply_reads_the_same_in_any_pieces(name, fractions):
    whole, size = told(name), len(recording("sglang", name).body)

    assert told(name, tuple(int(fraction * size) for fraction in fractions)).same(whole)
