"""Who may serve at all: each filter alone, then the standard chain's errors."""

from __future__ import annotations

import pytest

from protocols.errors import InvalidRequest, NoAvailableWorkers, Overloaded, UnsupportedParameter
from protocols.preprocessed import RoutingConstraints, RoutingHints
from protocols.worker import Engine, Leg, Role
from routers.base import Profile, Query, Status, choose
from routers.filters import (
    AllowedWorkers,
    Capable,
    DpRank,
    NotBusy,
    NotFailed,
    PartOfAPair,
    PinnedWorker,
    Ready,
    RequiredTaints,
    SamePair,
    Unsuspected,
    standard_filters,
)
from routers.pickers import RoundRobin


def ids(candidates):
    return [candidate.id for candidate in candidates]


def decode(**hints):
    return Query(Leg.DECODE, RoutingHints(**hints) if hints else None)


def chain(candidates, query, **options):
    return choose(Profile("p", standard_filters(**options), RoundRobin()), candidates, query)


@pytest.mark.parametrize(
    ("narrow", "query"),
    [
        (AllowedWorkers(), decode()),
        (AllowedWorkers(), decode(allowed_worker_ids=frozenset({1, 2}))),
        (PinnedWorker(), decode()),
        (DpRank(), decode(dp_rank=0)),
        (RequiredTaints(), decode(routing_constraints=RoutingConstraints())),
        (Capable(), decode()),
        (Capable(), Query(Leg.DECODE, incapable={9: "bad_words"})),
        (PartOfAPair(), decode()),
        (SamePair(), decode()),
        (NotFailed(), Query(Leg.DECODE, excluded=frozenset({9}))),
        (Ready(), decode()),
        (NotBusy(), decode()),
        (Unsuspected(), decode()),
    ],
)
def test_a_filter_that_removes_nobody_returns_what_it_was_given(candidate, narrow, query):
    candidates = (candidate(1), candidate(2))

    assert narrow(candidates, query) is candidates


def test_only_allowed_workers_stay(candidate):
    query = decode(allowed_worker_ids=frozenset({2, 9}))

    assert ids(AllowedWorkers()([candidate(1), candidate(2)], query)) == [2]


def test_a_pin_leaves_the_one_worker(candidate):
    assert ids(PinnedWorker()([candidate(1), candidate(2)], decode(backend_instance_id=2))) == [2]


@pytest.mark.parametrize(("leg", "header"), [(Leg.DECODE, "x-tandem-worker"), (Leg.PREFILL, "x-tandem-prefill-worker")])
def test_an_unknown_pin_is_the_clients_fault_and_names_the_header(candidate, leg, header):
    query = Query(leg, RoutingHints(backend_instance_id=404, prefill_worker_id=404))

    with pytest.raises(InvalidRequest, match=f"{header}: worker 404 is unknown") as refused:
        chain([candidate(1)], query)
    assert refused.value.param == header


@pytest.mark.parametrize(("leg", "header"), [(Leg.DECODE, "x-tandem-worker"), (Leg.PREFILL, "x-tandem-prefill-worker")])
def test_a_missing_pin_where_one_is_required_names_the_header(candidate, leg, header):
    with pytest.raises(InvalidRequest, match=f"needs the header {header}"):
        chain([candidate(1)], Query(leg), pin_required=True)


def test_a_pinned_worker_that_is_down_is_not_the_clients_fault(candidate):
    pool = [candidate(1, status=Status.DOWN), candidate(2)]

    with pytest.raises(NoAvailableWorkers, match="ready: 1 down"):
        chain(pool, decode(backend_instance_id=1))


def test_a_rank_leaves_the_workers_that_have_it(candidate):
    pool = [candidate(1, dp_size=1), candidate(2, dp_size=4)]

    assert ids(DpRank()(pool, decode(dp_rank=3))) == [2]


def test_a_rank_nobody_has_is_refused_with_its_range_and_header(candidate):
    pool = [candidate(1, dp_size=1), candidate(2, dp_size=2)]

    with pytest.raises(InvalidRequest, match=r"x-tandem-dp-rank: rank 9 is out of range, must be 0\.\.1"):
        chain(pool, decode(dp_rank=9))


def test_a_rank_is_checked_against_the_pinned_worker(candidate):
    pool = [candidate(1, dp_size=1), candidate(2, dp_size=2)]
    query = Query(Leg.PREFILL, RoutingHints(prefill_worker_id=1, prefill_dp_rank=1))

    with pytest.raises(InvalidRequest, match="x-tandem-prefill-dp-rank: rank 1 is out of range"):
        chain(pool, query)


def test_all_required_taints_must_be_there(candidate):
    pool = [candidate(1, taints=frozenset({"h100"})), candidate(2, taints=frozenset({"h100", "zone-a"}))]
    query = decode(routing_constraints=RoutingConstraints(required_taints=frozenset({"h100", "zone-a"})))

    assert ids(RequiredTaints()(pool, query)) == [2]


def test_a_whole_answer_goes_only_to_workers_that_serve_alone(candidate):
    pool = [candidate(1, alone=False), candidate(2, alone=True)]

    assert ids(PartOfAPair()(pool, Query(Leg.DECODE, alone=True))) == [2]


def test_a_pairs_leg_does_not_go_to_an_aggregated_worker(candidate):
    pool = [candidate(1, role=Role.AGGREGATED), candidate(2, role=Role.DECODE)]

    assert ids(PartOfAPair()(pool, Query(Leg.DECODE, alone=False))) == [2]


def test_a_peer_must_agree_with_the_one_already_chosen(candidate):
    pool = [candidate(1, pair_key=("vllm", "0.31")), candidate(2, pair_key=("vllm", "0.32"))]

    assert ids(SamePair()(pool, Query(Leg.DECODE, pair_keys=frozenset({("vllm", "0.32")})))) == [2]


def test_one_of_several_possible_peers_is_enough(candidate):
    pool = [candidate(1, pair_key=("a",)), candidate(2, pair_key=("b",)), candidate(3, pair_key=("c",))]

    assert ids(SamePair()(pool, Query(Leg.PREFILL, pair_keys=frozenset({("a",), ("c",)})))) == [1, 3]


def test_two_pins_that_cannot_pair_are_the_clients_fault(candidate):
    query = Query(Leg.DECODE, RoutingHints(decode_worker_id=1), pair_keys=frozenset({("vllm", "0.32")}))

    with pytest.raises(InvalidRequest, match="x-tandem-worker: worker 1 is not one that agrees with a peer"):
        chain([candidate(1, pair_key=("sglang",))], query)


def test_no_compatible_peer_is_nobodys_fault(candidate):
    with pytest.raises(NoAvailableWorkers, match="pair: none agrees"):
        chain([candidate(1, pair_key=("sglang",))], Query(Leg.DECODE, pair_keys=frozenset({("vllm",)})))


def test_a_worker_that_failed_this_request_is_not_tried_again(candidate):
    query = Query(Leg.DECODE, excluded=frozenset({1}))

    assert chain([candidate(1), candidate(2)], query).worker.id == 2
    with pytest.raises(NoAvailableWorkers, match="every eligible worker was tried and failed"):
        chain([candidate(1)], query)


@pytest.mark.parametrize("status", [Status.JOINING, Status.COOLING, Status.DOWN])
def test_a_worker_that_is_not_up_gets_nothing(candidate, status):
    pool = [candidate(1, status=status), candidate(2)]

    assert chain(pool, decode()).casualties == {"ready": (1,)}


def test_when_nobody_is_up_the_error_counts_them_by_status(candidate):
    pool = [candidate(1, status=Status.DOWN), candidate(2, status=Status.JOINING), candidate(3, status=Status.DOWN)]

    with pytest.raises(NoAvailableWorkers, match=r"no decode worker is available \(ready: 2 down, 1 joining\)"):
        chain(pool, decode())


def test_a_busy_worker_rests_while_another_is_free(candidate):
    pool = [candidate(1, status=Status.BUSY), candidate(2)]

    assert chain(pool, decode()).casualties == {"overloaded": (1,)}


def test_all_busy_is_overloaded_and_says_when_to_come_back(candidate):
    pool = [candidate(1, status=Status.BUSY, cool_s=4.0), candidate(2, status=Status.BUSY, cool_s=2.2)]

    with pytest.raises(Overloaded, match="all 2 eligible decode workers are overloaded") as refused:
        chain(pool, decode())
    assert refused.value.retry_after == 3.0


def test_one_busy_and_one_down_is_overloaded_not_gone(candidate):
    pool = [candidate(1, status=Status.BUSY), candidate(2, status=Status.DOWN)]

    with pytest.raises(Overloaded):
        chain(pool, decode())


def test_a_suspect_serves_only_when_nobody_better_is_left(candidate):
    suspect = candidate(1, status=Status.SUSPECT)

    assert chain([suspect, candidate(2)], decode()).casualties == {"suspect": (1,)}
    assert chain([suspect], decode()).worker.id == 1


def test_only_workers_that_can_honour_the_request_are_left(candidate):
    query = Query(Leg.DECODE, incapable={1: "bad_words", 3: "bad_words"})

    assert ids(Capable()([candidate(1), candidate(2), candidate(3)], query)) == [2]


def test_what_nobody_can_honour_is_refused_before_anybody_is_waited_for(candidate):
    busy = [candidate(1, engine=Engine.TRTLLM, status=Status.BUSY), candidate(2, engine=Engine.SGLANG)]

    with pytest.raises(UnsupportedParameter) as raised:
        chain(busy, Query(Leg.DECODE, incapable={1: "bad_words", 2: "bad_words"}))

    assert (raised.value.param, raised.value.code) == ("bad_words", "unsupported_parameter")
    assert "(trtllm, sglang)" in raised.value.message
