"""`choose` itself: the order of steps, what a Choice remembers, and which error comes out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from protocols.errors import GatewayError, NoAvailableWorkers
from protocols.preprocessed import RoutingHints
from protocols.worker import Leg
from routers.base import Candidate, Profile, Query, choose

DECODE = Query(Leg.DECODE)


@dataclass
class Without:
    """Removes the named workers."""

    name: str
    ids: frozenset[int]
    saw: list[list[int]] = field(default_factory=list)

    def __call__(self, candidates: Sequence[Candidate], query: Query) -> Sequence[Candidate]:
        self.saw.append([c.id for c in candidates])
        left = [c for c in candidates if c.id not in self.ids]
        return candidates if len(left) == len(candidates) else left

    def refusal(self, candidates: Sequence[Candidate], query: Query) -> GatewayError:
        return NoAvailableWorkers(f"{self.name} removed {[c.id for c in candidates]}")


@dataclass
class Fixed:
    """Scores by worker id."""

    name: str
    by_id: dict[int, float]

    def __call__(self, candidates: Sequence[Candidate], query: Query) -> Sequence[float]:
        return [self.by_id[c.id] for c in candidates]


class Best:
    """The highest score, or the first."""

    name = "best"

    def __init__(self) -> None:
        self.scores: list[Sequence[float] | None] = []

    def __call__(self, candidates: Sequence[Candidate], scores: Sequence[float] | None, query: Query) -> Candidate:
        self.scores.append(scores)
        if scores is None:
            return candidates[0]
        return candidates[max(range(len(candidates)), key=scores.__getitem__)]


def test_filters_run_in_turn_each_on_what_the_one_before_left(candidate):
    second = Without("second", frozenset({2}))
    profile = Profile("p", (Without("first", frozenset({1})), second), Best())

    choice = choose(profile, [candidate(1), candidate(2), candidate(3)], DECODE)

    assert second.saw == [[2, 3]]
    assert choice.worker.id == 3


def test_a_choice_names_every_filters_casualties(candidate):
    filters = (Without("a", frozenset({1, 4})), Without("idle", frozenset()), Without("b", frozenset({2})))

    choice = choose(Profile("p", filters, Best()), [candidate(i) for i in (1, 2, 3, 4)], DECODE)

    assert choice.casualties == {"a": (1, 4), "b": (2,)}


def test_the_first_filter_that_leaves_nobody_makes_the_error(candidate):
    filters = (Without("a", frozenset({1})), Without("b", frozenset({2})), Without("c", frozenset({2})))

    with pytest.raises(NoAvailableWorkers, match=r"b removed \[2\]"):
        choose(Profile("p", filters, Best()), [candidate(1), candidate(2)], DECODE)


def test_no_candidates_at_all_is_said_without_asking_a_filter():
    with pytest.raises(NoAvailableWorkers, match="no worker is registered for the prefill leg"):
        choose(Profile("p", (), Best()), (), Query(Leg.PREFILL))


def test_scores_are_weighted_summed_and_kept_by_name(candidate):
    near, light = Fixed("near", {1: 1.0, 2: 0.5}), Fixed("light", {1: 0.0, 2: 1.0})
    picker = Best()

    choice = choose(Profile("p", (), picker, scorers=((near, 1.0), (light, 2.0))), [candidate(1), candidate(2)], DECODE)

    assert picker.scores == [[1.0, 2.5]]
    assert choice.worker.id == 2
    assert choice.scores == {"near": {1: 1.0, 2: 0.5}, "light": {1: 0.0, 2: 1.0}}


@pytest.mark.parametrize(("raw", "clamped"), [(1e9, 1.0), (-3.0, 0.0), (math.nan, 0.0), (math.inf, 1.0), (0.25, 0.25)])
def test_no_scorer_can_shout_down_the_others(candidate, raw, clamped):
    choice = choose(Profile("p", (), Best(), scorers=((Fixed("loud", {1: raw}), 1.0),)), [candidate(1)], DECODE)

    assert choice.scores == {"loud": {1: clamped}}


def test_a_profile_without_scorers_gives_the_picker_none(candidate):
    picker = Best()

    choose(Profile("p", (), picker), [candidate(1)], DECODE)

    assert picker.scores == [None]


@pytest.mark.parametrize(
    ("leg", "hints", "pin", "rank"),
    [
        (Leg.DECODE, None, None, None),
        (Leg.DECODE, RoutingHints(backend_instance_id=5, dp_rank=1), 5, 1),
        (Leg.DECODE, RoutingHints(backend_instance_id=5, decode_worker_id=6), 6, None),
        (Leg.DECODE, RoutingHints(prefill_worker_id=7, prefill_dp_rank=3), None, None),
        (Leg.PREFILL, RoutingHints(prefill_worker_id=7, prefill_dp_rank=3), 7, 3),
        (Leg.PREFILL, RoutingHints(backend_instance_id=5, decode_worker_id=6, dp_rank=1), None, None),
    ],
)
def test_each_leg_reads_only_its_own_pin_and_rank(leg, hints, pin, rank):
    query = Query(leg, hints)

    assert (query.pin, query.dp_rank) == (pin, rank)


def test_the_choice_carries_the_rank_that_was_asked_for(candidate):
    query = Query(Leg.DECODE, RoutingHints(dp_rank=1))

    assert choose(Profile("p", (), Best()), [candidate(1, dp_size=2)], query).dp_rank == 1
