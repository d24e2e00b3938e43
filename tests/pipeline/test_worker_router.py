"""Who is asked again, who is not, and what a worker's failure leaves behind: the bottom of the chain."""

from __future__ import annotations

import pytest

from protocols.errors import (
    Blame,
    Disconnected,
    EngineFailure,
    InvalidRequest,
    NoAvailableWorkers,
    UnsupportedParameter,
    WorkerFailure,
    WorkerMisconfigured,
)
from protocols.worker import Leg, Role
from tests.pipeline.dialects import FIRST, IN_TURN, Dialect, Native, Sglang, Trtllm, Vllm
from tests.pipeline.rig import Rig, request_of

PLAIN = (*IN_TURN, Sglang)


@pytest.mark.parametrize("dialect", PLAIN)
async def test_an_answer_goes_on_at_another_worker_and_no_worker_is_asked_twice(
    rig: Rig, dialect: type[Dialect]
) -> None:
    workers = [await rig.scripted(dialect, Role.AGGREGATED) for _ in range(3)]
    asked = rig.ask(service=rig.resilient)

    for place, worker in enumerate(workers):
        call = await worker.call()
        await call.stream(dialect().tokens(FIRST + place))
        await asked.sink.holds(*range(FIRST, FIRST + place + 1))
        call.reset()

    assert isinstance(await asked.fails(), Disconnected)
    assert [len(worker.paths) for worker in workers] == [1, 1, 1]
    assert rig.seen.migrations == ["ongoing_request"] * 3
    await rig.drained()
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", PLAIN)
async def test_a_pinned_request_is_sent_nowhere_else(rig: Rig, dialect: type[Dialect]) -> None:
    pinned, other = [await rig.scripted(dialect, Role.AGGREGATED) for _ in range(2)]
    asked = rig.ask(request_of(routing={"backend_instance_id": pinned.id}), service=rig.resilient)

    (await pinned.call()).reset()

    error = await asked.fails()
    assert isinstance(error, NoAvailableWorkers)
    assert "the last failure was" in str(error)
    assert other.paths == []


@pytest.mark.parametrize("dialect", PLAIN)
async def test_in_the_middle_of_a_pinned_answer_its_own_failure_is_told(rig: Rig, dialect: type[Dialect]) -> None:
    pinned, other = [await rig.scripted(dialect, Role.AGGREGATED) for _ in range(2)]
    asked = rig.ask(request_of(routing={"backend_instance_id": pinned.id}), service=rig.resilient)
    call = await pinned.call()
    await call.stream(dialect().tokens(FIRST))
    await asked.sink.holds(FIRST)

    call.reset()

    error = await asked.fails()
    assert isinstance(error, Disconnected)
    assert error.worker_id == pinned.id
    assert other.paths == []


async def test_a_pin_of_one_leg_leaves_the_other_free(rig: Rig) -> None:
    (prefill, decode), (next_prefill, other) = await rig.pair(Sglang), await rig.pair(Sglang)
    asked = rig.ask(request_of(routing={"decode_worker_id": other.id}), service=rig.resilient)
    await (await prefill.call()).reply(401, {"error": "Unauthorized"})
    await other.call()

    await (await next_prefill.call()).reply(200, Sglang.prefilled())
    call = await other.call()
    await call.stream()
    await call.end(Sglang().whole(FIRST))

    await asked.ends()
    assert decode.paths == []
    await rig.drained()


async def test_a_refusal_is_the_clients_and_blames_nobody(rig: Rig) -> None:
    worker, other = [await rig.scripted(Vllm, Role.AGGREGATED) for _ in range(2)]
    asked = rig.ask(service=rig.resilient)

    refusal = {"error": {"message": "bad value", "type": "BadRequestError", "param": "temperature", "code": 400}}
    await (await worker.call()).reply(400, refusal)

    error = await asked.fails()
    assert isinstance(error, InvalidRequest)
    assert error.param == "temperature"
    assert rig.seen.failures == []
    assert next(state.failures for state in rig.registry.states() if state.worker.id == worker.id) == 0
    assert other.paths == []
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("status", [401, 403])
async def test_a_worker_that_refuses_our_key_is_our_misconfiguration(rig: Rig, status: int) -> None:
    worker = await rig.scripted(Trtllm, Role.AGGREGATED)
    asked = rig.ask()

    await (await worker.call()).reply(status, {"error": "Forbidden"})

    error = await asked.fails()
    assert isinstance(error, WorkerMisconfigured)
    assert error.status == 502


async def test_a_failure_is_booked_once_with_its_leg(rig: Rig) -> None:
    prefill, decode = await rig.pair(Native)
    asked = rig.ask()

    await (await prefill.call()).reply(500, {"error": {"message": "no"}})

    error = await asked.fails()
    assert isinstance(error, EngineFailure)
    assert rig.seen.failures == [(prefill.id, Leg.PREFILL, error)]
    assert next(state.failures for state in rig.registry.states() if state.worker.id == prefill.id) == 1
    assert decode.paths == []


async def test_a_worker_is_counted_busy_from_its_choice_to_its_end(rig: Rig) -> None:
    worker = await rig.scripted(Vllm, Role.AGGREGATED)
    context = rig.context()

    lease = rig.router.reserve(request_of(), Leg.DECODE, context, alone=True)
    assert rig.loads.of(worker.id).decode == 1
    lease.release()
    lease.release()

    assert rig.loads.of(worker.id).decode == 0


SALTED = {"routing": {"cache_namespace": "tenant"}}


async def test_an_engine_that_cannot_honour_a_parameter_counts_nothing(rig: Rig) -> None:
    worker = await rig.scripted(Sglang, Role.AGGREGATED)

    with pytest.raises(UnsupportedParameter) as raised:
        rig.router.reserve(request_of(prompt_embeds="AAAA"), Leg.DECODE, rig.context(), alone=True)

    assert raised.value.param == "prompt_embeds"
    assert rig.loads.of(worker.id).total == 0
    assert rig.seen.refusals == [raised.value]


async def test_in_a_mixed_model_only_capable_workers_are_asked(rig: Rig) -> None:
    trtllm = [await rig.scripted(Trtllm, Role.AGGREGATED) for _ in range(3)]
    vllm = await rig.scripted(Vllm, Role.AGGREGATED)

    chosen = [
        rig.router.reserve(request_of(**SALTED), Leg.DECODE, rig.context(), alone=True).worker.id for _ in range(8)
    ]

    assert chosen == [vllm.id] * 8
    assert [rig.loads.of(worker.id).total for worker in trtllm] == [0, 0, 0]


async def test_a_parameter_that_nobody_can_honour_is_refused_though_all_are_busy(rig: Rig) -> None:
    worker = rig.absent(Trtllm, Role.AGGREGATED)
    rig.registry.cool(worker.id, 60.0, "overloaded")

    with pytest.raises(UnsupportedParameter) as raised:
        rig.router.reserve(request_of(**SALTED), Leg.DECODE, rig.context(), alone=True)

    assert raised.value.param == "cache_salt"


async def test_a_capable_worker_that_is_away_is_waited_for(rig: Rig) -> None:
    await rig.scripted(Trtllm, Role.AGGREGATED)
    away = rig.absent(Vllm, Role.AGGREGATED)
    rig.registry.cool(away.id, 60.0, "gone")

    with pytest.raises(NoAvailableWorkers):
        rig.router.reserve(request_of(**SALTED), Leg.DECODE, rig.context(), alone=True)


@pytest.mark.parametrize("max_tokens", [1, 8])
async def test_no_leg_is_sent_to_a_pair_that_cannot_honour_a_parameter(rig: Rig, max_tokens: int) -> None:
    prefill, decode = await rig.pair(Trtllm)
    whole = await rig.scripted(Vllm, Role.AGGREGATED)
    asked = rig.ask(request_of(**SALTED, stop={"max_tokens": max_tokens}))

    call = await whole.call()
    await call.stream(Vllm().whole(FIRST))
    await call.end()
    await asked.ends()

    assert (prefill.paths, decode.paths) == ([], [])
    assert rig.held(asked.context) == {}


async def test_a_pair_that_cannot_honour_a_parameter_is_refused_before_prefill(rig: Rig) -> None:
    prefill, _ = await rig.pair(Trtllm)

    error = await rig.ask(request_of(**SALTED)).fails()

    assert isinstance(error, UnsupportedParameter)
    assert prefill.paths == []


async def test_a_failure_of_the_pair_excludes_both_workers(rig: Rig) -> None:
    prefill, decode = await rig.pair(Sglang)
    asked = rig.ask()
    await prefill.call()

    await (await decode.call()).reply(
        500, {"error": {"message": "Decode transfer failed", "type": "InternalServerError"}}
    )

    error = await asked.fails()
    assert isinstance(error, WorkerFailure)
    assert error.blame is Blame.PAIR
    assert asked.context.migration.excluded_worker_ids() == {prefill.id, decode.id}
    await rig.drained()
