"""OpenAI's Python client, synchronous and not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI, pydantic_function_tool
from openai.types.chat import ChatCompletion
from openai.types.completion_usage import CompletionUsage
from processes import SAID, THOUGHTS
from pydantic import BaseModel
from wishes import CHAT, WEATHER, Person, is_weather


@pytest.fixture
def client(base_url: str) -> Iterator[OpenAI]:
    # Every answer is checked against the SDK's types, which it otherwise takes on trust.
    with OpenAI(base_url=base_url, api_key="unused", max_retries=0, _strict_response_validation=True) as client:
        yield client


@pytest.fixture
def trusting(base_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=base_url, api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(base_url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=base_url, api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def thoughtful(thinkers_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{thinkers_url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def adds_up(usage: CompletionUsage | None) -> bool:
    assert usage is not None
    return usage.prompt_tokens + usage.completion_tokens == usage.total_tokens


# ---- chats


def test_a_whole_answer(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=CHAT, max_tokens=5)

    assert (answer.object, answer.model) == ("chat.completion", model)
    (choice,) = answer.choices
    assert choice.finish_reason in ("length", "stop")
    assert choice.message.content
    assert choice.message.role == "assistant"
    assert adds_up(answer.usage)


def test_a_streamed_answer_is_the_whole_one(client: OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=CHAT, temperature=0)
    chunks = list(client.chat.completions.create(model=model, messages=CHAT, temperature=0, stream=True))

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == [
        whole.choices[0].finish_reason
    ]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_tells_usage_where_it_is_asked(client: OpenAI, model: str) -> None:
    *chunks, last = client.chat.completions.create(
        model=model, messages=CHAT, max_tokens=5, stream=True, stream_options={"include_usage": True}
    )

    assert last.choices == []
    assert adds_up(last.usage)
    assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in chunks)


def test_several_choices(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=CHAT, max_tokens=4, n=2, temperature=1)

    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.completion_tokens == 8


def test_several_streamed_choices(client: OpenAI, model: str) -> None:
    with client.chat.completions.stream(model=model, messages=CHAT, n=2) as stream:
        final = stream.until_done().get_final_completion()

    assert [choice.index for choice in final.choices] == [0, 1]
    assert all(choice.message.content for choice in final.choices)


@pytest.mark.parametrize("top", [None, 3])
def test_log_probabilities(client: OpenAI, model: str, top: int | None) -> None:
    answer = client.chat.completions.create(model=model, messages=CHAT, max_tokens=4, logprobs=True, top_logprobs=top)

    tokens = answer.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content
    assert all(token.logprob <= 0 and token.bytes is not None for token in tokens)
    assert {len(token.top_logprobs) for token in tokens} == {top or 0}


def test_streamed_log_probabilities(client: OpenAI, model: str) -> None:
    with client.chat.completions.stream(
        model=model, messages=CHAT, max_tokens=4, logprobs=True, top_logprobs=2
    ) as stream:
        events = list(stream)

    (done,) = [event for event in events if event.type == "logprobs.content.done"]
    assert len(done.content) == 4


def test_stop_strings_and_parts_of_content(client: OpenAI, model: str) -> None:
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    whole = client.chat.completions.create(model=model, messages=parts, temperature=0)
    word = whole.choices[0].message.content.split()[1]

    cut = client.chat.completions.create(model=model, messages=parts, temperature=0, stop=[f" {word}"])

    assert cut.choices[0].message.content == whole.choices[0].message.content.split(f" {word}")[0]
    assert cut.choices[0].finish_reason == "stop"


def test_the_helper_s_events(client: OpenAI, model: str) -> None:
    with client.chat.completions.stream(model=model, messages=CHAT) as stream:
        events = list(stream)
        final = stream.get_final_completion()

    text = "".join(event.delta for event in events if event.type == "content.delta")
    (done,) = [event for event in events if event.type == "content.done"]
    assert final.choices[0].message.content == done.content == text


def test_the_helper_s_word_for_an_answer_that_was_cut_off(client: OpenAI, model: str) -> None:
    with (
        pytest.raises(openai.LengthFinishReasonError) as caught,
        client.chat.completions.stream(model=model, messages=CHAT, max_tokens=1) as stream,
    ):
        stream.get_final_completion()

    assert caught.value.completion.usage is None


# ---- answers in a form


def test_a_parsed_answer(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.parse(model=model, messages=CHAT, response_format=Person)

    assert isinstance(answer.choices[0].message.parsed, Person)


def test_a_streamed_parsed_answer(client: OpenAI, model: str) -> None:
    with client.chat.completions.stream(model=model, messages=CHAT, response_format=Person) as stream:
        events = list(stream)
        final = stream.get_final_completion()

    assert isinstance(final.choices[0].message.parsed, Person)
    assert [event.parsed for event in events if event.type == "content.done"] == [final.choices[0].message.parsed]


def test_any_object(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=CHAT, response_format={"type": "json_object"})

    assert isinstance(json.loads(answer.choices[0].message.content), dict)


# ---- tools


CHOICES: list[Any] = ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}]


@pytest.mark.parametrize("choice", CHOICES, ids=["auto", "required", "named"])
def test_calls(client: OpenAI, model: str, choice: Any) -> None:
    answer = client.chat.completions.create(model=model, messages=CHAT, tools=[WEATHER], tool_choice=choice)

    message = answer.choices[0].message
    assert message.content is None
    assert message.tool_calls
    assert all(call.type == "function" and call.function.name == "get_weather" for call in message.tool_calls)
    assert all(is_weather(json.loads(call.function.arguments)) for call in message.tool_calls)


@pytest.mark.parametrize("choice", CHOICES, ids=["auto", "required", "named"])
def test_streamed_calls(client: OpenAI, model: str, choice: Any) -> None:
    with client.chat.completions.stream(model=model, messages=CHAT, tools=[WEATHER], tool_choice=choice) as stream:
        events = list(stream)
        message = stream.get_final_completion().choices[0].message

    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.arguments for event in done] == [call.function.arguments for call in message.tool_calls]
    assert all(is_weather(json.loads(event.arguments)) for event in done)


def test_a_conversation_with_a_tool(client: OpenAI, model: str) -> None:
    called = client.chat.completions.create(model=model, messages=CHAT, tools=[WEATHER]).choices[0]
    results = [{"role": "tool", "tool_call_id": call.id, "content": "Rain."} for call in called.message.tool_calls]

    answer = client.chat.completions.create(
        model=model, messages=[*CHAT, called.message, *results], tools=[WEATHER], max_tokens=5
    )

    assert called.finish_reason == "tool_calls"
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


class GetPerson(BaseModel):
    person: Person
    times: int


def test_parsed_calls(client: OpenAI, model: str) -> None:
    """`pydantic_function_tool` makes strict tools, which is what binds the engine where the choice is free."""
    answer = client.chat.completions.parse(model=model, messages=CHAT, tools=[pydantic_function_tool(GetPerson)])

    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, GetPerson)


def test_streamed_parsed_calls(client: OpenAI, model: str) -> None:
    with client.chat.completions.stream(
        model=model, messages=CHAT, tools=[pydantic_function_tool(GetPerson)], tool_choice="required"
    ) as stream:
        message = stream.get_final_completion().choices[0].message

    assert all(isinstance(call.function.parsed_arguments, GetPerson) for call in message.tool_calls)


# ---- thoughts


def test_thoughts(thoughtful: OpenAI, thinker: str) -> None:
    answer = thoughtful.chat.completions.create(model=thinker, messages=CHAT)

    message: Any = answer.choices[0].message
    assert (message.content, message.reasoning_content) == (SAID, THOUGHTS)
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0


def test_streamed_thoughts(thoughtful: OpenAI, thinker: str) -> None:
    stream: Any = thoughtful.chat.completions.create(model=thinker, messages=CHAT, stream=True)
    deltas = [chunk.choices[0].delta for chunk in stream]

    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == THOUGHTS
    assert "".join(delta.content or "" for delta in deltas) == SAID


# ---- raw answers


def test_a_raw_answer(client: OpenAI, model: str) -> None:
    raw = client.chat.completions.with_raw_response.create(model=model, messages=CHAT, max_tokens=3)

    assert raw.headers["x-request-id"] == raw.request_id
    assert int(raw.headers["openai-processing-ms"]) >= 0
    assert isinstance(raw.parse(), ChatCompletion)


def test_a_streaming_raw_answer(client: OpenAI, model: str) -> None:
    with client.chat.completions.with_streaming_response.create(
        model=model, messages=CHAT, max_tokens=3, stream=True
    ) as raw:
        lines = [line for line in raw.iter_lines() if line]

    assert raw.headers["content-type"].startswith("text/event-stream")
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"


def test_an_answer_that_its_reader_leaves(client: OpenAI, model: str) -> None:
    with client.chat.completions.create(model=model, messages=CHAT, stream=True) as stream:
        first = next(iter(stream))

    assert first.choices[0].delta.role == "assistant"
    assert client.chat.completions.create(model=model, messages=CHAT, max_tokens=1).choices


# ---- not synchronous


async def test_an_answer_to_the_async_client(async_client: AsyncOpenAI, model: str) -> None:
    whole = await async_client.chat.completions.create(model=model, messages=CHAT, temperature=0)
    stream = await async_client.chat.completions.create(model=model, messages=CHAT, temperature=0, stream=True)

    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert text == whole.choices[0].message.content


async def test_a_parsed_answer_to_the_async_client(async_client: AsyncOpenAI, model: str) -> None:
    async with async_client.chat.completions.stream(model=model, messages=CHAT, response_format=Person) as stream:
        final = await stream.get_final_completion()

    assert isinstance(final.choices[0].message.parsed, Person)


# ---- the other endpoints


PROMPTS: list[Any] = ["Once", ["Once", "Twice"], [50, 60, 70], [[50, 60], [70]]]


@pytest.mark.parametrize("prompt", PROMPTS, ids=["text", "texts", "ids", "lists of ids"])
def test_completions(client: OpenAI, model: str, prompt: Any) -> None:
    answer = client.completions.create(model=model, prompt=prompt, max_tokens=4, logprobs=2, temperature=0)

    assert answer.object == "text_completion"
    assert all(0 < len(choice.logprobs.tokens) <= 4 for choice in answer.choices)
    # The end of text is a token of this endpoint, too, as it is for OpenAI.
    assert all("".join(choice.logprobs.tokens).startswith(choice.text) for choice in answer.choices)
    assert adds_up(answer.usage)


def test_streamed_completions(trusting: OpenAI, model: str) -> None:
    """A chunk's finish is null before the last, as OpenAI's is, but not by the SDK's type: so that is not asked."""
    whole = trusting.completions.create(model=model, prompt="Once", max_tokens=8, temperature=0)
    stream = trusting.completions.create(model=model, prompt="Once", max_tokens=8, temperature=0, stream=True)

    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def test_models(client: OpenAI, model: str) -> None:
    assert model in [card.id for card in client.models.list()]
    assert client.models.retrieve(model).id == model


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("inputs", ["The sea", ["The sea", "The ships"], [50, 60]], ids=["text", "texts", "ids"])
def test_embeddings(thoughtful: OpenAI, thinker: str, inputs: Any) -> None:
    packed = thoughtful.embeddings.create(model=thinker, input=inputs)
    plain = thoughtful.embeddings.create(model=thinker, input=inputs, encoding_format="float")

    assert [len(item.embedding) for item in packed.data] == [64] * len(plain.data)
    assert packed.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)
    assert plain.usage.prompt_tokens == plain.usage.total_tokens > 0


# ---- errors


REFUSED: list[tuple[dict[str, Any], type[openai.APIStatusError], str | None, str | None]] = [
    ({"model": "nobody"}, openai.NotFoundError, "model_not_found", "model"),
    ({"messages": []}, openai.BadRequestError, None, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, openai.BadRequestError, None, "messages[0].role"),
    ({"temperature": 9}, openai.BadRequestError, None, "temperature"),
    ({"max_tokens": -1}, openai.BadRequestError, None, "max_tokens"),
    (
        {"messages": [{"role": "user", "content": "x " * 9000}]},
        openai.BadRequestError,
        "context_length_exceeded",
        "messages",
    ),
    ({"tool_choice": "required"}, openai.BadRequestError, None, "tool_choice"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "kind", "code", "param"), REFUSED, ids=[str(case[3]) for case in REFUSED])
def test_errors(client: OpenAI, fields: Any, kind: Any, code: str | None, param: str | None, stream: bool) -> None:
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": "demo-vllm", "messages": CHAT, "stream": stream, **fields})

    error = caught.value
    assert error.param == param
    assert error.code == code or code is None
    assert error.type == "invalid_request_error"
    assert error.request_id
    assert error.body["message"]


def test_a_model_that_makes_no_embeddings(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=model, input="The sea")

    assert caught.value.param == "model"


@pytest.mark.parametrize("path", ["/responses", "/chat"])
def test_a_route_that_is_not_there(client: OpenAI, path: str) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.post(path, cast_to=object, body={"model": "demo-vllm", "input": "Hi"})

    assert caught.value.body["message"]
