"""The HTTP side, byte by byte: methods, paths, bodies and headers as clients of every kind send them."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest

from tests.stories.house import House
from tests.stories.oracle import answer
from tests.stories.wire import Reply, events_of, request_bytes

HOT = ("/v1/chat/completions", "/v1/completions", "/v1/chat/completions/", "/v1/completions/")
POSTED = (*HOT, "/v1/embeddings", "/v1/embeddings/", "/tokenize", "/v1/tokenize/", "/detokenize/", "/v1/detokenize")
LOOKS = (
    "/v1/models",
    "/v1/models/",
    "/v1/models/pair-vllm",
    "/v1/models/org/demo-8b",
    "/v1/models/org%2Fdemo-8b",
    "/v1/models/org%2fdemo-8b/",
    "/health",
    "/live",
    "/metrics",
)
JSON = {"content-type": "application/json"}
BODY: dict[str, Any] = {"model": "solo-vllm", "prompt": "Say it.", "max_tokens": 4, "temperature": 0}
SAID = answer("Say it.", 4)


def assert_envelope(reply: Reply, status: int) -> dict[str, Any]:
    """An error as OpenAI's clients expect it."""
    assert reply.status == status
    assert reply.header("content-type") == "application/json"
    assert set(reply.json()) == {"error"}
    error: dict[str, Any] = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def assert_plain_headers(reply: Reply) -> None:
    """What every response has, and has once."""
    assert re.fullmatch(r"req-[0-9a-f]{24}", reply.header("x-request-id"))
    assert reply.count("date") == 1
    assert reply.count("server") <= 1


# ---- methods


@pytest.mark.parametrize("path", LOOKS)
def test_head_is_get_without_its_body(house: House, path: str) -> None:
    with house.wire() as wire:
        got = wire.get(path)
        head = wire.get(path, "HEAD")
        again = wire.get("/live")  # whatever came after the head would be read here

    assert (got.status, head.status, again.status) == (200, 200, 200)
    assert got.header("content-type") == head.header("content-type")
    assert head.count("content-length") == 1
    for reply in (got, head):
        assert_plain_headers(reply)


@pytest.mark.parametrize("path", POSTED)
def test_head_of_a_post_route_is_its_405_without_a_body(house: House, path: str) -> None:
    with house.wire() as wire:
        head = wire.get(path, "HEAD")
        again = wire.get("/live")

    assert (head.status, again.status) == (405, 200)
    assert_plain_headers(head)


@pytest.mark.parametrize(
    ("path", "allow"),
    [*((path, "OPTIONS, POST") for path in POSTED), *((path, "GET, HEAD, OPTIONS") for path in LOOKS)],
)
def test_options_says_what_is_allowed(house: House, path: str, allow: str) -> None:
    with house.wire() as wire:
        reply = wire.get(path, "OPTIONS", origin="http://page.test")
        again = wire.get("/live")

    assert (reply.status, reply.header("allow"), again.status) == (204, allow, 200)
    assert_plain_headers(reply)


def test_options_of_the_server_itself_says_what_is_allowed_anywhere(house: House) -> None:
    with house.wire() as wire:
        reply = wire.get("*", "OPTIONS")
        again = wire.get("/live")

    assert (reply.status, reply.header("allow"), again.status) == (204, "GET, HEAD, OPTIONS, POST", 200)
    assert_plain_headers(reply)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_no_other_method_is_of_the_server_itself(house: House, method: str) -> None:
    with house.wire() as wire:
        assert wire.get("*", method).status == 404
        assert wire.get("/live").status == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", POSTED)
def test_other_methods_at_a_post_route_are_405_and_told_what_is_allowed(house: House, path: str, method: str) -> None:
    with house.wire() as wire:
        reply = wire.get(path, method)

    assert_envelope(reply, 405)
    assert reply.header("allow") == "OPTIONS, POST"
    assert_plain_headers(reply)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", LOOKS)
def test_other_methods_at_a_get_route_are_405_and_told_what_is_allowed(house: House, path: str, method: str) -> None:
    with house.wire() as wire:
        reply = wire.get(path, method)

    assert_envelope(reply, 405)
    assert reply.header("allow") == "GET, HEAD, OPTIONS"
    assert_plain_headers(reply)


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "DELETE"])
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v2/models",
        "/v1/chat/completions/more",
        "/v1/chat",
        "//v1/models",
        "/health/",
        "/%ff%00",
        "/" + "x" * 5000,
    ],
)
def test_a_path_that_is_not_there_is_404(house: House, path: str, method: str) -> None:
    with house.wire() as wire:
        reply = wire.get(path, method)

    error = assert_envelope(reply, 404)
    assert error["type"] == "invalid_request_error"
    assert len(reply.body) < 1000
    assert_plain_headers(reply)


# ---- models


def test_the_models_are_listed_by_all_their_names(house: House) -> None:
    listed = [model.id for model in house.sdk.models.list()]

    assert len(listed) == len(set(listed))
    assert {"pair-vllm", "solo-openai", "org/demo-8b", "chat", "org/alias"} <= set(listed)


@pytest.mark.parametrize(
    "path", ["org/demo-8b", "org%2Fdemo-8b", "org%2fdemo-8b", "org/demo-8b/", "org%2Fdemo-8b/", "org/alias", "chat"]
)
def test_a_model_is_found_by_any_spelling_of_its_name(house: House, path: str) -> None:
    reply = house.http.get(f"/v1/models/{path}")

    assert reply.status_code == 200
    assert reply.json()["id"] == path.replace("%2F", "/").replace("%2f", "/").rstrip("/")
    assert reply.json()["object"] == "model"
    assert reply.json()["max_model_len"] == 8192


def test_the_client_retrieves_a_model_whose_name_has_a_slash(house: House) -> None:
    assert house.sdk.models.retrieve("org/demo-8b").id == "org/demo-8b"


@pytest.mark.parametrize("model", ["solo-vllm", "pair-sglang", "solo-openai"])
def test_a_model_tells_how_much_its_workers_hold(house: House, model: str) -> None:
    assert house.http.get(f"/v1/models/{model}").json()["max_model_len"] == 8192


def test_an_unknown_model_is_404_by_name(house: House) -> None:
    with house.wire() as wire:
        error = assert_envelope(wire.get("/v1/models/no/such"), 404)

    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'no/such'" in error["message"]


# ---- bytes that are no HTTP


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"what\r\n\r\n",
        b"GET /live HTTP/1.1\r\nhost: tandem.test\r\nx-request-id: \x7f\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: five\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_in_the_same_envelope_and_the_connection_ends(house: House, data: bytes) -> None:
    with house.wire() as wire:
        wire.send(data)
        reply = wire.reply()

        assert_envelope(reply, 400)
        assert_plain_headers(reply)
        assert wire.closed()


def test_what_is_no_http_behind_a_request_ends_its_answer_and_says_nothing_in_it(house: House) -> None:
    wire = house.wire()
    wire.post("/v1/completions", {**BODY, "stream": True, "max_tokens": 4000})
    pieces = wire.pieces(wire.head())
    seen = [next(pieces)]

    wire.send(b"\x00what\r\n\r\n")

    with pytest.raises(ConnectionError):
        seen.extend(pieces)
    assert events_of(b"".join(seen)).done == 0


# ---- clients of other ages


def old(path: str, body: Any = None, **headers: str) -> bytes:
    """A request of HTTP/1.0."""
    data = None if body is None else orjson.dumps(body)
    request = request_bytes("GET" if body is None else "POST", path, data, {**JSON, **headers})
    return request.replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1)


@pytest.mark.parametrize("path", LOOKS)
def test_an_old_client_gets_a_body_that_ends_as_it_knows(house: House, path: str) -> None:
    with house.wire() as wire:
        wire.send(old(path))
        reply = wire.reply()

        assert (reply.status, reply.count("transfer-encoding")) == (200, 0)
        assert reply.header("connection") == "close"
        assert wire.closed()


@pytest.mark.parametrize("headers", [{}, {"connection": "keep-alive"}, {"expect": "100-continue"}])
def test_a_stream_to_an_old_client_ends_with_its_connection(house: House, headers: dict[str, str]) -> None:
    with house.wire() as wire:
        wire.send(old("/v1/completions", {**BODY, "stream": True}, **headers))
        reply = wire.reply()

        assert (reply.status, reply.informational, reply.count("transfer-encoding")) == (200, [], 0)
        assert events_of(reply.body).text() == SAID
        assert events_of(reply.body).done == 1
        assert wire.closed()


def test_a_whole_answer_to_an_old_client_has_its_length(house: House) -> None:
    with house.wire() as wire:
        wire.send(old("/v1/completions", BODY))
        reply = wire.reply()

        assert reply.json()["choices"][0]["text"] == SAID
        assert reply.count("content-length") == 1
        assert wire.closed()


def test_an_offer_of_another_protocol_is_passed_over(house: House) -> None:
    offer = {
        **JSON,
        "connection": "Upgrade, HTTP2-Settings",
        "upgrade": "h2c",
        "http2-settings": "AAMAAABkAARAAAAAAAIAAAAA",
    }
    with house.wire() as wire:
        wire.send(request_bytes("POST", "/v1/completions", orjson.dumps(BODY), offer) * 2)

        assert [wire.reply().json()["choices"][0]["text"] for _ in range(2)] == [SAID, SAID]


def test_a_whole_url_as_target_is_its_path(house: House) -> None:
    with house.wire() as wire:
        assert wire.get("http://tandem.test/live?x=1").status == 200


# ---- bodies


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON;charset=UTF-8",
        "application/vnd.api+json",
    ],
)
def test_json_by_any_of_its_names_is_taken(house: House, kind: str) -> None:
    with house.wire() as wire:
        wire.send(request_bytes("POST", "/v1/completions", orjson.dumps(BODY), {"content-type": kind}))
        reply = wire.reply()

    assert reply.json()["choices"][0]["text"] == SAID
    assert reply.header("content-type") == "application/json"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/jsonp"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
@pytest.mark.parametrize("path", POSTED)
def test_any_other_kind_of_body_is_415(house: House, path: str, headers: dict[str, str]) -> None:
    with house.wire() as wire:
        wire.send(request_bytes("POST", path, orjson.dumps(BODY), headers))
        reply = wire.reply()

    assert_envelope(reply, 415)
    assert_plain_headers(reply)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_chunked_body_is_read_whatever_its_cuts(house: House, size: int) -> None:
    data = orjson.dumps(BODY)
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    with house.wire() as wire:
        wire.send(request_bytes("POST", "/v1/completions", None, {**JSON, "transfer-encoding": "chunked"}))
        wire.send(b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n")
        reply = wire.reply()

    assert reply.json()["choices"][0]["text"] == SAID


@pytest.mark.parametrize("stream", [False, True])
def test_a_body_after_a_wanted_continue_is_read(house: House, stream: bool) -> None:
    body = {**BODY, "prompt": "Say it.", "user": "u" * 2_000_000, "stream": stream}
    data = orjson.dumps(body)
    with house.wire() as wire:
        wire.send(request_bytes("POST", "/v1/completions", data, {**JSON, "expect": "100-continue"})[: -len(data)])
        assert wire.head_of_continue() == 100
        wire.send(data)
        reply = wire.reply()

    told = events_of(reply.body).text() if stream else reply.json()["choices"][0]["text"]
    assert told == SAID


def test_requests_written_in_one_go_are_answered_in_their_order(house: House) -> None:
    prompts = ["First of all", "Second", "Third"]
    with house.wire() as wire:
        for index, prompt in enumerate(prompts):
            body = {**BODY, "prompt": prompt, "stream": index == 0, "max_tokens": 12}
            wire.send(request_bytes("POST", "/v1/completions", orjson.dumps(body), JSON))
        first, *others = [wire.reply() for _ in prompts]

    assert events_of(first.body).text() == answer(prompts[0], 12)
    assert [reply.json()["choices"][0]["text"] for reply in others] == [answer(prompt, 12) for prompt in prompts[1:]]


def test_a_connection_is_closed_after_the_answer_when_the_client_asks_for_it(house: House) -> None:
    with house.wire() as wire:
        wire.post("/v1/completions", {**BODY, "stream": True}, connection="close")
        reply = wire.reply()

        assert events_of(reply.body).text() == SAID
        assert wire.closed()


@pytest.mark.parametrize("path", HOT)
def test_a_query_is_no_part_of_the_path(house: House, path: str) -> None:
    with house.wire() as wire:
        wire.post(f"{path}?api-version=2024-06-01", {**BODY, "messages": [{"role": "user", "content": "Hi"}]})

        assert wire.reply().status == 200
