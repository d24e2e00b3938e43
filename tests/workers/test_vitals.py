"""What findings add up to, and when the next probe is."""

from __future__ import annotations

import random

import pytest

from routers.base import Status
from workers.vitals import Finding, Rhythm, Sign, Vitals

WELL = Finding(Sign.WELL)
SILENT = Finding(Sign.SILENT, "no reply within 5 s")
UNWELL = Finding(Sign.UNWELL, "/health answered 503")
REFUSED = Finding(Sign.REFUSED, "connection refused")
UNKNOWN = Finding(Sign.UNKNOWN, "no model")


@pytest.fixture
def vitals() -> Vitals:
    return Vitals(Rhythm(interval_s=5.0, first_retry_s=0.5, jitter=0.0), random.Random(1))


def up(vitals: Vitals) -> Vitals:
    vitals.identified()
    vitals.take(WELL)
    return vitals


def test_a_worker_is_asked_who_it_is_before_anything_else(vitals):
    assert vitals.must_identify
    vitals.identified()
    assert not vitals.must_identify


def test_a_good_answer_makes_it_ready_and_the_next_probe_is_due_after_the_interval(vitals):
    vitals.identified()

    verdict = vitals.take(WELL)

    assert (verdict.status, verdict.next_s) == (Status.READY, 5.0)


def test_two_missed_probes_leave_a_worker_up_the_third_takes_it_down(vitals):
    up(vitals)

    assert [vitals.take(SILENT).status for _ in range(3)] == [None, None, Status.DOWN]


def test_an_answer_between_forgives_missed_probes(vitals):
    up(vitals)

    found = [vitals.take(finding).status for finding in (SILENT, SILENT, WELL, SILENT, SILENT)]

    assert found == [None, None, Status.READY, None, None]


def test_a_worker_that_never_answered_has_no_misses_to_spend(vitals):
    assert vitals.take(SILENT).status is Status.DOWN


@pytest.mark.parametrize("finding", [REFUSED, UNWELL])
def test_the_workers_own_word_takes_it_down_at_once_with_the_reason(vitals, finding):
    up(vitals)

    verdict = vitals.take(finding)

    assert (verdict.status, verdict.reason) == (Status.DOWN, finding.reason)


def test_a_worker_that_does_not_say_who_it_is_is_joining(vitals):
    assert vitals.take(UNKNOWN).status is Status.JOINING


def test_a_worker_that_is_down_is_probed_again_soon_then_less_and_less_often(vitals):
    waits = [vitals.take(REFUSED).next_s for _ in range(6)]

    assert waits == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_being_up_again_resets_the_back_off(vitals):
    for _ in range(4):
        vitals.take(REFUSED)
    up(vitals)

    assert vitals.take(REFUSED).next_s == 0.5


def test_a_process_that_refused_us_is_another_when_it_answers(vitals):
    up(vitals)
    assert not vitals.gone

    vitals.take(REFUSED)

    assert vitals.gone
    assert vitals.must_identify


def test_a_refusal_before_the_first_acquaintance_is_no_restart(vitals):
    vitals.take(REFUSED)

    assert not vitals.gone


def test_an_unwell_process_is_still_the_same(vitals):
    up(vitals)

    vitals.take(UNWELL)

    assert not vitals.gone


@pytest.mark.parametrize("finding", [REFUSED, UNWELL, UNKNOWN])
def test_who_is_lost_is_asked_again_who_it_is(vitals, finding):
    up(vitals)

    vitals.take(finding)

    assert vitals.must_identify


def test_a_doubted_worker_is_asked_again_who_it_is(vitals):
    up(vitals)

    vitals.doubted()

    assert vitals.must_identify


def test_identity_is_asked_again_from_time_to_time(vitals):
    up(vitals)

    asked = [vitals.must_identify for _ in range(12) if vitals.take(WELL)]

    assert asked.index(True) == 10


def test_a_worker_that_cannot_bear_frequent_probes_gets_fewer(vitals):
    vitals.identified()

    assert vitals.take(WELL, at_most_every_s=30.0).next_s == 30.0
    assert vitals.take(SILENT, at_most_every_s=30.0).next_s == 30.0
    assert vitals.take(REFUSED, at_most_every_s=30.0).next_s == 0.5


def test_intervals_vary_so_that_probes_of_many_workers_spread():
    vitals = Vitals(Rhythm(interval_s=5.0, jitter=0.2), random.Random(1))

    waits = {vitals.take(WELL).next_s for _ in range(50)}

    assert len(waits) == 50
    assert all(4.0 <= wait <= 6.0 for wait in waits)
