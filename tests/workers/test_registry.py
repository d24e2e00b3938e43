"""Who there is, how each stands, what a request is given, and what /health may claim."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from protocols.errors import (
    Blame,
    CannotConnect,
    Disconnected,
    EngineFailure,
    WorkerBusy,
    WorkerFailure,
    WorkerMisconfigured,
)
from protocols.worker import Engine, Leg, Role, Worker, WorkerTraits
from routers.base import Status
from routers.load import Loads
from workers.pool import RoleCount
from workers.registry import Registry

BROKEN = CannotConnect("connection refused")


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeAdapter:
    """What the registry asks of an adapter. `plain_roles`: who may serve alone."""

    default_prefill_policy = "local"

    def __init__(self, worker: Worker, model: str) -> None:
        self.worker = worker
        self.model = model

    def plain(self, role: Role) -> bool:
        return self.worker.engine is not Engine.SGLANG


class StrictAdapter(FakeAdapter):
    default_prefill_policy = "strict"


class Ears:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def added(self, worker: Worker) -> None:
        self.heard.append(("added", worker.id))

    def removed(self, worker: Worker) -> None:
        self.heard.append(("removed", worker.id))

    def doubted(self, worker: Worker) -> None:
        self.heard.append(("doubted", worker.id))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def loads() -> Loads:
    return Loads()


@pytest.fixture
def registry(loads, clock) -> Registry:
    return Registry(FakeAdapter, loads, clock=clock)


def worker(worker_id, role=Role.AGGREGATED, engine=Engine.VLLM, **more):
    return Worker(worker_id, f"http://w{worker_id}:8000", engine, role, **more)


def join(registry, *workers, model="m"):
    """Registers workers that have answered their probes."""
    for each in workers:
        registry.add(model, each)
        registry.answered(each.id)


def statuses(registry, leg=Leg.DECODE, model="m"):
    return {c.id: c.status for c in registry.candidates(model, leg)}


# ---- membership


def test_a_new_worker_is_joining_until_it_has_answered(registry):
    registry.add("m", worker(1))
    assert statuses(registry) == {1: Status.JOINING}

    registry.answered(1)
    assert statuses(registry) == {1: Status.READY}


def test_each_leg_sees_its_own_roles(registry):
    join(registry, worker(1, Role.PREFILL), worker(2, Role.DECODE), worker(3, Role.AGGREGATED))

    assert set(statuses(registry, Leg.PREFILL)) == {1}
    assert set(statuses(registry, Leg.DECODE)) == {2, 3}


def test_models_do_not_see_each_others_workers(registry):
    join(registry, worker(1), model="a")
    join(registry, worker(2), model="b")

    assert set(statuses(registry, model="a")) == {1}
    assert registry.candidates("unknown", Leg.DECODE) == ()
    assert registry.models() == ("a", "b")


def test_a_worker_id_is_given_once(registry):
    registry.add("a", worker(1))

    with pytest.raises(ValueError, match=r"worker id 1 of http://w1:8000 is taken by http://w1:8000 \(a\)"):
        registry.add("b", worker(1))


def test_a_removed_worker_gets_no_more_work(registry):
    join(registry, worker(1), worker(2))

    registry.remove(1)

    assert set(statuses(registry)) == {2}
    assert registry.worker(1) is None


def test_a_worker_that_comes_back_starts_at_zero_load(registry, loads):
    join(registry, worker(1))
    before = loads.reserve(1, Leg.DECODE)
    registry.remove(1)
    join(registry, worker(1))

    before.release()

    assert registry.candidates("m", Leg.DECODE)[0].in_flight == 0


@pytest.mark.parametrize(
    "late",
    [
        lambda registry: registry.remove(9),
        lambda registry: registry.replace(worker(9)),
        lambda registry: registry.observed_success(9),
        lambda registry: registry.observed_failure(9, BROKEN),
        lambda registry: registry.cool(9, 1.0, "late"),
        lambda registry: registry.identified(9, WorkerTraits()),
        lambda registry: registry.answered(9),
        lambda registry: registry.lost(9, Status.DOWN, "late"),
    ],
)
def test_news_of_a_worker_that_has_left_is_nothing(registry, late):
    join(registry, worker(1))

    late(registry)

    assert statuses(registry) == {1: Status.READY}


def test_listeners_hear_of_comings_and_goings(registry):
    ears = Ears()
    registry.listen(ears)

    registry.add("m", worker(1))
    registry.remove(1)

    assert ears.heard == [("added", 1), ("removed", 1)]


# ---- what a request is given


def test_candidates_are_the_same_tuple_until_something_changes(registry):
    join(registry, worker(1), worker(2))
    first = registry.candidates("m", Leg.DECODE)

    registry.observed_success(1)
    assert registry.candidates("m", Leg.DECODE) is first

    registry.observed_failure(1, BROKEN)
    assert registry.candidates("m", Leg.DECODE) is not first


def test_candidates_carry_the_live_load(registry, loads):
    join(registry, worker(1))
    (candidate,) = registry.candidates("m", Leg.DECODE)

    reservation = loads.reserve(1, Leg.DECODE)
    assert candidate.in_flight == 1

    reservation.release()
    assert candidate.in_flight == 0


def test_candidates_say_who_may_serve_alone(registry):
    join(registry, worker(1, Role.DECODE), worker(2, Role.DECODE, Engine.SGLANG), worker(3, engine=Engine.SGLANG))

    assert {c.id: c.alone for c in registry.candidates("m", Leg.DECODE)} == {1: True, 2: False, 3: True}


def test_an_adapter_is_made_once_and_again_when_the_worker_changes(registry):
    registry.add("m", worker(1))
    first = registry.adapter(1)
    assert registry.adapter(1) is first
    assert (first.worker.id, first.model) == (1, "m")

    learnt = replace(worker(1), traits=WorkerTraits(generate=False))
    registry.replace(learnt)

    assert registry.adapter(1).worker == learnt


def test_there_is_no_adapter_for_a_worker_that_is_not_there(registry):
    with pytest.raises(KeyError):
        registry.adapter(1)


def test_only_workers_that_can_take_a_request_offer_pair_keys(registry):
    join(registry, worker(1, Role.DECODE, version="0.31"), worker(2, Role.DECODE, version="0.32"))
    registry.lost(1, Status.DOWN, "gone")

    assert registry.pair_keys("m", Leg.DECODE) == {worker(2, version="0.32").pair_key()}
    assert registry.pair_keys("m", Leg.PREFILL) == frozenset()


def test_an_excluded_worker_offers_no_pair_key(registry):
    join(registry, worker(1, Role.DECODE, version="0.31"), worker(2, Role.DECODE, version="0.32"))

    keys = registry.pair_keys("m", Leg.DECODE, excluded=frozenset({2}))

    assert keys == {worker(1, version="0.31").pair_key()}


def test_when_nobody_can_take_a_request_all_offer_their_keys(registry):
    join(registry, worker(1, Role.DECODE, version="0.31"))
    registry.lost(1, Status.DOWN, "gone")

    assert registry.pair_keys("m", Leg.DECODE) == {worker(1, version="0.31").pair_key()}


def test_an_aggregated_worker_pairs_with_nobody(registry):
    join(registry, worker(1))

    assert registry.pair_keys("m", Leg.DECODE) == frozenset()


@pytest.mark.parametrize(
    ("roles", "disaggregated"),
    [((), False), ((Role.AGGREGATED,), False), ((Role.DECODE,), True), ((Role.AGGREGATED, Role.PREFILL), True)],
)
def test_a_model_with_prefill_or_decode_workers_is_disaggregated_though_they_be_down(registry, roles, disaggregated):
    registry.declare("m")
    for i, role in enumerate(roles):
        registry.add("m", worker(i, role))

    assert registry.disaggregated("m") is disaggregated


def test_an_aggregated_worker_counts_only_while_it_is_up(registry):
    join(registry, worker(1), worker(2, Role.DECODE))
    assert registry.has_aggregated("m")

    registry.lost(1, Status.DOWN, "gone")
    assert not registry.has_aggregated("m")


def test_the_prefill_policy_is_that_of_the_decode_workers_engine(loads, clock):
    registry = Registry(StrictAdapter, loads, clock=clock)
    registry.add("m", worker(1, Role.DECODE))

    assert registry.default_prefill_policy("m") == "strict"


# ---- how requests fared


@pytest.mark.parametrize("error", [BROKEN, Disconnected("reset")])
def test_a_broken_connection_takes_a_worker_out_for_five_seconds(registry, clock, error):
    join(registry, worker(1), worker(2))

    registry.observed_failure(1, error)
    clock.now += 4.9
    assert statuses(registry) == {1: Status.COOLING, 2: Status.READY}

    clock.now += 0.2
    assert statuses(registry) == {1: Status.READY, 2: Status.READY}


def test_a_worker_with_a_broken_connection_is_probed_at_once_and_back_when_it_answers(registry):
    ears = Ears()
    join(registry, worker(1))
    registry.listen(ears)

    registry.observed_failure(1, BROKEN)
    assert ears.heard == [("doubted", 1)]

    registry.answered(1)
    assert statuses(registry) == {1: Status.READY}


def test_an_engine_failure_is_a_reason_to_probe_but_not_to_rest(registry):
    ears = Ears()
    join(registry, worker(1))
    registry.listen(ears)

    registry.observed_failure(1, EngineFailure("500"))

    assert ears.heard == [("doubted", 1)]
    assert statuses(registry) == {1: Status.READY}


@pytest.mark.parametrize("blame", [Blame.CLIENT, Blame.PEER, Blame.PAIR, Blame.NOBODY])
def test_what_is_not_the_workers_fault_changes_nothing(registry, blame):
    ears = Ears()
    join(registry, worker(1))
    registry.listen(ears)

    for _ in range(9):
        registry.observed_failure(1, WorkerMisconfigured("401", blame=blame))

    assert statuses(registry) == {1: Status.READY}
    assert ears.heard == []


def test_a_refusal_cools_for_longer_each_time_and_never_longer_than_ten_seconds(registry, clock):
    join(registry, worker(1))
    rests = []

    for _ in range(7):
        registry.observed_failure(1, WorkerBusy("429"))
        rests.append(registry.candidates("m", Leg.DECODE)[0].cool_s)
        clock.now += rests[-1]
        assert statuses(registry) == {1: Status.READY}

    assert rests == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_refusals_that_were_on_their_way_together_count_as_one(registry, clock):
    join(registry, worker(1))

    for _ in range(20):
        registry.observed_failure(1, WorkerBusy("429"))
    clock.now += 0.5

    assert statuses(registry) == {1: Status.READY}


def test_a_success_ends_overload_and_its_growth(registry, clock):
    join(registry, worker(1))
    registry.observed_failure(1, WorkerBusy("429"))
    clock.now += 0.5
    registry.observed_failure(1, WorkerBusy("429"))

    registry.observed_success(1)
    assert statuses(registry) == {1: Status.READY}

    registry.observed_failure(1, WorkerBusy("429"))
    assert registry.candidates("m", Leg.DECODE)[0].cool_s == 0.5


@pytest.mark.parametrize(("retry_after", "rest"), [(3.0, 3.0), (0.1, 0.5), (9999.0, 30.0)])
def test_a_workers_own_retry_after_is_heeded_within_reason(registry, retry_after, rest):
    join(registry, worker(1))

    registry.observed_failure(1, WorkerBusy("503", retry_after=retry_after))

    assert registry.candidates("m", Leg.DECODE)[0].cool_s == rest


def test_three_failures_in_a_row_make_a_suspect_which_a_probe_does_not_clear(registry):
    join(registry, worker(1))
    for _ in range(3):
        registry.observed_failure(1, WorkerFailure("no token came"))

    registry.answered(1)

    assert statuses(registry) == {1: Status.SUSPECT}


def test_a_success_between_failures_makes_no_suspect(registry):
    join(registry, worker(1))

    for _ in range(5):
        registry.observed_failure(1, WorkerFailure("no token came"))
        registry.observed_failure(1, WorkerFailure("no token came"))
        registry.observed_success(1)

    assert statuses(registry) == {1: Status.READY}


def test_a_success_clears_a_suspect(registry):
    join(registry, worker(1))
    for _ in range(3):
        registry.observed_failure(1, WorkerFailure("no token came"))

    registry.observed_success(1)

    assert statuses(registry) == {1: Status.READY}


def test_a_suspect_that_fails_again_rests_longer(registry, clock):
    join(registry, worker(1))
    rests = []

    for _ in range(3):
        for _ in range(3):
            registry.observed_failure(1, WorkerFailure("no token came"))
        rests.append(registry.candidates("m", Leg.DECODE)[0].cool_s)
        clock.now += rests[-1]

    assert rests == [5.0, 10.0, 20.0]


def test_the_longest_of_several_cool_downs_does_not_hide_the_end_of_a_shorter_one(registry, clock):
    join(registry, worker(1))
    for _ in range(3):
        registry.observed_failure(1, BROKEN)
    assert statuses(registry) == {1: Status.COOLING}

    registry.cool(1, 8.0, "longer")
    clock.now += 6.0
    assert statuses(registry) == {1: Status.COOLING}

    clock.now += 2.1
    assert statuses(registry) == {1: Status.READY}


def test_looking_at_a_worker_whose_cool_down_has_lapsed_does_not_keep_it_from_requests(registry, clock):
    join(registry, worker(1))
    registry.cool(1, 5.0, "told to")
    assert statuses(registry) == {1: Status.COOLING}
    clock.now += 5.1

    (state,) = registry.states()

    assert state.status is Status.READY
    assert statuses(registry) == {1: Status.READY}


def test_a_shorter_cool_down_does_not_cut_a_longer_one(registry, clock):
    join(registry, worker(1))
    registry.cool(1, 30.0, "told to")

    registry.observed_failure(1, BROKEN)
    clock.now += 6.0

    assert statuses(registry) == {1: Status.COOLING}


# ---- what probes found


def test_a_lost_worker_says_why(registry):
    join(registry, worker(1))

    registry.lost(1, Status.DOWN, "connection refused")

    (state,) = registry.states()
    assert (state.status, state.reason) == (Status.DOWN, "connection refused")


def test_what_a_worker_tells_of_itself_is_taken(registry):
    registry.add("m", worker(1))

    registry.identified(1, WorkerTraits(served_name="llama", page_size=16))

    assert registry.worker(1).traits == WorkerTraits(served_name="llama", page_size=16)
    assert registry.adapter(1).worker.traits.page_size == 16


def test_what_calls_have_taught_survives_a_probe_that_cannot_tell(registry):
    registry.add("m", worker(1))
    registry.identified(1, WorkerTraits(served_name="llama"))
    registry.replace(replace(registry.worker(1), traits=WorkerTraits(served_name="llama", generate=False)))

    registry.identified(1, WorkerTraits(served_name="llama2"))

    assert registry.worker(1).traits == WorkerTraits(served_name="llama2", generate=False)
    assert registry.incarnation(1) == 1


def restart_told(registry):
    registry.identified(1, WorkerTraits(served_name="llama", incarnation="b"))


def restart_seen(registry):
    registry.identified(1, WorkerTraits(served_name="llama", incarnation="a"), restarted=True)


@pytest.mark.parametrize("restart", [restart_told, restart_seen])
def test_after_a_restart_nothing_is_left_of_the_former_process(registry, restart):
    join(registry, worker(1))
    registry.identified(1, WorkerTraits(served_name="llama", generate=False, incarnation="a"))
    former = registry.adapter(1)
    for _ in range(3):
        registry.observed_failure(1, WorkerFailure("no token came"))

    restart(registry)

    assert registry.incarnation(1) == 2
    assert registry.worker(1).traits.generate is None
    assert registry.adapter(1) is not former
    assert statuses(registry) == {1: Status.READY}


def test_there_is_no_incarnation_of_a_worker_that_is_not_there(registry):
    assert registry.incarnation(1) == 0


# ---- can a model be served?


def test_an_unknown_model_is_not_servable(registry):
    assert registry.servable("m").reason == "no such model"


def test_a_declared_model_without_workers_says_so(registry):
    registry.declare("m")

    assert (registry.servable("m").ok, registry.servable("m").reason) == (False, "no workers")


def test_a_ready_aggregated_worker_is_enough(registry):
    join(registry, worker(1))
    registry.add("m", worker(2))

    servability = registry.servable("m")

    assert servability.ok
    assert servability.reason == ""
    assert servability.roles == {Role.AGGREGATED: RoleCount(1, 2)}


def test_workers_that_are_not_up_are_counted_by_status(registry):
    registry.add("m", worker(1))
    registry.add("m", worker(2))
    registry.lost(2, Status.DOWN, "gone")

    assert registry.servable("m").reason == "no ready worker (1 down, 1 joining)"


def test_an_overloaded_worker_is_still_up(registry):
    join(registry, worker(1))
    registry.observed_failure(1, WorkerBusy("429"))

    assert registry.servable("m").ok


def test_a_cooling_worker_is_not_up(registry):
    join(registry, worker(1))
    registry.observed_failure(1, BROKEN)

    assert registry.servable("m").reason == "no ready worker (1 cooling)"


def test_without_a_decode_worker_a_pair_cannot_serve(registry):
    join(registry, worker(1, Role.PREFILL))

    assert registry.servable("m").reason == "no ready decode worker (none registered)"


@pytest.mark.parametrize(
    ("policy", "engine", "reason"),
    [
        ("local", Engine.VLLM, ""),
        (None, Engine.VLLM, ""),
        ("strict", Engine.VLLM, "no ready prefill worker (1 down), prefill policy strict"),
        ("local", Engine.SGLANG, "no ready prefill worker (1 down), prefill policy local"),
    ],
)
def test_the_loss_of_all_prefill_workers_is_judged_by_policy_and_engine(registry, policy, engine, reason):
    registry.declare("m", prefill_policy=policy)
    join(registry, worker(1, Role.PREFILL, engine), worker(2, Role.DECODE, engine))

    registry.lost(1, Status.DOWN, "gone")

    assert registry.servable("m").reason == reason


def test_workers_that_cannot_pair_do_not_make_a_model_servable(registry):
    registry.declare("m", prefill_policy="strict")
    join(registry, worker(1, Role.PREFILL, version="0.31"), worker(2, Role.DECODE, version="0.32"))

    assert "no prefill worker agrees with a decode worker" in registry.servable("m").reason


def test_a_pair_that_agrees_serves(registry):
    registry.declare("m", prefill_policy="strict")
    join(registry, worker(1, Role.PREFILL), worker(2, Role.DECODE))

    assert registry.servable("m").ok


# ---- waiting


async def test_waiting_for_workers_ends_when_enough_are_up(registry):
    registry.add("m", worker(1))
    registry.add("m", worker(2))
    waiting = asyncio.ensure_future(registry.wait_for("m", 2, timeout_s=5))
    await asyncio.sleep(0)

    registry.answered(1)
    await asyncio.sleep(0)
    assert not waiting.done()

    registry.answered(2)
    await waiting


async def test_waiting_for_no_workers_does_not_wait(registry):
    await registry.wait_for("m", 0, timeout_s=5)


async def test_waiting_in_vain_says_for_whom(registry):
    registry.declare("m")

    with pytest.raises(TimeoutError, match="timed out waiting for 3 initial workers of m"):
        await registry.wait_for("m", 3, timeout_s=0.001)


async def test_waiting_for_a_servable_model_ends_when_it_is(registry):
    registry.declare("m", prefill_policy="strict")
    join(registry, worker(1, Role.DECODE))
    waiting = asyncio.ensure_future(registry.wait_until_servable("m", timeout_s=5))
    await asyncio.sleep(0)
    assert not waiting.done()

    join(registry, worker(2, Role.PREFILL))

    await waiting


async def test_giving_up_waiting_leaves_nothing_behind(registry):
    waiting = asyncio.ensure_future(registry.wait_for("m", 1, timeout_s=None))
    await asyncio.sleep(0)

    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert registry._waiters == set()


def test_the_context_is_as_long_as_the_least_of_the_workers_holds(registry):
    # given workers that were configured, have told, and have said nothing
    registry.add("m", Worker(1, "http://w1:1", Engine.VLLM, context_length=4096))
    registry.add("m", Worker(2, "http://w2:1", Engine.VLLM))
    assert registry.context_length("m") == 4096
    # when one tells of a shorter one
    registry.identified(2, WorkerTraits(context_length=2048))
    # then that is what a request may fill
    assert registry.context_length("m") == 2048


def test_the_context_is_unknown_while_no_worker_has_told(registry):
    registry.add("m", Worker(1, "http://w1:1", Engine.VLLM))
    assert registry.context_length("m") is None
    assert registry.context_length("other") is None
