"""How to speak to people's own engines: `PreprocessedRequest` in, `LLMEngineOutput` out (docs/native_protocol.md).

Nothing is translated. A worker that says so gets MessagePack, and packed token ids on that; JSON otherwise. Two legs
run at once where the prefill worker has a bootstrap address, else prefill first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from engines.base import AttemptIds, Call, EngineAdapter, Probe, ProbeReply, Release, ReplyParser
from engines.embeddings import NativeEmbeddings
from engines.error_body import error_body, http_error
from engines.fields import extra_body, unreserved
from engines.messagepack import INSTALLED, pack, unpack
from engines.native_reply import NativeMsgpackReply, NativeReply
from engines.prefill_answer import is_terminal, prefill_answer, prompt_details
from engines.probe_replies import count, object_at, text
from protocols.errors import Blame, EngineFailure, GatewayError
from protocols.outputs import LLMEngineOutput
from protocols.preprocessed import BootstrapInfo, PrefillResult, PreprocessedEmbeddingRequest, PreprocessedRequest
from protocols.wire import to_wire
from protocols.worker import Leg, Role, WorkerTraits

GENERATE = "/v1/native/generate"
EMBED = "/v1/native/embed"
INFO = "/v1/native/info"
HEALTH = "/health"
JSON, MSGPACK = "application/json", "application/msgpack"
_TRANSFER = ("transfer", "handshake", "bootstrap")
_ROLES = {role.value: role for role in Role}


class NativeAdapter(EngineAdapter):
    """An engine that takes our own values."""

    release_at = Release.FIRST_TOKEN
    default_lease_s = None
    default_prefill_policy = "strict"

    @property
    def _binary(self) -> bool:
        return INSTALLED and self.worker.traits.msgpack

    @property
    def _bootstrap_port(self) -> int | None:
        return self.worker.bootstrap_port or self.worker.traits.bootstrap_port

    # ---- prefill leg

    def bootstrap(self, ids: AttemptIds, dp_rank: int | None) -> BootstrapInfo | None:
        port, worker = self._bootstrap_port, self.worker
        if port is None:
            return None
        room, ranks = ids.number, worker.dp_size if worker.dp_size > 1 else worker.traits.dp_size or 1
        if dp_rank is not None:
            room += dp_rank % ranks - room % ranks
            room -= ranks if room >= 2**63 else 0
        return BootstrapInfo(worker.bootstrap_host or worker.host, port, room)

    def prefill_call(self, request: PreprocessedRequest, ids: AttemptIds) -> Call:
        """One token, whatever its minimum; the worker's role tells it that the prompt's KV is to be handed over."""
        one_token = replace(request.stop_conditions, max_tokens=1, min_tokens=None)
        return self._call(replace(request, stop_conditions=one_token, prefill_result=None), ids)

    def handoff(self, outputs: Sequence[LLMEngineOutput]) -> PrefillResult | LLMEngineOutput | None:
        """The parameters as they came; with a bootstrap there need be none, since decode runs already.

        A `ctx_request_id` that is null, or missing where one must be, is refused.
        """
        answer = prefill_answer(outputs)
        params = answer.disaggregated_params
        if is_terminal(answer):
            answer.disaggregated_params = None
            return answer
        if params is None and self._bootstrap_port is None:
            raise EngineFailure("prefill's output has no disaggregated_params")
        if isinstance(params, Mapping) and _lacks_ctx_request_id(params):
            raise EngineFailure("prefill gave no usable ctx_request_id for a hand-off that is not terminal")
        return PrefillResult(params, prompt_details(answer))

    # ---- decode leg, and plain requests

    def generate_call(self, request: PreprocessedRequest, ids: AttemptIds) -> Call:
        return self._call(request, ids)

    def parser(self, request: PreprocessedRequest, leg: Leg) -> ReplyParser:
        return (NativeMsgpackReply if self._binary else NativeReply)(leg, self._blamed)

    # ---- embeddings

    def embeds(self, *, parts: bool) -> bool:
        return not parts

    def embed_call(
        self, request: PreprocessedEmbeddingRequest, ids: AttemptIds, parts: Sequence[Mapping[str, Any]] = ()
    ) -> Call:
        values = to_wire(replace(request, model=self.model))
        body, kind = (pack(values), MSGPACK) if self._binary else (orjson.dumps(values), JSON)
        return Call(EMBED, body, (("X-Request-Id", ids.name), ("Accept", kind)), content_type=kind)

    def embed_parser(
        self, request: PreprocessedEmbeddingRequest, parts: Sequence[Mapping[str, Any]] = ()
    ) -> NativeEmbeddings:
        return NativeEmbeddings(len(request.token_ids))

    def _call(self, request: PreprocessedRequest, ids: AttemptIds) -> Call:
        binary = self._binary
        values: dict[str, Any] = request.to_wire(packed=binary and self.worker.traits.packed_ids)
        values["model"] = self.model
        if extra_body(request):
            values["extra_args"] = _without_reserved(values["extra_args"], unreserved(request))
        body = pack(values) if binary else orjson.dumps(values, option=orjson.OPT_NON_STR_KEYS)
        kind = MSGPACK if binary else JSON
        accept = MSGPACK if binary else "text/event-stream"
        return Call(GENERATE, body, (("X-Request-Id", ids.name), ("Accept", accept)), content_type=kind)

    # ---- failures

    def rejection(self, status: int, body: bytes) -> GatewayError:
        """Of the same envelope in both codecs."""
        if self._binary and body[:1] >= b"\x80":
            body = _as_json(body)
        return self._blamed(http_error(status, error_body(body)))

    def _blamed(self, found: GatewayError) -> GatewayError:
        """What a leg says of the way between the two may be its peer's fault."""
        if isinstance(found, EngineFailure) and self.worker.role is not Role.AGGREGATED:
            words = found.message.lower()
            if any(word in words for word in _TRANSFER):
                found.blame = Blame.PAIR
        return found

    # ---- what it can do

    def plain(self, role: Role) -> bool:
        return role is Role.AGGREGATED

    def unsupported(self, request: PreprocessedRequest) -> str | None:
        """Nothing: the request goes over whole, and the engine refuses what it cannot do."""
        return None

    # ---- control plane

    def health_probe(self) -> Probe:
        return Probe(HEALTH)

    def info_probes(self) -> Sequence[Probe]:
        return (Probe(INFO),)

    def traits(self, replies: Mapping[str, ProbeReply]) -> WorkerTraits:
        """Every member of the worker's info is optional."""
        info = object_at(replies, INFO)
        return WorkerTraits(
            served_name=text(info.get("model")),
            version=text(info.get("version")),
            context_length=count(info.get("context_length")),
            packed_ids=info.get("packed_ids") is True,
            msgpack=info.get("msgpack") is True,
            page_size=count(info.get("page_size")),
            kv_dtype=text(info.get("kv_dtype")),
            incarnation=text(info.get("incarnation")),
            role=_ROLES.get(text(info.get("role")) or ""),
            dp_size=count(info.get("dp_size")),
            bootstrap_port=count(info.get("bootstrap_port")),
        )


def _without_reserved(extra_args: Mapping[str, Any], left: Mapping[str, Any]) -> dict[str, Any]:
    """`left`: what passes of the client's own fields."""
    others = {name: value for name, value in extra_args.items() if name != "extra_body"}
    return {**others, "extra_body": left} if left else others


def _lacks_ctx_request_id(params: Mapping[str, Any]) -> bool:
    """TensorRT-LLM behind a native server: null, or missing where its kind of parameters must have it."""
    if "ctx_request_id" in params:
        return params["ctx_request_id"] is None
    return params.get("request_type") == "context_only"


def _as_json(body: bytes) -> bytes:
    try:
        return orjson.dumps(unpack(body), default=str, option=orjson.OPT_NON_STR_KEYS)
    except (ValueError, TypeError):
        return body
