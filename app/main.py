"""The front door: FastAPI for what only looks, and beside it the endpoints that are posted to.

What is posted goes from its connection straight to its endpoint: no framework stands between a token and its socket.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.api.call import Endpoint
from app.api.document import document_routes
from app.api.embeddings import EmbeddingsCall
from app.api.generation import Generation
from app.api.identity import PROCESSING_MS, request_id_of
from app.api.keys import CHALLENGE, Keys
from app.api.status import status_routes
from app.api.tokenization import DetokenizeCall, TokenizeCall
from app.http_turn import Receive, Send, Turn
from app.responses import send_error
from protocols.errors import ClientGone, GatewayError, InternalError, InvalidRequest, MethodNotAllowed, NotFound

if TYPE_CHECKING:
    from app.gateway import Gateway

log = logging.getLogger(__name__)

_SHOWN_CHARS = 256
_POSTED_METHODS = b"OPTIONS, POST"
_ALL_METHODS = b"GET, HEAD, OPTIONS, POST"


class Front:
    """Answers every request of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        posted: dict[str, Endpoint] = {
            "/v1/chat/completions": Endpoint(gateway, Generation(chat=True).call),
            "/v1/completions": Endpoint(gateway, Generation(chat=False).call),
            "/v1/embeddings": Endpoint(gateway, EmbeddingsCall),
            "/tokenize": (tokenize := Endpoint(gateway, TokenizeCall)),
            "/v1/tokenize": tokenize,
            "/detokenize": (detokenize := Endpoint(gateway, DetokenizeCall)),
            "/v1/detokenize": detokenize,
        }
        keys = gateway.settings.server.api_keys
        self._keys = Keys(keys) if keys else None
        self._posted = posted | {f"{path}/": endpoint for path, endpoint in posted.items()}
        self.app = _build_app(gateway)

    def __call__(self, turn: Turn) -> Coroutine[Any, Any, None]:
        endpoint = self._posted.get(turn.path)
        if self._keys is not None and turn.method != "OPTIONS":
            refusal = self._keys.refusal(turn.path, turn.headers)
            if refusal is not None:
                return send_error(turn, refusal, [CHALLENGE, (b"x-request-id", request_id_of(turn.headers))])
        if endpoint is not None and turn.method == "POST":
            return endpoint(turn)
        return self._answer(turn, posted=endpoint is not None)

    async def _answer(self, turn: Turn, *, posted: bool) -> None:
        """What is not posted. `posted`: it could be, there."""
        method = turn.method
        if not posted:
            if method == "OPTIONS" and turn.path == "*":
                _allowed(turn, _ALL_METHODS)
            else:
                await turn.serve(self.look)
        elif method == "OPTIONS":
            _allowed(turn, _POSTED_METHODS)
        else:
            headers = [(b"allow", _POSTED_METHODS), (b"x-request-id", request_id_of(turn.headers))]
            await send_error(turn, MethodNotAllowed(f"{method} is not allowed here; use POST."), headers)

    async def look(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """FastAPI's part, HEAD as GET. It hands on what it could not answer, after it has told the client."""
        request_id = request_id_of(scope["headers"])
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        asked = {**scope, "method": method, "request_id": request_id.decode()}
        try:
            await self.app(asked, receive, _with_id(request_id, send))
        except ClientGone:
            """Nobody is left to be told."""
        except Exception as error:
            log.error("request %s failed by our own fault", request_id.decode(), exc_info=error)


def _allowed(turn: Turn, methods: bytes) -> None:
    """The answer to OPTIONS."""
    turn.begin(204, [(b"allow", methods), (b"x-request-id", request_id_of(turn.headers))])
    turn.write(b"", more=False)


def _build_app(gateway: Gateway) -> FastAPI:
    # The document is `document_routes`' own.
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.include_router(status_routes(gateway))
    app.include_router(document_routes())
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _http_error)
    app.add_exception_handler(GatewayError, _gateway_error)
    app.add_exception_handler(Exception, _our_fault)
    return app


# ---- errors in OpenAI's envelope, OPTIONS among them: to the router it is a wrong method like others


async def _http_error(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        return _envelope(request, InvalidRequest(str(error.errors()[0].get("msg", "invalid request"))))
    assert isinstance(error, HTTPException)
    shown = f"{request.method} {request.url.path[:_SHOWN_CHARS]}"
    if error.status_code == 404:
        return _envelope(request, NotFound(f"There is nothing at {shown}."))
    if error.status_code == 405:
        return _wrong_method(request, shown, (error.headers or {}).get("Allow", ""))
    return _envelope(request, InvalidRequest(str(error.detail)), error.status_code)


def _wrong_method(request: Request, shown: str, allowed: str) -> Response:
    """`allowed`: the route's own methods. HEAD and OPTIONS are added, which every route answers."""
    methods = {"OPTIONS", *(name.strip() for name in allowed.split(","))}
    if "GET" in methods:
        methods.add("HEAD")
    allow = {"allow": ", ".join(sorted(methods))}
    if request.method == "OPTIONS":
        return Response(status_code=204, headers=allow)
    response = _envelope(request, MethodNotAllowed(f"{shown} is not allowed."))
    response.headers.update(allow)
    return response


async def _gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return _envelope(request, error)


def _envelope(request: Request, error: GatewayError, status: int | None = None) -> Response:
    headers = {} if error.retry_after is None else {"retry-after": str(max(1, round(error.retry_after)))}
    body = orjson.dumps(error.envelope(request.scope["request_id"]))
    return Response(body, status or error.status, headers, "application/json")


async def _our_fault(request: Request, error: Exception) -> Response:
    """The error itself is logged by `Front.look`."""
    return _envelope(request, InternalError(repr(error)))


# ---- every response carries a request id


def _with_id(request_id: bytes, send: Send) -> Send:
    """Puts the request's id and the time it took on the response."""
    began_at = time.monotonic()

    async def named(message: Any) -> None:
        if message["type"] == "http.response.start":
            own = [(b"x-request-id", request_id), (PROCESSING_MS, b"%d" % ((time.monotonic() - began_at) * 1000))]
            message = {**message, "headers": [*message.get("headers", []), *own]}
        await send(message)

    return named
