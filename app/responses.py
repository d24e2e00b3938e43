"""The client's side of one answer: `ClientWatch` notices that the client has left, `EventStream` writes the stream.

Written for `app.http_protocol`: its `send` waits only while the transport's buffer is full and raises when the client
is gone, its `receive` waits for the client. Both coroutines are driven by hand: a chunk is on its way to the socket
when `write` returns, without a task or a future, and a task is made only when the server really has to wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Protocol

import orjson

from pipeline.context import Flow
from pipeline.ticker import Ticker
from protocols.errors import ClientGone, GatewayError

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
Headers = list[tuple[bytes, bytes]]

PING = b": ping\n"
"""A comment and one newline: a blank line after it would be an event to some clients."""


class ClientWatch:
    """Calls `gone` once when the client disconnects, until `stop`. The request's body must have been read."""

    def __init__(self, receive: Receive, gone: Callable[[], None]) -> None:
        self._receive = receive
        self._gone: Callable[[], None] | None = gone
        self._step: Coroutine[Any, Any, Message] | None = None
        self._listen()

    def _listen(self) -> None:
        self._step = self._receive()  # type: ignore[assignment]
        self._advance()

    def _advance(self, _: object = None) -> None:
        step = self._step
        if step is None or self._gone is None:
            return
        try:
            waiting: Any = step.send(None)
        except StopIteration as stop:
            self._step = None
            self._received(stop.value)
            return
        waiting._asyncio_future_blocking = False
        waiting.add_done_callback(self._advance)

    def _received(self, message: Message) -> None:
        if message["type"] != "http.disconnect":
            self._listen()
            return
        gone, self._gone = self._gone, None
        if gone is not None:
            gone()

    def stop(self) -> None:
        self._gone = None
        step, self._step = self._step, None
        if step is not None:
            step.close()


class StreamLimits(Protocol):
    """Seconds; see `app.settings.ServerSettings`."""

    first_byte_hold_s: float
    ping_interval_s: float


class EventStream:
    """A Server-Sent Events response, held back until its first bytes.

    Until then the status is still open (`started` is False) and a failure keeps its own; after `first_byte_hold_s` the
    200 is committed and the stream kept alive by comments. A client that reads too slowly pauses `flow`. `drop` is
    called when the client turns out to be gone; for how long it may take nothing is the connection's affair.
    """

    def __init__(
        self,
        send: Send,
        *,
        headers: Callable[[], Headers],
        flow: Flow,
        ticker: Ticker,
        limits: StreamLimits,
        drop: Callable[[], None],
    ) -> None:
        self._send = send
        self._headers = headers
        self._flow = flow
        self._ticker = ticker
        self._limits = limits
        self._drop = drop
        self._pending: list[Message] = []
        self._waiting: asyncio.Task[None] | None = None
        self.started = False
        self._wrote = False
        """Since the last tick; the clock is not asked for every token."""
        self._complete = False
        """The last message is on its way."""
        self._ended = False
        self._opened_at = self._wrote_at = time.monotonic()
        ticker.add(self)

    def write(self, data: bytes) -> None:
        """Whole events. On the wire, or joined to what waits, when this returns."""
        if not self._ended:
            self._put({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, tail: bytes = b"") -> None:
        """`tail` is the last that comes: returns when the server has taken everything, or the client is gone."""
        if self._ended:
            return
        self._complete = True
        self._put({"type": "http.response.body", "body": tail, "more_body": False})
        while self._waiting is not None:
            await asyncio.wait([self._waiting])
        self.close()

    def _put(self, message: Message) -> None:
        if not self.started:
            self._start()
        if not self._ended:
            self._push(message)

    def close(self) -> None:
        """Detaches: no write, ping or timeout after this."""
        self._ended = True
        self._ticker.discard(self)
        self._pending.clear()
        if self._waiting is not None:
            self._waiting.cancel()

    def tick(self, now: float) -> None:
        if self._waiting is not None:
            return
        if not self.started:
            if now - self._opened_at > self._limits.first_byte_hold_s:
                self._start()
                # A head waits for its body's first piece, be it empty.
                self._push({"type": "http.response.body", "body": b"", "more_body": True})
                self._wrote_at = now
        elif self._wrote:
            self._wrote = False
            self._wrote_at = now
        elif now - self._wrote_at > self._limits.ping_interval_s and not self._complete:
            self._wrote_at = now
            self._push({"type": "http.response.body", "body": PING, "more_body": True})

    def _start(self) -> None:
        self.started = True
        self._push({"type": "http.response.start", "status": 200, "headers": self._headers()})

    def _push(self, message: Message) -> None:
        """Drives `send` up to where it would wait; the rest of it becomes a task."""
        if self._waiting is not None:
            self._pending.append(message)
            return
        self._wrote = True
        step: Any = self._send(message)
        try:
            waiting = step.send(None)
        except StopIteration:
            return
        except ClientGone:
            self._gone()
            return
        self._flow.pause()
        self._waiting = asyncio.get_running_loop().create_task(self._finish(step, waiting))
        self._waiting.add_done_callback(self._written)

    async def _finish(self, step: Any, waiting: Any) -> None:
        """The server asked to wait: completes that `send`, then sends what has joined meanwhile."""
        while True:
            if waiting is None:
                await asyncio.sleep(0)
            else:
                waiting._asyncio_future_blocking = False
                await asyncio.wait([waiting])
            try:
                waiting = step.send(None)
            except StopIteration:
                break
        while self._pending:
            await self._send(self._joined())

    def _written(self, task: asyncio.Task[None]) -> None:
        self._waiting = None
        if task.cancelled() or self._ended:
            return
        if task.exception() is not None:
            self._gone()
        elif self._pending:
            self._push(self._joined())
        if self._waiting is None:
            self._flow.resume()

    def _gone(self) -> None:
        """An exception from `send` means that the client has left."""
        self.close()
        self._drop()

    def _joined(self) -> Message:
        """What has joined, as one message."""
        joined, self._pending = self._pending, []
        return {**joined[-1], "body": b"".join([message["body"] for message in joined])}


async def send_json(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """A whole JSON response."""
    own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": own + headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_error(send: Send, error: GatewayError, headers: Headers, *, status: int | None = None) -> None:
    """An error in OpenAI's envelope, with Retry-After where the error knows one. `headers` name the request's id."""
    if error.retry_after is not None:
        headers = [*headers, (b"retry-after", f"{max(1, round(error.retry_after))}".encode())]
    request_id = next((value for name, value in headers if name == b"x-request-id"), b"").decode()
    await send_json(send, status or error.status, orjson.dumps(error.envelope(request_id)), headers)


def error_event(error: GatewayError, request_id: str) -> bytes:
    """An error inside a stream whose 200 is out: the last event, after which nothing follows."""
    return b"data: " + orjson.dumps(error.envelope(request_id)) + b"\n\n"
