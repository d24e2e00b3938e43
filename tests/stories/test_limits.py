"""What the gateway allows itself and others: bodies, requests at a time, time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from simulator.model import Pace
from tests.stories.house import House, second, solo
from tests.stories.oracle import answer
from tests.stories.test_front_door import JSON, assert_envelope, assert_plain_headers
from tests.stories.wire import events_of, request_bytes

OpenHouse = Callable[..., House]

PATH = "/v1/completions"
BODY: dict[str, Any] = {"model": "solo-vllm", "prompt": "Say it.", "max_tokens": 4, "temperature": 0}
ENDLESS: dict[str, Any] = {**BODY, "max_tokens": 4000, "stream": True}
SMALL = {"max_body_bytes": 4096}


# ---- bodies


@pytest.mark.parametrize("expect", [{}, {"expect": "100-continue"}])
def test_an_announced_body_that_is_too_large_is_refused_unread(open_house: OpenHouse, expect: dict[str, str]) -> None:
    house = open_house(solo("vllm"), server=SMALL)
    with house.wire() as wire:
        wire.send(request_bytes("POST", PATH, None, {**JSON, "content-length": "4097", **expect}))
        reply = wire.reply()

    assert_envelope(reply, 413)
    assert_plain_headers(reply)
    assert reply.informational == []
    assert "4096" in reply.json()["error"]["message"]


def test_a_chunked_body_is_refused_as_soon_as_it_is_too_large(open_house: OpenHouse) -> None:
    house = open_house(solo("vllm"), server=SMALL)
    with house.wire() as wire:
        wire.send(request_bytes("POST", PATH, None, {**JSON, "transfer-encoding": "chunked"}))
        wire.send(b"1000\r\n" + b"x" * 4096 + b"\r\n" + b"1\r\nx\r\n")
        reply = wire.reply()

    assert_envelope(reply, 413)


def test_a_body_of_just_the_limit_is_read(open_house: OpenHouse) -> None:
    house = open_house(solo("vllm"), server=SMALL)
    body = orjson.dumps({**BODY, "user": ""})
    body = orjson.dumps({**BODY, "user": "u" * (4096 - len(body))})
    with house.wire() as wire:
        wire.post(PATH, body)
        reply = wire.reply()

    assert len(body) == 4096
    assert reply.status == 200


def test_a_refused_body_is_counted_and_leaves_no_bytes_behind(open_house: OpenHouse) -> None:
    house = open_house(solo("vllm"), server=SMALL)
    for _ in range(3):
        with house.wire() as wire:
            wire.send(request_bytes("POST", PATH, None, {**JSON, "transfer-encoding": "chunked"}))
            wire.send(b"2000\r\n" + b"x" * 8192 + b"\r\n")
            wire.reply()

    house.settle()
    assert house.count("finished", status="error", error_type="validation") == 3


def test_bodies_beyond_what_is_held_at_a_time_are_put_off(open_house: OpenHouse) -> None:
    house = open_house(solo("vllm"), server={"max_body_bytes_in_flight": 4096})
    slow, quick = house.wire(), house.wire()
    slow.send(request_bytes("POST", PATH, None, {**JSON, "content-length": "3000"}) + b" " * 2000)
    house.eventually(lambda: house.gateway.bodies.bytes == 3000)

    quick.post(PATH, {**BODY, "user": "u" * 2500})

    reply = quick.reply()
    assert assert_envelope(reply, 503)["code"] == "overloaded"
    assert reply.header("retry-after")


# ---- heads


def padded(size: int, name: bytes = b"x-padding") -> bytes:
    """Headers of so many bytes, as they are counted: names, values, and four for each."""
    return name + b": " + b"v" * (size - len(name) - 4) + b"\r\n"


HEAD_LIMITS = {"max_header_bytes": 4096, "max_request_line_bytes": 2048}


def test_headers_of_just_the_limit_are_read_and_a_byte_more_is_431(open_house: OpenHouse) -> None:
    house = open_house(solo("vllm"), server=HEAD_LIMITS)
    with house.wire() as wire:
        wire.send(b"GET /live HTTP/1.1\r\n" + padded(4096) + b"\r\n")
        read = wire.reply()
        wire.send(b"GET /live HTTP/1.1\r\n" + padded(2000) + padded(2097) + b"\r\n")
        reply = wire.reply()

        assert read.status == 200
        assert "4096" in assert_envelope(reply, 431)["message"]
        assert_plain_headers(reply)
        assert wire.closed()


@pytest.mark.parametrize("pieces", [1, 64])
def test_headers_without_an_end_are_431_however_they_come(open_house: OpenHouse, pieces: int) -> None:
    house = open_house(solo("vllm"), server=HEAD_LIMITS)
    with house.wire() as wire:
        wire.send(b"POST " + PATH.encode() + b" HTTP/1.1\r\nx-padding: ")
        for _ in range(pieces):
            wire.send(b"v" * (1_000_000 // pieces))
        reply = wire.reply()

        assert_envelope(reply, 431)
        assert reply.header("connection") == "close"
        assert wire.closed()


@pytest.mark.parametrize("tail", [b"", b" HTTP/1.1\r\n\r\n"])
def test_a_target_beyond_the_limit_is_414(open_house: OpenHouse, tail: bytes) -> None:
    house = open_house(solo("vllm"), server=HEAD_LIMITS)
    with house.wire() as wire:
        wire.send(b"GET /" + b"x" * 2048 + tail)
        reply = wire.reply()

        assert "2048" in assert_envelope(reply, 414)["message"]
        assert_plain_headers(reply)
        assert wire.closed()


# ---- requests at a time


@pytest.mark.parametrize("status", [503, 429, 529])
def test_one_request_too_many_is_put_off_by_the_status_that_was_configured(open_house: OpenHouse, status: int) -> None:
    house = open_house(solo("vllm"), server={"max_requests": 1, "overload_status": status})
    first, second = house.wire(), house.wire()
    first.post(PATH, ENDLESS)
    first.head()

    second.post(PATH, BODY)

    reply = second.reply()
    assert assert_envelope(reply, status)["code"] == "overloaded"
    assert reply.header("retry-after")
    assert_plain_headers(reply)


def test_the_place_of_a_request_that_has_ended_is_free(open_house: OpenHouse) -> None:
    house = open_house(solo("vllm"), server={"max_requests": 1})
    for _ in range(3):
        wire = house.wire()
        wire.post(PATH, BODY)
        assert wire.reply().json()["choices"][0]["text"] == answer("Say it.", 4)


# ---- time


@pytest.mark.parametrize("pace", [Pace(ttft_s=30.0), Pace(ttft_s=0.0, decode_s=30.0)])
def test_a_whole_answer_past_its_deadline_is_a_504(open_house: OpenHouse, pace: Pace) -> None:
    house = open_house(solo("vllm", pace=pace), server={"request_timeout_s": 0.3})
    began = time.monotonic()
    wire = house.wire()
    wire.post(PATH, BODY)

    reply = wire.reply()

    assert time.monotonic() - began < second()
    assert assert_envelope(reply, 504)["code"] == "deadline_exceeded"


def test_a_body_that_does_not_come_is_not_waited_for_for_ever(open_house: OpenHouse) -> None:
    house = open_house(solo("vllm"), server={"request_timeout_s": 0.2})
    wire = house.wire()
    wire.send(request_bytes("POST", PATH, None, {**JSON, "content-length": "100"}) + b"{")

    reply = wire.reply()

    assert_envelope(reply, 408)
    assert_plain_headers(reply)


def test_a_stream_past_its_deadline_ends_by_an_error(open_house: OpenHouse) -> None:
    house = open_house(solo("vllm", pace=Pace(ttft_s=0.0, decode_s=0.02)), server={"request_timeout_s": 0.3})
    wire = house.wire()
    wire.post(PATH, ENDLESS)

    events = events_of(wire.reply().body)

    assert answer("Say it.", 100).startswith(events.text())
    assert events.error is not None
    assert events.error["code"] == "deadline_exceeded"
    assert (events.finishes(), events.done) == ([], 0)
