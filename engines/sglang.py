"""SGLang (seen: 0.5.23) over its native `/generate`: ids in, ids out, both legs at once.

A pair is tied by a room that is drawn before either leg is sent. Surprising: a prefill or decode server takes no plain
request, and one token id outside the vocabulary kills the process, so ids are checked before they come here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson

from engines.base import AttemptIds, Call, EngineAdapter, Probe, ProbeReply, Release
from engines.embedding_parts import flat_parts
from engines.embeddings import OpenAIEmbeddings
from engines.error_body import ErrorBody, error_body, event_error, http_error
from engines.fields import SGLANG
from engines.prefill_answer import prefill_answer, prompt_details
from engines.probe_replies import count, object_at, served_model, text
from engines.sglang_reply import SglangReply
from engines.sglang_request import GENERATE, generate_body, streams
from protocols.errors import (
    Blame,
    EngineFailure,
    GatewayError,
    IncompleteReply,
    InvalidRequest,
    ModelNotFound,
    WorkerMisconfigured,
)
from protocols.outputs import LLMEngineOutput
from protocols.preprocessed import BootstrapInfo, PrefillResult, PreprocessedEmbeddingRequest, PreprocessedRequest
from protocols.worker import Leg, Role, WorkerTraits

EMBEDDINGS = "/v1/embeddings"
BOOTSTRAP_PORT = 8998
_MAX_ROOM = 2**63 - 1
_SERVER_INFO, _OLD_SERVER_INFO, _READY, _HEALTH = "/server_info", "/get_server_info", "/ready", "/health"
_ROLES = {"null": Role.AGGREGATED, "prefill": Role.PREFILL, "decode": Role.DECODE}


class SglangAdapter(EngineAdapter):
    """Plain requests on aggregated workers, pairs elsewhere. Input and max_tokens must fit the context: it does not
    clamp but refuses.
    """

    release_at = Release.NONE
    default_lease_s: ClassVar[float | None] = None
    default_prefill_policy = "strict"
    structural_tags = True

    # ---- prefill leg

    def bootstrap(self, ids: AttemptIds, dp_rank: int | None) -> BootstrapInfo | None:
        """The room is never 0 (the health check's), fits 63 bits, and by its remainder names the prefill rank."""
        worker = self.worker
        room, ranks = ids.number, worker.dp_size if worker.dp_size > 1 else worker.traits.dp_size or 1
        if dp_rank is not None and ranks > 1:
            room += dp_rank % ranks - room % ranks
            room -= ranks if room > _MAX_ROOM else 0
        host = worker.bootstrap_host or worker.host
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        port = worker.bootstrap_port or worker.traits.bootstrap_port or BOOTSTRAP_PORT
        return BootstrapInfo(host, port, room)

    def prefill_call(self, request: PreprocessedRequest, ids: AttemptIds) -> Call:
        return Call(GENERATE, generate_body(request, ids.name, Leg.PREFILL, self.worker))

    def handoff(self, outputs: Sequence[LLMEngineOutput]) -> PrefillResult | LLMEngineOutput | None:
        """Nothing for decode, which runs already: only whether prefill did its part. Its one token is decode's too."""
        answer = prefill_answer(outputs)
        if answer.finish_reason is None:
            raise IncompleteReply("prefill's reply has no finish reason")
        return PrefillResult(None, prompt_details(answer))

    # ---- decode leg, and plain requests

    def generate_call(self, request: PreprocessedRequest, ids: AttemptIds) -> Call:
        if self.worker.traits.generates is False:
            # SGLang 0.5.23 with --is-embedding dies of a request for two tokens.
            raise InvalidRequest("This model makes embeddings and generates no text.", param="model")
        body = generate_body(request, ids.name, Leg.DECODE, self.worker)
        return Call(GENERATE, body, streams=streams(request, Leg.DECODE))

    def parser(self, request: PreprocessedRequest, leg: Leg) -> SglangReply:
        return SglangReply(request, self.worker.traits.incremental, self._reported)

    # ---- embeddings

    embed_room: ClassVar[int] = 1
    """SGLang 0.5.23 refuses an input as long as its context, as if an answer were to follow."""

    def embeds(self, *, parts: bool) -> bool:
        return True

    def embed_call(
        self, request: PreprocessedEmbeddingRequest, ids: AttemptIds, parts: Sequence[Mapping[str, Any]] = ()
    ) -> Call:
        """Releases that know `encoding_format` answer in base64, others in lists all the same."""
        body: dict[str, Any] = {"model": self.model, "encoding_format": "base64"}
        body["input"] = flat_parts(parts) if parts else request.token_ids
        count = len(body["input"])
        # What is not a list of lists of ids is one request when it is alone, and has one id.
        body["rid"] = ids.name if parts and count == 1 else [f"{ids.name}_{index}" for index in range(count)]
        if request.dimensions is not None:
            body["dimensions"] = request.dimensions
        return Call(EMBEDDINGS, orjson.dumps(body))

    def embed_parser(
        self, request: PreprocessedEmbeddingRequest, parts: Sequence[Mapping[str, Any]] = ()
    ) -> OpenAIEmbeddings:
        return OpenAIEmbeddings(len(parts) or len(request.token_ids))

    # ---- failures

    def rejection(self, status: int, body: bytes) -> GatewayError:
        error = error_body(body)
        return self._peculiar(status, error) or self._blamed(http_error(status, error))

    def _reported(self, error: ErrorBody) -> GatewayError:
        """What an error inside a reply of status 200 means. Its type says "invalid request" whatever its code is."""
        if not isinstance(error.code, int) or not 400 <= error.code < 600:
            return self._blamed(event_error(error))
        return self._peculiar(error.code, error) or self._blamed(http_error(error.code, error))

    def _peculiar(self, status: int, error: ErrorBody) -> GatewayError | None:
        """Refusals with status 400 that are not the client's fault."""
        if status != 400:
            return None
        if "bootstrap room" in error.message:
            return WorkerMisconfigured(
                f"the worker is started for disaggregation: {error.message}", worker_status=status
            )
        if error.message.startswith("Duplicate request ID"):
            # A call repeated on a fresh connection finds its first copy alive.
            return EngineFailure(error.message, worker_status=status, blame=Blame.NOBODY)
        if "LoRA adapter" in error.message:
            return ModelNotFound(error.message, param="model")
        return None

    def _blamed(self, found: GatewayError) -> GatewayError:
        """A failure on either leg of a pair may be its peer's: transfers fail on both sides."""
        if isinstance(found, EngineFailure) and self.worker.role is not Role.AGGREGATED:
            found.blame = Blame.PAIR
        return found

    def abort_calls(self, ids: AttemptIds) -> Sequence[Call]:
        """Matched by prefix, so ids are of one length. The engine sees a closed connection only seconds later."""
        return (Call("/abort_request", orjson.dumps({"rid": ids.name})),)

    # ---- what it can do

    def plain(self, role: Role) -> bool:
        return role is Role.AGGREGATED

    def unsupported(self, request: PreprocessedRequest) -> str | None:
        options = request.sampling_options
        guided = options.guided_decoding
        refused = {
            "prompt_embeds": request.prompt_embeds is not None,
            "multi_modal_data": bool(request.multi_modal_data),
            "use_beam_search": bool(options.use_beam_search),
            "best_of": (options.best_of or 1) > (options.n or 1),
            "guided_whitespace_pattern": guided is not None and guided.whitespace_pattern is not None,
            **({} if guided is None else guided.switches()),
        }
        return next((name for name, is_refused in refused.items() if is_refused), None) or SGLANG.refusal(request)

    # ---- control plane

    def health_probe(self) -> Probe:
        """`/health` runs a request on an idle server: it takes a second or more, up to 20 s under load."""
        if self.worker.traits.ready_route is False:
            return Probe(_HEALTH, timeout_s=25.0, interval_s=30.0)
        return Probe(_READY)

    def healthy(self, reply: ProbeReply) -> bool:
        """A server that does not know `/ready` is up."""
        return reply.status == 200 or (reply.status == 404 and self.worker.traits.ready_route is None)

    def info_probes(self) -> Sequence[Probe]:
        return Probe("/v1/models"), Probe(_SERVER_INFO), Probe(_OLD_SERVER_INFO), Probe(_READY)

    def traits(self, replies: Mapping[str, ProbeReply]) -> WorkerTraits:
        name, context_length = served_model(replies)
        info = object_at(replies, _SERVER_INFO) or object_at(replies, _OLD_SERVER_INFO)
        ready = replies.get(_READY)
        # Until late 2025 the flag was called stream_output.
        incremental = info.get("incremental_streaming_output", info.get("stream_output"))
        return WorkerTraits(
            served_name=name or text(info.get("served_model_name")),
            version=text(info.get("version")),
            context_length=context_length or count(info.get("context_length")),
            incremental=incremental if isinstance(incremental, bool) else None,
            page_size=count(info.get("page_size")),
            kv_dtype=text(info.get("kv_cache_dtype")),
            incarnation=_incarnation(info),
            role=_ROLES.get(str(info.get("disaggregation_mode"))),
            dp_size=count(info.get("dp_size")),
            bootstrap_port=count(info.get("disaggregation_bootstrap_port")),
            ready_route=None if ready is None else ready.status != 404,
            priority_sign=_priority_sign(info),
            # The flag alone: some architectures make embeddings without it.
            generates=False if info.get("is_embedding") is True else None,
        )


def _priority_sign(info: Mapping[str, Any]) -> int | None:
    enabled = info.get("enable_priority_scheduling")
    if not isinstance(enabled, bool):
        return None
    return (-1 if info.get("schedule_low_priority_values_first") else 1) if enabled else 0


def _incarnation(info: Mapping[str, Any]) -> str | None:
    """No start time is told, but how long each step of the start took: that does not come twice."""
    if not info.get("startup_time"):
        return None
    told = orjson.dumps([info["startup_time"], info.get("random_seed")], option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(told, digest_size=8).hexdigest()
