"""What clients are told of workers that fail: true statuses, plain sentences, and no hosts, keys or words of theirs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest

from tests.stories.house import House, pair, solo
from tests.stories.test_relay import Upstream, chunk
from tests.stories.wire import Reply, events_of

OpenHouse = Callable[..., House]

EXPLAIN = {"x-tandem-explain": "1"}

WORDS = "Incorrect API key provided: sk-1234 at 10.0.0.7:8000"
SECRETS = re.compile(r"sk-|key|10\.0|127\.0|localhost|:\d{4}|Unauthorized|Errno|refused")
ASKED: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/embeddings": {"input": "Hi"},
}


def told_through(open_house: OpenHouse, upstream: Upstream, path: str, **more: Any) -> Reply:
    with upstream.listening() as url:
        house = open_house(outside=[{"name": "far", "workers": [{"url": url, "engine": "openai"}]}])
        wire = house.wire()
        wire.post(path, {"model": "far", **ASKED[path], **more}, **EXPLAIN)
        return wire.reply()


def assert_told_plainly(reply: Reply, status: int, code: str) -> None:
    error = reply.json()["error"]
    assert (reply.status, error["code"]) == (status, code)
    assert SECRETS.search(str(reply.headers) + error["message"].replace(reply.header("x-request-id"), "")) is None
    assert reply.header("x-request-id") in error["message"]


@pytest.mark.parametrize("status", [401, 402, 403, 407])
@pytest.mark.parametrize("path", ASKED)
def test_a_server_that_refuses_our_key_is_a_502_without_its_words(open_house, path: str, status: int) -> None:
    upstream = Upstream(orjson.dumps({"error": {"message": WORDS, "code": "invalid_api_key"}}), status=status)

    assert_told_plainly(told_through(open_house, upstream, path), 502, "worker_failed")


def test_a_server_that_refuses_our_key_by_a_400_is_no_fault_of_the_clients(open_house) -> None:
    error = {"message": WORDS, "type": "invalid_request_error", "code": "invalid_api_key"}
    upstream = Upstream(orjson.dumps({"error": error}), status=400)

    assert_told_plainly(told_through(open_house, upstream, "/v1/completions"), 502, "worker_failed")


@pytest.mark.parametrize("path", ASKED)
def test_a_server_that_fails_is_told_without_its_words(open_house, path: str) -> None:
    upstream = Upstream(orjson.dumps({"error": {"message": WORDS}}), status=500)

    assert_told_plainly(told_through(open_house, upstream, path), 503, "no_available_workers")


@pytest.mark.parametrize("error", [{"message": WORDS}, {"message": WORDS, "code": "invalid_api_key"}])
@pytest.mark.parametrize("kind", ["server_error", "invalid_request_error"])
def test_an_error_inside_a_stream_is_told_without_its_words(open_house, error: dict[str, Any], kind: str) -> None:
    error = {"type": kind, **error}
    hidden = kind == "server_error" or "code" in error
    body = b"data: " + chunk({"role": "assistant", "content": "Hel"}) + b"\n\n"
    upstream = Upstream(body + b"data: " + orjson.dumps({"error": error}) + b"\n\n", kind="text/event-stream")

    reply = told_through(open_house, upstream, "/v1/chat/completions", stream=True)

    events = events_of(reply.body)
    assert events.error is not None
    assert (WORDS not in events.error["message"]) is hidden
    assert (reply.header("x-request-id") in events.error["message"]) is hidden


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", [pair("vllm"), solo("sglang"), solo("trtllm"), solo("native"), solo("openai")])
def test_workers_that_cannot_be_reached_are_not_named(open_house, model: Any, path: str, stream: bool) -> None:
    house = open_house(model)
    for worker in house.workers(model.name):
        house.kill(worker)
    wire = house.wire()

    wire.post(path, {"model": model.name, **ASKED[path], "stream": stream}, **EXPLAIN)

    reply = wire.reply()
    assert reply.status in (502, 503)
    assert SECRETS.search(str(reply.headers) + reply.json()["error"]["message"]) is None


def test_health_tells_no_host(open_house) -> None:
    house = open_house(pair("vllm"), health={"interval_s": 0.05})
    for worker in house.workers("pair-vllm"):
        house.kill(worker)
    house.eventually(lambda: not house.gateway.registry.servable("pair-vllm").ok)

    reply = house.wire().get("/health")

    assert reply.status == 503
    assert SECRETS.search(reply.body.decode()) is None


def test_the_log_has_all(open_house, caplog) -> None:
    upstream = Upstream(orjson.dumps({"error": {"message": WORDS}}), status=401)

    reply = told_through(open_house, upstream, "/v1/completions")

    (record,) = [record for record in caplog.records if record.name == "tandem.requests"]
    assert record.request_id == reply.header("x-request-id")
    assert WORDS in record.fields["error"]
