"""Hard rules 8 to 10: aged parameters, token counts, logprobs."""

from __future__ import annotations

import pytest

from pipeline.deadlines import Deadlines
from pipeline.detokenize import Detokenizer
from pipeline.handoff import PrefillOutcome
from pipeline.service import link
from protocols.errors import Blame, EngineFailure, Enough, WorkerFailure, WorkerSilent
from protocols.outputs import FinishReason, prompt_logprobs_of
from protocols.worker import Role
from tests.pipeline.dialects import AT_ONCE, FIRST, IN_TURN, Dialect, Native, Sglang, Trtllm, Vllm
from tests.pipeline.rig import Asked, Rig, Taken, request_of
from tests.pipeline.scripted import ScriptedWorker
from tests.text.small_tokenizers import byte_level

OLD_S = {Vllm: 20.5, Trtllm: 50.5}
"""From this age on a hand-off is too old: ten seconds before the engine's own lease of 30 and 60 s ends."""

# ---- rule 8


async def _hand_over(rig: Rig, dialect: type[Dialect], prefill: ScriptedWorker, age_s: float) -> None:
    """Prefill's reply begins, and is complete `age_s` seconds later."""
    prefilling = await prefill.call()
    rest = await prefilling.begin_reply(dialect.prefilled(cached=2))
    await rig.client.heard(prefill)
    rig.clock.forward(age_s)
    await prefilling.raw(rest)
    prefilling.over.set()


@pytest.mark.parametrize("dialect", OLD_S)
async def test_rule_8_a_handoff_is_good_until_ten_seconds_before_its_lease_ends(
    rig: Rig, dialect: type[Dialect]
) -> None:
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()

    await _hand_over(rig, dialect, prefill, OLD_S[dialect] - 1)

    body = (await decode.call()).json()
    assert body.get("kv_transfer_params") or body.get("disaggregated_params")
    await asked.leave()
    await rig.background.drain(0)


async def test_rule_8_the_clock_starts_when_prefills_reply_begins(rig: Rig) -> None:
    prefill, decode = await rig.pair(Vllm)
    asked = rig.ask()
    prefilling = await prefill.call()

    rig.clock.forward(25.0)
    await prefilling.reply(200, Vllm.prefilled())

    assert "kv_transfer_params" in (await decode.call()).json()
    await asked.leave()
    await rig.background.drain(0)


@pytest.mark.parametrize("dialect", OLD_S)
async def test_rule_8_with_policy_strict_prefill_is_done_again_on_a_new_pair(dialect: type[Dialect]) -> None:
    async with Rig(policy="strict") as rig:
        (prefill, decode), (next_prefill, next_decode) = await rig.pair(dialect), await rig.pair(dialect)
        asked = rig.ask(service=rig.resilient)

        await _hand_over(rig, dialect, prefill, OLD_S[dialect])
        await (await next_prefill.call()).reply(200, dialect.prefilled())
        decoding = await next_decode.call()
        await decoding.stream()
        await decoding.end(dialect().whole(FIRST))

        await asked.ends()
        assert decode.paths == []
        assert rig.seen.outcomes == [PrefillOutcome.FAILED, PrefillOutcome.REMOTE]
        assert rig.seen.failures == []
        assert rig.standing(prefill) == "ready"
        assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", OLD_S)
async def test_rule_8_with_policy_local_decode_is_sent_without_parameters(dialect: type[Dialect]) -> None:
    async with Rig(policy="local") as rig:
        prefill, decode = await rig.pair(dialect)
        asked = rig.ask()

        await _hand_over(rig, dialect, prefill, OLD_S[dialect])
        decoding = await decode.call()
        body = decoding.json()
        assert "kv_transfer_params" not in body
        assert "disaggregated_params" not in body
        say = dialect()
        await decoding.stream()
        await decoding.end(say.tokens(FIRST), say.finish(), say.close(cached=1))

        await asked.ends()
        assert rig.seen.outcomes == [PrefillOutcome.LOCAL]
        assert asked.sink.cached_tokens == 1


async def test_rule_8_local_needs_a_decode_worker_that_can_prefill() -> None:
    async with Rig(policy="local") as rig:
        prefill, decode = await rig.pair(Native, lease_s=30.0)
        asked = rig.ask()

        await _hand_over(rig, Native, prefill, 21.0)

        error = await asked.fails()
        assert isinstance(error, EngineFailure)
        assert error.blame is Blame.NOBODY
        assert decode.paths == []


async def test_rule_8_a_handoff_may_age_between_two_decode_workers() -> None:
    async with Rig(policy="strict") as rig:
        prefill = await rig.scripted(Vllm, Role.PREFILL)
        door = rig.client.shut(rig.absent(Vllm, Role.DECODE))
        other = await rig.scripted(Vllm, Role.DECODE)
        asked = rig.ask()
        await (await prefill.call()).reply(200, Vllm.prefilled())
        await door.knock()

        rig.clock.forward(21.0)
        door.open()

        assert isinstance(await asked.fails(), EngineFailure)
        assert other.paths == []
        assert rig.held(asked.context) == {}


@pytest.mark.parametrize(("age_s", "good"), [(1.9, True), (2.1, False)])
async def test_rule_8_half_of_a_short_lease_is_enough_of_a_margin(age_s: float, good: bool) -> None:
    async with Rig(policy="strict") as rig:
        prefill, decode = await rig.pair(Vllm, lease_s=4.0)
        asked = rig.ask()

        await _hand_over(rig, Vllm, prefill, age_s)

        await (decode.call() if good else asked.fails())
        assert len(decode.paths) == good
        asked.task.cancel()


async def test_rule_8_nothing_ages_where_the_engine_keeps_it_for_ever(rig: Rig) -> None:
    prefill, decode = await rig.pair(Native)
    asked = rig.ask()

    await _hand_over(rig, Native, prefill, 1000.0)

    assert (await decode.call()).json()["prefill_result"]
    await asked.leave()
    await rig.background.drain(0)


async def test_rule_8_aged_parameters_are_not_used_to_free_anything_either() -> None:
    async with Rig(policy="strict") as rig:
        prefill, decode = await rig.pair(Vllm)
        asked = rig.ask()
        prefilling = await prefill.call()
        rest = await prefilling.begin_reply(Vllm.prefilled())
        await rig.client.heard(prefill)

        await asked.leave()
        rig.clock.forward(21.0)
        await prefilling.raw(rest)
        prefilling.over.set()

        await rig.drained()
        assert decode.paths == []
        assert rig.held(asked.context) == {}


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_rule_8_what_a_prefill_worker_handed_over_before_its_restart_is_void(dialect: type[Dialect]) -> None:
    async with Rig(policy="strict") as rig:
        prefill, decode = await rig.pair(dialect)
        asked = rig.ask()
        prefilling = await prefill.call()

        rig.registry.identified(prefill.id, dialect.traits, restarted=True)
        await prefilling.reply(200, dialect.prefilled())

        assert isinstance(await asked.fails(), EngineFailure)
        await rig.drained()
        assert decode.paths == []
        assert rig.held(asked.context) == {}


async def test_rule_8_a_prefill_worker_that_is_merely_leaving_still_hands_over(rig: Rig) -> None:
    prefill, decode = await rig.pair(Vllm)
    asked = rig.ask()
    prefilling = await prefill.call()

    rig.registry.remove(prefill.id)
    await prefilling.reply(200, Vllm.prefilled())

    assert "kv_transfer_params" in (await decode.call()).json()
    await asked.leave()
    await rig.background.drain(0)


# ---- rule 9


async def _answered(rig: Rig, dialect: type[Dialect], *, prefills: int | None, decodes: int | None) -> Asked:
    """An answer of two tokens; the cached tokens that each leg tells of."""
    prefill, decode = await rig.pair(dialect)
    asked = rig.ask()
    await (await prefill.call()).reply(200, dialect.prefilled(cached=prefills))
    decoding, say = await decode.call(), dialect()
    await decoding.stream()
    await decoding.end(say.tokens(FIRST, 10), say.finish(), say.close(cached=decodes))
    await asked.ends()
    return asked


@pytest.mark.parametrize("dialect", [*IN_TURN, *AT_ONCE])
async def test_rule_9_cached_tokens_come_from_prefill(rig: Rig, dialect: type[Dialect]) -> None:
    asked = await _answered(rig, dialect, prefills=2, decodes=3)

    assert asked.sink.cached_tokens == 2
    assert asked.sink.outputs[-1].completion_usage.cached_tokens() == 2


@pytest.mark.parametrize("dialect", [*IN_TURN, *AT_ONCE])
async def test_rule_9_cached_tokens_that_prefill_did_not_tell_are_absent(rig: Rig, dialect: type[Dialect]) -> None:
    asked = await _answered(rig, dialect, prefills=None, decodes=3)

    assert asked.sink.cached_tokens is None


@pytest.mark.parametrize("dialect", [*IN_TURN, *AT_ONCE])
async def test_rule_9_a_known_zero_is_told(rig: Rig, dialect: type[Dialect]) -> None:
    asked = await _answered(rig, dialect, prefills=0, decodes=3)

    assert asked.sink.cached_tokens == 0


@pytest.mark.parametrize("dialect", [*IN_TURN, *AT_ONCE])
async def test_rule_9_the_usages_of_the_legs_are_never_added(rig: Rig, dialect: type[Dialect]) -> None:
    asked = await _answered(rig, dialect, prefills=2, decodes=None)

    usage = asked.sink.outputs[-1].completion_usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 2)


@pytest.mark.parametrize("dialect", IN_TURN)
async def test_rule_9_cached_tokens_are_known_though_our_own_stop_cuts_the_reply(
    rig: Rig, dialect: type[Dialect]
) -> None:
    prefill, decode = await rig.pair(dialect)
    service = link(Detokenizer(byte_level()), rig.tokens)
    asked = rig.ask(request_of(stop={"stop": ("lo",)}), service=service)
    await (await prefill.call()).reply(200, dialect.prefilled(cached=2))
    decoding, say = await decode.call(), dialect()

    await decoding.stream(say.tokens(FIRST, *b"hello"))

    await asked.ends()
    assert asked.sink.finish == FinishReason.STOP
    assert asked.sink.cached_tokens == 2


@pytest.mark.parametrize("dialect", [*IN_TURN, *AT_ONCE])
async def test_rule_9_a_stop_in_the_last_read_leaves_the_engines_usage_and_its_connection(
    rig: Rig, dialect: type[Dialect]
) -> None:
    prefill, decode = await rig.pair(dialect)
    service = link(Detokenizer(byte_level()), rig.tokens)
    asked = rig.ask(request_of(stop={"stop": ("lo",)}), service=service)
    await (await prefill.call()).reply(200, dialect.prefilled(cached=2))
    decoding = await decode.call()

    await decoding.stream(dialect().whole(FIRST, *b"hello"))
    await decoding.end()

    await asked.ends()
    assert asked.sink.text.endswith("hel")
    assert asked.sink.finish == FinishReason.STOP
    assert asked.sink.outputs[-1].completion_usage.completion_tokens == 6
    assert decoding.still_there()
    assert rig.held(asked.context) == {}


# ---- rule 10

TRIPLES = [[None, 1, None], [-0.5, 450, None], [-0.25, 7483, None]]


def _prompt_logprobs(taken: Taken) -> list[int]:
    """The outputs that bring them."""
    return [place for place, output in enumerate(taken.outputs) if prompt_logprobs_of(output.engine_data)]


async def test_rule_10_sglang_prefills_prompt_logprobs_go_in_front_of_decodes_first_output(rig: Rig) -> None:
    prefill, decode = await rig.pair(Sglang)
    asked = rig.ask(request_of(output={"prompt_logprobs": 0}))
    prefilling, decoding, say = await prefill.call(), await decode.call(), Sglang()
    await decoding.stream(say.tokens(FIRST))
    await decoding.send(say.tokens(10))
    await rig.client.answered(decode)
    assert asked.sink.outputs == []

    await prefilling.reply(200, Sglang.prefilled(input_token_logprobs=TRIPLES))
    await asked.sink.holds(FIRST, 10)
    await decoding.end(say.tokens(11), say.finish(), say.close())

    await asked.ends()
    assert _prompt_logprobs(asked.sink) == [0]
    assert prompt_logprobs_of(asked.sink.outputs[0].engine_data)[1][450].logprob == -0.5
    assert asked.sink.ids == [FIRST, 10, 11]
    assert asked.sink.finish == FinishReason.LENGTH


async def test_rule_10_sglang_prefill_may_be_first(rig: Rig) -> None:
    prefill, decode = await rig.pair(Sglang)
    asked = rig.ask(request_of(output={"prompt_logprobs": 0}))
    prefilling, decoding = await prefill.call(), await decode.call()

    await prefilling.reply(200, Sglang.prefilled(input_token_logprobs=TRIPLES))
    await rig.client.answered(prefill)
    await decoding.stream()
    await decoding.end(Sglang().whole(FIRST, 10))

    await asked.ends()
    assert _prompt_logprobs(asked.sink) == [0]
    assert asked.sink.ids == [FIRST, 10]


async def test_rule_10_sglang_an_answer_that_was_held_whole_ends_well(rig: Rig) -> None:
    prefill, decode = await rig.pair(Sglang)
    asked = rig.ask(request_of(output={"prompt_logprobs": 0}))
    prefilling, decoding = await prefill.call(), await decode.call()
    await decoding.stream()
    await decoding.end(Sglang().whole(FIRST, 10))
    await rig.client.answered(decode)

    await prefilling.reply(200, Sglang.prefilled(input_token_logprobs=TRIPLES))

    await asked.ends()
    assert _prompt_logprobs(asked.sink) == [0]
    assert asked.sink.finish == FinishReason.LENGTH


async def test_rule_10_sglang_a_sink_that_has_enough_of_what_was_held_ends_the_answer(rig: Rig) -> None:
    def enough(taken: Taken) -> None:
        raise Enough(taken)

    prefill, decode = await rig.pair(Sglang)
    asked = rig.ask(request_of(output={"prompt_logprobs": 0}), sink=Taken(enough))
    prefilling, decoding = await prefill.call(), await decode.call()
    await decoding.stream()
    await decoding.end(Sglang().whole(FIRST, 10))
    await rig.client.answered(decode)

    await prefilling.reply(200, Sglang.prefilled(input_token_logprobs=TRIPLES))

    error = await asked.fails()
    assert isinstance(error, Enough)
    assert error.owner is asked.sink
    assert asked.sink.batches == 1


async def test_rule_10_sglang_an_answer_without_the_logprobs_that_were_asked_for_is_a_failure() -> None:
    async with Rig(deadlines=Deadlines(prefill_tail_s=0.01)) as rig:
        prefill, decode = await rig.pair(Sglang)
        asked = rig.ask(request_of(output={"prompt_logprobs": 0}))
        prefilling, decoding = await prefill.call(), await decode.call()
        await decoding.stream()
        await decoding.end(Sglang().whole(FIRST, 10))

        error = await asked.fails()
        assert isinstance(error, WorkerSilent)
        assert error.worker_id == prefill.id
        assert asked.sink.outputs == []
        await prefilling.gone()
        await rig.drained()


async def test_rule_10_vllm_prompt_logprobs_are_prefills(rig: Rig) -> None:
    prefill, decode = await rig.pair(Vllm)
    asked = rig.ask(request_of(output={"prompt_logprobs": 1}))
    told = [None, {"450": {"logprob": -0.5, "rank": 1}}, {"7483": {"logprob": -0.25, "rank": 1}}]
    prefilled = Vllm.prefilled()
    prefilled["choices"][0]["prompt_logprobs"] = told
    await (await prefill.call()).reply(200, prefilled)

    decoding = await decode.call()
    assert decoding.json().get("prompt_logprobs") is None
    await decoding.stream()
    await decoding.end(Vllm().whole(FIRST, 10))

    await asked.ends()
    assert _prompt_logprobs(asked.sink) == [0]


async def test_rule_10_trtllm_the_first_tokens_logprob_is_prefills_and_shifts_no_other(rig: Rig) -> None:
    prefill, decode = await rig.pair(Trtllm)
    asked = rig.ask(request_of(output={"logprobs": 0}))
    prefilled = Trtllm.prefilled()
    prefilled["choices"][0]["logprobs"] = {"token_logprobs": [-0.75], "tokens": ["a"], "top_logprobs": [{"a": -0.75}]}
    await (await prefill.call()).reply(200, prefilled)

    decoding, say = await decode.call(), Trtllm()
    await decoding.stream()
    first = _with_logprobs(say.tokens(FIRST, 10), [-0.5])
    await decoding.end(first, _with_logprobs(say.tokens(11), [-0.25]), say.finish(), say.close())

    await asked.ends()
    assert [logprob for output in asked.sink.outputs for logprob in output.log_probs or ()] == [-0.75, -0.5, -0.25]


def _with_logprobs(event: bytes, logprobs: list[float]) -> bytes:
    members = b'{"token_logprobs":%s,"tokens":%s,"top_logprobs":null}'
    texts = str(["x"] * len(logprobs)).replace("'", '"').encode()
    return event.replace(b'"logprobs":null', b'"logprobs":' + members % (str(logprobs).encode(), texts))


async def test_rule_10_after_a_migration_the_prompts_logprobs_are_not_asked_for_again(rig: Rig) -> None:
    (prefill, decode), (next_prefill, _) = await rig.pair(Vllm), await rig.pair(Vllm)
    asked = rig.ask(request_of(output={"prompt_logprobs": 1}), service=rig.resilient)
    prefilled = Vllm.prefilled()
    prefilled["choices"][0]["prompt_logprobs"] = [None, {}, {}]
    await (await prefill.call()).reply(200, prefilled)
    decoding = await decode.call()
    await decoding.stream(Vllm().tokens(FIRST))
    await asked.sink.holds(FIRST)
    decoding.reset()

    again = (await next_prefill.call()).json()

    assert again["prompt"] == [1, 450, 7483, FIRST]
    assert again.get("prompt_logprobs") is None
    await asked.leave()


async def test_a_failure_of_the_pair_excludes_both_workers(rig: Rig) -> None:
    prefill, decode = await rig.pair(Sglang)
    asked = rig.ask()
    await prefill.call()

    await (await decode.call()).reply(
        500, {"error": {"message": "Decode transfer failed", "type": "InternalServerError"}}
    )

    error = await asked.fails()
    assert isinstance(error, WorkerFailure)
    assert error.blame is Blame.PAIR
    assert asked.context.migration.excluded_worker_ids() == {prefill.id, decode.id}
    await rig.drained()
