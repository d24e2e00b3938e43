"""Consuming prefill: the seeds' tests of it by equivalents, and how a model's attempts find their workers."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from pipeline.handoff import PrefillOutcome
from protocols.errors import (
    EngineAborted,
    EngineFailure,
    InvalidRequest,
    NoAvailableWorkers,
    Overloaded,
    WorkerBusy,
    WorkerFailure,
)
from protocols.outputs import FinishReason
from protocols.worker import Leg, Role
from routers.base import Status
from tests.pipeline.dialects import (
    ALL,
    AT_ONCE,
    DONE,
    FIRST,
    IN_TURN,
    Dialect,
    Native,
    Sglang,
    TiedNative,
    Trtllm,
    Vllm,
)
from tests.pipeline.doors import settled
from tests.pipeline.rig import Rig, request_of
from tests.pipeline.scripted import PATIENCE_S


def _event(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


GOOD = _event({"token_ids": [FIRST], "disaggregated_params": {"state": 1}})
LOST = b'event: error\ndata: {"message": "connection closed during prefill"}\n\n'
FAILED = _event({"token_ids": [], "finish_reason": {"error": "backend prefill failed"}})
CANCELLED = _event({"token_ids": [], "finish_reason": "cancelled"})

# ---- the seeds' tests


@pytest.mark.parametrize(
    ("failure", "kind"), [(LOST, EngineFailure), (FAILED, EngineFailure), (CANCELLED, EngineAborted)]
)
async def test_a_failure_in_a_bootstrap_prefills_tail_reaches_a_pending_decode(
    rig: Rig, failure: bytes, kind: type[WorkerFailure]
) -> None:
    prefill, decode = await rig.pair(TiedNative)
    asked = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()
    await prefilling.stream(GOOD)
    await decoding.stream()
    await rig.client.answered(decode)

    await prefilling.send(failure)

    error = await asked.fails()
    assert type(error) is kind
    assert isinstance(error, WorkerFailure)
    assert error.code == "prefill_failed"
    await decoding.gone()
    assert asked.sink.outputs == []


async def test_a_bootstrap_pair_that_is_being_ended_keeps_the_application_from_shutting_down_under_it(rig: Rig) -> None:
    prefill, decode = await rig.pair(Sglang)
    asked = rig.ask()
    await prefill.call()
    await decode.call()
    door = rig.client.shut(prefill)
    await asked.leave()

    shutdown = asyncio.create_task(rig.background.drain(PATIENCE_S))
    await door.knock()
    assert not shutdown.done()
    door.open()

    await shutdown
    assert len(prefill.aborts) == len(decode.aborts) == 1


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_a_release_keeps_the_application_from_shutting_down_under_it(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    prefilling = await prefill.call()
    rest = await prefilling.begin_reply(dialect.prefilled())
    await rig.client.heard(prefill)
    await asked.leave()

    shutdown = asyncio.create_task(rig.background.drain(PATIENCE_S))
    await prefilling.raw(rest)
    prefilling.over.set()
    decoding = await decode.call()
    assert not shutdown.done()
    await decoding.stream(dialect().tokens(FIRST))

    await shutdown
    assert rig.held(asked.context) == {}


async def test_an_error_as_prefills_first_output_does_not_record_its_completion(rig: Rig) -> None:
    prefill, decode = await rig.pair(Native)
    asked = rig.ask()

    await (await prefill.call()).stream(LOST)

    error = await asked.fails()
    assert "connection closed during prefill" in str(error)
    assert asked.context.tracker.prefill_completed_at is None
    assert decode.paths == []


async def test_a_later_error_of_prefill_is_propagated_after_its_completion_was_recorded(rig: Rig) -> None:
    prefill, decode = await rig.pair(Native)
    asked = rig.ask()
    prefilling = await prefill.call()
    await prefilling.stream(GOOD)
    await settled(lambda: asked.context.tracker.prefill_completed_at is not None)

    await prefilling.send(LOST)

    error = await asked.fails()
    assert "connection closed during prefill" in str(error)
    assert decode.paths == []


async def test_a_bootstrap_prefill_is_complete_at_its_streams_end_not_before(rig: Rig) -> None:
    prefill, decode = await rig.pair(TiedNative)
    asked = rig.ask()
    prefilling, decoding = await prefill.call(), await decode.call()
    await prefilling.stream(GOOD)
    await decoding.stream(TiedNative().tokens(FIRST))
    await asked.sink.holds(FIRST)
    assert asked.context.tracker.prefill_completed_at is None

    await prefilling.end(DONE)

    await settled(lambda: asked.context.tracker.prefill_completed_at is not None)
    await asked.leave()


async def test_a_bootstrap_prefill_that_fails_is_never_complete(rig: Rig) -> None:
    prefill, decode = await rig.pair(TiedNative)
    asked = rig.ask()
    prefilling = await prefill.call()
    await decode.call()
    await prefilling.stream(GOOD)

    await prefilling.send(FAILED)

    await asked.fails()
    assert asked.context.tracker.prefill_completed_at is None


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("eos", FinishReason.EOS), ("stop", FinishReason.STOP), ("content_filter", FinishReason.CONTENT_FILTER)],
)
async def test_a_terminal_finish_without_handoff_is_returned_to_the_caller(
    rig: Rig, finish: str, reason: FinishReason
) -> None:
    prefill, decode = await rig.pair(Native)
    asked = rig.ask()

    await (await prefill.call()).reply(200, {"token_ids": [2], "finish_reason": finish})

    await asked.ends()
    assert asked.sink.ids == [2]
    assert asked.sink.finish == reason
    assert decode.paths == []


@pytest.mark.parametrize("finish", ["cancelled", {"error": "prefill failed"}])
async def test_a_terminal_finish_that_is_a_failure_is_raised(rig: Rig, finish: Any) -> None:
    """The seeds return it as an output; here it is a failure of the attempt, which may go on elsewhere."""
    prefill, decode = await rig.pair(Native)
    asked = rig.ask()

    await (await prefill.call()).reply(200, {"token_ids": [2], "finish_reason": finish})

    assert isinstance(await asked.fails(), WorkerFailure)
    assert decode.paths == []


@pytest.mark.parametrize("finish", ["length", None])
async def test_a_prefill_that_is_length_limited_or_unfinished_still_needs_its_handoff(
    rig: Rig, finish: str | None
) -> None:
    prefill, decode = await rig.pair(Native)
    asked = rig.ask()

    given = {"token_ids": [FIRST], "finish_reason": finish, "disaggregated_params": {"ctx_request_id": 42}}
    prefilling = await prefill.call()
    await prefilling.stream(_event(given))
    await prefilling.end(DONE)

    body = (await decode.call()).json()
    assert body["prefill_result"]["disaggregated_params"] == {"ctx_request_id": 42}
    await asked.leave()
    await rig.background.drain(0)


@pytest.mark.parametrize("params", [{"ctx_request_id": None}, {"request_type": "context_only"}])
async def test_a_prefill_without_usable_ctx_request_id_fails_before_decode(rig: Rig, params: Any) -> None:
    prefill, decode = await rig.pair(Native)
    asked = rig.ask()

    prefilling = await prefill.call()
    await prefilling.stream(_event({"token_ids": [FIRST], "disaggregated_params": params}))
    await prefilling.end(DONE)

    error = await asked.fails()
    assert isinstance(error, EngineFailure)
    assert "no usable ctx_request_id" in str(error)
    assert decode.paths == []


# ---- who serves an attempt


@pytest.mark.parametrize("dialect", ALL)
async def test_no_prefill_starts_that_no_decode_worker_could_take(dialect: type[Dialect]) -> None:
    async with Rig(policy="strict") as rig:
        prefill = await rig.scripted(dialect, Role.PREFILL)
        await rig.scripted(dialect, Role.DECODE, version="another")

        asked = rig.ask()

        assert isinstance(await asked.fails(), NoAvailableWorkers)
        assert prefill.paths == []
        assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", [Vllm, Trtllm])
async def test_one_token_is_asked_of_a_prefill_worker_alone(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask(request_of(stop={"max_tokens": 1}))

    call = await prefill.call()
    assert "kv_transfer_params" not in call.json()
    assert "disaggregated_params" not in call.json()
    await call.stream()
    await call.end(dialect().whole(FIRST))

    await asked.ends()
    assert asked.sink.ids == [FIRST]
    assert decode.paths == []
    assert rig.seen.outcomes == [PrefillOutcome.BYPASSED]
    assert asked.context.tracker.worker_of(Leg.DECODE).worker_id == prefill.id
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", [*AT_ONCE, Native])
async def test_where_no_worker_of_a_pair_may_serve_alone_one_token_takes_both(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask(request_of(stop={"max_tokens": 1}))

    prefilling = await prefill.call()
    if dialect is Native:
        await prefilling.reply(200, dialect.prefilled())
    await decode.call()

    await asked.leave()
    await rig.background.drain(0)


@pytest.mark.parametrize("dialect", [Vllm, Trtllm])
async def test_without_prefill_workers_a_decode_worker_prefills_itself(rig: Rig, dialect: type[Dialect]) -> None:
    decode = await rig.scripted(dialect, Role.DECODE)
    asked = rig.ask()

    call = await decode.call()
    await call.stream()
    await call.end(dialect().whole(FIRST))

    await asked.ends()
    assert rig.seen.outcomes == [PrefillOutcome.LOCAL]
    assert asked.context.tracker.worker_of(Leg.DECODE).worker_id == decode.id


@pytest.mark.parametrize("dialect", [Sglang, Native])
async def test_where_it_cannot_prefill_itself_the_model_is_refused(rig: Rig, dialect: type[Dialect]) -> None:
    decode = await rig.scripted(dialect, Role.DECODE)

    asked = rig.ask()

    assert isinstance(await asked.fails(), NoAvailableWorkers)
    assert decode.paths == []


async def test_policy_strict_refuses_what_policy_local_would_serve() -> None:
    async with Rig(policy="strict") as rig:
        decode = await rig.scripted(Vllm, Role.DECODE)

        asked = rig.ask()

        assert isinstance(await asked.fails(), NoAvailableWorkers)
        assert decode.paths == []


@pytest.mark.parametrize("dialect", [*AT_ONCE, Native])
async def test_an_aggregated_worker_serves_when_there_is_no_prefill_worker(rig: Rig, dialect: type[Dialect]) -> None:
    decode = await rig.scripted(dialect, Role.DECODE)
    whole = await rig.scripted(dialect, Role.AGGREGATED)
    asked = rig.ask()

    call = await whole.call()
    await call.stream()
    await call.end(dialect().whole(FIRST))

    await asked.ends()
    assert decode.paths == []
    assert rig.seen.outcomes == [PrefillOutcome.LOCAL]


@pytest.mark.parametrize("dialect", ALL)
async def test_an_aggregated_worker_serves_when_no_decode_worker_is_up(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    whole = await rig.scripted(dialect, Role.AGGREGATED)
    rig.registry.lost(decode.id, Status.DOWN, "gone")
    asked = rig.ask()

    call = await whole.call()
    await call.stream()
    await call.end(dialect().whole(FIRST))

    await asked.ends()
    assert prefill.paths == decode.paths == []
    assert rig.seen.outcomes == [PrefillOutcome.LOCAL]
    assert rig.held(asked.context) == {}


async def test_a_busy_prefill_worker_is_nobodys_fault(rig: Rig) -> None:
    prefill, _ = await rig.pair(Sglang)
    asked = rig.ask()

    await (await prefill.call()).reply(503, {"object": "error", "message": "The request queue is full.", "code": 503})

    error = await asked.fails()
    assert isinstance(error, WorkerBusy)
    assert asked.context.migration.excluded_worker_ids() == frozenset()
    assert rig.standing(prefill) == "busy"
    again = rig.ask()
    assert isinstance(await again.fails(), Overloaded)
    await rig.drained()


async def test_a_pin_to_an_unknown_worker_names_its_header(rig: Rig) -> None:
    await rig.pair(Vllm)

    asked = rig.ask(request_of(routing={"prefill_worker_id": 999}))

    error = await asked.fails()
    assert isinstance(error, InvalidRequest)
    assert error.param == "x-tandem-prefill-worker"
    assert rig.held(asked.context) == {}
