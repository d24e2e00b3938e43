"""Servers that speak OpenAI themselves: requests pass as they are, answers come back clean and under our name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
import pytest

from tests.stories.house import Hosted, House
from tests.stories.oracle import answer
from tests.stories.wire import Reply, events_of

OpenHouse = Callable[..., House]

CHAT: dict[str, Any] = {"model": "far", "messages": [{"role": "user", "content": "Hi"}]}


class Upstream:
    """A server that gives the same reply to every request, and keeps what it was asked."""

    def __init__(self, reply: bytes, *, status: int = 200, kind: str = "application/json", **headers: str) -> None:
        self.asked: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.keys_of_probes: list[str | None] = []
        self.reply = reply
        self.status = status
        self.more = {"content-type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}

    @contextmanager
    def listening(self) -> Iterator[str]:
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                upstream.keys_of_probes.append(self.headers["authorization"])
                self._send(200, b'{"object": "list", "data": [{"id": "upstream-name", "object": "model"}]}', {})

            def do_POST(self) -> None:
                upstream.asked.append(orjson.loads(self.rfile.read(int(self.headers["content-length"]))))
                upstream.headers.append({name.lower(): value for name, value in self.headers.items()})
                self._send(upstream.status, upstream.reply, upstream.more)

            def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def asked_through(
    open_house: OpenHouse,
    upstream: Upstream,
    body: Any,
    path: str = "/v1/chat/completions",
    worker: Any = None,
    **headers: str,
) -> Reply:
    with upstream.listening() as url:
        house = open_house(outside=[{"name": "far", "workers": [{"url": url, "engine": "openai", **(worker or {})}]}])
        wire = house.wire()
        wire.post(path, body, **headers)
        return wire.reply()


def whole(**more: Any) -> bytes:
    message = {"role": "assistant", "content": "Hello.", **more.pop("message", {})}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", **more.pop("choice", {})}
    frame = {"id": "up-1", "object": "chat.completion", "created": 1, "model": "upstream-name"}
    return orjson.dumps({**frame, "choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}, **more})


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    frame = {"id": "up-1", "object": "chat.completion.chunk", "created": 1, "model": "upstream-name"}
    return orjson.dumps({**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


# ---- names


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_never_hears_what_the_server_calls_the_model(open_house: OpenHouse, stream: bool) -> None:
    house = open_house(Hosted("near", "openai", options={"model": "upstream/model"}, settings={"aliases": ["also"]}))
    body = {"model": "also", "prompt": "Say it.", "max_tokens": 8, "temperature": 0, "stream": stream}

    reply = house.http.post("/v1/completions", json=body)

    if stream:
        events = events_of(reply.content)
        told, text = {each["model"] for each in events.chunks}, events.text()
    else:
        told, text = {reply.json()["model"]}, reply.json()["choices"][0]["text"]
    assert told == {"also"}
    assert text == answer("Say it.", 8)


def test_a_servers_refusal_is_told_as_its_own(open_house: OpenHouse) -> None:
    house = open_house(Hosted("near", "openai"))

    reply = house.http.post("/v1/completions", json={"model": "near", "prompt": "Say it.", "stop": ["e", 2]})

    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stop")


def test_the_server_is_asked_by_its_own_name_with_everything_the_client_said(open_house: OpenHouse) -> None:
    upstream = Upstream(whole())
    said = {**CHAT, "temperature": 0.3, "vendor_option": {"deep": [1, None]}, "reasoning_effort": "low", "stop": ["x"]}

    asked_through(open_house, upstream, said, authorization="Bearer secret", **{"x-request-id": "trace-1"})

    (asked,) = upstream.asked
    assert asked == {**asked, **said, "model": "upstream-name"}
    (headers,) = upstream.headers
    assert "secret" not in str(headers)
    assert headers.get("x-request-id") != "trace-1"


def test_what_is_between_the_client_and_us_is_not_passed_on(open_house: OpenHouse) -> None:
    upstream = Upstream(whole())
    ours = {"tandem": {"annotations": ["a"]}, "kv_transfer_params": {"remote_host": "evil"}, "bootstrap_host": "evil"}

    asked_through(open_house, upstream, {**CHAT, **ours})

    (asked,) = upstream.asked
    assert set(ours).isdisjoint(asked)


CLIENTS = {
    "accept-encoding": "gzip, br",
    "cookie": "a=b",
    "x-vllm-priority": "-9",
    "x-session-id": "theirs",
    "x-request-id": "theirs",
    "x-tandem-explain": "1",
    "x-forwarded-for": "10.0.0.1",
}


def test_no_header_of_the_clients_reaches_a_server_but_its_trace_and_none_of_the_servers_the_client(
    open_house: OpenHouse,
) -> None:
    upstream = Upstream(whole(), set_cookie="c=d", etag="1", content_language="xx")

    reply = asked_through(open_house, upstream, CHAT, **CLIENTS)

    assert [set(headers) for headers in upstream.headers] == [{"host", "content-type", "content-length", "baggage"}]
    assert [reply.count(name) for name in ("set-cookie", "etag", "content-language", "content-encoding")] == [0] * 4
    assert reply.header("content-type") == "application/json"


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, PICTURE]}]},
        ),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "return_routed_experts": True}),
        ("/v1/completions", {"prompt": ["a", "b"]}),
        ("/v1/completions", {"prompt": [1, 2, 3]}),
        ("/v1/completions", {"prompt": [[1, 2], [3]], "return_token_ids": True}),
    ],
)
def test_every_shape_of_what_is_asked_passes_as_it_is(open_house: OpenHouse, path: str, said: dict[str, Any]) -> None:
    upstream = Upstream(whole())

    asked_through(open_house, upstream, {"model": "far", **said}, path)

    assert upstream.asked == [{"model": "upstream-name", **said}]


def test_a_server_is_told_its_own_key_and_not_the_clients(open_house: OpenHouse) -> None:
    upstream = Upstream(whole())

    asked_through(open_house, upstream, CHAT, worker={"api_key": "sk-ours"}, authorization="Bearer sk-theirs")

    assert [headers["authorization"] for headers in upstream.headers] == ["Bearer sk-ours"]
    assert set(upstream.keys_of_probes) == {"Bearer sk-ours"}


def test_a_tenant_s_header_salts_what_the_server_is_asked(open_house: OpenHouse) -> None:
    upstream = Upstream(whole())

    asked_through(open_house, upstream, {**CHAT, "cache_salt": "mine"}, **{"x-tenant-id": "theirs"})

    assert upstream.asked[0]["cache_salt"] == "theirs"


# ---- answers


def test_what_we_do_not_know_of_an_answer_survives(open_house: OpenHouse) -> None:
    upstream = Upstream(
        whole(system_fingerprint="fp-7", vendor={"a": [1]}, message={"reasoning_content": "Hm."}, choice={"vendor": 2}),
        server="upstream/1.0",
        x_request_id="theirs",
        x_powered_by="magic",
    )

    reply = asked_through(open_house, upstream, CHAT, **{"x-request-id": "trace-1"})

    answered = reply.json()
    assert (answered["system_fingerprint"], answered["vendor"]) == ("fp-7", {"a": [1]})
    assert answered["choices"][0]["message"]["reasoning_content"] == "Hm."
    assert answered["choices"][0]["vendor"] == 2
    assert (answered["model"], answered["id"].startswith("chatcmpl-")) == ("far", True)
    assert reply.header("x-request-id") == "trace-1"
    assert reply.count("x-powered-by") == reply.count("server") == 0
    assert reply.count("date") == 1


@pytest.mark.parametrize("said", [{"reasoning_content": "Hm."}, {"tool_calls": [{"index": 0}]}, {"content": "Hi."}])
def test_the_first_that_is_told_counts_as_the_first_token_whatever_it_is(
    open_house: OpenHouse, said: dict[str, Any]
) -> None:
    chunks = [chunk({"role": "assistant", "content": ""}), chunk(said), chunk({}, "stop"), b"[DONE]"]
    upstream = Upstream(b"".join(b"data: " + each + b"\n\n" for each in chunks), kind="text/event-stream")
    asked = {**CHAT, "stream": True, "tandem": {"extra_fields": ["timing"]}}

    *_, last, done = asked_through(open_house, upstream, asked).body.split(b"data: ")

    assert (orjson.loads(last)["tandem"]["timing"]["ttft_ms"] > 0, done) == (True, b"[DONE]\n\n")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_stream_comes_back_clean_whatever_its_manners(open_house: OpenHouse, end: str) -> None:
    lines = [
        "retry: 3000",
        "",
        ": a comment",
        "",
        "id:7",
        "",
        "event:message",
        f"data:{chunk({'role': 'assistant', 'content': ''}).decode()}",
        "id: 8",
        "",
        f"data: {chunk({'content': 'Hello, ', 'reasoning_content': 'Hm.'}, vendor=1).decode()}",
        "",
        "",
        f"data: {chunk({'content': 'data: [DONE]'}).decode()}",
        "",
        f"data: {chunk({}, 'stop').decode()}",
        "",
        "data: [DONE]",
        "",
        "",
    ]
    upstream = Upstream(end.join(lines).encode(), kind="text/event-stream")

    events = events_of(asked_through(open_house, upstream, {**CHAT, "stream": True}).body)

    assert events.text() == "Hello, data: [DONE]"
    assert (events.finishes(), events.done, events.error) == (["stop"], 1, None)
    assert [each["vendor"] for each in events.chunks if "vendor" in each] == [1]
    assert {each["id"] for each in events.chunks} == {events.chunks[0]["id"]}
    assert events.chunks[0]["id"].startswith("chatcmpl-")
    assert {each["model"] for each in events.chunks} == {"far"}


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"data: [DONE]\n\n",
        b'data: {"error": {"message": "out of memory", "type": "server_error"}}\n\n',
        b"data: {broken\n\n",
    ],
)
def test_a_stream_without_a_finish_is_an_error_never_an_end(open_house: OpenHouse, tail: bytes) -> None:
    body = b"data: " + chunk({"role": "assistant", "content": "Hel"}) + b"\n\n" + tail
    upstream = Upstream(body, kind="text/event-stream")

    events = events_of(asked_through(open_house, upstream, {**CHAT, "stream": True}).body)

    assert events.text() == "Hel"
    assert events.error is not None
    assert (events.finishes(), events.done) == ([], 0)


# ---- refusals


def test_a_refusal_passes_in_the_servers_own_words(open_house: OpenHouse) -> None:
    error = {"message": "max_tokens is too large", "type": "invalid_request_error", "param": "max_tokens", "code": "x"}
    upstream = Upstream(orjson.dumps({"error": error}), status=400)

    reply = asked_through(open_house, upstream, CHAT)

    assert reply.status == 400
    assert reply.json()["error"]["message"] == "max_tokens is too large"
    assert reply.json()["error"]["param"] == "max_tokens"
    assert len(upstream.asked) == 1


@pytest.mark.parametrize(
    ("status", "body"), [(500, b"<html>oops</html>"), (502, b""), (200, b"<html>hello</html>"), (200, b"{}")]
)
def test_what_is_no_answer_is_a_failure_of_the_servers(open_house: OpenHouse, status: int, body: bytes) -> None:
    upstream = Upstream(body, status=status, kind="text/html")

    reply = asked_through(open_house, upstream, CHAT)

    assert reply.status in (502, 503)
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


def test_our_key_that_a_server_refuses_is_not_the_clients(open_house: OpenHouse) -> None:
    upstream = Upstream(b'{"error": {"message": "Incorrect API key provided: sk-1234"}}', status=401)

    reply = asked_through(open_house, upstream, CHAT)

    assert (reply.status, reply.json()["error"]["code"]) == (502, "worker_failed")
    assert "key" not in reply.json()["error"]["message"]
    assert reply.header("x-request-id") in reply.json()["error"]["message"]
