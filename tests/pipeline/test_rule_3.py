"""Hard rule 3: a client that leaves leaves nothing pinned."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from pipeline.handoff import PrefillOutcome
from protocols.errors import (
    DeadlineExceeded,
    Disconnected,
    EngineFailure,
    GatewayError,
    InvalidRequest,
    WorkerSilent,
)
from protocols.options import GuidedDecoding
from protocols.worker import Role, WorkerTraits
from tests.pipeline.dialects import FIRST, IN_TURN, Dialect, Native, Trtllm, Vllm
from tests.pipeline.doors import settled
from tests.pipeline.rig import Rig, request_of
from tests.pipeline.scripted import ScriptedCall, ScriptedWorker

UNTIL_FIRST_TOKEN = (Trtllm, Native)
GENERATES = WorkerTraits(served_name="m", generate=True)
PINS_AFTER_A_REFUSAL = ((Vllm, GENERATES), (Trtllm, Trtllm.traits), (Native, Native.traits))
REFUSED = {"error": {"message": "validation error: no", "type": "BadRequestError"}}


def _handed_over(dialect: type[Dialect], call: ScriptedCall) -> Any:
    """What a decode call brings of prefill's."""
    body = call.json()
    if dialect is Vllm:
        return body.get("kv_transfer_params")
    return body.get("disaggregated_params") if dialect is Trtllm else body.get("prefill_result")


async def _fetched(dialect: type[Dialect], decode: ScriptedWorker) -> ScriptedCall:
    """The decode call that frees prefill's blocks; its worker answers as far as it must and is left then."""
    decoding = await decode.call()
    assert _handed_over(dialect, decoding)
    await decoding.stream()
    if dialect is not Vllm:
        assert decoding.still_there()
        await decoding.send(dialect().tokens(FIRST))
    await decoding.gone()
    return decoding


# ---- in turn: prefill


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_rule_3_a_prefill_that_was_not_sent_is_not_sent(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    door = rig.client.shut(prefill)
    asked = rig.ask()
    await door.knock()

    await asked.leave()

    assert rig.held(asked.context) == {}
    assert prefill.paths == decode.paths == []
    assert rig.seen.outcomes == []


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("dialect", IN_TURN)
async def test_rule_3_from_its_sending_on_prefills_reply_is_read_to_its_end_and_decode_is_dispatched(
    rig: Rig, dialect: type[Dialect], begun: bool
) -> None:
    """A call that is closed as the prefill ends leaves the blocks pinned, and nobody here would know."""
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    prefilling = await prefill.call()
    head, body = prefilling.halves(dialect.prefilled())
    await prefilling.raw(head * begun)
    await settled(lambda: rig.client.has_heard(prefill.worker.url) is begun)

    await asked.leave()
    assert prefilling.still_there()
    assert len(rig.background) == 1
    await prefilling.raw(head * (not begun) + body)
    prefilling.over.set()

    await _fetched(dialect, decode)
    await rig.drained()
    assert asked.sink.outputs == []
    assert rig.seen.outcomes == []
    assert rig.held(asked.context) == {}


async def test_rule_3_vllm_a_prefill_without_a_client_is_aborted_and_says_what_it_has_pinned(rig: Rig) -> None:
    prefill, decode = await rig.pair(Vllm, traits=GENERATES)
    asked = rig.ask()
    prefilling = await prefill.call()

    await asked.leave()
    await settled(lambda: bool(prefill.aborts))
    assert prefilling.still_there()
    await prefilling.reply(200, Vllm.prefilled(finish="abort", kv_transfer_params=None))

    await rig.drained()
    (aborted,) = prefill.aborts
    assert f"generate-tokens-{prefilling.headers['x-request-id']}" in aborted["request_ids"]
    assert decode.paths == []
    assert rig.seen.failures == []
    assert rig.held(asked.context) == {}


async def test_rule_3_vllm_an_abort_that_comes_too_late_is_no_release(rig: Rig) -> None:
    prefill, decode = await rig.pair(Vllm, traits=GENERATES)
    asked = rig.ask()
    prefilling = await prefill.call()

    await asked.leave()
    await prefilling.reply(200, Vllm.prefilled())

    await _fetched(Vllm, decode)
    await rig.drained()
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_rule_3_a_prefill_whose_connection_was_dead_is_not_sent_again_for_nobody(
    rig: Rig, dialect: type[Dialect]
) -> None:
    prefill, decode = await rig.pair(dialect)
    first = rig.ask()
    await (await prefill.call()).reply(400, REFUSED)
    assert isinstance(await first.fails(), InvalidRequest)
    asked = rig.ask()
    prefilling = await prefill.call()

    await asked.leave()
    prefilling.reset()

    await rig.drained()
    assert (len(prefill.paths), decode.paths) == (2, [])
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_rule_3_the_task_that_releases_is_made_in_the_step_that_catches_the_cancel(
    rig: Rig, dialect: type[Dialect]
) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    await (await prefill.call()).reply(200, dialect.prefilled())
    await decode.call()

    asked.task.cancel()
    await settled(asked.task.done)

    assert len(rig.background) == 1


async def test_rule_3_what_pinned_nothing_is_not_dispatched(rig: Rig) -> None:
    prefill, decode = await rig.pair(Vllm)
    asked = rig.ask()
    prefilling = await prefill.call()
    rest = await prefilling.begin_reply(Vllm.prefilled(kv_transfer_params=None))
    await rig.client.heard(prefill)

    await asked.leave()
    await prefilling.raw(rest)
    prefilling.over.set()

    await rig.drained()
    assert decode.paths == []
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", UNTIL_FIRST_TOKEN)
async def test_rule_3_what_ended_at_prefill_is_not_dispatched(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    prefilling = await prefill.call()
    rest = await prefilling.begin_reply(dialect.prefilled(finish="stop"))
    await rig.client.heard(prefill)

    await asked.leave()
    await prefilling.raw(rest)
    prefilling.over.set()

    await rig.drained()
    assert decode.paths == []


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_rule_3_a_refusal_pinned_nothing(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, _ = await rig.pair(dialect)
    asked = rig.ask()
    prefilling = await prefill.call()
    await prefilling.raw(b"HTTP/1.1 500 X\r\ncontent-length: 100\r\n\r\nhalf")
    await rig.client.heard(prefill)

    await asked.leave()

    assert rig.held(asked.context) == {}
    await prefilling.gone()


# ---- in turn: decode


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_rule_3_a_client_that_leaves_while_decode_is_dialled_leaves_nothing_pinned(
    rig: Rig, dialect: type[Dialect]
) -> None:
    prefill, decode = await rig.pair(dialect)
    door = rig.client.shut(decode)
    asked = rig.ask()
    await (await prefill.call()).reply(200, dialect.prefilled())
    await door.knock()

    await asked.leave()
    door.open()

    await _fetched(dialect, decode)
    await rig.drained()
    assert len(decode.paths) == 1
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_rule_3_a_decode_call_on_its_way_is_kept_until_it_has_freed_the_blocks(
    rig: Rig, dialect: type[Dialect]
) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    await (await prefill.call()).reply(200, dialect.prefilled())
    decoding = await decode.call()

    await asked.leave()

    assert decoding.still_there()
    await decoding.stream()
    if dialect is not Vllm:
        assert decoding.still_there()
        await decoding.send(dialect().tokens(FIRST))
    await decoding.gone()
    await rig.drained()
    assert asked.sink.outputs == []
    assert len(decode.paths) == 1
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", UNTIL_FIRST_TOKEN)
async def test_rule_3_after_its_head_a_decode_is_kept_until_its_first_token(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    await (await prefill.call()).reply(200, dialect.prefilled())
    decoding = await decode.call()
    await decoding.stream(b": nothing yet\n\n")
    await rig.client.answered(decode)

    await asked.leave()
    assert decoding.still_there()
    await decoding.send(dialect().tokens(FIRST, 10))

    await decoding.gone()
    await rig.drained()
    assert asked.sink.outputs == []
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_rule_3_after_its_first_token_decode_is_closed_at_once(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    await (await prefill.call()).reply(200, dialect.prefilled())
    decoding = await decode.call()
    await decoding.stream(dialect().tokens(FIRST))
    await asked.sink.holds(FIRST)

    await asked.leave()

    assert rig.held(asked.context) == {}
    await decoding.gone()
    assert rig.seen.outcomes == [PrefillOutcome.REMOTE]


@pytest.mark.parametrize("dialect", UNTIL_FIRST_TOKEN)
async def test_rule_3_a_paused_client_that_leaves_does_not_keep_the_release_paused(
    rig: Rig, dialect: type[Dialect]
) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    asked.context.flow.pause()
    await (await prefill.call()).reply(200, dialect.prefilled())
    decoding = await decode.call()
    await decoding.stream(dialect().tokens(FIRST))

    await asked.leave()

    await decoding.gone()
    await rig.drained()
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_rule_3_a_decode_that_is_dispatched_to_free_asks_for_one_token(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    door = rig.client.shut(decode)
    asked = rig.ask(request_of(stop={"max_tokens": 1000, "min_tokens": 5}))
    await (await prefill.call()).reply(200, dialect.prefilled())
    await door.knock()

    await asked.leave()
    door.open()
    body = (await _fetched(dialect, decode)).json()

    limits = body.get("stop_conditions", body)
    assert limits["max_tokens"] == 1
    assert not limits.get("min_tokens")


# ---- in turn: failures


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_rule_3_when_decode_breaks_another_worker_frees_the_blocks(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    other = await rig.scripted(dialect, Role.DECODE)
    asked = rig.ask()
    await (await prefill.call()).reply(200, dialect.prefilled())
    decoding = await decode.call()
    await decoding.stream()
    await rig.client.answered(decode)
    decoding.reset()

    assert isinstance(await asked.fails(), Disconnected)
    await _fetched(dialect, other)
    await rig.drained()
    assert len(decode.paths) == 1
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_rule_3_a_decode_that_failed_after_its_first_token_needs_no_release(
    rig: Rig, dialect: type[Dialect]
) -> None:
    prefill, decode = await rig.pair(dialect)
    other = await rig.scripted(dialect, Role.DECODE)
    asked = rig.ask()
    await (await prefill.call()).reply(200, dialect.prefilled())
    decoding = await decode.call()
    await decoding.stream(dialect().tokens(FIRST))
    await asked.sink.holds(FIRST)
    decoding.reset()

    assert isinstance(await asked.fails(), Disconnected)
    assert rig.held(asked.context) == {}
    assert other.paths == []


REFUSABLE: dict[str, Any] = {
    "stop": {"max_tokens": 9, "min_tokens": 5, "stop": ("x",), "ignore_eos": True},
    "sampling": {"temperature": 0.1, "seed": 3, "guided_decoding": GuidedDecoding(regex="(")},
    "output": {"logprobs": 20},
    "routing": {"priority": 3, "cache_namespace": "mine"},
    "extra_args": {"extra_body": {"bad_words": ["x"]}},
}


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(("dialect", "traits"), [(Vllm, GENERATES), (Native, Native.traits)])
async def test_rule_3_what_decode_refuses_as_the_clients_fault_is_fetched_by_a_call_that_asks_for_nothing(
    rig: Rig, dialect: type[Dialect], traits: WorkerTraits, status: int
) -> None:
    prefill, decode = await rig.pair(dialect, traits=traits)
    other = await rig.scripted(dialect, Role.DECODE, traits=traits)
    asked = rig.ask(request_of(**REFUSABLE))
    await (await prefill.call()).reply(200, dialect.prefilled())
    await (await decode.call()).reply(status, REFUSED)

    assert isinstance(await asked.fails(), InvalidRequest)
    body = (await _fetched(dialect, decode)).json()

    await rig.drained()
    limits = body.get("stop_conditions") or body.get("sampling_params")
    assert limits["max_tokens"] == 1
    said = str(body)
    assert not [word for word in ("min_tokens", "regex", "bad_words", "seed", "'logprobs'", "priority") if word in said]
    assert (body.get("routing") or body)["cache_salt"] == "mine"
    assert other.paths == []
    assert rig.held(asked.context) == {}


BROKEN = {"error": {"message": "no", "type": "InternalServerError"}}


@pytest.mark.parametrize(("status", "refused", "error"), [(400, REFUSED, InvalidRequest), (500, BROKEN, EngineFailure)])
async def test_rule_3_what_vllms_completions_route_refuses_has_been_freed_by_the_refusal(
    rig: Rig, status: int, refused: Any, error: type[GatewayError]
) -> None:
    prefill, decode = await rig.pair(Vllm)
    other = await rig.scripted(Vllm, Role.DECODE)
    asked = rig.ask()
    await (await prefill.call()).reply(200, Vllm.prefilled())

    await (await decode.call()).reply(status, refused)

    assert isinstance(await asked.fails(), error)
    assert rig.held(asked.context) == {}
    assert len(decode.paths) == 1
    assert other.paths == []


async def test_rule_3_what_vllm_could_not_read_it_has_not_freed(rig: Rig) -> None:
    prefill, decode = await rig.pair(Vllm)
    asked = rig.ask()
    await (await prefill.call()).reply(200, Vllm.prefilled())

    await (await decode.call()).reply(400, {"error": {"message": "1 validation error", "type": "Bad Request"}})

    assert isinstance(await asked.fails(), InvalidRequest)
    await _fetched(Vllm, decode)
    await rig.drained()


async def test_rule_3_what_is_refused_inside_a_stream_has_not_been_freed(rig: Rig) -> None:
    """vLLM's engine refuses after the reply's head has left."""
    prefill, decode = await rig.pair(Vllm)
    asked = rig.ask()
    await (await prefill.call()).reply(200, Vllm.prefilled())

    decoding = await decode.call()
    await decoding.stream()
    await decoding.send(b"data: " + orjson.dumps({"error": {**REFUSED["error"], "code": 400}}) + b"\n\n")

    assert isinstance(await asked.fails(), InvalidRequest)
    await _fetched(Vllm, decode)
    await rig.drained()


@pytest.mark.parametrize(("dialect", "traits"), PINS_AFTER_A_REFUSAL)
async def test_rule_3_a_decode_worker_that_failed_is_asked_again_where_there_is_no_other(
    rig: Rig, dialect: type[Dialect], traits: WorkerTraits
) -> None:
    prefill, decode = await rig.pair(dialect, traits=traits)
    asked = rig.ask()
    await (await prefill.call()).reply(200, dialect.prefilled())
    await (await decode.call()).reply(500, BROKEN)

    assert isinstance(await asked.fails(), EngineFailure)
    rig.clock.forward(0.3)

    await _fetched(dialect, decode)
    await rig.drained()
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_rule_3_where_no_decode_worker_is_left_the_blocks_are_left_to_their_lease(
    rig: Rig, dialect: type[Dialect]
) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    await (await prefill.call()).reply(200, dialect.prefilled())
    (await decode.call()).reset()

    assert isinstance(await asked.fails(), Disconnected)
    await rig.drained()
    assert len(decode.paths) == 1
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_rule_3_a_call_that_asks_for_nothing_and_is_refused_is_not_repeated(
    rig: Rig, dialect: type[Dialect]
) -> None:
    prefill, decode = await rig.pair(dialect, traits=WorkerTraits(served_name="m", version="1.2.0", generate=True))
    asked = rig.ask()
    await (await prefill.call()).reply(200, dialect.prefilled())
    await (await decode.call()).reply(400, REFUSED)
    assert isinstance(await asked.fails(), InvalidRequest)

    await (await decode.call()).reply(400, REFUSED)

    await rig.drained()
    assert len(decode.paths) == 2
    assert rig.held(asked.context) == {}


async def test_rule_3_blocks_of_a_prefill_that_was_restarted_are_not_fetched(rig: Rig) -> None:
    prefill, decode = await rig.pair(Trtllm)
    asked = rig.ask()
    prefilling = await prefill.call()
    await asked.leave()

    rig.registry.identified(prefill.id, Trtllm.traits, restarted=True)
    await prefilling.reply(200, Trtllm.prefilled())

    await rig.drained()
    assert decode.paths == []


@pytest.mark.parametrize(("dialect", "age_s", "fetches"), [(Vllm, 21.0, 0), (Trtllm, 55.0, 1)])
async def test_rule_3_an_old_handoff_is_fetched_only_where_a_late_read_fails(
    rig: Rig, dialect: type[Dialect], age_s: float, fetches: int
) -> None:
    """vLLM would keep what it read, whatever that is by then, in decode's prefix cache."""
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    prefilling = await prefill.call()
    rest = await prefilling.begin_reply(dialect.prefilled())
    await rig.client.heard(prefill)
    await asked.leave()

    rig.clock.forward(age_s)
    await prefilling.raw(rest)
    prefilling.over.set()

    await settled(lambda: len(decode.paths) == fetches)
    await rig.background.drain(0.1)
    assert len(decode.paths) == fetches
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", UNTIL_FIRST_TOKEN)
async def test_rule_3_only_the_first_token_deadline_ends_a_release_early(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask(context=rig.context(deadline=rig.clock() + 5))
    await (await prefill.call()).reply(200, dialect.prefilled())
    decoding = await decode.call()
    await decoding.stream()
    await rig.client.answered(decode)
    await asked.leave()

    rig.tick(20)
    assert decoding.still_there()
    rig.tick(20)

    await decoding.gone()
    await rig.drained()
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", UNTIL_FIRST_TOKEN)
async def test_rule_3_the_requests_deadline_is_like_a_client_that_leaves(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask(context=rig.context(deadline=rig.clock() + 5))
    await (await prefill.call()).reply(200, dialect.prefilled())
    decoding = await decode.call()
    await decoding.stream()
    await rig.client.answered(decode)

    rig.tick(6)

    assert isinstance(await asked.fails(), DeadlineExceeded)
    assert decoding.still_there()
    await decoding.send(dialect().tokens(FIRST))
    await decoding.gone()
    await rig.drained()
    assert rig.held(asked.context) == {}


async def test_rule_3_a_decode_that_stays_silent_is_closed_and_another_frees_the_blocks(rig: Rig) -> None:
    prefill, decode = await rig.pair(Trtllm)
    other = await rig.scripted(Trtllm, Role.DECODE)
    asked = rig.ask()
    await (await prefill.call()).reply(200, Trtllm.prefilled())
    decoding = await decode.call()

    rig.tick(31)

    assert isinstance(await asked.fails(), WorkerSilent)
    await decoding.gone()
    await _fetched(Trtllm, other)
    await rig.drained()


async def test_rule_3_a_release_that_fails_is_not_held_against_the_worker_that_tried(rig: Rig) -> None:
    """It may have asked a prefill worker that is gone."""
    prefill, decode = await rig.pair(Trtllm)
    other = await rig.scripted(Trtllm, Role.DECODE)
    asked = rig.ask()
    await (await prefill.call()).reply(200, Trtllm.prefilled())
    (await decode.call()).reset()
    assert isinstance(await asked.fails(), Disconnected)
    fetching = await other.call()

    rig.tick(31)

    await fetching.gone()
    await rig.drained()
    assert [worker_id for worker_id, _, _ in rig.seen.failures] == [decode.id]
    assert next(state.failures for state in rig.registry.states() if state.worker.id == other.id) == 0
