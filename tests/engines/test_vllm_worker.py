"""What is learnt of a vLLM worker: by probing it, and by what it refuses."""

from __future__ import annotations

import orjson
import pytest

from engines.base import Call, Probe, ProbeReply
from engines.vllm import VllmAdapter
from protocols.errors import (
    Blame,
    BodyTooLarge,
    EngineFailure,
    InvalidRequest,
    ModelNotFound,
    WorkerBusy,
    WorkerMisconfigured,
)
from protocols.worker import Engine, Role, WorkerTraits
from tests.engine_calls import IDS, body_of, request, worker
from tests.golden_files import recording

GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"


def adapter(role: Role = Role.AGGREGATED, traits: WorkerTraits | None = None) -> VllmAdapter:
    return VllmAdapter(worker(Engine.VLLM, role, traits=traits), "m")


def reply(name: str) -> ProbeReply:
    recorded = recording("vllm", name)
    return ProbeReply(recorded.status, recorded.body)


def refusal(message: str, kind: str, code: int) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


# ---- probes


def test_a_recorded_worker_tells_what_it_is():
    replies = {
        "/v1/models": reply("01_models"),
        "/version": reply("03_version"),
        "/metrics": reply("00_metrics"),
        GENERATE: reply("98_err_generate_no_sampling_params"),
    }

    assert adapter().traits(replies) == WorkerTraits(
        served_name="smollm2-135m",
        version="0.32.0",
        context_length=2048,
        generate=True,
        page_size=32,
        kv_dtype="auto",
        incarnation="1.79603963406e+09",
    )


@pytest.mark.parametrize(
    ("told", "generate"),
    [
        (reply("98_err_generate_no_sampling_params"), True),
        (ProbeReply(422, b""), True),
        (reply("d01_generate_disabled_403"), False),
        (reply("90_err_404"), False),
        (reply("91_err_405"), False),
        (ProbeReply(503, b""), None),
        (None, None),
    ],
)
def test_an_empty_body_tells_whether_generate_is_open(told, generate):
    replies = {GENERATE: told} if told is not None else {}

    assert adapter().traits(replies) == WorkerTraits(generate=generate)


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'{"data":5,"version":7}', b'{"data":[]}', b'{"data":[5]}'])
def test_probe_replies_that_cannot_be_read_tell_nothing(body):
    replies = {path: ProbeReply(200, body) for path in ("/v1/models", "/version", "/metrics")}

    assert adapter().traits(replies) == WorkerTraits()


def test_the_workers_own_model_is_told_from_its_adapters():
    cards = [{"id": "poet", "parent": "m"}, {"id": "m", "parent": None, "max_model_len": 8}]

    told = adapter().traits({"/v1/models": ProbeReply(200, orjson.dumps({"data": cards}))})

    assert (told.served_name, told.context_length) == ("m", 8)


def test_probes():
    probes = {probe.path: probe for probe in adapter().info_probes()}

    assert set(probes) == {"/v1/models", "/version", "/metrics", GENERATE}
    assert (probes[GENERATE].method, probes[GENERATE].body) == ("POST", b"{}")
    assert adapter().health_probe() == Probe("/health")


@pytest.mark.parametrize(("told", "healthy"), [(reply("02_health"), True), (ProbeReply(503, b""), False)])
def test_health(told, healthy):
    assert adapter().healthy(told) is healthy


# ---- learning


@pytest.mark.parametrize("name", ["d01_generate_disabled_403", "90_err_404"])
def test_a_closed_generate_route_means_completions_from_now_on(name):
    closed = recording("vllm", name)

    learnt = adapter(traits=WorkerTraits(generate=True)).learn(Call(GENERATE), closed.status, closed.body)

    assert learnt.traits.generate is False


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (GENERATE, "98_err_generate_unknown_model"),
        (GENERATE, "98_err_generate_negative_temperature"),
        (COMPLETIONS, "90_err_404"),
        (COMPLETIONS, "d01_generate_disabled_403"),
    ],
)
def test_other_refusals_teach_nothing(path, name):
    told = recording("vllm", name)

    assert adapter(traits=WorkerTraits(generate=True)).learn(Call(path), told.status, told.body) is None


def test_a_server_without_a_tokenizer_is_not_given_stop_strings_again():
    body = refusal("stop strings are not supported on a --tokens-only server because …", "BadRequestError", 400)

    learnt = adapter(traits=WorkerTraits(generate=True)).learn(Call(GENERATE), 400, body)
    again = VllmAdapter(learnt, "m").learn(Call(GENERATE), 400, body)

    assert (learnt.traits.generate, learnt.traits.stop_strings, again) == (True, False, None)


# ---- refusals


@pytest.mark.parametrize(
    ("status", "message", "kind", "expected"),
    [
        (401, "Unauthorized", "", WorkerMisconfigured),
        (403, "no", "PermissionDeniedError", WorkerMisconfigured),
        (413, "too big", "", BodyTooLarge),
        (422, "cannot fetch", "UnprocessableEntityError", InvalidRequest),
        (429, "slow down", "", WorkerBusy),
        (501, "n > 1 is not implemented", "NotImplementedError", InvalidRequest),
        (503, "The engine is currently busy", "Service Unavailable", WorkerBusy),
        (503, "Request failed; please retry", "ServiceUnavailableError", EngineFailure),
        (500, "boom", "InternalServerError", EngineFailure),
        (502, "bad gateway", "", EngineFailure),
    ],
)
def test_refusals(status, message, kind, expected):
    error = adapter().rejection(status, refusal(message, kind, status))

    assert type(error) is expected
    assert message in error.message


def test_a_refusal_in_plain_text_is_kept():
    assert adapter().rejection(500, b"Internal Server Error").message == "Internal Server Error"


def test_a_name_that_we_configured_is_our_mistake_another_is_a_missing_adapter():
    ours = refusal("The model `m` does not exist.", "NotFoundError", 404)
    adapters = refusal("The model `poet` does not exist.", "NotFoundError", 404)

    assert type(adapter().rejection(404, ours)) is WorkerMisconfigured
    assert type(adapter().rejection(404, adapters)) is ModelNotFound


@pytest.mark.parametrize(
    ("role", "message", "blame"),
    [
        (Role.DECODE, "Internal server error", Blame.PAIR),
        (Role.DECODE, "EngineCore encountered an issue.", Blame.WORKER),
        (Role.PREFILL, "Internal server error", Blame.WORKER),
        (Role.AGGREGATED, "Internal server error", Blame.WORKER),
    ],
)
def test_only_decode_may_have_failed_for_its_peers_sake(role, message, blame):
    assert adapter(role).rejection(500, refusal(message, "InternalServerError", 500)).blame is blame


def test_a_failed_load_of_the_kv_is_the_pairs_failure_and_no_overload():
    error = adapter(Role.DECODE).rejection(503, refusal("please retry", "ServiceUnavailableError", 503))

    assert (type(error), error.blame) == (EngineFailure, Blame.PAIR)


@pytest.mark.parametrize("path", [GENERATE, COMPLETIONS])
def test_a_server_without_priorities_is_asked_again_without_one(path):
    told = refusal("Got priority -5 but Priority scheduling is not enabled.", "BadRequestError", 400)

    learnt = adapter(traits=WorkerTraits(generate=True)).learn(Call(path), 400, told)
    assert learnt is not None
    again = VllmAdapter(learnt, "m")

    assert (learnt.traits.priority_sign, again.learn(Call(path), 400, told)) == (0, None)
    assert "priority" not in body_of(again.generate_call(request(routing={"priority": 5}), IDS))
