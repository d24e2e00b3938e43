"""One request at a POST endpoint, from its connection to its answer: what all of them do alike.

No framework stands between an answer and its socket. The request's own task does the work; the client's leaving cancels
it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from app.api.identity import PROCESSING_MS, request_id_of
from app.api.trace import trace_of
from app.http_turn import Turn
from app.responses import Headers, send_error
from pipeline.context import RequestContext
from protocols.errors import (
    BodyTooSlow,
    ClientGone,
    GatewayError,
    InternalError,
    NoAvailableWorkers,
    Overloaded,
    SinkFailed,
    Unavailable,
)
from protocols.model_card import ModelCard
from protocols.preprocessed import RoutingHints
from routers.explain import EXPLAIN_HEADER, explanation, explanation_headers, explanation_wanted
from routers.hints import HINT_HEADERS, read_hints
from telemetry.record import RequestRecord

if TYPE_CHECKING:
    from app.gateway import Gateway

log = logging.getLogger(__name__)

T = TypeVar("T")


class Endpoint:
    """A POST endpoint. `call` makes what answers one request."""

    def __init__(self, gateway: Gateway, call: Callable[[Gateway, Turn], Call]) -> None:
        self._gateway = gateway
        self._call = call

    def __call__(self, turn: Turn) -> Coroutine[Any, Any, None]:
        return self._call(self._gateway, turn).run()


class Outcome(Protocol):
    """Told how a request ended, and then, once, that it has."""

    def succeeded(self) -> None: ...
    def failed(self, error: GatewayError, /) -> None: ...
    def cancelled(self) -> None: ...
    def ended(self) -> None: ...


class Call(ABC):
    """One request. A subclass says how it is answered, and who is told of its outcome."""

    record: Outcome

    def __init__(self, gateway: Gateway, turn: Turn) -> None:
        self._gateway = gateway
        self._turn = turn
        self._began_at = time.monotonic()
        self._named = dict(turn.headers)
        """The headers by name: tells quickly what is not there. Of repeated ones the last."""
        self._request_id = request_id_of(turn.headers if b"x-request-id" in self._named else ())
        self._client_gone = False

    @abstractmethod
    async def _answer(self) -> None:
        """Reads the request and answers it. Raises GatewayError for what the client is to be told instead."""

    async def run(self) -> None:
        """Answers the request, whatever happens; returns when nothing of it is left."""
        bodies = self._gateway.bodies
        try:
            bodies.enter()
        except Overloaded as error:
            await self.refuse(error)
            return
        try:
            failure = await self._outcome()
            if failure is not None:
                self.record.failed(failure)
                await self._tell(failure)
        except ClientGone:
            self.record.cancelled()
        except asyncio.CancelledError:
            if not self._client_gone:
                raise
            self._forgive_cancel()
            self.record.cancelled()
        finally:
            bodies.leave()
            self._close()
            self.record.ended()

    async def _outcome(self) -> GatewayError | None:
        """Runs the request. The failure to tell the client of, or None when it was answered."""
        try:
            await self._answer()
        except GatewayError as error:
            return error
        except ClientGone:
            raise
        except SinkFailed as failed:
            cause = failed.__cause__
            return cause if isinstance(cause, GatewayError) else self._own_fault(cause or failed)
        except asyncio.CancelledError:
            if self._client_gone:
                raise
            # Only a shutdown that has waited long enough cancels requests.
            self._forgive_cancel()
            return Unavailable("The gateway is shutting down.")
        except Exception as error:
            return self._own_fault(error)
        self.record.succeeded()
        return None

    def _own_fault(self, error: BaseException) -> InternalError:
        log.error("request %s failed by our own fault", self._request_id.decode(), exc_info=error)
        return InternalError(repr(error))

    async def _tell(self, error: GatewayError) -> None:
        """Tells the client of a failure, if it is still there."""
        await self.refuse(error)

    async def refuse(self, error: GatewayError) -> None:
        await send_error(self._turn, error, self._answer_headers(), status=self._gateway.status_of(error))

    def _close(self) -> None:
        """For what a subclass has open."""
        return

    async def _body(self) -> bytes:
        """The request's whole body, within the gateway's limits."""
        turn, bodies = self._turn, self._gateway.bodies
        body = turn.whole_body()
        if body is not None:
            return bodies.checked(self._named, body)
        limit_s = self._gateway.settings.server.request_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await bodies.read(self._named, turn.receive)
        except TimeoutError as error:
            raise BodyTooSlow(f"The request's body did not come within {limit_s:g} s.") from error

    def _answer_headers(self) -> Headers:
        """What every answer carries, as known now."""
        elapsed_ms = (time.monotonic() - self._began_at) * 1000
        return [(b"x-request-id", self._request_id), (PROCESSING_MS, b"%d" % elapsed_ms)]

    # ---- the client's side

    async def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs the work; the client's leaving cancels it."""
        turn = self._turn
        turn.watch(self._leave)
        try:
            return await work
        finally:
            turn.watch(None)

    def _leave(self) -> None:
        """The client is gone: the request's task ends where it stands."""
        self._client_gone = True
        if self._turn.task is not None:
            self._turn.task.cancel()

    def _forgive_cancel(self) -> None:
        """The cancel was our own: the task goes on to its end."""
        if self._turn.task is not None:
            self._turn.task.uncancel()


class ModelCall(Call):
    """A request that a model's workers answer. `endpoint` is its name in metrics and logs."""

    record: RequestRecord

    def __init__(self, gateway: Gateway, turn: Turn, *, endpoint: str) -> None:
        super().__init__(gateway, turn)
        self.record = gateway.telemetry.request(endpoint, self._request_id.decode())
        self._explain = EXPLAIN_HEADER in self._named and explanation_wanted(turn.headers)
        self._context: RequestContext | None = None

    def _open(self, answer_id: str, card: ModelCard) -> RequestContext:
        """The request's context. Its worker choices are what an explanation tells."""
        trace = trace_of(self._named, self._request_id)
        self._context = self._gateway.context(answer_id, card.name, self.record.tracker, trace)
        return self._context

    def _hints(self) -> RoutingHints | None:
        """Where the headers want the request to go. Raises InvalidRequest."""
        return None if HINT_HEADERS.isdisjoint(self._named) else read_hints(self._turn.headers)

    def _check_ready(self, model: str) -> None:
        """A model that is known but cannot be served now is a 503, before anything is tried."""
        servable = self._gateway.registry.servable(model)
        if not servable.ok:
            raise NoAvailableWorkers(f"The model '{model}' cannot be served now: {servable.reason}.")

    def _answer_headers(self) -> Headers:
        own = super()._answer_headers()
        if not self._explain or self._context is None:
            return own
        return own + explanation_headers([choice for _, choice in self._context.choices])

    def _story(self) -> dict[str, Any] | None:
        """The answer's `tandem` member, for those who ask: every choice of a worker, retries and migrations included.

        Headers leave before the answer is complete and name what was known then.
        """
        if not self._explain or self._context is None:
            return None
        return {"tandem": {"routing": [explanation(choice) for _, choice in self._context.choices]}}
