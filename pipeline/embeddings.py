"""Vectors for texts: a model's way from an OpenAI request to its workers and back.

A chain of its own beside that of tokens: one call and one whole reply, with nothing to stream, to prefill elsewhere or
to continue. Workers get token ids, or content parts as they came.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from engines.base import Call
from pipeline.attempts import Attempts
from pipeline.context import RequestContext
from pipeline.dispatch import Lease, WorkerRouter
from pipeline.preprocess import LONG_TEXT, merged_hints
from pipeline.talk import Parser
from protocols.errors import (
    ContextLengthExceeded,
    GatewayError,
    InvalidRequest,
    ProtocolViolation,
)
from protocols.model_card import ModelCard
from protocols.openai import EmbeddingRequest
from protocols.openai_errors import invalid
from protocols.outputs import EmbeddingsEngineOutput
from protocols.preprocessed import PreprocessedEmbeddingRequest, RoutingHints
from protocols.vectors import vector_length
from protocols.wire import WireError
from protocols.worker import Leg, Role, Worker
from telemetry.record import Usage
from text.embedding_answer import embedding_body
from text.options import check_vocabulary, routing_hints
from text.tokenizer import Tokenizer
from text.truncation import cut, encode_at_most

LONG_ANSWER = 128 * 1024
"""Characters of base64 from which on writing numbers leaves the event loop: under it takes less than about 5 ms."""

_CHANGING = ("normalize", "use_activation", "embed_dtype", "endianness", "padding")
"""Fields of vLLM's that make other vectors or write them otherwise, and that workers are not asked for."""

_DIMENSIONS = re.compile(r"matryoshka|\bdimensions\b", re.IGNORECASE)

Extra = Callable[[], Mapping[str, Any] | None]
"""Further members of the answer, asked for when it is complete."""


class EmbeddingJob(Protocol):
    """A request that can be answered. `usage` is known at the end."""

    @property
    def usage(self) -> Usage: ...

    async def run(self, context: RequestContext, extra: Extra, /) -> bytes:
        """The answer's body. Raises GatewayError."""
        ...


class EmbeddingService(Protocol):
    """A model that makes vectors."""

    async def prepare(self, request: EmbeddingRequest, hints: RoutingHints | None, /) -> EmbeddingJob:
        """`hints`: what the headers say; they win over the body. Raises InvalidRequest."""
        ...


class TokenEmbeddings:
    """A model whose workers take token ids. `context_length` gives the longest input, in tokens."""

    def __init__(
        self,
        card: ModelCard,
        tokenizer: Tokenizer,
        context_length: Callable[[], int | None],
        attempts: Attempts[EmbeddingsEngineOutput],
    ) -> None:
        self._card = card
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._attempts = attempts

    async def prepare(self, request: EmbeddingRequest, hints: RoutingHints | None) -> TokenJob:
        changing = next((name for name in _CHANGING if (request.model_extra or {}).get(name) is not None), None)
        if changing is not None:
            raise InvalidRequest(f"'{changing}' is not supported by this model's workers", param=changing)
        extras = request.extras()
        asked = PreprocessedEmbeddingRequest(
            token_ids=await self._token_ids(request),
            model=self._card.name,
            encoding_format=request.encoding_format,
            truncate_prompt_tokens=request.truncate_prompt_tokens,
            dimensions=request.dimensions,
            mdc_sum=self._card.checksum,
            annotations=tuple(extras.annotations or ()) if extras is not None else (),
        )
        hints = merged_hints(routing_hints(request), hints)
        return TokenJob(asked, request.parts(), hints, self._attempts, request.model)

    async def _token_ids(self, request: EmbeddingRequest) -> tuple[tuple[int, ...], ...]:
        inputs = request.inputs()
        length = sum(len(text) for text in inputs if isinstance(text, str))
        if length < LONG_TEXT:
            return self._checked(request)
        return await asyncio.to_thread(self._checked, request)

    def _checked(self, request: EmbeddingRequest) -> tuple[tuple[int, ...], ...]:
        """Each input's ids, none of them empty, too long, or outside the vocabulary."""
        longest = self._longest()
        limit = longest if request.truncate_prompt_tokens == -1 else request.truncate_prompt_tokens
        from_left, special = request.truncation_side == "left", request.add_special_tokens is not False
        checked = []
        for index, given in enumerate(request.inputs()):
            place = request.place(index)
            if isinstance(given, str):
                ids = encode_at_most(self._tokenizer, given, limit, add_special_tokens=special, from_left=from_left)
            else:
                check_vocabulary(given, self._card.vocab_size, place)
                ids = given if limit is None else cut(given, limit, from_left=from_left)
            _check_length(len(ids), longest, place)
            checked.append(tuple(ids))
        return tuple(checked)

    def _longest(self) -> int | None:
        """The longest input that every worker takes, in tokens."""
        longest, router = self._context_length(), self._attempts.router
        if longest is None:
            return None
        workers = able_workers(router, parts=False)
        return longest - max((router.registry.adapter(worker.id).embed_room for worker in workers), default=0)


def _check_length(count: int, longest: int | None, place: str) -> None:
    if not count:
        raise invalid(place, "it has no tokens")
    if longest is not None and count > longest:
        raise ContextLengthExceeded(
            f"This model takes inputs of at most {longest} tokens, but '{place}' has {count}. Shorten it, or set "
            "'truncate_prompt_tokens'.",
            param=place,
        )


def able_workers(router: WorkerRouter, *, parts: bool) -> list[Worker]:
    """The model's whole workers, up or not, of an engine that makes vectors (of content parts)."""
    workers = [candidate.worker for candidate in router.registry.candidates(router.model, Leg.DECODE)]
    return [
        worker
        for worker in workers
        if worker.role is Role.AGGREGATED and router.registry.adapter(worker.id).embeds(parts=parts)
    ]


@dataclass(slots=True)
class TokenJob:
    """A request of token ids, or of content parts, which only their worker can count."""

    request: PreprocessedEmbeddingRequest
    parts: Sequence[Mapping[str, Any]]
    hints: RoutingHints | None
    attempts: Attempts[EmbeddingsEngineOutput]
    model: str
    """As the client calls it."""
    told: int = 0
    """Tokens of content parts, as the worker counted them."""

    @property
    def usage(self) -> TokenJob:
        return self

    def prompt_tokens(self) -> int:
        return self.told if self.parts else sum(map(len, self.request.token_ids))

    def completion_tokens(self) -> int:
        return 0

    def cached_tokens(self) -> int | None:
        return None

    async def run(self, context: RequestContext, extra: Extra) -> bytes:
        hints = self._able_workers()
        output = await self.attempts(_TokenTalk(self), hints, context)
        self.told = output.prompt_tokens
        self._check_dimensions(output.embeddings)
        return await self._body(output.embeddings, extra())

    def _able_workers(self) -> RoutingHints | None:
        """The hints, with what is known of the workers: only whole ones, of an engine that has such a call."""
        router, parts = self.attempts.router, bool(self.parts)
        able = frozenset(worker.id for worker in able_workers(router, parts=parts))
        if len(able) == len(router.registry.candidates(router.model, Leg.DECODE)):
            return self.hints
        if not able:
            what = "of content parts " if parts else ""
            raise InvalidRequest(
                f"The model '{self.model}' makes no embeddings {what}with the workers it has.", param="model"
            )
        hints = self.hints or RoutingHints()
        allowed = hints.allowed_worker_ids
        return replace(hints, allowed_worker_ids=able if allowed is None else able & allowed)

    def _check_dimensions(self, vectors: Sequence[str]) -> None:
        """An engine that passes over `dimensions` would change the answer unsaid."""
        wanted = self.request.dimensions
        found = next((length for length in map(vector_length, vectors) if length != wanted), None)
        if wanted is not None and found is not None:
            raise InvalidRequest(
                f"'dimensions' is not supported by this model's engine: its vectors have {found} numbers, not {wanted}",
                param="dimensions",
            )

    async def _body(self, vectors: Sequence[str], extra: Mapping[str, Any] | None) -> bytes:
        floats = self.request.encoding_format != "base64"

        def write() -> bytes:
            return embedding_body(
                vectors, model=self.model, prompt_tokens=self.prompt_tokens(), floats=floats, extra=extra
            )

        try:
            if floats and sum(map(len, vectors)) >= LONG_ANSWER:
                return await asyncio.to_thread(write)
            return write()
        except WireError as error:
            raise ProtocolViolation(f"the worker's reply is malformed: {error}") from error


class _TokenTalk:
    """What is said to a worker that takes token ids."""

    reads_once = False

    def __init__(self, job: TokenJob) -> None:
        self._job = job

    @property
    def prompt_tokens(self) -> int:
        return self._job.prompt_tokens()

    def call(self, lease: Lease) -> Call:
        return lease.adapter.embed_call(self._job.request, lease.ids, self._job.parts)

    def parser(self, lease: Lease) -> Parser[EmbeddingsEngineOutput]:
        return lease.adapter.embed_parser(self._job.request, self._job.parts)

    def rejection(self, lease: Lease, status: int, body: bytes) -> GatewayError:
        error = lease.adapter.embed_rejection(status, body)
        if isinstance(error, InvalidRequest) and error.param is None and _DIMENSIONS.search(error.message):
            # vLLM 0.32 and SGLang 0.5.23 name no field.
            error.param = "dimensions"
        return error
