"""SGLang 0.5.23: the shapes of what it answers, key by key in its order, nulls included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulator.generation import Alternative
from simulator.options import SimulatorOptions

VERSION = "0.5.23"
WEIGHTS = "default"


@dataclass(slots=True)
class Times:
    """When things happened to one sequence, in epoch seconds (`queue`: a duration)."""

    received: float
    dispatched: float
    entered: float = 0.0
    queue: float = 0.0
    prefilled: float = 0.0
    first_sent: float = 0.0
    finished: float = 0.0


def finish_of(kind: str, matched: Any = None, length: int = 0) -> dict[str, Any]:
    if kind == "length":
        return {"type": "length", "length": length}
    return {"type": "stop", "matched": matched}


def abort_of(message: str, status: int | None = None, kind: str | None = None) -> dict[str, Any]:
    return {"type": "abort", "message": message, "status_code": status, "err_type": kind}


def meta_info(
    rid: str,
    finish: dict[str, Any] | None,
    prompt: int,
    completion: int,
    cached: int,
    times: Times,
    logprobs: dict[str, Any] | None,
    *,
    decode: bool,
    stream: bool,
    first: bool,
) -> dict[str, Any]:
    """`decode`: a decode worker knows nothing of prefill's times. `first`: this is the stream's first event."""
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": finish,
        "prompt_tokens": prompt,
        "weight_version": WEIGHTS,
        "num_retractions": 0,
    }
    if not decode:
        meta |= {"storage_prefetch_wait": 0.0, "storage_staging_wait": 0.0}
    meta["forward_entry_time"] = times.entered
    if not decode:
        meta["prefill_finished_time"] = times.prefilled
    meta["queue_time"] = times.queue
    meta |= logprobs or {}
    meta |= {"reasoning_tokens": 0, "completion_tokens": completion, "cached_tokens": cached}
    if finish is not None:
        meta["weight_versions"] = versions(completion)
    meta["cached_tokens_details"] = {"device": cached, "host": 0} if cached else None
    meta["dp_rank"] = None
    if finish is not None:
        _closing_times(meta, completion, times, decode=decode, stream=stream, first=first)
    elif first:
        meta["response_sent_to_client_ts"] = times.first_sent
    return meta


def _closing_times(
    meta: dict[str, Any], completion: int, times: Times, *, decode: bool, stream: bool, first: bool
) -> None:
    elapsed = times.finished - times.received
    meta["e2e_latency"] = elapsed
    meta["request_received_ts"] = times.received
    meta["first_token_latency"] = (times.prefilled or times.finished) - times.received
    meta["api_server_dispatch_finish_ts"] = times.dispatched
    if stream and not first:
        meta["response_sent_to_client_ts"] = times.first_sent
    meta["request_finished_ts"] = times.finished
    if completion > 1 and (stream or not decode):
        meta["decode_throughput"] = completion / max(elapsed, 1e-6)
    if first or not stream:
        meta["response_sent_to_client_ts"] = times.finished


def versions(completion: int) -> list[dict[str, Any]]:
    return [{"version": WEIGHTS, "start": 0, "end": completion}]


def native_logprobs(
    found: Sequence[Sequence[Alternative]],
    texts: Sequence[Sequence[str | None]],
    top: int,
    prompt: Sequence[Sequence[Any]],
    prompt_top: Sequence[Any],
) -> dict[str, Any]:
    """The logprob keys of `/generate`: triples of logprob, id and text."""
    triples = [_triples(position, names) for position, names in zip(found, texts, strict=True)]
    keys: dict[str, Any] = {
        "input_token_logprobs": prompt,
        "output_token_logprobs": [position[0] for position in triples],
        "output_token_logprobs_length": len(triples),
    }
    if top:
        keys |= {"input_top_logprobs": prompt_top, "output_top_logprobs": [position[:top] for position in triples]}
    return keys


def openai_logprobs(
    chat: bool, found: Sequence[Sequence[Alternative]], texts: Sequence[Sequence[str]]
) -> dict[str, Any]:
    if chat:
        return {"content": [_chat_position(position, names) for position, names in zip(found, texts, strict=True)]}
    return {
        "text_offset": [-1] * len(found),
        "token_logprobs": [position[0].logprob for position in found],
        "tokens": [names[0] for names in texts],
        "top_logprobs": [
            {name: entry.logprob for name, entry in zip(names, position, strict=True)}
            for position, names in zip(found, texts, strict=True)
        ],
    }


def usage(prompt: int, completion: int, cached: int | None) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


def model_card(options: SimulatorOptions, created: int) -> dict[str, Any]:
    return {
        "id": options.model,
        "object": "model",
        "created": created,
        "owned_by": "sglang",
        "root": options.model,
        "parent": None,
        "max_model_len": options.context_length,
    }


def model_info(options: SimulatorOptions) -> dict[str, Any]:
    return {
        "model_path": options.model_path or options.model,
        "served_model_name": options.model,
        "tokenizer_path": options.model_path or options.model,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": WEIGHTS,
        "load_format": "auto",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "disaggregation_mode": _mode(options),
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
    }


def server_info(options: SimulatorOptions, port: int, bootstrap_port: int, seed: int) -> dict[str, Any]:
    """The keys that anyone outside reads, of the 550 that the real server tells."""
    own = _launch_arguments(options, port, bootstrap_port, seed)
    return {
        **own,
        "status": "ready",
        "max_total_num_tokens": options.blocks * options.block_size,
        "max_req_input_len": options.context_length - 6,
        "startup_time": {"load_weight": 0.0, "kv_cache_allocation": 0.0, "scheduler_e2e": 0.0},
        "kv_events": None,
        "internal_states": [{**own, "last_gen_throughput": 0.0} for _ in range(options.dp_size)],
        "version": options.version or VERSION,
        "frontend": "python",
    }


def _launch_arguments(options: SimulatorOptions, port: int, bootstrap_port: int, seed: int) -> dict[str, Any]:
    return {
        "model_path": options.model_path or options.model,
        "tokenizer_path": options.model_path or options.model,
        "context_length": options.context_length,
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "max_running_requests": options.pace.slots,
        "max_queued_requests": options.sglang.max_queued,
        "enable_priority_scheduling": False,
        "schedule_low_priority_values_first": False,
        "page_size": options.block_size,
        "disable_radix_cache": not options.reuse,
        "tp_size": 1,
        "dp_size": options.dp_size,
        "random_seed": seed,
        "host": options.host,
        "port": port,
        "served_model_name": options.model,
        "weight_version": WEIGHTS,
        "enable_cache_report": options.sglang.cache_report,
        "stream_interval": 1,
        "incremental_streaming_output": options.sglang.incremental,
        "enable_metrics": options.sglang.enable_metrics,
        "kv_events_config": None,
        "disaggregation_mode": _mode(options),
        "disaggregation_transfer_backend": "mooncake",
        "disaggregation_bootstrap_port": bootstrap_port or 8998,
        "disaggregation_decode_enable_radix_cache": False,
    }


def _mode(options: SimulatorOptions) -> str:
    return "null" if options.role == "aggregated" else options.role


def _triples(position: Sequence[Alternative], names: Sequence[str | None]) -> list[list[Any]]:
    return [[entry.logprob, entry.token_id, name] for entry, name in zip(position, names, strict=True)]


def _chat_position(position: Sequence[Alternative], names: Sequence[str]) -> dict[str, Any]:
    entries = [
        {"token": name, "bytes": list(name.encode()), "logprob": entry.logprob}
        for name, entry in zip(names, position, strict=True)
    ]
    return {**entries[0], "top_logprobs": entries}
