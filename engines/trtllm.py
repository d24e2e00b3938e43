"""How to speak to TensorRT-LLM (`trtllm-serve`), 1.1 to 1.3 and later, from the server's sources.

Prefill first ("context_first"): prefill samples the first token, and decode's reply begins with it. Once prefill has
answered, only a decode call that got its first token frees the blocks; aborting does nothing, so no abort call is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from engines.base import AttemptIds, Call, EngineAdapter, Probe, ProbeReply, Release, ReplyParser
from engines.error_body import error_body, http_error
from engines.prefill_answer import is_terminal, prefill_answer, prompt_details
from engines.probe_replies import count, object_at, served_model, text
from engines.trtllm_logprobs import FIRST_TOKEN, first_token_member
from engines.trtllm_reply import TrtllmReply, reported_error
from engines.trtllm_request import Band, band_of, completion_body, unsupported_parameter
from protocols.errors import EngineFailure, GatewayError, InvalidRequest
from protocols.outputs import LLMEngineOutput
from protocols.preprocessed import PrefillResult, PreprocessedRequest
from protocols.wire import to_wire
from protocols.worker import Leg, Role, Worker, WorkerTraits

COMPLETIONS = "/v1/completions"


class TrtllmAdapter(EngineAdapter):
    """Completions by ids, without the server's detokenizer; every decode call streams."""

    release_at = Release.FIRST_TOKEN
    default_lease_s = 60.0
    """`kv_transfer_timeout_ms` by default; before March 2026 the server waited for ever."""
    default_prefill_policy = "local"

    def __init__(self, worker: Worker, model: str) -> None:
        super().__init__(worker, model)
        self._band = band_of(worker.version or worker.traits.version)

    # ---- prefill leg

    def prefill_call(self, request: PreprocessedRequest, ids: AttemptIds) -> Call:
        """`max_tokens` stays: the request type itself stops after one token."""
        params: dict[str, Any] = {"request_type": "context_only"}
        if self._band >= Band.FROM_1_2:
            params |= {"disagg_request_id": ids.number, "schedule_style": 0}
        return self._call(request, stream=False, params=params)

    def handoff(self, outputs: Sequence[LLMEngineOutput]) -> PrefillResult | LLMEngineOutput | None:
        """Prefill's own parameters with another request type, or the answer where the first token was the last.

        They are opaque and wholly relayed, since decode forbids what it does not know and needs all it knows.
        """
        answer = prefill_answer(outputs)
        params = answer.disaggregated_params
        if is_terminal(answer):
            answer.disaggregated_params = None
            return answer
        if not isinstance(params, Mapping):
            raise EngineFailure("prefill gave no usable ctx_request_id: its reply has no disaggregated_params")
        if params.get("ctx_request_id") is None:
            raise EngineFailure("prefill gave no usable ctx_request_id for a hand-off that is not terminal")
        given = {**params, "request_type": "generation_only", **first_token_member(answer)}
        if self._band >= Band.FROM_1_3 and answer.completion_usage is not None:
            given["ctx_usage"] = to_wire(answer.completion_usage)
        return PrefillResult(given, prompt_details(answer))

    # ---- decode leg, and plain requests

    def generate_call(self, request: PreprocessedRequest, ids: AttemptIds) -> Call:
        given = request.prefill_result.disaggregated_params if request.prefill_result is not None else None
        params = None if given is None else {name: value for name, value in given.items() if name != FIRST_TOKEN}
        return self._call(request, stream=True, params=params)

    def parser(self, request: PreprocessedRequest, leg: Leg) -> ReplyParser:
        return TrtllmReply(request, leg)

    def _call(self, request: PreprocessedRequest, *, stream: bool, params: Mapping[str, Any] | None) -> Call:
        body = completion_body(request, self.worker, self.model, self._band, stream=stream)
        if params is not None:
            body["disaggregated_params"] = params
        return Call(COMPLETIONS, orjson.dumps(body))

    # ---- failures

    def rejection(self, status: int, body: bytes) -> GatewayError:
        """A 400 is no proof of the client's fault here: see `reported_error`."""
        error = error_body(body)
        return reported_error(error, InvalidRequest) if status in (400, 422) else http_error(status, error)

    # ---- what it can do

    def plain(self, role: Role) -> bool:
        """Always: roles are a matter of the request. One token asked of a pair may come back as two."""
        return True

    def unsupported(self, request: PreprocessedRequest) -> str | None:
        return unsupported_parameter(request, self._band)

    # ---- control plane

    def health_probe(self) -> Probe:
        """Shallow: stays well while the engine hangs in a transfer."""
        return Probe("/health")

    def info_probes(self) -> Sequence[Probe]:
        return Probe("/version"), Probe("/v1/models"), Probe("/server_info")

    def traits(self, replies: Mapping[str, ProbeReply]) -> WorkerTraits:
        """Version, model name and, from 1.3 on, the block size. The server tells no context length."""
        name, _ = served_model(replies)
        return WorkerTraits(
            served_name=name,
            version=text(object_at(replies, "/version").get("version")),
            page_size=count(object_at(replies, "/server_info").get("tokens_per_block")),
        )
