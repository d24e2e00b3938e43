"""A worker made of scripts: it answers each request with exactly the bytes, cuts and closes that a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


class Peer:
    """One accepted connection, as the script sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> tuple[str, bytes]:
        """The next request: its head as text, and its body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = next((int(v.split(":")[1]) for v in head.split("\r\n") if v.lower().startswith("content-length")), 0)
        return head, await self.reader.readexactly(length)

    async def send(self, *parts: bytes) -> None:
        """Each part is a write of its own, and the loop turns between them."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def gone(self) -> None:
        """Until the other side has closed."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass


Script = Callable[[Peer], Awaitable[None]]


class WireServer:
    """`stop` closes the port; connections stay."""

    def __init__(self) -> None:
        self.url = ""
        self.stop: Callable[[], None] = lambda: None
        self.connections = 0
        self.heads: list[str] = []


@asynccontextmanager
async def wire_server(script: Script) -> AsyncIterator[WireServer]:
    """Runs `script` for every connection on a free loopback port; closes the connection when the script returns."""
    server = WireServer()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await script(Peer(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.stop = listener.close
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
