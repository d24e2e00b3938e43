"""LlamaIndex's `OpenAILike`."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from wishes import Person

CHAT = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="What is the weather?")]


def get_weather(city: str, days: int) -> str:
    """The weather of a place."""
    return f"Rain in {city}, for {days} days."


TOOL = FunctionTool.from_defaults(get_weather)


@pytest.fixture
def llm(base_url: str, model: str) -> OpenAILike:
    return made(base_url, model)


def made(base_url: str, model: str, **fields: Any) -> OpenAILike:
    fields = {"is_chat_model": True, "is_function_calling_model": True, "should_use_structured_outputs": True, **fields}
    return OpenAILike(
        api_base=base_url, api_key="unused", model=model, temperature=0, max_retries=0, context_window=8192, **fields
    )


def test_chat(llm: OpenAILike) -> None:
    answer = llm.chat(CHAT)

    assert answer.message.content
    assert answer.additional_kwargs["total_tokens"] > 0


def test_stream_chat(llm: OpenAILike) -> None:
    whole = llm.chat(CHAT)
    parts = list(llm.stream_chat(CHAT))

    assert "".join(part.delta or "" for part in parts) == parts[-1].message.content == whole.message.content


async def test_astream_chat(llm: OpenAILike) -> None:
    whole = await llm.achat(CHAT)
    parts = [part async for part in await llm.astream_chat(CHAT)]

    assert parts[-1].message.content == whole.message.content


def test_complete_by_chat(llm: OpenAILike) -> None:
    assert llm.complete("Once").text == list(llm.stream_complete("Once"))[-1].text


def test_complete_by_completions(base_url: str, model: str) -> None:
    llm = made(base_url, model, is_chat_model=False, max_tokens=8)

    assert llm.complete("Once").text == list(llm.stream_complete("Once"))[-1].text


@pytest.mark.parametrize("required", [True, False])
def test_tools(llm: OpenAILike, required: bool) -> None:
    answer = llm.chat_with_tools([TOOL], user_msg="What is the weather?", tool_required=required)
    *_, streamed = llm.stream_chat_with_tools([TOOL], user_msg="What is the weather?", tool_required=required)

    calls = llm.get_tool_calls_from_response(answer)
    again = llm.get_tool_calls_from_response(streamed)
    assert {call.tool_name for call in calls} == {"get_weather"}
    assert [call.tool_kwargs for call in again] == [call.tool_kwargs for call in calls]
    assert all(call.tool_kwargs.keys() == {"city", "days"} for call in calls)


def test_predict_and_call(llm: OpenAILike) -> None:
    assert "Rain in " in llm.predict_and_call([TOOL], user_msg="What is the weather?").response


def test_structured_output(llm: OpenAILike) -> None:
    assert isinstance(llm.as_structured_llm(Person).chat(CHAT).raw, Person)


def test_structured_output_by_a_call(base_url: str, model: str) -> None:
    llm = made(base_url, model, should_use_structured_outputs=False)

    assert isinstance(llm.as_structured_llm(Person).chat(CHAT).raw, Person)
