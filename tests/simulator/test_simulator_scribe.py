"""Scripted answers: calls of the tools that a prompt shows, and constraints, the same on every worker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.simulate import DEMO_MODEL, tokenizer_of
from simulator.constraints import Constraint
from simulator.generation import Voice
from simulator.jobs import Finish, Output, Spec
from simulator.kv_cache import KvCache
from simulator.model import EngineModel, Pace
from simulator.scribe import Scribe
from text.loading import load_model

CODEC, VOCABULARY = tokenizer_of(DEMO_MODEL)
TEMPLATE = load_model(str(DEMO_MODEL)).chat_template
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASKED: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather? <tools>\nno\n</tools>"}]
CALLED = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "get_weather", "arguments": {}}}]}
RESULT = {"role": "tool", "content": "Rain."}
YES_OR_NO = Constraint("choice", ["yes, of course", "no, never"])


def prompt_of(messages: list[dict[str, Any]], *, tools: bool = True, **variables: Any) -> list[int]:
    assert TEMPLATE is not None
    return list(CODEC.encode(TEMPLATE.render(messages, tools=[TOOL] if tools else None, **variables)))


def script(prompt: list[int], constraint: Constraint | None = None, seed: int = 0, calls_tools: bool = True) -> str:
    ids = Scribe(CODEC, VOCABULARY, seed, calls_tools=calls_tools).script(prompt, constraint, 0.0, None)
    return CODEC.decode(ids)


# ---- calls


@pytest.mark.parametrize("messages", [ASKED, [*ASKED, CALLED, RESULT, *ASKED]], ids=["asked", "asked again"])
def test_a_tool_that_is_shown_is_called(messages: list[dict[str, Any]]) -> None:
    text = script(prompt_of(messages))

    call = json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    assert call["name"] == "get_weather"
    assert call["arguments"].keys() == {"city"}


def test_a_model_that_was_told_not_to_think_calls_as_well() -> None:
    assert script(prompt_of(ASKED, enable_thinking=False)).startswith("<tool_call>")


@pytest.mark.parametrize(
    ("prompt", "calls_tools"),
    [
        (prompt_of(ASKED, tools=False), True),
        (prompt_of(ASKED), False),
        (prompt_of([*ASKED, CALLED, RESULT]), True),
        (prompt_of([*ASKED, CALLED, RESULT, RESULT]), True),
        (list(CODEC.encode("<tools>\n</tools>")), True),
        (list(CODEC.encode("<tools>\nno JSON\n</tools><|im_start|>assistant\n")), True),
        (list(CODEC.encode("<tools>\n[1]\n</tools><|im_start|>assistant\n")), True),
    ],
    ids=["no tools", "does not call", "result", "results", "no turn", "not JSON", "no object"],
)
def test_without_an_occasion_the_model_says_what_it_likes(prompt: list[int], calls_tools: bool) -> None:
    assert script(prompt, calls_tools=calls_tools) == ""


def test_a_call_that_was_begun_elsewhere_goes_on() -> None:
    prompt = prompt_of(ASKED)
    whole = Scribe(CODEC, VOCABULARY, 0, calls_tools=True).script(prompt, None, 0.0, None)

    for said in range(len(whole)):
        rest = Scribe(CODEC, VOCABULARY, 0, calls_tools=True).script([*prompt, *whole[:said]], None, 0.0, None)
        assert rest == whole[said:]


def test_words_that_are_no_call_go_on_as_words() -> None:
    assert script([*prompt_of(ASKED), *CODEC.encode("Hello there")]) == ""


# ---- constraints


def test_a_constraint_wins_over_a_tool() -> None:
    assert script(prompt_of(ASKED), YES_OR_NO) in ("yes, of course", "no, never")


def test_the_text_follows_from_the_seed_and_the_prompt() -> None:
    schema = Constraint("json", {"properties": {"text": {"type": "string"}}})
    texts = {script(prompt_of(ASKED), schema, seed) for seed in range(4)}

    assert len(texts) == 4
    assert script(prompt_of(ASKED), schema, 0) in texts


def test_an_object_of_any_kind_is_the_one_that_the_prompt_describes() -> None:
    described = json.dumps({"type": "object", "properties": {"depth": {"type": "integer"}}})
    text = script(
        prompt_of([{"role": "user", "content": f"JSON by {described}"}], tools=False),
        Constraint("json", {"type": "object"}),
    )

    assert json.loads(text).keys() == {"depth"}


def test_a_constraint_that_cannot_be_followed_is_passed_over() -> None:
    assert script(prompt_of(ASKED, tools=False), Constraint("regex", "(?=x)")) == ""


# ---- in the engine


def outputs(spec: Spec, model: EngineModel) -> tuple[list[int], Finish | None]:
    ids: list[int] = []
    finishes: list[Finish | None] = []

    def sink(job: object, output: Output) -> None:
        ids.extend(output.ids)
        finishes.append(output.finish)

    model.submit(spec, sink)
    while model.due() is not None:
        model.advance()
    return ids, finishes[-1]


def engine() -> EngineModel:
    return EngineModel(Voice(VOCABULARY), KvCache(64, 16), lambda: 0.0, Pace(speed=0))


def test_a_script_is_said_and_then_the_answer_ends() -> None:
    said = (300, 301, 302)

    assert outputs(Spec((5, 6), 20, script=said), engine()) == ([*said, VOCABULARY.eos_ids[0]], Finish.EOS)
    assert outputs(Spec((5, 6), 2, script=said), engine()) == ([300, 301], Finish.LENGTH)
