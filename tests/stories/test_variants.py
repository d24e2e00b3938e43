"""The same engines as other releases and other start options make them: the answers are the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from simulator.options import NativeOptions, SglangOptions, TrtllmOptions, VllmOptions
from tests.stories.house import QUICK, House, pair
from tests.stories.oracle import answer, answer_ids, chat_ids, ids_of, text_of
from tests.stories.wire import events_of

PROMPT = "Tell me of the sea and of the ships."
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm-closed": ("vllm", {"vllm": VllmOptions(scale_out=False)}),
    "vllm-quiet": ("vllm", {"vllm": VllmOptions(token_details=False, request_id_headers=True)}),
    "vllm-ranks": ("vllm", {"dp_size": 2}),
    "vllm-guessing": ("vllm", {"pace": replace(QUICK, tokens_per_step=3)}),
    "vllm-crumbs": ("vllm", {"segment_bytes": 7}),
    "sglang-incremental": ("sglang", {"sglang": SglangOptions(incremental=True)}),
    "sglang-ranks": ("sglang", {"dp_size": 2, "sglang": SglangOptions(cache_report=True)}),
    "sglang-crumbs": ("sglang", {"segment_bytes": 7}),
    "trtllm-1.1": ("trtllm", {"trtllm": TrtllmOptions(band="1.1")}),
    "trtllm-1.2": ("trtllm", {"trtllm": TrtllmOptions(band="1.2", done_twice=True)}),
    "trtllm-crumbs": ("trtllm", {"segment_bytes": 7}),
    "native-msgpack": ("native", {"native": NativeOptions(msgpack=True)}),
    "native-packed": ("native", {"native": NativeOptions(msgpack=True, packed_ids=True)}),
    "native-bootstrap": ("native", {"native": NativeOptions(bootstrap=True)}),
    "native-crumbs": ("native", {"segment_bytes": 7, "native": NativeOptions(msgpack=True)}),
}
"""By name: an engine and how its workers differ from those of the other stories. Crumbs: replies in tiny segments."""


@pytest.fixture(scope="module")
def variant_house() -> Iterator[House]:
    with House([pair(engine, name, **options) for name, (engine, options) in VARIANTS.items()]) as house:
        yield house


@pytest.fixture
def house(variant_house: House) -> Iterator[House]:
    yield variant_house
    variant_house.rest()


@pytest.mark.parametrize("model", VARIANTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_is_what_the_model_says(house: House, model: str, stream: bool) -> None:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "stream": stream}

    reply = house.http.post("/v1/completions", json=body)

    text = events_of(reply.content).text() if stream else reply.json()["choices"][0]["text"]
    assert text == answer(PROMPT, 12)


@pytest.mark.parametrize("model", VARIANTS)
def test_a_chat_is_what_the_model_says_and_its_prompt_is_counted_once(house: House, model: str) -> None:
    message = {"role": "user", "content": "Of the sea?"}
    body = {"model": model, "messages": [message], "max_tokens": 12, "temperature": 0, "stream": True}

    events = events_of(
        house.http.post("/v1/chat/completions", json={**body, "stream_options": {"include_usage": True}}).content
    )

    prompt, usage = chat_ids(message), events.usage()
    assert events.text() == answer(prompt, 12)
    assert usage is not None
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(prompt), 12)


@pytest.mark.parametrize("stream", [False, True])
def test_a_release_without_logprobs_is_not_asked_for_them(house: House, stream: bool) -> None:
    body = {"model": "trtllm-1.1", "prompt": PROMPT, "logprobs": 2, "stream": stream}

    reply = house.http.post("/v1/completions", json=body)

    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logprobs")


@pytest.mark.parametrize("model", [name for name in VARIANTS if name != "trtllm-1.1"])
def test_tokens_and_their_logprobs_are_aligned(house: House, model: str) -> None:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 2}

    told = house.http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]

    assert told["tokens"] == [text_of([token_id]) for token_id in answer_ids(PROMPT, 12)]
    assert all(isinstance(logprob, float) for logprob in told["token_logprobs"])
    assert len(told["top_logprobs"]) == 12


@pytest.mark.parametrize("model", VARIANTS)
def test_the_end_is_where_the_request_says(house: House, model: str) -> None:
    ids = answer_ids(PROMPT, 12)
    body = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "stop_token_ids": [ids[9]]}

    answered = house.http.post("/v1/completions", json=body).json()

    assert answered["choices"][0]["finish_reason"] == "stop"
    assert answered["usage"]["completion_tokens"] == ids.index(ids[9]) + 1


@pytest.mark.parametrize("model", VARIANTS)
def test_an_answer_survives_a_decode_worker(house: House, model: str) -> None:
    victim = house.workers(model, "decode")[0]
    committed = victim.faults.committed
    house.call(victim.faults.add, "reset@token:7")
    body = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}

    answers = [house.http.post("/v1/completions", json=body).json() for _ in range(2)]

    assert victim.faults.committed == committed + 1
    assert [answered["choices"][0]["text"] for answered in answers] == [answer(PROMPT, 12)] * 2
    assert [answered["usage"]["prompt_tokens"] for answered in answers] == [len(ids_of(PROMPT))] * 2
