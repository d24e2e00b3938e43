"""Any OpenAI-compatible server as a worker: the client's own request, forwarded; the answers, see `openai_reply`.

Nothing is rendered, tokenized or detokenized here; text and usage are the server's, and fields that we do not know
survive both ways. Ids, model name and framing are ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import orjson

from engines.base import AttemptIds, Call, EngineAdapter, Probe, ProbeReply, Release, ReplyParser
from engines.error_body import error_body, http_error
from engines.fields import reserved
from engines.probe_replies import count, object_at, served_model
from protocols.errors import GatewayError, InternalError
from protocols.outputs import LLMEngineOutput
from protocols.preprocessed import PrefillResult, PreprocessedRequest
from protocols.worker import Leg, Role, Worker, WorkerTraits

MODELS = "/v1/models"
EMBEDDINGS = "/v1/embeddings"

_THE_REQUEST = re.compile(
    r"(?:prompt|messages|documents|modalities|stream|stream_reasoning|add_special_tokens|detokenize"
    r"|mm_processor_kwargs|return_\w+|truncat\w+)$"
)
"""Names that a token engine gets from us alone. Here they are what the client asks, and its answer passes as it is."""

_OURS = frozenset({"model", "stream_options", "tandem", "nvext", "priority"})


def forwarded(name: str) -> bool:
    """Whether a field of the client's goes to the server. What steers a worker does not (hard rule 7)."""
    return _THE_REQUEST.match(name) is not None or not (name in _OURS or reserved(name))


def forward_call(body: Mapping[str, Any], worker: Worker, path: str) -> Call:
    """The client's request as this worker is to get it.

    The model goes by the worker's name for it. A stream is always asked for its usage, so that we know it;
    `OpenAIStream` takes it out again where the client did not ask.
    """
    passed = {name: value for name, value in body.items() if forwarded(name)}
    passed["model"] = worker.name_for_model(str(body.get("model", "")))
    streams = body.get("stream") is True
    if streams:
        options = body.get("stream_options")
        passed["stream_options"] = {**(options if isinstance(options, Mapping) else {}), "include_usage": True}
    return Call(path, orjson.dumps(passed, option=orjson.OPT_NON_STR_KEYS), streams=streams)


def embed_call(body: Mapping[str, Any], worker: Worker) -> Call:
    """The client's request for vectors as this worker is to get it."""
    passed = {name: value for name, value in body.items() if forwarded(name)}
    passed["model"] = worker.name_for_model(str(body.get("model", "")))
    return Call(EMBEDDINGS, orjson.dumps(passed, option=orjson.OPT_NON_STR_KEYS), streams=False)


def rejection(status: int, body: bytes) -> GatewayError:
    """What a refusal means: 4xx the client's fault, but for a key, a name or a route, which are ours to configure."""
    return http_error(status, error_body(body))


class OpenAIAdapter(EngineAdapter):
    """The control plane of such a server. It takes no tokens: requests to it go by `forward_call`."""

    release_at = Release.NONE
    default_lease_s = None
    default_prefill_policy = "strict"

    def prefill_call(self, request: PreprocessedRequest, ids: AttemptIds) -> Call:
        self._takes_no_tokens()

    def handoff(self, outputs: Sequence[LLMEngineOutput]) -> PrefillResult | LLMEngineOutput | None:
        self._takes_no_tokens()

    def generate_call(self, request: PreprocessedRequest, ids: AttemptIds) -> Call:
        self._takes_no_tokens()

    def parser(self, request: PreprocessedRequest, leg: Leg) -> ReplyParser:
        self._takes_no_tokens()

    def _takes_no_tokens(self) -> NoReturn:
        raise InternalError(f"worker {self.worker.url} is an OpenAI-compatible server and takes no token ids")

    def rejection(self, status: int, body: bytes) -> GatewayError:
        return rejection(status, body)

    def plain(self, role: Role) -> bool:
        return True

    def unsupported(self, request: PreprocessedRequest) -> str | None:
        return None

    def health_probe(self) -> Probe:
        """The one route that all such servers have."""
        return Probe(MODELS)

    def info_probes(self) -> Sequence[Probe]:
        return (Probe(MODELS),)

    def traits(self, replies: Mapping[str, ProbeReply]) -> WorkerTraits:
        name, context_length = served_model(replies)
        return WorkerTraits(served_name=name, context_length=context_length or _llama_context(replies))


def _llama_context(replies: Mapping[str, ProbeReply]) -> int | None:
    """llama.cpp 11434 tells it as the first model's `meta.n_ctx`."""
    listed = object_at(replies, MODELS).get("data")
    first = listed[0] if isinstance(listed, list) and listed else None
    meta = first.get("meta") if isinstance(first, dict) else None
    return count(meta.get("n_ctx")) if isinstance(meta, dict) else None
