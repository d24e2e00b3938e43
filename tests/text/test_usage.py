"""Counting tokens over prompts, choices and attempts."""

import pytest

from protocols.outputs import BackendOutput
from tests.text.answers import engine_usage
from text.usage import UsageCount


def observed(count, choice, **figures):
    count.choices[choice].observe(BackendOutput(completion_usage=engine_usage(**figures)))


def test_prompts_count_once_and_answers_are_added():
    count = UsageCount([10, 20], candidates=2)
    for place, choice in enumerate(count.choices):
        choice.tokens = place + 1

    assert count.usage() == {"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40}


def test_our_count_wins_over_the_engines():
    count = UsageCount([10])
    count.choices[0].tokens = 5
    observed(count, 0, prompt=225, completion=2)

    assert count.usage() == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def test_the_engines_figures_stand_in_where_it_sent_no_ids():
    count = UsageCount([None], candidates=2)
    observed(count, 1, prompt=7, completion=3)

    assert count.usage() == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    assert UsageCount([None]).usage()["total_tokens"] == 0


def test_the_first_attempts_cached_tokens_count():
    count = UsageCount([10])
    observed(count, 0, cached=4)
    observed(count, 0, cached=9)

    assert count.cached_tokens() == 4


def test_a_prompts_choices_count_its_cached_tokens_once_as_the_least():
    count = UsageCount([10, 10], candidates=2)
    for choice, cached in enumerate((0, 8, 3, 9)):
        observed(count, choice, cached=cached)

    assert count.cached_tokens() == 3


def test_cached_tokens_are_unknown_as_long_as_one_prompts_are():
    count = UsageCount([10, 10])
    observed(count, 0, cached=4)

    assert count.cached_tokens() is None
    assert "prompt_tokens_details" not in count.usage()


@pytest.mark.parametrize(
    ("prompt", "completion", "differs"),
    [(10, 3, False), (10, 4, False), (11, 3, True), (10, 2, True)],
)
def test_an_engine_that_counts_otherwise_is_noticed(prompt, completion, differs):
    usage = UsageCount([10, 10], 1)
    usage.choices[0].tokens = usage.choices[1].tokens = 3
    usage.choices[0].engine = engine_usage(prompt=10, completion=3)
    usage.choices[1].engine = engine_usage(prompt=prompt, completion=completion)

    assert usage.differs() is differs


def test_what_only_the_engine_knows_cannot_differ():
    usage = UsageCount([None], 1)

    assert not usage.differs()
    usage.choices[0].engine = engine_usage(prompt=7)
    assert not usage.differs()
