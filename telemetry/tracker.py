"""When what happened to one request, and who served it. Pure: the clock is given, nothing is sent anywhere.

Times are in the clock's seconds; None means that it has not happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from protocols.preprocessed import RequestPhase
from protocols.quick_init import quick_init
from protocols.worker import Leg


class Gaps(Protocol):
    """Takes times between tokens, in seconds, each standing for `count` tokens."""

    def observe(self, value: float, count: int = 1, /) -> None: ...


@quick_init
@dataclass(frozen=True, slots=True)
class Served:
    """A worker that a leg was given to."""

    leg: Leg
    worker_id: int
    dp_rank: int | None = None


class RequestTracker:
    """One request, all its choices and attempts together.

    Every `record_` method may be called at any time and again: what happens once (first token, prefill complete, end)
    keeps its first time. `received_unix_s`: wall-clock time of the request's arrival.
    """

    __slots__ = (
        "_clock",
        "_gaps",
        "_last",
        "_prefilling",
        "cached_tokens",
        "finished_at",
        "first_token_at",
        "input_tokens",
        "last_token_at",
        "migrations",
        "output_tokens",
        "prefill_completed_at",
        "prefill_started_at",
        "received_at",
        "received_unix_s",
        "served",
    )

    def __init__(self, clock: Callable[[], float], *, received_unix_s: float | None = None) -> None:
        self._clock = clock
        self._gaps: Gaps | None = None
        self._last: dict[int, float] = {}
        self._prefilling: bool | None = None
        self.received_at = clock()
        self.received_unix_s = received_unix_s
        self.prefill_started_at: float | None = None
        self.prefill_completed_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.finished_at: float | None = None
        self.input_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens = 0
        self.served: list[Served] = []
        """Every worker of every attempt, in the order of choosing."""
        self.migrations: list[str] = []
        """Per further attempt its kind: "new_request" or "ongoing_request"."""

    # ---- who serves

    @property
    def phase(self) -> RequestPhase:
        """Which leg the present attempt is in."""
        if self._prefilling is None:
            return RequestPhase.AGGREGATED
        return RequestPhase.PREFILL if self._prefilling else RequestPhase.DECODE

    def record_worker(self, leg: Leg, worker_id: int, dp_rank: int | None = None) -> None:
        """A leg was given to a worker. A prefill worker begins the prefill phase."""
        self.served.append(Served(leg, worker_id, dp_rank))
        if leg is Leg.PREFILL:
            self._prefilling = True
            if self.prefill_started_at is None:
                self.prefill_started_at = self._clock()

    def record_workers(
        self, prefill_id: int, prefill_rank: int | None, decode_id: int, decode_rank: int | None
    ) -> None:
        """Both legs of an attempt were given to workers."""
        self.record_worker(Leg.PREFILL, prefill_id, prefill_rank)
        self.record_worker(Leg.DECODE, decode_id, decode_rank)

    def worker_of(self, leg: Leg) -> Served | None:
        """The last worker that the leg was given to."""
        return next((served for served in reversed(self.served) if served.leg is leg), None)

    # ---- what happens

    def measure_gaps(self, gaps: Gaps) -> None:
        """From now on the times between tokens go there: known once the request's model is."""
        self._gaps = gaps

    def record_prompt(self, input_tokens: int) -> None:
        self.input_tokens = input_tokens

    def record_cached(self, cached_tokens: int | None) -> None:
        """Prompt tokens found cached; None when unknown, which is not 0."""
        self.cached_tokens = cached_tokens

    def record_prefill_complete(self) -> bool:
        """True the first time in the request's life."""
        self._prefilling = False
        if self.prefill_completed_at is not None:
            return False
        self.prefill_completed_at = self._clock()
        return True

    def record_tokens(self, count: int, choice: int = 0) -> None:
        """One read brought so many tokens for one choice. Reads without tokens (a held character) may be told of."""
        if not count:
            return
        now = self._clock()
        if self.first_token_at is None:
            self.first_token_at = now
        last = self._last.get(choice)
        if last is not None and self._gaps is not None:
            self._gaps.observe((now - last) / count, count)
        self._last[choice] = self.last_token_at = now
        self.output_tokens += count

    def record_answer_began(self) -> None:
        """Something of an answer came, whose tokens nobody tells one by one."""
        if self.first_token_at is None:
            self.first_token_at = self._clock()

    def record_migration(self, kind: str) -> None:
        self.migrations.append(kind)

    def record_finish(self) -> bool:
        """The request has ended, well or not. True the first time."""
        if self.finished_at is not None:
            return False
        self.finished_at = self._clock()
        return True

    # ---- what follows, in seconds

    def ttft_s(self) -> float | None:
        return _between(self.received_at, self.first_token_at)

    def duration_s(self) -> float:
        """Until the end; until now when it still runs."""
        end = self.finished_at if self.finished_at is not None else self._clock()
        return end - self.received_at

    def prefill_wait_s(self) -> float | None:
        return _between(self.received_at, self.prefill_started_at)

    def prefill_s(self) -> float | None:
        return _between(self.prefill_started_at, self.prefill_completed_at)

    def handoff_s(self) -> float | None:
        """From prefill's completion to the first token; None where both legs ran at once."""
        handoff = _between(self.prefill_completed_at, self.first_token_at)
        return handoff if handoff is not None and handoff >= 0 else None

    def average_itl_s(self) -> float | None:
        """The mean time between tokens of one choice; None where all arrived at once."""
        span = _between(self.first_token_at, self.last_token_at)
        gaps = self.output_tokens / max(len(self._last), 1) - 1
        return span / gaps if span and gaps > 0 else None

    def timing(self) -> dict[str, float]:
        """What is known, in milliseconds, under Dynamo's (1.6) names."""
        seconds = {
            "request_received_ms": self.received_unix_s,
            "prefill_wait_time_ms": self.prefill_wait_s(),
            "prefill_time_ms": self.prefill_s(),
            "ttft_ms": self.ttft_s(),
            "avg_itl_ms": self.average_itl_s(),
            "total_time_ms": self.duration_s(),
        }
        return {name: round(value * 1000, 3) for name, value in seconds.items() if value is not None}


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
