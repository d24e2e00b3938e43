"""Asking a house, and reading its answers strictly: headers, types, the order of a stream's events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httpx

from tests.conformance.joined import joined
from tests.conformance.strict import CHUNK, WHOLE, Envelope, check
from tests.stories.house import House
from tests.stories.wire import Events, events_of

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
KIND = {"chat": "chat.completion.chunk", "completions": "text_completion"}


def whole(house: House, route: str, model: str, fields: Mapping[str, Any], **headers: str) -> dict[str, Any]:
    """The unstreamed answer."""
    asked = {name: value for name, value in fields.items() if name != "stream_options"}
    reply = house.http.post(PATHS[route], json={"model": model, **asked}, headers=headers)
    assert reply.status_code == 200, reply.text
    check_headers(reply, "application/json")
    assert int(one(reply, "content-length")) == len(reply.content)
    answer: dict[str, Any] = check(WHOLE[route], reply.content)
    assert answer["model"] == model
    check_usage(answer["usage"])
    return answer


def streamed(house: House, route: str, model: str, fields: Mapping[str, Any], **headers: str) -> dict[str, Any]:
    """The streamed answer, joined."""
    return joined(events(house, route, model, fields, **headers))


def events(house: House, route: str, model: str, fields: Mapping[str, Any], **headers: str) -> Events:
    """The streamed answer's events, each of OpenAI's type and in OpenAI's order."""
    reply = house.http.post(PATHS[route], json={"model": model, **fields, "stream": True}, headers=headers)
    assert reply.status_code == 200, reply.text
    check_headers(reply, "text/event-stream; charset=utf-8")
    assert one(reply, "cache-control") == "no-cache"
    assert one(reply, "x-accel-buffering") == "no"
    assert one(reply, "transfer-encoding") == "chunked"
    for line in reply.content.split(b"\n\n")[:-2]:
        check(CHUNK[route], line.removeprefix(b"data: "))
    found = events_of(reply.content)
    assert (found.error, found.done) == (None, 1)
    check_order(found, route, model, fields.get("stream_options") or {})
    return found


def refused(house: House, route: str, model: str, fields: Mapping[str, Any]) -> tuple[int, str | None, str | None]:
    """The status, parameter and code of a refusal, in OpenAI's envelope."""
    reply = house.http.post(PATHS[route], json={"model": model, **fields})
    check_headers(reply, "application/json")
    error = check(Envelope, reply.content)["error"]
    return reply.status_code, error["param"], error["code"]


def check_headers(reply: httpx.Response, kind: str) -> None:
    """What every answer's head says, and says once."""
    assert one(reply, "content-type") == kind
    assert re.fullmatch(r"req-[0-9a-f]{24}", one(reply, "x-request-id"))
    assert re.fullmatch(r"\d{1,5}", one(reply, "openai-processing-ms"))
    assert one(reply, "date")


def one(reply: httpx.Response, name: str) -> str:
    values = reply.headers.get_list(name)
    assert len(values) == 1, f"{name}: {values}"
    return values[0]


def check_order(found: Events, route: str, model: str, options: Mapping[str, Any]) -> None:
    """One id and one time; each choice opens with its role, if it has one, and ends with its one finish; usage last."""
    chunks = found.chunks
    assert {chunk["model"] for chunk in chunks} == {model}
    assert {chunk["object"] for chunk in chunks} == {KIND[route]}
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    usages = [chunk.get("usage") for chunk in chunks]
    if options.get("include_usage"):
        assert chunks.pop()["choices"] == []
        check_usage(usages[-1])
        assert options.get("continuous_usage_stats") or usages[:-1] == [None] * (len(usages) - 1)
    else:
        assert not any("usage" in chunk for chunk in chunks)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in {choice["index"] for choice in choices}:
        _check_choice([choice for choice in choices if choice["index"] == index], route)
    found.chunks = [*chunks, *([{"choices": [], "usage": usages[-1]}] if options.get("include_usage") else [])]


def _check_choice(choices: list[dict[str, Any]], route: str) -> None:
    finishes = [choice["finish_reason"] for choice in choices]
    assert finishes[-1] is not None
    assert finishes[:-1] == [None] * (len(finishes) - 1)
    if route == "chat":
        roles = [choice["delta"].get("role") for choice in choices]
        assert roles == ["assistant"] + [None] * (len(roles) - 1)
        assert choices[-1]["delta"] == {}


def check_usage(usage: Any) -> None:
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
