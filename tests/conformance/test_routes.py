"""What stands beside the table: models, vectors, explanations, the usage of streams, names of requests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.asking import PATHS, check_headers, events, streamed, whole
from tests.conformance.strict import EMBEDDINGS, MODEL, ModelList, check
from tests.conformance.table import PROMPT, USER
from tests.stories.house import PAIRED, House

ASKED: dict[str, dict[str, Any]] = {
    "chat": {"messages": [USER], "max_tokens": 4, "temperature": 0},
    "completions": {"prompt": PROMPT, "max_tokens": 4, "temperature": 0},
}
ROUTES = pytest.mark.parametrize("route", ASKED)


def test_models_are_openais_models(house: House) -> None:
    reply = house.http.get("/v1/models")

    check_headers(reply, "application/json")
    listed = check(ModelList, reply.content)
    assert all(check(MODEL, house.http.get(f"/v1/models/{each['id']}").content) == each for each in listed["data"])


@pytest.mark.parametrize("engine", ["vllm", "sglang", "native", "openai"])
@pytest.mark.parametrize("given", ["The sea", ["The sea", "The ships"], [700, 701], [[700], [701, 702]]], ids=str)
@pytest.mark.parametrize("encoding", [None, "float", "base64"])
def test_vectors_are_openais_vectors(house: House, engine: str, given: Any, encoding: str | None) -> None:
    body = {"model": f"solo-{engine}", "input": given, "encoding_format": encoding}

    reply = house.http.post("/v1/embeddings", json=body)

    check_headers(reply, "application/json")
    answer = check(EMBEDDINGS, reply.content)
    assert {type(entry["embedding"]) for entry in answer["data"]} == {str if encoding == "base64" else list}


@ROUTES
@pytest.mark.parametrize("model", [*(f"pair-{engine}" for engine in PAIRED), *(f"solo-{engine}" for engine in PAIRED)])
def test_every_chunk_says_that_the_usage_is_to_come_where_it_was_asked_for(
    house: House, route: str, model: str
) -> None:
    fields = {**ASKED[route], "stream_options": {"include_usage": True}}

    chunks = events(house, route, model, fields).chunks

    assert all("usage" in chunk for chunk in chunks)
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


@ROUTES
def test_an_explanation_is_an_addition_to_either_form(house: House, route: str) -> None:
    header = {"x-tandem-explain": "1"}

    answers = [ask(house, route, "pair-vllm", ASKED[route], **header) for ask in (whole, streamed)]

    assert [len(answer["tandem"]["routing"]) for answer in answers] == [2, 2]


@ROUTES
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_has_the_name_that_the_client_gave_its_request(house: House, route: str, stream: bool) -> None:
    body = {**ASKED[route], "model": "pair-vllm", "stream": stream}

    reply = house.http.post(PATHS[route], json=body, headers={"x-request-id": "mine-1"})

    assert reply.headers.get_list("x-request-id") == ["mine-1"]
