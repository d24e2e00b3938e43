"""Requests that cannot be answered: a clear 4xx with the field named, and no worker ever hears of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tests.stories.house import House
from tests.stories.test_front_door import assert_envelope, assert_plain_headers
from tests.stories.wire import Reply

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "Hi"}
VOCABULARY = 6893


@pytest.fixture(autouse=True)
def no_worker_hears_of_it(house: House) -> Iterator[None]:
    before = house.count("choices")
    yield
    assert house.count("choices") == before


def post(house: House, path: str, body: Any, **headers: str) -> Reply:
    with house.wire() as wire:
        wire.post(path, body, **headers)
        reply = wire.reply()
        assert wire.get("/live").status == 200
    assert_plain_headers(reply)
    return reply


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": ',
        b'{"model": "solo-vllm"} trailing',
        b"{'model': 'solo-vllm'}",
        b'{"model": "solo-vllm", "temperature": NaN}',
        b"\xff\xfe{\x00}\x00",
        b'{"model": "\xc3\x28"}',
        b'\xef\xbb\xbf{"model": "solo-vllm"}',
        b'{"model": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\x00" * 10,
    ],
    ids=lambda body: repr(body[:24]),
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_body_that_is_no_json_is_told_so(house: House, path: str, body: bytes) -> None:
    error = assert_envelope(post(house, path, body), 400)

    assert error["type"] == "invalid_request_error"
    assert "not valid" in error["message"]
    assert len(error["message"]) < 300


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"null", b"17", b"true"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_json_that_is_no_object_is_told_so(house: House, path: str, body: bytes) -> None:
    assert "must be a JSON object" in assert_envelope(post(house, path, body), 400)["message"]


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("model", {"model": None}),
        ("model", {"model": 5}),
        ("model", {"model": ""}),
        ("model", {"model": ["solo-vllm"]}),
        ("stream", {"stream": "yes"}),
        ("stream", {"stream": 1}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("stream_options.include_usage", {"stream": True, "stream_options": {"include_usage": "yes"}}),
        ("n", {"n": 0}),
        ("n", {"n": 129}),
        ("n", {"n": 100_000}),
        ("n", {"n": 1.5}),
        ("n", {"n": True}),
        ("temperature", {"temperature": -0.1}),
        ("temperature", {"temperature": 2.1}),
        ("temperature", {"temperature": "hot"}),
        ("temperature", {"temperature": True}),
        ("top_p", {"top_p": 1.1}),
        ("top_p", {"top_p": -1}),
        ("frequency_penalty", {"frequency_penalty": 3}),
        ("presence_penalty", {"presence_penalty": -3}),
        ("max_tokens", {"max_tokens": -1}),
        ("max_tokens", {"max_tokens": 1.5}),
        ("max_tokens", {"max_tokens": "7"}),
        ("max_tokens", {"max_tokens": 0}),
        ("min_tokens", {"min_tokens": 9, "max_tokens": 8}),
        ("stop", {"stop": {}}),
        ("stop", {"stop": ["x"] * 33}),
        ("stop", {"stop": ""}),
        ("stop[1]", {"stop": ["x", ""]}),
        ("stop[0]", {"stop": [1.5]}),
        ("stop_token_ids[0]", {"stop_token_ids": ["x"]}),
        ("seed", {"seed": 1.5}),
        ("seed", {"seed": 2**63}),
        ("logit_bias", {"logit_bias": []}),
        ("logit_bias.x", {"logit_bias": {"x": 1}}),
        ("logit_bias.5", {"logit_bias": {"5": 101}}),
        (f"logit_bias.{VOCABULARY}", {"logit_bias": {str(VOCABULARY): 1}}),
        ("top_k", {"top_k": -2}),
        ("min_p", {"min_p": 2}),
        ("repetition_penalty", {"repetition_penalty": 0}),
        ("user", {"user": 5}),
        ("cache_salt", {"cache_salt": ""}),
        ("priority", {"priority": "high"}),
        ("tandem.nothing", {"tandem": {"nothing": 1}}),
        ("nvext", {"tandem": {}, "nvext": {}}),
    ],
)
@pytest.mark.parametrize(("path", "asked"), [(CHAT, {"messages": [USER]}), (COMPLETIONS, {"prompt": "Hi"})])
def test_a_wrong_value_is_told_by_its_field(
    house: House, path: str, asked: dict[str, Any], param: str, fields: dict[str, Any]
) -> None:
    error = assert_envelope(post(house, path, {"model": "solo-vllm", **asked, **fields}), 400)

    assert error["param"] == param
    assert param in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("prompt", {}),
        ("prompt", {"prompt": None}),
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": 5}),
        ("prompt", {"prompt": {}}),
        ("prompt[1]", {"prompt": ["a", 1]}),
        ("prompt[1]", {"prompt": ["a", ""]}),
        ("prompt[1]", {"prompt": [1, "a"]}),
        ("prompt[0]", {"prompt": [1.5]}),
        ("prompt[0]", {"prompt": [True]}),
        ("prompt[0]", {"prompt": [-1]}),
        ("prompt[1]", {"prompt": [5, VOCABULARY]}),
        ("prompt[0]", {"prompt": [2**40]}),
        ("prompt[0]", {"prompt": [[]]}),
        ("prompt[1]", {"prompt": [[1], "a"]}),
        ("prompt[1][0]", {"prompt": [[1], [VOCABULARY]]}),
        ("prompt[0]", {"prompt": [None]}),
        ("prompt", {"prompt": ["x"] * 1025}),
        ("prompt", {"prompt": ["x"] * 9, "n": 128}),
        ("suffix", {"prompt": "Hi", "suffix": "there"}),
        ("logprobs", {"prompt": "Hi", "logprobs": 21}),
        ("logprobs", {"prompt": "Hi", "logprobs": -1}),
        ("logprobs", {"prompt": "Hi", "logprobs": True}),
        ("echo", {"prompt": "Hi", "echo": "yes"}),
        ("best_of", {"prompt": "Hi", "n": 2, "best_of": 1}),
        ("best_of", {"prompt": "Hi", "best_of": 2, "stream": True}),
        ("prompt_embeds", {"prompt_embeds": "not base64!"}),
    ],
)
def test_a_wrong_prompt_is_told_by_its_place(house: House, param: str, fields: dict[str, Any]) -> None:
    error = assert_envelope(post(house, COMPLETIONS, {"model": "solo-vllm", **fields}), 400)

    assert error["param"] == param
    assert len(error["message"]) < 300


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("messages", {}),
        ("messages", {"messages": None}),
        ("messages", {"messages": "Hi"}),
        ("messages", {"messages": {}}),
        ("messages", {"messages": []}),
        ("messages[0]", {"messages": ["Hi"]}),
        ("messages[0].role", {"messages": [{}]}),
        ("messages[0].role", {"messages": [{"content": "Hi"}]}),
        ("messages[0].role", {"messages": [{"role": 5, "content": "Hi"}]}),
        ("messages[0].content", {"messages": [{"role": "user"}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": None}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": 5}]}),
        ("messages[1].content", {"messages": [USER, {"role": "user", "content": {}}]}),
        ("messages[0].content[0]", {"messages": [{"role": "user", "content": ["Hi"]}]}),
        ("messages[0].content[0].text", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        ("tools", {"messages": [USER], "tools": {}}),
        ("tools[0]", {"messages": [USER], "tools": ["x"]}),
        ("tools[0].function.name", {"messages": [USER], "tools": [{"type": "function", "function": {}}]}),
        ("tool_choice", {"messages": [USER], "tool_choice": "required"}),
        ("top_logprobs", {"messages": [USER], "top_logprobs": 2}),
        ("top_logprobs", {"messages": [USER], "logprobs": True, "top_logprobs": 21}),
        ("logprobs", {"messages": [USER], "logprobs": 2}),
        ("max_completion_tokens", {"messages": [USER], "max_completion_tokens": 0}),
        ("response_format.type", {"messages": [USER], "response_format": {"type": "yaml"}}),
        ("chat_template", {"messages": [USER], "chat_template": "{{ 1 }}"}),
        ("modalities", {"messages": [USER], "modalities": ["audio"]}),
    ],
)
def test_a_wrong_chat_is_told_by_its_place(house: House, param: str, fields: dict[str, Any]) -> None:
    error = assert_envelope(post(house, CHAT, {"model": "solo-vllm", **fields}), 400)

    assert error["param"] == param
    assert len(error["message"]) < 300


@pytest.mark.parametrize("model", ["nobody", "Solo-vllm", "../etc", "m" * 100_000])
@pytest.mark.parametrize(("path", "asked"), [(CHAT, {"messages": [USER]}), (COMPLETIONS, {"prompt": "Hi"})])
def test_an_unknown_model_is_404(house: House, path: str, asked: dict[str, Any], model: str) -> None:
    error = assert_envelope(post(house, path, {"model": model, **asked}), 404)

    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert len(error["message"]) < 400


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "param", "asked"),
    [
        (COMPLETIONS, "prompt", {"prompt": [5] * 8192}),
        (COMPLETIONS, "prompt", {"prompt": "of the sea " * 5000}),
        (CHAT, "messages", {"messages": [{"role": "user", "content": "of the sea " * 5000}]}),
    ],
)
def test_a_prompt_longer_than_the_context_is_told_by_a_code_of_its_own(
    house: House, path: str, param: str, asked: dict[str, Any], stream: bool
) -> None:
    error = assert_envelope(post(house, path, {"model": "pair-vllm", "stream": stream, **asked}), 400)

    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert "8192" in error["message"]


@pytest.mark.parametrize("header", ["x-tandem-worker", "x-tandem-prefill-worker", "x-tandem-dp-rank"])
@pytest.mark.parametrize("value", ["first", "-1", "1.5", "9" * 40])
def test_a_malformed_routing_header_is_told_by_its_name(house: House, header: str, value: str) -> None:
    reply = post(house, COMPLETIONS, {"model": "pair-vllm", "prompt": "Hi"}, **{header: value})

    error = assert_envelope(reply, 400)
    assert header in error["message"]
    assert error["param"] == header


def test_a_rejected_request_is_counted_as_what_it_was(house: House) -> None:
    def counted() -> tuple[float, float]:
        invalid = house.count("finished", endpoint="completions", status="error", error_type="validation")
        unknown = house.count("finished", endpoint="completions", model="unknown", error_type="not_found")
        return invalid, unknown

    invalid, unknown = counted()

    post(house, COMPLETIONS, {"model": "solo-vllm", "prompt": 5})
    post(house, COMPLETIONS, {"model": "nobody", "prompt": "Hi"})

    assert counted() == (invalid + 1, unknown + 1)


def test_an_error_quotes_no_more_than_a_little_of_what_was_wrong(house: House) -> None:
    long = orjson.dumps({"model": "solo-vllm", "prompt": "Hi", "stop": [["x" * 1_000_000]]})

    assert len(post(house, COMPLETIONS, long).body) < 1000
