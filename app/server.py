"""uvicorn as the gateway runs it: no signal handlers of its own, and a head that leaves together with its body.

uvicorn writes a response's head when it starts and its first bytes when they come; on a socket each is a packet and a
system call. `CorkedTransport` holds what is written between `cork` and `uncork` and sends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api.identity import request_id_of
from protocols.errors import InvalidRequest


class CorkedTransport:
    """A transport that can hold writes back for a moment. All else is the transport's own."""

    __slots__ = ("_held", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held: list[bytes] | None = None

    def write(self, data: bytes) -> None:
        if self._held is None:
            self._transport.write(data)
        else:
            self._held.append(data)

    def cork(self) -> None:
        self._held = []

    def uncork(self) -> None:
        held, self._held = self._held, None
        if held:
            self._transport.write(b"".join(held))

    def close(self) -> None:
        """Closes after what is held, as a transport closes after what is written."""
        self.uncork()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol over a corked transport."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(CorkedTransport(transport))  # type: ignore[arg-type]

    def send_400_response(self, msg: str) -> None:
        """Bytes that are not HTTP are refused in OpenAI's envelope, as everything is; the connection ends.

        In the middle of another answer nothing can be said: it would be taken for a part of that answer.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
            return
        body = orjson.dumps(InvalidRequest(msg).envelope())
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", request_id_of(())),
            (b"connection", b"close"),
        ]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + lines + b"\r\n" + body)
        self.transport.close()


class Server(uvicorn.Server):
    """The gateway's owner decides when to stop, not a signal handler of uvicorn's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


Message = MutableMapping[str, Any]


@contextlib.contextmanager
def corked(send: Callable[[Message], Awaitable[None]]) -> Iterator[None]:
    """What `send` writes inside leaves in one piece. Under another server it changes nothing."""
    transport = transport_of(send)
    if not isinstance(transport, CorkedTransport):
        yield
        return
    transport.cork()
    try:
        yield
    finally:
        transport.uncork()


def transport_of(send: Callable[[Message], Awaitable[None]]) -> Any:
    """uvicorn's `send` belongs to the cycle that owns the connection's transport; None under another server."""
    return getattr(getattr(send, "__self__", None), "transport", None)
