"""One call's reading: connections that were dead, replies that break off, paces and deadlines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engines.base import Call
from engines.openai_reply import Shape
from pipeline.relay import Relay, RelayRequest, RelayUsage
from protocols.errors import (
    CannotConnect,
    DeadlineExceeded,
    Disconnected,
    EngineFailure,
    IncompleteReply,
    WorkerSilent,
)
from protocols.outputs import FinishReason
from protocols.worker import Engine, Role, WorkerTraits
from tests.pipeline.dialects import AT_ONCE, FIRST, IN_TURN, Dialect, Native, Sglang, Trtllm, Vllm
from tests.pipeline.rig import Rig, Taken, request_of, settled
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


# ---- deadlines


@pytest.mark.parametrize(("length", "limit_s"), [(3, 30.0), (10_000, 40.0), (100_000, 130.0)])
async def test_the_first_tokens_deadline_grows_with_the_prompt(rig: Rig, length: int, limit_s: float) -> None:
    worker = await rig.scripted(Vllm, Role.AGGREGATED)
    asked = rig.ask(request_of(prompt=range(length)))
    call = await worker.call()

    rig.tick(limit_s - 0.5)
    assert not asked.task.done()
    rig.tick(1)

    error = await asked.fails()
    assert isinstance(error, WorkerSilent)
    assert error.worker_id == worker.id
    await call.gone()


async def test_tokens_may_be_a_minute_apart(rig: Rig) -> None:
    asked, call = await _begun(rig)

    for token_id in (10, 11):
        rig.tick(59)
        await call.send(Vllm().tokens(token_id))
        await settled(lambda token_id=token_id: asked.sink.ids[-1] == token_id)
    rig.tick(61)

    assert isinstance(await asked.fails(), WorkerSilent)
    await call.gone()


async def test_a_reply_that_comes_as_a_whole_has_no_first_token_to_wait_for(rig: Rig) -> None:
    """SGLang tells the prompt's logprobs in an unstreamed reply: it comes when all has been generated."""
    worker = await rig.scripted(Sglang, Role.AGGREGATED)
    asked = rig.ask(request_of(output={"prompt_logprobs": 0}))
    call = await worker.call()
    assert call.json()["stream"] is False

    rig.tick(500)
    assert not asked.task.done()
    await call.reply(200, Sglang.prefilled())

    await asked.ends()


async def test_a_relayed_answer_that_is_not_streamed_has_none_either(rig: Rig) -> None:
    asked, call = await _relayed(rig, stream=False)

    rig.tick(500)
    assert not asked.task.done()
    await call.reply(200, {"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]})

    await asked.ends()
    assert len(asked.sink.outputs) == 1


async def test_a_relayed_stream_has(rig: Rig) -> None:
    asked, call = await _relayed(rig, stream=True)

    rig.tick(31)

    assert isinstance(await asked.fails(), WorkerSilent)
    await call.gone()


async def _relayed(rig: Rig, *, stream: bool) -> tuple[Any, ScriptedCall]:
    worker = await rig.scripted(OpenAI, Role.AGGREGATED)
    relay = Relay(rig.router, retries=0, observer=rig.seen)
    shape = Shape("chatcmpl-1", 0, "m", "chat.completion")
    request = RelayRequest("/v1/chat/completions", {"model": "m", "stream": stream}, shape, stream, include_usage=False)

    async def service(request: RelayRequest, context: Any, sink: Any, /) -> None:
        await relay(request, context, sink, RelayUsage())

    asked = rig.ask(request, service=service)
    return asked, await worker.call()


class OpenAI(Dialect):
    engine = Engine.OPENAI
    traits = WorkerTraits(served_name="m")


async def test_after_the_requests_deadline_the_call_is_closed(rig: Rig) -> None:
    worker = await rig.scripted(Vllm, Role.AGGREGATED)
    asked = rig.ask(context=rig.context(deadline=rig.clock() + 10), service=rig.resilient)
    call = await worker.call()

    rig.tick(9)
    assert not asked.task.done()
    rig.tick(2)

    assert isinstance(await asked.fails(), DeadlineExceeded)
    await call.gone()
    assert rig.seen.failures == []
    assert rig.seen.migrations == []
    assert rig.held(asked.context) == {}


async def test_the_requests_deadline_holds_for_a_paused_client_too(rig: Rig) -> None:
    worker = await rig.scripted(Vllm, Role.AGGREGATED)
    asked = rig.ask(context=rig.context(deadline=rig.clock() + 10))
    asked.context.flow.pause()
    await worker.call()

    rig.tick(11)

    assert isinstance(await asked.fails(), DeadlineExceeded)


@pytest.mark.parametrize("dialect", AT_ONCE)
async def test_after_the_requests_deadline_both_legs_of_a_tied_pair_are_closed(
    rig: Rig, dialect: type[Dialect]
) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask(context=rig.context(deadline=rig.clock() + 10))
    prefilling, decoding = await prefill.call(), await decode.call()

    rig.tick(11)

    assert isinstance(await asked.fails(), DeadlineExceeded)
    await prefilling.gone()
    await decoding.gone()
    await rig.drained()
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_after_the_requests_deadline_a_prefill_without_reply_is_closed(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask(context=rig.context(deadline=rig.clock() + 10))
    prefilling = await prefill.call()

    rig.tick(11)

    assert isinstance(await asked.fails(), DeadlineExceeded)
    await prefilling.gone()
    assert decode.paths == []
    assert rig.held(asked.context) == {}


async def test_an_answer_that_is_complete_in_time_is_not_late(rig: Rig) -> None:
    """The deadline passes between the reply's last byte and the call's return."""

    def late(taken: Taken) -> None:
        if taken.finish is not None:
            rig.tick(11)

    worker = await rig.scripted(Vllm, Role.AGGREGATED)
    asked = rig.ask(context=rig.context(deadline=rig.clock() + 10), sink=Taken(late))
    call = await worker.call()
    await call.stream()
    await call.end(Vllm().whole(FIRST))

    await asked.ends()


async def test_a_control_call_without_reply_is_given_up(rig: Rig) -> None:
    worker = await rig.scripted(Sglang, Role.AGGREGATED)
    posting = asyncio.create_task(rig.router.post(worker.worker, Call("/pause", b"{}")))
    call = await worker.call()

    rig.clock.forward(31)

    with pytest.raises(WorkerSilent):
        await posting
    await call.gone()


async def test_a_control_call_takes_any_reply(rig: Rig) -> None:
    worker = await rig.scripted(Sglang, Role.AGGREGATED)
    posting = asyncio.create_task(rig.router.post(worker.worker, Call("/pause", b"{}")))

    await (await worker.call()).reply(404, {"detail": "Not Found"})

    await posting
