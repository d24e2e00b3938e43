"""What the gateway exports to Prometheus: every family, with its labels, in one place.

Labels are bounded. `model` is a configured model or "unknown", whatever a client asks for; endpoints, kinds, outcomes
and errors come from our own code; workers' series are made at each scrape from those that are there.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from protocols.errors import (
    DeadlineExceeded,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    Overloaded,
    Unavailable,
    WorkerFailure,
)
from protocols.worker import Leg, Worker
from telemetry.series import Counter, Series

PREFIX = "tandem_"
UNKNOWN = "unknown"

ENDPOINTS = ("chat_completions", "completions", "embeddings")
REQUEST_TYPES = ("stream", "unary")
PREFILL_OUTCOMES = ("remote", "local", "bypassed", "terminal", "failed", "tail_cut")
MIGRATION_TYPES = ("new_request", "ongoing_request")

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1200, 1800, 3600)
FIRST_TOKEN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 40, 60, 120, 240, 480)
GAP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 5, 20, 80)
HANDOFF_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOKENS = (0, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 1048576)


def error_type_of(error: GatewayError) -> str:
    """The `error_type` label of a failed request: Dynamo's words where it has them."""
    kinds: tuple[tuple[type[GatewayError], str], ...] = (
        (ModelNotFound, "not_found"),
        (NotFound, "not_found"),
        (InvalidRequest, "validation"),
        (Overloaded, "overload"),
        (Unavailable, "unavailable"),
        (DeadlineExceeded, "response_timeout"),
        (WorkerFailure, "worker_failed"),
    )
    return next((word for kind, word in kinds if isinstance(error, kind)), "internal")


class StatusLike(Protocol):
    @property
    def value(self) -> str: ...


class WorkerState(Protocol):
    """A worker's standing, as whoever keeps workers tells it."""

    @property
    def worker(self) -> Worker: ...
    @property
    def model(self) -> str: ...
    @property
    def status(self) -> StatusLike: ...
    @property
    def prefill(self) -> int: ...
    @property
    def decode(self) -> int: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def failures(self) -> int: ...


class Metrics:
    """All families, registered with `registry`. `models` are the configured ones.

    Series of every configured model are there as zeros from the start, whatever the router's mode.
    """

    def __init__(self, registry: CollectorRegistry, models: Sequence[str]) -> None:
        self._series = series = Series(registry, PREFIX)
        self.started = series.counter(
            "requests_started", "Requests whose model is known.", ("model", "endpoint", "request_type")
        )
        self.finished = series.counter(
            "requests",
            "Requests that have ended. error_type is empty for those that ended well.",
            ("model", "endpoint", "request_type", "status", "error_type"),
        )
        self.disconnects = series.counter(
            "client_disconnects", "Clients that left before their answer was complete.", ("model", "endpoint")
        )
        self.inflight = series.gauge("inflight_requests", "Requests being answered.", ("model",))
        self.waiting = series.gauge(
            "requests_awaiting_first_token", "Requests being answered that have no token yet.", ("model",)
        )
        self.duration = series.histogram(
            "request_duration_seconds", "From arrival to the end of the answer.", ("model",), SECONDS
        )
        self.ttft = series.histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", ("model",), FIRST_TOKEN_SECONDS
        )
        self.itl = series.histogram(
            "inter_token_latency_seconds",
            "Between tokens of an answer; tokens that arrived together share the time since the last.",
            ("model",),
            GAP_SECONDS,
        )
        self.input_length = series.histogram("input_sequence_tokens", "Tokens per prompt.", ("model",), TOKENS)
        self.output_length = series.histogram("output_sequence_tokens", "Tokens per answer.", ("model",), TOKENS)
        self.cached_length = series.histogram(
            "cached_tokens", "Prompt tokens found cached, where an engine told.", ("model",), TOKENS
        )
        self.input_tokens = series.counter("input_tokens", "Tokens of all prompts.", ("model",))
        self.output_tokens = series.counter("output_tokens", "Tokens of all answers.", ("model",))
        self.usage_differences = series.counter(
            "usage_differences", "Answers whose engine counted its tokens otherwise than the gateway did.", ("model",)
        )
        self.migrations = series.counter(
            "migrations",
            "Further attempts after a failure, by its kind; new_request: nothing had been shown yet.",
            ("model", "migration_type", "reason"),
        )
        self.migrated = series.counter(
            "migrated_requests",
            "Requests with further attempts, by how they ended.",
            ("model", "migration_type", "outcome"),
        )
        self.prefills = series.counter(
            "prefills", "Attempts of disaggregated models, by how they were prefilled.", ("model", "outcome")
        )
        self.handoff = series.histogram(
            "kv_handoff_seconds",
            "From prefill's completion to the first token, where prefill comes first.",
            ("model",),
            HANDOFF_SECONDS,
        )
        self.leg_failures = series.counter(
            "leg_failures", "Calls to workers that failed, by the kind of failure.", ("model", "leg", "error")
        )
        self.choices = series.counter("router_choices", "Workers chosen.", ("model", "leg"))
        self.removed = series.counter(
            "router_removed_candidates", "Workers that a filter kept from being chosen.", ("model", "leg", "filter")
        )
        self.refused = series.counter(
            "router_refusals", "Requests for which no worker could be chosen.", ("model", "leg", "error")
        )
        self.loop_lag = series.histogram(
            "event_loop_lag_seconds", "How much later than due the event loop ran a timer.", (), HANDOFF_SECONDS
        ).child()
        self._models = {name: ModelMetrics(self, name) for name in (*models, UNKNOWN)}

    def model(self, name: str) -> ModelMetrics:
        """One model's series; those of "unknown" for a model that is not configured."""
        return self._models.get(name) or self._models[UNKNOWN]

    def watch(self, workers: Callable[[], Iterable[WorkerState]], ready: Callable[[], Mapping[str, bool]]) -> None:
        """At each scrape, asks for the workers there are and for which models can be served."""
        self._series.sources.append(lambda: _worker_metrics(list(workers())))
        self._series.sources.append(lambda: [_ready_metric(ready())])


class ModelMetrics:
    """One model's series, each looked up once. Also the observer of its prefill, migration and routing."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics = metrics
        self.name = model
        self.inflight = metrics.inflight.child(model)
        self.waiting = metrics.waiting.child(model)
        self.duration = metrics.duration.child(model)
        self.ttft = metrics.ttft.child(model)
        self.itl = metrics.itl.child(model)
        self.input_length = metrics.input_length.child(model)
        self.output_length = metrics.output_length.child(model)
        self.cached_length = metrics.cached_length.child(model)
        self.input_tokens = metrics.input_tokens.child(model)
        self.output_tokens = metrics.output_tokens.child(model)
        self.usage_differences = metrics.usage_differences.child(model)
        self.handoff = metrics.handoff.child(model)
        self.workers = WorkerMetrics(metrics, model)
        self._prefills = {outcome: metrics.prefills.child(model, outcome) for outcome in PREFILL_OUTCOMES}
        for endpoint in ENDPOINTS:
            metrics.disconnects.child(model, endpoint)
            for request_type in REQUEST_TYPES:
                metrics.started.child(model, endpoint, request_type)
                metrics.finished.child(model, endpoint, request_type, "success", "")

    def started(self, endpoint: str, request_type: str) -> None:
        self._metrics.started.child(self.name, endpoint, request_type).add()

    def finished(self, endpoint: str, request_type: str, error_type: str) -> None:
        """`error_type` is empty for a request that ended well."""
        status = "error" if error_type else "success"
        self._metrics.finished.child(self.name, endpoint, request_type, status, error_type).add()

    def disconnected(self, endpoint: str) -> None:
        self._metrics.disconnects.child(self.name, endpoint).add()

    def prefilled(self, outcome: enum.Enum) -> None:
        """How an attempt was prefilled; the outcome's value is one of PREFILL_OUTCOMES."""
        self._prefills[outcome.value].add()

    def migrating(self, kind: str, error: GatewayError) -> None:
        """A further attempt begins; `kind` is one of MIGRATION_TYPES."""
        self._metrics.migrations.child(self.name, kind, failure_kind(error)).add()

    def migrated(self, kind: str, *, ok: bool) -> None:
        """A request with further attempts of this kind has ended."""
        self._metrics.migrated.child(self.name, kind, "success" if ok else "failed").add()


class WorkerMetrics:
    """What one model's requests meet on their way to workers."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics = metrics
        self._model = model
        self._choices: dict[Leg, Counter] = {leg: metrics.choices.child(model, leg.value) for leg in Leg}
        for leg in Leg:
            metrics.removed.child(model, leg.value, "excluded")
            metrics.removed.child(model, leg.value, "overloaded")
            metrics.removed.child(model, leg.value, "ready")
            for code in ("no_available_workers", "overloaded"):
                metrics.refused.child(model, leg.value, code)

    def chosen(self, leg: Leg, removed: Mapping[str, Sequence[int]]) -> None:
        """A worker was chosen; `removed` are the workers that each filter removed, by the filter's name."""
        self._choices[leg].add()
        for name, workers in removed.items():
            self._metrics.removed.child(self._model, leg.value, name).add(len(workers))

    def refused(self, leg: Leg, error: GatewayError) -> None:
        """Nobody could be chosen."""
        self._metrics.refused.child(self._model, leg.value, error.code or error.type).add()

    def failed(self, worker: Worker, leg: Leg, error: GatewayError) -> None:
        """A call to a worker failed."""
        self._metrics.leg_failures.child(self._model, leg.value, failure_kind(error)).add()


def failure_kind(error: GatewayError) -> str:
    """The kind of a failure as a label: its class, in words of one case ("cannot_connect")."""
    name = type(error).__name__
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def _worker_metrics(states: Sequence[WorkerState]) -> Iterable[Metric]:
    up = GaugeMetricFamily(
        f"{PREFIX}worker_up",
        "1 for a worker that is given requests, 0 for one that is not.",
        labels=("worker", "model", "engine", "role"),
    )
    statuses = GaugeMetricFamily(
        f"{PREFIX}worker_status", "1 for the status that a worker has.", labels=("worker", "model", "status")
    )
    inflight = GaugeMetricFamily(
        f"{PREFIX}worker_inflight_requests", "This gateway's requests on a worker.", labels=("worker", "model", "leg")
    )
    failures = CounterMetricFamily(
        f"{PREFIX}worker_failures", "Calls to a worker that failed.", labels=("worker", "model")
    )
    restarts = CounterMetricFamily(
        f"{PREFIX}worker_restarts", "Restarts seen of a worker's process.", labels=("worker", "model")
    )
    for state in states:
        worker, status = state.worker, state.status.value
        name = str(worker.id)
        given = float(status in ("ready", "suspect"))
        up.add_metric((name, state.model, worker.engine.value, worker.role.value), given)
        statuses.add_metric((name, state.model, status), 1.0)
        inflight.add_metric((name, state.model, "prefill"), state.prefill)
        inflight.add_metric((name, state.model, "decode"), state.decode)
        failures.add_metric((name, state.model), state.failures)
        restarts.add_metric((name, state.model), state.incarnation - 1)
    return up, statuses, inflight, failures, restarts


def _ready_metric(ready: Mapping[str, bool]) -> Metric:
    metric = GaugeMetricFamily(f"{PREFIX}model_ready", "1 for a model that can be served now.", labels=("model",))
    for model, is_ready in ready.items():
        metric.add_metric((model,), float(is_ready))
    return metric
