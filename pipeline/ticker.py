"""One timer for all deadlines and keep-alives of the process: nothing here costs anything per token."""

from __future__ import annotations

import asyncio
from typing import Protocol

PERIOD_S = 0.25


class Watch(Protocol):
    """Something that looks at the clock now and then. Must not raise or block."""

    def tick(self, now: float) -> None: ...


class Ticker:
    """Calls every watch about four times a second, while there is any. Bound to the loop of the first `add`."""

    def __init__(self, period_s: float = PERIOD_S) -> None:
        self._period_s = period_s
        self._watches: dict[Watch, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._watches)

    def add(self, watch: Watch) -> None:
        self._watches[watch] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._period_s, self._tick)

    def discard(self, watch: Watch) -> None:
        self._watches.pop(watch, None)

    def tick(self, now: float) -> None:
        """Calls every watch that is still there when its turn comes. `now` in the loop's time."""
        for watch in list(self._watches):
            if watch in self._watches:
                watch.tick(now)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        try:
            self.tick(loop.time())
        finally:
            if self._watches and self._timer is None:
                self._timer = loop.call_later(self._period_s, self._tick)

    def close(self) -> None:
        self._watches.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
