"""`Enough` reaches its owner through every operator, a sink's bug blames no worker, after the end there is silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.context import RequestContext
from pipeline.detokenize import Detokenizer
from pipeline.migration import Migration
from pipeline.preprocess import Prepared, Preprocessor
from pipeline.service import Service, link
from protocols.errors import Disconnected, EngineFailure, Enough, GatewayError, SinkFailed, WorkerSilent
from protocols.model_card import ModelCard
from protocols.openai import parse_completion
from protocols.worker import Role
from tests.pipeline.dialects import AT_ONCE, FIRST, IN_TURN, Dialect, Native, Sglang, Trtllm, Vllm
from tests.pipeline.engines_in_process import SteadyEngine
from tests.pipeline.rig import Asked, Rig, Taken, request_of
from tests.pipeline.scripted import ScriptedCall
from tests.text.answers import form
from tests.text.small_tokenizers import byte_level

COMPLETION = parse_completion(b'{"model": "m", "prompt": "p"}')
Built = Callable[[Rig], Service[Any, Any]]


def _plain(rig: Rig) -> Service[Any, Any]:
    return rig.tokens


def _texts(rig: Rig) -> Service[Any, Any]:
    return link(Detokenizer(byte_level()), rig.tokens)


def _resilient_texts(rig: Rig) -> Service[Any, Any]:
    detokenizer = Detokenizer(byte_level())
    migration = Migration(rig.resilience.limits, detokenizer.length_ending, rig.seen)
    return link(migration, link(detokenizer, rig.tokens))


CHAINS = [_plain, _resilient_texts]
"""The lowest service and the whole chain: between them every operator is passed."""
ROLES = [(dialect, paired) for dialect in (*IN_TURN, *AT_ONCE) for paired in (True, False)]


async def _decoding(
    rig: Rig, dialect: type[Dialect], paired: bool, asked: Callable[[], Asked]
) -> tuple[Asked, ScriptedCall]:
    """A request whose prefill, where it has one, is done; the call that brings the answer."""
    if not paired:
        worker = await rig.scripted(dialect, Role.AGGREGATED)
        return asked(), await worker.call()
    prefill, decode = await rig.pair(dialect)
    request = asked()
    await (await prefill.call()).reply(200, dialect.prefilled())
    return request, await decode.call()


# ---- Enough


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(("dialect", "paired"), ROLES)
async def test_enough_of_the_first_output_reaches_its_owner_and_ends_the_reply(
    rig: Rig, chain: Built, dialect: type[Dialect], paired: bool
) -> None:
    def enough(taken: Taken) -> None:
        raise Enough(taken)

    asked, decoding = await _decoding(rig, dialect, paired, lambda: rig.ask(service=chain(rig), sink=Taken(enough)))

    await decoding.stream(dialect().tokens(FIRST))
    await decoding.gone()

    error = await asked.fails()
    assert isinstance(error, Enough)
    assert error.owner is asked.sink
    assert asked.sink.batches == 1
    assert rig.seen.failures == []
    assert rig.seen.migrations == []
    await rig.drained()
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(("dialect", "paired"), ROLES)
async def test_enough_of_the_ending_reaches_its_owner(
    rig: Rig, chain: Built, dialect: type[Dialect], paired: bool
) -> None:
    def enough(taken: Taken) -> None:
        if taken.finish is not None:
            raise Enough(taken)

    asked, decoding = await _decoding(rig, dialect, paired, lambda: rig.ask(service=chain(rig), sink=Taken(enough)))

    await decoding.stream()
    await decoding.end(dialect().whole(FIRST, 10))

    error = await asked.fails()
    assert isinstance(error, Enough)
    assert error.owner is asked.sink
    assert asked.sink.ids == [FIRST, 10]
    await rig.drained()
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_anothers_enough_in_the_last_read_is_not_followed_by_the_ending(rig: Rig, dialect: type[Dialect]) -> None:
    def enough(taken: Taken) -> None:
        raise Enough(taken)

    asked, decoding = await _decoding(rig, dialect, True, lambda: rig.ask(sink=Taken(enough)))

    await decoding.stream(dialect().whole(FIRST, 10))

    assert isinstance(await asked.fails(), Enough)
    assert asked.sink.batches == 1


async def test_a_worker_whose_answers_are_cut_by_enough_has_served_well(rig: Rig) -> None:
    """Three failures in a row make a suspect; an answer that our own stop ended is no failure, and ends the row."""

    def enough(taken: Taken) -> None:
        raise Enough(taken)

    worker = await rig.scripted(Trtllm, Role.AGGREGATED)
    for fails in (True, True, False, True, True):
        asked = rig.ask(sink=Taken(enough))
        call = await worker.call()
        await (call.reply(500, {"message": "no"}) if fails else call.stream(Trtllm().tokens(FIRST)))
        await asked.fails()
        call.cut()

    assert rig.standing(worker) == "ready"


async def test_a_prefill_that_is_the_answer_can_be_enough(rig: Rig) -> None:
    def enough(taken: Taken) -> None:
        raise Enough(taken)

    prefill, decode = await rig.pair(Trtllm)
    asked = rig.ask(sink=Taken(enough))

    await (await prefill.call()).reply(200, Trtllm.prefilled(finish="stop"))

    assert isinstance(await asked.fails(), Enough)
    assert asked.sink.batches == 1
    assert decode.paths == []
    assert rig.held(asked.context) == {}


# ---- a bug in a sink


@pytest.mark.parametrize("raised", [ValueError("our bug"), EngineFailure("looks like a worker's")])
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(("dialect", "paired"), ROLES)
async def test_a_bug_in_a_sink_blames_no_worker_and_is_not_retried(
    rig: Rig, chain: Built, dialect: type[Dialect], paired: bool, raised: Exception
) -> None:
    def broken(taken: Taken) -> None:
        raise raised

    asked, decoding = await _decoding(rig, dialect, paired, lambda: rig.ask(service=chain(rig), sink=Taken(broken)))

    await decoding.stream(dialect().tokens(FIRST))
    await decoding.gone()

    error = await asked.fails()
    assert isinstance(error, SinkFailed)
    assert error.__cause__ is raised
    assert not isinstance(error, GatewayError)
    assert rig.seen.failures == []
    assert rig.seen.migrations == []
    assert asked.context.migration.last_error is None
    await rig.drained()
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("raised", [ValueError("our bug"), Disconnected("the client's, not a worker's")])
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(("dialect", "paired"), ROLES)
async def test_a_bug_that_shows_at_the_ending_is_not_retried_either(
    rig: Rig, chain: Built, dialect: type[Dialect], paired: bool, raised: Exception
) -> None:
    def broken(taken: Taken) -> None:
        if taken.finish is not None:
            raise raised

    asked, decoding = await _decoding(rig, dialect, paired, lambda: rig.ask(service=chain(rig), sink=Taken(broken)))

    await decoding.stream()
    await decoding.end(dialect().whole(FIRST, 10))

    error = await asked.fails()
    assert isinstance(error, SinkFailed)
    assert error.__cause__ is raised
    assert rig.seen.failures == []
    assert rig.seen.migrations == []
    await rig.drained()
    assert rig.held(asked.context) == {}


async def test_a_bug_that_shows_at_a_replys_end_is_a_sinks_too(rig: Rig) -> None:
    """A reply without its end mark is complete when the connection ends: its last output goes up then."""

    def broken(taken: Taken) -> None:
        if taken.finish is not None:
            raise Disconnected("not a worker's")

    worker = await rig.scripted(Vllm, Role.AGGREGATED)
    asked = rig.ask(sink=Taken(broken), service=rig.resilient)
    call = await worker.call()
    say = Vllm()

    await call.stream(say.tokens(FIRST), say.finish())
    call.cut()

    assert isinstance(await asked.fails(), SinkFailed)
    assert len(worker.paths) == 1


async def test_a_bug_that_shows_at_a_migrations_own_ending_is_a_sinks_too(rig: Rig) -> None:
    def broken(taken: Taken) -> None:
        if taken.finish is not None:
            raise Disconnected("not a worker's")

    detokenizer = Detokenizer(byte_level())
    engine = link(detokenizer, SteadyEngine(b"abcd", breaks=[4]))
    service = link(Migration(rig.resilience.limits, detokenizer.length_ending, rig.seen), engine)
    asked = rig.ask(request_of(stop={"max_tokens": 4}), service=service, sink=Taken(broken))

    assert isinstance(await asked.fails(), SinkFailed)


async def test_a_bug_in_what_was_held_for_prompt_logprobs_interrupts_the_answer(rig: Rig) -> None:
    def broken(taken: Taken) -> None:
        raise ValueError("our bug")

    prefill, decode = await rig.pair(Sglang)
    asked = rig.ask(request_of(output={"prompt_logprobs": 0}), sink=Taken(broken))
    prefilling, decoding = await prefill.call(), await decode.call()
    await decoding.stream(Sglang().tokens(FIRST))
    await rig.client.answered(decode)

    await prefilling.reply(200, Sglang.prefilled())

    assert isinstance(await asked.fails(), SinkFailed)
    await decoding.gone()
    await rig.drained()
    assert rig.held(asked.context) == {}


# ---- silence


async def _late(call: ScriptedCall, data: bytes) -> None:
    """More of a reply that nobody wants any more; the connection may be gone."""
    try:
        await call.send(data)
    except ConnectionError:
        pass
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(("dialect", "paired"), ROLES)
async def test_late_data_reaches_no_sink_after_the_client_has_left(
    rig: Rig, chain: Built, dialect: type[Dialect], paired: bool
) -> None:
    asked, decoding = await _decoding(rig, dialect, paired, lambda: rig.ask(service=chain(rig)))
    await decoding.stream(dialect().tokens(FIRST))
    await asked.sink.holds(FIRST)

    asked.task.cancel()
    await _late(decoding, dialect().whole(10, 11))

    assert asked.task.cancelled()
    assert asked.sink.ids[:1] == [FIRST]
    await rig.drained()
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize(("dialect", "paired"), ROLES)
async def test_late_data_reaches_no_sink_after_a_deadline(rig: Rig, dialect: type[Dialect], paired: bool) -> None:
    asked, decoding = await _decoding(rig, dialect, paired, rig.ask)
    await decoding.stream(dialect().tokens(FIRST))
    await asked.sink.holds(FIRST)

    rig.tick(61.0)
    await _late(decoding, dialect().whole(10, 11))

    assert isinstance(await asked.fails(), WorkerSilent)
    assert asked.sink.ids == [FIRST]
    await rig.drained()


@pytest.mark.parametrize("dialect", AT_ONCE)
async def test_late_data_reaches_no_sink_after_the_peer_has_failed(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()
    await decoding.stream(dialect().tokens(FIRST))
    await asked.sink.holds(FIRST)

    await prefilling.reply(500, {"error": {"message": "no", "type": "InternalServerError"}})
    await asked.fails()
    await _late(decoding, dialect().whole(10, 11))

    assert asked.sink.ids == [FIRST]
    await rig.drained()


async def test_of_two_choices_neither_reaches_the_sink_after_one_has_failed(rig: Rig) -> None:
    worker = await rig.scripted(Native, Role.AGGREGATED)
    asked = rig.ask([request_of(), request_of()], service=_two(_texts(rig)))
    first, second = await worker.call(), await worker.call()
    await second.stream(Native().tokens(FIRST))

    await first.reply(500, {"error": {"message": "no", "type": "InternalServerError"}})
    await asked.fails()
    await _late(second, Native().whole(10, 11))

    assert [output.token_ids for choice in asked.sink.outputs for output in choice.outputs] in ([[FIRST]], [])
    assert rig.held(asked.context) == {}


async def test_two_choices_share_their_clients_pace(rig: Rig) -> None:
    worker = await rig.scripted(Native, Role.AGGREGATED)
    asked = rig.ask([request_of(), request_of()], service=_two(_texts(rig)))
    calls = [await worker.call(), await worker.call()]

    asked.context.flow.pause()
    for call in calls:
        await call.stream(Native().tokens(FIRST))
    for _ in range(10):
        await asyncio.sleep(0)
    assert asked.sink.outputs == []
    asked.context.flow.resume()
    for call in calls:
        await call.end(Native().finish(), Native().close())

    await asked.ends()
    assert sorted({choice.index for choice in asked.sink.outputs}) == [0, 1]


async def test_the_enough_of_one_choice_ends_both_and_reaches_its_owner(rig: Rig) -> None:
    def enough(taken: Taken) -> None:
        raise Enough(taken)

    worker = await rig.scripted(Native, Role.AGGREGATED)
    asked = rig.ask([request_of(), request_of()], service=_two(_texts(rig)), sink=Taken(enough))
    first, second = await worker.call(), await worker.call()
    await first.stream(Native().tokens(FIRST))

    error = await asked.fails()
    assert isinstance(error, Enough)
    await second.gone()
    assert asked.sink.batches == 1
    assert rig.held(asked.context) == {}


def _two(downstream: Service[Any, Any]) -> Service[Any, Any]:
    """Every prompt of a request as a choice of its own."""
    preprocessor = Preprocessor(ModelCard("m"), byte_level(), None)
    choices = link(preprocessor, downstream)

    async def asked(prompts: Any, context: RequestContext, sink: Any, /) -> None:
        await choices(Prepared(COMPLETION, tuple(prompts), form()), context, sink)

    return asked


# ---- what goes up together


@pytest.mark.parametrize(("finish_alone", "batches"), [(True, 3), (False, 2)])
async def test_the_last_tokens_go_up_with_the_ending_that_came_with_them(
    rig: Rig, finish_alone: bool, batches: int
) -> None:
    engine = SteadyEngine(b"ab", finish_alone=finish_alone)
    asked = rig.ask(service=link(Detokenizer(byte_level()), engine))

    await asked.ends()

    assert (asked.sink.text, asked.sink.batches) == ("ab", batches)
