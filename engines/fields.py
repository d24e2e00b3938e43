"""Which fields of a client's own request may reach an engine (hard rule 7), one table for each engine.

A client may name fields that only an engine knows; they arrive together as `extra_args["extra_body"]`. What names a
request, a worker, a rank, a session, a transfer, an adapter, a URL, code, or the prompt never passes, whatever the
engine. What nobody knows passes beside the parameters that are known, where the engine ignores what it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocols.preprocessed import PreprocessedRequest

_RESERVED = frozenset(
    {
        # the prompt, and what becomes of it
        "prompt", "text", "token_ids", "input_ids", "input_embeds", "positional_embed_overrides", "features",
        "content_parts", "modalities", "images_config", "video_config", "use_audio_in_video", "token_offsets",
        "multi_item_delimiter_indices", "token_indices_to_pool", "add_special_tokens", "documents", "messages",
        "trace_decode_token_ids", "reasoning_ended", "sampling_params", "max_dynamic_patch", "min_dynamic_patch",
        "prompt_token_ids", "prompt_token_ids_b64",
        # requests, workers, ranks, sessions, caches
        "model", "rid", "request_id", "conversation_id", "conversation_params", "routing_key", "room",
        "decode_tp_size", "data_parallel_rank", "http_worker_ipc", "background", "extra_key",
        "skip_reading_prefix_cache", "received_time", "need_wait_for_mm_inputs", "num_items_assigned",
        # transfers, addresses, code
        "disaggregated_params", "extra_args", "vllm_xargs", "custom_params", "custom_logit_processor",
        "chat_template", "external_trace_header", "encoder_urls", "disagg_request_id",
        # what we count, log and observe
        "log_metrics", "no_logs", "output_kind", "output_mode", "detokenize", "skip_clone", "flat_logprobs",
        "routed_experts_start_len", "routed_experts_prompt_start", "sampling_logprobs_mode",
        "prompt_logprob_token_ids", "prompt_logprob_start", "logprob_start_len", "token_ids_logprob",
    }
)  # fmt: skip
_RESERVED_SHAPE = re.compile(
    r"(?:bootstrap_|session_|kv_|ec_|mm_|stream|return_|truncat|lora_|image_|video_|audio_)"
    r"|.*(?:dp_rank|transfer_params|_data|_urls?|labels|image_url)$"
)

GATEWAY = frozenset(
    {
        "n", "best_of", "echo", "suffix", "user", "metadata", "response_format", "tools", "tool_choice",
        "parallel_tool_calls", "reasoning_effort", "include_reasoning", "chat_template_kwargs",
        "add_generation_prompt", "continue_final_message", "logprobs", "top_logprobs", "max_completion_tokens",
        "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
        "presence_penalty", "frequency_penalty", "seed", "stop", "stop_token_ids", "include_stop_str_in_output",
        "ignore_eos", "skip_special_tokens", "logit_bias", "prompt_logprobs", "cache_salt", "priority",
        "prompt_embeds", "use_beam_search", "length_penalty", "thinking_token_budget", "max_thinking_tokens",
        "thinking", "separate_reasoning", "functions", "function_call", "chat_template_args",
        # what only OpenAI's own service does something with
        "audio", "prediction", "moderation", "web_search_options", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "safety_identifier", "service_tier", "store", "verbosity",
        "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag",
        "guided_decoding_backend", "guided_whitespace_pattern", "regex", "ebnf", "json_schema",
    }
)  # fmt: skip
"""Fields the gateway reads itself; an engine gets what they became in the typed request."""

_SHAPES_THE_ANSWER = frozenset(
    {
        "allowed_token_ids", "bad_words", "beam_width", "logprob_token_ids", "repetition_detection",
        "stop_regex", "watermark", "watermarking",
    }
)  # fmt: skip
"""Fields of one engine or another that are worth a refusal where they cannot be honoured."""


def reserved(name: str) -> bool:
    """Whether only the gateway may set a field of this name, on whatever engine."""
    return name in _RESERVED or (_RESERVED_SHAPE.match(name) is not None and name not in GATEWAY)


@dataclass(frozen=True, slots=True)
class FieldPolicy:
    """What becomes of the fields of one engine.

    `mapped`: the adapter writes them from the typed request; a client's own value does not pass. `passes`: sent as
    they are, among the engine's sampling parameters. `refused`: they would change the answer and cannot be honoured
    here, so the request is refused rather than answered without them.
    """

    mapped: frozenset[str]
    passes: frozenset[str]

    @property
    def refused(self) -> frozenset[str]:
        return _SHAPES_THE_ANSWER - self.passes

    def table_of(self, name: str) -> str | None:
        """The table a field stands in: `reserved`, `mapped`, `passes`, `refused`; None where it is in none."""
        if reserved(name):
            return "reserved"
        if name in self.mapped or name in GATEWAY:
            return "mapped"
        if name in self.passes:
            return "passes"
        return "refused" if name in self.refused else None

    def passing(self, request: PreprocessedRequest) -> dict[str, Any]:
        """The client's own fields that go to the engine as they are; null means absent."""
        extra = extra_body(request)
        return {name: extra[name] for name in self.passes & extra.keys() if extra[name] is not None} if extra else {}

    def unknown(self, request: PreprocessedRequest) -> dict[str, Any]:
        """The client's fields in no table, for engines that ignore what they do not know: another release, or another
        build of the engine, may know them."""
        extra = extra_body(request)
        return {name: extra[name] for name in extra if extra[name] is not None and self.table_of(name) is None}

    def refusal(self, request: PreprocessedRequest) -> str | None:
        """The first field of the client's that this engine cannot honour; null, empty and false mean absent."""
        extra = extra_body(request)
        return next((name for name in sorted(self.refused & extra.keys()) if extra[name]), None) if extra else None


VLLM = FieldPolicy(
    mapped=frozenset({"reasoning_parser_kwargs"}),
    passes=frozenset(
        {
            "allowed_token_ids", "bad_words", "logprob_token_ids", "repetition_detection",
            "spaces_between_special_tokens", "watermarking",
        }
    ),
)  # fmt: skip

SGLANG = FieldPolicy(
    mapped=frozenset(
        {
            "max_new_tokens", "min_new_tokens", "no_stop_trim", "sampling_seed", "top_logprobs_num",
            "require_reasoning",
        }
    ),
    passes=frozenset({"spaces_between_special_tokens"}),
)  # fmt: skip


_NOTHING: Mapping[str, Any] = {}


def extra_body(request: PreprocessedRequest) -> Mapping[str, Any]:
    """The client's fields that the gateway does not know; empty when there are none."""
    return _member(request, "extra_body")


def unreserved(request: PreprocessedRequest) -> dict[str, Any]:
    """The client's fields that the gateway does not know, without those that only it may set."""
    return {name: value for name, value in extra_body(request).items() if not reserved(name)}


def reasoning_parser_kwargs(request: PreprocessedRequest) -> Mapping[str, Any]:
    """What the template was rendered with, for an engine that finds the end of the thinking itself."""
    return _member(request, "reasoning_parser_kwargs")


def stream_interval(request: PreprocessedRequest) -> int | None:
    """How many tokens an engine may gather into one event, where the gateway says so."""
    extra = request.extra_args
    value = extra.get("stream_interval") if extra and isinstance(extra, Mapping) else None
    return value if isinstance(value, int) and value > 0 else None


def _member(request: PreprocessedRequest, name: str) -> Mapping[str, Any]:
    extra = request.extra_args
    if not extra:
        return _NOTHING
    value = extra.get(name) if isinstance(extra, Mapping) else None
    return value if value and isinstance(value, Mapping) else _NOTHING
