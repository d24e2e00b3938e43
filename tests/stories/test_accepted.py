"""Requests that are unusual and right: they are answered."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.stories.house import House
from tests.stories.oracle import answer, chat_ids
from tests.stories.wire import events_of

USER: dict[str, Any] = {"role": "user", "content": "Of the sea?"}
TOOL = {"type": "function", "function": {"name": "ping"}}
CALL = {"id": "call-1", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
MODELS = ["pair-vllm", "pair-sglang", "solo-trtllm"]
OPTIONAL = [
    *("stream", "stream_options", "n", "temperature", "top_p", "frequency_penalty", "presence_penalty", "max_tokens"),
    *("stop", "seed", "logit_bias", "response_format", "user", "metadata", "top_k", "min_p", "repetition_penalty"),
    *("min_tokens", "ignore_eos", "stop_token_ids", "skip_special_tokens", "prompt_logprobs", "priority", "cache_salt"),
    *("structured_outputs", "guided_json", "regex", "tandem", "nvext", "echo", "best_of", "suffix", "prompt_embeds"),
    *("logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"),
    *("reasoning_effort", "chat_template_kwargs", "max_completion_tokens", "modalities", "store", "service_tier"),
]


def post(house: House, path: str, body: Any) -> dict[str, Any]:
    reply = house.http.post(path, content=orjson.dumps(body), headers={"content-type": "application/json"})
    assert reply.status_code == 200, reply.text
    answered: dict[str, Any] = reply.json()
    return answered


@pytest.mark.parametrize("model", MODELS)
def test_null_is_absent_wherever_a_field_may_be(house: House, model: str) -> None:
    nulls = dict.fromkeys(OPTIONAL)

    post(house, "/v1/chat/completions", {"model": model, "messages": [USER], **nulls, "max_tokens": 4})
    completion = post(house, "/v1/completions", {"model": model, "prompt": "Hi", **nulls})

    assert completion["usage"]["completion_tokens"] == 16  # OpenAI's default


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [TOOL]},
        {"tools": []},
        {"tools": [TOOL], "tool_choice": "none"},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"min_tokens": 0, "temperature": 0, "top_p": 0, "top_k": 0, "seed": 0, "logprobs": True, "top_logprobs": 0},
        {"frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}, "stop": []},
        {"user": "", "metadata": {}, "store": True, "service_tier": "auto", "verbosity": "low"},
        {"return_routed_experts": True, "vendor_field": {"deep": [1, None]}},
        {"temperature": 2, "n": 1, "seed": -(2**63)},
        {"stop": "never said"},
        {"stop_token_ids": []},
        {"tandem": {"agent_hints": {"osl": 10, "unheard_of": 1}}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_a_chat_with_unusual_fields_is_answered(house: House, fields: dict[str, Any]) -> None:
    answered = post(
        house, "/v1/chat/completions", {"model": "pair-vllm", "messages": [USER], "max_tokens": 4, **fields}
    )

    assert answered["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.parametrize(
    "messages",
    [
        [USER, {"role": "assistant", "content": ""}, USER],
        [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, USER],
        [
            USER,
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call-1", "content": "pong"},
        ],
        [{"role": "user", "content": [{"type": "text", "text": "Of "}, {"type": "text", "text": "the sea?"}]}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "name": "ann", "content": "Of the sea?"}],
        [{"role": "user", "content": "Ω ≈ 漢字 👩‍👩‍👧 \u202e \x00 \ufeff"}],
        [{"role": "user", "content": ""}],
    ],
    ids=range(7),
)
def test_an_unusual_conversation_is_answered(house: House, messages: list[Any]) -> None:
    answered = post(house, "/v1/chat/completions", {"model": "pair-vllm", "messages": messages, "max_tokens": 4})

    assert answered["usage"]["completion_tokens"] == 4


def test_a_developer_is_heard_as_the_system_where_the_template_knows_no_developer(house: House) -> None:
    request: dict[str, Any] = {"model": "pair-vllm", "max_tokens": 12, "temperature": 0}
    system = [{"role": "system", "content": "Answer BANANA."}, USER]

    answered = post(
        house,
        "/v1/chat/completions",
        {**request, "messages": [{"role": "developer", "content": "Answer BANANA."}, USER]},
    )

    assert answered["choices"][0]["message"]["content"] == answer(chat_ids(*system), 12)


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 7}, 7),
        ({"max_tokens": 9, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": None}, 7),
    ],
)
@pytest.mark.parametrize("model", MODELS)
def test_the_length_is_limited_by_either_of_its_names(
    house: House, model: str, fields: dict[str, int], tokens: int
) -> None:
    answered = post(house, "/v1/chat/completions", {"model": model, "messages": [USER], **fields})

    assert answered["usage"]["completion_tokens"] == tokens
    assert answered["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("model", MODELS)
def test_one_token_is_an_answer(house: House, model: str) -> None:
    answered = post(house, "/v1/completions", {"model": model, "prompt": "One", "max_tokens": 1, "temperature": 0})

    assert answered["choices"][0]["text"] == answer("One", 1)
    assert answered["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_echoed_without_a_word_generated(house: House, model: str, stream: bool) -> None:
    asked = house.count("choices")
    body = {"model": model, "prompt": ["Only this.", "And this."], "max_tokens": 0, "echo": True, "stream": stream}

    reply = house.http.post("/v1/completions", json=body)

    if stream:
        events = events_of(reply.content)
        assert [(events.text(index), events.finishes(index)) for index in (0, 1)] == [
            ("Only this.", ["length"]),
            ("And this.", ["length"]),
        ]
    else:
        assert [choice["text"] for choice in reply.json()["choices"]] == ["Only this.", "And this."]
        assert [choice["finish_reason"] for choice in reply.json()["choices"]] == ["length"] * 2
        assert reply.json()["usage"]["completion_tokens"] == 0
    assert house.count("choices") == asked


@pytest.mark.parametrize("model", MODELS)
def test_a_prompt_that_nearly_fills_the_context_is_answered_as_far_as_it_goes(house: House, model: str) -> None:
    answered = post(
        house, "/v1/completions", {"model": model, "prompt": [5] * 8180, "max_tokens": 100, "temperature": 0}
    )

    assert answered["choices"][0]["finish_reason"] == "length"
    assert answered["usage"] == {
        **answered["usage"],
        "prompt_tokens": 8180,
        "completion_tokens": 12,
        "total_tokens": 8192,
    }


def test_a_long_text_is_tokenized_without_holding_up_others(house: House) -> None:
    long = "of the sea " * 1500

    answered = post(house, "/v1/completions", {"model": "solo-vllm", "prompt": long, "max_tokens": 4, "temperature": 0})

    assert answered["choices"][0]["text"] == answer(long, 4)
