"""What TensorRT-LLM is asked: the body of `/v1/completions`, by version band.

Its request models forbid what they do not know (a 400), so nothing passes that is not written here. The bands are read
out of the server's sources, not out of its changelog: an unknown version is treated as 1.2, whose fields newer servers
also take.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any

import orjson

from engines.fields import FieldPolicy
from engines.stopping import stop_ids, token_limit
from protocols.errors import InvalidRequest
from protocols.nesting import MAX_DEPTH, is_too_deep
from protocols.options import GuidedDecoding, SamplingOptions
from protocols.preprocessed import PreprocessedRequest, RoutingHints
from protocols.worker import Worker

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.\d+)?(?:\.?rc(\d+))?")
_FIRST_NEW_RC = 10
"""Release candidates of 1.3 before this one may still be the 1.2 server."""

TRTLLM = FieldPolicy(
    mapped=frozenset(
        {"agent_hierarchy", "early_stopping", "prompt_ignore_length", "spaces_between_special_tokens", "top_p_min"}
    ),
    passes=frozenset(),
)
"""Nothing of a client's own passes: a field that one release takes, the other refuses. Those of its own that we have no
name for stay at the server's default."""


class Band(enum.IntEnum):
    """Servers with the same request fields."""

    UP_TO_1_1 = 1
    """No logprobs; `disaggregated_params` has no ids of ours."""
    FROM_1_2 = 2
    FROM_1_3 = 3
    """logit_bias, a thinking budget, and `ctx_usage` in the hand-off."""


def band_of(version: str | None) -> Band:
    """The band of a version such as `1.2.0` or `1.3.0rc12`; FROM_1_2 when it is unknown."""
    match = _VERSION.match(version or "")
    if match is None:
        return Band.FROM_1_2
    release = (int(match[1]), int(match[2]))
    if release < (1, 2):
        return Band.UP_TO_1_1
    early = release == (1, 3) and match[3] is not None and int(match[3]) < _FIRST_NEW_RC
    return Band.FROM_1_2 if release < (1, 3) or early else Band.FROM_1_3


def completion_body(
    request: PreprocessedRequest, worker: Worker, model: str, band: Band, *, stream: bool
) -> dict[str, Any]:
    """The body of a completions call: ids in, ids out.

    Temperature, top_p, top_k and max_tokens are always said: the server's defaults are not the model's. Stop strings
    are not sent: without text the server compares token ids and misses other spellings of the same text.
    """
    sampling = request.sampling_options
    body: dict[str, Any] = {
        "model": model,
        "prompt": request.token_ids,
        "max_tokens": token_limit(request, worker),
        "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "top_k": max(sampling.top_k or 0, 0),
        "detokenize": False,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": False}
    body |= _sampling(sampling, band) | _stopping(request, band)
    if request.output_options.logprobs is not None and band >= Band.FROM_1_2:
        # 0 means "none" here, elsewhere "the chosen token only".
        body["logprobs"] = max(request.output_options.logprobs, 1)
    return {name: value for name, value in body.items() if value is not None}


def _sampling(sampling: SamplingOptions, band: Band) -> dict[str, Any]:
    body: dict[str, Any] = {
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        # The engine's seed is unsigned.
        "seed": None if sampling.seed is None else sampling.seed % 2**64,
    }
    if sampling.logit_bias and band >= Band.FROM_1_3:
        body["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias.items()}
    if sampling.guided_decoding is not None:
        body["response_format"] = response_format(sampling.guided_decoding)
    return body


def _stopping(request: PreprocessedRequest, band: Band) -> dict[str, Any]:
    """Ignored eos, minimum length, and the ids that end the answer.

    The engine would cut a matched id off; `include_stop_str_in_output` keeps it, since our decoder decides what is
    shown. Its minimum length guards only its own eos, so with one set the ids are left to our decoder.
    """
    stop = request.stop_conditions
    body: dict[str, Any] = {"min_tokens": stop.min_tokens or None, "ignore_eos": stop.ignore_eos or None}
    ids = stop_ids(request)
    if ids and not stop.min_tokens:
        body |= {"stop_token_ids": ids, "include_stop_str_in_output": True}
    if stop.max_thinking_tokens is not None and band >= Band.FROM_1_3:
        body["thinking_token_budget"] = stop.max_thinking_tokens
    return body


def response_format(guided: GuidedDecoding) -> dict[str, Any] | None:
    """A constraint as `response_format`; None when there is none. Raises InvalidRequest for text that is not JSON."""
    if guided.json is not None:
        return {"type": "json", "schema": _parsed(guided.json, "guided_json")}
    if guided.regex is not None:
        return {"type": "regex", "regex": guided.regex}
    if guided.choice is not None:
        return {"type": "ebnf", "ebnf": _grammar_of_choices(guided.choice)}
    if guided.grammar is not None:
        return {"type": "ebnf", "ebnf": guided.grammar}
    if guided.structural_tag is not None:
        return {"type": "structural_tag"} | _parsed(guided.structural_tag, "structural_tag")
    return None


def _parsed(value: Any, param: str) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"{param} is not valid JSON: {error}", param=param) from None
        if is_too_deep(value):
            raise InvalidRequest(f"{param} is nested too deeply: expected at most {MAX_DEPTH} levels", param=param)
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{param} must be a JSON object for this model", param=param)
    return dict(value)


def _grammar_of_choices(choices: tuple[str, ...]) -> str:
    """The server knows no list of choices. A JSON string is also a literal of the grammar."""
    return "root ::= " + " | ".join(orjson.dumps(choice).decode() for choice in choices)


def unsupported_parameter(request: PreprocessedRequest, band: Band) -> str | None:
    """The first parameter, by the client's name for it, that the server cannot honour and that changes the answer."""
    sampling, output = request.sampling_options, request.output_options
    routing = request.routing or RoutingHints()
    guided = sampling.guided_decoding or GuidedDecoding()
    refused = {
        "prompt_embeds": request.prompt_embeds is not None,
        "multi_modal_data": bool(request.multi_modal_data),
        "cache_salt": routing.cache_namespace is not None,
        # An adapter must come with its path on the worker, which nobody told us.
        "lora_name": routing.lora_name is not None,
        "prompt_logprobs": output.prompt_logprobs is not None,
        "logprobs": output.logprobs is not None and band < Band.FROM_1_2,
        "logit_bias": bool(sampling.logit_bias) and band < Band.FROM_1_3,
        "use_beam_search": bool(sampling.use_beam_search),
        "best_of": (sampling.best_of or 1) > (sampling.n or 1),
        "guided_whitespace_pattern": guided.whitespace_pattern is not None,
        **guided.switches(),
        "thinking_token_budget": request.stop_conditions.max_thinking_tokens is not None and band < Band.FROM_1_3,
    }
    own = next((name for name, is_refused in refused.items() if is_refused), None)
    return own or TRTLLM.refusal(request)
