"""A decode worker that refused before taking the request leaves the hand-off good for the next, but not everywhere."""

from __future__ import annotations

import pytest

from pipeline.handoff import PrefillOutcome
from protocols.errors import (
    CannotConnect,
    WorkerBusy,
)
from protocols.worker import Leg, Role, WorkerTraits
from tests.pipeline.dialects import (
    FIRST,
    IN_TURN,
    Dialect,
    Native,
    TiedNative,
    Trtllm,
    Vllm,
)
from tests.pipeline.rig import Rig

BUSY = {"error": {"message": "The engine is currently busy", "type": "Service Unavailable", "code": 503}}


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_a_decode_worker_that_cannot_be_reached_leaves_the_handoff_good_for_the_next(
    rig: Rig, dialect: type[Dialect]
) -> None:
    prefill = await rig.scripted(dialect, Role.PREFILL)
    absent = rig.absent(dialect, Role.DECODE)
    other = await rig.scripted(dialect, Role.DECODE)
    asked = rig.ask()

    await (await prefill.call()).reply(200, dialect.prefilled())
    decoding = await other.call()
    await decoding.stream()
    await decoding.end(dialect().whole(FIRST))

    await asked.ends()
    assert len(prefill.paths) == 1
    assert asked.context.migration.excluded_worker_ids() == {absent.id}
    assert asked.context.tracker.worker_of(Leg.DECODE).worker_id == other.id
    assert rig.seen.outcomes == [PrefillOutcome.REMOTE]
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", [Trtllm, Native])
async def test_a_busy_decode_worker_leaves_the_handoff_good_for_the_next(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    other = await rig.scripted(dialect, Role.DECODE)
    asked = rig.ask()

    await (await prefill.call()).reply(200, dialect.prefilled())
    await (await decode.call()).reply(503, BUSY)
    decoding = await other.call()
    await decoding.stream()
    await decoding.end(dialect().whole(FIRST))

    await asked.ends()
    assert len(prefill.paths) == 1


async def test_vllm_what_the_generate_route_refuses_as_busy_the_next_worker_gets(rig: Rig) -> None:
    prefill, decode = await rig.pair(Vllm, traits=WorkerTraits(served_name="m", generate=True))
    other = await rig.scripted(Vllm, Role.DECODE, traits=WorkerTraits(served_name="m", generate=True))
    asked = rig.ask()

    await (await prefill.call()).reply(200, Vllm.prefilled())
    await (await decode.call()).reply(503, BUSY)

    assert (await other.call()).json()["kv_transfer_params"]
    await asked.leave()
    await rig.background.drain(0)


async def test_vllm_what_the_completions_route_refuses_has_been_freed_and_goes_to_nobody_else(rig: Rig) -> None:
    """The refusing server tells prefill to free the blocks: another that read them would answer nonsense."""
    prefill, decode = await rig.pair(Vllm)
    other = await rig.scripted(Vllm, Role.DECODE)
    asked = rig.ask()

    await (await prefill.call()).reply(200, Vllm.prefilled())
    await (await decode.call()).reply(503, BUSY)

    assert isinstance(await asked.fails(), WorkerBusy)
    assert other.paths == []
    assert rig.held(asked.context) == {}


async def test_vllm_such_a_refusal_is_tried_again_as_a_whole(rig: Rig) -> None:
    prefill, decode = await rig.pair(Vllm)
    other = await rig.scripted(Vllm, Role.DECODE)
    asked = rig.ask(service=rig.resilient)

    await (await prefill.call()).reply(200, Vllm.prefilled())
    await (await decode.call()).reply(503, BUSY)
    await (await prefill.call()).reply(200, Vllm.prefilled())
    decoding = await other.call()
    await decoding.stream()
    await decoding.end(Vllm().whole(FIRST))

    await asked.ends()
    assert asked.sink.ids == [FIRST]


async def test_a_handoff_is_not_offered_around_for_ever(rig: Rig) -> None:
    prefill = await rig.scripted(Trtllm, Role.PREFILL)
    absent = [rig.absent(Trtllm, Role.DECODE) for _ in range(5)]
    asked = rig.ask()

    await (await prefill.call()).reply(200, Trtllm.prefilled())

    assert isinstance(await asked.fails(), CannotConnect)
    tried = [worker_id for worker_id, leg, _ in rig.seen.failures if leg is Leg.DECODE]
    assert tried[:3] == [worker.id for worker in absent[:3]]
    await rig.drained()


async def test_the_peer_to_blame_is_the_one_that_served_last(rig: Rig) -> None:
    """A pair's failure excludes prefill and the decode worker that took over, whoever was reserved first."""
    prefill = await rig.scripted(Trtllm, Role.PREFILL)
    absent = rig.absent(Trtllm, Role.DECODE)
    other = await rig.scripted(Trtllm, Role.DECODE)
    asked = rig.ask()

    await (await prefill.call()).reply(200, Trtllm.prefilled())
    await (await other.call()).reply(400, {"object": "error", "message": "KV cache transfer failed", "code": 400})

    await asked.fails()
    assert asked.context.migration.excluded_worker_ids() == {absent.id, prefill.id, other.id}
    await rig.background.drain(0)


@pytest.mark.parametrize("dialect", [Native, TiedNative])
async def test_native_a_failed_transfer_is_blamed_on_the_pair(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    next_prefill, next_decode = await rig.pair(dialect)
    asked = rig.ask(service=rig.resilient)

    await (await prefill.call()).reply(200, dialect.prefilled())
    await (await decode.call()).reply(500, {"error": {"message": "KV transfer failed: no such blocks", "code": 500}})
    await (await next_prefill.call()).reply(200, dialect.prefilled())
    await next_decode.call()

    assert asked.context.migration.excluded_worker_ids() == {prefill.id, decode.id}
    await asked.leave()
    await rig.background.drain(0)


async def test_what_a_refusal_teaches_is_kept_and_the_call_repeated(rig: Rig) -> None:
    prefill, decode = await rig.pair(Vllm, traits=WorkerTraits(served_name="m", generate=True))
    asked = rig.ask()

    await (await prefill.call()).reply(403, {"error": {"message": "off", "type": "Forbidden", "code": 403}})
    again = await prefill.call()
    assert again.path == "/v1/completions"
    await again.reply(200, Vllm.prefilled())
    await decode.call()

    known = rig.registry.worker(prefill.id)
    assert known is not None
    assert known.traits.generate is False
    await asked.leave()
    await rig.background.drain(0)


async def test_a_worker_that_left_meanwhile_still_learns_for_its_own_call(rig: Rig) -> None:
    prefill, decode = await rig.pair(Vllm, traits=WorkerTraits(served_name="m", generate=True))
    asked = rig.ask()
    prefilling = await prefill.call()

    rig.registry.remove(prefill.id)
    await prefilling.reply(403, {"error": {"message": "off", "type": "Forbidden", "code": 403}})
    again = await prefill.call()
    await again.reply(200, Vllm.prefilled())
    decoding = await decode.call()
    await decoding.stream()
    await decoding.end(Vllm().whole(FIRST))

    await asked.ends()
    assert again.path == "/v1/completions"
    assert rig.registry.worker(prefill.id) is None
