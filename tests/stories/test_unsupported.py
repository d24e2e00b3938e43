"""Parameters that no worker of a model can honour: refused by name, or dropped with a word where the operator says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from simulator.options import TrtllmOptions
from tests.stories.house import House, pair, solo
from tests.stories.oracle import answer
from tests.stories.wire import events_of

PROMPT = "Tell me of the sea."
OLD = {"trtllm": TrtllmOptions(band="1.1")}
WARNING = "x-tandem-warning"


@pytest.fixture(scope="module")
def dropping_house() -> Iterator[House]:
    dropping = [pair("trtllm", "dropping", **OLD), solo("sglang", "sglang-dropping")]
    models = [replace(model, settings={"unsupported": "drop"}) for model in dropping]
    with House([*models, solo("trtllm", "refusing", **OLD)]) as house:
        yield house


@pytest.fixture
def house(dropping_house: House) -> Iterator[House]:
    yield dropping_house
    dropping_house.rest()


def body(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields}


@pytest.mark.parametrize(
    ("parameter", "fields"),
    [
        ("logit_bias", {"logit_bias": {"5": 1}}),
        ("logprobs", {"logprobs": 1}),
        ("prompt_logprobs", {"prompt_logprobs": 1}),
        ("use_beam_search", {"use_beam_search": True}),
        ("thinking_token_budget", {"thinking_token_budget": 5}),
        ("guided_whitespace_pattern", {"guided_regex": "a+", "guided_whitespace_pattern": " "}),
        ("bad_words", {"bad_words": ["x"]}),
        ("allowed_token_ids", {"allowed_token_ids": [1]}),
        ("stop_regex", {"stop_regex": "a+"}),
        ("cache_salt", {"cache_salt": "tenant"}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_changes_the_answer_is_refused_by_name_and_engine(
    house: House, parameter: str, fields: dict[str, Any], stream: bool
) -> None:
    reply = house.http.post("/v1/completions", json=body("refusing", stream=stream, **fields))

    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, parameter, "unsupported_parameter")
    assert f"'{parameter}'" in error["message"]
    assert "trtllm" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_drops_answers_and_says_what_it_dropped(house: House, stream: bool) -> None:
    asked = body("dropping", stream=stream, logprobs=2, bad_words=["x"], logit_bias={"5": 1}, vendor=1)

    reply = house.http.post("/v1/completions", json=asked)

    if stream:
        text, logprobs = events_of(reply.content).text(), events_of(reply.content).chunks[0]["choices"][0]["logprobs"]
    else:
        text, logprobs = reply.json()["choices"][0]["text"], reply.json()["choices"][0]["logprobs"]
    assert reply.status_code == 200
    assert reply.headers[WARNING] == "dropped, not supported: logprobs, logit_bias, bad_words"
    assert (text, logprobs) == (answer(PROMPT, 8), None)


def test_a_suffix_is_dropped_or_refused_whatever_the_engine(house: House) -> None:
    refused = house.http.post("/v1/completions", json=body("refusing", suffix="The end."))
    dropped = house.http.post("/v1/completions", json=body("sglang-dropping", suffix="The end.", stop_regex="x"))

    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_parameter")
    assert dropped.json()["choices"][0]["text"] == answer(PROMPT, 8)
    assert dropped.headers[WARNING] == "dropped, not supported: suffix, stop_regex"


@pytest.mark.parametrize("model", ["dropping", "sglang-dropping"])
def test_who_asks_for_nothing_unusual_is_not_warned(house: House, model: str) -> None:
    reply = house.http.post("/v1/completions", json=body(model, top_k=5, seed=3))

    assert (reply.status_code, WARNING in reply.headers) == (200, False)


def test_a_salt_is_never_dropped(house: House) -> None:
    named = house.http.post("/v1/completions", json=body("dropping", cache_salt="tenant"))
    tenant = house.http.post("/v1/completions", json=body("dropping"), headers={"x-tenant-id": "tenant"})

    assert [named.status_code, tenant.status_code] == [400, 400]
    assert named.json()["error"]["param"] == tenant.json()["error"]["param"] == "cache_salt"
    assert house.http.post("/v1/completions", json=body("sglang-dropping", cache_salt="tenant")).status_code == 200
