"""Token services without workers: an engine that always says the same, and breaks where a test wants it.

And the chains around them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.background import Background
from pipeline.context import RequestContext
from pipeline.detokenize import Detokenizer
from pipeline.migration import Migration, MigrationLimits, tokens_length_ending
from pipeline.service import Service, Sink, link
from protocols.errors import Disconnected, GatewayError, WorkerFailure
from protocols.outputs import CompletionUsage, FinishReason, LLMEngineOutput, PromptTokensDetails
from protocols.preprocessed import PreprocessedRequest
from telemetry.tracker import RequestTracker
from tests.pipeline.rig import Seen, Taken
from text.tokenizer import Tokenizer


@dataclass
class SteadyEngine:
    """Continues any part of its one answer with the rest of it, as a deterministic model does.

    `answer`: its ids; with `eos` after them, unless max_tokens come first. `read`: how many ids one read brings.
    `breaks`: per attempt, after how many ids of that attempt it breaks (None: it does not). `finish_alone`: the
    finish comes in a read of its own.
    """

    answer: Sequence[int]
    eos: int | None = None
    read: int = 1
    breaks: list[int | None] = field(default_factory=list)
    finish_alone: bool = True
    prompt_length: int = 3
    cached: int | None = None
    attempts: list[PreprocessedRequest] = field(default_factory=list)

    def failure(self) -> GatewayError:
        return Disconnected("it broke", worker_id=len(self.attempts))

    async def __call__(
        self, request: PreprocessedRequest, context: RequestContext, sink: Sink[LLMEngineOutput], /
    ) -> None:
        self.attempts.append(request)
        breaks_after = self.breaks[len(self.attempts) - 1] if len(self.attempts) <= len(self.breaks) else None
        ids, finish = self._rest(request)
        if breaks_after is not None:
            for batch in self._reads(ids[:breaks_after]):
                sink([LLMEngineOutput(token_ids=batch)])
            error = self.failure()
            context.migration.record_failure(len(self.attempts), error)
            raise error
        reads = [[LLMEngineOutput(token_ids=batch)] for batch in self._reads(ids)]
        ending = LLMEngineOutput(finish_reason=finish, completion_usage=self._usage(request, len(ids)))
        if self.finish_alone or not reads:
            reads.append([ending])
        else:
            reads[-1].append(ending)
        for outputs in reads:
            sink(outputs)

    def _rest(self, request: PreprocessedRequest) -> tuple[list[int], FinishReason]:
        said = len(request.token_ids) - self.prompt_length
        whole = [*self.answer, *([self.eos] if self.eos is not None else [])]
        most = request.stop_conditions.max_tokens
        rest = whole[said:] if most is None else whole[said : said + most]
        ended = said + len(rest) == len(whole) and self.eos is not None
        return rest, FinishReason.EOS if ended else FinishReason.LENGTH

    def _reads(self, ids: Sequence[int]) -> list[list[int]]:
        return [list(ids[start : start + self.read]) for start in range(0, len(ids), self.read)]

    def _usage(self, request: PreprocessedRequest, completion: int) -> CompletionUsage:
        prompt = len(request.token_ids)
        details = None if self.cached is None else PromptTokensDetails(cached_tokens=self.cached)
        return CompletionUsage(prompt, completion, prompt + completion, details)


@dataclass
class ScriptedService:
    """One entry of `script` for each attempt: outputs to push in turn, and an error to raise where it stands.

    Workers' failures are recorded, as `WorkerRouter` does.
    """

    script: list[list[LLMEngineOutput | GatewayError]]
    attempts: list[PreprocessedRequest] = field(default_factory=list)

    async def __call__(
        self, request: PreprocessedRequest, context: RequestContext, sink: Sink[LLMEngineOutput], /
    ) -> None:
        self.attempts.append(request)
        for said in self.script[len(self.attempts) - 1]:
            if isinstance(said, WorkerFailure):
                context.migration.record_error(said)
            if isinstance(said, GatewayError):
                raise said
            sink([said])


def tokens(*ids: int) -> LLMEngineOutput:
    return LLMEngineOutput(token_ids=list(ids))


LIMITS = MigrationLimits()


def context_of(deadline: float | None = None) -> RequestContext:
    clock = asyncio.get_running_loop().time
    return RequestContext(
        "r1", "m", clock=clock, background=Background(), tracker=RequestTracker(clock), deadline=deadline
    )


def resilient_texts(
    engine: Any, tokenizer: Tokenizer, seen: Seen | None = None, limits: MigrationLimits = LIMITS
) -> Any:
    detokenizer = Detokenizer(tokenizer)
    return link(Migration(limits, detokenizer.length_ending, seen or Seen()), link(detokenizer, engine))


def resilient_tokens(engine: Any, seen: Seen | None = None, limits: MigrationLimits = LIMITS) -> Any:
    return link(Migration(limits, tokens_length_ending, seen or Seen()), engine)


async def run(service: Service[Any, Any], request: PreprocessedRequest, context: RequestContext | None = None) -> Taken:
    taken = Taken()
    await service(request, context or context_of(), taken)
    return taken
