"""What a client is told when the gateway itself ends its answer: by a shutdown, or by a bug of ours."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest

from simulator.model import Pace
from tests.stories.house import House, solo

SLOW = Pace(ttft_s=0.0005, decode_s=0.02)
LONG = {"messages": [{"role": "user", "content": "Go on"}], "max_tokens": 500, "ignore_eos": True}


def ask(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, **LONG, **more}


def events_of(body: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(event[6:]) for event in body.split(b"\n\n") if event.startswith(b"data: {")]


@pytest.fixture
def closing_house(open_house: Callable[..., House]) -> House:
    """A gateway that gives a fifth of a second to what runs when it is stopped."""
    return open_house(solo("vllm", pace=SLOW), server={"shutdown_timeout_s": 0.2})


def test_a_shutdown_that_has_waited_long_enough_ends_a_stream_by_an_honest_error(closing_house: House, caplog):
    # given a long answer on its way, when the gateway is stopped
    data = b""
    with httpx.stream("POST", f"{closing_house.base_url}/v1/chat/completions", json=ask("solo-vllm", stream=True)) as r:
        for part in r.iter_raw():
            if not data:
                closing_house.loop.call_soon_threadsafe(closing_house.gateway.stop)
            data += part
    # then its last event says so, and nothing claims an end
    *shown, last = events_of(data)
    assert last["error"]["code"] == "unavailable"
    assert all("choices" in event and event["choices"][0]["finish_reason"] is None for event in shown)
    assert b"[DONE]" not in data
    forgive_the_server(caplog)


def test_a_shutdown_that_has_waited_long_enough_refuses_what_has_no_status_yet(closing_house: House, caplog):
    # given an answer that is gathered, when the gateway is stopped meanwhile
    threading.Timer(0.1, closing_house.loop.call_soon_threadsafe, (closing_house.gateway.stop,)).start()
    response = httpx.post(f"{closing_house.base_url}/v1/chat/completions", json=ask("solo-vllm"))
    # then it is a true status
    assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")
    forgive_the_server(caplog)


def forgive_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn calls it an error that it had to end requests; nothing else may be one."""
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert {record.name for record in errors} <= {"uvicorn.error"}
    caplog.clear()


class Broken(Exception):
    """A bug."""


def break_after(house: House, outputs: int) -> None:
    """Makes the shared model's service hit a bug of ours after so many outputs."""
    model = house.gateway.models.get("solo-vllm")
    service = model.service

    async def broken(prepared: Any, context: Any, sink: Any) -> None:
        left = outputs

        def sink_until(batch: Any) -> None:
            nonlocal left
            if left == 0:
                raise Broken("a secret of ours")
            left -= 1
            sink(batch)

        await service(prepared, context, sink_until)

    object.__setattr__(model, "service", broken)


@pytest.mark.parametrize("stream", [True, False])
def test_a_bug_of_ours_before_a_word_is_a_500_that_says_nothing_of_it(open_house, caplog, stream):
    house = open_house(solo("vllm"))
    house.call(break_after, house, 0)
    response = httpx.post(f"{house.base_url}/v1/chat/completions", json=ask("solo-vllm", stream=stream))
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in response.text
    assert response.headers["x-request-id"] in caplog.text
    caplog.clear()


def test_a_bug_of_ours_in_the_middle_of_a_stream_is_its_last_event(open_house, caplog):
    house = open_house(solo("vllm"))
    house.call(break_after, house, 3)
    response = httpx.post(f"{house.base_url}/v1/chat/completions", json=ask("solo-vllm", stream=True))
    *shown, last = events_of(response.content)
    assert (response.status_code, len(shown) > 0) == (200, True)
    assert last["error"]["code"] == "internal_error"
    assert "secret" not in response.text
    caplog.clear()


def test_who_asks_is_told_of_every_choice_in_the_answer_itself(house: House):
    asked = {"x-tandem-explain": "1"}
    body = {"model": "pair-vllm", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    answer = house.http.post("/v1/chat/completions", json=body, headers=asked)
    stream = house.http.post("/v1/chat/completions", json={**body, "stream": True}, headers=asked)
    told = [event["tandem"] for event in events_of(stream.content) if "tandem" in event]
    for routing in (answer.json()["tandem"]["routing"], told[-1]["routing"]):
        assert [choice["leg"] for choice in routing] == ["prefill", "decode"]
    assert answer.json()["tandem"]["routing"][1]["worker"] == answer.headers["x-tandem-decode-worker"]
    assert "tandem" not in house.http.post("/v1/chat/completions", json=body).json()
