"""One call's exchange with a worker: what its reader is handed, and what comes out of `wait`.

Whatever a reader or a sink raises is caught here, the connection is closed, and the exception comes out of `wait`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, Protocol

from protocols.errors import Enough, SinkFailed

P = ParamSpec("P")


def push(step: Callable[P, None], *what: P.args, **named: P.kwargs) -> None:
    """Calls a sink or a reader, whose errors say nothing about a worker: they come out as `Enough` or SinkFailed."""
    try:
        step(*what, **named)
    except (Enough, SinkFailed):
        raise
    except Exception as error:
        raise SinkFailed(str(error)) from error


class Reader(Protocol):
    """Takes one reply. Both are called from `data_received`: no await, no blocking."""

    def head(self, status: int) -> None: ...

    def data(self, data: bytes) -> None: ...


class Line(Protocol):
    """The connection under an exchange."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def reused(self) -> bool: ...

    def abort(self) -> None: ...

    def drain(self) -> None: ...

    def pause(self, on: bool) -> None: ...


class Exchange:
    """One call on its way: from the request's last byte written to the reply's last byte read.

    `status`: 0 until the head is there. `began_at`, `read_at`: loop times of the reply's first
    byte and of the last read; None before. `reused`: the connection came from the pool.
    """

    __slots__ = (
        "_connection",
        "_error",
        "_reader",
        "_waiter",
        "began_at",
        "finished",
        "read_at",
        "reused",
        "status",
    )

    def __init__(self, connection: Line, reader: Reader) -> None:
        self.reused = connection.reused
        self._connection: Line | None = connection
        self._reader: Reader | None = reader
        self._waiter: asyncio.Future[BaseException | None] | None = None
        self._error: BaseException | None = None
        self.finished = False
        self.status = 0
        self.began_at: float | None = None
        self.read_at: float | None = None

    async def wait(self) -> None:
        """Returns when the reply is complete; raises what ended it. Cancelling it leaves the exchange running."""
        if not self.finished:
            assert self._connection is not None, "an exchange without connection is finished"
            self._waiter = self._connection.loop.create_future()
            interruption = await self._waiter
            if interruption is not None and not self.finished:
                raise interruption
        if self._error is not None:
            raise self._error

    def interrupt(self, error: BaseException) -> None:
        """Raises `error` in whoever waits; the exchange runs on, as after a cancel. Nobody waits: nothing happens."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(error)

    def finish(self) -> None:
        """The reader has all it wants: the exchange is complete, what is left of the reply is read and dropped."""
        self._end(None)
        if self._connection is not None:
            self._connection.drain()
            self._connection = None

    def fail(self, error: BaseException) -> None:
        """Ends the exchange by `error`, in this same step: the reader is never called again."""
        self._end(error)
        self.close()

    def close(self) -> None:
        """Closes the connection if the reply is not complete. Idempotent."""
        self._reader = None
        if not self.finished:
            self._end(None)
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def pause(self) -> None:
        if self._connection is not None:
            self._connection.pause(True)

    def resume(self) -> None:
        if self._connection is not None:
            self._connection.pause(False)

    def _end(self, error: BaseException | None) -> None:
        self._reader = None
        if self.finished:
            return
        self.finished = True
        self._error = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- called by the connection

    def head(self, status: int) -> None:
        self.status = status
        if self._reader is not None:
            self._push(self._reader.head, status)

    def body(self, data: bytes) -> None:
        if self._reader is not None:
            self._push(self._reader.data, data)

    def _push(self, step: Callable[..., None], *what: object) -> None:
        try:
            push(step, *what)
        except (Enough, SinkFailed) as ended:
            self.fail(ended)

    def complete(self) -> None:
        self._connection = None
        self._end(None)

    def lost(self, error: BaseException) -> None:
        self._connection = None
        self._end(error)
