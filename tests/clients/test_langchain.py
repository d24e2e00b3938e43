"""LangChain's `ChatOpenAI`, `OpenAI` and `OpenAIEmbeddings`."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import SecretStr
from wishes import Person

KEY = SecretStr("unused")
SAID = "What is the weather in Paris?"


@tool
def get_weather(city: str, days: int = 1) -> str:
    """The weather of a place."""
    return f"Rain in {city}, for {days} days."


@pytest.fixture
def chat(base_url: str, model: str) -> ChatOpenAI:
    return ChatOpenAI(base_url=base_url, api_key=KEY, model=model, temperature=0, max_retries=0)


def joined(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return whole


def counts(answer: AIMessage) -> tuple[int, ...]:
    """Tokens of the prompt, of the answer, and of both. How many of them a worker had cached is its affair."""
    return tuple(answer.usage_metadata[part] for part in ("input_tokens", "output_tokens", "total_tokens"))


def test_invoke(chat: ChatOpenAI, model: str) -> None:
    answer = chat.invoke([SystemMessage("Be brief."), HumanMessage(SAID)])

    assert answer.content
    prompt, said, both = counts(answer)
    assert prompt > 0
    assert prompt + said == both
    assert answer.response_metadata["model_name"] == model
    assert answer.response_metadata["finish_reason"] == "stop"


def test_stream(chat: ChatOpenAI) -> None:
    whole = chat.invoke(SAID)
    chunks = list(chat.stream(SAID, stream_usage=True))

    assert joined(chunks).content == whole.content
    assert len(chunks) > 2
    assert counts(joined(chunks)) == counts(whole)
    assert joined(chunks).response_metadata["finish_reason"] == "stop"


async def test_astream(chat: ChatOpenAI) -> None:
    whole = await chat.ainvoke(SAID)

    assert joined([chunk async for chunk in chat.astream(SAID)]).content == whole.content


async def test_astream_events(chat: ChatOpenAI) -> None:
    kinds = [event["event"] async for event in chat.astream_events(SAID, version="v2")]

    assert (kinds[0], kinds[-1]) == ("on_chat_model_start", "on_chat_model_end")
    assert "on_chat_model_stream" in kinds


def test_batch(chat: ChatOpenAI) -> None:
    answers = chat.batch([f"Say {number}." for number in range(4)], config={"max_concurrency": 4})

    assert len({answer.content for answer in answers}) == 4


def test_a_chain(chat: ChatOpenAI) -> None:
    chain = ChatPromptTemplate.from_messages([("system", "You are {who}."), ("user", "{text}")]) | chat

    assert chain.invoke({"who": "Tandem", "text": "Hello"}).content


def test_log_probabilities(chat: ChatOpenAI) -> None:
    answer = chat.bind(logprobs=True, top_logprobs=2).invoke(SAID, max_tokens=3)

    assert len(answer.response_metadata["logprobs"]["content"]) == 3


@pytest.mark.parametrize("choice", [None, "auto", "any", "required", "get_weather"])
def test_tools(chat: ChatOpenAI, choice: str | None) -> None:
    bound = chat.bind_tools([get_weather], tool_choice=choice)
    whole = bound.invoke(SAID)
    streamed = joined(list(bound.stream(SAID)))

    assert {call["name"] for call in whole.tool_calls} == {"get_weather"}
    assert whole.invalid_tool_calls == []
    assert [(call["name"], call["args"]) for call in streamed.tool_calls] == [
        (call["name"], call["args"]) for call in whole.tool_calls
    ]
    assert all(call["id"] for call in streamed.tool_calls)


def test_a_conversation_with_a_tool(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools([get_weather])
    called = bound.invoke(SAID)
    results = [get_weather.invoke(call) for call in called.tool_calls]

    answer = bound.invoke([HumanMessage(SAID), called, *results])

    assert isinstance(results[0], ToolMessage)
    assert isinstance(answer, AIMessage)
    assert (answer.tool_calls, bool(answer.content)) == ([], True)


# LangChain dumps the OpenAI SDK's parsed chunks, whose type the SDK leaves open.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(chat: ChatOpenAI, method: Any) -> None:
    bound = chat.with_structured_output(Person, method=method)

    assert isinstance(bound.invoke(SAID), Person)
    assert isinstance(list(bound.stream(SAID))[-1], Person)


def test_structured_output_as_any_json(chat: ChatOpenAI) -> None:
    answer = chat.with_structured_output({"title": "any", "type": "object", "properties": {}}, method="json_mode")

    assert isinstance(answer.invoke("Answer in JSON."), dict)


def test_strict_structured_output_with_what_was_said(chat: ChatOpenAI) -> None:
    told = chat.with_structured_output(Person, strict=True, include_raw=True).invoke(SAID)

    assert isinstance(told["parsed"], Person)
    assert told["parsing_error"] is None


def test_completions(base_url: str, model: str) -> None:
    completion = OpenAI(base_url=base_url, api_key=KEY, model=model, temperature=0, max_tokens=8)

    assert completion.invoke("Once") == "".join(completion.stream("Once"))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("as_ids", [True, False])
def test_embeddings(thinkers_url: str, thinker: str, as_ids: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `check_embedding_ctx_length` LangChain sends token ids.

    It tokenizes by tiktoken, whose vocabularies are downloaded; the few ids of a stand-in show the same request.
    """
    monkeypatch.setattr("tiktoken.encoding_for_model", lambda name: FewIds())
    embeddings = OpenAIEmbeddings(
        base_url=f"{thinkers_url}/v1", api_key=KEY, model=thinker, check_embedding_ctx_length=as_ids
    )

    vectors = embeddings.embed_documents(["The sea", "The ships of the sea"])

    assert [len(vector) for vector in vectors] == [64, 64]
    assert embeddings.embed_query("The sea") == pytest.approx(vectors[0], abs=1e-6)


class FewIds:
    """As much of a tiktoken encoding as LangChain uses."""

    def encode_ordinary(self, text: str) -> list[int]:
        return [100 + len(word) for word in text.split()]

    def encode(self, text: str, **options: Any) -> list[int]:
        return self.encode_ordinary(text)


def test_thoughts_do_not_stand_in_the_answer(thinkers_url: str, thinker: str) -> None:
    chat = ChatOpenAI(base_url=f"{thinkers_url}/v1", api_key=KEY, model=thinker)

    assert chat.invoke(SAID).content == joined(list(chat.stream(SAID))).content == "Hello there."
    assert chat.invoke(SAID).usage_metadata["output_token_details"]["reasoning"] > 0


def test_errors(base_url: str) -> None:
    with pytest.raises(openai.NotFoundError):
        ChatOpenAI(base_url=base_url, api_key=KEY, model="nobody").invoke(SAID)
