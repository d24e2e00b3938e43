"""vLLM 0.32: the shapes of what it answers, key by key in its order, nulls included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.generation import Alternative
from simulator.vllm_requests import CHAT, GENERATE

FINGERPRINT = "vllm-0.32.0-c42a0d8a"
WEIGHTS = "default"


def models(model: str, root: str, created: int, context_length: int) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{created:016x}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root or model,
        "parent": None,
        "max_model_len": context_length,
        "permission": [permission],
    }
    return {"object": "list", "data": [card]}


def usage(kind: str, prompt: int, completion: int, cached: int | None, created: int) -> dict[str, Any]:
    """Usage of a unary reply. `cached` None: the server does not report details."""
    details = None
    if cached is not None:
        details = {
            "cached_tokens": cached,
            "created_cache_tokens": created if kind == CHAT else None,
            "multimodal_tokens": None,
        }
    return {**counts(prompt, completion), "prompt_tokens_details": details, "completion_tokens_details": None}


def counts(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


def stream_usage(kind: str, prompt: int, completion: int, cached: int | None, created: int) -> dict[str, Any]:
    """Usage of the usage chunk: no nulls."""
    value: dict[str, Any] = dict(counts(prompt, completion))
    if cached is not None:
        value["prompt_tokens_details"] = {"cached_tokens": cached}
        if kind == CHAT:
            value["prompt_tokens_details"]["created_cache_tokens"] = created
    return value


def completion_choice(
    index: int,
    text: str,
    logprobs: Any,
    finish: str | None,
    stop: Any,
    ids: Sequence[int] | None,
    prompt_logprobs: Any,
    prompt_ids: Sequence[int] | None,
) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": stop,
        "token_ids": ids,
        "prompt_logprobs": prompt_logprobs,
        "prompt_token_ids": prompt_ids,
        "routed_experts": None,
    }


def chat_choice(
    index: int, text: str, logprobs: Any, finish: str | None, stop: Any, ids: Sequence[int] | None
) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": stop,
        "token_ids": ids,
        "routed_experts": None,
    }


def generate_choice(
    index: int, text: str | None, logprobs: Any, finish: str | None, stop: Any, ids: Sequence[int], total: int
) -> dict[str, Any]:
    """Also the choice of a stream chunk. `text` None: token mode, where the key is absent."""
    choice: dict[str, Any] = {
        "index": index,
        "finish_reason": finish,
        "stop_reason": stop,
        "token_ids": ids,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": [{"version": WEIGHTS, "start": 0, "end": total}] if finish else None,
    }
    if text is not None:
        choice["text"] = text
    choice["logprobs"] = logprobs
    return choice


def completion(
    reply_id: str, created: int, model: str, choices: list[dict[str, Any]], used: dict[str, Any], kv: Any
) -> dict[str, Any]:
    return {
        "id": reply_id,
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": used,
        "kv_transfer_params": kv,
        "ec_transfer_params": None,
        "metrics": None,
    }


def chat(
    reply_id: str,
    created: int,
    model: str,
    choices: list[dict[str, Any]],
    used: dict[str, Any],
    kv: Any,
    prompt_logprobs: Any,
    prompt_ids: Sequence[int] | None,
) -> dict[str, Any]:
    return {
        "id": reply_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": used,
        "prompt_logprobs": prompt_logprobs,
        "prompt_token_ids": prompt_ids,
        "prompt_text": None,
        "kv_transfer_params": kv,
        "ec_transfer_params": None,
        "metrics": None,
    }


def generate(
    reply_id: str,
    created: int,
    model: str,
    choices: list[dict[str, Any]],
    used: dict[str, Any],
    kv: Any,
    prompt_logprobs: Any,
    prompt_ids: Sequence[int] | None,
    text: bool,
) -> dict[str, Any]:
    return {
        "request_id": reply_id,
        "model": model,
        "created": created,
        "usage": used,
        "prompt_logprobs": prompt_logprobs,
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": prompt_ids,
        "mm_placeholders": None,
        "metrics": None,
        "kv_transfer_params": kv,
        "ec_transfer_params": None,
        "output_mode": "text" if text else "tokens",
        "choices": choices,
    }


def chunk(kind: str, reply_id: str, created: int, model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    """The frame of a completions or chat stream chunk."""
    return {
        "id": reply_id,
        "object": "chat.completion.chunk" if kind == CHAT else "text_completion",
        "created": created,
        "model": model,
        "choices": choices,
    }


def logprobs_of(
    kind: str, ids: Sequence[int], found: Sequence[Sequence[Alternative]], texts: Sequence[Sequence[str]], start: int
) -> dict[str, Any]:
    """The route's logprobs object. `texts[i][j]` is the text of `found[i][j]`; `start` the text's offset so far."""
    if kind == CHAT:
        return {"content": [_chat_position(position, names) for position, names in zip(found, texts, strict=True)]}
    if kind == GENERATE:
        return {"content": [_id_position(position) for position in found]}
    offsets = []
    for names in texts:
        offsets.append(start)
        start += len(names[0])
    return {
        "text_offset": offsets,
        "token_logprobs": [position[0].logprob for position in found],
        "tokens": [names[0] for names in texts],
        "top_logprobs": [
            {name: entry.logprob for name, entry in zip(names, position, strict=True)}
            for position, names in zip(found, texts, strict=True)
        ],
    }


def prompt_logprobs_of(positions: Sequence[Sequence[Alternative]], texts: Sequence[Sequence[str]]) -> list[Any]:
    """One entry per prompt token; the first has none."""
    entries: list[Any] = [None]
    for position, names in zip(positions, texts, strict=True):
        entries.append(
            {
                str(entry.token_id): {"logprob": entry.logprob, "rank": rank, "decoded_token": name}
                for rank, (entry, name) in enumerate(zip(position, names, strict=True), 1)
            }
        )
    return entries


def _chat_position(position: Sequence[Alternative], names: Sequence[str]) -> dict[str, Any]:
    entries = [
        {"token": name, "logprob": entry.logprob, "bytes": list(name.encode())}
        for name, entry in zip(names, position, strict=True)
    ]
    return {**entries[0], "top_logprobs": entries}


def _id_position(position: Sequence[Alternative]) -> dict[str, Any]:
    entries = [
        {"token_id": entry.token_id, "logprob": entry.logprob, "rank": rank} for rank, entry in enumerate(position, 1)
    ]
    return {**entries[0], "top_logprobs": entries}


def transfer_params(
    blocks: Sequence[int], engine_id: str, name: str, host: str, port: int, tokens: int, cached: int | None
) -> Mapping[str, Any]:
    """What prefill hands to decode over NIXL. `cached` None: a prefill of more than one token does not say (seen)."""
    params = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(blocks)],
        "remote_engine_id": engine_id,
        "remote_request_id": name,
        "remote_host": host,
        "remote_port": port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
    }
    if cached is not None:
        params["remote_prefill_cached_tokens"] = cached
    return params
