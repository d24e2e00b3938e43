"""One client connection: HTTP/1.1 and 1.0 in, and limits on what a client may cost.

In uvicorn's protocol's place, with uvicorn's server around it: it keeps the connections and tasks that a graceful
shutdown waits for, and the date. A `Turn` is one request and its answer. One timer per connection, not per request,
looks after what a client keeps waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, Protocol
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.server import ServerState

from app.http_turn import Turn
from protocols.errors import (
    BodyTooSlow,
    GatewayError,
    HeadersTooLarge,
    InvalidRequest,
    MethodNotAllowed,
    RequestLineTooLong,
)

log = logging.getLogger(__name__)

MAX_WAITING = 16
"""Requests that a client may have waiting behind the one that is answered; then it is read no further."""
LINGER_S = 2.0
"""How long a refused client may go on sending. Closing at once would reset what it has not read of the refusal."""


class Limits(Protocol):
    """See `app.settings.ServerSettings`."""

    keep_alive_s: float
    write_timeout_s: float
    request_timeout_s: float
    max_request_line_bytes: int
    max_header_bytes: int


class HttpProtocol(asyncio.Protocol):
    """One connection. Turns are answered one after the other, in the order of their requests."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        answer: Callable[[Turn], Coroutine[Any, Any, None]],
        limits: Limits,
    ) -> None:
        """Made by uvicorn's server but for the last two; `answer` answers one turn."""
        self.loop = _loop or asyncio.get_running_loop()
        self.state = server_state
        self.write_paused = False
        self.written = 0
        self._answer = answer
        self._limits = limits
        self._parser = self._new_parser()
        self._turn: Turn | None = None
        self._reading: Turn | None = None
        """The turn whose body is being read."""
        self._waiting: deque[Turn] = deque()
        self._last = False
        """No turn comes after the current ones."""
        self._deaf = False
        """Whatever comes is dropped."""
        self._read_paused = False
        self._writers: list[asyncio.Future[None]] = []
        self._refusal: GatewayError | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_size = 0
        """Bytes read of a head that is not complete; later, of trailers."""
        self._read_size = 0
        """Bytes in which the head that is being read lies."""
        self._in_head = False
        self._idle_since = self._stuck_since = self.loop.time()
        self._taken = 0
        """Bytes of what was written that the client had taken at the last look."""
        self._timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.server = _address(transport.get_extra_info("sockname"))
        self.client = _address(transport.get_extra_info("peername"))
        self.state.connections.add(self)  # type: ignore[arg-type]
        self._look_again()

    def connection_lost(self, exc: Exception | None) -> None:
        self.state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        for turn in (self._turn, *self._waiting):
            if turn is not None:
                turn.lose()
        self._waiting.clear()
        self._turn = self._reading = None
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._deaf or (self._last and self._reading is None):
            return
        self._read_size = self._head_size + len(data)
        while data:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_offer() + data[upgrade.args[0] :]
            except httptools.HttpParserError:
                self._refuse(self._refusal or InvalidRequest("Invalid HTTP request received."))
                return
        if self._in_head:
            # The parser tells of a header when it is complete.
            self._head_size += len(data)
            if self._head_size > self._limits.max_header_bytes + self._limits.max_request_line_bytes:
                self._refuse(self._headers_too_large())

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        writers, self._writers = self._writers, []
        for writer in writers:
            if not writer.done():
                writer.set_result(None)

    # ---- uvicorn's server

    def shutdown(self) -> None:
        """What has begun is answered, then the connection ends."""
        self._last = True
        self._waiting.clear()
        if self._turn is None:
            self.transport.close()
        else:
            self._turn.keep_alive = False

    # ---- httptools' callbacks

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._head_size = 0
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._limits.max_request_line_bytes:
            limit = self._limits.max_request_line_bytes
            self._give_up(
                RequestLineTooLong(
                    f"The request line exceeds the limit of {limit} bytes (server.max_request_line_bytes)."
                )
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self._headers.append((name.lower(), value))
        else:
            self._pass_over(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_size = 0
        # Most heads cannot be too large, since what was read is not.
        if self._read_size > self._limits.max_header_bytes:
            self._check_head_size()
        parser = self._parser
        if parser.should_upgrade():
            # Its body is not read on, and the request begins anew: see `_without_offer`.
            if parser.get_method() == b"CONNECT":
                self._give_up(MethodNotAllowed("CONNECT is not allowed: this is no proxy."))
            return
        if self._last:
            self._reading = None
            return
        target = self._target()
        path = target[0].decode("ascii")
        chunks = parser.get_http_version() != "1.0"
        keep_alive = chunks and parser.should_keep_alive()
        turn = self._reading = Turn(
            self,
            parser.get_method().decode("ascii"),
            unquote(path) if "%" in path else path,
            self._headers,
            chunks=chunks,
            keep_alive=keep_alive,
            target=target,
        )
        self._last = not keep_alive
        if self._turn is None:
            self._begin(turn)
            return
        self._waiting.append(turn)
        if len(self._waiting) >= MAX_WAITING:
            self.pause_reading()

    def on_body(self, body: bytes) -> None:
        if self._reading is not None:
            self._reading.take(body)

    def on_message_complete(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.take_end()

    def _target(self) -> tuple[bytes, bytes]:
        """Path and query. A proxy's client sends a whole URL; `*` is the server itself."""
        url = self._url
        if url[:1] != b"/" and url != b"*":
            try:
                parsed = httptools.parse_url(url)
            except httptools.HttpParserInvalidURLError:
                self._give_up(InvalidRequest("The request's target is neither a path nor a URL."))
            return parsed.path or b"/", parsed.query or b""
        path, _, query = url.partition(b"?")
        return path, query

    def _without_offer(self) -> bytes:
        """The head of a request that offered another protocol (h2c, say), as if it had not.

        httptools takes what follows such a head for that protocol, though the offer may be declined.
        """
        line = b"%b %b HTTP/1.1\r\n" % (self._parser.get_method(), self._url)
        self._parser = self._new_parser()
        kept = [b"%b: %b\r\n" % header for header in self._headers if header[0] != b"upgrade"]
        return line + b"".join(kept) + b"\r\n"

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # What follows a request that is the connection's last is passed over: it must not spoil its answer.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _give_up(self, refusal: GatewayError) -> NoReturn:
        """Stops the parser."""
        self._refusal = refusal
        raise refusal

    def _pass_over(self, name: bytes, value: bytes) -> None:
        """A trailer is no header. It counts as one."""
        self._head_size += len(name) + len(value) + 4
        if self._head_size > self._limits.max_header_bytes:
            self._give_up(self._headers_too_large())

    def _check_head_size(self) -> None:
        if sum(len(name) + len(value) + 4 for name, value in self._headers) > self._limits.max_header_bytes:
            self._give_up(self._headers_too_large())

    def _headers_too_large(self) -> GatewayError:
        limit = self._limits.max_header_bytes
        return HeadersTooLarge(f"The request's headers exceed the limit of {limit} bytes (server.max_header_bytes).")

    # ---- turns

    def _begin(self, turn: Turn) -> None:
        self._turn = turn
        task = turn.task = self.loop.create_task(turn.run(self._answer))
        self.state.tasks.add(task)

    def turn_over(self, turn: Turn) -> None:
        """The answer is with the transport."""
        self._turn = None
        self._idle_since = self.loop.time()
        if self.transport.is_closing():
            return
        if self._deaf:
            self.transport.write_eof()
        elif not turn.keep_alive:
            self.transport.close()
            return
        elif self._waiting:
            self._begin(self._waiting.popleft())
        self.resume_reading()

    def _refuse(self, error: GatewayError) -> None:
        """What is no request ends the connection.

        In the middle of another answer nothing can be said: it would be taken for a part of that answer.
        """
        self._deaf = True
        turn = self._turn
        if self._last and self._reading is None:
            return
        log.info("a connection was refused: %s", error.message)
        if turn is not None and (turn.started or turn is not self._reading):
            self.transport.close()
            return
        if turn is not None:
            turn.lose()
        Turn(self, "GET", "/", (), chunks=True, keep_alive=False).refuse(error)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(LINGER_S, self.transport.abort)

    # ---- flow

    def pause_reading(self) -> None:
        if not self._read_paused and not self.transport.is_closing():
            self._read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._read_paused and len(self._waiting) < MAX_WAITING and not self.transport.is_closing():
            self._read_paused = False
            self.transport.resume_reading()

    def writable(self) -> asyncio.Future[None]:
        """Done when the client has taken enough, or is gone."""
        writer: asyncio.Future[None] = self.loop.create_future()
        self._writers.append(writer)
        return writer

    # ---- time

    def _look(self) -> None:
        """Is the client gone, idle for too long, or taking nothing?"""
        now = self.loop.time()
        unsent = self.transport.get_write_buffer_size()
        taken = self.written - unsent
        if not unsent or taken != self._taken:
            self._taken, self._stuck_since = taken, now
        elif now - self._stuck_since >= self._limits.write_timeout_s:
            self.transport.abort()
            return
        if self._turn is None and not unsent and not self.transport.is_closing():
            self._look_at_idle(now - self._idle_since)
        if not self._deaf:
            self._look_again()

    def _look_at_idle(self, idle_s: float) -> None:
        limits = self._limits
        if not self._in_head:
            if idle_s >= limits.keep_alive_s:
                self.transport.close()
        elif idle_s >= limits.keep_alive_s + limits.request_timeout_s:
            self._refuse(BodyTooSlow(f"The request's head did not come within {limits.request_timeout_s:g} s."))

    def _look_again(self) -> None:
        """Soon enough to see a client that takes nothing, and in time for one that is idle."""
        limits = self._limits
        wait_s = min(limits.write_timeout_s / 4, limits.keep_alive_s)
        if self._turn is None:
            left_s = self._idle_since + limits.keep_alive_s - self.loop.time()
            wait_s = min(wait_s, max(left_s, 0.01))
        self._timer = self.loop.call_later(wait_s, self._look)


def _address(name: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """Host and port; None for a client that has already left."""
    return name[:2] if name else None
