"""Hard rules 4 to 7: what prefill's reply means, ids, and fields that never pass from a client."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from pipeline.handoff import PrefillOutcome
from protocols.errors import EngineAborted, EngineFailure, IncompleteReply, WorkerFailure
from protocols.outputs import FinishReason
from tests.pipeline.dialects import ALL, AT_ONCE, DONE, FIRST, IN_TURN, PROMPT, Dialect, Native, Sglang, Trtllm, Vllm
from tests.pipeline.rig import Rig, request_of
from tests.pipeline.scripted import ScriptedCall

# ---- rule 4


@pytest.mark.parametrize("dialect", [Trtllm, Native])
@pytest.mark.parametrize(
    ("finish", "reason"), [("stop", FinishReason.EOS), ("content_filter", FinishReason.CONTENT_FILTER)]
)
async def test_rule_4_a_prefill_that_ends_is_the_answer_and_decode_is_not_called(
    rig: Rig, dialect: type[Dialect], finish: str, reason: FinishReason
) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()

    await (await prefill.call()).reply(200, dialect.prefilled(finish=finish, cached=2))

    await asked.ends()
    assert asked.sink.ids == [FIRST]
    assert asked.sink.finish in (reason, FinishReason.STOP)
    assert asked.sink.cached_tokens == 2
    assert all(output.disaggregated_params is None for output in asked.sink.outputs)
    assert decode.paths == []
    assert rig.seen.outcomes == [PrefillOutcome.TERMINAL]
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("finish", ["stop", "length", "content_filter", "repetition"])
async def test_rule_4_vllm_decode_is_called_whatever_the_finish_of_prefill(rig: Rig, finish: str) -> None:
    prefill, decode = await rig.pair(Vllm)
    asked = rig.ask()

    await (await prefill.call()).reply(200, Vllm.prefilled(finish=finish))
    decoding = await decode.call()
    await decoding.stream()
    await decoding.end(Vllm().whole(11, 12))

    await asked.ends()
    assert asked.sink.ids == [11, 12]
    assert rig.seen.outcomes == [PrefillOutcome.REMOTE]


@pytest.mark.parametrize(
    ("dialect", "finish"), [(Trtllm, "length"), (Trtllm, "not_finished"), (Trtllm, None), (Native, None)]
)
async def test_rule_4_length_not_finished_and_none_mean_handoff(
    rig: Rig, dialect: type[Dialect], finish: str | None
) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()

    prefilling = await prefill.call()
    if dialect is Native:
        await prefilling.stream(b"data: " + orjson.dumps(dialect.prefilled(finish=finish)) + b"\n\n")
        await prefilling.end(DONE)
    else:
        await prefilling.reply(200, dialect.prefilled(finish=finish))
    decoding = await decode.call()
    await decoding.stream()
    await decoding.end(dialect().whole(FIRST))

    await asked.ends()
    assert rig.seen.outcomes == [PrefillOutcome.REMOTE]


@pytest.mark.parametrize(
    ("dialect", "finish", "kind"),
    [
        (Vllm, "abort", EngineAborted),
        (Vllm, "error", EngineFailure),
        (Trtllm, "cancelled", EngineAborted),
        (Trtllm, "timeout", EngineFailure),
        (Trtllm, "error", EngineFailure),
        (Native, "cancelled", EngineAborted),
        (Native, "error", EngineFailure),
    ],
)
async def test_rule_4_an_abort_a_timeout_or_an_error_at_prefill_is_a_failure_of_the_attempt(
    rig: Rig, dialect: type[Dialect], finish: str, kind: type[WorkerFailure]
) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()

    await (await prefill.call()).reply(200, dialect.prefilled(finish=finish))

    error = await asked.fails()
    assert type(error) is kind
    assert isinstance(error, WorkerFailure)
    assert error.worker_id == prefill.id
    assert error.code == "prefill_failed"
    assert decode.paths == []
    assert rig.seen.outcomes == [PrefillOutcome.FAILED]
    assert rig.held(asked.context) == {}


# ---- rule 5


def _no_choice(prefilled: dict[str, Any]) -> dict[str, Any]:
    return {**prefilled, "choices": []}


def _two_choices(prefilled: dict[str, Any]) -> dict[str, Any]:
    return {**prefilled, "choices": prefilled["choices"] * 2}


def _params(value: Any) -> Any:
    def changed(prefilled: dict[str, Any]) -> dict[str, Any]:
        (choice,) = prefilled["choices"]
        return {**prefilled, "choices": [{**choice, "disaggregated_params": value}]}

    return changed


@pytest.mark.parametrize(
    "unusable",
    [
        _params(None),
        _params({"request_type": "context_only", "ctx_request_id": None}),
        _params({"request_type": "context_only"}),
        _no_choice,
        _two_choices,
    ],
)
async def test_rule_5_trtllm_what_cannot_be_handed_over_is_refused_before_decode_is_dispatched(
    rig: Rig, unusable: Any
) -> None:
    prefill, decode = await rig.pair(Trtllm)
    asked = rig.ask()

    await (await prefill.call()).reply(200, unusable(Trtllm.prefilled()))

    error = await asked.fails()
    assert isinstance(error, WorkerFailure)
    assert error.code == "prefill_failed"
    assert decode.paths == []
    assert rig.held(asked.context) == {}


@pytest.mark.parametrize("params", [None, {"ctx_request_id": None}, {"request_type": "context_only"}])
async def test_rule_5_native_what_cannot_be_handed_over_is_refused_before_decode_is_dispatched(
    rig: Rig, params: Any
) -> None:
    prefill, decode = await rig.pair(Native)
    asked = rig.ask()

    await (await prefill.call()).reply(200, Native.prefilled(disaggregated_params=params))

    assert isinstance(await asked.fails(), EngineFailure)
    assert decode.paths == []


async def test_rule_5_vllm_null_params_mean_that_nothing_was_pinned(rig: Rig) -> None:
    prefill, decode = await rig.pair(Vllm)
    asked = rig.ask()

    await (await prefill.call()).reply(200, Vllm.prefilled(kv_transfer_params=None))
    decoding = await decode.call()
    assert "kv_transfer_params" not in decoding.json()
    await decoding.stream()
    await decoding.end(Vllm().whole(11))

    await asked.ends()
    assert rig.seen.outcomes == [PrefillOutcome.LOCAL]


@pytest.mark.parametrize("dialect", ALL)
async def test_rule_5_an_empty_prefill_reply_is_an_error(rig: Rig, dialect: type[Dialect]) -> None:
    prefill, _ = await rig.pair(dialect)
    asked = rig.ask()

    await (await prefill.call()).reply(200, b"")

    error = await asked.fails()
    assert isinstance(error, IncompleteReply)
    assert error.worker_id == prefill.id


# ---- rule 6


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_rule_6_every_attempt_and_leg_in_turn_has_new_ids(rig: Rig, dialect: type[Dialect]) -> None:
    (failing, _), (prefill, decode) = await rig.pair(dialect), await rig.pair(dialect)
    asked = rig.ask(service=rig.resilient)

    failed, calls = await failing.call(), []
    await failed.reply(500, {"error": {"message": "no", "type": "InternalServerError"}})
    prefilling = await prefill.call()
    await prefilling.reply(200, dialect.prefilled())
    calls = [failed, prefilling, await decode.call()]

    names = [call.headers.get("x-request-id", str(place)) for place, call in enumerate(calls)]
    assert len(set(names)) == 3
    assert dialect is Trtllm or all(len(name) == 32 for name in names)
    numbers = [_transfer_of(failed), _transfer_of(prefilling)]
    assert dialect is not Trtllm or (len(set(numbers)) == 2 and all(2**40 <= number < 2**63 for number in numbers))
    await asked.leave()
    await rig.background.drain(0)


@pytest.mark.parametrize("dialect", AT_ONCE)
async def test_rule_6_every_attempt_and_leg_at_once_has_new_ids(rig: Rig, dialect: type[Dialect]) -> None:
    pairs = [await rig.pair(dialect), await rig.pair(dialect)]
    asked = rig.ask(service=rig.resilient)

    names, rooms = [], []
    for prefill, decode in pairs:
        prefilling, decoding = await prefill.call(), await decode.call()
        names += [_name_of(prefilling), _name_of(decoding)]
        rooms.append(_room_of(prefilling))
        assert _room_of(decoding) == _room_of(prefilling)
        await prefilling.reply(500, {"error": {"message": "transfer failed", "type": "InternalServerError"}})
    await asked.fails()

    assert len(set(names)) == 4
    assert all(len(name) == 32 for name in names)
    assert rooms[0] != rooms[1]
    assert all(2**40 <= room < 2**63 for room in rooms)
    await rig.drained()


async def test_rule_6_the_room_names_the_chosen_prefill_rank(rig: Rig) -> None:
    prefill, decode = await rig.pair(Sglang, dp_size=4)
    asked = rig.ask(request_of(routing={"prefill_dp_rank": 3, "dp_rank": 1}))

    prefilling, decoding = (await prefill.call()).json(), (await decode.call()).json()

    assert prefilling["bootstrap_room"] % 4 == 3
    assert prefilling["routed_dp_rank"] == 3
    assert (decoding["routed_dp_rank"], decoding["disagg_prefill_dp_rank"]) == (1, 3)
    await asked.leave()
    await rig.drained()


# ---- rule 7

STEERING = (
    "kv_transfer_params", "ec_transfer_params", "disaggregated_params", "bootstrap_host", "bootstrap_port",
    "bootstrap_room", "room", "routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank", "decode_tp_size", "rid",
    "request_id", "session_id", "session_params", "routing_key", "lora_path", "lora_request", "custom_logit_processor",
    "custom_params", "vllm_xargs", "kv_hints", "input_ids", "input_embeds", "image_data", "audio_data",
    "truncate_prompt_tokens", "stream", "stream_options", "return_token_ids", "return_hidden_states", "labels",
)  # fmt: skip


@pytest.mark.parametrize("dialect", ALL)
async def test_rule_7_what_names_a_request_a_worker_a_transfer_or_code_never_passes_from_a_client(
    rig: Rig, dialect: type[Dialect]
) -> None:
    smuggled = dict.fromkeys(STEERING, "smuggled")
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask(request_of(extra_args={"extra_body": smuggled}))

    bodies = []
    prefilling = await prefill.call()
    bodies.append(prefilling.body)
    if dialect in IN_TURN:
        await prefilling.reply(200, dialect.prefilled())
    bodies.append((await decode.call()).body)

    assert not [body for body in bodies if b"smuggled" in body]
    await asked.leave()
    await rig.background.drain(0)


async def test_rule_7_a_parameter_that_the_engine_cannot_honour_is_refused_before_a_byte_is_sent(rig: Rig) -> None:
    prefill, decode = await rig.pair(Trtllm)
    asked = rig.ask(request_of(sampling={"logit_bias": {5: 1.0}}))

    error = await asked.fails()

    assert getattr(error, "status", None) == 400
    assert getattr(error, "param", None) == "logit_bias"
    assert prefill.paths == decode.paths == []
    assert rig.held(asked.context) == {}


async def test_rule_7_the_prompt_of_both_legs_is_the_same(rig: Rig) -> None:
    prefill, decode = await rig.pair(Vllm)
    asked = rig.ask()

    prefilling = await prefill.call()
    await prefilling.reply(200, Vllm.prefilled())
    decoding = await decode.call()

    assert prefilling.json()["prompt"] == decoding.json()["prompt"] == list(PROMPT)
    await asked.leave()
    await rig.background.drain(0)


def _name_of(call: ScriptedCall) -> str:
    name: str = call.json().get("rid") or call.headers["x-request-id"]
    return name


def _room_of(call: ScriptedCall) -> int:
    body = call.json()
    room: int = body.get("bootstrap_info", body)["bootstrap_room"]
    return room


def _transfer_of(call: ScriptedCall) -> int:
    params = call.json().get("disaggregated_params") or {}
    number: int = params.get("disagg_request_id", 0)
    return number
