"""How long a worker may take, and how long a request: first token, between tokens, the whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engines.base import Call
from engines.openai_reply import Shape
from pipeline.relay import Relay, RelayRequest, RelayUsage
from protocols.errors import (
    DeadlineExceeded,
    WorkerSilent,
)
from protocols.worker import Engine, Role, WorkerTraits
from tests.pipeline.dialects import AT_ONCE, FIRST, IN_TURN, Dialect, Sglang, Vllm
from tests.pipeline.doors import settled
from tests.pipeline.rig import Rig, Taken, request_of
from tests.pipeline.scripted import ScriptedCall


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
    worker = await rig.scripted(Vllm, Role.AGGREGATED)
    asked = rig.ask()
    call = await worker.call()
    await call.stream(Vllm().tokens(FIRST))
    await asked.sink.holds(FIRST)

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
async def test_after_the_requests_deadline_a_prefill_without_reply_has_its_own_time_once_more(
    rig: Rig, dialect: type[Dialect]
) -> None:
    """Closed sooner, it might just have pinned what nobody would release."""
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask(context=rig.context(deadline=rig.clock() + 10))
    prefilling = await prefill.call()

    rig.tick(11)

    assert isinstance(await asked.fails(), DeadlineExceeded)
    rig.tick(29)
    assert prefilling.still_there()
    rig.tick(2)
    await prefilling.gone()
    await rig.drained()
    assert decode.paths == []
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_a_prefill_that_was_silent_for_too_long_fails_and_is_heard_out(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    prefilling = await prefill.call()

    rig.tick(31)

    assert isinstance(await asked.fails(), WorkerSilent)
    assert [worker_id for worker_id, _, _ in rig.seen.failures] == [prefill.id]
    await prefilling.reply(200, dialect.prefilled())
    decoding = await decode.call()
    await decoding.stream(dialect().tokens(FIRST))
    await decoding.gone()
    await rig.drained()
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
