"""A worker client whose calls wait before a door until a test opens, and whose exchanges a test can watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from engines.base import Call
from protocols.worker import Worker
from tests.pipeline.scripted import PATIENCE_S, ScriptedWorker
from workers.client import WorkerClient
from workers.exchange import Exchange, Reader


class Door:
    """Stands before a worker: who would send a call there waits until the test opens."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._knocked = asyncio.Event()

    async def passed(self) -> None:
        self._knocked.set()
        await self._open.wait()

    async def knock(self) -> None:
        """Until somebody stands before it."""
        async with asyncio.timeout(PATIENCE_S):
            await self._knocked.wait()

    def open(self) -> None:
        self._open.set()


class DoorClient(WorkerClient):
    """The worker client, with doors and with a look at each worker's last exchange."""

    def __init__(self) -> None:
        super().__init__(connect_timeout_s=1.0)
        self._doors: dict[str, Door] = {}
        self._last: dict[str, Exchange] = {}

    def shut(self, worker: ScriptedWorker | Worker) -> Door:
        url = worker.url if isinstance(worker, Worker) else worker.worker.url
        door = self._doors[url] = Door()
        return door

    async def send(self, url: str, call: Call, reader: Reader, **more: Any) -> Exchange:
        if url in self._doors:
            await self._doors[url].passed()
        exchange = self._last[url] = await super().send(url, call, reader, **more)
        return exchange

    def has_heard(self, url: str) -> bool:
        """Was anything read of the last reply from there?"""
        return url in self._last and self._last[url].began_at is not None

    def look_away(self, url: str) -> None:
        """From now on nothing is read of the last reply from there, until somebody wants it."""
        self._last[url].pause()

    def is_over(self, url: str) -> bool:
        """Has the last reply from there ended, whether or not anybody knows it yet?"""
        return url in self._last and self._last[url].finished

    async def heard(self, worker: ScriptedWorker) -> None:
        """Until something of the worker's last reply was read."""
        await settled(lambda: self._last[worker.worker.url].began_at is not None)

    async def answered(self, worker: ScriptedWorker) -> None:
        """Until the head of the worker's last reply was read."""
        await settled(lambda: self._last[worker.worker.url].status != 0)


async def settled(true: Callable[[], bool]) -> None:
    """Turns the loop until `true()` holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0)
