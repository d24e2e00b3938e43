"""The front door: FastAPI for everything but tokens, the two generation endpoints beside it as plain ASGI.

`build_front` puts one thin ASGI callable around both: it answers OPTIONS, turns HEAD into GET, and sends the hot paths
straight to their endpoints, so that no middleware stands between a token and its socket.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from app.api.generation import Generation
from app.api.identity import request_id_of
from app.api.status import status_routes
from app.responses import Receive, Send, send_error
from app.version import VERSION
from protocols.errors import GatewayError, InternalError, InvalidRequest, MethodNotAllowed, NotFound

if TYPE_CHECKING:
    from app.gateway import Gateway

log = logging.getLogger(__name__)

Asgi = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


def build_front(gateway: Gateway) -> Asgi:
    """The ASGI application of one gateway."""
    hot: dict[str, Asgi] = {
        "/v1/chat/completions": Generation(gateway, chat=True),
        "/v1/completions": Generation(gateway, chat=False),
    }
    hot |= {f"{path}/": endpoint for path, endpoint in hot.items()}
    rest = _build_app(gateway)

    async def front(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await rest(scope, receive, send)
            return
        method = scope["method"]
        endpoint = hot.get(scope["path"])
        if endpoint is not None and method == "POST":
            await endpoint(scope, receive, send)
        elif method == "OPTIONS":
            await _options(scope, send, _allowed(scope, rest, hot))
        elif endpoint is not None:
            await _refuse(scope, send, MethodNotAllowed(f"{method} is not allowed here; use POST."), "OPTIONS, POST")
        else:
            await rest({**scope, "method": "GET"} if method == "HEAD" else scope, receive, _with_id(scope, send))

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
    return app


# ---- errors in OpenAI's envelope


async def _http_error(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        return _envelope(InvalidRequest(str(error.errors()[0].get("msg", "invalid request"))))
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _envelope(NotFound(f"There is nothing at {request.method} {request.url.path}."))
    if error.status_code == 405:
        response = _envelope(MethodNotAllowed(f"{request.method} is not allowed at {request.url.path}."))
        response.headers.update(error.headers or {})
        return response
    failure = InvalidRequest(str(error.detail))
    return _envelope(failure, error.status_code)


async def _gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return _envelope(error)


def _envelope(error: GatewayError, status: int | None = None) -> Response:
    import orjson

    headers = {} if error.retry_after is None else {"retry-after": str(max(1, round(error.retry_after)))}
    return Response(orjson.dumps(error.envelope()), status or error.status, headers, "application/json")


async def _refuse(scope: dict[str, Any], send: Send, error: GatewayError, allow: str) -> None:
    request_id = request_id_of(scope["headers"])
    await send_error(send, error, [(b"x-request-id", request_id), (b"allow", allow.encode())])


# ---- every route answers OPTIONS and HEAD, and carries a request id


def _allowed(scope: dict[str, Any], app: FastAPI, hot: dict[str, Asgi]) -> set[str]:
    if scope["path"] in hot:
        return {"POST"}
    found: set[str] = set()
    for route in app.router.routes:
        match, _ = route.matches({**scope, "method": "GET"})
        if match is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return found


async def _options(scope: dict[str, Any], send: Send, methods: set[str]) -> None:
    if not methods:
        await _refuse(scope, send, NotFound(f"There is nothing at {scope['path']}."), "OPTIONS")
        return
    if "GET" in methods:
        methods = methods | {"HEAD"}
    allow = ", ".join(sorted(methods | {"OPTIONS"})).encode()
    headers = [(b"allow", allow), (b"x-request-id", request_id_of(scope["headers"]))]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _with_id(scope: dict[str, Any], send: Send) -> Send:
    """Puts the request's id on the response, and turns what nobody expected into our own 500."""
    request_id = request_id_of(scope["headers"])

    async def named(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), (b"x-request-id", request_id)]}
        await send(message)

    return named


def internal_error() -> InternalError:
    """What a client is told of our own bug."""
    return InternalError("The gateway failed to answer; see its log for this request id.")
