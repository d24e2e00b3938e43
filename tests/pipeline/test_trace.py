"""Workers are told the trace of the request that they serve, on both legs and at every attempt."""

from __future__ import annotations

import pytest

from protocols.worker import Role
from tests.pipeline.dialects import AT_ONCE, FIRST, IN_TURN, Dialect, Vllm
from tests.pipeline.rig import Rig

TRACE = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


@pytest.mark.parametrize("dialect", [*IN_TURN, *AT_ONCE])
async def test_both_legs_are_told_the_trace(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    context = rig.context()
    context.trace = (TRACE,)
    asked = rig.ask(context=context)

    prefilling = await prefill.call()
    await prefilling.reply(200, dialect.prefilled())
    decoding = await decode.call()
    await decoding.stream()
    await decoding.end(dialect().whole(FIRST, 10))
    await asked.ends()

    assert [call.headers[TRACE[0]] for call in (prefilling, decoding)] == [TRACE[1]] * 2


async def test_a_request_of_no_trace_tells_none(rig: Rig) -> None:
    worker = await rig.scripted(Vllm, Role.AGGREGATED)
    asked = rig.ask()

    call = await worker.call()

    assert TRACE[0] not in call.headers
    await asked.leave()
