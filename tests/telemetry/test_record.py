"""One request's record, from its arrival to its line in the log."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry

from protocols.errors import InvalidRequest, Overloaded
from protocols.outputs import BackendOutput
from telemetry.metrics import Metrics
from telemetry.record import Telemetry


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Usage:
    """Token counts as the pipeline keeps them."""

    def __init__(self, prompt: int = 12, completion: int = 0, cached: int | None = None) -> None:
        self.prompt, self.completion, self.cached = prompt, completion, cached

    def prompt_tokens(self) -> int:
        return self.prompt

    def completion_tokens(self) -> int:
        return self.completion

    def cached_tokens(self) -> int | None:
        return self.cached


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def telemetry(registry, clock) -> Telemetry:
    return Telemetry(Metrics(registry, ["m"]), clock=clock, wall=lambda: 1_700_000_000.0)


def value(registry, name, **labels):
    return registry.get_sample_value(f"tandem_{name}", {"model": "m", **labels})


def finished(registry, *, model="m", request_type="stream", status="success", error_type=""):
    labels = {"endpoint": "completions", "request_type": request_type, "status": status, "error_type": error_type}
    return registry.get_sample_value("tandem_requests_total", {"model": model, **labels})


def tokens(*ids):
    return [BackendOutput(token_ids=list(ids))]


def test_a_request_is_in_flight_until_it_ends_and_waits_until_its_first_token(telemetry, registry):
    record = telemetry.request("completions", "r1")
    record.began("m", stream=True)
    assert (value(registry, "inflight_requests"), value(registry, "requests_awaiting_first_token")) == (1, 1)

    record.observe(tokens(5))
    assert (value(registry, "inflight_requests"), value(registry, "requests_awaiting_first_token")) == (1, 0)

    record.succeeded()
    record.ended()
    assert (value(registry, "inflight_requests"), value(registry, "requests_awaiting_first_token")) == (0, 0)


@pytest.mark.parametrize("observed", [[], tokens(5), [BackendOutput()]])
@pytest.mark.parametrize(
    "end", [lambda r: r.succeeded(), lambda r: r.failed(Overloaded("x")), lambda r: r.cancelled(), lambda r: None]
)
def test_however_a_request_ends_the_gauges_return_to_zero(telemetry, registry, observed, end):
    record = telemetry.request("completions", "r1")
    record.began("m", stream=True)
    for output in observed:
        record.observe([output])

    end(record)
    record.ended()
    record.ended()

    assert (value(registry, "inflight_requests"), value(registry, "requests_awaiting_first_token")) == (0, 0)
    assert value(registry, "request_duration_seconds_count") == 1


def test_a_request_that_ended_well_is_a_success_with_its_lengths_and_times(telemetry, registry, clock):
    usage = Usage(prompt=12, cached=8)
    record = telemetry.request("completions", "r1")
    record.began("m", stream=True)
    record.prepared(usage)
    clock.now += 0.5
    record.observe(tokens(1))
    clock.now += 0.06
    record.observe([*tokens(2), *tokens(3, 4)])
    record.succeeded()
    record.ended()

    assert finished(registry) == 1
    assert value(registry, "time_to_first_token_seconds_sum") == pytest.approx(0.5)
    assert value(registry, "inter_token_latency_seconds_count") == 3
    assert value(registry, "inter_token_latency_seconds_sum") == pytest.approx(0.06)
    assert value(registry, "input_tokens_total") == 12
    assert value(registry, "output_tokens_total") == 4
    assert value(registry, "cached_tokens_sum") == 8
    assert value(registry, "output_sequence_tokens_count") == 1


def test_unknown_cached_tokens_are_not_counted_as_none(telemetry, registry):
    record = telemetry.request("completions", "r1")
    record.began("m", stream=True)
    record.prepared(Usage(cached=None))
    record.succeeded()
    record.ended()

    assert value(registry, "cached_tokens_count") == 0


def test_an_engine_that_sends_text_without_ids_counts_its_own_tokens(telemetry, registry):
    usage = Usage()
    record = telemetry.request("completions", "r1")
    record.began("m", stream=True)
    record.prepared(usage)
    usage.completion = 9
    record.succeeded()
    record.ended()

    assert value(registry, "output_tokens_total") == 9


def test_a_failure_is_counted_by_its_type(telemetry, registry):
    record = telemetry.request("completions", "r1")
    record.began("m", stream=False)
    record.failed(Overloaded("all busy"))
    record.ended()

    assert finished(registry, request_type="unary", status="error", error_type="overload") == 1


def test_a_request_whose_model_never_became_known_is_counted_all_the_same(telemetry, registry):
    record = telemetry.request("completions", "r1")
    record.failed(InvalidRequest("not JSON"))
    record.ended()

    assert finished(registry, model="unknown", request_type="unknown", status="error", error_type="validation") == 1
    assert value(registry, "inflight_requests") == 0


def test_a_client_that_left_is_counted_as_such(telemetry, registry):
    record = telemetry.request("completions", "r1")
    record.began("m", stream=True)
    record.cancelled()
    record.ended()

    assert finished(registry, status="error", error_type="cancelled") == 1
    assert value(registry, "client_disconnects_total", endpoint="completions") == 1


@pytest.mark.parametrize(("ok", "outcome"), [(True, "success"), (False, "failed")])
def test_a_migrated_request_is_counted_by_how_it_ended(telemetry, registry, ok, outcome):
    record = telemetry.request("completions", "r1")
    record.began("m", stream=True)
    record.tracker.record_migration("ongoing_request")
    record.tracker.record_migration("ongoing_request")
    if ok:
        record.succeeded()
    record.ended()

    assert value(registry, "migrated_requests_total", migration_type="ongoing_request", outcome=outcome) == 1


def test_one_line_tells_the_whole_request(telemetry, clock, caplog):
    caplog.set_level(logging.INFO)
    record = telemetry.request("completions", "r1")
    record.began("m", stream=True)
    record.prepared(Usage(prompt=12, cached=8))
    record.tracker.record_workers(2**62, None, 2, None)
    clock.now += 0.5
    record.observe(tokens(1, 2))
    record.succeeded()
    record.ended()

    (line,) = caplog.records
    assert (line.getMessage(), line.levelname, line.request_id) == ("request completed", "INFO", "r1")
    assert line.fields == {
        "endpoint": "completions",
        "model": "m",
        "type": "stream",
        "input_tokens": 12,
        "cached_tokens": 8,
        "output_tokens": 2,
        "prefill_worker": str(2**62),
        "decode_worker": "2",
        "request_received_ms": 1_700_000_000_000.0,
        "prefill_wait_time_ms": 0.0,
        "ttft_ms": 500.0,
        "total_time_ms": 500.0,
    }


def test_a_failed_requests_line_is_a_warning_with_the_reason(telemetry, caplog):
    record = telemetry.request("completions", "r1")
    record.began("m", stream=True)
    record.failed(Overloaded("all 2 eligible decode workers are overloaded"))
    record.ended()

    (line,) = caplog.records
    assert (line.getMessage(), line.levelname) == ("request overload", "WARNING")
    assert line.fields["error"] == "all 2 eligible decode workers are overloaded"


def test_a_request_that_generates_nothing_awaits_no_token_and_has_no_length(telemetry, registry):
    record = telemetry.request("embeddings", "r")

    record.began("m", stream=False, generates=False)
    record.prepared(Usage(prompt=12))
    waiting = value(registry, "requests_awaiting_first_token")
    record.succeeded()
    record.ended()

    assert (waiting, value(registry, "inflight_requests")) == (0, 0)
    assert value(registry, "input_tokens_total") == 12
    assert value(registry, "output_sequence_tokens_count") == 0
    labels = {"endpoint": "embeddings", "request_type": "unary", "status": "success", "error_type": ""}
    assert value(registry, "requests_total", **labels) == 1
