"""A client's turn without a socket: what is written to it, how slow the client is, and when it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from uvicorn.server import ServerState

from app.http_turn import Turn


class Client:
    """A client, its connection, and one request of it. An HTTP/1.0 one: its answer's bytes are the body's own."""

    server = client = None

    def __init__(self, method: str = "POST", path: str = "/", headers: list[tuple[bytes, bytes]] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.state = ServerState()
        self.transport: Any = self
        self.writes: list[bytes] = []
        self.write_paused = False
        self.written = 0
        self.over = False
        self.turn = Turn(self, method, path, headers or [], chunks=False, keep_alive=False)
        self._waiting: list[asyncio.Future[None]] = []

    # ---- what it does

    def fill(self) -> None:
        """It takes no more."""
        self.write_paused = True

    async def drain(self) -> None:
        """It takes what was written, and whoever waited for that goes on."""
        self.write_paused = False
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.set_result(None)
        for _ in range(3):
            await asyncio.sleep(0)

    async def leave(self) -> None:
        self.turn.lose()
        await self.drain()

    # ---- what it got

    @property
    def head(self) -> bytes:
        return self.writes[0].partition(b"\r\n\r\n")[0]

    @property
    def status(self) -> int:
        return int(self.head.split()[1])

    @property
    def header_list(self) -> list[tuple[bytes, bytes]]:
        lines = [line.partition(b": ") for line in self.head.split(b"\r\n")[1:]]
        return [(name, value) for name, _, value in lines]

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.header_list)

    def bodies(self) -> list[bytes]:
        """The body's pieces, a write each."""
        first, *others = self.writes or [b""]
        return [first.partition(b"\r\n\r\n")[2], *others] if self.writes else []

    # ---- the turn's connection

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def writable(self) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiting.append(waiter)
        return waiter

    def turn_over(self, turn: Turn) -> None:
        self.over = True


class TurnTransport(httpx.AsyncBaseTransport):
    """Has httpx's requests answered without a connection."""

    def __init__(self, answer: Callable[[Turn], Awaitable[None]]) -> None:
        self._answer = answer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        client = Client(request.method, request.url.path, headers)
        client.turn.take(await request.aread())
        client.turn.take_end()
        await client.turn.run(self._answer)
        return httpx.Response(client.status, headers=client.header_list, content=b"".join(client.bodies()))
