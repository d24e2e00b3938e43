"""A request's id, and other headers that clients and proxies are particular about."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.stories.house import House
from tests.stories.oracle import answer
from tests.stories.wire import Reply, events_of

BODY: dict[str, Any] = {"model": "pair-vllm", "prompt": "Say it.", "max_tokens": 8, "temperature": 0}
STREAM = {**BODY, "stream": True}
OWN = re.compile(r"req-[0-9a-f]{24}")


def posted(house: House, body: Any, **headers: str) -> Reply:
    with house.wire() as wire:
        wire.post("/v1/completions", body, **headers)
        return wire.reply()


@pytest.mark.parametrize("body", [BODY, STREAM, {**BODY, "prompt": 5}, {**BODY, "model": "nobody"}, b"{"])
@pytest.mark.parametrize("name", ["trace-1", "a" * 128, "0b3c/7=+.:@_", "two words", "a,b;<c>"])
def test_a_sane_id_of_the_client_comes_back(house: House, body: Any, name: str) -> None:
    assert posted(house, body, **{"x-request-id": name}).header("x-request-id") == name


@pytest.mark.parametrize("path", ["/live", "/v1/models", "/nowhere"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
def test_it_comes_back_from_every_route(house: House, path: str, method: str) -> None:
    with house.wire() as wire:
        assert wire.get(path, method, **{"x-request-id": "trace-1"}).header("x-request-id") == "trace-1"


@pytest.mark.parametrize(
    "name",
    ["", " ", "a" * 129, "caf\xe9", "tab\there", "x" * 60_000],
    ids=lambda name: repr(name[:12]),
)
def test_an_odd_id_is_replaced_by_one_of_our_own(house: House, name: str) -> None:
    assert OWN.fullmatch(posted(house, STREAM, **{"x-request-id": name}).header("x-request-id"))


@pytest.mark.parametrize("body", [BODY, STREAM, {**BODY, "prompt": 5}, {**BODY, "model": "nobody"}, b"{"])
def test_an_answer_says_how_long_it_took(house: House, body: Any) -> None:
    took_ms = posted(house, body).header("openai-processing-ms")

    assert took_ms.isdigit()
    assert int(took_ms) < 10_000


@pytest.mark.parametrize("path", ["/live", "/v1/models", "/health", "/metrics", "/nowhere"])
def test_every_other_route_says_so_too(house: House, path: str) -> None:
    with house.wire() as wire:
        assert wire.get(path).header("openai-processing-ms").isdigit()


def test_an_id_of_a_megabyte_is_neither_kept_nor_repeated(house: House) -> None:
    reply = posted(house, STREAM, **{"x-request-id": "a" * 1_000_000})

    assert reply.status in (200, 400, 431)
    assert len(str(reply.headers)) + len(reply.body) < 20_000


def test_every_chunk_of_an_answer_carries_the_answers_id_and_not_the_requests(house: House) -> None:
    reply = posted(house, STREAM, **{"x-request-id": "trace-1"})

    ids = {chunk["id"] for chunk in events_of(reply.body).chunks}
    assert len(ids) == 1
    assert re.fullmatch(r"cmpl-[0-9a-f]{32}", ids.pop())


def test_two_requests_of_one_id_at_once_are_two_requests(house: House) -> None:
    prompts = ["The first", "The second", "The third"]
    wires = [house.wire() for _ in prompts]
    for wire, prompt in zip(wires, prompts, strict=True):
        wire.post("/v1/completions", {**STREAM, "prompt": prompt, "max_tokens": 60}, **{"x-request-id": "same"})

    replies = [wire.reply() for wire in wires]

    assert [events_of(reply.body).text() for reply in replies] == [answer(prompt, 60) for prompt in prompts]
    assert {reply.header("x-request-id") for reply in replies} == {"same"}
    for wire in wires:
        wire.close()


@pytest.mark.parametrize("body", [BODY, STREAM])
def test_each_header_of_an_answer_is_there_once(house: House, body: Any) -> None:
    reply = posted(house, body)

    names = [name for name, _ in reply.headers]
    assert sorted(names) == sorted(set(names))
    assert "server" not in names


def test_a_stream_is_told_as_one_that_nobody_may_hold_back(house: House) -> None:
    reply = posted(house, STREAM)

    assert reply.header("content-type") == "text/event-stream; charset=utf-8"
    assert reply.header("cache-control") == "no-cache"
    assert reply.header("x-accel-buffering") == "no"
    assert reply.header("transfer-encoding") == "chunked"


@pytest.mark.parametrize("credentials", ["Bearer \xe4\xb8\xad", "Bearer \xff\x80", "\x01", "", "Basic " + "x" * 5000])
def test_odd_credentials_are_no_failure_of_ours(house: House, credentials: str) -> None:
    assert posted(house, BODY, authorization=credentials).status in (200, 400, 401)


# ---- who served


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "native"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_says_who_served_it_when_asked_to(house: House, engine: str, stream: bool) -> None:
    reply = posted(house, {**BODY, "model": f"pair-{engine}", "stream": stream}, **{"x-tandem-explain": "1"})

    prefill = house.by_id(reply.header("x-tandem-prefill-worker")).options
    decode = house.by_id(reply.header("x-tandem-decode-worker")).options
    assert (prefill.model, prefill.role) == (f"pair-{engine}", "prefill")
    assert (decode.model, decode.role) == (f"pair-{engine}", "decode")


@pytest.mark.parametrize("model", ["solo-sglang", "solo-openai"])
def test_a_worker_that_serves_alone_is_named_alone(house: House, model: str) -> None:
    reply = posted(house, {**BODY, "model": model}, **{"x-tandem-explain": "1"})

    assert house.by_id(reply.header("x-tandem-decode-worker")).options.model == model
    assert reply.count("x-tandem-prefill-worker") == 0


@pytest.mark.parametrize("headers", [{}, {"x-tandem-explain": "0"}])
def test_who_served_is_nobodys_business_unasked(house: House, headers: dict[str, str]) -> None:
    names = [name for name, _ in posted(house, BODY, **headers).headers]

    assert [name for name in names if name.startswith("x-tandem")] == []


def test_requests_take_their_turns_over_pairs(house: House) -> None:
    replies = [posted(house, BODY, **{"x-tandem-explain": "1"}) for _ in range(4)]

    for header in ("x-tandem-prefill-worker", "x-tandem-decode-worker"):
        assert len({reply.header(header) for reply in replies}) == 2


def test_a_request_goes_to_the_workers_that_its_headers_name(house: House) -> None:
    first = posted(house, BODY, **{"x-tandem-explain": "1"})
    names = ("x-tandem-prefill-worker", "x-tandem-decode-worker")
    prefill, decode = (first.header(name) for name in names)

    replies = [
        posted(house, BODY, **{"x-tandem-explain": "1", "x-tandem-prefill-worker": prefill, "x-tandem-worker": decode})
        for _ in range(3)
    ]

    assert [tuple(reply.header(name) for name in names) for reply in replies] == [(prefill, decode)] * 3


def test_a_worker_that_is_not_there_is_told_by_its_header(house: House) -> None:
    reply = posted(house, BODY, **{"x-tandem-worker": "12345"})

    assert reply.status == 400
    assert "x-tandem-worker" in reply.json()["error"]["message"]
