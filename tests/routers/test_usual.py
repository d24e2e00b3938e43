"""Who is eligible for usual requests is found once for the same candidates, and never for others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from protocols.errors import NoAvailableWorkers
from protocols.preprocessed import RoutingHints
from protocols.worker import Engine, Leg, Worker
from routers.base import Candidate, Profile, Query, Usual, choose
from routers.filters import Ready
from routers.load import Loads
from routers.pickers import RoundRobin

LOADS = Loads()


class Counted(Ready):
    """A filter that counts how often it is asked, and keeps the first."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, candidates: Sequence[Candidate], query: Query, /) -> Sequence[Candidate]:
        self.asked += 1
        return list(candidates)[:1] if len(candidates) > 1 else candidates


def candidates(*ids: int) -> tuple[Candidate, ...]:
    return tuple(Candidate(Worker(n, f"http://w{n}", Engine.VLLM), LOADS.of(n)) for n in ids)


def test_the_same_candidates_are_narrowed_once() -> None:
    narrow, usual, same = Counted(), Usual(), candidates(1, 2)
    profile = Profile("p", (narrow,), RoundRobin())

    choices = [choose(profile, same, Query(Leg.DECODE), usual) for _ in range(3)]

    assert narrow.asked == 1
    assert [choice.worker.id for choice in choices] == [1, 1, 1]
    assert [choice.casualties for choice in choices] == [{"ready": (2,)}] * 3


def test_other_candidates_are_narrowed_anew() -> None:
    narrow, usual = Counted(), Usual()
    profile = Profile("p", (narrow,), RoundRobin())

    chosen = [choose(profile, candidates(n, 9), Query(Leg.DECODE), usual).worker.id for n in (1, 2, 3)]

    assert (narrow.asked, chosen) == (3, [1, 2, 3])


@pytest.mark.parametrize(
    "special",
    [
        Query(Leg.DECODE, hints=RoutingHints(priority=1)),
        Query(Leg.DECODE, excluded=frozenset({7})),
        Query(Leg.DECODE, pair_keys=frozenset()),
        Query(Leg.DECODE, incapable={7: "seed"}),
    ],
)
def test_a_request_that_says_something_of_workers_is_judged_alone(special: Query) -> None:
    narrow, usual, same = Counted(), Usual(), candidates(1, 2)
    profile = Profile("p", (narrow,), RoundRobin())

    for query in (Query(Leg.DECODE), special, special):
        choose(profile, same, query, usual)

    assert narrow.asked == 3


def test_requests_for_workers_that_are_alone_and_for_others_are_told_apart() -> None:
    narrow, usual, same = Counted(), Usual(), candidates(1, 2)
    profile = Profile("p", (narrow,), RoundRobin())

    for alone in (True, None, True, None):
        choose(profile, same, Query(Leg.DECODE, alone=alone), usual)

    assert narrow.asked == 2


def test_that_nobody_is_eligible_is_found_each_time() -> None:
    usual, profile = Usual(), Profile("p", (), RoundRobin())

    for _ in range(2):
        with pytest.raises(NoAvailableWorkers):
            choose(profile, (), Query(Leg.DECODE), usual)
