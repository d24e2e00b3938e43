"""The HTTP/1.1 client toward workers: pooled raw connections, replies pushed to a callback as they are read.

Between a worker's bytes and the callback there is no queue, no future and no task switch: `data_received` runs the
HTTP parser and, after it has returned, hands the body bytes of this one read to the call's `Exchange`.
"""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import urlsplit

import httptools

from engines.base import Call
from protocols.errors import CannotConnect, Disconnected, ProtocolViolation
from workers.exchange import Exchange, Reader

MAX_HEAD_BYTES = 64 * 1024
MAX_IDLE_S = 4.0
"""Stock workers close idle connections after 5 s (uvicorn's default): ours must be gone before."""
DRAIN_S = 1.0
_FRAMING = (b"content-length", b"transfer-encoding")
"""Headers that say where a reply ends; without them it ends with its connection."""


class _Connection(asyncio.Protocol):
    """One connection to a worker, in a pool while it has no exchange."""

    __slots__ = (
        "_bytes_before_head",
        "_draining",
        "_framed",
        "_head_done",
        "_head_new",
        "_head_size",
        "_interim",
        "_keep_alive",
        "_message_done",
        "_parser",
        "_parts",
        "_paused",
        "_pool",
        "_status",
        "_until_close",
        "exchange",
        "idle_since",
        "loop",
        "reused",
        "transport",
    )

    def __init__(self, pool: _Pool, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self.loop = loop
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.idle_since = 0.0
        self.reused = False
        self._paused = False
        self._draining: asyncio.TimerHandle | None = None
        # One for all replies: it begins anew after each that leaves the connection open.
        self._parser = httptools.HttpResponseParser(self)

    # ---- the call's side

    def start(self, request: bytes, reader: Reader) -> Exchange:
        """Writes the request; the reply goes to `reader`."""
        self._head_size = self._bytes_before_head = self._status = 0
        self._head_done = self._head_new = self._interim = self._message_done = self._until_close = False
        self._framed = self._keep_alive = False
        self._parts: list[bytes] = []
        self.exchange = Exchange(self, reader)
        assert self.transport is not None
        self.transport.write(request)
        return self.exchange

    def abort(self) -> None:
        self.exchange = None
        if self.transport is not None:
            self.transport.abort()

    def drain(self) -> None:
        """Nobody reads on; the rest of the reply may still make the connection reusable."""
        self.exchange = None
        self.pause(False)
        if not self._message_done:
            self._draining = self.loop.call_later(DRAIN_S, self.abort)

    def pause(self, on: bool) -> None:
        transport = self.transport
        if transport is None or on is self._paused or transport.is_closing():
            return
        self._paused = on
        if on:
            transport.pause_reading()
        else:
            transport.resume_reading()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None and self._draining is None:
            self.abort()
            return
        if exchange is not None:
            now = self.loop.time()
            exchange.read_at = now
            if exchange.began_at is None:
                exchange.began_at = now
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._violation(f"the worker's reply is not HTTP: {error}")
            return
        if not self._head_done:
            self._bytes_before_head += len(data)
            if self._bytes_before_head > MAX_HEAD_BYTES:
                self._violation(f"the head of the worker's reply exceeds {MAX_HEAD_BYTES} bytes")
                return
        if self._head_new:
            self._head_new = False
            if exchange is not None:
                exchange.head(self._status)
        if self._parts:
            parts, self._parts = self._parts, []
            if exchange is not None:
                exchange.body(parts[0] if len(parts) == 1 else b"".join(parts))
        if self._message_done:
            self._reply_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)
        self._stop_draining()
        exchange, self.exchange, self.transport = self.exchange, None, None
        if exchange is None:
            return
        if self._until_close and exc is None:
            exchange.complete()
            return
        exchange.lost(self._lost_error(exc))

    def _lost_error(self, exc: Exception | None) -> Disconnected:
        how = f" ({exc})" if exc is not None and str(exc) else ""
        return Disconnected(f"the worker closed the connection before its reply was complete{how}")

    def _violation(self, message: str) -> None:
        exchange = self.exchange
        if exchange is not None:
            exchange.fail(ProtocolViolation(message))
        else:
            self.abort()

    def _reply_complete(self) -> None:
        exchange, self.exchange = self.exchange, None
        self._stop_draining()
        transport = self.transport
        assert transport is not None
        if self._keep_alive and not transport.is_closing() and not transport.get_write_buffer_size():
            self.pause(False)
            self._pool.put(self)
        else:
            transport.abort()
        if exchange is not None:
            exchange.complete()

    def _stop_draining(self) -> None:
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None

    # ---- httptools' callbacks

    def on_message_begin(self) -> None:
        if self._message_done:
            self._keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        if self._head_size > MAX_HEAD_BYTES:
            raise ValueError(f"the head exceeds {MAX_HEAD_BYTES} bytes")
        if name.lower() in _FRAMING:
            self._framed = True

    def on_headers_complete(self) -> None:
        if self._message_done:
            return
        self._status = status = self._parser.get_status_code()
        self._interim = 100 <= status < 200
        if self._interim:
            self._framed = False
            return
        self._head_done = True
        self._until_close = not self._framed and status not in (204, 304)
        self._head_new = True

    def on_body(self, body: bytes) -> None:
        if not self._message_done:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
            return
        if not self._message_done:
            self._message_done = True
            self._keep_alive = self._parser.should_keep_alive()


class _Pool:
    """The idle connections to one origin, most recently used last."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._idle: list[_Connection] = []
        self.open: set[_Connection] = set()

    def take(self) -> _Connection | None:
        oldest = self.loop.time() - MAX_IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since > oldest and connection.transport and not connection.transport.is_closing():
                connection.reused = True
                return connection
            connection.abort()
        return None

    def put(self, connection: _Connection) -> None:
        connection.idle_since = self.loop.time()
        self._idle.append(connection)

    @property
    def idle(self) -> int:
        return len(self._idle)

    def forget(self, connection: _Connection) -> None:
        self.open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        for connection in list(self.open):
            connection.abort()


class WorkerClient:
    """Sends calls to workers. One per event loop; `close` ends every connection."""

    def __init__(self, *, connect_timeout_s: float = 2.0, headers: dict[str, str] | None = None) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._pools: dict[str, _Pool] = {}
        self._origins: dict[str, _Origin] = {}
        self._keys: dict[str, str] = {}
        self._extra = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())

    def authorize(self, url: str, key: str) -> None:
        """From now on the worker at `url` is told this key."""
        self._keys[url] = key
        self._origins.pop(url, None)

    async def send(
        self,
        url: str,
        call: Call,
        reader: Reader,
        *,
        fresh: bool = False,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Exchange:
        """Sends one call to the worker at `url`. Raises CannotConnect when it cannot be reached.

        `headers`: beside the call's own. A pooled connection may turn out dead: `Exchange` then fails with Disconnected
        and no first byte; the caller sends once more with `fresh`.
        """
        origin = self._origins.get(url) or self._origins.setdefault(url, _Origin(url, self._keys.get(url)))
        request = origin.request(call, self._extra, headers)
        pool = self._pools.get(url) or self._pools.setdefault(url, _Pool(asyncio.get_running_loop()))
        connection = None if fresh else pool.take()
        if connection is None:
            connection = await self._connect(pool, origin)
        return connection.start(request, reader)

    async def _connect(self, pool: _Pool, origin: _Origin) -> _Connection:
        loop = pool.loop
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(pool, loop), origin.host, origin.port, ssl=origin.tls
                )
        except (OSError, TimeoutError) as error:
            said = str(error) or f"no connection within {self._connect_timeout_s:g} s"
            raise CannotConnect(f"cannot connect to the worker: {said}") from error
        pool.open.add(connection)
        return connection

    def forget(self, url: str) -> None:
        """The worker is gone: closes its idle connections."""
        pool = self._pools.pop(url, None)
        self._origins.pop(url, None)
        if pool is not None:
            while (connection := pool.take()) is not None:
                connection.abort()

    def open_connections(self) -> int:
        return sum(len(pool.open) for pool in self._pools.values())

    def idle_connections(self) -> int:
        return sum(pool.idle for pool in self._pools.values())

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


class _Origin:
    """A worker's URL, taken apart once, and the key to it."""

    __slots__ = ("_heads", "authorization", "base", "host", "host_header", "port", "tls")

    def __init__(self, url: str, key: str | None) -> None:
        self.authorization = f"authorization: Bearer {key}\r\n" if key is not None else ""
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if secure else 80)
        self.base = parts.path.rstrip("/")
        self.tls = ssl.create_default_context() if secure else None
        host = f"[{self.host}]" if ":" in self.host else self.host
        self._heads: dict[tuple[str, str, str], bytes] = {}
        self.host_header = host if parts.port is None else f"{host}:{parts.port}"

    def request(self, call: Call, extra: str, headers: tuple[tuple[str, str], ...]) -> bytes:
        kind = call.method, call.path, call.content_type
        head = self._heads.get(kind) or self._heads.setdefault(kind, self._head(*kind, extra))
        lines = "".join([f"{name}: {value}\r\n" for name, value in (*call.headers, *headers)]).encode("latin-1")
        return b"%bcontent-length: %d\r\n%b\r\n%b" % (head, len(call.body), lines, call.body)

    def _head(self, method: str, path: str, content_type: str, extra: str) -> bytes:
        """What all calls of a kind begin with. There are as many kinds as an adapter has routes."""
        return (
            f"{method} {self.base}{path} HTTP/1.1\r\nhost: {self.host_header}\r\n"
            f"content-type: {content_type}\r\n{extra}{self.authorization}"
        ).encode("latin-1")
