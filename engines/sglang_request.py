"""What SGLang is asked: the body of its native `/generate`.

Prefill and decode get the same body but for ranks and streaming: prefill stops after one token by itself, and what the
two would read differently (prompt, adapter, sampling, grammar, salt) breaks the transfer.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from engines.fields import SGLANG, stream_interval
from engines.stopping import stop_ids, token_limit
from protocols.options import GuidedDecoding
from protocols.preprocessed import PreprocessedRequest, RoutingHints
from protocols.worker import Leg, Worker

GENERATE = "/generate"

_ALL = -1
_META = re.compile(r"([\\.^$|?*+()\[\]{}])")


def generate_body(request: PreprocessedRequest, rid: str, leg: Leg, worker: Worker) -> bytes:
    """The body for one leg, or for a plain request (`Leg.DECODE` without bootstrap)."""
    body = SGLANG.unknown(request) | {
        "rid": rid,
        "input_ids": request.token_ids,
        "sampling_params": _sampling(request, worker),
        "stream": streams(request, leg),
    }
    body |= _logprobs(request)
    if request.require_reasoning:
        body["require_reasoning"] = True
    if request.stop_conditions.max_thinking_tokens is not None:
        body["max_thinking_tokens"] = request.stop_conditions.max_thinking_tokens
    if request.bootstrap_info is not None:
        body |= {
            "bootstrap_host": request.bootstrap_info.bootstrap_host,
            "bootstrap_port": request.bootstrap_info.bootstrap_port,
            "bootstrap_room": request.bootstrap_info.bootstrap_room,
        }
    if request.routing is not None:
        body |= _routing(request.routing, leg, worker, paired=request.bootstrap_info is not None)
    return orjson.dumps(body)


def streams(request: PreprocessedRequest, leg: Leg) -> bool:
    """Prefill does not, its token is decode's; nor does a plain request for prompt logprobs, since every event would
    repeat them.
    """
    if leg is Leg.PREFILL:
        return False
    return request.output_options.prompt_logprobs is None or request.bootstrap_info is not None


def _routing(routing: RoutingHints, leg: Leg, worker: Worker, *, paired: bool) -> dict[str, Any]:
    prefill_rank = routing.prefill_dp_rank if paired else None
    members = {
        "lora_path": routing.lora_name,
        "cache_salt": routing.cache_namespace,
        "priority": _priority(routing.priority, worker.traits.priority_sign),
        "routed_dp_rank": routing.prefill_dp_rank if leg is Leg.PREFILL else routing.dp_rank,
        "disagg_prefill_dp_rank": prefill_rank if leg is Leg.DECODE else None,
    }
    return {name: value for name, value in members.items() if value is not None}


def _priority(priority: int | None, sign: int | None) -> int | None:
    """SGLang's own order is higher first; a server that does not schedule by priority may refuse one."""
    if priority is None or sign == 0:
        return None
    return (sign or 1) * priority


def _logprobs(request: PreprocessedRequest) -> dict[str, Any]:
    """Both legs are asked alike: decode gets the first token's from prefill, only prefill has the prompt's."""
    generated, prompt = request.output_options.logprobs, request.output_options.prompt_logprobs
    if generated is None and prompt is None:
        return {}
    members: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": max(generated or 0, prompt or 0)}
    if prompt is not None:
        members["logprob_start_len"] = 0
    return members


def _sampling(request: PreprocessedRequest, worker: Worker) -> dict[str, Any]:
    options = request.sampling_options
    sampling = SGLANG.passing(request)
    sampling |= {
        "max_new_tokens": token_limit(request, worker, margin=1),
        "temperature": 1.0 if options.temperature is None else options.temperature,
        "top_p": 1.0 if options.top_p is None else options.top_p,
        "top_k": options.top_k or _ALL,
        "min_p": options.min_p or 0.0,
        "repetition_penalty": 1.0 if options.repetition_penalty is None else options.repetition_penalty,
    }
    optional = {
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "sampling_seed": options.seed,
        "skip_special_tokens": request.output_options.skip_special_tokens,
        "no_stop_trim": options.include_stop_str_in_output,
        "stream_interval": stream_interval(request),
    }
    sampling |= {name: value for name, value in optional.items() if value is not None}
    if options.logit_bias:
        sampling["logit_bias"] = {str(token_id): bias for token_id, bias in options.logit_bias.items()}
    if options.guided_decoding is not None:
        sampling |= _constraint(options.guided_decoding)
    return sampling | _stopping(request, sampling["max_new_tokens"])


def _stopping(request: PreprocessedRequest, limit: int) -> dict[str, Any]:
    stop = request.stop_conditions
    stopping: dict[str, Any] = {}
    if stop.min_tokens:
        stopping["min_new_tokens"] = min(stop.min_tokens, limit)
    elif stop.stop:
        # SGLang 0.5.23 matches strings before the minimum, too; with one set they are left to our filter.
        stopping["stop"] = stop.stop
    if stop.ignore_eos:
        stopping["ignore_eos"] = True
    if ids := stop_ids(request):
        stopping["stop_token_ids"] = ids
    return stopping


def _constraint(guided: GuidedDecoding) -> dict[str, str]:
    """A constraint under SGLang's names, always as text; empty where there is none."""
    if guided.json is not None:
        return {"json_schema": _as_text(guided.json)}
    if guided.regex is not None:
        return {"regex": guided.regex}
    if guided.choice is not None:
        return {"regex": "(" + "|".join(_META.sub(r"\\\1", choice) for choice in guided.choice) + ")"}
    if guided.grammar is not None:
        return {"ebnf": guided.grammar}
    return {"structural_tag": _as_text(guided.structural_tag)} if guided.structural_tag is not None else {}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
