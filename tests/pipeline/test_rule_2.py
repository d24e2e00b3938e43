"""Hard rule 2: a late prefill failure replaces a decode success; a decode failure waits for nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from pipeline.detokenize import Detokenizer
from pipeline.handoff import PrefillOutcome
from pipeline.migration import Migration
from pipeline.service import link
from protocols.errors import (
    Disconnected,
    EngineAborted,
    EngineFailure,
    IncompleteReply,
    InvalidRequest,
    WorkerFailure,
    WorkerSilent,
)
from protocols.outputs import FinishReason
from protocols.worker import Role
from tests.pipeline.dialects import AT_ONCE, DONE, FIRST, Dialect, Sglang, TiedNative
from tests.pipeline.doors import settled
from tests.pipeline.rig import Rig, request_of
from tests.pipeline.scripted import ScriptedCall
from tests.text.small_tokenizers import byte_level

Failing = Callable[[ScriptedCall], Awaitable[None]]


async def _answers_500(call: ScriptedCall) -> None:
    await call.reply(500, {"error": {"message": "Prefill transfer failed", "type": "InternalServerError"}})


async def _answers_nothing(call: ScriptedCall) -> None:
    await call.reply(200, b"")


async def _breaks(call: ScriptedCall) -> None:
    call.reset()


FAILINGS: list[tuple[Failing, type[WorkerFailure]]] = [
    (_answers_500, EngineFailure),
    (_answers_nothing, IncompleteReply),
    (_breaks, Disconnected),
]


@pytest.mark.parametrize("dialect", AT_ONCE)
@pytest.mark.parametrize(("failing", "kind"), FAILINGS)
async def test_rule_2_a_late_prefill_failure_replaces_decode_success(
    rig: Rig, dialect: type[Dialect], failing: Failing, kind: type[WorkerFailure]
) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()
    await decoding.stream()
    await decoding.end(dialect().whole(FIRST, 10))
    await asked.sink.holds(FIRST, 10)

    await failing(prefilling)

    error = await asked.fails()
    assert type(error) is kind
    assert isinstance(error, WorkerFailure)
    assert error.code == "prefill_failed"
    assert error.worker_id == prefill.id
    assert asked.sink.finish is None
    assert rig.seen.outcomes == [PrefillOutcome.FAILED]
    assert [failed for failed, _, _ in rig.seen.failures] == [prefill.id]


async def test_rule_2_an_abort_at_prefill_that_nobody_asked_for_is_a_failure(rig: Rig) -> None:
    prefill, decode = await rig.pair(Sglang)
    asked = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()
    await decoding.stream()
    await decoding.end(Sglang().whole(FIRST))

    await prefilling.reply(200, Sglang.prefilled(finish="abort"))

    assert isinstance(await asked.fails(), EngineAborted)


@pytest.mark.parametrize("dialect", AT_ONCE)
@pytest.mark.parametrize(("failing", "kind"), FAILINGS)
async def test_rule_2_a_silent_decode_is_interrupted_by_a_prefill_failure(
    rig: Rig, dialect: type[Dialect], failing: Failing, kind: type[WorkerFailure]
) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()

    await failing(prefilling)

    error = await asked.fails()
    assert type(error) is kind
    await decoding.gone()
    assert [failed for failed, _, _ in rig.seen.failures] == [prefill.id]


async def test_rule_2_a_decode_that_hangs_in_the_middle_is_interrupted_as_well(rig: Rig) -> None:
    prefill, decode = await rig.pair(Sglang)
    asked = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()
    await decoding.stream(Sglang().tokens(FIRST))
    await asked.sink.holds(FIRST)

    await _answers_500(prefilling)

    assert isinstance(await asked.fails(), EngineFailure)
    await decoding.gone()


@pytest.mark.parametrize("dialect", AT_ONCE)
async def test_rule_2_a_decode_on_a_pooled_connection_is_not_asked_again_when_prefill_broke(
    rig: Rig, dialect: type[Dialect]
) -> None:
    """The failure that decode is given is prefill's Disconnected: not its own dead connection."""
    prefill, decode = await rig.pair(dialect)
    first = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()
    await prefilling.reply(200, dialect.prefilled())
    await decoding.stream()
    await decoding.end(dialect().whole(FIRST))
    await first.ends()

    asked = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()
    await prefilling.begin_reply(dialect.prefilled())
    prefilling.reset()

    error = await asked.fails()
    assert isinstance(error, Disconnected)
    assert error.worker_id == prefill.id
    await decoding.gone()
    assert decode.paths.count(decoding.path) == 2
    await rig.drained()
    assert rig.held(asked.context) == {}


async def test_rule_2_a_decode_that_is_just_being_asked_again_is_interrupted(rig: Rig) -> None:
    """Its pooled connection was dead, and prefill fails while it is dialled anew."""
    prefill, decode = await rig.pair(TiedNative)
    first = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()
    await prefilling.reply(200, TiedNative.prefilled())
    await decoding.stream()
    await decoding.end(TiedNative().whole(FIRST))
    await first.ends()

    asked = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()
    door = rig.client.shut(decode)
    decoding.reset()
    await door.knock()
    await _answers_500(prefilling)
    await settled(lambda: bool(rig.seen.failures))
    door.open()

    error = await asked.fails()
    assert isinstance(error, WorkerFailure)
    assert error.worker_id == prefill.id
    assert rig.held(asked.context) == {}


async def test_rule_2_a_refusal_at_prefill_is_the_clients(rig: Rig) -> None:
    prefill, decode = await rig.pair(Sglang)
    asked = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()

    await prefilling.reply(400, {"error": {"message": "temperature must be non-negative"}})

    error = await asked.fails()
    assert isinstance(error, InvalidRequest)
    await decoding.gone()
    assert rig.seen.failures == []
    assert rig.standing(prefill) == rig.standing(decode) == "ready"


@pytest.mark.parametrize("dialect", AT_ONCE)
async def test_rule_2_a_decode_failure_waits_for_nothing(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()
    await decoding.stream(dialect().tokens(FIRST))

    await decoding.end(dialect().error())

    error = await asked.fails()
    assert isinstance(error, EngineFailure)
    assert error.worker_id == decode.id
    assert error.code == "worker_failed"
    await prefilling.gone()
    assert rig.seen.outcomes == [PrefillOutcome.FAILED]


async def test_rule_2_a_decode_that_cannot_be_reached_ends_prefill(rig: Rig) -> None:
    prefill = await rig.scripted(Sglang, Role.PREFILL)
    rig.absent(Sglang, Role.DECODE)
    asked = rig.ask()
    prefilling = await prefill.call()

    assert isinstance(await asked.fails(), WorkerFailure)
    await prefilling.gone()
    await rig.drained()
    assert len(prefill.aborts) == 1
    assert rig.held(asked.context) == {}


async def test_rule_2_migration_goes_on_after_a_late_prefill_failure(rig: Rig) -> None:
    pairs = [await rig.pair(Sglang), await rig.pair(Sglang)]
    asked = rig.ask(service=rig.resilient)
    (prefill, decode), (other_prefill, other_decode) = pairs
    prefilling, decoding = await prefill.call(), await decode.call()
    await decoding.stream()
    await decoding.end(Sglang().whole(FIRST, 10))
    await asked.sink.holds(FIRST, 10)

    await _answers_500(prefilling)
    prefilling, decoding = await other_prefill.call(), await other_decode.call()
    assert decoding.json()["input_ids"] == [1, 450, 7483, FIRST, 10]
    await prefilling.reply(200, Sglang.prefilled())
    await decoding.stream()
    await decoding.end(Sglang().whole(11))

    await asked.ends()
    assert asked.sink.ids == [FIRST, 10, 11]
    assert asked.sink.finish == FinishReason.LENGTH
    assert rig.seen.migrations == ["ongoing_request"]
    assert rig.seen.outcomes == [PrefillOutcome.FAILED, PrefillOutcome.REMOTE]


@pytest.mark.parametrize("dialect", AT_ONCE)
async def test_rule_2_when_our_own_stop_had_ended_the_text_the_client_gets_the_error(
    rig: Rig, dialect: type[Dialect]
) -> None:
    """Nothing may be added behind a stop: this failure is not migrated."""
    prefill, decode = await rig.pair(dialect)
    await rig.pair(dialect)
    detokenizer = Detokenizer(byte_level())
    texts = link(detokenizer, rig.tokens)
    limits = rig.resilience.limits
    service = link(Migration(limits, detokenizer.length_ending, rig.seen), texts)
    asked = rig.ask(request_of(stop={"stop": ("lo",)}), service=service)
    prefilling, decoding, say = await prefill.call(), await decode.call(), dialect()
    await decoding.stream(say.tokens(*b"hello"))
    await decoding.gone()

    await _answers_500(prefilling)

    error = await asked.fails()
    assert isinstance(error, EngineFailure)
    assert error.worker_id == prefill.id
    assert asked.sink.text == "hel"
    assert rig.seen.migrations == []


async def test_rule_2_a_prefill_that_stays_silent_is_a_failure(rig: Rig) -> None:
    prefill, decode = await rig.pair(Sglang)
    asked = rig.ask()
    await prefill.call()
    decoding = await decode.call()

    rig.tick(29.0)
    assert not asked.task.done()
    rig.tick(2.0)

    error = await asked.fails()
    assert isinstance(error, WorkerSilent)
    await decoding.gone()


async def test_rule_2_a_prefill_without_its_finish_is_no_success(rig: Rig) -> None:
    prefill, decode = await rig.pair(TiedNative)
    asked = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()
    await decoding.stream()
    await decoding.end(TiedNative().whole(FIRST))

    await prefilling.stream(DONE)
    prefilling.cut()

    assert isinstance(await asked.fails(), IncompleteReply)
