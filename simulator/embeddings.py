"""Pretended embeddings, in each dialect: a unit vector that follows from the worker's seed and the ids.

Every input is a job of one step in the engine's own queue, so that load, pace, faults and a client's leaving show. The
first numbers of a vector, brought to length one, are the vector of so many dimensions, as Matryoshka models have it.
"""

from __future__ import annotations

import base64
import math
import secrets
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from protocols.preprocessed import PreprocessedEmbeddingRequest
from protocols.wire import WireError, from_wire
from simulator.answers import Answer
from simulator.digests import digest_of, mix
from simulator.http import Exchange
from simulator.jobs import Job, Output, Spec
from simulator.native_answer import unpacked
from simulator.vllm_fields import Refused, read_body

if TYPE_CHECKING:
    from simulator.native import NativeWorker
    from simulator.openai import OpenAIWorker
    from simulator.sglang import SglangWorker
    from simulator.vllm import VllmWorker
    from simulator.worker import SimulatedWorker

Vector = list[float]
Prompts = Sequence[Sequence[int]]

_MALFORMED = (TypeError, ValueError, KeyError, AttributeError, IndexError)


def vector_of(ids: Sequence[int], size: int, *, seed: int = 0) -> Vector:
    """Numbers that a float32 holds exactly."""
    state = digest_of(seed, ids)
    raw = [mix(state + place) / 2**63 - 1 for place in range(size)]
    length = math.sqrt(sum(number * number for number in raw)) or 1.0
    return list(struct.unpack(f"<{size}f", struct.pack(f"<{size}f", *(number / length for number in raw))))


def base64_of(vector: Vector) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


class EmbeddingAnswer(Answer):
    """The answer to one request. `told` makes the reply of the vectors, `failed` the body of an engine's failure.

    `rids`: the ids by which it can be aborted (SGLang); `leave_s`: how late a client's leaving is noticed.
    """

    def __init__(
        self,
        worker: SimulatedWorker,
        exchange: Exchange,
        prompts: Prompts,
        dimensions: int | None,
        told: Callable[[list[Vector]], Any],
        failed: Callable[[int, str], Any],
        headers: Mapping[str, str] | None = None,
        *,
        rids: Sequence[str] = (),
        leave_s: float = 0.0,
    ) -> None:
        super().__init__(worker, exchange, leave_s=leave_s)
        self.rids = rids
        self.fault = worker.faults.for_request()
        self._prompts = prompts
        self._size = dimensions or worker.options.embedding_size
        self._told = told
        self._failed = failed
        self._headers = headers or {}
        self._unfinished = len(prompts)

    def begin(self) -> None:
        if self.meets_fault("request"):
            return
        for place, prompt in enumerate(self._prompts):
            self.submit(self.worker.models[self.worker.least_loaded()], Spec(prompt=prompt, limit=1), place)

    def on_output(self, place: int, job: Job, output: Output) -> None:
        self._unfinished -= output.finish is not None
        if not self._unfinished:
            seed = self.worker.options.seed
            self.reply(200, self._told([vector_of(prompt, self._size, seed=seed) for prompt in self._prompts]))

    def fail(self, status: int, message: str) -> None:
        self.reply(status, self._failed(status, message))

    def abort(self) -> None:
        self.fail(500, "the request was aborted")

    def reply_headers(self) -> Mapping[str, str]:
        return self._headers


def listed(vectors: Sequence[Vector], prompts: Prompts, model: str, *, packed: bool, **more: Any) -> dict[str, Any]:
    """OpenAI's reply."""
    shown: list[Any] = [base64_of(vector) for vector in vectors] if packed else list(vectors)
    tokens = sum(map(len, prompts))
    return {
        "object": "list",
        **more,
        "model": model,
        "data": [{"index": place, "object": "embedding", "embedding": entry} for place, entry in enumerate(shown)],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


# ---- vLLM 0.32


def vllm(worker: VllmWorker, exchange: Exchange) -> None:
    """`/v1/embeddings`: text, ids, or one chat message, the form of content parts."""
    headers = worker.headers_for(exchange)
    try:
        body = read_body(exchange.body, exchange.headers.get("content-type", ""))
        prompts = _vllm_prompts(worker, body)
        dimensions = _dimensions(worker, body)
    except Refused as refused:
        exchange.json(refused.status, refused.envelope(), headers)
        return
    except _MALFORMED as error:
        exchange.json(400, Refused(f"1 validation error:\n  {error}", kind="Bad Request").envelope(), headers)
        return

    def told(vectors: list[Vector]) -> dict[str, Any]:
        packed = body.get("encoding_format") == "base64"
        return listed(
            vectors,
            prompts,
            worker.options.model,
            packed=packed,
            id=f"embd-{secrets.token_hex(8)}",
            created=int(time.time()),
        )

    def failed(status: int, message: str) -> dict[str, Any]:
        return Refused(message, kind="InternalServerError", status=status).envelope()

    EmbeddingAnswer(worker, exchange, prompts, dimensions, told, failed, headers).begin()


def _vllm_prompts(worker: VllmWorker, body: Mapping[str, Any]) -> Prompts:
    if body.get("model") not in (None, worker.options.model):
        message = f"The model `{body['model']}` does not exist. Valid aliases: {worker.options.model}."
        raise Refused(message, param="model", kind="NotFoundError", status=404)
    messages = body.get("messages")
    prompts = _prompts(worker, body["input"]) if messages is None else [_joined(worker, messages[-1]["content"])]
    for prompt in prompts:
        if not prompt or max(prompt) >= worker.vocabulary.size or min(prompt) < 0:
            raise Refused("Token id is out of vocabulary" if prompt else "The decoder prompt cannot be empty")
        limit = worker.options.context_length
        if len(prompt) > limit:
            raise Refused(
                f"This model's maximum context length is {limit} tokens. However, you requested {len(prompt)} tokens "
                "in the input for embedding generation.",
                param="input_tokens",
            )
    return prompts


# ---- SGLang 0.5.23


def sglang(worker: SglangWorker, exchange: Exchange) -> None:
    """`/v1/embeddings`: text, ids, or content parts, each of which makes a vector."""
    try:
        body = orjson.loads(exchange.body)
        if not worker.options.embedding_size:
            raise ValueError(
                "This model does not appear to be an embedding model by default. "
                "Please add `--is-embedding` when launching the server or try another model."
            )
        encoding = body.get("encoding_format", "float")
        if encoding not in ("float", "base64"):
            raise ValueError(f"encoding_format must be either 'float' or 'base64', got {encoding!r}")
        prompts = _prompts(worker, body["input"])
        dimensions = _dimensions(worker, body)
        for prompt in prompts:
            if len(prompt) >= worker.options.context_length:
                limit = worker.options.context_length
                raise ValueError(
                    f"The input ({len(prompt)} tokens) is longer than the model's context length ({limit} tokens)."
                )
    except _MALFORMED as error:
        exchange.json(400, _sglang_failure(400, str(error)), {"vary": "Origin"})
        return
    if not all(prompt and max(prompt) < worker.vocabulary.size for prompt in prompts):
        # An empty input, and an id outside the vocabulary, end the real process (0.5.23).
        worker.die()
        return
    rid = body.get("rid") or ()

    def told(vectors: list[Vector]) -> dict[str, Any]:
        folder = worker.options.model_path or worker.options.model
        return listed(vectors, prompts, folder, packed=encoding == "base64")

    EmbeddingAnswer(
        worker,
        exchange,
        prompts,
        dimensions,
        told,
        _sglang_failure,
        {"vary": "Origin"},
        rids=(rid,) if isinstance(rid, str) else rid,
        leave_s=worker.options.sglang.unary_leave_s,
    ).begin()


def _sglang_failure(status: int, message: str) -> dict[str, Any]:
    kind = "BadRequestError" if status == 400 else "InternalServerError"
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


# ---- OpenAI-compatible servers


def openai(worker: OpenAIWorker, exchange: Exchange) -> None:
    """`/v1/embeddings`: text, ids, or content parts, which make one vector together."""
    try:
        body = orjson.loads(exchange.body)
        given = body["input"]
        prompts = [_joined(worker, given)] if isinstance(given[0], dict) else _prompts(worker, given)
        dimensions = _dimensions(worker, body)
    except _MALFORMED as error:
        exchange.json(400, _openai_failure(400, str(error)))
        return

    def told(vectors: list[Vector]) -> dict[str, Any]:
        return listed(vectors, prompts, worker.options.model, packed=body.get("encoding_format") == "base64")

    EmbeddingAnswer(worker, exchange, prompts, dimensions, told, _openai_failure).begin()


def _openai_failure(status: int, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status == 400 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


# ---- the native dialect


def native(worker: NativeWorker, exchange: Exchange) -> None:
    """`/v1/native/embed`. Answers in JSON, whatever it was asked in."""
    binary = exchange.headers.get("content-type", "").startswith("application/msgpack")
    try:
        body = unpacked(exchange.body) if binary else orjson.loads(exchange.body)
        request: PreprocessedEmbeddingRequest = from_wire(PreprocessedEmbeddingRequest, body)
        if not all(ids and max(ids) < worker.vocabulary.size for ids in request.token_ids):
            raise ValueError("token_ids: empty or out of vocabulary")
        _dimensions(worker, body)
    except (WireError, *_MALFORMED) as error:
        exchange.json(400, _native_failure(400, str(error)))
        return
    tokens = sum(map(len, request.token_ids))

    def told(vectors: list[Vector]) -> dict[str, Any]:
        embeddings = [base64_of(vector) for vector in vectors]
        return {"embeddings": embeddings, "prompt_tokens": tokens, "total_tokens": tokens}

    EmbeddingAnswer(worker, exchange, request.token_ids, request.dimensions, told, _native_failure).begin()


def _native_failure(status: int, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status == 400 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


# ---- what was asked


def _prompts(worker: SimulatedWorker, given: Any) -> Prompts:
    """Ids for every shape of input; a picture counts as its address does."""
    encode = worker.codec.encode
    if isinstance(given, str):
        return [encode(given)]
    if all(type(item) is int for item in given):
        return [given]
    return [item if isinstance(item, list) else encode(_text(item)) for item in given]


def _joined(worker: SimulatedWorker, parts: Any) -> Sequence[int]:
    """Content parts as one input."""
    return [token_id for prompt in _prompts(worker, parts) for token_id in prompt]


def _text(item: Any) -> str:
    if isinstance(item, str):
        return item
    return str(item.get("text") or item.get("image") or item["image_url"]["url"])


def _dimensions(worker: SimulatedWorker, body: Mapping[str, Any]) -> int | None:
    asked, size = body.get("dimensions"), worker.options.embedding_size
    if asked is not None and not (type(asked) is int and 1 <= asked <= size):
        raise ValueError(f"dimensions must be from 1 to {size}, got {asked}.")
    return asked
