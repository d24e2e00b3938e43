"""Keys that clients must send: who is let in, and what the others are told."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.api.keys import Keys
from app.config_document import ConfigDocument
from app.config_problems import ConfigError
from app.gateway import Gateway
from app.main import Front
from app.settings import settings_of
from tests.app.client_turn import TurnTransport

MODELS: list[dict[str, Any]] = [{"name": "m", "workers": [{"url": "http://127.0.0.1:4", "engine": "openai"}]}]


def client(*keys: str) -> httpx.AsyncClient:
    settings = settings_of(ConfigDocument("test", {"server": {"api_keys": list(keys)}, "models": MODELS}))
    return httpx.AsyncClient(transport=TurnTransport(Front(Gateway(settings))), base_url="http://tandem.test")


@pytest.mark.parametrize("sent", [b"Bearer one", b"bearer two", b"Bearer  two"])
def test_any_of_the_keys_opens(sent: bytes) -> None:
    assert Keys(["one", "two"]).refusal("/v1/models", [(b"authorization", sent)]) is None


@pytest.mark.parametrize("sent", [b"", b"one", b"Bearer", b"Bearer ", b"Bearer on", b"Bearer one!", b"Basic one"])
def test_nothing_else_does(sent: bytes) -> None:
    assert Keys(["one"]).refusal("/v1/models", [(b"authorization", sent)]) is not None


@pytest.mark.parametrize("path", ["/live", "/health", "/health/", "/metrics"])
def test_what_balancers_and_prometheus_ask_needs_no_key(path: str) -> None:
    assert Keys(["one"]).refusal(path, []) is None


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("GET", "/v1/models"), ("GET", "/nowhere")],
)
async def test_whoever_sends_none_is_told_so_in_the_envelope(method: str, path: str) -> None:
    async with client("one") as asking:
        reply = await asking.request(method, path, content=b"{}", headers={"x-request-id": "trace-1"})

    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["code"]) == (401, "invalid_request_error", "invalid_api_key")
    assert (reply.headers["www-authenticate"], reply.headers["x-request-id"]) == ("Bearer", "trace-1")


async def test_a_wrong_key_is_not_repeated() -> None:
    async with client("one") as asking:
        reply = await asking.get("/v1/models", headers={"authorization": "Bearer sk-wrong"})

    assert reply.status_code == 401
    assert "sk-wrong" not in reply.text


async def test_a_right_key_is_answered_and_so_is_everyone_where_there_are_none() -> None:
    async with client("one") as asking, client() as free:
        with_key = await asking.get("/v1/models", headers={"authorization": "Bearer one"})
        without = await free.get("/v1/models")

    assert [reply.status_code for reply in (with_key, without)] == [200, 200]


async def test_which_methods_there_are_is_told_without_a_key() -> None:
    async with client("one") as asking:
        assert (await asking.options("/v1/chat/completions")).status_code == 204


@pytest.mark.parametrize("key", ["", "two words", "caf\xe9"])
def test_a_key_that_no_header_can_hold_is_refused_at_start_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        client("sk-good", key)

    assert "server.api_keys" in str(refused.value)
    assert "sk-good" not in str(refused.value)


def test_keys_are_not_shown_with_the_settings() -> None:
    settings = settings_of(ConfigDocument("test", {"server": {"api_keys": ["sk-secret"]}, "models": MODELS}))

    assert "sk-secret" not in repr(settings)
