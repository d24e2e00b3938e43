"""Hard rule 3 of tied pairs and aggregated workers: calls are closed, and who would notice late is told to abort."""

from __future__ import annotations

import pytest

from protocols.errors import InvalidRequest
from protocols.worker import Role
from tests.pipeline.dialects import AT_ONCE, FIRST, Dialect, Native, Sglang, Trtllm, Vllm
from tests.pipeline.doors import settled
from tests.pipeline.rig import Rig


@pytest.mark.parametrize("dialect", AT_ONCE)
@pytest.mark.parametrize("tokens", [0, 1])
async def test_rule_3_of_a_tied_pair_both_calls_are_closed_and_nothing_is_dispatched(
    rig: Rig, dialect: type[Dialect], tokens: int
) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()
    await decoding.stream(*[dialect().tokens(FIRST)] * tokens)
    await asked.sink.holds(*[FIRST] * tokens)

    await asked.leave()

    await prefilling.gone()
    await decoding.gone()
    await rig.drained()
    assert (len(prefill.paths), len(decode.paths)) == (1, 1)
    assert rig.held(asked.context) == {}


async def test_rule_3_both_workers_of_a_tied_pair_are_told_to_abort(rig: Rig) -> None:
    prefill, decode = await rig.pair(Sglang)
    asked = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()

    await asked.leave()

    await rig.drained()
    assert prefill.aborts == [{"rid": prefilling.json()["rid"]}]
    assert decode.aborts == [{"rid": decoding.json()["rid"]}]


async def test_rule_3_who_has_ended_by_itself_is_not_told_to_abort(rig: Rig) -> None:
    prefill, decode = await rig.pair(Sglang)
    asked = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()
    await prefilling.reply(200, Sglang.prefilled())
    await decoding.reply(400, {"error": {"message": "no"}})

    assert isinstance(await asked.fails(), InvalidRequest)

    await rig.drained()
    assert prefill.aborts == decode.aborts == []
    assert rig.held(asked.context) == {}


async def test_rule_3_an_abort_that_hangs_does_not_delay_the_other(rig: Rig) -> None:
    prefill, decode = await rig.pair(Sglang)
    asked = rig.ask()
    await prefill.call()
    await decode.call()
    door = rig.client.shut(prefill)

    await asked.leave()

    await settled(lambda: bool(decode.aborts))
    door.open()
    await rig.drained()
    assert len(prefill.aborts) == 1


async def test_rule_3_an_aggregated_worker_that_notices_late_is_told_to_abort(rig: Rig) -> None:
    worker = await rig.scripted(Sglang, Role.AGGREGATED)
    asked = rig.ask()
    call = await worker.call()

    await asked.leave()

    await call.gone()
    await rig.drained()
    assert worker.aborts == [{"rid": call.json()["rid"]}]
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", [Vllm, Trtllm, Native])
async def test_rule_3_an_aggregated_worker_that_notices_at_once_is_not(rig: Rig, dialect: type[Dialect]) -> None:
    worker = await rig.scripted(dialect, Role.AGGREGATED)
    asked = rig.ask()
    call = await worker.call()

    await asked.leave()

    await call.gone()
    await rig.drained()
    assert worker.aborts == []
