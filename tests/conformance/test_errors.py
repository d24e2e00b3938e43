"""Refusals are OpenAI's errors, by any engine, streamed and not: a stream that has not begun has a status."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.asking import PATHS, check_headers, refused
from tests.conformance.strict import Envelope, check
from tests.conformance.table import PROMPT, TOOLS, USER
from tests.stories.house import House

MODELS = ["pair-vllm", "pair-sglang", "solo-trtllm", "solo-native", "solo-openai"]
CHAT, TEXT = {"messages": [USER]}, {"prompt": PROMPT}
ROWS: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("chat", {"messages": []}, "messages", None),
    ("chat", {**CHAT, "temperature": 3}, "temperature", None),
    ("chat", {**CHAT, "n": 0}, "n", None),
    ("chat", {**CHAT, "max_tokens": 0}, "max_tokens", None),
    ("chat", {**CHAT, "top_logprobs": 3}, "top_logprobs", None),
    ("chat", {**CHAT, "tool_choice": "required"}, "tool_choice", None),
    ("chat", {**CHAT, "tools": [{**TOOLS[0], "type": "other"}]}, "tools[0].type", None),
    ("chat", {**CHAT, "response_format": {"type": "json_schema"}}, "response_format.json_schema", None),
    ("chat", {"messages": [{"role": "nobody", "content": ""}]}, "messages[0].role", None),
    ("completions", {"prompt": []}, "prompt", None),
    ("completions", {**TEXT, "logprobs": True}, "logprobs", None),
    ("completions", {**TEXT, "stop": [""]}, "stop[0]", None),
    ("completions", {"prompt": [3] * 9000}, "prompt", "context_length_exceeded"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("route", "fields", "param", "code"), ROWS)
def test_a_refusal_names_its_parameter(
    house: House, model: str, route: str, fields: dict[str, Any], param: str, code: str | None, stream: bool
) -> None:
    assert refused(house, route, model, {**fields, "stream": stream}) == (400, param, code)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("route", "fields"), [("chat", CHAT), ("completions", TEXT)])
def test_an_unknown_model_is_not_found(house: House, route: str, fields: dict[str, Any], stream: bool) -> None:
    assert refused(house, route, "nobody", {**fields, "stream": stream}) == (404, "model", "model_not_found")


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"model=x", "application/x-www-form-urlencoded", 415),
        (b"{}", "text/plain", 415),
    ],
)
@pytest.mark.parametrize("path", [*PATHS.values(), "/v1/embeddings", "/tokenize", "/detokenize"])
def test_a_body_that_cannot_be_read_is_refused_in_the_envelope(
    house: House, path: str, content: bytes, kind: str, status: int
) -> None:
    reply = house.http.post(path, content=content, headers={"content-type": kind})

    assert reply.status_code == status
    check_headers(reply, "application/json")
    assert check(Envelope, reply.content)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/models/nobody", "/v1/responses"])
def test_what_is_not_there_is_refused_in_the_envelope(house: House, path: str) -> None:
    reply = house.http.get(path)

    assert reply.status_code == 404
    check_headers(reply, "application/json")
    check(Envelope, reply.content)
