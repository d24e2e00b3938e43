"""What an engine sends up (`LLMEngineOutput`), and what the decoder makes of it (`BackendOutput`).

Both are made once per read of a worker's reply and never kept, so they are plain slotted dataclasses. Wire names and
which nulls are written follow dynamo-llm 1.6. A finish of kind error *is* an error: whoever reads outputs asks
`error()`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from protocols.token_ids import read_token_list
from protocols.wire import WireError, from_wire, to_wire, wire

StopReason = str | int
"""The stop string or the token id that ended the answer."""


class FinishKind(enum.Enum):
    EOS = "eos"
    LENGTH = "length"
    STOP = "stop"
    ERROR = "error"
    CANCELLED = "cancelled"
    CONTENT_FILTER = "content_filter"


@dataclass(frozen=True, slots=True)
class FinishReason:
    """Why an engine ended. Only the kind error carries a message.

    On the wire: the kind's name, or `{"error": message}`. Read as well: `"error"`, `"error: message"`, `"abort"`.
    """

    kind: FinishKind
    message: str = ""

    EOS: ClassVar[FinishReason]
    LENGTH: ClassVar[FinishReason]
    STOP: ClassVar[FinishReason]
    CANCELLED: ClassVar[FinishReason]
    CONTENT_FILTER: ClassVar[FinishReason]

    @classmethod
    def error(cls, message: str) -> FinishReason:
        return cls(FinishKind.ERROR, message)

    def __wire__(self) -> Any:
        return {"error": self.message} if self.kind is FinishKind.ERROR else self.kind.value

    @classmethod
    def __from_wire__(cls, value: Any) -> FinishReason:
        if isinstance(value, Mapping) and len(value) == 1 and "error" in value:
            return cls.error(str(value["error"]))
        if not isinstance(value, str):
            raise WireError(f"expected a finish reason, got {value!r}")
        name, _, message = value.partition(":")
        if name == "error":
            return cls.error(message.strip())
        try:
            return cls(FinishKind("cancelled" if value == "abort" else value))
        except ValueError:
            raise WireError(f"unknown finish reason {value!r}") from None


FinishReason.EOS = FinishReason(FinishKind.EOS)
FinishReason.LENGTH = FinishReason(FinishKind.LENGTH)
FinishReason.STOP = FinishReason(FinishKind.STOP)
FinishReason.CANCELLED = FinishReason(FinishKind.CANCELLED)
FinishReason.CONTENT_FILTER = FinishReason(FinishKind.CONTENT_FILTER)


class OutputType(enum.Enum):
    TEXT = "text"
    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True)
class ContentPart:
    """A part of a non-text output. `kind` is text, image_url, video_url or audio_url; `value` the text or the URL."""

    kind: str
    value: str

    def __wire__(self) -> Any:
        inner = self.value if self.kind == "text" else {"url": self.value}
        return {"type": self.kind, self.kind: inner}

    @classmethod
    def __from_wire__(cls, value: Any) -> ContentPart:
        kind = value.get("type") if isinstance(value, Mapping) else None
        inner = value.get(kind) if kind in ("text", "image_url", "video_url", "audio_url") else None
        if kind != "text":
            inner = inner.get("url") if isinstance(inner, Mapping) else None
        if kind is None or not isinstance(inner, str):
            raise WireError(f"not a content part: {value!r:.80}")
        return cls(kind, inner)


@dataclass(slots=True)
class TopLogprob:
    """One alternative at a position. `rank` counts from 1; the sampled token may stand outside the top k.

    `token_id` is -1 where the engine told only the token's text (TensorRT-LLM).
    """

    rank: int
    token_id: int
    token: str | None = wire(default=None, null=True)
    logprob: float = wire(default=0.0, required=True)
    bytes: list[int] | None = None


@dataclass(slots=True)
class PromptLogprobEntry:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PromptLogprobs = list[dict[int, PromptLogprobEntry] | None]
"""Per prompt position: token id -> entry. The first position is None."""


@dataclass(slots=True)
class PromptTokensDetails:
    cached_tokens: int | None = None
    audio_tokens: int | None = None


@dataclass(slots=True)
class CompletionTokensDetails:
    reasoning_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None
    audio_tokens: int | None = None


@dataclass(slots=True)
class CompletionUsage:
    """Token counts as an engine reports them. Details that are unknown are None, never 0."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None

    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


@dataclass(frozen=True, slots=True)
class TraceLink:
    """Points from a later worker's span to an earlier one's: W3C ids, 32 and 16 hex digits."""

    trace_id: str
    span_id: str


class DecoderCheckpoint:
    """A decoder's state between two outputs: the text a stop filter withholds, and the ids not yet turned into text.

    On the wire it is the bare withheld string; the pending ids live in memory only.
    """

    __slots__ = ("jailed_text", "pending_token_ids")

    def __init__(self, jailed_text: str = "", pending_token_ids: Sequence[int] = ()) -> None:
        self.jailed_text = jailed_text
        self.pending_token_ids = tuple(pending_token_ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DecoderCheckpoint):
            return NotImplemented
        return (self.jailed_text, self.pending_token_ids) == (other.jailed_text, other.pending_token_ids)

    def __hash__(self) -> int:
        return hash((self.jailed_text, self.pending_token_ids))

    def __repr__(self) -> str:
        return f"DecoderCheckpoint({self.jailed_text!r}, {self.pending_token_ids!r})"

    def __wire__(self) -> str:
        return self.jailed_text

    @classmethod
    def __from_wire__(cls, value: Any) -> DecoderCheckpoint:
        if not isinstance(value, str):
            raise WireError(f"expected a string, got {value!r}")
        return cls(value)


def _object_only(value: Any) -> Mapping[str, Any] | None:
    if value is not None and not isinstance(value, Mapping):
        raise WireError("must be a JSON object")
    return value


@dataclass(slots=True)
class LLMEngineOutput:
    """What one read of an engine's reply brought for one choice: 0..N new ids, never cumulative.

    `tokens`/`text` are set when the engine detokenizes itself. `log_probs[i]` and `top_logprobs[i]` belong to
    `token_ids[i]`. `disaggregated_params` is the engine's own hand-off payload, opaque to us. `engine_data` is
    passed through; `prompt_logprobs` in it is read by `prompt_logprobs_of`.
    """

    token_ids: list[int] = wire(default_factory=list, required=True, encode=list, decode=read_token_list)
    tokens: list[str | None] | None = wire(default=None, null=True)
    text: str | None = wire(default=None, null=True)
    output_type: OutputType = OutputType.TEXT
    content_parts: list[ContentPart] | None = None
    cum_log_probs: float | None = wire(default=None, null=True)
    log_probs: list[float] | None = wire(default=None, null=True)
    top_logprobs: list[list[TopLogprob]] | None = wire(default=None, null=True)
    finish_reason: FinishReason | None = wire(default=None, null=True)
    stop_reason: StopReason | None = None
    index: int | None = wire(default=None, null=True)
    disaggregated_params: Any = None
    encoder_result: Mapping[str, Any] | None = wire(default=None, decode=_object_only)
    worker_trace_link: TraceLink | None = None
    extra_args: Any = None
    completion_usage: CompletionUsage | None = None
    engine_data: Any = None
    routing_data: Any = None
    jailed_text: DecoderCheckpoint | None = None

    @classmethod
    def cancelled(cls) -> LLMEngineOutput:
        return cls(finish_reason=FinishReason.CANCELLED)

    @classmethod
    def stop(cls) -> LLMEngineOutput:
        return cls(finish_reason=FinishReason.STOP)

    @classmethod
    def length(cls) -> LLMEngineOutput:
        return cls(finish_reason=FinishReason.LENGTH)

    @classmethod
    def failed(cls, message: str) -> LLMEngineOutput:
        """The seeds' `error(...)`: a terminal output that is an error."""
        return cls(finish_reason=FinishReason.error(message))

    @classmethod
    def encode_terminal(cls, encoder_result: Mapping[str, Any]) -> LLMEngineOutput:
        """The last output of an encode worker: no ids, finish stop, index 0, the payload an object."""
        return cls(finish_reason=FinishReason.STOP, index=0, encoder_result=_object_only(encoder_result))

    def error(self) -> str | None:
        """The engine's words if this output is an error, else None."""
        reason = self.finish_reason
        return reason.message if reason is not None and reason.kind is FinishKind.ERROR else None

    def to_wire(self) -> dict[str, Any]:
        out: dict[str, Any] = to_wire(self)
        return out

    @classmethod
    def from_wire(cls, value: Any) -> LLMEngineOutput:
        """Reads an output; `token_ids` must be there, all else may be missing. Raises WireError."""
        return from_wire(cls, value)


@dataclass(slots=True)
class BackendOutput:
    """One step of a decoded answer.

    `token_ids`, `tokens`, `log_probs`, `top_logprobs` are aligned and never held back; `tokens[i]` is the text of
    `token_ids[i]` alone. `text` is what may be shown now; it may lag the ids. `jailed_text` is the decoder's
    checkpoint after this output.
    """

    token_ids: list[int] = wire(default_factory=list, required=True, encode=list, decode=read_token_list)
    tokens: list[str | None] = wire(default_factory=list, required=True)
    text: str | None = wire(default=None, null=True)
    cum_log_probs: float | None = wire(default=None, null=True)
    log_probs: list[float] | None = wire(default=None, null=True)
    top_logprobs: list[list[TopLogprob]] | None = wire(default=None, null=True)
    finish_reason: FinishReason | None = wire(default=None, null=True)
    stop_reason: StopReason | None = None
    index: int | None = wire(default=None, null=True)
    completion_usage: CompletionUsage | None = None
    disaggregated_params: Any = None
    encoder_result: Mapping[str, Any] | None = wire(default=None, decode=_object_only)
    worker_trace_link: TraceLink | None = None
    engine_data: Any = None
    routing_data: Any = None
    jailed_text: DecoderCheckpoint | None = None

    def error(self) -> str | None:
        """The engine's words if this output is an error, else None."""
        reason = self.finish_reason
        return reason.message if reason is not None and reason.kind is FinishKind.ERROR else None

    def to_wire(self) -> dict[str, Any]:
        out: dict[str, Any] = to_wire(self)
        return out

    @classmethod
    def from_wire(cls, value: Any) -> BackendOutput:
        return from_wire(cls, value)


@dataclass(slots=True)
class EmbeddingsEngineOutput:
    """Base64 of little-endian float32 vectors, one string per input, and token counts."""

    embeddings: list[str]
    prompt_tokens: int
    total_tokens: int


def _error_words(value: Any) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("message")
    if value is not None and not isinstance(value, str):
        raise WireError(f"expected an error's words, got {value!r:.60}")
    return value


@dataclass(slots=True)
class Annotated:
    """The envelope of an event stream: data, or an event with comments, or an error.

    `error` is read from a string or from an object's `message`.
    """

    data: LLMEngineOutput | None = None
    id: str | None = None
    event: str | None = None
    comment: list[str] | None = None
    error: str | None = wire(default=None, decode=_error_words)

    def failure(self) -> str | None:
        """The error's words, whether the envelope or its data carries it."""
        if self.error is not None:
            return self.error
        if self.event == "error":
            return "; ".join(self.comment or ()) or "unspecified error"
        return self.data.error() if self.data is not None else None

    def to_wire(self) -> dict[str, Any]:
        out: dict[str, Any] = to_wire(self)
        return out

    @classmethod
    def from_wire(cls, value: Any) -> Annotated:
        """Reads an envelope. Raises WireError."""
        return from_wire(cls, value)


def prompt_logprobs_of(engine_data: Any) -> PromptLogprobs | None:
    """The prompt's logprobs out of `engine_data`. Raises WireError, saying so, when they are malformed."""
    if not isinstance(engine_data, Mapping) or engine_data.get("prompt_logprobs") is None:
        return None
    try:
        return from_wire(_PromptLogprobsHolder, engine_data).prompt_logprobs
    except WireError as error:
        raise WireError(f"invalid prompt_logprobs payload: {error}") from None


@dataclass(slots=True)
class _PromptLogprobsHolder:
    prompt_logprobs: list[dict[int, PromptLogprobEntry] | None]
