"""Hard rules 8 and 9: aged parameters, token counts."""

from __future__ import annotations

import pytest

from pipeline.detokenize import Detokenizer
from pipeline.handoff import PrefillOutcome
from pipeline.service import link
from protocols.errors import Blame, EngineFailure
from protocols.outputs import FinishReason
from protocols.worker import Role
from tests.pipeline.dialects import AT_ONCE, FIRST, IN_TURN, Dialect, Native, Trtllm, Vllm
from tests.pipeline.rig import Asked, Rig, request_of
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


@pytest.mark.parametrize(("dialect", "releases"), [(Vllm, 0), (Trtllm, 1)])
async def test_rule_8_with_policy_strict_prefill_is_done_again_on_a_new_pair(
    dialect: type[Dialect], releases: int
) -> None:
    """The first pair's blocks are released where a late read of them would fail."""
    async with Rig(policy="strict") as rig:
        (prefill, decode), (next_prefill, next_decode) = await rig.pair(dialect), await rig.pair(dialect)
        asked = rig.ask(service=rig.resilient)

        await _hand_over(rig, dialect, prefill, OLD_S[dialect])
        await (await next_prefill.call()).reply(200, dialect.prefilled())
        decoding = await next_decode.call()
        await decoding.stream()
        await decoding.end(dialect().whole(FIRST))

        await asked.ends()
        assert len(decode.paths) == releases
        await rig.background.drain(0)
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
