"""A break anywhere in an answer gives the unbroken answer: text, ids, finish and usage."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.migration import MigrationLimits
from tests.pipeline.engines_in_process import (
    SteadyEngine,
    resilient_texts,
    run,
)
from tests.pipeline.rig import PROMPT, Taken, request_of
from tests.text.small_tokenizers import EOS, byte_level, gemma, llama_2
from text.usage import UsageCount


def told(taken: Taken) -> dict[str, Any]:
    """All that a client sees of an answer."""
    usage = UsageCount([len(PROMPT)])
    for output in taken.outputs:
        usage.choices[0].tokens += len(output.token_ids)
        usage.choices[0].observe(output)
    endings = [output for output in taken.outputs if output.finish_reason is not None]
    assert len(endings) == 1
    assert endings[0] is taken.outputs[-1]
    return {
        "text": taken.text,
        "ids": taken.ids,
        "tokens": [text for output in taken.outputs for text in output.tokens],
        "finish": endings[0].finish_reason,
        "stop_reason": endings[0].stop_reason,
        "usage": usage.usage(),
    }


EURO = "naïve café: 12 €, 😀 stop it. The end".encode()
STOPPED = [
    {},
    {"stop": ("stop",)},
    {"stop": ("é: 1", "never")},
    {"stop": ("😀",), "min_tokens": 4},
    {"stop": ("stop",), "min_tokens": 40},
    {"max_tokens": 11},
    {"max_tokens": 1},
    {"stop_token_ids": (ord("i"),)},
    {"stop_token_ids": (ord("i"),), "min_tokens": 9},
]


@pytest.mark.parametrize("read", [1, 3, 100])
@pytest.mark.parametrize("stop", STOPPED)
async def test_a_break_at_every_position_gives_the_unbroken_answer(stop: dict[str, Any], read: int) -> None:
    """Every position of an answer of 45 bytes: some 50 attempts in one test."""
    tokenizer = byte_level()
    eos = tokenizer.encode(EOS, add_special_tokens=False)[0]
    request = replace(request_of(stop=stop), eos_token_ids=(eos,))
    whole = told(await run(resilient_texts(SteadyEngine(EURO, eos, read), tokenizer), request))

    broken = {
        position: told(await run(resilient_texts(SteadyEngine(EURO, eos, read, [position]), tokenizer), request))
        for position in range(len(EURO) + 2)
    }

    assert {position: answer for position, answer in broken.items() if answer != whole} == {}


@settings(max_examples=150, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("make", [byte_level, llama_2, gemma])
def test_breaks_at_any_positions_give_the_unbroken_answer(make: Any, data: st.DataObject) -> None:
    """Three breaks in an answer of any ids, for 150 answers: longer than other tests."""
    tokenizer = make()
    size = 280
    ids = data.draw(st.lists(st.integers(3, size - 30), min_size=1, max_size=24), label="answer")
    text = tokenizer.decode(ids, skip_special_tokens=True)
    at = data.draw(st.integers(0, max(len(text) - 1, 0)), label="stop begins at")
    stops = (text[at : at + data.draw(st.integers(1, 4), label="length")],) if text[at:] else ()
    request = request_of(
        stop={
            "stop": data.draw(st.sampled_from([None, stops]), label="stop"),
            "max_tokens": data.draw(st.integers(1, len(ids) + 2), label="max_tokens"),
            "min_tokens": data.draw(st.sampled_from([None, 1, len(ids)]), label="min_tokens"),
        },
        sampling={"include_stop_str_in_output": data.draw(st.booleans(), label="include")},
    )
    read = data.draw(st.integers(1, 5), label="read")
    breaks = data.draw(st.lists(st.integers(0, len(ids)), min_size=1, max_size=3), label="breaks")
    alone = data.draw(st.booleans(), label="finish alone")

    async def answers() -> tuple[dict[str, Any], dict[str, Any]]:
        engines = [SteadyEngine(ids, 2, read, list(cuts), alone) for cuts in ([], breaks)]
        whole, broken = [await run(resilient_texts(engine, tokenizer, limits=PATIENT), request) for engine in engines]
        return told(whole), told(broken)

    whole, broken = asyncio.run(answers())
    assert broken == whole


PATIENT = MigrationLimits(retries=3, migrations=3)
