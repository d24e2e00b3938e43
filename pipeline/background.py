"""Tasks that must outlive their client: KV transfers that have to finish, aborts that have to be sent.

The application owns them and waits for them at shutdown; nothing else in the house detaches a task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Background:
    """The application's own tasks."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Starts `work` at once, synchronously: a caller that is being cancelled can still do it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task %s failed", task.get_name(), exc_info=error)

    async def drain(self, timeout_s: float) -> None:
        """Waits for all, those that begin meanwhile too; then cancels what is left after `timeout_s` seconds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while self._tasks and (left_s := until - loop.time()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left_s)
        # Cancelled before its first step, a task would never reach its `finally`.
        await asyncio.sleep(0)
        left = set(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
