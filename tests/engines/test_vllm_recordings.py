"""Every recorded reply of a real vLLM 0.32.0 on the routes that the adapter uses, for any split of its bytes."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.vllm import VllmAdapter
from protocols.errors import EngineFailure, ProtocolViolation
from protocols.worker import Engine, Leg, Role, WorkerTraits
from tests.engine_calls import IDS, request, worker
from tests.engine_replies import Told, read
from tests.golden_files import names, recording
from tests.vllm_expected import (
    ANSWERS,
    ANSWERS_WITHOUT_IDS,
    DECODE_FAILURES,
    FAILED_ANSWERS,
    LENGTH,
    LONG_ANSWERS,
    PREFILLS,
    REFUSALS,
    UNPINNED_PREFILLS,
)

PROBED = ["00_metrics", "01_models", "02_health", "03_version", "08_server_info"]
"""Read in test_vllm_probes.py."""
ABORTS = [name for name in names("vllm") if name.endswith("_abort_call") or name[:3] in ("a4_", "a6_", "a9_")]

ANSWERED = [name for name in names("vllm") if recording("vllm", name).status == 200 and name not in {*PROBED, *ABORTS}]
SMALL = [name for name in ANSWERED if len(recording("vllm", name).body) < 2500]


def adapter(role: Role = Role.AGGREGATED) -> VllmAdapter:
    return VllmAdapter(worker(Engine.VLLM, role, served_name="smollm2-135m"), "m")


def told(name: str, leg: Leg = Leg.DECODE, cuts: tuple[int, ...] = ()) -> Told:
    return read(adapter().parser(request(), leg), recording("vllm", name).body, cuts)


def numbers(ids: str) -> list[int]:
    return [int(token_id) for token_id in ids.split()]


@pytest.mark.parametrize(("name", "ids", "finish", "stop_reason", "counts"), ANSWERS, ids=lambda value: str(value)[:40])
def test_a_recorded_answer_is_read_as_it_was_meant(name, ids, finish, stop_reason, counts):
    answer = told(name)

    assert answer.error is None
    assert answer.ids == numbers(ids)
    assert (answer.finish, answer.stop_reason, answer.counts()) == (finish, stop_reason, counts)


@pytest.mark.parametrize(("name", "count", "crc"), LONG_ANSWERS)
def test_a_long_recorded_answer_is_read_whole(name, count, crc):
    answer = told(name)

    assert (answer.error, answer.finish) == (None, LENGTH)
    assert (len(answer.ids), zlib.crc32(" ".join(map(str, answer.ids)).encode())) == (count, crc)


@pytest.mark.parametrize(("name", "finish", "counts"), ANSWERS_WITHOUT_IDS)
def test_a_reply_without_ids_is_good_for_prefill_and_no_answer(name, finish, counts):
    prefill, answer = told(name, Leg.PREFILL), told(name)

    assert (prefill.ids, prefill.finish, prefill.counts(), prefill.error) == ([], finish, counts, None)
    assert isinstance(answer.error, ProtocolViolation)


@pytest.mark.parametrize(
    ("name", "block_ids", "remote_request_id", "ids", "counts"), PREFILLS, ids=lambda value: str(value)[:40]
)
def test_a_recorded_prefill_hands_its_parameters_over_as_they_came(name, block_ids, remote_request_id, ids, counts):
    parser, body = adapter().parser(request(), Leg.PREFILL), recording("vllm", name).body
    outputs = [*parser.feed(body), *parser.end()]

    given = adapter(Role.PREFILL).handoff(outputs)

    assert given.disaggregated_params["remote_block_ids"] == block_ids
    assert given.disaggregated_params["remote_request_id"] == remote_request_id
    assert given.disaggregated_params == told(name, Leg.PREFILL).params
    assert given.prompt_tokens_details.cached_tokens == counts[2]
    assert (told(name, Leg.PREFILL).ids, told(name, Leg.PREFILL).counts()) == (numbers(ids), counts)


@pytest.mark.parametrize("name", UNPINNED_PREFILLS)
def test_a_recorded_prefill_without_parameters_hands_nothing_over(name):
    parser, body = adapter().parser(request(), Leg.PREFILL), recording("vllm", name).body
    outputs = [*parser.feed(body), *parser.end()]

    assert adapter(Role.PREFILL).handoff(outputs) is None


@pytest.mark.parametrize(("name", "ids", "kind"), FAILED_ANSWERS)
def test_a_recorded_failure_comes_after_the_tokens_before_it(name, ids, kind):
    answer = told(name)

    assert type(answer.error) is kind
    assert answer.ids == numbers(ids)


@pytest.mark.parametrize(("name", "kind", "words", "param"), REFUSALS)
def test_a_recorded_refusal_keeps_the_engines_words(name, kind, words, param):
    refusal = recording("vllm", name)

    error = adapter().rejection(refusal.status, refusal.body)

    assert type(error) is kind
    assert words in error.message
    assert error.param == param


@pytest.mark.parametrize(("name", "blame"), DECODE_FAILURES)
def test_a_recorded_decode_failure_says_whom_to_avoid(name, blame):
    failure = recording("vllm", name)

    error = adapter(Role.DECODE).rejection(failure.status, failure.body)

    assert (type(error), error.blame, error.worker_status) == (EngineFailure, blame, 500)


@pytest.mark.parametrize("name", ABORTS)
def test_a_recorded_abort_call_has_the_shape_of_ours(name):
    asked = recording("vllm", name)
    ours = VllmAdapter(worker(Engine.VLLM, traits=WorkerTraits(generate=True)), "m").abort_calls(IDS)[0]

    assert (ours.method, ours.path) == (asked.method, asked.path)
    assert list(asked.request) == ["request_ids"]
    assert (asked.status, asked.body) == (200, b"")


def test_every_recording_is_accounted_for():
    tables = [ANSWERS, LONG_ANSWERS, ANSWERS_WITHOUT_IDS, PREFILLS, FAILED_ANSWERS, REFUSALS, DECODE_FAILURES]
    accounted = {row[0] for table in tables for row in table} | {*UNPINNED_PREFILLS, *PROBED, *ABORTS}

    assert accounted == set(names("vllm"))


@pytest.mark.parametrize("name", SMALL)
def test_a_reply_reads_the_same_cut_at_any_place(name):
    """Up to a quarter of a second each: a real reply is parsed once for each of its bytes."""
    whole, size = told(name), len(recording("vllm", name).body)

    assert all(told(name, cuts=(cut,)).same(whole) for cut in range(1, size))


@pytest.mark.parametrize("name", SMALL)
def test_a_reply_reads_the_same_byte_by_byte(name):
    whole, size = told(name), len(recording("vllm", name).body)

    assert told(name, cuts=tuple(range(1, size))).same(whole)


@pytest.mark.parametrize("name", sorted(set(ANSWERED) - set(SMALL)))
@given(fractions=st.lists(st.floats(0, 1), min_size=1, max_size=6))
@settings(max_examples=6, deadline=None)
def test_a_long_reply_reads_the_same_in_any_pieces(name, fractions):
    """The longest has 1,500 events, read seven times."""
    whole, size = told(name), len(recording("vllm", name).body)

    assert told(name, cuts=tuple(int(fraction * size) for fraction in fractions)).same(whole)
