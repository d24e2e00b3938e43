"""LiteLLM's client, by its provider for servers like OpenAI's."""

from __future__ import annotations

import json
from typing import Any

import litellm
import pytest
from wishes import CHAT, WEATHER, Person, is_weather


@pytest.fixture
def asked(base_url: str, model: str) -> dict[str, Any]:
    return {"model": f"openai/{model}", "api_base": base_url, "api_key": "unused", "temperature": 0}


def test_completion(asked: dict[str, Any]) -> None:
    whole = litellm.completion(messages=CHAT, **asked)
    chunks = list(litellm.completion(messages=CHAT, stream=True, stream_options={"include_usage": True}, **asked))
    built = litellm.stream_chunk_builder(chunks, messages=CHAT)

    assert built.choices[0].message.content == whole.choices[0].message.content
    assert built.usage.total_tokens == whole.usage.total_tokens
    assert built.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"


async def test_acompletion(asked: dict[str, Any]) -> None:
    stream = await litellm.acompletion(messages=CHAT, stream=True, **asked)

    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tools(asked: dict[str, Any], choice: str) -> None:
    whole = litellm.completion(messages=CHAT, tools=[WEATHER], tool_choice=choice, **asked)
    chunks = list(litellm.completion(messages=CHAT, tools=[WEATHER], tool_choice=choice, stream=True, **asked))
    built = litellm.stream_chunk_builder(chunks, messages=CHAT)

    for answer in (whole, built):
        arguments = [json.loads(call.function.arguments) for call in answer.choices[0].message.tool_calls]
        assert arguments
        assert all(map(is_weather, arguments))


def test_an_answer_in_a_form(asked: dict[str, Any]) -> None:
    answer = litellm.completion(messages=CHAT, response_format=Person, **asked)

    assert Person.model_validate_json(answer.choices[0].message.content)


def test_text_completion(asked: dict[str, Any]) -> None:
    assert litellm.text_completion(prompt="Once", max_tokens=5, **asked).choices[0].text


def test_thoughts(thinkers_url: str, thinker: str) -> None:
    answer = litellm.completion(
        model=f"openai/{thinker}", api_base=f"{thinkers_url}/v1", api_key="unused", messages=CHAT
    )

    message = answer.choices[0].message
    assert (message.content, message.reasoning_content) == ("Hello there.", "The user greets me.")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_embedding(thinkers_url: str, thinker: str) -> None:
    answer = litellm.embedding(
        model=f"openai/{thinker}", api_base=f"{thinkers_url}/v1", api_key="unused", input=["The sea"]
    )

    assert len(answer.data[0]["embedding"]) == 64


def test_errors(base_url: str) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(model="openai/nobody", api_base=base_url, api_key="unused", messages=CHAT)
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(
            model="openai/demo-vllm",
            api_base=base_url,
            api_key="unused",
            messages=[{"role": "user", "content": "x " * 9000}],
        )
