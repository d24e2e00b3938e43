"""Drives a model on the event loop: one timer while there is work, none while there is not."""

from __future__ import annotations

import asyncio

from simulator.model import EngineModel


class Runner:
    """Calls `model.advance()` when it is due. `stop()` ends it for good."""

    def __init__(self, model: EngineModel, loop: asyncio.AbstractEventLoop) -> None:
        self._model = model
        self._loop = loop
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._at: float | None = None
        self._running = False
        self._stopped = False
        model.wake = self.wake

    def wake(self) -> None:
        """Looks again when the model is due; called by the model itself."""
        if self._running or self._stopped:
            return
        due = self._model.due()
        if self._timer is not None:
            if due is not None and self._at is not None and self._at <= due:
                return
            self._timer.cancel()
            self._timer = None
        if due is None:
            return
        self._at = due
        now = self._loop.time()
        self._timer = self._loop.call_at(due, self._advance) if due > now else self._loop.call_soon(self._advance)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _advance(self) -> None:
        self._timer = None
        self._running = True
        try:
            self._model.advance()
        finally:
            self._running = False
        self.wake()
