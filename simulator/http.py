"""A small HTTP/1.1 server whose replies look like uvicorn's, and which can also misbehave.

Handlers are plain functions of an `Exchange`; they write when they have something, from any callback, and hear at once
when the client has left. Nothing polls, so an idle server costs nothing.
"""

from __future__ import annotations

import asyncio
import http
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from email.utils import formatdate
from typing import Any, cast
from urllib.parse import unquote

import httptools
import orjson

_PHRASES = {status.value: status.phrase for status in http.HTTPStatus}
_LINGER_ZERO = struct.pack("ii", 1, 0)


class Exchange:
    """One request and its reply.

    `on_close` is called when the connection is gone before the reply was complete. `on_drain` is called when a slow
    client has caught up; while `slow` is true, a streaming handler had better collect its outputs.
    """

    __slots__ = (
        "_chunked",
        "_connection",
        "_finished",
        "_held",
        "body",
        "complete",
        "headers",
        "method",
        "on_close",
        "on_drain",
        "path",
        "query",
        "started",
    )

    def __init__(
        self, connection: Connection, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> None:
        path, _, self.query = target.partition("?")
        self.path = unquote(path)
        self.method = method
        self.headers = headers
        self.body = body
        self.started = False
        self.complete = False
        self.on_close: Callable[[], None] | None = None
        self.on_drain: Callable[[], None] | None = None
        self._connection = connection
        self._chunked = False
        self._finished = False
        self._held: list[bytes] | None = None

    @property
    def transport(self) -> asyncio.Transport:
        return self._connection.transport

    @property
    def gone(self) -> bool:
        """Whether nobody reads any more."""
        return self._connection.lost

    @property
    def slow(self) -> bool:
        return self._connection.paused

    @property
    def local_port(self) -> int:
        return int(self.transport.get_extra_info("sockname")[1])

    def start(
        self, status: int, content_type: str, length: int | None, headers: Mapping[str, str] | None = None
    ) -> None:
        """The reply's head. `length` None means chunked."""
        lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, '')}", f"date: {_date()}", "server: uvicorn"]
        if length is not None:
            lines.append(f"content-length: {length}")
        if content_type:
            lines.append(f"content-type: {content_type}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if not self._connection.keep_alive:
            lines.append("connection: close")
        if length is None:
            lines.append("transfer-encoding: chunked")
        self._chunked = length is None
        self.started = True
        self.raw(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    def write(self, data: bytes) -> None:
        """A piece of the body; in a chunked reply it is one chunk."""
        if data:
            self.raw(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def finish(self) -> None:
        """The end of the reply."""
        if self._finished:
            return
        self._finished = True
        if self._chunked:
            self.raw(b"0\r\n\r\n")
        if self._held is None:
            self._completed()

    def reply(
        self,
        status: int,
        body: bytes = b"",
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """A whole reply at once. HEAD gets the head only."""
        self.start(status, content_type, len(body), headers)
        if self.method != "HEAD":
            self.write(body)
        self.finish()

    def json(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        self.reply(status, orjson.dumps(value), headers=headers)

    def raw(self, data: bytes) -> None:
        """Bytes as they are, framing or not."""
        if self._held is not None:
            self._held.append(data)
        elif not self._connection.lost:
            self._connection.write(data)

    def _completed(self) -> None:
        self.complete = True
        self._connection.replied()

    # ---- misbehaviour

    def hold(self, seconds: float) -> None:
        """Keeps back whatever is written for this long, then writes it at once."""
        self._held = []
        self._connection.loop.call_later(seconds, self._release)

    def _release(self) -> None:
        held, self._held = self._held or [], None
        for data in held:
            self.raw(data)
        if self._finished and not self.complete:
            self._completed()

    def close(self) -> None:
        """Ends the connection in good order, with whatever was written."""
        self._connection.when_written(self.transport.close)

    def truncated(self, data: bytes) -> None:
        """Half of a piece of the body, framed as if all of it came."""
        half = data[: len(data) // 2]
        self.raw(b"%x\r\n%b" % (len(data), half) if self._chunked else half)

    def reset(self) -> None:
        """Ends the connection with a TCP reset."""
        self._connection.reset()


Handler = Callable[[Exchange], None]


class Connection(asyncio.Protocol):
    """One client connection: requests are answered one after the other."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._pending: deque[tuple[str, str, dict[str, str], bytes, bool]] = deque()
        self._exchange: Exchange | None = None
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._unsent: deque[bytes] = deque()
        self._after: Callable[[], None] | None = None
        self.transport: asyncio.Transport
        self.keep_alive = True
        self.deaf = False
        """Takes connections and words, and never answers."""
        self.lost = False
        self.paused = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._server.loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no asyncio.Transport.
        self.transport = cast(asyncio.Transport, transport)
        if self._server.ended:
            self.transport.abort()
            return
        self._server.connections.add(self)
        self._server.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._server.connections.discard(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None and not exchange.complete and exchange.on_close is not None:
            exchange.on_close()

    def data_received(self, data: bytes) -> None:
        if self.deaf:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()
            return
        self._next()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self._exchange is not None and self._exchange.on_drain is not None:
            self._exchange.on_drain()

    def write(self, data: bytes) -> None:
        """Writes at once, or in the pieces that the server is asked to cut everything into."""
        size = self._server.segment_bytes
        if not size:
            self.transport.write(data)
            return
        if not self._unsent:
            self.loop.call_soon(self._write_piece)
        self._unsent.extend(data[start : start + size] for start in range(0, len(data), size))

    def when_written(self, call: Callable[[], None]) -> None:
        """Calls when nothing is unsent any more; only the last such call counts."""
        if self._unsent:
            self._after = call
        else:
            call()

    def _write_piece(self) -> None:
        if self.lost:
            self._unsent.clear()
            return
        self.transport.write(self._unsent.popleft())
        if self._unsent:
            self.loop.call_soon(self._write_piece)
        elif self._after is not None:
            after, self._after = self._after, None
            after()

    def replied(self) -> None:
        """The current reply is complete: the next request's turn, or the connection's end."""
        self.when_written(self._over)

    def _over(self) -> None:
        self._exchange = None
        if not self.keep_alive:
            self.transport.close()
        elif self._pending:
            self._server.loop.call_soon(self._next)

    def reset(self) -> None:
        descriptor = self.transport.get_extra_info("socket").fileno()
        if descriptor >= 0:
            with socket.socket(fileno=os.dup(descriptor)) as duplicate:
                duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self.transport.abort()

    # ---- httptools

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", {}, []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode("ascii")
        keep = self._parser.should_keep_alive()
        self._pending.append((method, self._url.decode("latin-1"), self._headers, b"".join(self._body), keep))

    def _next(self) -> None:
        if self._exchange is not None or not self._pending or self.lost:
            return
        method, target, headers, body, self.keep_alive = self._pending.popleft()
        self._exchange = exchange = Exchange(self, method, target, headers, body)
        self._server.handler(exchange)


class HttpServer:
    """Listens on one or more sockets and hands every request to `handler`.

    `connected` may close a connection before it has said a word. `segment_bytes`: everything is written in pieces of
    this size, so that readers see TCP segments cut anywhere; 0: as it comes.
    """

    def __init__(
        self, handler: Handler, connected: Callable[[Connection], None] | None = None, segment_bytes: int = 0
    ) -> None:
        self.segment_bytes = segment_bytes
        self.handler = handler
        self.connected = connected or (lambda connection: None)
        self.connections: set[Connection] = set()
        self.ended = False
        """A connection that was accepted just before may still come; it finds nobody."""
        self.loop: asyncio.AbstractEventLoop
        self.ports: list[int] = []
        self._listeners: list[asyncio.AbstractServer] = []
        self._addresses: list[tuple[str, int]] = []

    async def listen(self, host: str, port: int) -> int:
        """Listens on one more port (0: a free one) and returns it."""
        self.loop = asyncio.get_running_loop()
        # With its protocol named: otherwise asyncio leaves Nagle's algorithm on, and small writes wait for 40 ms.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError:
            sock.close()
            raise
        bound = int(sock.getsockname()[1])
        self._listeners.append(await self.loop.create_server(lambda: Connection(self), sock=sock, backlog=1024))
        self._addresses.append((host, bound))
        self.ports.append(bound)
        return bound

    @property
    def listening(self) -> bool:
        return bool(self._listeners)

    def stop_listening(self) -> None:
        """New connections are refused from now on."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def listen_again(self) -> None:
        """Undoes `stop_listening`, on the same ports."""
        addresses, self._addresses, self.ports = self._addresses, [], []
        for host, port in addresses:
            await self.listen(host, port)

    def kill(self) -> None:
        """What the end of a process looks like: no listener, every connection broken off."""
        self.ended = True
        self.stop_listening()
        for connection in list(self.connections):
            connection.transport.abort()

    def close(self) -> None:
        """Stops listening and closes every connection after what was written to it."""
        self.ended = True
        self.stop_listening()
        for connection in list(self.connections):
            connection.transport.close()


def _date() -> str:
    return formatdate(time.time(), usegmt=True)
