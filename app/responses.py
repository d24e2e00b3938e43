"""Answers on a turn: a whole JSON document, an error, or a stream of events."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Protocol

import orjson

from app.http_turn import Header, Turn
from pipeline.context import Flow
from pipeline.ticker import Ticker
from protocols.errors import ClientGone, GatewayError

Headers = list[Header]

PING = b": ping\n"
"""A comment and one newline: a blank line after it would be an event to some clients."""


class StreamLimits(Protocol):
    """Seconds; see `app.settings.ServerSettings`."""

    first_byte_hold_s: float
    ping_interval_s: float


class EventStream:
    """A Server-Sent Events response, held back until its first bytes.

    Until then the status is still open (`started` is False) and a failure keeps its own; after `first_byte_hold_s` the
    200 is committed and the stream kept alive by comments. A client that reads too slowly pauses `flow`; for how long
    it may take nothing is the connection's affair.
    """

    def __init__(
        self, turn: Turn, *, headers: Callable[[], Headers], flow: Flow, ticker: Ticker, limits: StreamLimits
    ) -> None:
        self._turn = turn
        self._headers = headers
        self._flow = flow
        self._ticker = ticker
        self._limits = limits
        self.started = False
        self._wrote = False
        """Since the last tick; the clock is not asked for every token."""
        self._ended = False
        self._opened_at = self._wrote_at = time.monotonic()
        ticker.add(self)

    def write(self, data: bytes) -> None:
        """Whole events: with the transport when this returns. A client that is gone is no matter: its turn is told."""
        turn = self._turn
        if self._ended or turn.lost:
            return
        self._wrote = True
        if not self.started:
            self._start()
        turn.write(data, more=True)
        if turn.paused and not self._flow.paused:
            self._flow.pause()
            turn.when_writable(self._flow.resume)

    async def end(self, tail: bytes = b"") -> None:
        """`tail` is the last that comes; waits until the client has taken enough of what was before.

        Raises ClientGone when it has left.
        """
        if self._ended:
            return
        self._ended = True
        self._ticker.discard(self)
        if self._turn.paused:
            await self._turn.writable()
        if not self.started:
            self._start()
        self._turn.write(tail, more=False)

    def close(self) -> None:
        """Detaches: no write and no ping after this."""
        self._ended = True
        self._ticker.discard(self)

    def tick(self, now: float) -> None:
        if self._turn.paused:
            return
        if not self.started:
            if now - self._opened_at > self._limits.first_byte_hold_s:
                # A head waits for its body's first piece, be it empty.
                self.write(b"")
        elif not self._wrote and now - self._wrote_at > self._limits.ping_interval_s:
            self.write(PING)
        if self._wrote:
            self._wrote = False
            self._wrote_at = now

    def _start(self) -> None:
        self.started = True
        self._turn.begin(200, self._headers())


async def send_json(turn: Turn, status: int, body: bytes, headers: Headers) -> None:
    """A whole JSON response. Raises ClientGone when the client has left."""
    await turn.writable()
    turn.begin(status, [(b"content-type", b"application/json"), *headers], len(body))
    turn.write(body, more=False)


async def send_error(turn: Turn, error: GatewayError, headers: Headers, *, status: int | None = None) -> None:
    """An error in OpenAI's envelope, with Retry-After where the error knows one. `headers` name the request's id.

    A client that has left is not told.
    """
    if error.retry_after is not None:
        headers = [*headers, (b"retry-after", f"{max(1, round(error.retry_after))}".encode())]
    request_id = next((value for name, value in headers if name == b"x-request-id"), b"").decode()
    with contextlib.suppress(ClientGone):
        await send_json(turn, status or error.status, orjson.dumps(error.envelope(request_id)), headers)


def error_event(error: GatewayError, request_id: str) -> bytes:
    """An error inside a stream whose 200 is out: the last event, after which nothing follows."""
    return b"data: " + orjson.dumps(error.envelope(request_id)) + b"\n\n"
