"""One request on a client's connection, and its answer.

An answer's head leaves together with the first bytes of its body, in one write; each later piece is one write. What is
answered often talks to a `Turn` directly: no message, coroutine or task stands between a token and its socket. Any ASGI
application answers by `serve`.
"""

from __future__ import annotations

import asyncio
import http
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any, Protocol

import orjson
from uvicorn.server import ServerState

from app.api.identity import request_id_of
from protocols.errors import ClientGone, GatewayError, InternalError

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

MAX_HELD_BODY = 64 * 1024
"""Bytes of a body that nobody has asked for yet; then the connection is read no further."""

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus
} | {529: b"HTTP/1.1 529 Overloaded\r\n"}
_DISCONNECT: Message = {"type": "http.disconnect"}


class Connection(Protocol):
    """What a turn needs of its connection. `written`: bytes handed to the transport so far."""

    server: tuple[Any, ...] | None
    client: tuple[Any, ...] | None
    loop: asyncio.AbstractEventLoop
    state: ServerState
    transport: asyncio.Transport
    write_paused: bool
    written: int

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def writable(self) -> asyncio.Future[None]: ...

    def turn_over(self, turn: Turn, /) -> None: ...


class Turn:
    """One request and its answer. `headers`: by lower-case names, raw values. `task` runs the answer."""

    __slots__ = (
        "_asked",
        "_chunks",
        "_complete",
        "_connection",
        "_gone",
        "_head",
        "_left",
        "_more",
        "_parts",
        "_silent",
        "_size",
        "_target",
        "_told",
        "_waiter",
        "headers",
        "keep_alive",
        "lost",
        "method",
        "path",
        "started",
        "task",
    )

    def __init__(
        self,
        connection: Connection,
        method: str,
        path: str,
        headers: Sequence[Header],
        *,
        chunks: bool,
        keep_alive: bool,
        target: tuple[bytes, bytes] = (b"", b""),
    ) -> None:
        """`chunks`: the client knows chunked bodies (HTTP/1.1). `target`: the path as it was sent, and the query."""
        self.method = method
        self.path = path
        self.headers = headers
        self.keep_alive = keep_alive
        self.task: asyncio.Task[None] | None = None
        self.started = False
        """Something of the answer is with the transport."""
        self.lost = False
        """The client is gone."""
        self._connection = connection
        self._target = target
        self._gone: Callable[[], None] | None = None
        # The request.
        self._parts: list[bytes] = []
        self._size = 0
        self._more = True
        self._told = False
        self._asked = False
        self._waiter: asyncio.Future[None] | None = None
        # The answer.
        self._head: bytes | None = None
        self._chunks = chunks
        self._silent = False
        self._left: int | None = None
        self._complete = False

    # ---- the request's body, from the connection

    def take(self, body: bytes) -> None:
        if self._complete or self.lost:
            return
        self._parts.append(body)
        self._size += len(body)
        if self._size > MAX_HELD_BODY:
            self._connection.pause_reading()
        self._wake()

    def take_end(self) -> None:
        self._more = False
        self._wake()

    def lose(self) -> None:
        """The client is gone."""
        self.lost = True
        self._wake()
        if self._gone is not None:
            self._gone()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- the request

    async def run(self, answer: Callable[[Turn], Awaitable[None]]) -> None:
        try:
            await answer(self)
            if not self._complete and not self.lost:
                raise RuntimeError("a request was not answered")
        except ClientGone:
            """Nobody is left to be told."""
        except Exception as error:
            log.error("a request failed by our own fault", exc_info=error)
            if not self.started and not self.lost:
                self.refuse(InternalError(repr(error)))
        finally:
            self._connection.state.tasks.discard(self.task)
            if not self._complete:
                self._connection.transport.close()

    def watch(self, gone: Callable[[], None] | None) -> None:
        """From now on `gone` is called, once, when the client leaves; at once if it has. None: nobody is told."""
        self._gone = gone
        if self.lost and gone is not None:
            gone()

    def whole_body(self) -> bytes | None:
        """The body, where all of it is here; else it is to be had by `receive`."""
        if self._more or self._told or self.lost:
            return None
        self._told = True
        return self._joined()

    def _joined(self) -> bytes:
        parts, self._parts = self._parts, []
        self._size = 0
        self._connection.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # ---- ASGI

    async def serve(self, app: Asgi) -> None:
        """Has the request answered by an ASGI application."""
        raw_path, query = self._target
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1" if self._chunks else "1.0",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": self.headers,
            "server": self._connection.server,
            "client": self._connection.client,
        }
        await app(scope, self.receive, self.send)

    async def receive(self) -> Message:
        """The body as it comes, then, when the client is gone or has its answer, `http.disconnect`."""
        while True:
            if self.lost or self._complete:
                return _DISCONNECT
            if self._parts or (not self._more and not self._told):
                return self._taken()
            if self._more:
                self._ask_for_more()
            self._waiter = self._connection.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _taken(self) -> Message:
        self._told = not self._more
        return {"type": "http.request", "body": self._joined(), "more_body": self._more}

    def _ask_for_more(self) -> None:
        """Tells a client that waits to be told that its body is welcome."""
        if self._asked:
            return
        self._asked = True
        if not self._size and not self.started and self._awaits_continue():
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _awaits_continue(self) -> bool:
        return self._chunks and any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in self.headers
        )

    async def send(self, message: Message) -> None:
        """Waits only while the client does not take what it was sent. Raises ClientGone when it has left."""
        await self.writable()
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            length = next((int(value) for name, value in headers if name == b"content-length"), None)
            self.begin(message["status"], [header for header in headers if header[0] != b"content-length"], length)
        else:
            self.write(message.get("body", b""), more=message.get("more_body", False))

    # ---- the answer

    @property
    def paused(self) -> bool:
        """The client takes too little: what is written only piles up."""
        return self._connection.write_paused and not self.lost

    async def writable(self) -> None:
        """Until the client has taken enough of what it was sent. Raises ClientGone when it has left."""
        if self.paused:
            await self._connection.writable()
        if self.lost:
            raise ClientGone("the client left before its answer was complete")

    def when_writable(self, go_on: Callable[[], None]) -> None:
        """Calls `go_on` once the client has taken enough, or has left."""
        self._connection.writable().add_done_callback(lambda _: go_on())

    def begin(self, status: int, headers: Iterable[Header], length: int | None = None) -> None:
        """The answer's head; it leaves with the body's first piece. `length` of the body, in bytes, where it is known;
        no header says it.
        """
        self._head = self._made_head(status, headers, length)

    def write(self, body: bytes, *, more: bool) -> None:
        """One piece of the body, in one write; the head goes with the first. Not `more`: it was the last.

        Raises ClientGone when the client has left.
        """
        if self.lost:
            raise ClientGone("the client left before its answer was complete")
        self._write(body, more=more)

    def refuse(self, error: GatewayError) -> None:
        """The whole answer, by the connection itself."""
        request_id = request_id_of(self.headers)
        body = orjson.dumps(error.envelope(request_id.decode()))
        self.keep_alive = False
        self.begin(error.status, [(b"content-type", b"application/json"), (b"x-request-id", request_id)], len(body))
        self._write(body, more=False)

    def _made_head(self, status: int, headers: Iterable[Header], length: int | None) -> bytes:
        self._left = length
        lines = [_STATUS_LINES[status]]
        lines += [b"%b: %b\r\n" % header for header in self._connection.state.default_headers]
        lines += [b"%b: %b\r\n" % header for header in headers]
        if length is not None:
            lines.append(b"content-length: %d\r\n" % length)
        if status in (204, 304) or self.method == "HEAD":
            self._silent = True
        elif self._left is None:
            if self._chunks:
                lines.append(b"transfer-encoding: chunked\r\n")
            else:
                self.keep_alive = False
        if not self.keep_alive or (self._more and not self._asked and self._awaits_continue()):
            # A client that was not told to go on may or may not send its body: what comes next is anyone's guess.
            self.keep_alive = False
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
            raise ValueError("a response header holds a line break")
        return head + b"\r\n"

    def _write(self, body: bytes, *, more: bool) -> None:
        head, self._head = self._head, None
        if head is None and not self.started:
            raise RuntimeError("a response's body came before its head")
        if self._silent:
            body = b""
        elif self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("a response is not as long as its content-length says")
        elif self._chunks:
            if body:
                body = b"%x\r\n%b\r\n" % (len(body), body)
            if not more:
                body += b"0\r\n\r\n"
        data = body if head is None else head + body
        connection = self._connection
        self.started = True
        if data:
            connection.written += len(data)
            connection.transport.write(data)
        if not more:
            self._complete = True
            self._wake()
            connection.turn_over(self)
