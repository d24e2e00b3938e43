"""What a simulated model says: a pure function of its seed, of all ids before, and of the KV really read."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.generation import Context, ReplyRule, Voice
from simulator.jobs import Output, Spec
from simulator.kv_cache import KvCache
from simulator.model import EngineModel, Pace
from simulator.vocabulary import Vocabulary

EOS = 2
VOCABULARY = Vocabulary.synthetic(eos_id=EOS)
PROMPT = tuple(range(100, 137))


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def answer(
    prompt: tuple[int, ...],
    limit: int,
    rule: ReplyRule | None = None,
    seed: int = 0,
    request_seed: int | None = None,
    **spec: object,
) -> list[int]:
    """The ids of one answer by a fresh worker. `seed` stands for its weights."""
    model = EngineModel(Voice(VOCABULARY, rule, seed), KvCache(256, 16), Clock(), Pace(speed=0))
    ids: list[int] = []
    model.submit(Spec(prompt, limit, seed=request_seed, **spec), lambda job, output: ids.extend(output.ids))  # type: ignore[arg-type]
    while model.due() is not None:
        model.advance()
    return ids


RULES = [
    ReplyRule(),
    ReplyRule(mean_length=8),
    ReplyRule(every=50),
    ReplyRule(echo=5),
    ReplyRule(text=(900, 901, 902, 900, 901, 903)),
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cut", [1, 3, 5])
def test_an_answer_cut_anywhere_and_continued_elsewhere_equals_the_unbroken_one(rule: ReplyRule, cut: int) -> None:
    unbroken = answer(PROMPT, 24, rule)

    before = answer(PROMPT, cut, rule)
    after = answer((*PROMPT, *before), 24 - len(before), rule) if len(unbroken) > cut else []

    assert before + after == unbroken


@given(st.lists(st.integers(3, 5), max_size=20), st.lists(st.integers(3, 5), min_size=1, max_size=6))
def test_a_fixed_answer_is_continued_where_its_beginning_stands(prompt: list[int], text: list[int]) -> None:
    voice = Voice(VOCABULARY, ReplyRule(text=tuple(text)))
    stepwise = Context(prompt, 16, voice)
    for token_id in text:
        stepwise.append(token_id, voice)

    at_once = Context([*prompt, *text], 16, voice)

    assert at_once.matched == stepwise.matched


def test_a_fixed_answer_ends_with_end_of_text() -> None:
    assert answer(PROMPT, 10, ReplyRule(text=(900, 901))) == [900, 901, EOS]


def test_an_echo_repeats_the_end_of_the_prompt() -> None:
    assert answer(PROMPT, 7, ReplyRule(echo=3)) == [134, 135, 136, 134, 135, 136, 134]


def test_answers_have_the_asked_length_on_average() -> None:
    lengths = [len(answer((*PROMPT, extra), 400, ReplyRule(mean_length=20))) for extra in range(3, 103)]

    assert 14 < sum(lengths) / len(lengths) < 27


def test_min_tokens_keeps_the_end_away_and_ignore_eos_goes_on_after_it() -> None:
    assert len(answer(PROMPT, 9, ReplyRule(text=(900,)), min_tokens=6)) >= 6
    assert answer(PROMPT, 5, ReplyRule(text=(900,)), ignore_eos=True)[:2] == [900, EOS]
    assert len(answer(PROMPT, 5, ReplyRule(text=(900,)), ignore_eos=True)) == 5


def test_another_seed_of_the_weights_says_something_else() -> None:
    assert answer(PROMPT, 8, seed=1) != answer(PROMPT, 8, seed=2)


def test_a_request_seed_counts_only_when_sampling() -> None:
    assert answer(PROMPT, 8, request_seed=1) == answer(PROMPT, 8, request_seed=2)
    assert answer(PROMPT, 8, request_seed=1, temperature=0.5) != answer(PROMPT, 8, request_seed=2, temperature=0.5)
    assert answer(PROMPT, 8, temperature=0.5) == answer(PROMPT, 8, temperature=0.9)


def test_every_id_before_counts() -> None:
    changed = (*PROMPT[:5], 7777, *PROMPT[6:])

    assert answer(PROMPT, 8) != answer(changed, 8)


def test_answers_are_made_of_words() -> None:
    assert set(answer(PROMPT, 50)) <= set(VOCABULARY.words)


def test_logprobs_fall_and_name_each_id_once() -> None:
    voice = Voice(VOCABULARY)

    found = voice.logprobs(500, 12345, 5)

    assert found[0].token_id == 500
    assert [entry.logprob for entry in found] == sorted((entry.logprob for entry in found), reverse=True)
    assert len({entry.token_id for entry in found}) == 5


def test_outputs_carry_a_logprob_per_id_when_asked() -> None:
    model = EngineModel(Voice(VOCABULARY), KvCache(64, 16), Clock(), Pace(speed=0))
    outputs: list[Output] = []
    model.submit(Spec(PROMPT, 3, logprobs=2), lambda job, output: outputs.append(output))
    while model.due() is not None:
        model.advance()

    assert [len(output.logprobs or ()) for output in outputs] == [1, 1, 1]
    assert [output.logprobs[0][0].token_id for output in outputs if output.logprobs] == [o.ids[0] for o in outputs]
