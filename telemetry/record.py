"""What is written down about one request: its metrics, its times, and one line in the log when it has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from protocols.errors import GatewayError
from protocols.outputs import BackendOutput
from protocols.worker import Leg
from telemetry.metrics import Metrics, ModelMetrics, error_type_of
from telemetry.tracker import RequestTracker

REQUESTS = "tandem.requests"
"""The logger of finished requests."""

log = logging.getLogger(REQUESTS)

CANCELLED = "cancelled"


class Usage(Protocol):
    """A request's token counts so far; cached tokens are None while unknown."""

    def prompt_tokens(self) -> int: ...

    def completion_tokens(self) -> int: ...

    def cached_tokens(self) -> int | None: ...


class Telemetry:
    """Metrics and request records of one gateway. `clock` in seconds, `wall` in unix seconds."""

    def __init__(
        self, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.metrics = metrics
        self._clock = clock
        self._wall = wall

    def model(self, name: str) -> ModelMetrics:
        return self.metrics.model(name)

    def request(self, endpoint: str, request_id: str) -> RequestRecord:
        """A record that begins now. `endpoint` is one of our own names, such as "chat_completions"."""
        tracker = RequestTracker(self._clock, received_unix_s=self._wall())
        return RequestRecord(self.metrics, tracker, endpoint, request_id)


class RequestRecord:
    """One request's record: `began` when its model is known, then how it ended, and `ended` last of all, once.

    A request that ends before `began` is counted under the model "unknown".
    """

    __slots__ = (
        "_awaits_token",
        "_began",
        "_endpoint",
        "_error_type",
        "_failure",
        "_generates",
        "_metrics",
        "_model",
        "_request_type",
        "_usage",
        "request_id",
        "tracker",
    )

    def __init__(self, metrics: Metrics, tracker: RequestTracker, endpoint: str, request_id: str) -> None:
        self.tracker = tracker
        self.request_id = request_id
        self._metrics = metrics
        self._endpoint = endpoint
        self._model = metrics.model("")
        self._request_type = "unknown"
        self._began = self._generates = self._awaits_token = False
        self._error_type = "internal"
        self._failure: GatewayError | None = None
        self._usage: Usage | None = None

    # ---- on the way

    def began(self, model: str, *, stream: bool, generates: bool = True) -> None:
        """The request's model is known. Counts it as in flight until `ended`. `generates`: tokens are to come."""
        self._model = self._metrics.model(model)
        self._request_type = "stream" if stream else "unary"
        self._began = True
        self._generates = self._awaits_token = generates
        self.tracker.measure_gaps(self._model.itl)
        self._model.started(self._endpoint, self._request_type)
        self._model.inflight.add(1)
        if generates:
            self._model.waiting.add(1)

    def prepared(self, usage: Usage) -> None:
        """The prompt's length is known. `usage` is read again when the request ends."""
        self._usage = usage
        self.tracker.record_prompt(usage.prompt_tokens())

    def observe(self, outputs: Sequence[BackendOutput], choice: int = 0) -> None:
        """One read brought these outputs for one choice."""
        count = len(outputs[0].token_ids) if len(outputs) == 1 else sum(len(output.token_ids) for output in outputs)
        self.tracker.record_tokens(count, choice)
        if count and self._awaits_token:
            self._stop_waiting()

    def answer_began(self) -> None:
        """The first of an answer has come from a server that tells texts and no tokens."""
        self.tracker.record_answer_began()
        if self._awaits_token:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        self._awaits_token = False
        self._model.waiting.add(-1)

    def counted(self, *, differs: bool) -> None:
        """The answer is complete. `differs`: its engine counted otherwise than we did, which nothing explains."""
        if differs and not self.tracker.migrations:
            self._model.usage_differences.add()

    # ---- how it ended

    def succeeded(self) -> None:
        self._error_type = ""

    def failed(self, error: GatewayError) -> None:
        self._failure = error
        self._error_type = error_type_of(error)

    def cancelled(self) -> None:
        """The client left."""
        self._error_type = CANCELLED

    def ended(self) -> None:
        """Books the request and writes its line. Calls after the first do nothing."""
        if not self.tracker.record_finish():
            return
        self._take_usage()
        model = self._model
        model.finished(self._endpoint, self._request_type, self._error_type)
        if self._error_type == CANCELLED:
            model.disconnected(self._endpoint)
        if self._began:
            model.inflight.add(-1)
            if self._awaits_token:
                model.waiting.add(-1)
            self._book(model)
        level = logging.WARNING if self._error_type not in ("", CANCELLED) else logging.INFO
        if log.isEnabledFor(level):
            extra = {"request_id": self.request_id, "fields": self.summary()}
            log.log(level, "request %s", self._error_type or "completed", extra=extra)

    def _take_usage(self) -> None:
        if self._usage is not None:
            self.tracker.record_prompt(self._usage.prompt_tokens())
            self.tracker.record_cached(self._usage.cached_tokens())
            # Engines that send text without ids count their own tokens.
            self.tracker.output_tokens = max(self.tracker.output_tokens, self._usage.completion_tokens())

    def _book(self, model: ModelMetrics) -> None:
        tracker = self.tracker
        model.duration.observe(tracker.duration_s())
        for histogram, value in (
            (model.ttft, tracker.ttft_s()),
            (model.handoff, tracker.handoff_s()),
            (model.cached_length, tracker.cached_tokens),
        ):
            if value is not None:
                histogram.observe(value)
        if tracker.input_tokens is not None:
            model.input_length.observe(tracker.input_tokens)
            model.input_tokens.add(tracker.input_tokens)
        if tracker.first_token_at is not None or (self._generates and not self._error_type):
            model.output_length.observe(tracker.output_tokens)
            model.output_tokens.add(tracker.output_tokens)
        for kind in set(tracker.migrations):
            model.migrated(kind, ok=not self._error_type)

    def summary(self) -> dict[str, Any]:
        """The request in one flat mapping, for its log line: what is unknown is left out. Worker ids are strings."""
        tracker = self.tracker
        prefill, decode = tracker.worker_of(Leg.PREFILL), tracker.worker_of(Leg.DECODE)
        fields: dict[str, Any] = {
            "endpoint": self._endpoint,
            "model": self._model.name,
            "type": self._request_type,
            "error_type": self._error_type or None,
            "error": self._failure.message if self._failure is not None else None,
            "input_tokens": tracker.input_tokens,
            "cached_tokens": tracker.cached_tokens,
            "output_tokens": tracker.output_tokens,
            "prefill_worker": str(prefill.worker_id) if prefill is not None else None,
            "decode_worker": str(decode.worker_id) if decode is not None else None,
            "migrations": len(tracker.migrations) or None,
            **tracker.timing(),
        }
        return {name: value for name, value in fields.items() if value is not None}
