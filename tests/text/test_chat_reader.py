"""What a request and its prompt say of the answer: the engine's constraint, and how the text is read."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from protocols.errors import InvalidRequest
from protocols.openai import ChatCompletionRequest, parse_chat
from protocols.options import GuidedDecoding
from tests.text import small_tokenizers
from tests.text.readings import TOOLS
from text.answer_parser import ModelMarkup
from text.chat_reader import ChatPlan, ChatReader
from text.guided import guided_decoding

QWEN = ModelMarkup("hermes", "qwen3")
NAMED = {"type": "function", "function": {"name": "get_weather"}}
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
STRICT = [{"type": "function", "function": {"name": "get_time", "strict": True, "parameters": {"type": "object"}}}]


def request_of(**fields: Any) -> ChatCompletionRequest:
    return parse_chat(orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "?"}], **fields}))


def plan(
    markup: ModelMarkup = QWEN, prompt: str = "?", tags: bool = True, arguments: Any = None, **fields: Any
) -> ChatPlan:
    request = request_of(**fields)
    reader = ChatReader(markup, small_tokenizers.byte_level(), structural_tags=tags)
    return reader.plan(request, prompt, arguments or {}, guided_decoding(request))


# ---- how it is read


def test_a_chat_without_tools_of_a_model_without_thoughts_is_not_read() -> None:
    assert plan(ModelMarkup("hermes", None)) == ChatPlan()
    assert plan(ModelMarkup("hermes", None), tools=TOOLS, tool_choice="none") == ChatPlan()


def test_a_constraint_of_such_a_chat_stays_as_it_is() -> None:
    guided = plan(ModelMarkup("hermes", None), response_format=FORMAT).guided

    assert guided == GuidedDecoding(json=SCHEMA)


def test_a_chat_with_tools_is_searched_for_calls() -> None:
    reading = plan(tools=TOOLS).reading

    assert reading is not None
    assert (reading.tool_calls, reading.thinking) == ("hermes", False)
    assert reading.rules is not None


def test_the_prompts_end_tells_whether_the_answer_begins_with_thoughts() -> None:
    found = [plan(prompt=prompt).reading for prompt in ("assistant\n<think>\n", "assistant\n<think>\n\n</think>\n\n")]

    assert [reading is not None and reading.thinking for reading in found] == [True, False]


def test_special_tokens_of_the_markup_are_to_be_shown_and_no_others() -> None:
    tokenizer = small_tokenizers.byte_level()
    harmony = ModelMarkup("harmony", "gpt_oss")

    assert plan(harmony, tools=TOOLS).shown_token_ids == {tokenizer.token_id(small_tokenizers.CALL)} | {
        tokenizer.token_id(small_tokenizers.EOS)
    }
    assert plan(tools=TOOLS).shown_token_ids == frozenset()


# ---- what binds the engine


def test_free_calls_bind_nothing() -> None:
    assert plan(tools=TOOLS).guided is None


@pytest.mark.parametrize(("tags", "bound"), [(True, True), (False, False)])
def test_strict_tools_bind_free_calls_where_workers_take_tags(tags: bool, bound: bool) -> None:
    guided = plan(tags=tags, tools=STRICT).guided

    assert (guided is not None and guided.structural_tag is not None) == bound


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_call_binds_to_the_models_markup_where_workers_take_tags_else_to_json(choice: Any) -> None:
    tagged, untagged = (plan(tags=tags, tools=TOOLS, tool_choice=choice).guided for tags in (True, False))

    assert tagged is not None
    assert untagged is not None
    assert tagged.structural_tag["type"] == "structural_tag"
    assert untagged.json["type"] == ("array" if choice == "required" else "object")


def test_a_forced_call_behind_thoughts_is_json() -> None:
    found = plan(prompt="<think>\n", tools=TOOLS, tool_choice="required")

    assert found.guided is not None
    assert found.guided.json["type"] == "array"
    assert found.thinks_first
    assert found.reading is not None
    assert found.reading.structured


def test_a_forced_call_leaves_the_answers_format_out() -> None:
    guided = plan(tags=False, tools=TOOLS, tool_choice="required", response_format=FORMAT).guided

    assert guided is not None
    assert guided.json["type"] == "array"


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"functions": [TOOLS[0]["function"]], "function_call": {"name": "get_weather"}}, "function_call"),
    ],
)
def test_a_forced_call_excludes_a_constraint_of_ones_own(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        plan(**fields, guided_regex="a+")

    assert refused.value.param == place


def test_free_calls_leave_a_constraint_of_ones_own_as_it_is() -> None:
    assert plan(tools=TOOLS, guided_regex="a+").guided == GuidedDecoding(regex="a+")


def test_free_calls_beside_a_format_are_bound_to_either() -> None:
    guided = plan(tools=TOOLS, response_format=FORMAT).guided

    assert guided is not None
    assert guided.json is None
    assert guided.structural_tag["format"]["type"] == "or"


@pytest.mark.parametrize(("markup", "tags"), [(QWEN, False), (ModelMarkup("llama3_json", None), True)])
def test_free_calls_beside_a_format_are_refused_where_no_tag_can_say_both(markup: ModelMarkup, tags: bool) -> None:
    with pytest.raises(InvalidRequest, match="structural tag") as refused:
        plan(markup, tags=tags, tools=TOOLS, response_format=FORMAT)

    assert refused.value.param == "response_format"


def test_a_model_that_cannot_call_keeps_the_answers_format() -> None:
    assert plan(ModelMarkup(None, None), tools=TOOLS, response_format=FORMAT).guided == GuidedDecoding(json=SCHEMA)


def test_a_format_behind_thoughts_waits_for_their_end() -> None:
    assert plan(prompt="<think>\n", response_format=FORMAT).thinks_first
    assert not plan(response_format=FORMAT).thinks_first
    assert not plan(prompt="<think>\n").thinks_first
