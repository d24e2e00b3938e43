"""Answers in a form that the client asks for, by models that keep to it: through every engine, alone and in pairs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field

from simulator.options import TrtllmOptions
from tests.stories.house import PAIRED, Hosted, House, pair, solo
from tests.text.readings import TOOLS

CHAT: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
GUIDED = TrtllmOptions(guided=True)
MODELS = [*(f"{kind}-{engine}" for engine in PAIRED for kind in ("pair", "solo")), "solo-openai"]
BY_IDS = MODELS[:-1]
FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "regex": ({"guided_regex": r"[A-Z]{3}-\d+"}, r"[A-Z]{3}-\d+"),
    "choice": ({"structured_outputs": {"choice": ["sun", "rain (or snow)"]}}, r"sun|rain \(or snow\)"),
    "grammar": ({"guided_grammar": 'root ::= "it is " ("hot" | "cold")'}, "it is (hot|cold)"),
}


class Weather(BaseModel):
    sky: str
    degrees: int = Field(ge=-20, le=40)
    winds: list[str]


@pytest.fixture(scope="module")
def following() -> Iterator[House]:
    options: dict[str, Any] = {"calls_tools": True, "trtllm": GUIDED}
    models = [
        *(pair(engine, prefill=1, decode=1, **options) for engine in PAIRED),
        *(solo(engine, **options) for engine in PAIRED),
        Hosted("solo-openai", "openai"),
    ]
    with House(models, logging={"level": "warning"}) as house:
        yield house


@pytest.fixture
def house(following: House) -> Iterator[House]:
    yield following
    following.rest()


def said(house: House, model: str, stream: bool, **fields: Any) -> str:
    chat = house.sdk.chat.completions
    if not stream:
        return chat.create(model=model, messages=CHAT, **fields).choices[0].message.content or ""
    return "".join(
        choice.delta.content or ""
        for chunk in chat.create(model=model, messages=CHAT, stream=True, **fields)
        for choice in chunk.choices
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_an_answer_by_a_schema(house: House, model: str, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": Weather.model_json_schema()}}

    assert Weather.model_validate_json(said(house, model, stream, response_format=form))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FIELDS)
@pytest.mark.parametrize("model", BY_IDS)
def test_an_answer_by_a_pattern(house: House, model: str, form: str, stream: bool) -> None:
    fields, pattern = FIELDS[form]

    assert re.fullmatch(pattern, said(house, model, stream, extra_body=fields))


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("model", BY_IDS)
def test_a_call(house: House, model: str, choice: Any) -> None:
    answer = house.sdk.chat.completions.create(model=model, messages=CHAT, tools=TOOLS, tool_choice=choice)

    calls = answer.choices[0].message.tool_calls or []
    assert calls
    assert {call.function.name for call in calls} <= {tool["function"]["name"] for tool in TOOLS}
    assert all(json.loads(call.function.arguments).keys() for call in calls)


@pytest.mark.parametrize("engine", PAIRED)
def test_a_call_goes_on_where_its_worker_died(open_house: Callable[..., House], engine: str) -> None:
    house = open_house(pair(engine, calls_tools=True))
    unbroken = house.sdk.chat.completions.create(model=f"pair-{engine}", messages=CHAT, tools=TOOLS, temperature=0)
    for worker in house.workers(f"pair-{engine}", "decode")[:1]:
        house.call(worker.faults.add, "die@token:4")

    answers = [
        house.sdk.chat.completions.create(model=f"pair-{engine}", messages=CHAT, tools=TOOLS, temperature=0)
        for _ in range(2)
    ]

    told = [[call.function for call in answer.choices[0].message.tool_calls or ()] for answer in (unbroken, *answers)]
    assert told[0]
    assert told == [told[0]] * 3
    assert house.workers(f"pair-{engine}", "decode")[0].worker.dead


def test_an_engine_without_guided_decoding_says_so(open_house: Callable[..., House]) -> None:
    house = open_house(solo("trtllm"))

    with pytest.raises(openai.BadRequestError, match="guided decoding is not enabled"):
        said(house, "solo-trtllm", False, response_format={"type": "json_object"})
