"""curl, as the README and the demo's welcome call it, looking at the bytes."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

HELLO = [{"role": "user", "content": "Hello"}]


def curl(*arguments: str, body: str | None = None) -> str:
    """What curl prints; it must be content with what it got. A body goes to it by its input."""
    sent = [] if body is None else ["--data-binary", "@-", "-H", "content-type: application/json"]
    found = shutil.which("curl")
    assert found, "curl is missing"
    command = [found, "-sS", "-N", *sent, *arguments]
    done = subprocess.run(command, input=body or "", capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout


def posted(base_url: str, path: str, body: dict[str, Any], *arguments: str) -> str:
    return curl(f"{base_url}{path}", *arguments, body=json.dumps(body))


@pytest.mark.parametrize("protocol", ["--http1.1", "--http1.0", "--http2"])
def test_a_stream_is_events_and_ends_with_its_mark(base_url: str, model: str, protocol: str) -> None:
    """`--http2` wishes to be upgraded, as Java's client does unless it is told not to."""
    said = posted(base_url, "/chat/completions", {"model": model, "messages": HELLO, "stream": True}, protocol)

    *events, rest = said.split("\n\n")
    assert rest == ""
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_an_answer_is_one_object(base_url: str, model: str) -> None:
    said = posted(base_url, "/chat/completions", {"model": model, "messages": HELLO, "max_tokens": 3}, "-i")

    head, _, body = said.partition("\r\n\r\n") if "\r\n\r\n" in said else said.partition("\n\n")
    assert head.startswith("HTTP/1.1 200")
    assert "application/json" in head
    assert json.loads(body)["object"] == "chat.completion"


def test_a_compressed_answer_may_be_asked_for(base_url: str, model: str) -> None:
    said = posted(base_url, "/chat/completions", {"model": model, "messages": HELLO, "max_tokens": 3}, "--compressed")

    assert json.loads(said)["choices"]


def test_a_large_body_that_waits_for_leave_to_be_sent(base_url: str, model: str) -> None:
    """curl asks `expect: 100-continue` for a body beyond a megabyte."""
    body = json.dumps({"model": model, "messages": HELLO, "max_tokens": 1}) + " " * 2_000_000

    said = curl(f"{base_url}/chat/completions", "-H", "expect: 100-continue", body=body)

    assert json.loads(said)["choices"]


def test_an_error_is_an_object(base_url: str) -> None:
    said = curl(f"{base_url}/chat/completions", "-w", "%{http_code}", body="{")

    assert said.endswith("400")
    assert json.loads(said.removesuffix("400"))["error"]["message"]


def test_the_models(base_url: str, model: str) -> None:
    assert model in [card["id"] for card in json.loads(curl(f"{base_url}/models"))["data"]]
