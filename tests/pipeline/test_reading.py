"""One call's reading: connections that were dead, replies that break off, paces and deadlines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protocols.errors import (
    Blame,
    CannotConnect,
    Disconnected,
    EngineFailure,
    IncompleteReply,
    WorkerSilent,
)
from protocols.outputs import FinishReason
from protocols.worker import Role
from tests.pipeline.dialects import FIRST, IN_TURN, Dialect, Native, Sglang, Trtllm, Vllm
from tests.pipeline.doors import settled
from tests.pipeline.rig import Rig
from tests.pipeline.scripted import ScriptedCall, ScriptedWorker

PLAIN = (Vllm, Trtllm, Native, Sglang)


async def _served(worker: ScriptedWorker, dialect: type[Dialect]) -> None:
    call = await worker.call()
    await call.stream()
    await call.end(dialect().whole(FIRST))


# ---- connections


async def test_a_pooled_connection_that_was_dead_is_tried_once_more_afresh(rig: Rig) -> None:
    worker = await rig.scripted(Vllm, Role.AGGREGATED)
    first = rig.ask()
    await _served(worker, Vllm)
    await first.ends()

    asked = rig.ask()
    (await worker.call()).reset()
    await _served(worker, Vllm)

    await asked.ends()
    assert asked.sink.ids == [FIRST]
    assert rig.seen.failures == []


async def test_a_fresh_connection_that_breaks_is_a_failure(rig: Rig) -> None:
    worker = await rig.scripted(Vllm, Role.AGGREGATED)
    asked = rig.ask()

    (await worker.call()).reset()

    error = await asked.fails()
    assert isinstance(error, Disconnected)
    assert error.worker_id == worker.id
    assert rig.standing(worker) == "cooling"
    assert len(worker.paths) == 1


async def test_a_second_dead_connection_is_a_failure(rig: Rig) -> None:
    worker = await rig.scripted(Vllm, Role.AGGREGATED)
    first = rig.ask()
    await _served(worker, Vllm)
    await first.ends()

    asked = rig.ask()
    (await worker.call()).reset()
    (await worker.call()).reset()

    assert isinstance(await asked.fails(), Disconnected)
    assert len(worker.paths) == 3


async def test_a_worker_that_died_with_a_pooled_connection_may_have_got_the_call(rig: Rig) -> None:
    worker = await rig.scripted(Vllm, Role.AGGREGATED)
    first = rig.ask()
    await _served(worker, Vllm)
    await first.ends()

    asked = rig.ask()
    call = await worker.call()
    worker.stop_listening()
    call.reset()

    error = await asked.fails()
    assert isinstance(error, Disconnected)
    assert [failure for _, _, failure in rig.seen.failures] == [error]


async def test_a_handoff_is_read_once_whatever_becomes_of_a_pooled_connection(rig: Rig) -> None:
    prefill, decode = await rig.pair(Vllm)
    first = rig.ask()
    await (await prefill.call()).reply(200, Vllm.prefilled())
    await _served(decode, Vllm)
    await first.ends()

    asked = rig.ask()
    await (await prefill.call()).reply(200, Vllm.prefilled())
    (await decode.call()).reset()

    error = await asked.fails()
    assert isinstance(error, Disconnected)
    assert len(decode.paths) == 2
    assert (error.blame, rig.standing(decode)) == (Blame.NOBODY, "ready")


async def test_a_worker_that_cannot_be_reached_is_booked_once(rig: Rig) -> None:
    worker = rig.absent(Vllm, Role.AGGREGATED)

    error = await rig.ask().fails()

    assert isinstance(error, CannotConnect)
    assert [(worker_id, failure) for worker_id, _, failure in rig.seen.failures] == [(worker.id, error)]
    assert rig.held() == {}


# ---- replies that break off


@pytest.mark.parametrize("dialect", PLAIN)
async def test_a_reply_that_breaks_off_after_its_finish_ended_well(rig: Rig, dialect: type[Dialect]) -> None:
    worker = await rig.scripted(dialect, Role.AGGREGATED)
    asked = rig.ask()
    call, say = await worker.call(), dialect()

    await call.stream(say.tokens(FIRST), say.finish())
    call.reset()

    await asked.ends()
    assert asked.sink.ids == [FIRST]
    assert asked.sink.finish == FinishReason.LENGTH
    assert rig.seen.failures == []


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_a_decode_that_breaks_off_after_its_finish_ended_well(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask(service=rig.resilient)
    await (await prefill.call()).reply(200, dialect.prefilled())
    call, say = await decode.call(), dialect()

    await call.stream(say.tokens(FIRST), say.finish())
    call.reset()

    await asked.ends()
    assert asked.sink.finish == FinishReason.LENGTH
    assert rig.seen.migrations == []
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", PLAIN)
@pytest.mark.parametrize("reset", [True, False])
async def test_a_reply_that_breaks_off_before_its_finish_is_a_failure(
    rig: Rig, dialect: type[Dialect], reset: bool
) -> None:
    worker = await rig.scripted(dialect, Role.AGGREGATED)
    asked = rig.ask()
    call = await worker.call()
    await call.stream(dialect().tokens(FIRST))
    await asked.sink.holds(FIRST)

    (call.reset if reset else call.cut)()

    assert isinstance(await asked.fails(), Disconnected)
    assert asked.sink.ids == [FIRST]


@pytest.mark.parametrize("dialect", PLAIN)
async def test_a_reply_that_ends_properly_without_a_finish_is_incomplete(rig: Rig, dialect: type[Dialect]) -> None:
    worker = await rig.scripted(dialect, Role.AGGREGATED)
    asked = rig.ask()
    call = await worker.call()

    await call.stream(dialect().tokens(FIRST))
    await call.end()

    assert isinstance(await asked.fails(), IncompleteReply)
    assert asked.sink.ids == [FIRST]


@pytest.mark.parametrize("dialect", PLAIN)
async def test_what_came_before_an_error_event_goes_up_first(rig: Rig, dialect: type[Dialect]) -> None:
    worker = await rig.scripted(dialect, Role.AGGREGATED)
    asked = rig.ask()
    call, say = await worker.call(), dialect()

    await call.stream(say.tokens(FIRST, 10) + say.error())

    assert isinstance(await asked.fails(), EngineFailure)
    assert asked.sink.ids == [FIRST, 10]


async def test_an_answers_connection_is_used_again_though_its_end_comes_late(rig: Rig) -> None:
    """The end mark completes the answer; the last chunk of the transfer follows in a read of its own."""
    worker = await rig.scripted(Vllm, Role.AGGREGATED)
    first = rig.ask()
    call = await worker.call()
    await call.stream(Vllm().whole(FIRST))
    await first.ends()
    assert rig.client.idle_connections() == 0

    await call.end()
    await settled(lambda: rig.client.idle_connections() == 1)

    again = rig.ask()
    await _served(worker, Vllm)
    await again.ends()
    assert rig.client.open_connections() == 1


# ---- a client's pace


async def _begun(rig: Rig, dialect: type[Dialect] = Vllm) -> tuple[Any, ScriptedCall]:
    worker = await rig.scripted(dialect, Role.AGGREGATED)
    asked = rig.ask()
    call = await worker.call()
    await call.stream(dialect().tokens(FIRST))
    await asked.sink.holds(FIRST)
    return asked, call


async def test_a_paused_client_stops_the_reply_and_a_resumed_one_gets_the_rest(rig: Rig) -> None:
    asked, call = await _begun(rig)
    asked.context.flow.pause()
    await call.send(Vllm().tokens(10))
    for _ in range(10):
        await asyncio.sleep(0)
    assert asked.sink.ids == [FIRST]

    asked.context.flow.resume()

    await asked.sink.holds(FIRST, 10)
    await asked.leave()


async def test_a_reply_that_starts_while_its_client_is_paused_starts_paused(rig: Rig) -> None:
    worker = await rig.scripted(Vllm, Role.AGGREGATED)
    asked = rig.ask()
    asked.context.flow.pause()
    call = await worker.call()
    await call.stream(Vllm().tokens(FIRST))
    for _ in range(10):
        await asyncio.sleep(0)
    assert asked.sink.outputs == []

    asked.context.flow.resume()

    await asked.sink.holds(FIRST)
    await asked.leave()


async def test_prefill_is_never_paused(rig: Rig) -> None:
    prefill, decode = await rig.pair(Vllm)
    asked = rig.ask()
    asked.context.flow.pause()

    await (await prefill.call()).reply(200, Vllm.prefilled())

    await decode.call()
    await asked.leave()
    await rig.background.drain(0)


async def test_paused_time_does_not_count_between_tokens(rig: Rig) -> None:
    asked, _ = await _begun(rig)

    rig.tick(30)
    asked.context.flow.pause()
    for _ in range(4):
        rig.tick(100)
    asked.context.flow.resume()
    rig.tick(29)
    assert not asked.task.done()
    rig.tick(2)

    assert isinstance(await asked.fails(), WorkerSilent)


async def test_paused_time_does_not_count_before_the_first_token(rig: Rig) -> None:
    """Another choice of the same request may have paused the client's flow."""
    worker = await rig.scripted(Vllm, Role.AGGREGATED)
    asked = rig.ask()
    await worker.call()

    asked.context.flow.pause()
    rig.tick(300)
    asked.context.flow.resume()
    rig.tick(29)
    assert not asked.task.done()
    rig.tick(2)

    assert isinstance(await asked.fails(), WorkerSilent)
