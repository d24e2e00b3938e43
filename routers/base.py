"""Choosing a worker: filters narrow the candidates, scorers give each a number, a picker takes one.

Synchronous on purpose: between `choose` and the reservation there is no `await`, so two requests cannot both see the
same idle worker. What happened is kept as it was and made readable only when somebody asks (`Choice.casualties`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from protocols.errors import GatewayError, NoAvailableWorkers
from protocols.preprocessed import RoutingHints
from protocols.quick_init import quick_init
from protocols.worker import Leg, Worker
from routers.load import Load


class Status(enum.Enum):
    """May this worker be given work?"""

    JOINING = "joining"
    """Known by its address only: it has not yet told who it is."""
    READY = "ready"
    SUSPECT = "suspect"
    """Answered badly several times in a row: taken only when nobody better is left."""
    BUSY = "busy"
    """Refused work as overloaded; cooling down."""
    COOLING = "cooling"
    """Its connection broke; out until it answers a probe or some seconds have passed."""
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker as the router sees it.

    Made when something about the worker changes, not per request: `load` is the live counter. `alone`: it may answer a
    request without a peer. `cool_s`: how long its present cool-down lasts in all, in seconds.
    """

    worker: Worker
    load: Load = field(default_factory=Load)
    status: Status = Status.READY
    alone: bool = True
    pair_key: tuple[object, ...] = ()
    cool_s: float | None = None

    @property
    def id(self) -> int:
        return self.worker.id

    @property
    def in_flight(self) -> int:
        """Requests this gateway has on the worker now."""
        return self.load.total


_NOBODY: frozenset[int] = frozenset()


@quick_init
@dataclass(frozen=True, slots=True)
class Query:
    """What one leg of one request asks for.

    `excluded`: workers that have failed this request. `pair_keys`: only workers that can pair with one of these (the
    peer already chosen, or those it can be chosen from). `alone`: True, only workers that answer without a peer;
    False, only workers of pairs; None, either. `incapable`: by worker's id the parameter of the request
    that it cannot honour.
    """

    leg: Leg
    hints: RoutingHints | None = None
    excluded: frozenset[int] = _NOBODY
    pair_keys: frozenset[tuple[object, ...]] | None = None
    alone: bool | None = None
    incapable: Mapping[int, str] | None = None

    @property
    def pin(self) -> int | None:
        """The worker that the request names for this leg."""
        hints = self.hints
        if hints is None:
            return None
        if self.leg is Leg.PREFILL:
            return hints.prefill_worker_id
        return hints.decode_worker_id if hints.decode_worker_id is not None else hints.backend_instance_id

    @property
    def dp_rank(self) -> int | None:
        """The data-parallel rank that the request names for this leg; None leaves it to the engine."""
        hints = self.hints
        if hints is None:
            return None
        return hints.prefill_dp_rank if self.leg is Leg.PREFILL else hints.dp_rank


class Filter(Protocol):
    """Removes candidates. Returns the very sequence it was given when it removes none.

    Looks at nothing that changes while the candidates are the same.
    """

    @property
    def name(self) -> str: ...

    def __call__(self, candidates: Sequence[Candidate], query: Query, /) -> Sequence[Candidate]: ...

    def refusal(self, candidates: Sequence[Candidate], query: Query, /) -> GatewayError:
        """The error of a request for which this filter removed all of `candidates`."""
        ...


class Scorer(Protocol):
    """Gives one number from 0 (worst) to 1 (best) per candidate, in their order. Others are clamped."""

    @property
    def name(self) -> str: ...

    def __call__(self, candidates: Sequence[Candidate], query: Query, /) -> Sequence[float]: ...


class Picker(Protocol):
    """Takes one of at least one candidate. `scores` are the weighted sums, None in a profile without scorers."""

    @property
    def name(self) -> str: ...

    def __call__(
        self, candidates: Sequence[Candidate], scores: Sequence[float] | None, query: Query, /
    ) -> Candidate: ...


@dataclass(frozen=True, slots=True)
class Profile:
    """How one leg of one model is routed. Pickers may count, so no two legs or models share a profile."""

    name: str
    filters: tuple[Filter, ...]
    picker: Picker
    scorers: tuple[tuple[Scorer, float], ...] = ()
    """Each with its weight."""


Step = tuple[str, Sequence[Candidate], Sequence[Candidate]]
"""A filter's name, the candidates it saw, and those it left."""


@quick_init
@dataclass(frozen=True, slots=True)
class Choice:
    """Who was chosen, and how it came to that."""

    profile: Profile
    query: Query
    picked: Candidate
    eligible: Sequence[Candidate]
    """Those the picker chose from."""
    steps: Sequence[Step] = ()
    """The filters that removed somebody, in turn."""
    parts: Sequence[Sequence[float]] = ()
    """Per scorer the clamped scores of `eligible`."""

    @property
    def worker(self) -> Worker:
        return self.picked.worker

    @property
    def dp_rank(self) -> int | None:
        """The data-parallel rank asked for; None leaves it to the engine."""
        return self.query.dp_rank

    @property
    def casualties(self) -> dict[str, tuple[int, ...]]:
        """Per filter that removed somebody, the ids of those it removed."""
        return {name: _removed(before, left) for name, before, left in self.steps}

    @property
    def scores(self) -> dict[str, dict[int, float]]:
        """Per scorer, each eligible worker's clamped score by worker id."""
        return {
            scorer.name: {candidate.id: score for candidate, score in zip(self.eligible, part, strict=True)}
            for (scorer, _), part in zip(self.profile.scorers, self.parts, strict=True)
        }


Eligible = tuple[Sequence[Candidate], Sequence[Step]]
"""Who is left after all filters, and the filters that removed somebody."""


class Usual:
    """Who is eligible for the requests that say nothing of workers, as nearly all do: found once for the candidates.

    For one leg of one model. Candidates are another sequence as soon as anything about one of them has changed.
    """

    __slots__ = ("_candidates", "_found")

    def __init__(self) -> None:
        self._candidates: Sequence[Candidate] = ()
        self._found: dict[bool | None, Eligible] = {}

    def eligible(self, profile: Profile, candidates: Sequence[Candidate], query: Query) -> Eligible:
        if query.hints is not None or query.excluded or query.pair_keys is not None or query.incapable:
            return narrowed(profile, candidates, query)
        if candidates is not self._candidates:
            self._candidates, self._found = candidates, {}
        found = self._found.get(query.alone)
        if found is None:
            found = self._found[query.alone] = narrowed(profile, candidates, query)
        return found


def choose(profile: Profile, candidates: Sequence[Candidate], query: Query, usual: Usual | None = None) -> Choice:
    """The worker for one leg of one request.

    Raises NoAvailableWorkers, Overloaded or InvalidRequest, naming the first filter that left nobody.
    """
    if not candidates:
        raise NoAvailableWorkers(f"no worker is registered for the {query.leg.value} leg")
    if usual is None:
        left, steps = narrowed(profile, candidates, query)
    else:
        left, steps = usual.eligible(profile, candidates, query)
    if not profile.scorers:
        return Choice(profile, query, profile.picker(left, None, query), left, steps)
    parts, totals = _scored(profile, left, query)
    return Choice(profile, query, profile.picker(left, totals, query), left, steps, parts)


def narrowed(profile: Profile, candidates: Sequence[Candidate], query: Query) -> Eligible:
    """Applies the profile's filters. Raises what the first says that leaves nobody."""
    steps: list[Step] = []
    left = candidates
    for narrow in profile.filters:
        kept = narrow(left, query)
        if kept is left:
            continue
        if not kept:
            raise narrow.refusal(left, query)
        steps.append((narrow.name, left, kept))
        left = kept
    return left, steps or ()


def _scored(profile: Profile, left: Sequence[Candidate], query: Query) -> tuple[list[list[float]], list[float]]:
    """Per scorer the clamped scores, and the weighted sums over all scorers."""
    parts: list[list[float]] = []
    totals = [0.0] * len(left)
    for scorer, weight in profile.scorers:
        part = [score if 0.0 <= score <= 1.0 else _clamped(score) for score in scorer(left, query)]
        parts.append(part)
        totals = [total + weight * score for total, score in zip(totals, part, strict=True)]
    return parts, totals


def _clamped(score: float) -> float:
    return 1.0 if score > 1.0 else 0.0  # NaN too


def _removed(before: Sequence[Candidate], left: Sequence[Candidate]) -> tuple[int, ...]:
    stayed = {candidate.id for candidate in left}
    return tuple(candidate.id for candidate in before if candidate.id not in stayed)
