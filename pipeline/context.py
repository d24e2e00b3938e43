"""What belongs to one request while it runs and never goes on the wire: ids, deadline, flow, migration state.

Nothing here needs a current task: on the way up there is none.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from engines.base import AttemptIds
from pipeline.background import Background
from protocols.errors import GatewayError, NoAvailableWorkers, Overloaded, WorkerBusy, WorkerMisconfigured
from protocols.worker import Leg
from routers.base import Choice
from telemetry.tracker import RequestTracker

_ROOM_SPAN = 2**63 - 2**40


def new_ids() -> AttemptIds:
    """Fresh ids for one attempt and leg (hard rule 6)."""
    return AttemptIds(name=f"{random.getrandbits(128):032x}", number=2**40 + random.getrandbits(63) % _ROOM_SPAN)


class Pausable(Protocol):
    """A running reply whose reading can be paused."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Flow:
    """Couples a client's pace to its decode replies: all choices, hedges and attempts of a request share one.

    A reply that joins while the flow is paused starts paused. Prefill replies never join.
    """

    __slots__ = ("_replies", "paused")

    def __init__(self) -> None:
        self.paused = False
        self._replies: list[Pausable] = []

    def __len__(self) -> int:
        """Replies under way."""
        return len(self._replies)

    def join(self, reply: Pausable) -> None:
        self._replies.append(reply)
        if self.paused:
            reply.pause()

    def leave(self, reply: Pausable) -> None:
        if reply in self._replies:
            self._replies.remove(reply)

    def pause(self) -> None:
        if not self.paused:
            self.paused = True
            for reply in self._replies:
                reply.pause()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            for reply in self._replies:
                reply.resume()


class Lifecycle(Protocol):
    """Something that follows one request across its attempts and must be told how it ends."""

    def abort(self, cause: BaseException | None) -> None: ...


class MigrationState:
    """What every attempt of one choice shares: which workers failed it, and why.

    Whoever sees a worker fail records it before the error is exposed; later attempts exclude the worker.
    """

    __slots__ = ("_excluded", "_last_error", "_lifecycle")

    def __init__(self) -> None:
        self._excluded: frozenset[int] = frozenset()
        self._last_error: GatewayError | None = None
        self._lifecycle: Lifecycle | None = None

    def record_failure(self, worker_id: int, error: GatewayError | None) -> None:
        if worker_id not in self._excluded:
            self._excluded |= {worker_id}
        self.record_error(error)

    def record_error(self, error: GatewayError | None) -> None:
        """An error that is nobody's fault: remembered, nobody excluded."""
        if error is not None:
            self._last_error = error

    def excluded_worker_ids(self) -> frozenset[int]:
        return self._excluded

    @property
    def last_error(self) -> GatewayError | None:
        return self._last_error

    def exhausted_error(self) -> GatewayError | None:
        """Which kind of nothing is left: all overloaded, or none untried. None when nothing failed yet.

        Workers that refuse what we send will not take it later either: that failure is told as it is.
        """
        if self._last_error is None or isinstance(self._last_error, WorkerMisconfigured):
            return self._last_error
        if isinstance(self._last_error, (WorkerBusy, Overloaded)):
            return Overloaded("all eligible workers rejected the request as overloaded")
        exhausted = NoAvailableWorkers(
            f"no untried eligible worker remains after migration; the last failure was: {self._last_error.message}"
        )
        exhausted.told = f"No worker is left to try. {self._last_error.told or ''}".rstrip()
        return exhausted

    def store_lifecycle(self, lifecycle: Lifecycle) -> Lifecycle | None:
        """Keeps it for the next attempt. Returns the unclaimed one that it replaces, if any."""
        replaced, self._lifecycle = self._lifecycle, lifecycle
        return replaced

    def take_lifecycle(self) -> Lifecycle | None:
        """Hands it out once."""
        taken, self._lifecycle = self._lifecycle, None
        return taken

    def abort_lifecycle(self, error: BaseException | None) -> None:
        """Ends it with the typed cause: the first GatewayError in the chain of causes, else the error itself."""
        lifecycle = self.take_lifecycle()
        if lifecycle is not None:
            lifecycle.abort(typed_cause(error))


def typed_cause(error: BaseException | None) -> BaseException | None:
    cause = error
    while cause is not None:
        if isinstance(cause, GatewayError):
            return cause
        cause = cause.__cause__
    return error


class RequestContext:
    """One request, or one choice of it (`child`), on its way down and up.

    `deadline`: in the clock's seconds, None for none. `choices`: what the router picked, in order, per attempt and leg.
    `outlives`: the work is for nobody any more, see `released`. `trace`: headers that tell workers of its trace.
    """

    __slots__ = (
        "background",
        "choices",
        "clock",
        "deadline",
        "flow",
        "index",
        "migration",
        "model",
        "outlives",
        "request_id",
        "trace",
        "tracker",
    )

    def __init__(
        self,
        request_id: str,
        model: str,
        *,
        clock: Callable[[], float],
        background: Background,
        tracker: RequestTracker,
        deadline: float | None = None,
        flow: Flow | None = None,
        index: int = 0,
        trace: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.request_id = request_id
        self.model = model
        self.clock = clock
        self.background = background
        self.tracker = tracker
        self.deadline = deadline
        self.flow = flow if flow is not None else Flow()
        self.index = index
        self.trace = trace
        self.outlives = False
        self.migration = MigrationState()
        self.choices: list[tuple[Leg, Choice]] = []

    def child(self, index: int) -> RequestContext:
        """One choice's context: own migration state, shared deadline, flow and explanation."""
        child = RequestContext(
            self.request_id,
            self.model,
            clock=self.clock,
            background=self.background,
            tracker=self.tracker,
            deadline=self.deadline,
            flow=self.flow,
            index=index,
            trace=self.trace,
        )
        child.choices = self.choices
        return child

    def released(self) -> RequestContext:
        """For work that outlives its client: the same request, with a flow that nobody pauses and no deadline."""
        context = self.child(self.index)
        context.flow = Flow()
        context.deadline = None
        context.outlives = True
        context.choices = []
        return context
