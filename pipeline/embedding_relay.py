"""Vectors by OpenAI-compatible servers: the client's request goes to one as it is, its answer comes back re-shaped."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from engines.base import Call
from engines.embeddings import RelayedEmbeddings
from engines.openai_reply import Chunk
from engines.openai_text import embed_call
from pipeline.attempts import Attempts
from pipeline.context import RequestContext
from pipeline.dispatch import Lease
from pipeline.embeddings import Extra
from pipeline.preprocess import merged_hints
from pipeline.relay import RelayUsage
from pipeline.talk import Parser
from protocols.errors import GatewayError
from protocols.openai import EmbeddingRequest
from protocols.preprocessed import RoutingHints
from text.options import routing_hints


class RelayedEmbeddingService:
    """A model of OpenAI-compatible servers."""

    def __init__(self, attempts: Attempts[Chunk]) -> None:
        self._attempts = attempts

    async def prepare(self, request: EmbeddingRequest, hints: RoutingHints | None) -> RelayedJob:
        return RelayedJob(request, merged_hints(routing_hints(request), hints), self._attempts, RelayUsage())


@dataclass(slots=True)
class RelayedJob:
    """The client's request as it came."""

    request: EmbeddingRequest
    hints: RoutingHints | None
    attempts: Attempts[Chunk]
    usage: RelayUsage

    async def run(self, context: RequestContext, extra: Extra) -> bytes:
        answer = await self.attempts(_RelayTalk(self.request), self.hints, context)
        told = answer.get("usage")
        self.usage.told = told if isinstance(told, dict) else {}
        return orjson.dumps({**answer, **(extra() or {})})


class _RelayTalk:
    """What is said to an OpenAI-compatible server."""

    prompt_tokens = 0
    reads_once = False

    def __init__(self, request: EmbeddingRequest) -> None:
        self._request = request

    def call(self, lease: Lease) -> Call:
        return embed_call(self._request.body(), lease.worker)

    def parser(self, lease: Lease) -> Parser[Chunk]:
        request = self._request
        inputs = None if request.parts() else len(request.inputs())
        return RelayedEmbeddings(inputs, model=request.model, floats=request.encoding_format != "base64")

    def rejection(self, lease: Lease, status: int, body: bytes) -> GatewayError:
        return lease.adapter.embed_rejection(status, body)
