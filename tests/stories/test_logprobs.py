"""Logprobs: each token's own, told once, the same streamed and whole, whoever made the token."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.stories.house import PAIRED, House
from tests.stories.oracle import answer, answer_ids, ids_of, text_of
from tests.stories.wire import events_of

PROMPT = "Tell me of the sea and of the ships."
MODELS = [*(f"pair-{engine}" for engine in PAIRED), *(f"solo-{engine}" for engine in PAIRED)]
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Of the sea?"}], "max_tokens": 12, "temperature": 0}


def completion(house: House, model: str, *, stream: bool, **fields: Any) -> dict[str, Any]:
    """The logprobs object of a completion; a stream's pieces put together."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "stream": stream, **fields}
    reply = house.http.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    if not stream:
        return reply.json()["choices"][0]["logprobs"]
    whole: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for chunk in events_of(reply.content).chunks:
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            whole[name] += values or []
    return whole


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_tells_each_token_with_its_likeliest_others(house: House, model: str, stream: bool) -> None:
    told = completion(house, model, stream=stream, logprobs=3)

    ids = answer_ids(PROMPT, 12)
    assert told["tokens"] == [text_of([token_id]) for token_id in ids]
    assert all(-10 < logprob <= 0 for logprob in told["token_logprobs"])
    assert told["text_offset"] == [len(text_of(ids[:place])) for place in range(12)]
    for token, logprob, top in zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True):
        assert 3 <= len(top) <= 4
        assert math.isclose(top[token], logprob, abs_tol=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_logprobs_are_the_same_streamed_and_whole(house: House, model: str) -> None:
    whole, streamed = (completion(house, model, stream=stream, logprobs=2) for stream in (False, True))

    assert streamed == whole


SCORING = ["pair-vllm", "solo-vllm", "pair-sglang", "solo-sglang"]
"""Models whose engines tell the prompt's logprobs."""


@pytest.mark.parametrize("model", SCORING)
@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_tells_the_prompts_tokens_too_and_nothing_of_the_first(house: House, model: str, stream: bool) -> None:
    told = completion(house, model, stream=stream, logprobs=1, echo=True, max_tokens=4)

    prompt = ids_of(PROMPT)
    assert told["tokens"] == [text_of([token_id]) for token_id in (*prompt, *answer_ids(PROMPT, 4))]
    assert told["token_logprobs"][0] is None
    assert all(isinstance(logprob, float) for logprob in told["token_logprobs"][1:])
    assert told["text_offset"][len(prompt)] == len(PROMPT)
    assert told["text_offset"] == sorted(told["text_offset"])


@pytest.mark.parametrize("model", SCORING)
@pytest.mark.parametrize("stream", [False, True])
def test_a_text_is_scored_without_a_word_generated(house: House, model: str, stream: bool) -> None:
    told = completion(house, model, stream=stream, logprobs=1, echo=True, max_tokens=0)

    assert told == {
        name: values[: len(ids_of(PROMPT))]
        for name, values in completion(house, model, stream=stream, logprobs=1, echo=True, max_tokens=4).items()
    }


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_cannot_tell_of_the_prompt_is_not_asked_to(house: House, stream: bool) -> None:
    body = {"model": "pair-trtllm", "prompt": PROMPT, "echo": True, "logprobs": 1, "stream": stream}

    reply = house.http.post("/v1/completions", json=body)

    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "echo")
    assert error["message"] == "'echo' with 'logprobs' is not supported by this model's engine (trtllm)"


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_asked_of_the_prompt_by_its_own_name_is_refused_by_it(house: House, stream: bool) -> None:
    body = {"model": "pair-trtllm", "prompt": PROMPT, "prompt_logprobs": 1, "stream": stream}

    error = house.http.post("/v1/completions", json=body).json()["error"]

    assert error["param"] == "prompt_logprobs"
    assert "trtllm" in error["message"]


@pytest.mark.parametrize("model", ["pair-native", "solo-native"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"echo": True, "logprobs": 0, "max_tokens": 0}, "echo"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
def test_logprobs_of_the_prompt_that_an_engine_did_not_tell_are_no_nulls(
    house: House, model: str, stream: bool, asked: dict[str, Any], param: str
) -> None:
    reply = house.http.post("/v1/completions", json={"model": model, "prompt": PROMPT, "stream": stream, **asked})

    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param)
    assert f"'{param}'" in error["message"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_tells_tokens_with_their_bytes(house: House, model: str, stream: bool) -> None:
    body = {"model": model, **CHAT, "logprobs": True, "top_logprobs": 2, "stream": stream}
    reply = house.http.post("/v1/chat/completions", json=body)

    if stream:
        chunks = events_of(reply.content).chunks
        entries = [e for chunk in chunks for e in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
        text = events_of(reply.content).text()
    else:
        entries = reply.json()["choices"][0]["logprobs"]["content"]
        text = reply.json()["choices"][0]["message"]["content"]
    assert len(entries) == 12
    assert "".join(entry["token"] for entry in entries) == text
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == text
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


@pytest.mark.parametrize("model", ["pair-vllm", "solo-openai"])
def test_who_does_not_ask_is_told_none(house: House, model: str) -> None:
    whole = house.sdk.completions.create(model=model, prompt=PROMPT, max_tokens=4, temperature=0)

    assert whole.choices[0].logprobs is None
    assert whole.choices[0].text == answer(PROMPT, 4)


@pytest.mark.parametrize("stream", [False, True])
def test_an_openai_servers_logprobs_are_its_own(house: House, stream: bool) -> None:
    told = completion(house, "solo-openai", stream=stream, logprobs=2)

    assert len(told["tokens"]) == len(told["token_logprobs"]) == 12
    assert "".join(told["tokens"]) == answer(PROMPT, 12)
