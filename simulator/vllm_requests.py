"""vLLM 0.32: what a request body says, and what is refused with which words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.constraints import Constraint, constraint_in
from simulator.options import SimulatorOptions
from simulator.vllm_fields import (
    BOOL,
    FLOAT,
    INT,
    MAP,
    STR,
    Refused,
    invalid,
    missing,
    type_error,
    typed,
    whole,
)
from simulator.vocabulary import Codec

COMPLETION, CHAT, GENERATE = "completion", "chat", "generate"

_MAX_LOGPROBS = 20
_MAX_STOPS = 4
_MAX_PROMPTS = 1024

_SAMPLING_KINDS: Mapping[str, str] = {
    "max_tokens": INT, "min_tokens": INT, "n": INT, "seed": INT, "prompt_logprobs": INT, "stream_interval": INT,
    "temperature": FLOAT, "top_p": FLOAT, "top_k": INT, "min_p": FLOAT, "repetition_penalty": FLOAT,
    "presence_penalty": FLOAT, "frequency_penalty": FLOAT, "ignore_eos": BOOL, "skip_special_tokens": BOOL,
    "include_stop_str_in_output": BOOL,
}  # fmt: skip
_BODY_KINDS: Mapping[str, str] = {
    "model": STR, "stream": BOOL, "return_token_ids": BOOL, "request_id": STR, "cache_salt": STR, "priority": INT,
    "kv_transfer_params": MAP, "stream_options": MAP,
}  # fmt: skip
_OPENAI_KINDS = {**_BODY_KINDS, **_SAMPLING_KINDS, "echo": BOOL, "return_tokens_as_token_ids": BOOL}


@dataclass(frozen=True)
class VllmRequest:
    """A request that passed. `prompts`: one or more lists of ids; `n` choices for each.

    `logprobs`: how many alternatives per token, None for none. `text`: whether the reply carries text.
    """

    kind: str
    prompts: Sequence[Sequence[int]]
    max_tokens: int
    request_id: str | None = None
    n: int = 1
    min_tokens: int = 0
    temperature: float = 1.0
    seed: int | None = None
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    skip_special: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    stream_interval: int = 1
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    text: bool = True
    salt: str = ""
    kv: Mapping[str, Any] = field(default_factory=dict)
    constraint: Constraint | None = None


def read_completion(body: Mapping[str, Any], options: SimulatorOptions, codec: Codec) -> VllmRequest:
    values = typed(body, _OPENAI_KINDS)
    if body.get("prompt") is None and body.get("prompt_embeds") is None:
        raise invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    _check_stream_options(values)
    _check_model(values.get("model"), options)
    prompts = _prompts(body.get("prompt"), codec)
    for prompt in prompts:
        if len(prompt) >= options.context_length:
            raise _too_long(len(prompt), options)
    top = body.get("logprobs")
    return _request(
        COMPLETION,
        prompts,
        values,
        body,
        options,
        max_tokens=16 if values.get("max_tokens") is None else values["max_tokens"],
        logprobs=None if top is None else whole(top, "logprobs"),
    )


def read_chat(body: Mapping[str, Any], options: SimulatorOptions, codec: Codec) -> VllmRequest:
    values = typed(body, {**_OPENAI_KINDS, "max_completion_tokens": INT, "top_logprobs": INT, "logprobs": BOOL})
    if not isinstance(body.get("messages"), list):
        raise missing("body.messages", body)
    _check_stream_options(values)
    _check_model(values.get("model"), options)
    if body.get("tools") and body.get("tool_choice", "auto") == "auto":
        raise Refused('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    kv = dict(values.get("kv_transfer_params") or {})
    given = kv.pop("prompt_token_ids", None)
    if not body["messages"] and given is None:
        raise Refused("Cannot apply chat template to an empty conversation. Provide at least one message.")
    prompt = codec.render(body["messages"]) if given is None else list(given)
    if len(prompt) >= options.context_length:
        raise _too_long(len(prompt), options)
    most = values.get("max_completion_tokens")
    most = values.get("max_tokens") if most is None else most
    return _request(
        CHAT,
        [prompt],
        {**values, "kv_transfer_params": kv},
        body,
        options,
        max_tokens=options.context_length if most is None else most,
        logprobs=(values.get("top_logprobs") or 0) if values.get("logprobs") else None,
    )


def read_generate(body: Mapping[str, Any], options: SimulatorOptions) -> VllmRequest:
    values = typed(body, _BODY_KINDS)
    ids = _token_ids(body)
    if not isinstance(body.get("sampling_params"), dict):
        raise missing("body.sampling_params", body)
    sampling = typed(body["sampling_params"], _SAMPLING_KINDS, "body.sampling_params")
    _check_model(values.get("model"), options)
    most = sampling.get("max_tokens")
    top = body["sampling_params"].get("logprobs")
    return _request(
        GENERATE,
        [ids],
        {**values, **sampling},
        body["sampling_params"],
        options,
        max_tokens=options.context_length if most is None else most,
        logprobs=None if top is None else whole(top, "logprobs"),
        text=body.get("output_mode") == "text",
    )


def engine_refusal(request: VllmRequest, options: SimulatorOptions) -> Refused | None:
    """What no route looks at. The engine refuses it as it gets the request: of a stream, after the reply's head."""
    logprobs, size = request.logprobs, options.vocabulary.size
    if logprobs is not None and logprobs > _MAX_LOGPROBS:
        text = f"Requested sample logprobs of {logprobs}, which is greater than max allowed: {_MAX_LOGPROBS}"
        return invalid(text, "logprobs", logprobs)
    for prompt in request.prompts:
        if not prompt:
            return Refused("The decoder prompt cannot be empty")
        worst = max(prompt) if max(prompt) >= size else min(prompt)
        if not 0 <= worst < size:
            return Refused(f"Token id {worst} is out of vocabulary")
        if len(prompt) > options.context_length:
            return Refused(
                f"The decoder prompt (length {len(prompt)}) is longer than the maximum model length of "
                f"{options.context_length}. Make sure that `max_model_len` is no smaller than the number of text "
                "tokens."
            )
    return None


def _token_ids(body: Mapping[str, Any]) -> list[int]:
    ids = body.get("token_ids")
    if ids is None:
        raise missing("body.token_ids", body)
    if not isinstance(ids, list):
        raise type_error("list_type", "body.token_ids", "Input should be a valid list", ids)
    if not ids:
        raise type_error(
            "too_short", "body.token_ids", "List should have at least 1 item after validation, not 0", ids,
            "{'field_type': 'List', 'min_length': 1, 'actual_length': 0}",
        )  # fmt: skip
    if any(type(i) is not int for i in ids):
        raise type_error("int_type", "body.token_ids.0", "Input should be a valid integer", ids)
    if min(ids) < 0:
        text = "token_ids must not contain negative values"
        raise type_error(
            "value_error", "body.token_ids", f"Value error, {text}", ids, f"{{'error': ValueError('{text}')}}"
        )
    return list(ids)


def _request(
    kind: str,
    prompts: Sequence[Sequence[int]],
    values: Mapping[str, Any],
    sampling: Mapping[str, Any],
    options: SimulatorOptions,
    *,
    max_tokens: int,
    logprobs: int | None,
    text: bool = True,
) -> VllmRequest:
    """The checks that vLLM makes when it builds its sampling parameters, and the request."""
    temperature = 1.0 if values.get("temperature") is None else float(values["temperature"])
    n, min_tokens = values.get("n") or 1, values.get("min_tokens") or 0
    _check_sampling(temperature, n, min_tokens, max_tokens)
    stream_options = values.get("stream_options") or {}
    return VllmRequest(
        kind=kind,
        prompts=prompts,
        max_tokens=min(max_tokens, options.context_length - max(map(len, prompts))),
        request_id=values.get("request_id"),
        n=n,
        min_tokens=min_tokens,
        temperature=temperature,
        seed=values.get("seed"),
        stops=_stops(sampling.get("stop")),
        include_stop=bool(values.get("include_stop_str_in_output")),
        stop_ids=frozenset(sampling.get("stop_token_ids") or ()),
        ignore_eos=bool(values.get("ignore_eos")),
        skip_special=values.get("skip_special_tokens") is not False,
        logprobs=logprobs,
        prompt_logprobs=values.get("prompt_logprobs"),
        echo=bool(values.get("echo")),
        stream=bool(values.get("stream")),
        include_usage=bool(stream_options.get("include_usage")),
        continuous_usage=bool(stream_options.get("include_usage") and stream_options.get("continuous_usage_stats")),
        stream_interval=values.get("stream_interval") or 1,
        return_token_ids=bool(values.get("return_token_ids")),
        tokens_as_ids=bool(values.get("return_tokens_as_token_ids")),
        text=text,
        salt=values.get("cache_salt") or "",
        kv=values.get("kv_transfer_params") or {},
        constraint=constraint_in(sampling),
    )


def _check_sampling(temperature: float, n: int, min_tokens: int, max_tokens: int) -> None:
    if temperature < 0:
        raise invalid(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
    if max_tokens < 1:
        raise invalid(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
    if min_tokens > max_tokens:
        text = f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}."
        raise invalid(text, "min_tokens", min_tokens)
    if n > 1 and temperature == 0:
        raise Refused(f"n must be 1 when using greedy sampling, got {n}.")


def _prompts(prompt: Any, codec: Codec) -> list[list[int]]:
    if isinstance(prompt, str):
        return [list(codec.encode(prompt))]
    if not isinstance(prompt, list):
        raise type_error("string_type", "body.prompt.str", "Input should be a valid string", prompt)
    if not prompt:
        raise Refused("You must pass at least one prompt")
    if all(type(i) is int for i in prompt):
        return [prompt]
    if len(prompt) > _MAX_PROMPTS:
        raise Refused(f"At most {_MAX_PROMPTS} prompts are allowed")
    if all(isinstance(part, str) for part in prompt):
        return [list(codec.encode(part)) for part in prompt]
    if all(isinstance(part, list) and part and all(type(i) is int for i in part) for part in prompt):
        return prompt
    raise type_error("string_type", "body.prompt.str", "Input should be a valid string", prompt)


def _stops(value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else tuple(value or ())
    if len(stops) > _MAX_STOPS:
        raise invalid(f"stop must contain at most {_MAX_STOPS} strings, got {len(stops)}.", "stop")
    if not all(stops):
        raise invalid("stop cannot contain an empty string.", "stop")
    return stops


def _check_model(name: Any, options: SimulatorOptions) -> None:
    if name is not None and name != options.model:
        raise Refused(
            f"The model `{name}` does not exist. Valid aliases: {options.model}.",
            param="model",
            kind="NotFoundError",
            status=404,
        )


def _too_long(length: int, options: SimulatorOptions) -> Refused:
    return invalid(
        f"This model's maximum context length is {options.context_length} tokens. However, your prompt contains "
        f"{length} input tokens, which exceeds this limit even without any output tokens. Please reduce the length of "
        "the input prompt.",
        "input_tokens",
        length,
    )


def _check_stream_options(values: Mapping[str, Any]) -> None:
    if values.get("stream_options") is not None and not values.get("stream"):
        raise type_error(
            "value_error", "body", "Value error, Stream options can only be defined when `stream=True`.", dict(values)
        )
