"""The OpenAPI document: every route and every field that there is, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from protocols.errors import MethodNotAllowed
from protocols.openai import ChatCompletionRequest, CompletionRequest, EmbeddingRequest
from protocols.openai_schemas import request_schemas
from tests.app.test_errors import KINDS
from tests.stories.house import House
from tests.stories.test_front_door import POSTED

LOOKS = {"/v1/models", "/v1/models/{model}", "/health", "/live", "/metrics"}
GENERATED = [ChatCompletionRequest, CompletionRequest, EmbeddingRequest]


@pytest.fixture
def document(house: House) -> dict[str, Any]:
    reply = house.http.get("/openapi.json")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
    told: dict[str, Any] = reply.json()
    return told


def inside(value: Any) -> Iterator[Any]:
    """The value and all that it holds."""
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from inside(inner)


def test_every_route_is_told(document: dict[str, Any]) -> None:
    told = {(path, method) for path, methods in document["paths"].items() for method in methods.keys() - {"parameters"}}

    posted = {path.rstrip("/") for path in POSTED}
    assert told == {(path, "post") for path in posted} | {(path, "get") for path in LOOKS}


def test_every_route_that_is_told_is_there(house: House, document: dict[str, Any]) -> None:
    told = [
        (path, method) for path, methods in document["paths"].items() for method in methods if method != "parameters"
    ]

    statuses = {
        house.http.request(method, path.replace("{model}", "solo-vllm"), json={}).status_code for path, method in told
    }

    assert statuses == {200, 400}


def test_every_status_of_a_failure_is_told(document: dict[str, Any]) -> None:
    told = document["paths"]["/v1/chat/completions"]["post"]["responses"].keys()

    assert {str(kind.status) for kind in KINDS if kind is not MethodNotAllowed} <= told


def test_calls_of_custom_tools_are_told(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    message = schemas["ChatCompletion"]["properties"]["choices"]["items"]["properties"]["message"]["properties"]
    delta = schemas["ChatCompletionChunk"]["properties"]["choices"]["items"]["properties"]["delta"]["properties"]

    kinds = [each["properties"]["type"]["const"] for each in message["tool_calls"]["items"]["anyOf"]]
    assert kinds == delta["tool_calls"]["items"]["properties"]["type"]["enum"] == ["function", "custom"]


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    references = {each["$ref"] for each in inside(document) if isinstance(each, dict) and "$ref" in each}

    assert {reference.rpartition("/")[2] for reference in references} <= schemas.keys()
    assert references


@pytest.mark.parametrize("model", GENERATED)
def test_every_field_is_told_by_a_schema_that_says_something(model: Any) -> None:
    told = request_schemas()[model.__name__]["properties"]

    assert told.keys() == model.model_fields.keys()
    assert not [name for name, schema in told.items() if not schema or {} in schema.get("anyOf", [])]


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_a_page_shows_it(house: House, path: str) -> None:
    assert "/openapi.json" in house.http.get(path).text
