"""The front door: FastAPI for what only looks, the endpoints that are posted to beside it as plain ASGI.

`build_front` puts one thin ASGI callable around both: it turns HEAD into GET and sends what is posted straight to its
endpoint, so that no middleware stands between a token and its socket.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.api.call import Endpoint
from app.api.embeddings import EmbeddingsCall
from app.api.generation import Generation
from app.api.identity import PROCESSING_MS, request_id_of
from app.api.status import status_routes
from app.api.tokenization import DetokenizeCall, TokenizeCall
from app.responses import Receive, Send, send_error
from app.version import VERSION
from protocols.errors import GatewayError, InternalError, InvalidRequest, MethodNotAllowed, NotFound

if TYPE_CHECKING:
    from app.gateway import Gateway

_SHOWN_CHARS = 256

Asgi = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


def build_front(gateway: Gateway) -> Asgi:
    """The ASGI application of one gateway."""
    posted: dict[str, Asgi] = {
        "/v1/chat/completions": Endpoint(gateway, Generation(chat=True).call),
        "/v1/completions": Endpoint(gateway, Generation(chat=False).call),
        "/v1/embeddings": Endpoint(gateway, EmbeddingsCall),
        "/tokenize": (tokenize := Endpoint(gateway, TokenizeCall)),
        "/v1/tokenize": tokenize,
        "/detokenize": (detokenize := Endpoint(gateway, DetokenizeCall)),
        "/v1/detokenize": detokenize,
    }
    posted |= {f"{path}/": endpoint for path, endpoint in posted.items()}
    rest = _build_app(gateway)

    async def front(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await rest(scope, receive, send)
            return
        method = scope["method"]
        endpoint = posted.get(scope["path"])
        if endpoint is None:
            await rest({**scope, "method": "GET"} if method == "HEAD" else scope, receive, _with_id(scope, send))
        elif method == "POST":
            await endpoint(scope, receive, send)
        else:
            await _not_posted(scope, send)

    return front


def _build_app(gateway: Gateway) -> FastAPI:
    app = FastAPI(
        title="Tandem",
        version=VERSION,
        summary="OpenAI-compatible gateway in front of vLLM, SGLang and TensorRT-LLM workers",
        redirect_slashes=False,
    )
    app.include_router(status_routes(gateway))
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _http_error)
    app.add_exception_handler(GatewayError, _gateway_error)
    app.add_exception_handler(Exception, _our_fault)
    return app


# ---- errors in OpenAI's envelope, OPTIONS among them: to the router it is a wrong method like others


async def _http_error(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        return _envelope(InvalidRequest(str(error.errors()[0].get("msg", "invalid request"))))
    assert isinstance(error, HTTPException)
    shown = f"{request.method} {request.url.path[:_SHOWN_CHARS]}"
    if error.status_code == 404:
        return _envelope(NotFound(f"There is nothing at {shown}."))
    if error.status_code == 405:
        return _wrong_method(request.method, shown, (error.headers or {}).get("Allow", ""))
    return _envelope(InvalidRequest(str(error.detail)), error.status_code)


def _wrong_method(method: str, shown: str, allowed: str) -> Response:
    """`allowed`: the route's own methods. HEAD and OPTIONS are added, which every route answers."""
    methods = {"OPTIONS", *(name.strip() for name in allowed.split(","))}
    if "GET" in methods:
        methods.add("HEAD")
    allow = {"allow": ", ".join(sorted(methods))}
    if method == "OPTIONS":
        return Response(status_code=204, headers=allow)
    response = _envelope(MethodNotAllowed(f"{shown} is not allowed."))
    response.headers.update(allow)
    return response


async def _gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return _envelope(error)


def _envelope(error: GatewayError, status: int | None = None) -> Response:

    headers = {} if error.retry_after is None else {"retry-after": str(max(1, round(error.retry_after)))}
    return Response(orjson.dumps(error.envelope()), status or error.status, headers, "application/json")


async def _our_fault(request: Request, error: Exception) -> Response:
    """The server logs it; the client is told no more than that."""
    return _envelope(InternalError("The gateway failed to answer; see its log for this request id."))


async def _not_posted(scope: dict[str, Any], send: Send) -> None:
    """Answers another method than POST at a path that is only posted to."""
    headers = [(b"allow", b"OPTIONS, POST"), (b"x-request-id", request_id_of(scope["headers"]))]
    method = scope["method"]
    if method == "OPTIONS":
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
    else:
        await send_error(send, MethodNotAllowed(f"{method} is not allowed here; use POST."), headers)


# ---- every response carries a request id


def _with_id(scope: dict[str, Any], send: Send) -> Send:
    """Puts the request's id and the time it took on the response."""
    request_id, began_at = request_id_of(scope["headers"]), time.monotonic()

    async def named(message: Any) -> None:
        if message["type"] == "http.response.start":
            own = [(b"x-request-id", request_id), (PROCESSING_MS, b"%d" % ((time.monotonic() - began_at) * 1000))]
            message = {**message, "headers": [*message.get("headers", []), *own]}
        await send(message)

    return named
