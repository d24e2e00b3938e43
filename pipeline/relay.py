"""Models of OpenAI-compatible servers: the client's request goes to one as it is, its answer comes back re-shaped.

A short chain of its own: nothing is rendered or tokenized here. An attempt that failed is repeated at another server as
long as nothing of it was shown; after that its failure is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.base import Call
from engines.openai_reply import Chunk, OpenAIStream, OpenAIUnary, Shape
from engines.openai_text import forward_call
from pipeline.context import RequestContext
from pipeline.dispatch import Lease, WorkerRouter
from pipeline.migration import Observer
from pipeline.reading import Reading
from pipeline.service import Sink
from pipeline.talk import Parser
from protocols.errors import GatewayError, NoAvailableWorkers, Overloaded
from protocols.preprocessed import PreprocessedRequest, RoutingHints
from protocols.worker import Leg


@dataclass(frozen=True, slots=True)
class RelayRequest:
    """The client's request as it came. `path` is the endpoint's, `choices` how many answers were asked for."""

    path: str
    body: Mapping[str, Any]
    shape: Shape
    stream: bool
    include_usage: bool
    choices: int = 1
    hints: RoutingHints | None = None


class RelayUsage:
    """A request's token counts as its server reports them; 0 while it has not."""

    def __init__(self) -> None:
        self.told: Chunk = {}

    def prompt_tokens(self) -> int:
        return _count(self.told.get("prompt_tokens")) or 0

    def completion_tokens(self) -> int:
        return _count(self.told.get("completion_tokens")) or 0

    def cached_tokens(self) -> int | None:
        details = self.told.get("prompt_tokens_details")
        return _count(details.get("cached_tokens")) if isinstance(details, dict) else None


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


class _StreamParser:
    """`OpenAIStream` as a reading's parser."""

    __slots__ = ("_stream", "_usage")

    def __init__(self, stream: OpenAIStream, usage: RelayUsage) -> None:
        self._stream = stream
        self._usage = usage

    @property
    def error(self) -> GatewayError | None:
        return self._stream.error

    @property
    def done(self) -> bool:
        return self._stream.done

    @property
    def finish_seen(self) -> bool:
        return self._stream.finish_seen

    def feed(self, data: bytes) -> Sequence[Chunk]:
        chunks = self._stream.feed(data)
        if self._stream.usage is not None:
            self._usage.told = self._stream.usage
        return chunks

    def end(self) -> Sequence[Chunk]:
        self._stream.end()
        return ()


class _UnaryParser:
    """`OpenAIUnary` as a reading's parser: the answer is its one output."""

    __slots__ = ("_unary", "_usage", "finish_seen")

    done = False

    def __init__(self, unary: OpenAIUnary, usage: RelayUsage) -> None:
        self._unary = unary
        self._usage = usage
        self.finish_seen = False

    @property
    def error(self) -> GatewayError | None:
        return self._unary.error

    def feed(self, data: bytes) -> Sequence[Chunk]:
        self._unary.feed(data)
        return ()

    def end(self) -> Sequence[Chunk]:
        answer = self._unary.end()
        if answer is None:
            return ()
        self.finish_seen = True
        self._usage.told = self._unary.usage or {}
        return (answer,)


class _RelayTalk:
    """What is said to an OpenAI-compatible server."""

    prompt_tokens = 0
    reads_once = False

    def __init__(self, request: RelayRequest, usage: RelayUsage) -> None:
        self._request = request
        self._usage = usage

    def call(self, lease: Lease) -> Call:
        return forward_call(self._request.body, lease.worker, self._request.path)

    def parser(self, lease: Lease) -> Parser[Chunk]:
        request = self._request
        if request.stream:
            stream = OpenAIStream(request.shape, include_usage=request.include_usage, choices=request.choices)
            return _StreamParser(stream, self._usage)
        return _UnaryParser(OpenAIUnary(request.shape), self._usage)

    def rejection(self, lease: Lease, status: int, body: bytes) -> GatewayError:
        return lease.adapter.rejection(status, body)


class Relay:
    """One model's way to its OpenAI-compatible servers. As a service: chunks, or one whole answer, into the sink."""

    def __init__(self, router: WorkerRouter, *, retries: int, observer: Observer) -> None:
        self._router = router
        self._retries = retries
        self._observer = observer

    async def __call__(
        self, request: RelayRequest, context: RequestContext, sink: Sink[Chunk], usage: RelayUsage
    ) -> None:
        shown = False
        left = self._retries

        def observe(chunks: Sequence[Chunk]) -> None:
            nonlocal shown
            shown = True
            sink(chunks)

        routed = PreprocessedRequest((), routing=request.hints)
        while True:
            try:
                lease = self._router.reserve(routed, Leg.DECODE, context, alone=True)
                await self._router.read(Reading(self._router, lease, _RelayTalk(request, usage), context, observe))
                return
            except (NoAvailableWorkers, Overloaded) as error:
                exhausted = context.migration.exhausted_error()
                if exhausted is None:
                    raise
                raise exhausted from error
            except GatewayError as error:
                if shown or not error.retryable or left <= 0:
                    raise
                left -= 1
                context.tracker.record_migration("new_request")
                self._observer.migrating("new_request", error)
