"""When what happened, who served, and what follows from it."""

from __future__ import annotations

import pytest

from protocols.preprocessed import RequestPhase
from protocols.worker import Leg
from telemetry.tracker import RequestTracker, Served


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Gaps:
    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def observe(self, value: float, count: int = 1) -> None:
        self.seen.append((round(value, 6), count))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def tracker(clock) -> RequestTracker:
    return RequestTracker(clock)


def test_prefill_completes_once(tracker, clock):
    assert tracker.record_prefill_complete() is True
    first = tracker.prefill_completed_at

    clock.now += 5
    assert tracker.record_prefill_complete() is False
    assert tracker.prefill_completed_at == first


def test_a_request_without_a_prefill_leg_is_aggregated(tracker):
    tracker.record_worker(Leg.DECODE, 7)

    assert tracker.phase is RequestPhase.AGGREGATED


def test_the_phase_follows_the_legs(tracker):
    tracker.record_workers(1, None, 2, None)
    assert tracker.phase is RequestPhase.PREFILL

    tracker.record_prefill_complete()
    assert tracker.phase is RequestPhase.DECODE


def test_a_further_attempt_begins_with_prefill_again(tracker):
    tracker.record_workers(1, None, 2, None)
    tracker.record_prefill_complete()

    tracker.record_workers(3, None, 4, None)

    assert tracker.phase is RequestPhase.PREFILL


def test_worker_ids_land_in_the_leg_they_belong_to_whatever_the_phase(tracker):
    tracker.record_worker(Leg.DECODE, 2, 1)
    tracker.record_worker(Leg.PREFILL, 1)
    tracker.record_prefill_complete()
    tracker.record_worker(Leg.DECODE, 3)

    assert tracker.worker_of(Leg.PREFILL) == Served(Leg.PREFILL, 1)
    assert tracker.worker_of(Leg.DECODE) == Served(Leg.DECODE, 3)
    assert [served.worker_id for served in tracker.served] == [2, 1, 3]


def test_a_leg_that_nobody_served_has_no_worker(tracker):
    assert tracker.worker_of(Leg.PREFILL) is None


def test_the_first_token_is_the_first_chunks_not_the_last(tracker, clock):
    clock.now += 0.25
    tracker.record_tokens(1)
    clock.now += 10
    tracker.record_tokens(1)

    assert tracker.ttft_s() == 0.25


def test_a_read_without_tokens_is_no_first_token(tracker):
    tracker.record_tokens(0)

    assert tracker.ttft_s() is None


def test_tokens_that_arrive_together_share_the_time_since_the_last(tracker, clock):
    gaps = Gaps()
    tracker.measure_gaps(gaps)

    tracker.record_tokens(3)
    clock.now += 0.01
    tracker.record_tokens(1)
    clock.now += 0.08
    tracker.record_tokens(4)

    assert gaps.seen == [(0.01, 1), (0.02, 4)]
    assert tracker.output_tokens == 8


def test_times_between_tokens_are_those_of_one_choice(tracker, clock):
    gaps = Gaps()
    tracker.measure_gaps(gaps)

    tracker.record_tokens(1, choice=0)
    clock.now += 0.01
    tracker.record_tokens(1, choice=1)
    clock.now += 0.01
    tracker.record_tokens(1, choice=0)

    assert gaps.seen == [(0.02, 1)]


def test_a_fraction_of_a_millisecond_is_not_rounded_away(tracker, clock):
    gaps = Gaps()
    tracker.measure_gaps(gaps)

    tracker.record_tokens(1)
    clock.now += 0.0017
    tracker.record_tokens(1)

    assert gaps.seen == [(0.0017, 1)]


def test_the_hand_off_lasts_from_prefills_end_to_the_first_token(tracker, clock):
    tracker.record_workers(1, None, 2, None)
    tracker.record_prefill_complete()
    clock.now += 0.125
    tracker.record_tokens(1)
    clock.now += 3
    tracker.record_tokens(1)

    assert tracker.handoff_s() == 0.125


def test_legs_that_ran_at_once_have_no_hand_off_time(tracker, clock):
    tracker.record_workers(1, None, 2, None)
    tracker.record_tokens(1)
    clock.now += 1
    tracker.record_prefill_complete()

    assert tracker.handoff_s() is None


def test_a_request_ends_once(tracker, clock):
    clock.now += 2
    assert tracker.record_finish() is True

    clock.now += 2
    assert tracker.record_finish() is False
    assert tracker.duration_s() == 2


def test_a_running_request_has_lasted_until_now(tracker, clock):
    clock.now += 3

    assert tracker.duration_s() == 3


def test_timing_tells_what_is_known_in_milliseconds(clock):
    tracker = RequestTracker(clock, received_unix_s=1_700_000_000.5)
    clock.now += 0.01
    tracker.record_workers(1, None, 2, None)
    clock.now += 0.2
    tracker.record_prefill_complete()
    clock.now += 0.04
    tracker.record_tokens(1)
    clock.now += 0.06
    tracker.record_tokens(3)
    tracker.record_finish()

    assert tracker.timing() == {
        "request_received_ms": 1_700_000_000_500.0,
        "prefill_wait_time_ms": 10.0,
        "prefill_time_ms": 200.0,
        "ttft_ms": 250.0,
        "avg_itl_ms": 20.0,
        "total_time_ms": 310.0,
    }


def test_timing_leaves_out_what_is_not_known(tracker):
    assert set(tracker.timing()) == {"total_time_ms"}
