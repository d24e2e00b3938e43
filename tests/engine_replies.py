"""Feeds replies to parsers, cut in any way, and joins the outputs so that only what was told remains."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from engines.base import ReplyParser
from protocols.outputs import CompletionUsage, FinishReason, LLMEngineOutput, StopReason, TopLogprob


@dataclass
class Told:
    """What a reply told, however it was cut."""

    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    top_logprobs: list[list[TopLogprob]] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_reason: StopReason | None = None
    usage: CompletionUsage | None = None
    params: Any = None
    engine_data: Any = None
    error: Exception | None = None

    def counts(self) -> tuple[int, int, int | None] | None:
        """Prompt, completion and cached tokens."""
        usage = self.usage
        return (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens()) if usage else None

    def same(self, other: Told) -> bool:
        mine, others = dict(vars(self)), dict(vars(other))
        mine["error"], others["error"] = repr(self.error), repr(other.error)
        return mine == others


def read(parser: ReplyParser, body: bytes, cuts: Iterable[int] = ()) -> Told:
    """The reply in pieces cut at `cuts`. Checks what holds for every reply, by the contract of `ReplyParser`."""
    edges = [0, *sorted(cuts), len(body)]
    outputs: list[LLMEngineOutput] = []
    for start, stop in pairwise(edges):
        outputs += parser.feed(body[start:stop])
    outputs += parser.end()
    assert not parser.end()
    endings = [output for output in outputs if output.finish_reason is not None]
    assert len(endings) == (parser.error is None)
    assert not endings or (outputs[-1] is endings[0] and not endings[0].token_ids)
    assert not any(output.engine_data for output in outputs[1:])
    return _joined(outputs, parser.error)


def _joined(outputs: list[LLMEngineOutput], error: Exception | None) -> Told:
    told = Told(error=error)
    for output in outputs:
        told.ids += output.token_ids
        told.log_probs += output.log_probs or []
        told.top_logprobs += output.top_logprobs or []
        told.engine_data = told.engine_data or output.engine_data
    last = outputs[-1] if outputs else LLMEngineOutput()
    told.finish, told.stop_reason = last.finish_reason, last.stop_reason
    told.usage, told.params = last.completion_usage, last.disaggregated_params
    return told
