"""A worker whose every reply a test writes by hand, byte by byte if it likes, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson

from protocols.worker import Worker
from tests.workers.wire_server import Peer, wire_server

PATIENCE_S = 10.0
"""How long a test waits for what must come: a failure then, not a hang."""


class ScriptedCall:
    """One request that the worker received, and what the test answers."""

    def __init__(self, peer: Peer, head: str, body: bytes) -> None:
        self._peer = peer
        self.path = head.split(" ", 2)[1]
        self.headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:])
        }
        self.body = body
        self.over = asyncio.Event()
        self.closing = False

    def json(self) -> Any:
        return orjson.loads(self.body)

    # ---- answers

    async def reply(self, status: int, document: Any) -> None:
        """A whole reply; the connection stays."""
        body = document if isinstance(document, bytes) else orjson.dumps(document)
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        await self.raw(head.encode() + body)
        self.over.set()

    def halves(self, document: Any) -> tuple[bytes, bytes]:
        """A whole reply in two parts, for `raw`; then say `over.set()`. The first has the head and half the body."""
        body = orjson.dumps(document)
        half = len(body) // 2
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        return head.encode() + body[:half], body[half:]

    async def begin_reply(self, document: Any) -> bytes:
        """Sends the first half. Gives the second."""
        first, second = self.halves(document)
        await self.raw(first)
        return second

    async def stream(self, *parts: bytes) -> None:
        """The head of a stream, with what is sent along in the same write."""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        await self.raw(head + b"".join(map(_chunk, parts)))

    async def send(self, *parts: bytes) -> None:
        """More of a stream, in one write."""
        await self.raw(b"".join(map(_chunk, parts)))

    async def end(self, *parts: bytes) -> None:
        """The rest of a stream and its end; the connection stays."""
        await self.raw(b"".join(map(_chunk, parts)) + b"0\r\n\r\n")
        self.over.set()

    async def raw(self, data: bytes) -> None:
        await self._peer.send(data)

    def cut(self) -> None:
        """The connection ends here, in good order."""
        self.closing = True
        self.over.set()

    def reset(self) -> None:
        """The connection breaks here."""
        self._peer.writer.transport.abort()
        self.cut()

    async def gone(self) -> None:
        """Until the gateway has closed the connection."""
        async with asyncio.timeout(PATIENCE_S):
            await self._peer.gone()
        self.cut()

    def still_there(self) -> bool:
        """Has the gateway not closed the connection?"""
        return not self._peer.reader.at_eof()


class ScriptedWorker:
    """Where the calls arrive. Aborts it answers by itself, and keeps what they said."""

    def __init__(self) -> None:
        self.worker: Worker
        self._calls: asyncio.Queue[ScriptedCall] = asyncio.Queue()
        self.paths: list[str] = []
        self.aborts: list[Any] = []
        self.stop_listening: Callable[[], None] = lambda: None

    @property
    def id(self) -> int:
        return self.worker.id

    async def call(self) -> ScriptedCall:
        """The next call that comes."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._calls.get()

    @property
    def idle(self) -> bool:
        """No call waits to be taken by the test."""
        return self._calls.empty()

    async def serve(self, peer: Peer) -> None:
        while True:
            call = ScriptedCall(peer, *await peer.request())
            if "abort" in call.path:
                self.aborts.append(call.json())
                await call.reply(200, {})
                continue
            self.paths.append(call.path)
            self._calls.put_nowait(call)
            await call.over.wait()
            if call.closing:
                return


@asynccontextmanager
async def scripted_worker() -> AsyncIterator[tuple[ScriptedWorker, str]]:
    """A worker and its URL."""
    scripted = ScriptedWorker()
    async with wire_server(scripted.serve) as server:
        scripted.stop_listening = server.stop
        yield scripted, server.url


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
