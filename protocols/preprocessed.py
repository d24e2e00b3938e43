"""The internal form of a request (`PreprocessedRequest`): token ids, options, and what routing and hand-off add.

Frozen; changed by `dataclasses.replace`, which shares the token storage. What never goes on the wire is `local`.
Wire names and null rules follow dynamo-llm 1.6 (`cache_salt`, `_HEALTH_CHECK`, `mdc_sum: null`).
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocols.options import OutputOptions, SamplingOptions, StopConditions
from protocols.outputs import DecoderCheckpoint, PromptTokensDetails, TraceLink
from protocols.quick_init import quick_init
from protocols.token_ids import pack_token_ids, read_token_ids
from protocols.wire import WireError, from_wire, to_wire, wire

WorkerId = int


class RequestPhase(enum.Enum):
    """Which leg a request is in; worker ids recorded meanwhile belong to that leg."""

    AGGREGATED = "aggregated"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class RoutingConstraints:
    """Taints a worker must have, and weights of those it had better have."""

    required_taints: frozenset[str] = frozenset()
    preferred_taints: Mapping[str, float] = wire(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoutingHints:
    """Where a request should go. Set from headers and request extras, read by the routers.

    `priority_jump` is in seconds of earlier arrival; `strict_priority` a tier; `priority` the engine's own.
    `cache_namespace` (wire: `cache_salt`) isolates KV reuse.
    """

    backend_instance_id: WorkerId | None = None
    prefill_worker_id: WorkerId | None = None
    decode_worker_id: WorkerId | None = None
    dp_rank: int | None = None
    prefill_dp_rank: int | None = None
    expected_output_tokens: int | None = None
    lora_name: str | None = None
    cache_namespace: str | None = wire(default=None, name="cache_salt")
    priority_jump: float | None = None
    strict_priority: int | None = None
    priority: int | None = None
    allowed_worker_ids: frozenset[WorkerId] | None = None
    routing_constraints: RoutingConstraints | None = None


def _uint(bits: int, what: str) -> Any:
    def decode(value: Any) -> int:
        if type(value) is not int or not 0 <= value < 2**bits:
            raise WireError(f"expected {what}, got {value!r}")
        return value

    return decode


def _uuid(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return str(uuid.UUID(value))
    except (ValueError, AttributeError, TypeError):
        raise WireError(f"expected a UUID, got {value!r:.60}") from None


@dataclass(frozen=True, slots=True)
class BootstrapInfo:
    """What both legs of a pair must share before either starts. `bootstrap_room` is an exact integer.

    `handoff_id`: a UUID that names the hand-off for as long as it lives, for engines that want one.
    """

    bootstrap_host: str
    bootstrap_port: int = wire(decode=_uint(16, "a port (0..65535)"))
    bootstrap_room: int = wire(decode=_uint(64, "a room (0..2^64-1)"))
    handoff_id: str | None = wire(default=None, decode=_uuid)


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """What prefill gives decode: the engine's opaque payload, and the prompt's cache hits."""

    disaggregated_params: Any
    prompt_tokens_details: PromptTokensDetails | None = None


BlockExtraInfo = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MmRoutingInfo:
    """Tokens for prefix overlap only, where they differ from those executed (expanded media placeholders).

    `expanded_prompt_len` is the expanded length without the padding that `routing_token_ids` may carry.
    """

    routing_token_ids: tuple[int, ...] = wire(default=(), encode=list, decode=read_token_ids)
    block_mm_infos: tuple[Any, ...] = ()
    expanded_prompt_len: int = 0


@dataclass(frozen=True, slots=True)
class MultimodalData:
    """A media slot: `Url` (checked URL), `RawUrl` (as given), `Decoded` (descriptor), `UuidOnly` (cache id)."""

    kind: str
    value: Any

    def __wire__(self) -> Any:
        return {"Url" if self.kind == "RawUrl" else self.kind: to_wire(self.value)}

    @classmethod
    def __from_wire__(cls, value: Any) -> MultimodalData:
        if isinstance(value, Mapping) and len(value) == 1:
            kind, inner = next(iter(value.items()))
            if kind == "Decoded" or (kind in ("Url", "RawUrl", "UuidOnly") and isinstance(inner, str)):
                return cls(kind, inner)
        raise WireError(f"not a media slot: {value!r:.80}")


@dataclass(frozen=True, slots=True)
class RouterParams:
    """Targets from the request's `router` extras, in seconds."""

    ttft_target: float | None = None
    itl_target: float | None = None


@dataclass(frozen=True, slots=True)
class RouterConfigOverride:
    """One request's overrides of the KV router's knobs; never taken from a client."""

    overlap_score_credit: float | None = None
    prefill_load_scale: float | None = None
    router_temperature: float | None = None
    assume_kv_reuse: bool | None = None
    track_prefill_tokens: bool | None = None
    shared_cache_multiplier: float | None = None


@dataclass(frozen=True, slots=True)
class AgentContext:
    """Whose turn this is, for agents: session and parent session, and whether it is the session's last."""

    session_id: str | None = None
    parent_session_id: str | None = None
    session_final: bool | None = None
    agent_headers: Mapping[str, str] | None = None
    input_trigger: str | None = None


def _encoder_result(value: Any) -> Mapping[str, Any] | None:
    if value is not None and not isinstance(value, Mapping):
        raise WireError("must be a JSON object")
    return value


@quick_init
@dataclass(frozen=True, slots=True)
class PreprocessedRequest:
    """One request, ready for workers.

    `prompt_embeds` (base64 tensor) wins over `token_ids` for inference. `extra_args["extra_body"]` holds the client's
    unknown fields that an engine may take. `jail_seed`, `shown_token_ids`, `staged_kv_cleanup` and `phase` are this
    process's own.
    """

    token_ids: tuple[int, ...] = wire(encode=list, decode=read_token_ids)
    model: str = ""
    prompt_embeds: str | None = None
    multi_modal_data: Mapping[str, tuple[MultimodalData, ...]] | None = None
    multi_modal_uuids: Mapping[str, tuple[str | None, ...]] | None = None
    mm_routing_info: MmRoutingInfo | None = None
    stop_conditions: StopConditions = StopConditions()
    sampling_options: SamplingOptions = SamplingOptions()
    output_options: OutputOptions = OutputOptions()
    eos_token_ids: tuple[int, ...] = ()
    mdc_sum: str | None = wire(default=None, null=True)
    annotations: tuple[str, ...] = ()
    routing: RoutingHints | None = None
    router_config_override: RouterConfigOverride | None = wire(default=None, null=True)
    prefill_result: PrefillResult | None = None
    encoder_result: Mapping[str, Any] | None = wire(default=None, decode=_encoder_result)
    migration_link: TraceLink | None = None
    bootstrap_info: BootstrapInfo | None = None
    extra_args: Any = None
    kv_hint: Any = None
    require_reasoning: bool = wire(default=False, omit_false=True)
    router: RouterParams | None = None
    agent_context: AgentContext | None = None
    image_cache_scope: str | None = None
    mm_processor_kwargs: Any = None
    media_io_kwargs: Any = None
    request_timestamp_ms: float | None = None
    is_probe: bool = wire(default=False, name="_HEALTH_CHECK", omit_false=True)

    jail_seed: DecoderCheckpoint | None = wire(default=None, local=True)
    shown_token_ids: frozenset[int] = wire(default=frozenset(), local=True)
    """Special tokens whose text is not left out: whoever reads the answer's markup needs it."""
    staged_kv_cleanup: bool = wire(default=False, local=True)
    """Remote prefill pinned blocks that only this request's decode worker can release."""
    phase: RequestPhase = wire(default=RequestPhase.AGGREGATED, local=True)

    def has_annotation(self, annotation: str) -> bool:
        return annotation in self.annotations

    def get_annotation_value(self, key: str) -> str | None:
        """The value of the first annotation `key:value`; None when there is none."""
        prefix = f"{key}:"
        return next((a[len(prefix) :] for a in self.annotations if a.startswith(prefix)), None)

    def block_mm_routing_info(self) -> tuple[Sequence[int], Sequence[Any] | None]:
        """The ids to hash for prefix overlap, and per-block media info where there is any."""
        info = self.mm_routing_info
        if info is None or not info.routing_token_ids:
            return self.token_ids, None
        return info.routing_token_ids, info.block_mm_infos

    def expanded_prompt_token_count(self) -> int:
        """The prompt's length with media placeholders expanded."""
        info = self.mm_routing_info
        if info is None or not info.routing_token_ids or info.expanded_prompt_len <= 0:
            return len(self.token_ids)
        return info.expanded_prompt_len

    def to_wire(self, *, packed: bool = False) -> dict[str, Any]:
        """The wire map. `packed` puts ids as int32 bytes: for binary codecs only, and only where the reader says so."""
        out: dict[str, Any] = to_wire(self)
        if packed:
            out["token_ids"] = pack_token_ids(self.token_ids)
        return out

    @classmethod
    def from_wire(cls, value: Any) -> PreprocessedRequest:
        return from_wire(cls, value)


@dataclass(frozen=True, slots=True)
class PreprocessedEmbeddingRequest:
    """Tokenized inputs for an embedding engine. `truncate_prompt_tokens` -1 means the model's limit."""

    token_ids: tuple[tuple[int, ...], ...]
    model: str
    encoding_format: str | None = None
    truncate_prompt_tokens: int | None = None
    dimensions: int | None = wire(default=None, null=True)
    mdc_sum: str | None = wire(default=None, null=True)
    annotations: tuple[str, ...] = ()

    def has_annotation(self, annotation: str) -> bool:
        return annotation in self.annotations
