"""What is learnt of an SGLang worker by probing it, and what its refusals mean."""

from __future__ import annotations

import orjson
import pytest

from engines.base import AttemptIds, Call, Probe, ProbeReply
from engines.sglang import SglangAdapter
from protocols.errors import (
    Blame,
    ContextLengthExceeded,
    EngineFailure,
    InvalidRequest,
    WorkerBusy,
    WorkerMisconfigured,
)
from protocols.preprocessed import PreprocessedRequest
from protocols.worker import Engine, Role, WorkerTraits
from tests.engine_calls import worker
from tests.golden_files import recording


def adapter(role: Role = Role.AGGREGATED, traits: WorkerTraits | None = None) -> SglangAdapter:
    return SglangAdapter(worker(Engine.SGLANG, role, traits=traits), "m")


def reply(name: str) -> ProbeReply:
    recorded = recording("sglang", name)
    return ProbeReply(recorded.status, recorded.body)


def info(**members) -> dict[str, ProbeReply]:
    return {"/server_info": ProbeReply(200, orjson.dumps(members))}


# ---- probes


@pytest.mark.parametrize(("flag", "generates"), [(True, False), (False, None), (None, None)])
def test_a_server_of_embeddings_is_never_asked_for_text(flag, generates):
    assert adapter().traits(info(is_embedding=flag)).generates is generates


def test_a_request_for_text_does_not_reach_a_server_that_it_would_end():
    embedding = adapter(traits=WorkerTraits(generates=False))

    with pytest.raises(InvalidRequest, match="makes embeddings") as refused:
        embedding.generate_call(PreprocessedRequest((1,)), AttemptIds("0" * 32, 2**40))

    assert refused.value.param == "model"


def test_a_recorded_worker_tells_what_it_is():
    told = adapter().traits(
        {"/v1/models": reply("01_models"), "/server_info": reply("05_server_info2"), "/ready": ProbeReply(200, b"")}
    )

    assert told == WorkerTraits(
        served_name="smollm2-135m",
        version="0.5.23",
        context_length=2048,
        incremental=False,
        page_size=1,
        kv_dtype="auto",
        incarnation=told.incarnation,
        role=Role.AGGREGATED,
        dp_size=1,
        bootstrap_port=8998,
        ready_route=True,
        priority_sign=0,
    )


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("sglpd_mooncake_30_prefill_server_info", Role.PREFILL),
        ("sglpd_mooncake_31_decode_server_info", Role.DECODE),
    ],
)
def test_a_recorded_worker_of_a_pair_tells_its_role_also_on_the_old_route(name, role):
    told = adapter().traits({"/server_info": ProbeReply(404, b""), "/get_server_info": reply(name)})

    assert (told.role, told.served_name, told.version) == (role, "smollm2-135m", "0.5.23")


def test_another_start_is_another_incarnation():
    names = ["05_server_info2", "sglpd_mooncake_30_prefill_server_info", "sglpd_mooncake_31_decode_server_info"]

    told = {adapter().traits({"/server_info": reply(name)}).incarnation for name in [*names, *names]}

    assert len(told) == 3
    assert None not in told


@pytest.mark.parametrize(
    ("told", "sign"),
    [
        ({"enable_priority_scheduling": True}, 1),
        ({"enable_priority_scheduling": True, "schedule_low_priority_values_first": True}, -1),
        ({"enable_priority_scheduling": False}, 0),
        ({}, None),
    ],
)
def test_the_order_of_priorities_is_a_flag_of_the_server(told, sign):
    assert adapter().traits(info(**told)).priority_sign == sign


@pytest.mark.parametrize(
    ("told", "incremental"),
    [
        ({"incremental_streaming_output": True}, True),
        ({"stream_output": True}, True),
        ({"incremental_streaming_output": False, "stream_output": True}, False),
        ({}, None),
    ],
)
def test_streams_of_deltas_are_a_flag_of_the_server(told, incremental):
    assert adapter().traits(info(**told)).incremental is incremental


def test_a_worker_that_tells_nothing_is_not_known():
    assert adapter().traits({}) == WorkerTraits()
    assert adapter().traits({"/server_info": ProbeReply(200, b"nonsense")}) == WorkerTraits()


@pytest.mark.parametrize(
    ("ready_route", "probe"),
    [
        (True, Probe("/ready")),
        (None, Probe("/ready")),
        (False, Probe("/health", timeout_s=25.0, interval_s=30.0)),
    ],
)
def test_the_costly_health_check_is_asked_seldom_and_only_where_there_is_no_other(ready_route, probe):
    assert adapter(traits=WorkerTraits(ready_route=ready_route)).health_probe() == probe


@pytest.mark.parametrize(
    ("ready_route", "status", "healthy"),
    [(True, 200, True), (True, 503, False), (True, 404, False), (None, 404, True), (False, 404, False)],
)
def test_a_server_that_does_not_know_the_ready_route_is_up(ready_route, status, healthy):
    assert adapter(traits=WorkerTraits(ready_route=ready_route)).healthy(ProbeReply(status, b"")) is healthy


def test_what_is_asked_at_registration():
    assert {probe.path for probe in adapter().info_probes()} == {
        "/v1/models",
        "/server_info",
        "/get_server_info",
        "/ready",
    }


def test_refusals_teach_nothing():
    assert adapter().learn(Call("/generate"), 404, b"") is None


# ---- refusals


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (
            400,
            {"error": {"message": "The input (9 tokens) is longer than the model's context length"}},
            ContextLengthExceeded,
        ),
        (400, {"error": "input_ids must be integers"}, InvalidRequest),
        (401, {"error": "Unauthorized"}, WorkerMisconfigured),
        (403, {"error": "Forbidden"}, WorkerMisconfigured),
        (404, {"detail": "Not Found"}, WorkerMisconfigured),
        (503, {"object": "error", "message": "The request queue is full.", "type": "503", "code": 503}, WorkerBusy),
        (500, {"object": "error", "message": "Decode transfer failed", "type": "InternalServerError"}, EngineFailure),
    ],
)
def test_refusals(status, body, expected):
    assert type(adapter().rejection(status, orjson.dumps(body))) is expected


@pytest.mark.parametrize(
    ("role", "blame"), [(Role.PREFILL, Blame.PAIR), (Role.DECODE, Blame.PAIR), (Role.AGGREGATED, Blame.WORKER)]
)
def test_a_failed_leg_of_a_pair_may_have_failed_for_its_peers_sake(role, blame):
    assert adapter(role).rejection(500, b'{"message":"Prefill bootstrap failed"}').blame is blame


def test_an_id_that_is_still_alive_there_is_nobodys_fault():
    error = adapter().rejection(400, b'{"error":{"message":"Duplicate request ID detected: x"}}')

    assert (type(error), error.blame, error.retryable) == (EngineFailure, Blame.NOBODY, True)
