"""A worker dies: with another of its role left nobody notices; with none the client is told so, at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import openai
import pytest

from simulator.options import NativeOptions, TrtllmOptions, VllmOptions
from tests.stories.house import PAIRED, House, pair, second, solo
from tests.stories.oracle import answer, ids_of
from tests.stories.wire import Reply, events_of

PROMPT = "Tell me of the sea and of the ships."
TOKENS = 24
SAID = answer(PROMPT, TOKENS)
USAGE = (len(ids_of(PROMPT)), TOKENS)
MOMENTS = [
    *(("decode", moment) for moment in ("connect", "request", "head", "token:1", "token:12", "last", "done")),
    *(("prefill", moment) for moment in ("connect", "request", "head", "done")),
]
OpenHouse = Callable[..., House]


def asked(house: House, model: str, *, stream: bool, tokens: int = TOKENS, **fields: Any) -> Reply:
    body = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "stream": stream, **fields}
    if stream:
        body["stream_options"] = {"include_usage": True}
    with house.wire() as wire:
        wire.post("/v1/completions", body)
        return wire.reply()


def told(reply: Reply) -> tuple[str, str, tuple[int, int]]:
    """Text, finish and counts of an answer that must be whole."""
    assert reply.status == 200, reply.body
    if reply.header("content-type") == "application/json":
        choice, usage = reply.json()["choices"][0], reply.json()["usage"]
        return choice["text"], choice["finish_reason"], (usage["prompt_tokens"], usage["completion_tokens"])
    events = events_of(reply.body)
    assert (events.error, events.done) == (None, 1)
    (finish,), usage = events.finishes(), events.usage()
    assert usage is not None
    return events.text(), finish, (usage["prompt_tokens"], usage["completion_tokens"])


@pytest.mark.parametrize("engine", PAIRED)
@pytest.mark.parametrize(("role", "moment"), MOMENTS)
def test_the_death_of_one_of_two_workers_is_invisible(
    open_house: OpenHouse, engine: str, role: str, moment: str
) -> None:
    house = open_house(pair(engine))
    victim = house.workers(f"pair-{engine}", role)[0]
    house.call(victim.faults.add, f"die@{moment}")

    replies = [asked(house, f"pair-{engine}", stream=stream) for stream in (True, False, True)]

    assert [told(reply) for reply in replies] == [(SAID, "length", USAGE)] * 3
    assert victim.worker.dead


@pytest.mark.parametrize("engine", PAIRED)
@pytest.mark.parametrize("moment", ["request", "token:12"])
def test_the_death_of_one_of_two_whole_workers_is_invisible(open_house: OpenHouse, engine: str, moment: str) -> None:
    house = open_house(solo(engine, workers=2))
    victim = house.workers(f"solo-{engine}")[0]
    house.call(victim.faults.add, f"die@{moment}")

    replies = [asked(house, f"solo-{engine}", stream=stream) for stream in (True, False)]

    assert [told(reply) for reply in replies] == [(SAID, "length", USAGE)] * 2
    assert victim.worker.dead


@pytest.mark.parametrize("engine", PAIRED)
def test_choices_survive_the_death_that_befell_some_of_them(open_house: OpenHouse, engine: str) -> None:
    house = open_house(pair(engine))
    fields = {"n": 4, "temperature": 1, "seed": 5}
    whole = asked(house, f"pair-{engine}", stream=False, **fields).json()
    victim = house.workers(f"pair-{engine}", "decode")[1]
    house.call(victim.faults.add, "die@token:8")

    events = events_of(asked(house, f"pair-{engine}", stream=True, **fields).body)

    assert victim.worker.dead
    assert [events.text(index) for index in range(4)] == [choice["text"] for choice in whole["choices"]]
    assert [events.finishes(index) for index in range(4)] == [["length"]] * 4
    assert events.usage() == whole["usage"]


def test_logprobs_and_ids_are_told_once_across_a_death(open_house: OpenHouse) -> None:
    house = open_house(pair("vllm"))
    fields = {"logprobs": 2, "return_token_ids": True}
    whole = asked(house, "pair-vllm", stream=False, **fields).json()["choices"][0]
    victim = house.workers("pair-vllm", "decode")[1]
    house.call(victim.faults.add, "die@token:8")

    after = asked(house, "pair-vllm", stream=False, **fields).json()["choices"][0]

    assert victim.worker.dead
    assert after["token_ids"] == whole["token_ids"]
    assert after["logprobs"] == whole["logprobs"]


# ---- nobody is left

BRIEFLY = {
    "vllm": {"vllm": VllmOptions(lease_s=0.3)},
    "trtllm": {"trtllm": TrtllmOptions(transfer_timeout_s=0.3)},
    "native": {"native": NativeOptions(pin_s=0.3)},
    "sglang": {},
}
"""What prefill has pinned for a decode worker that never comes is held no longer than this."""
LOCAL = ("vllm", "trtllm")
"""Their decode workers can prefill for themselves, and do when no prefill worker is left."""


@pytest.mark.parametrize("engine", PAIRED)
@pytest.mark.parametrize(("moment", "stream"), [("connect", False), ("request", True)])
def test_the_death_of_the_only_decode_worker_before_a_word_is_a_true_status(
    open_house: OpenHouse, engine: str, moment: str, stream: bool
) -> None:
    house = open_house(pair(engine, prefill=1, decode=1, **BRIEFLY[engine]))
    (victim,) = house.workers(f"pair-{engine}", "decode")
    house.call(victim.faults.add, f"die@{moment}")
    began = time.monotonic()

    reply = asked(house, f"pair-{engine}", stream=stream)

    assert time.monotonic() - began < second()
    assert (reply.status, reply.json()["error"]["code"]) == (503, "no_available_workers")
    assert reply.header("retry-after")


@pytest.mark.parametrize("engine", ["sglang", "native"])
@pytest.mark.parametrize(("moment", "stream"), [("connect", False), ("request", True)])
def test_the_death_of_the_only_prefill_worker_is_a_true_status(
    open_house: OpenHouse, engine: str, moment: str, stream: bool
) -> None:
    house = open_house(pair(engine, prefill=1, decode=1))
    (victim,) = house.workers(f"pair-{engine}", "prefill")
    house.call(victim.faults.add, f"die@{moment}")
    began = time.monotonic()

    reply = asked(house, f"pair-{engine}", stream=stream)

    assert time.monotonic() - began < second()
    assert (reply.status, reply.json()["error"]["code"]) == (503, "no_available_workers")


@pytest.mark.parametrize("engine", LOCAL)
@pytest.mark.parametrize("moment", ["connect", "head"])
def test_where_decode_can_prefill_for_itself_the_only_prefill_worker_is_not_missed(
    open_house: OpenHouse, engine: str, moment: str
) -> None:
    house = open_house(pair(engine, prefill=1, decode=1))
    (victim,) = house.workers(f"pair-{engine}", "prefill")
    house.call(victim.faults.add, f"die@{moment}")

    replies = [asked(house, f"pair-{engine}", stream=stream) for stream in (True, False)]

    assert [told(reply) for reply in replies] == [(SAID, "length", USAGE)] * 2
    assert victim.worker.dead


@pytest.mark.parametrize("engine", PAIRED)
@pytest.mark.parametrize("moment", ["token:1", "token:12"])
def test_the_death_of_the_only_worker_in_a_stream_is_one_error_and_no_finish(
    open_house: OpenHouse, engine: str, moment: str
) -> None:
    house = open_house(pair(engine, prefill=1, decode=1))
    (victim,) = house.workers(f"pair-{engine}", "decode")
    house.call(victim.faults.add, f"die@{moment}")
    began = time.monotonic()

    reply = asked(house, f"pair-{engine}", stream=True)

    assert time.monotonic() - began < second()
    events = events_of(reply.body)
    assert SAID.startswith(events.text())
    assert events.text()
    assert events.error is not None
    assert (events.error["code"], events.error["type"]) == ("worker_failed", "server_error")
    assert (events.finishes(), events.done, events.usage()) == ([], 0, None)


@pytest.mark.parametrize("engine", PAIRED)
def test_the_death_of_the_only_worker_behind_a_whole_answer_is_a_502(open_house: OpenHouse, engine: str) -> None:
    house = open_house(pair(engine, prefill=1, decode=1))
    (victim,) = house.workers(f"pair-{engine}", "decode")
    house.call(victim.faults.add, "die@token:12")
    began = time.monotonic()

    reply = asked(house, f"pair-{engine}", stream=False)

    assert time.monotonic() - began < second()
    assert (reply.status, reply.json()["error"]["code"]) == (502, "worker_failed")


def test_the_client_raises_what_a_broken_stream_says(open_house: OpenHouse) -> None:
    house = open_house(pair("vllm", prefill=1, decode=1))
    (victim,) = house.workers("pair-vllm", "decode")
    house.call(victim.faults.add, "die@token:3")
    seen = ""

    with pytest.raises(openai.APIError, match="connection") as raised:  # noqa: PT012
        for chunk in house.sdk.completions.create(model="pair-vllm", prompt=PROMPT, temperature=0, stream=True):
            seen += chunk.choices[0].text

    assert seen
    assert SAID.startswith(seen)
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["code"] == "worker_failed"


def test_once_everybody_is_dead_requests_are_refused_without_trying(open_house: OpenHouse) -> None:
    house = open_house(solo("vllm"), health={"interval_s": 0.05})
    (victim,) = house.workers("solo-vllm")
    house.kill(victim)
    house.eventually(lambda: not house.gateway.registry.servable("solo-vllm").ok)

    reply = asked(house, "solo-vllm", stream=True)

    assert (reply.status, reply.json()["error"]["code"]) == (503, "no_available_workers")
    assert "solo-vllm" in reply.json()["error"]["message"]
    assert house.count("choices") == 0
