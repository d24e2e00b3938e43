"""How one of the eligible is taken."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.worker import Engine, Leg, Worker
from routers.base import Candidate, Query
from routers.load import Load
from routers.pickers import MaxScore, Pinned, PowerOfTwo, Random, RoundRobin
from routers.scorers import InFlight

DECODE = Query(Leg.DECODE)


def picks(picker, candidates, times, scores=None):
    return [picker(candidates, scores, DECODE).id for _ in range(times)]


def drawing(*numbers: float) -> SimpleNamespace:
    """A random source that gives these numbers."""
    return SimpleNamespace(random=iter(numbers).__next__)


def test_round_robin_takes_all_in_turn(candidate):
    assert picks(RoundRobin(), [candidate(1), candidate(2), candidate(3)], 7) == [1, 2, 3, 1, 2, 3, 1]


def test_round_robin_over_changing_candidates_still_takes_who_waited_longest(candidate):
    one, two, three, four = (candidate(i) for i in (1, 2, 3, 4))
    picker = RoundRobin()

    alternating = [picker(pair, None, DECODE).id for pair in [(one, two), (three, four)] * 4]

    assert Counter(alternating) == {1: 2, 2: 2, 3: 2, 4: 2}


def test_a_worker_that_comes_back_does_not_get_all_the_turns_it_missed(candidate):
    one, two = candidate(1), candidate(2)
    picker = RoundRobin()
    picks(picker, [one, two], 2)
    picks(picker, [one], 10)

    assert picks(picker, [one, two], 4) == [2, 1, 2, 1]


def test_round_robin_forgets_workers_that_never_come_back():
    picker = RoundRobin()
    for worker_id in range(10_000):  # loop: one pick per worker of a long life
        picker([Candidate(Worker(worker_id, "http://w", Engine.VLLM), Load())], None, DECODE)

    assert len(picker._turns) <= 4096


@given(st.lists(st.sets(st.integers(1, 6), min_size=1), min_size=1, max_size=40))
def test_nobody_is_passed_over_by_round_robin_twice_for_the_same_other(offers):
    picker = RoundRobin()
    pool = {i: Candidate(Worker(i, "http://w", Engine.VLLM), Load()) for i in range(1, 7)}
    last: dict[int, int] = {}
    for turn, offer in enumerate(offers, 1):
        picked = picker([pool[i] for i in sorted(offer)], None, DECODE).id
        assert last.get(picked, 0) == min(last.get(i, 0) for i in offer)
        last[picked] = turn


def test_random_reaches_everybody_equally(candidate, rng):
    counts = Counter(picks(Random(rng), [candidate(1), candidate(2), candidate(3)], 3000))

    assert all(900 <= counts[i] <= 1100 for i in (1, 2, 3))


@pytest.mark.parametrize(
    ("draws", "in_flight", "picked"),
    [
        ((0.0, 0.0), (5, 1, 0), 2),  # of 1 and 2 the second is lighter
        ((0.0, 0.99), (0, 1, 5), 1),  # of 1 and 3 the first is lighter
        ((0.99, 0.99), (0, 2, 2), 3),  # of 3 and 2, equal: the first drawn
        ((0.5, 0.5), (9, 9, 0), 3),  # of 2 and 3: never twice the same
    ],
)
def test_power_of_two_takes_the_lighter_of_two_different_ones(candidate, draws, in_flight, picked):
    pool = [candidate(i, in_flight=count) for i, count in enumerate(in_flight, 1)]

    assert PowerOfTwo(drawing(*draws))(pool, None, DECODE).id == picked


def test_power_of_two_over_one_takes_it(candidate):
    assert PowerOfTwo(drawing())([candidate(1, in_flight=9)], None, DECODE).id == 1


def test_power_of_two_never_takes_the_heaviest_of_three(candidate, rng):
    pool = [candidate(1, in_flight=9), candidate(2), candidate(3)]

    assert set(picks(PowerOfTwo(rng), pool, 200)) == {2, 3}


def test_the_best_score_wins(candidate, rng):
    assert picks(MaxScore(rng), [candidate(1), candidate(2)], 5, scores=[0.2, 0.3]) == [2] * 5


def test_equal_scores_are_drawn_among_not_taken_by_order(candidate, rng):
    counts = Counter(picks(MaxScore(rng), [candidate(i) for i in (1, 2, 3, 4)], 4000, scores=[1.0, 1.0, 0.5, 1.0]))

    assert counts[3] == 0
    assert all(1200 <= counts[i] <= 1470 for i in (1, 2, 4))


def test_without_scores_all_are_equal(candidate, rng):
    assert set(picks(MaxScore(rng), [candidate(1), candidate(2)], 50)) == {1, 2}


def test_pinned_takes_the_one_that_is_left(candidate):
    assert Pinned()([candidate(5)], None, DECODE).id == 5


def test_the_in_flight_score_is_linear_between_least_and_most(candidate):
    pool = [candidate(1, in_flight=0), candidate(2, in_flight=1), candidate(3, in_flight=4)]

    assert InFlight()(pool, DECODE) == [1.0, 0.75, 0.0]


@pytest.mark.parametrize("in_flight", [0, 7])
def test_equal_loads_score_equally_best(candidate, in_flight):
    assert InFlight()([candidate(1, in_flight=in_flight), candidate(2, in_flight=in_flight)], DECODE) == [1.0, 1.0]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8))
def test_the_worker_scored_best_has_the_fewest_in_flight(counts):
    pool = []
    for i, count in enumerate(counts):
        load = Load()
        load.total = count
        pool.append(Candidate(Worker(i, "http://w", Engine.VLLM), load))

    picked = MaxScore(random.Random(1))(pool, InFlight()(pool, DECODE), DECODE)

    assert picked.in_flight == min(counts)
