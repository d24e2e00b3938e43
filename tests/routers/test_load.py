"""In-flight counts: one decrement per increment, on the counter that was raised, whatever the way out."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocols.worker import Leg
from routers.load import Loads


@pytest.mark.parametrize(("leg", "counts"), [(Leg.PREFILL, (1, 0)), (Leg.DECODE, (0, 1))])
def test_a_reservation_counts_on_its_leg_and_on_the_worker(leg, counts):
    loads = Loads()

    loads.reserve(1, leg)

    assert (loads.of(1).prefill, loads.of(1).decode) == counts
    assert loads.of(1).total == 1


def test_several_hooks_releasing_one_request_count_once():
    loads = Loads()
    first, _second = loads.reserve(1, Leg.DECODE), loads.reserve(1, Leg.DECODE)

    first.release()
    first.release()
    first.release()

    assert loads.of(1).total == 1
    assert not first.held


def test_a_release_goes_to_the_worker_that_was_reserved_not_to_the_one_retried_on():
    loads = Loads()
    at_a = loads.reserve(1, Leg.DECODE)
    at_b = loads.reserve(2, Leg.DECODE)

    at_a.release()

    assert (loads.of(1).total, loads.of(2).total) == (0, 1)
    assert at_b.held


def test_a_worker_that_came_back_is_not_lowered_by_its_former_life():
    loads = Loads()
    before = loads.reserve(1, Leg.DECODE)
    loads.forget(1)
    after = loads.reserve(1, Leg.DECODE)

    before.release()

    assert loads.of(1).total == 1
    assert after.held


def test_counters_are_live():
    loads = Loads()
    load = loads.of(1)

    loads.reserve(1, Leg.DECODE)

    assert load.total == 1


def test_forgetting_an_unknown_worker_is_nothing():
    assert Loads().forget(9) is None


class Exits(RuleBasedStateMachine):
    """Any order of reserving, releasing (also twice), and workers leaving."""

    def __init__(self) -> None:
        super().__init__()
        self.loads = Loads()
        self.held: list = []
        self.released: list = []

    @rule(worker=st.integers(1, 3), leg=st.sampled_from(Leg))
    def reserve(self, worker, leg):
        self.held.append((worker, leg, self.loads.of(worker), self.loads.reserve(worker, leg)))

    @rule(data=st.data())
    def release(self, data):
        if self.held:
            place = data.draw(st.integers(0, len(self.held) - 1))
            self.released.append(self.held.pop(place))
            self.released[-1][3].release()

    @rule(data=st.data())
    def release_again(self, data):
        if self.released:
            data.draw(st.sampled_from(self.released))[3].release()

    @rule(worker=st.integers(1, 3))
    def worker_leaves(self, worker):
        self.loads.forget(worker)

    @invariant()
    def counters_equal_what_is_held(self):
        for worker in (1, 2, 3):
            load = self.loads.of(worker)
            mine = [leg for _, leg, counter, _ in self.held if counter is load]
            assert load.prefill == mine.count(Leg.PREFILL)
            assert load.decode == mine.count(Leg.DECODE)
            assert load.total == len(mine)


TestExits = Exits.TestCase
TestExits.settings = settings(max_examples=40, stateful_step_count=30)
