"""An answer goes on at another worker when its worker fails: `Replay` decides (pure), `Migration` is the operator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from pipeline.context import RequestContext
from pipeline.service import Service, Sink
from protocols.errors import (
    CannotConnect,
    DeadlineExceeded,
    GatewayError,
    InvalidRequest,
    SinkFailed,
    Unavailable,
    WorkerBusy,
)
from protocols.outputs import BackendOutput, DecoderCheckpoint, FinishReason, LLMEngineOutput
from protocols.preprocessed import PreprocessedRequest
from workers.exchange import push

Output = TypeVar("Output", LLMEngineOutput, BackendOutput)


@dataclass(frozen=True, slots=True)
class MigrationLimits:
    """`retries`: further attempts while nothing was shown; `migrations`: once something was.

    `max_sequence`: no migration when prompt and answer together are longer (tokens; strict). `long_prefill`: a prompt
    of more tokens is retried once at most.
    """

    retries: int = 2
    migrations: int = 3
    max_sequence: int | None = None
    long_prefill: int = 16_384


class Observer(Protocol):
    """Told of every further attempt: `kind` is "new_request" (nothing shown yet) or "ongoing_request"."""

    def migrating(self, kind: str, error: GatewayError) -> None: ...


class Replay(Generic[Output]):
    """What of an answer was shown, and the request that brings the rest."""

    __slots__ = ("_checkpoint", "_limits", "_shown", "migrations", "request", "retries")

    def __init__(self, request: PreprocessedRequest, limits: MigrationLimits) -> None:
        self.request = request
        self._limits = limits
        self._shown: list[int] = []
        self._checkpoint: DecoderCheckpoint | None = None
        self.retries = 0
        self.migrations = 0

    @property
    def shown(self) -> int:
        """Token ids shown so far, with or without text."""
        return len(self._shown)

    def observe(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            self._shown += output.token_ids
        self._checkpoint = outputs[-1].jailed_text

    def attempt(self) -> PreprocessedRequest:
        """The next attempt: prompt plus what was shown, that much less to come, the decoder's checkpoint as seed.

        The prompt's logprobs came with the first output: they are not asked for again.
        """
        if not self._shown:
            return self.request
        stop, output = self.request.stop_conditions, self.request.output_options
        count = len(self._shown)
        return replace(
            self.request,
            token_ids=(*self.request.token_ids, *self._shown),
            stop_conditions=replace(
                stop,
                max_tokens=None if stop.max_tokens is None else max(stop.max_tokens - count, 0),
                min_tokens=None if stop.min_tokens is None else max(stop.min_tokens - count, 0),
            ),
            output_options=output if output.prompt_logprobs is None else replace(output, prompt_logprobs=None),
            jail_seed=self._checkpoint,
            prefill_result=None,
            bootstrap_info=None,
        )

    def nothing_left(self) -> bool:
        """The answer is already as long as it may become."""
        most = self.request.stop_conditions.max_tokens
        return bool(self._shown) and most is not None and len(self._shown) >= most

    def may_go_on(self, error: GatewayError) -> bool:
        """Whether another attempt is allowed after this failure; counts it if so."""
        if not error.retryable:
            return False
        if self._shown:
            if self.migrations >= self._limits.migrations or not self._replayable():
                return False
            self.migrations += 1
            return True
        if self.retries >= self._retries(error):
            return False
        self.retries += 1
        return True

    def _retries(self, error: GatewayError) -> int:
        never_began = isinstance(error, (CannotConnect, WorkerBusy))
        long = len(self.request.token_ids) > self._limits.long_prefill
        return min(self._limits.retries, 1) if long and not never_began else self._limits.retries

    def _replayable(self) -> bool:
        """A grammar's state cannot be replayed, nor may a sequence beyond the limit."""
        if self.request.sampling_options.guided_decoding is not None:
            return False
        longest = self._limits.max_sequence
        return longest is None or len(self.request.token_ids) + len(self._shown) <= longest


class Migration(Generic[Output]):
    """Runs attempts until one completes. `length_ending` makes the ending of an answer that needs no more attempt."""

    def __init__(
        self,
        limits: MigrationLimits,
        length_ending: Callable[[PreprocessedRequest], Output],
        observer: Observer,
    ) -> None:
        self._limits = limits
        self._length_ending: Callable[[PreprocessedRequest], Output] = length_ending
        self._observer = observer

    async def __call__(
        self,
        request: PreprocessedRequest,
        context: RequestContext,
        sink: Sink[Output],
        downstream: Service[PreprocessedRequest, Output],
    ) -> None:
        try:
            await self._attempt_all(request, context, sink, downstream)
        except (GatewayError, SinkFailed) as error:
            context.migration.abort_lifecycle(error)
            raise
        except asyncio.CancelledError:
            context.migration.abort_lifecycle(None)
            raise

    async def _attempt_all(
        self,
        request: PreprocessedRequest,
        context: RequestContext,
        sink: Sink[Output],
        downstream: Service[PreprocessedRequest, Output],
    ) -> None:
        replay: Replay[Output] = Replay(request, self._limits)

        def observe(outputs: Sequence[Output]) -> None:
            if replay.migrations:
                _forget_cached_tokens(outputs)
            replay.observe(outputs)
            sink(outputs)

        while True:
            try:
                await downstream(replay.attempt(), context, observe)
                return
            except Unavailable as error:
                exhausted = self._exhausted(replay, context, error)
                if exhausted is None:
                    raise
                raise exhausted from error
            except InvalidRequest as error:
                # After the first token it is our own making that is refused, which the client did not send.
                last = context.migration.last_error
                if last is None or not replay.shown:
                    raise
                raise last from error
            except GatewayError as error:
                if replay.nothing_left() and error.retryable:
                    push(sink, [self._length_ending(replay.attempt())])
                    return
                if not replay.may_go_on(error):
                    raise
                if context.deadline is not None and context.clock() > context.deadline:
                    raise DeadlineExceeded("the request's deadline has passed") from error
                kind = "ongoing_request" if replay.shown else "new_request"
                context.tracker.record_migration(kind)
                self._observer.migrating(kind, error)

    def _exhausted(self, replay: Replay[Output], context: RequestContext, error: Unavailable) -> GatewayError | None:
        """Nobody is left after a failure: the stream's own failure once something was shown, else which kind of
        nothing. None when nothing has failed before.
        """
        if replay.shown:
            return context.migration.last_error
        exhausted = context.migration.exhausted_error()
        if isinstance(exhausted, Unavailable):
            exhausted.retry_after = error.retry_after
        return exhausted


def _forget_cached_tokens(outputs: Sequence[LLMEngineOutput] | Sequence[BackendOutput]) -> None:
    """After a migration the engine's cache hits include our own replayed tokens: unknown, not a number."""
    for output in outputs:
        if output.completion_usage is not None:
            output.completion_usage.prompt_tokens_details = None


def tokens_length_ending(request: PreprocessedRequest) -> LLMEngineOutput:
    """The ending at token level, where nothing is withheld."""
    return LLMEngineOutput(finish_reason=FinishReason.LENGTH)
