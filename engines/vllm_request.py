"""What vLLM is asked: the bodies of `/inference/v1/generate` and of `/v1/completions`.

Both take the same sampling parameters under the same names, but not the same defaults (max_tokens is 16 here and the
rest of the context there, the others come from the model's generation_config or not), so none is left to the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from engines.fields import VLLM, reasoning_parser_kwargs, stream_interval
from engines.stopping import stop_ids, token_limit
from protocols.options import GuidedDecoding
from protocols.preprocessed import PreprocessedRequest
from protocols.quick_init import quick_init
from protocols.worker import Worker

GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"

PROMPT_LOGPROBS = "_prompt_logprobs"
"""Our own member of a hand-off's parameters: what prefill computed and decode must not again. Never sent."""

MAX_STOP_STRINGS = 4
"""More are refused (VLLM_MAX_STOP_STRINGS)."""

_PREFILL_PARAMS: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@quick_init
@dataclass(frozen=True, slots=True)
class Ask:
    """How one leg asks. `logprobs`, `prompt_logprobs`: alternatives per token; None: not asked for."""

    max_tokens: int
    min_tokens: int | None = None
    stream: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    kv_transfer_params: Any = None

    @classmethod
    def prefill(cls, request: PreprocessedRequest) -> Ask:
        """One token, unstreamed: no stream tells the KV's handle. The token is dropped, nothing is asked about it."""
        return cls(
            max_tokens=1,
            stream=False,
            prompt_logprobs=request.output_options.prompt_logprobs,
            kv_transfer_params=_PREFILL_PARAMS,
        )

    @classmethod
    def answer(cls, request: PreprocessedRequest, worker: Worker) -> Ask:
        """The answer itself, plain or from a hand-off. Prompt logprobs come in no stream, so with them it is unary."""
        stop, output = request.stop_conditions, request.output_options
        limit = token_limit(request, worker)
        params, known = handed_over(request)
        wanted = output.prompt_logprobs if known is None else None
        return cls(
            max_tokens=limit,
            min_tokens=min(stop.min_tokens, limit) if stop.min_tokens else None,
            stream=wanted is None,
            logprobs=output.logprobs,
            prompt_logprobs=wanted,
            kv_transfer_params=params,
        )


def handed_over(request: PreprocessedRequest) -> tuple[Any, Any]:
    """What prefill gave: the engine's parameters as they came, and the prompt's logprobs; None for what is missing."""
    given = request.prefill_result.disaggregated_params if request.prefill_result is not None else None
    if not isinstance(given, dict) or PROMPT_LOGPROBS not in given:
        return given, None
    return {name: value for name, value in given.items() if name != PROMPT_LOGPROBS}, given[PROMPT_LOGPROBS]


def generate_body(request: PreprocessedRequest, ask: Ask, model: str, worker: Worker) -> bytes:
    """Tokens in, tokens out. Without stop strings the engine need not make text at all."""
    sampling = _sampling(request, ask)
    if worker.traits.stop_strings is False:
        sampling.pop("stop", None)
    if "stop" not in sampling and ask.prompt_logprobs is None:
        sampling["detokenize"] = False
    body = VLLM.unknown(request) | {"model": model, "token_ids": request.token_ids, "sampling_params": sampling}
    if kwargs := reasoning_parser_kwargs(request):
        body["reasoning_parser_kwargs"] = kwargs
    return _finished(body, request, ask, worker)


def completions_body(request: PreprocessedRequest, ask: Ask, model: str, worker: Worker) -> bytes:
    """The same on the OpenAI route. `prompt_embeds` win over ids: given both, the engine would read both."""
    prompt = (
        {"prompt": request.token_ids} if request.prompt_embeds is None else {"prompt_embeds": request.prompt_embeds}
    )
    body = VLLM.unknown(request) | {"model": model, **prompt, **_sampling(request, ask)}
    if ask.logprobs is not None:
        # Else tokens are told as text, under which two of them may coincide.
        body["return_tokens_as_token_ids"] = True
    if ask.kv_transfer_params is not _PREFILL_PARAMS:
        body["return_token_ids"] = True
    return _finished(body, request, ask, worker)


def _finished(body: dict[str, Any], request: PreprocessedRequest, ask: Ask, worker: Worker) -> bytes:
    body["stream"] = ask.stream
    if ask.stream:
        body["stream_options"] = {"include_usage": True}
    if ask.kv_transfer_params is not None:
        body["kv_transfer_params"] = ask.kv_transfer_params
    if routing := request.routing:
        if routing.cache_namespace is not None:
            body["cache_salt"] = routing.cache_namespace
        sign = worker.traits.priority_sign
        if routing.priority is not None and sign != 0:
            body["priority"] = (-1 if sign is None else sign) * routing.priority
    return orjson.dumps(body)


def _sampling(request: PreprocessedRequest, ask: Ask) -> dict[str, Any]:
    options, output = request.sampling_options, request.output_options
    sampling = VLLM.passing(request)
    sampling |= {
        "max_tokens": ask.max_tokens,
        "temperature": 1.0 if options.temperature is None else options.temperature,
        "top_p": 1.0 if options.top_p is None else options.top_p,
        "top_k": options.top_k or -1,
        "min_p": options.min_p or 0.0,
        "repetition_penalty": 1.0 if options.repetition_penalty is None else options.repetition_penalty,
    }
    for name, value in (
        ("presence_penalty", options.presence_penalty),
        ("frequency_penalty", options.frequency_penalty),
        ("seed", options.seed),
        ("min_tokens", ask.min_tokens),
        ("logprobs", ask.logprobs),
        ("prompt_logprobs", ask.prompt_logprobs),
        ("skip_special_tokens", output.skip_special_tokens),
        ("include_stop_str_in_output", options.include_stop_str_in_output),
        ("stream_interval", stream_interval(request) if ask.stream else None),
        ("thinking_token_budget", request.stop_conditions.max_thinking_tokens),
    ):
        if value is not None:
            sampling[name] = value
    if options.logit_bias:
        sampling["logit_bias"] = {str(token_id): bias for token_id, bias in options.logit_bias.items()}
    if options.guided_decoding is not None and (constraint := _structured(options.guided_decoding)):
        sampling["structured_outputs"] = constraint
    _add_stopping(sampling, request)
    return sampling


def _add_stopping(sampling: dict[str, Any], request: PreprocessedRequest) -> None:
    stop = request.stop_conditions
    if stop.stop and len(stop.stop) <= MAX_STOP_STRINGS:
        sampling["stop"] = stop.stop
    if stop.ignore_eos:
        sampling["ignore_eos"] = True
    if ids := stop_ids(request):
        sampling["stop_token_ids"] = ids


def _structured(guided: GuidedDecoding) -> dict[str, Any]:
    """`structured_outputs`; empty where nothing is constrained. The field's older names are ignored by vLLM 0.32."""
    tag = guided.structural_tag
    constraints = {
        "json": guided.json,
        "regex": guided.regex,
        "choice": guided.choice,
        "grammar": guided.grammar,
        "structural_tag": tag if tag is None or isinstance(tag, str) else orjson.dumps(tag).decode(),
    }
    chosen = {name: value for name, value in constraints.items() if value is not None}
    if chosen and guided.whitespace_pattern is not None:
        chosen["whitespace_pattern"] = guided.whitespace_pattern
    return chosen | guided.switches() if chosen else chosen
