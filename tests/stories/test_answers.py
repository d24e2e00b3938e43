"""The OpenAI client asks, every kind of worker answers: what comes is what the model says, streamed or whole."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stories.house import PAIRED, QUOTED, House
from tests.stories.oracle import answer, answer_ids, chat_ids, ids_of, text_of
from tests.stories.wire import events_of

PROMPT = "Tell me of the sea and of the ships."
CHAT: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Of the sea?"}]
MODELS = [*(f"pair-{engine}" for engine in PAIRED), *(f"solo-{engine}" for engine in PAIRED), "solo-openai"]
TOKEN_MODELS = MODELS[:-1]


@pytest.mark.parametrize("model", MODELS)
def test_a_completion_is_what_the_model_says(house: House, model: str) -> None:
    completion = house.sdk.completions.create(model=model, prompt=PROMPT, max_tokens=16, temperature=0)

    assert completion.object == "text_completion"
    assert completion.model == model
    assert [choice.text for choice in completion.choices] == [answer(PROMPT, 16)]
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (len(ids_of(PROMPT)), 16)


@pytest.mark.parametrize("model", MODELS)
def test_a_streamed_completion_is_the_same_text_in_pieces(house: House, model: str) -> None:
    chunks = list(
        house.sdk.completions.create(
            model=model,
            prompt=PROMPT,
            max_tokens=16,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    texts = [choice.text for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == answer(PROMPT, 16)
    assert len(texts) > 3
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == ["length"]
    usage = chunks[-1].usage
    assert chunks[-1].choices == []
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (
        len(ids_of(PROMPT)),
        16,
        len(ids_of(PROMPT)) + 16,
    )
    assert {(chunk.id, chunk.model, chunk.object) for chunk in chunks} == {(chunks[0].id, model, "text_completion")}


@pytest.mark.parametrize("model", MODELS)
def test_a_chat_is_what_the_model_says_to_its_template(house: House, model: str) -> None:
    completion = house.sdk.chat.completions.create(model=model, messages=CHAT, max_tokens=16, temperature=0)

    prompt = chat_ids(*CHAT)
    message = completion.choices[0].message
    assert (completion.object, completion.model) == ("chat.completion", model)
    assert (message.role, message.content) == ("assistant", answer(prompt, 16))
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (len(prompt), 16)


@pytest.mark.parametrize("model", MODELS)
def test_a_streamed_chat_opens_with_the_role_and_closes_with_the_finish(house: House, model: str) -> None:
    chunks = list(
        house.sdk.chat.completions.create(model=model, messages=CHAT, max_tokens=16, temperature=0, stream=True)
    )

    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in choices) == answer(chat_ids(*CHAT), 16)
    assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert [chunk.usage for chunk in chunks] == [None] * len(chunks)


@pytest.mark.parametrize("model", ["pair-vllm", "pair-trtllm"])
def test_streamed_choices_tell_their_own_logprobs(house: House, model: str) -> None:
    asked = {"model": model, "messages": CHAT, "n": 2, "max_tokens": 6, "temperature": 1, "seed": 7, "logprobs": True}

    whole = house.sdk.chat.completions.create(**asked)
    told: dict[int, list[str]] = {0: [], 1: []}
    for chunk in house.sdk.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            told[choice.index] += [token.token for token in (choice.logprobs and choice.logprobs.content) or ()]

    assert told == {
        choice.index: [token.token for token in choice.logprobs.content or ()]
        for choice in whole.choices
        if choice.logprobs
    }
    assert [len(tokens) for tokens in told.values()] == [6, 6]
    assert told[0] != told[1]


@pytest.mark.parametrize("model", TOKEN_MODELS)
@pytest.mark.parametrize("stream", [False, True])
def test_every_shape_of_prompt_is_answered_in_its_order(house: House, model: str, stream: bool) -> None:
    first, second = ids_of("One and"), ids_of("Two or three")
    shapes: list[Any] = ["One and", ["One and", "Two or three"], first, [first, second]]

    told = [_texts(house, stream, model=model, prompt=prompt, max_tokens=8, temperature=0) for prompt in shapes]

    one, two = answer(first, 8), answer(second, 8)
    assert told == [[one], [one, two], [one], [one, two]]


def _texts(house: House, stream: bool, **request: Any) -> list[str]:
    """Each choice's text, in the order of their indexes."""
    if not stream:
        choices = house.sdk.completions.create(**request).choices
        assert [choice.index for choice in choices] == list(range(len(choices)))
        return [choice.text for choice in choices]
    texts: dict[int, str] = {}
    for chunk in house.sdk.completions.create(**request, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return [texts[index] for index in sorted(texts)]


@pytest.mark.parametrize("model", MODELS)
def test_several_choices_with_a_seed_differ_and_come_again(house: House, model: str) -> None:
    def ask() -> list[str]:
        return _texts(house, False, model=model, prompt=PROMPT, n=3, max_tokens=8, temperature=1, seed=7)

    first, second = ask(), ask()

    assert len(set(first)) == 3
    assert first == second


@pytest.mark.parametrize("model", ["pair-vllm", "pair-sglang"])
def test_streamed_choices_are_told_apart_by_their_index(house: House, model: str) -> None:
    chunks = list(
        house.sdk.chat.completions.create(
            model=model,
            messages=CHAT,
            n=3,
            max_tokens=8,
            temperature=1,
            seed=7,
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    whole = house.sdk.chat.completions.create(model=model, messages=CHAT, n=3, max_tokens=8, temperature=1, seed=7)
    texts = dict.fromkeys(range(3), "")
    finishes = []
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
        finishes += [choice.index] if choice.finish_reason else []
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert sorted(finishes) == [0, 1, 2]
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 24


@pytest.mark.parametrize("model", TOKEN_MODELS)
@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_puts_the_prompt_in_front(house: House, model: str, stream: bool) -> None:
    texts = _texts(house, stream, model=model, prompt=PROMPT, echo=True, max_tokens=8, temperature=0)

    assert texts == [PROMPT + answer(PROMPT, 8)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_before_it(house: House, model: str, stream: bool) -> None:
    ids = answer_ids(PROMPT, 16)
    stop = text_of(ids[9:11])[2:-2]  # neither begins nor ends with a token

    texts = _texts(house, stream, model=model, prompt=PROMPT, stop=["never said", stop], max_tokens=16, temperature=0)

    assert texts == [answer(PROMPT, 16).partition(stop)[0]]


@pytest.mark.parametrize("model", TOKEN_MODELS)
def test_a_stop_id_ends_the_answer_and_the_finish_says_so(house: House, model: str) -> None:
    ids = answer_ids(PROMPT, 16)
    place = ids.index(ids[12])

    completion = house.sdk.completions.create(
        model=model, prompt=PROMPT, max_tokens=16, temperature=0, extra_body={"stop_token_ids": [ids[12]]}
    )

    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == place + 1
    assert completion.choices[0].text.startswith(text_of(ids[:place]))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "fields",
    [{}, {"n": 2}, {"stop": ["e s"]}, {"logprobs": 1}, {"max_tokens": 1}, {"stream_options": {"include_usage": True}}],
    ids=lambda fields: "-".join(fields) or "plain",
)
def test_every_stream_is_whole_events_and_ends_as_it_should(house: House, model: str, fields: dict[str, Any]) -> None:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 16, "temperature": 0, "stream": True, **fields}

    events = events_of(house.http.post("/v1/completions", json=body).content)

    assert (events.done, events.error) == (1, None)
    assert [len(events.finishes(index)) for index in range(fields.get("n", 1))] == [1] * fields.get("n", 1)
    assert (events.usage() is not None) == ("stream_options" in fields)


def test_text_that_looks_like_the_end_of_a_stream_does_not_end_it(house: House) -> None:
    request: Any = {"model": "quoted", "messages": CHAT, "max_tokens": 200}

    whole = house.sdk.chat.completions.create(**request)
    chunks = list(house.sdk.chat.completions.create(**request, stream=True))

    assert whole.choices[0].message.content == QUOTED
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == QUOTED
    assert whole.choices[0].finish_reason == "stop"
    assert "�" not in "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


@pytest.mark.parametrize("name", ["org/demo-8b", "chat", "org/alias"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_carries_the_name_that_was_asked_for(house: House, name: str, stream: bool) -> None:
    request: Any = {"model": name, "messages": CHAT, "max_tokens": 4}

    if stream:
        told = {chunk.model for chunk in house.sdk.chat.completions.create(**request, stream=True)}
    else:
        told = {house.sdk.chat.completions.create(**request).model}

    assert told == {name}


@pytest.mark.parametrize("model", ["solo-vllm", "solo-sglang", "solo-trtllm", "solo-native", "solo-openai"])
def test_what_the_worker_has_said_is_with_the_client_before_it_says_more(house: House, model: str) -> None:
    house.call(house.workers(model)[0].faults.add, "silence@token:3")
    wire = house.wire()
    wire.post("/v1/completions", {"model": model, "prompt": PROMPT, "max_tokens": 9, "temperature": 0, "stream": True})

    events = events_of(wire.first_events(3))

    assert (events.text(), events.done) == (answer(PROMPT, 3), 0)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/completions/"])
@pytest.mark.parametrize("model", ["pair-vllm", "pair-sglang", "pair-trtllm"])
def test_a_pairs_whole_answer_is_json_by_its_content_type(house: House, model: str, path: str) -> None:
    reply = house.http.post(path, json={"model": model, "prompt": PROMPT, "max_tokens": 3})

    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")


@pytest.mark.parametrize("model", TOKEN_MODELS)
@pytest.mark.parametrize(
    "fields", [{}, {"stop": [answer(PROMPT, 8)[9:12]]}, {"echo": True, "max_tokens": 0}, {"n": 2, "seed": 1}], ids=str
)
def test_the_engine_counts_as_we_do(house: House, model: str, fields: dict[str, Any]) -> None:
    before = house.count("usage_differences")
    body = {"model": model, "prompt": [PROMPT, "Another."], "max_tokens": 8, **fields}

    replies = [house.http.post("/v1/completions", json={**body, "stream": stream}) for stream in (True, False)]

    assert [reply.status_code for reply in replies] == [200, 200]
    assert house.count("usage_differences") == before
