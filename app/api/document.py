"""`GET /openapi.json`: every route, what it takes and what it answers. Requests are told by what reads them."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import orjson
from fastapi import APIRouter
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from starlette.responses import Response

from app.api.answer_schemas import SCHEMAS
from app.version import VERSION
from protocols.json_schema import Schema, ref
from protocols.openai_schemas import request_schemas

JSON = "application/json"
EVENTS = "text/event-stream"
METRICS = "text/plain"

_HEADERS: dict[str, Schema] = {
    "x-request-id": {"description": "The request's name in logs.", "schema": {"type": "string"}},
    "openai-processing-ms": {
        "description": "Milliseconds up to the response's head.",
        "schema": {"type": "string", "pattern": "^[0-9]+$"},
    },
}
_REFUSALS = {
    "400": "A field is wrong (it is named), or nobody can do what it asks.",
    "401": "None of the gateway's keys was sent (see server.api_keys).",
    "404": "There is no such model.",
    "408": "The body did not come in time.",
    "413": "The body is too large.",
    "414": "The path and query are too long.",
    "415": "The body is not JSON by its content type.",
    "431": "The headers are too large.",
}
_FAILURES = {
    "429": "All workers are overloaded (see server.overload_status).",
    "500": "The gateway's own fault.",
    "502": "A worker failed, and retries are spent.",
    "503": "No worker is ready, or all are overloaded.",
    "504": "The request's deadline passed.",
}
_RETRY = {"retry-after": {"description": "Seconds to wait.", "schema": {"type": "string"}}}


@cache
def api_document() -> bytes:
    """The OpenAPI document. Its first making takes some 40 ms: to be called away from the event loop."""
    return orjson.dumps(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Tandem",
                "version": VERSION,
                "summary": "OpenAI-compatible gateway in front of vLLM, SGLang and TensorRT-LLM workers",
            },
            "paths": _paths(),
            "components": {"schemas": {**request_schemas(), **SCHEMAS}},
        }
    )


def document_routes() -> APIRouter:
    """The document, and two pages that show it (their scripts come from a public CDN)."""
    router, url, title = APIRouter(), "/openapi.json", "Tandem"

    @router.get(url)
    async def document() -> Response:
        return Response(await asyncio.to_thread(api_document), media_type=JSON)

    @router.get("/docs")
    async def swagger() -> Response:
        return get_swagger_ui_html(openapi_url=url, title=title)

    @router.get("/redoc")
    async def redoc() -> Response:
        return get_redoc_html(openapi_url=url, title=title)

    return router


def _paths() -> dict[str, Any]:
    chat = _posted(
        "chat", "A chat", ref("ChatCompletionRequest"), ref("ChatCompletion"), events=ref("ChatCompletionChunk")
    )
    text = _posted("completion", "A text", ref("CompletionRequest"), ref("Completion"), events=ref("Completion"))
    asked = {"anyOf": [ref("TokenizeRequest"), ref("TokenizeChatRequest")]}
    paths = {
        "/v1/chat/completions": chat,
        "/v1/completions": text,
        "/v1/embeddings": _posted("embeddings", "Vectors", ref("EmbeddingRequest"), ref("Embeddings")),
    }
    for prefix, version in (("", ""), ("/v1", "V1")):
        paths[f"{prefix}/tokenize"] = _posted(f"tokenize{version}", "A text's or a chat's ids", asked, ref("Tokens"))
        paths[f"{prefix}/detokenize"] = _posted(
            f"detokenize{version}", "The text of ids", ref("DetokenizeRequest"), ref("Detokenized")
        )
    return paths | {
        "/v1/models": _looked("models", "The models served, by all their names", {"200": _told(ref("ModelList"))}),
        "/v1/models/{model}": {
            "parameters": [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}],
            **_looked(
                "model",
                "One model; its name may hold slashes, encoded or not",
                {"200": _told(ref("Model")), "404": _told(ref("Error"), "There is no such model.")},
            ),
        },
        "/health": _looked(
            "health",
            "Which models can be served, and why not",
            {"200": _told(ref("Health")), "503": _told(ref("Health"), "None can, or the gateway is ending.")},
        ),
        "/live": _looked("live", "The process runs", {"200": _told(ref("Live"))}),
        "/metrics": _looked("metrics", "Prometheus metrics", {"200": _response({METRICS: {"type": "string"}}, "Told")}),
    }


def _posted(name: str, summary: str, asked: Schema, answer: Schema, *, events: Schema | None = None) -> dict[str, Any]:
    """A path that is posted to. `events`: what a streamed answer's events hold."""
    told = {JSON: answer}
    if events is not None:
        told[EVENTS] = {"type": "string", "description": f"Events of {events['$ref'].rpartition('/')[2]}, then [DONE]."}
    errors = {status: _told(ref("Error"), words) for status, words in {**_REFUSALS, **_FAILURES}.items()}
    for status in ("429", "503"):
        errors[status]["headers"] = {**_HEADERS, **_RETRY}
    operation = {
        "operationId": name,
        "summary": summary,
        "requestBody": {"required": True, "content": {JSON: {"schema": asked}}},
        "responses": {"200": _response(told, "The answer"), **errors},
    }
    return {"post": operation}


def _looked(name: str, summary: str, responses: dict[str, Any]) -> dict[str, Any]:
    return {"get": {"operationId": name, "summary": summary, "responses": responses}}


def _told(schema: Schema, words: str = "The answer") -> dict[str, Any]:
    return _response({JSON: schema}, words)


def _response(content: dict[str, Schema], words: str) -> dict[str, Any]:
    return {
        "description": words,
        "headers": _HEADERS,
        "content": {kind: {"schema": schema} for kind, schema in content.items()},
    }
