"""uvicorn's server, which listens, keeps the date, and shuts down gracefully, without signal handlers of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import uvicorn


class Server(uvicorn.Server):
    """The gateway's owner decides when to stop, not a signal handler of uvicorn's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
