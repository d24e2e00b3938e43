"""TensorRT-LLM: the shapes of what it answers, key by key in its order, nulls included."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from simulator.generation import Alternative


def usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def frame(kind: str, reply_id: str, created: int, model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": reply_id, "object": kind, "created": created, "model": model, "choices": choices}


def completion_delta(
    index: int, text: str, ids: Sequence[int] | None, logprobs: Any, finish: str | None, stop: Any
) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "token_ids": ids,
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": stop,
        "avg_decoded_tokens_per_iter": 1.0,
    }


def completion_choice(
    index: int, text: str, ids: Sequence[int] | None, logprobs: Any, finish: str | None, stop: Any, params: Any
) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "token_ids": ids,
        "logprobs": logprobs,
        "context_logits": None,
        "finish_reason": finish,
        "stop_reason": stop,
        "disaggregated_params": params,
        "avg_decoded_tokens_per_iter": 1.0,
    }


def chat_choice(index: int, text: str, logprobs: Any, finish: str | None, stop: Any, params: Any) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": []},
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": stop,
        "disaggregated_params": params,
        "avg_decoded_tokens_per_iter": 1.0,
    }


def logprobs_of(chat: bool, found: Sequence[Sequence[Alternative]], texts: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Offsets start at 0 in every chunk."""
    if chat:
        return {"content": [_chat_position(position, names) for position, names in zip(found, texts, strict=True)]}
    offsets, offset = [], 0
    for names in texts:
        offsets.append(offset)
        offset += len(names[0])
    return {
        "text_offset": offsets,
        "token_logprobs": [position[0].logprob for position in found],
        "tokens": [names[0] for names in texts],
        "top_logprobs": [
            {name: entry.logprob for name, entry in zip(names, position, strict=True)}
            for position, names in zip(found, texts, strict=True)
        ],
    }


def handover(
    band: str,
    first: Sequence[int],
    context_id: int,
    state: Mapping[str, Any],
    disagg_id: int | None,
    style: int | None,
    endpoint: str,
    logprobs: Sequence[Sequence[Alternative]] | None,
) -> dict[str, Any]:
    """`choices[0].disaggregated_params` of a context_only reply."""
    params: dict[str, Any] = {
        "request_type": "context_only",
        "first_gen_tokens": list(first),
        "ctx_request_id": context_id,
        "encoded_opaque_state": base64.b64encode(orjson.dumps(state)).decode(),
        "draft_tokens": None,
    }
    if band >= "1.2":
        params |= {
            "disagg_request_id": disagg_id,
            "ctx_dp_rank": 0,
            "ctx_info_endpoint": endpoint,
            "schedule_style": style,
        }
    if band >= "1.3":
        params |= {
            "first_gen_log_probs": [_first_logprobs(position) for position in logprobs] if logprobs else None,
            "first_gen_logits": None,
            "ctx_usage": None,
            "return_prompt_token_ids_b64": False,
            "resolved_thinking": None,
        }
    return params


def read_state(encoded: object) -> dict[str, Any] | None:
    """The opaque state of another simulated worker; None when it is none."""
    try:
        state = orjson.loads(base64.b64decode(str(encoded), validate=True))
    except ValueError:
        return None
    return state if isinstance(state, dict) else None


def _first_logprobs(position: Sequence[Alternative]) -> dict[str, Any]:
    return {str(entry.token_id): {"logprob": entry.logprob, "rank": rank} for rank, entry in enumerate(position, 1)}


def _chat_position(position: Sequence[Alternative], names: Sequence[str]) -> dict[str, Any]:
    entries = [
        {"token": name, "logprob": entry.logprob, "bytes": list(name.encode())}
        for name, entry in zip(names, position, strict=True)
    ]
    return {**entries[0], "top_logprobs": entries}
