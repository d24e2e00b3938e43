"""A choice as JSON and as headers."""

from __future__ import annotations

import random

import orjson
import pytest

from protocols.preprocessed import RoutingHints
from protocols.worker import Leg
from routers.base import Query, Status, choose
from routers.explain import explanation, explanation_headers, explanation_wanted
from routers.modes import RouterMode, build_profile


@pytest.fixture
def choices(candidate):
    big = 2**62 + 1
    decode = build_profile(RouterMode.LEAST_LOADED, "m", Leg.DECODE, random.Random(1))
    prefill = build_profile(RouterMode.ROUND_ROBIN, "m", Leg.PREFILL, random.Random(1))
    hints = RoutingHints(dp_rank=1)
    decodes = [
        candidate(big, dp_size=2),
        candidate(8, in_flight=4, dp_size=2),
        candidate(9, status=Status.DOWN, dp_size=2),
    ]
    return [
        choose(prefill, [candidate(7)], Query(Leg.PREFILL, hints)),
        choose(decode, decodes, Query(Leg.DECODE, hints)),
    ]


def test_headers_name_the_worker_of_each_leg_and_a_rank_that_was_asked_for(choices):
    assert explanation_headers(choices) == [
        (b"x-tandem-prefill-worker", b"7"),
        (b"x-tandem-decode-worker", b"4611686018427387905"),
        (b"x-tandem-decode-dp-rank", b"1"),
    ]


def test_after_a_migration_headers_name_the_last_worker(choices, candidate):
    again = choose(choices[1].profile, [candidate(11, dp_size=2)], choices[1].query)

    assert dict(explanation_headers([*choices, again]))[b"x-tandem-decode-worker"] == b"11"


def test_the_whole_story_survives_json_with_exact_ids(choices):
    told = orjson.loads(orjson.dumps(explanation(choices[1])))

    assert told == {
        "leg": "decode",
        "profile": "m/decode/least-loaded",
        "picker": "max-score",
        "worker": "4611686018427387905",
        "dp_rank": 1,
        "removed": {"ready": ["9"]},
        "in_flight": {"4611686018427387905": 0, "8": 4},
        "scores": {"in-flight": {"4611686018427387905": 1.0, "8": 0.0}},
    }


@pytest.mark.parametrize(
    ("value", "wanted"), [(b"1", True), (b"True", True), (b"0", False), (b"", False), (b"yes", False)]
)
def test_an_explanation_is_given_when_asked_for(value, wanted):
    assert explanation_wanted([(b"accept", b"1"), (b"x-tandem-explain", value)]) is wanted
