"""Calls that are answered as a whole: repeated at another worker when they fail."""

from __future__ import annotations

from typing import Generic, TypeVar

from pipeline.context import RequestContext
from pipeline.dispatch import WorkerRouter
from pipeline.migration import Observer
from pipeline.reading import Reading
from pipeline.talk import Talk
from protocols.errors import GatewayError, NoAvailableWorkers, Overloaded
from protocols.preprocessed import PreprocessedRequest, RoutingHints
from protocols.worker import Leg

T = TypeVar("T")


class Attempts(Generic[T]):
    """One model's. A reply is one output; `retries` is how often a call may be repeated."""

    def __init__(self, router: WorkerRouter, *, retries: int, observer: Observer) -> None:
        self.router = router
        self._retries = retries
        self._observer = observer

    async def __call__(self, talk: Talk[T], hints: RoutingHints | None, context: RequestContext) -> T:
        router, routed, left = self.router, PreprocessedRequest((), routing=hints), self._retries
        outputs: list[T] = []
        while True:
            try:
                lease = router.reserve(routed, Leg.DECODE, context, alone=True)
                await router.read(Reading(router, lease, talk, context, outputs.extend))
                return outputs[-1]
            except (NoAvailableWorkers, Overloaded) as error:
                exhausted = context.migration.exhausted_error()
                if exhausted is None:
                    raise
                raise exhausted from error
            except GatewayError as error:
                if not error.retryable or left <= 0:
                    raise
                left -= 1
                self._observer.migrating("new_request", error)
