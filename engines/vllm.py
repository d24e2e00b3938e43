"""vLLM (seen: 0.32) over `/inference/v1/generate` where it is open, else over `/v1/completions`; NIXL hand-off.

Prefill first: its reply hands out `kv_transfer_params`, which decode gets as they came. Surprising: decode samples the
first token itself, so prefill's is dropped; and the parameters of an expired lease are answered with 200 and garbage.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import orjson

from engines.base import AttemptIds, Call, EngineAdapter, Probe, ProbeReply, Release
from engines.embedding_parts import chat_parts
from engines.embeddings import OpenAIEmbeddings
from engines.error_body import ErrorBody, error_body, event_error, http_error
from engines.fields import VLLM
from engines.prefill_answer import prefill_answer, prompt_details
from engines.probe_replies import count, object_at, served_model, text
from engines.vllm_reply import VllmReply
from engines.vllm_request import COMPLETIONS, GENERATE, PROMPT_LOGPROBS, Ask, completions_body, generate_body
from protocols.errors import (
    Blame,
    EngineFailure,
    GatewayError,
    IncompleteReply,
    InvalidRequest,
    ModelNotFound,
    ProtocolViolation,
    WorkerBusy,
    WorkerMisconfigured,
)
from protocols.outputs import LLMEngineOutput
from protocols.preprocessed import PrefillResult, PreprocessedEmbeddingRequest, PreprocessedRequest
from protocols.worker import Leg, Role, Worker, WorkerTraits

EMBEDDINGS = "/v1/embeddings"
_ABORT = "/inference/v1/abort_requests"
_VERSION, _METRICS = "/version", "/metrics"
_CACHE_CONFIG = re.compile(rb"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(rb'(\w+)="([^"]*)"')
_STARTED = re.compile(rb"^process_start_time_seconds (\S+)", re.MULTILINE)
_NO_PRIORITIES = "priority scheduling is not enabled"
_VALIDATION = "Bad Request"
"""The error type of a body that vLLM could not read; what it read and refuses is a BadRequestError."""
_ENGINE_DEAD = "EngineCore"
"""Part of what vLLM 0.32 says when its engine process died; the server follows it."""


class VllmAdapter(EngineAdapter):
    """Plain requests on any role; disaggregated over NIXL (pull or push, the parameters are opaque)."""

    release_at = Release.HEADERS
    default_lease_s: ClassVar[float | None] = 30.0
    default_prefill_policy = "local"
    late_reads_fail: ClassVar[bool] = False
    structural_tags = True

    # ---- prefill leg

    def prefill_call(self, request: PreprocessedRequest, ids: AttemptIds) -> Call:
        rank = request.routing.prefill_dp_rank if request.routing is not None else None
        return self._call(request, Ask.prefill(request), ids, rank)

    def handoff(self, outputs: Sequence[LLMEngineOutput]) -> PrefillResult | LLMEngineOutput | None:
        """Any finish hands over: decode samples the first token again. Without parameters nothing was pinned."""
        answer = prefill_answer(outputs)
        if answer.finish_reason is None:
            raise IncompleteReply("prefill's reply has no finish reason")
        params = answer.disaggregated_params
        if params is None:
            return None
        if not isinstance(params, dict) or not params:
            raise ProtocolViolation("prefill's kv_transfer_params are not an object with members")
        prompt_logprobs = answer.engine_data.get("prompt_logprobs") if answer.engine_data else None
        if prompt_logprobs is not None:
            params = {**params, PROMPT_LOGPROBS: prompt_logprobs}
        return PrefillResult(params, prompt_details(answer))

    # ---- decode leg, and plain requests

    def generate_call(self, request: PreprocessedRequest, ids: AttemptIds) -> Call:
        rank = request.routing.dp_rank if request.routing is not None else None
        return self._call(request, Ask.answer(request, self.worker), ids, rank)

    def parser(self, request: PreprocessedRequest, leg: Leg) -> VllmReply:
        return VllmReply(request, leg, self._reported)

    def _call(self, request: PreprocessedRequest, ask: Ask, ids: AttemptIds, rank: int | None) -> Call:
        headers = [("X-Request-Id", ids.name)]
        if rank is not None:
            headers.append(("X-data-parallel-rank", str(rank)))
        # An adapter is chosen by its name in place of the model's.
        model = (request.routing.lora_name if request.routing is not None else None) or self.model
        generate = self._generates(request)
        body = (generate_body if generate else completions_body)(request, ask, model, self.worker)
        return Call(GENERATE if generate else COMPLETIONS, body, tuple(headers), streams=ask.stream)

    def _generates(self, request: PreprocessedRequest) -> bool:
        return self.worker.traits.generate is True and request.prompt_embeds is None

    # ---- embeddings

    def embeds(self, *, parts: bool) -> bool:
        return True

    def embed_call(
        self, request: PreprocessedEmbeddingRequest, ids: AttemptIds, parts: Sequence[Mapping[str, Any]] = ()
    ) -> Call:
        """Content parts go as the content of one chat message: the one form of theirs that vLLM takes."""
        body: dict[str, Any] = {"model": self.model, "encoding_format": "base64"}
        if parts:
            body["messages"] = [{"role": "user", "content": chat_parts(parts)}]
        else:
            body["input"] = request.token_ids
        if request.dimensions is not None:
            body["dimensions"] = request.dimensions
        return Call(EMBEDDINGS, orjson.dumps(body), (("X-Request-Id", ids.name),))

    def embed_parser(
        self, request: PreprocessedEmbeddingRequest, parts: Sequence[Mapping[str, Any]] = ()
    ) -> OpenAIEmbeddings:
        return OpenAIEmbeddings(1 if parts else len(request.token_ids))

    # ---- failures

    def rejection(self, status: int, body: bytes) -> GatewayError:
        error = error_body(body)
        if status == 404 and error.type == "NotFoundError":
            # The name we know the model by is our configuration; another name is an adapter's that is not loaded.
            if f"`{self.model}`" in error.message:
                return WorkerMisconfigured(f"the worker answered 404: {error.message}", worker_status=status)
            return ModelNotFound(error.message, param="model")
        if status == 501:
            return InvalidRequest(error.message, param=error.param)
        return _judged(http_error(status, error), error, reads_kv=self.worker.role is Role.DECODE)

    def _reported(self, error: ErrorBody, reads_kv: bool) -> GatewayError:
        """What an error inside a reply of status 200 means."""
        return _judged(event_error(error), error, reads_kv=reads_kv)

    def refusal_frees(self, request: PreprocessedRequest, body: bytes) -> bool:
        """vLLM 0.32: the handler of the completions route, when it refuses, has prefill free what was to be read.

        That of the generate route does not. Validation and what stands before it (keys, proxies) refuse before the
        handler; a dead engine tells nobody; and once there is a stream, the handler is done.
        """
        if self._generates(request):
            return False
        error = error_body(body)
        return error.type not in (None, _VALIDATION) and _ENGINE_DEAD not in error.message

    def learn(self, call: Call, status: int, body: bytes) -> Worker | None:
        """The generate route is closed (403 since 0.32 unless started with `--enable-scale-out`, 404 before it came),
        or takes no stop strings; or the server has no priorities, and refuses all but 0.
        """
        traits, error = self.worker.traits, error_body(body)
        if status == 400 and _NO_PRIORITIES in error.message.lower() and traits.priority_sign != 0:
            return replace(self.worker, traits=replace(traits, priority_sign=0))
        if call.path != GENERATE:
            return None
        if status == 403 or (status == 404 and error.type != "NotFoundError"):
            return replace(self.worker, traits=replace(traits, generate=False))
        if status == 400 and "--tokens-only" in error.message and traits.stop_strings is not False:
            return replace(self.worker, traits=replace(traits, stop_strings=False))
        return None

    def abort_calls(self, ids: AttemptIds) -> Sequence[Call]:
        """By the ids that the engine made of ours, on either route; its own 200 says nothing of success."""
        if self.worker.traits.generate is not True:
            return ()
        names = [f"generate-tokens-{ids.name}", f"cmpl-{ids.name}-0"]
        return (Call(_ABORT, orjson.dumps({"request_ids": names})),)

    # ---- what it can do

    def plain(self, role: Role) -> bool:
        return True

    def unsupported(self, request: PreprocessedRequest) -> str | None:
        options = request.sampling_options
        if request.multi_modal_data:
            return "multi_modal_data"
        if options.use_beam_search:
            return "use_beam_search"
        if (options.best_of or 1) > (options.n or 1):
            return "best_of"
        return VLLM.refusal(request)

    # ---- control plane

    def health_probe(self) -> Probe:
        """Shallow, and 200 while the server drains: what it answers then ends by "abort"."""
        return Probe("/health")

    def info_probes(self) -> Sequence[Probe]:
        """An empty body tells whether generate is open: 400 if so, 403 or 404 if not."""
        return Probe("/v1/models"), Probe(_VERSION), Probe(GENERATE, "POST", b"{}"), Probe(_METRICS)

    def traits(self, replies: Mapping[str, ProbeReply]) -> WorkerTraits:
        name, context_length = served_model(replies)
        metrics = replies.get(_METRICS)
        page = metrics.body if metrics is not None and metrics.status == 200 else b""
        cache = _CACHE_CONFIG.search(page)
        labels = dict(_LABEL.findall(cache[1])) if cache else {}
        block_size = labels.get(b"block_size", b"")
        started = _STARTED.search(page)
        return WorkerTraits(
            served_name=name,
            version=text(object_at(replies, _VERSION).get("version")),
            context_length=context_length,
            generate=_is_open(replies.get(GENERATE)),
            page_size=count(int(block_size)) if block_size.isdigit() else None,
            kv_dtype=text(labels.get(b"cache_dtype", b"").decode()),
            incarnation=started[1].decode() if started else None,
        )


def _is_open(reply: ProbeReply | None) -> bool | None:
    if reply is None:
        return None
    if reply.status in (400, 422):
        return True
    return False if reply.status in (403, 404, 405) else None


def _judged(found: GatewayError, error: ErrorBody, *, reads_kv: bool) -> GatewayError:
    """vLLM's peculiarities. `reads_kv`: the worker may have been fetching the prompt's KV from its peer."""
    if isinstance(found, WorkerBusy) and error.type == "ServiceUnavailableError":
        # One request failed and may be sent again (a KV load, as a rule); overload has another type.
        found = EngineFailure(found.message, worker_status=found.worker_status)
    if isinstance(found, EngineFailure) and reads_kv and _ENGINE_DEAD not in found.message:
        # A peer that is gone and a broken transfer both read "Internal server error".
        found.blame = Blame.PAIR
    if isinstance(found, InvalidRequest) and found.param is not None:
        found.param = found.param.removeprefix("body.").removeprefix("sampling_params.")
    return found
