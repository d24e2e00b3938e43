"""Hard rule 1: tokens flow to the client while a concurrent prefill still runs; a successful end waits for it."""

from __future__ import annotations

import pytest

from pipeline.deadlines import Deadlines
from pipeline.handoff import PrefillOutcome
from protocols.errors import Enough
from protocols.outputs import FinishReason
from tests.pipeline.dialects import AT_ONCE, FIRST, Dialect, Sglang
from tests.pipeline.rig import Rig, Taken, request_of


@pytest.mark.parametrize("dialect", AT_ONCE)
async def test_rule_1_tokens_flow_while_a_concurrent_prefill_runs_and_the_end_waits_for_it(
    rig: Rig, dialect: type[Dialect]
) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    prefilling, decoding, say = await prefill.call(), await decode.call(), dialect()

    await decoding.stream(say.tokens(FIRST, 10))
    await asked.sink.holds(FIRST, 10)
    await decoding.end(say.tokens(11), say.finish(), say.close())
    await asked.sink.holds(FIRST, 10, 11)

    assert asked.sink.finish is None
    assert not asked.task.done()
    await prefilling.reply(200, dialect.prefilled())
    await asked.ends()
    assert asked.sink.finish == FinishReason.LENGTH
    assert asked.sink.ids == [FIRST, 10, 11]
    assert rig.seen.outcomes == [PrefillOutcome.REMOTE]
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", AT_ONCE)
async def test_rule_1_prefill_may_end_first(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()

    await prefilling.reply(200, dialect.prefilled())
    await decoding.stream()
    await decoding.end(dialect().whole(FIRST, 10))

    await asked.ends()
    assert asked.sink.ids == [FIRST, 10]
    assert rig.seen.outcomes == [PrefillOutcome.REMOTE]


@pytest.mark.parametrize("dialect", AT_ONCE)
async def test_rule_1_a_prefill_that_does_not_end_is_cut_after_the_tail_and_the_answer_ends_well(
    dialect: type[Dialect],
) -> None:
    async with Rig(deadlines=Deadlines(prefill_tail_s=0.01)) as rig:
        prefill, decode = await rig.pair(dialect)
        asked = rig.ask()
        prefilling, decoding = await prefill.call(), await decode.call()

        await decoding.stream()
        await decoding.end(dialect().whole(FIRST, 10))

        await asked.ends()
        assert asked.sink.finish == FinishReason.LENGTH
        assert rig.seen.outcomes == [PrefillOutcome.TAIL_CUT]
        assert rig.seen.failures == []
        await prefilling.gone()


async def test_rule_1_a_prefill_that_was_cut_is_told_to_abort() -> None:
    async with Rig(deadlines=Deadlines(prefill_tail_s=0.01)) as rig:
        prefill, decode = await rig.pair(Sglang)
        asked = rig.ask()
        prefilling, decoding = await prefill.call(), await decode.call()

        await decoding.stream()
        await decoding.end(Sglang().whole(FIRST))
        await asked.ends()

        await rig.drained()
        assert prefill.aborts == [{"rid": prefilling.json()["rid"]}]
        assert decode.aborts == []
        assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", AT_ONCE)
async def test_rule_1_an_end_that_the_sink_wanted_waits_as_well(rig: Rig, dialect: type[Dialect]) -> None:
    def stop(taken: Taken) -> None:
        raise Enough(taken)

    prefill, decode = await rig.pair(dialect)
    asked = rig.ask(sink=Taken(stop))
    prefilling, decoding = await prefill.call(), await decode.call()

    await decoding.stream(dialect().tokens(FIRST))
    await decoding.gone()
    assert not asked.task.done()

    await prefilling.reply(200, dialect.prefilled())
    error = await asked.fails()
    assert isinstance(error, Enough)
    assert error.owner is asked.sink
    assert rig.seen.outcomes == [PrefillOutcome.REMOTE]


@pytest.mark.parametrize("dialect", AT_ONCE)
async def test_rule_1_both_legs_are_sent_before_either_answers(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask(request_of())

    prefilling, decoding = await prefill.call(), await decode.call()

    room = prefilling.json().get("bootstrap_room") or prefilling.json()["bootstrap_info"]["bootstrap_room"]
    same = decoding.json().get("bootstrap_room") or decoding.json()["bootstrap_info"]["bootstrap_room"]
    assert room == same
    await asked.leave()
