"""Router modes as rows: which exist, what each does to traffic, which are refused at start."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from protocols.errors import InvalidRequest
from protocols.preprocessed import RoutingHints
from protocols.worker import Leg
from routers.base import Query, choose
from routers.load import Loads
from routers.modes import RouterMode, available_modes, build_profile, validate_router_mode_for_lora

DECODE = Query(Leg.DECODE)


def profile(mode, model="m", leg=Leg.DECODE, seed=3):
    return build_profile(mode, model, leg, random.Random(seed))


def test_all_of_the_seeds_modes_are_known_by_name():
    assert {mode.value for mode in RouterMode} >= {
        "direct",
        "kv",
        "random",
        "round-robin",
        "power-of-two",
        "least-loaded",
        "device-aware-weighted",
    }


@pytest.mark.parametrize("name", ["power-of-two", "power_of_two", "Power-Of-Two-Choices", " power_of_two_choices "])
def test_a_mode_is_read_from_its_usual_spellings(name):
    assert RouterMode(name) is RouterMode.POWER_OF_TWO


@pytest.mark.parametrize("name", ["roundrobin", "", 3, None])
def test_an_unknown_mode_is_no_mode(name):
    with pytest.raises(ValueError, match="is not a valid RouterMode"):
        RouterMode(name)


@pytest.mark.parametrize("mode", sorted(set(RouterMode) - set(available_modes()), key=str))
def test_a_mode_without_a_profile_is_refused_with_the_ones_there_are(mode):
    with pytest.raises(ValueError, match=f"router mode {mode.value} is not available; available are: round-robin, "):
        profile(mode)


@pytest.mark.parametrize("mode", available_modes())
def test_every_available_mode_routes_a_pinned_request_to_its_worker(candidate, mode):
    pool = [candidate(1), candidate(2), candidate(3)]
    query = Query(Leg.DECODE, RoutingHints(backend_instance_id=2))

    assert {choose(profile(mode), pool, query).worker.id for _ in range(10)} == {2}


def test_direct_needs_a_pin(candidate):
    with pytest.raises(InvalidRequest, match="x-tandem-worker"):
        choose(profile(RouterMode.DIRECT), [candidate(1)], DECODE)


@pytest.mark.parametrize("mode", sorted(set(available_modes()) - {RouterMode.DIRECT}, key=str))
def test_sequential_requests_spread_over_idle_workers(candidate, mode):
    pool = [candidate(i) for i in (1, 2, 3, 4)]
    routed = profile(mode, seed=11)

    counts = Counter(choose(routed, pool, DECODE).worker.id for _ in range(1000))

    assert all(200 <= counts[i] <= 300 for i in (1, 2, 3, 4))


@pytest.mark.parametrize("mode", sorted(set(available_modes()) - {RouterMode.DIRECT}, key=str))
def test_requests_held_open_leave_no_worker_idle(candidate, mode):
    loads = Loads()
    pool = [candidate(i) for i in (1, 2)]
    routed = profile(mode)

    for _ in range(20):
        choice = choose(routed, pool, DECODE)
        loads.reserve(choice.worker.id, Leg.DECODE)

    assert min(loads.of(1).total, loads.of(2).total) >= 5


def test_least_loaded_takes_the_worker_with_fewest_in_flight(candidate):
    pool = [candidate(1, in_flight=2), candidate(2, in_flight=1), candidate(3, in_flight=3)]

    choice = choose(profile(RouterMode.LEAST_LOADED), pool, DECODE)

    assert choice.worker.id == 2
    assert choice.scores == {"in-flight": {1: 0.5, 2: 1.0, 3: 0.0}}


def test_models_do_not_share_a_round_robin_counter(candidate):
    a, b = profile(RouterMode.ROUND_ROBIN, "a"), profile(RouterMode.ROUND_ROBIN, "b")
    pool = [candidate(1), candidate(2)]

    alternating = [(choose(a, pool, DECODE).worker.id, choose(b, pool, DECODE).worker.id) for _ in range(4)]

    assert alternating == [(1, 1), (2, 2), (1, 1), (2, 2)]


def test_prefill_and_decode_do_not_share_a_round_robin_counter(candidate):
    prefill, decode = profile(RouterMode.ROUND_ROBIN, leg=Leg.PREFILL), profile(RouterMode.ROUND_ROBIN, leg=Leg.DECODE)
    prefills, decodes = [candidate(1), candidate(2)], [candidate(3), candidate(4), candidate(5)]

    pairs = {
        (choose(prefill, prefills, Query(Leg.PREFILL)).worker.id, choose(decode, decodes, DECODE).worker.id)
        for _ in range(6)
    }

    assert len(pairs) == 6


def test_a_profile_is_named_after_its_model_leg_and_mode():
    assert profile(RouterMode.RANDOM, "org/model", Leg.PREFILL).name == "org/model/prefill/random"


@pytest.mark.parametrize("mode", list(RouterMode))
@pytest.mark.parametrize("affinity", [False, True])
def test_without_lora_every_mode_is_allowed(mode, affinity):
    assert validate_router_mode_for_lora(mode, False, affinity) is None


@pytest.mark.parametrize("mode", [RouterMode.KV, RouterMode.RANDOM, RouterMode.ROUND_ROBIN])
def test_lora_goes_with_the_modes_that_know_adapters(mode):
    assert validate_router_mode_for_lora(mode, True, False) is None


@pytest.mark.parametrize("affinity", [False, True])
@pytest.mark.parametrize(
    "mode",
    [
        RouterMode.DIRECT,
        RouterMode.POWER_OF_TWO,
        RouterMode.LEAST_LOADED,
        RouterMode.DEVICE_AWARE_WEIGHTED,
        RouterMode.LATENCY,
    ],
)
def test_lora_is_refused_in_modes_that_do_not_know_adapters(mode, affinity):
    with pytest.raises(ValueError, match=f"not supported with router mode {mode.value}"):
        validate_router_mode_for_lora(mode, True, affinity)


@pytest.mark.parametrize("mode", [RouterMode.RANDOM, RouterMode.ROUND_ROBIN])
def test_lora_with_session_affinity_is_refused_outside_kv(mode):
    with pytest.raises(ValueError, match="session affinity"):
        validate_router_mode_for_lora(mode, True, True)


def test_lora_with_session_affinity_is_allowed_in_kv():
    assert validate_router_mode_for_lora(RouterMode.KV, True, True) is None
