"""Hard rule 10: prompt logprobs come from the leg that computed them, and a missing one shifts no other."""

from __future__ import annotations

from pipeline.deadlines import Deadlines
from protocols.errors import Enough, WorkerSilent
from protocols.outputs import FinishReason, prompt_logprobs_of
from tests.pipeline.dialects import FIRST, Sglang, Trtllm, Vllm
from tests.pipeline.rig import Rig, Taken, request_of

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
