"""What is exported: families from the start, bounded labels, workers that are there and no others."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from protocols.errors import (
    BodyTooLarge,
    CannotConnect,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    NoAvailableWorkers,
    Overloaded,
    WorkerBusy,
)
from protocols.worker import Engine, Leg, Role, Worker
from telemetry.metrics import GAP_SECONDS, SECONDS, Metrics, error_type_of, failure_kind


class Outcome(enum.Enum):
    REMOTE = "remote"


class Standing(enum.Enum):
    READY = "ready"
    SUSPECT = "suspect"
    DOWN = "down"


@dataclass
class State:
    worker: Worker
    model: str = "m"
    status: Standing = Standing.READY
    prefill: int = 0
    decode: int = 0
    incarnation: int = 1
    failures: int = 0


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry) -> Metrics:
    return Metrics(registry, ["m", "org/other"])


def value(registry, name, **labels):
    return registry.get_sample_value(f"tandem_{name}", labels)


def worker(worker_id, role=Role.DECODE):
    return Worker(worker_id, f"http://w{worker_id}:8000", Engine.VLLM, role)


@pytest.mark.parametrize("model", ["m", "org/other"])
@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("requests_started_total", {"endpoint": "completions", "request_type": "unary"}),
        (
            "requests_total",
            {"endpoint": "chat_completions", "request_type": "stream", "status": "success", "error_type": ""},
        ),
        ("client_disconnects_total", {"endpoint": "completions"}),
        ("inflight_requests", {}),
        ("requests_awaiting_first_token", {}),
        ("request_duration_seconds_count", {}),
        ("time_to_first_token_seconds_count", {}),
        ("inter_token_latency_seconds_count", {}),
        ("input_sequence_tokens_count", {}),
        ("output_sequence_tokens_count", {}),
        ("cached_tokens_count", {}),
        ("input_tokens_total", {}),
        ("output_tokens_total", {}),
        ("kv_handoff_seconds_count", {}),
        ("prefills_total", {"outcome": "remote"}),
        ("prefills_total", {"outcome": "tail_cut"}),
        ("router_choices_total", {"leg": "prefill"}),
        ("router_choices_total", {"leg": "decode"}),
        ("router_removed_candidates_total", {"leg": "decode", "filter": "ready"}),
        ("router_refusals_total", {"leg": "prefill", "error": "no_available_workers"}),
    ],
)
def test_every_configured_models_series_are_zeros_from_the_start(metrics, registry, model, name, labels):
    assert value(registry, name, model=model, **labels) == 0


def test_a_model_that_is_not_configured_gets_no_series_of_its_own(metrics, registry):
    for name in ("../../etc", "x" * 1000, "m2"):
        metrics.model(name).started("completions", "unary")

    assert value(registry, "requests_started_total", model="unknown", endpoint="completions", request_type="unary") == 3
    assert b"m2" not in generate_latest(registry)


def test_latency_buckets_reach_an_hour_and_gaps_a_minute():
    assert SECONDS[-1] >= 3600
    assert GAP_SECONDS[-1] >= 60


def test_prefills_are_counted_by_outcome(metrics, registry):
    metrics.model("m").prefilled(Outcome.REMOTE)

    assert value(registry, "prefills_total", model="m", outcome="remote") == 1


def test_migrations_are_counted_by_kind_and_reason(metrics, registry):
    metrics.model("m").migrating("ongoing_request", CannotConnect("refused"))

    assert (
        value(registry, "migrations_total", model="m", migration_type="ongoing_request", reason="cannot_connect") == 1
    )


def test_failures_on_the_way_to_workers_are_counted_by_leg_and_kind(metrics, registry):
    metrics.model("m").workers.failed(worker(7), Leg.PREFILL, WorkerBusy("429"))

    assert value(registry, "leg_failures_total", model="m", leg="prefill", error="worker_busy") == 1


def test_choices_and_what_filters_removed_are_counted(metrics, registry):
    workers = metrics.model("m").workers

    workers.chosen(Leg.DECODE, {"ready": (1, 2), "taints": (3,)})

    assert value(registry, "router_choices_total", model="m", leg="decode") == 1
    assert value(registry, "router_removed_candidates_total", model="m", leg="decode", filter="ready") == 2
    assert value(registry, "router_removed_candidates_total", model="m", leg="decode", filter="taints") == 1


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (Overloaded("all busy"), "overloaded"),
        (NoAvailableWorkers("none"), "no_available_workers"),
        (InvalidRequest("unknown pin"), "invalid_request_error"),
    ],
)
def test_refusals_are_counted_by_error(metrics, registry, error, label):
    metrics.model("m").workers.refused(Leg.DECODE, error)

    assert value(registry, "router_refusals_total", model="m", leg="decode", error=label) == 1


def test_a_workers_series_tell_its_standing_and_load(metrics, registry):
    state = State(worker(7, Role.PREFILL), status=Standing.DOWN, prefill=3, incarnation=2, failures=5)
    metrics.watch(lambda: [state], dict)

    assert value(registry, "worker_up", worker="7", model="m", engine="vllm", role="prefill") == 0
    assert value(registry, "worker_status", worker="7", model="m", status="down") == 1
    assert value(registry, "worker_inflight_requests", worker="7", model="m", leg="prefill") == 3
    assert value(registry, "worker_restarts_total", worker="7", model="m") == 1
    assert value(registry, "worker_failures_total", worker="7", model="m") == 5


@pytest.mark.parametrize("status", [Standing.READY, Standing.SUSPECT])
def test_a_worker_that_is_given_requests_is_up(metrics, registry, status):
    metrics.watch(lambda: [State(worker(7), status=status)], dict)

    assert value(registry, "worker_up", worker="7", model="m", engine="vllm", role="decode") == 1


def test_a_removed_worker_leaves_no_series_behind(metrics, registry):
    states = [State(worker(7)), State(worker(8))]
    metrics.watch(lambda: states, dict)
    assert b'worker="7"' in generate_latest(registry)

    del states[0]

    assert b'worker="7"' not in generate_latest(registry)
    assert b'worker="8"' in generate_latest(registry)


def test_readiness_is_exported_per_model(metrics, registry):
    metrics.watch(list, lambda: {"m": True, "org/other": False})

    assert (value(registry, "model_ready", model="m"), value(registry, "model_ready", model="org/other")) == (1, 0)


def test_all_names_carry_the_prefix_and_none_is_given_twice(metrics, registry):
    metrics.watch(lambda: [State(worker(7))], lambda: {"m": True})

    names = [family.name for family in text_string_to_metric_families(generate_latest(registry).decode())]

    assert all(name.startswith("tandem_") for name in names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (InvalidRequest("x"), "validation"),
        (BodyTooLarge("x"), "validation"),
        (ModelNotFound("x"), "not_found"),
        (Overloaded("x"), "overload"),
        (NoAvailableWorkers("x"), "unavailable"),
        (DeadlineExceeded("x"), "response_timeout"),
        (CannotConnect("x"), "worker_failed"),
        (InternalError("x"), "internal"),
    ],
)
def test_errors_are_labelled_by_what_they_mean(error, label):
    assert error_type_of(error) == label


def test_a_failures_kind_is_its_class_in_words():
    assert failure_kind(CannotConnect("x")) == "cannot_connect"
