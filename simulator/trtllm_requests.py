"""TensorRT-LLM (`trtllm-serve`): what a request body says, and what is refused. Unknown fields are, always."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from simulator.constraints import Constraint, constraint_in
from simulator.options import SimulatorOptions, TrtllmOptions
from simulator.vocabulary import Codec

COMPLETION, CHAT = "completion", "chat"
CONTEXT, GENERATION = "context_only", "generation_only"

_SAMPLING = {
    "model", "stream", "stream_options", "max_tokens", "n", "temperature", "top_p", "top_k", "min_p",
    "top_p_min", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "best_of",
    "use_beam_search", "length_penalty", "early_stopping", "stop", "stop_token_ids",
    "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens",
    "spaces_between_special_tokens", "truncate_prompt_tokens", "add_special_tokens", "response_format",
    "lora_request", "disaggregated_params", "logprobs", "echo", "user",
}  # fmt: skip
_COMPLETION = _SAMPLING | {
    "prompt", "suffix", "detokenize", "return_context_logits",
}  # fmt: skip
_CHAT = _SAMPLING | {
    "messages", "prompt_token_ids", "max_completion_tokens", "top_logprobs", "tools", "tool_choice",
    "parallel_tool_calls", "reasoning_effort", "chat_template", "chat_template_kwargs", "add_generation_prompt",
    "documents", "cache_salt", "mm_processor_kwargs", "agent_hierarchy",
}  # fmt: skip
_SINCE_13 = {
    "logit_bias", "priority", "conversation_params", "thinking_token_budget", "prompt_ignore_length",
}  # fmt: skip
_PARAMS = {
    "1.1": ("request_type", "first_gen_tokens", "ctx_request_id", "encoded_opaque_state", "draft_tokens"),
    "1.2": ("disagg_request_id", "ctx_dp_rank", "ctx_info_endpoint", "schedule_style"),
    "1.3": (
        "first_gen_log_probs",
        "first_gen_logits",
        "ctx_usage",
        "return_prompt_token_ids_b64",
        "resolved_thinking",
        "conversation_id",
    ),
}
_INTEGERS = ("max_tokens", "min_tokens", "n", "seed", "top_k", "max_completion_tokens")
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_BOOLEANS = ("stream", "detokenize", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "echo")


class Refused(Exception):
    """Answered 400 in the flat envelope, whoever is to blame."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def body(self) -> dict[str, Any]:
        return flat_error(self.message)


class Invalid(Refused):
    """pydantic's refusal: another envelope."""

    def body(self) -> dict[str, Any]:
        return {"error": self.message}


def flat_error(message: str) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}


@dataclass(frozen=True)
class TrtllmRequest:
    """A request that passed. `disagg`: its disaggregated_params; `ids_only`: no detokenizing."""

    kind: str
    prompts: Sequence[Sequence[int]]
    model: str
    max_tokens: int
    n: int = 1
    min_tokens: int = 0
    temperature: float = 1.0
    seed: int | None = None
    stops: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    ignore_eos: bool = False
    skip_special: bool = True
    logprobs: int | None = None
    ids_only: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    salt: str = ""
    disagg: Mapping[str, Any] | None = None
    constraint: Constraint | None = None

    @property
    def part(self) -> str | None:
        """`context_only`, `generation_only`, or None for a plain request."""
        part = (self.disagg or {}).get("request_type")
        return part if part in (CONTEXT, GENERATION) else None

    @property
    def params(self) -> Mapping[str, Any]:
        return self.disagg or {}


def read_request(kind: str, raw: bytes, options: SimulatorOptions, codec: Codec) -> TrtllmRequest:
    """Raises Refused."""
    body = _object(raw)
    _check_fields(kind, body, options.trtllm)
    prompts = _prompts(kind, body, codec)
    logprobs = _logprobs(kind, body, options.trtllm.band)
    most = body.get("max_tokens")
    most = body.get("max_completion_tokens") if most is None else most
    longest = max(map(len, prompts))
    _check_lengths(prompts, longest, most, options)
    temperature = 1.0 if body.get("temperature") is None else float(body["temperature"])
    n, disagg = int(body.get("n") or 1), body.get("disaggregated_params")
    _check_choices(kind, temperature, n, 0 if disagg is None else len(prompts) * n)
    stream_options = body.get("stream_options")
    stops = body.get("stop") or ()
    return TrtllmRequest(
        kind=kind,
        prompts=prompts,
        model=str(body["model"]),
        max_tokens=options.context_length - longest if most is None else int(most),
        n=n,
        min_tokens=int(body.get("min_tokens") or 0),
        temperature=temperature,
        seed=body.get("seed"),
        stops=(stops,) if isinstance(stops, str) else tuple(stops),
        stop_ids=frozenset(body.get("stop_token_ids") or ()),
        include_stop=bool(body.get("include_stop_str_in_output")),
        ignore_eos=bool(body.get("ignore_eos")),
        skip_special=body.get("skip_special_tokens") is not False,
        logprobs=logprobs,
        ids_only=kind == COMPLETION and body.get("detokenize") is False,
        stream=bool(body.get("stream")),
        include_usage=stream_options is not None and stream_options.get("include_usage", True),
        continuous_usage=_continuous(stream_options, options.trtllm.band),
        salt=str(body.get("cache_salt") or ""),
        disagg=disagg,
        constraint=constraint_in(body),
    )


def _check_choices(kind: str, temperature: float, n: int, disaggregated: int) -> None:
    if temperature < 0:
        raise Invalid(_one(kind, "temperature", "Value error, temperature must be at least 0"))
    if n > 1 and temperature == 0:
        raise Refused("n > 1 is not allowed with greedy sampling (temperature 0)")
    if disaggregated > 1:
        raise Refused("Disaggregated serving supports exactly one choice per request")


def _continuous(stream_options: Mapping[str, Any] | None, band: str) -> bool:
    """Where stream_options are given without it, up to 1.2 it is on and later off."""
    if stream_options is None:
        return False
    return bool(stream_options.get("continuous_usage_stats", band != "1.3"))


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except ValueError as error:
        raise Invalid(f"1 validation error:\n  JSON decode error: {error}") from None
    if not isinstance(body, dict):
        raise Invalid("1 validation error:\n  Input should be a valid dictionary")
    return body


def _check_fields(kind: str, body: Mapping[str, Any], options: TrtllmOptions) -> None:
    band = options.band
    known = _CHAT if kind == CHAT else _COMPLETION
    if band == "1.3":
        known = known | _SINCE_13 | ({"prompt_token_ids_b64"} if kind == CHAT else set())
    problems = [_extra(name, value) for name, value in body.items() if name not in known]
    problems += [f"{name}\n  Field required [type=missing]" for name in _required(kind) if name not in body]
    problems += [problem for name in body if (problem := _wrong_type(name, body[name])) is not None]
    disagg = body.get("disaggregated_params")
    if disagg is not None:
        allowed = {name for since, names in _PARAMS.items() if since <= band for name in names}
        problems += [_extra(f"disaggregated_params.{name}", disagg[name]) for name in disagg if name not in allowed]
    if body.get("stream_options") is not None and not body.get("stream"):
        problems.append("  Value error, stream_options can only be set if stream is true [type=value_error]")
    if problems:
        plural = "error" if len(problems) == 1 else "errors"
        raise Invalid(f"{len(problems)} validation {plural} for {_model(kind)}\n" + "\n".join(problems))
    if body.get("suffix") is not None:
        raise Refused("suffix is not supported")
    wanted = body.get("response_format")
    if wanted is not None and wanted.get("type") not in (None, "text") and not options.guided:
        raise Refused("guided decoding is not enabled for this model")


def _required(kind: str) -> tuple[str, ...]:
    return ("model", "messages") if kind == CHAT else ("model", "prompt")


def _model(kind: str) -> str:
    return "ChatCompletionRequest" if kind == CHAT else "CompletionRequest"


def _one(kind: str, place: str, text: str) -> str:
    return f"1 validation error for {_model(kind)}\n{place}\n  {text}"


def _extra(name: str, value: Any) -> str:
    shown = f"input_value={value!r:.60}, input_type={type(value).__name__}"
    return f"{name}\n  Extra inputs are not permitted [type=extra_forbidden, {shown}]"


def _wrong_type(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, bool):
        wrong = isinstance(value, bool) and name in (*_INTEGERS, *_NUMBERS)
        return None if not wrong else _type_text(name, value, "int_type", "Input should be a valid integer")
    if name in _BOOLEANS:
        return _type_text(name, value, "bool_type", "Input should be a valid boolean")
    if name in _INTEGERS and not isinstance(value, int):
        if isinstance(value, str):
            text = "Input should be a valid integer, unable to parse string as an integer"
            return _type_text(name, value, "int_parsing", text)
        return _type_text(name, value, "int_type", "Input should be a valid integer")
    if name in _NUMBERS and not isinstance(value, (int, float)):
        return _type_text(name, value, "float_type", "Input should be a valid number")
    return None


def _type_text(name: str, value: Any, kind: str, text: str) -> str:
    return f"{name}\n  {text} [type={kind}, input_value={value!r:.60}, input_type={type(value).__name__}]"


def _prompts(kind: str, body: Mapping[str, Any], codec: Codec) -> list[list[int]]:
    if kind == CHAT:
        given = body.get("prompt_token_ids")
        return [list(given) if given is not None else codec.render(body["messages"])]
    prompt = body["prompt"]
    if isinstance(prompt, str):
        return [list(codec.encode(prompt))]
    if prompt and all(type(i) is int for i in prompt):
        return [prompt]
    if prompt and all(isinstance(part, str) for part in prompt):
        return [list(codec.encode(part)) for part in prompt]
    if prompt and all(isinstance(part, list) and part and all(type(i) is int for i in part) for part in prompt):
        return list(prompt)
    raise Invalid(_one(kind, "prompt", "Input should be a valid string or list of token ids"))


def _logprobs(kind: str, body: Mapping[str, Any], band: str) -> int | None:
    """0 means none here, unlike everywhere else."""
    value = body.get("logprobs")
    if not value:
        return None
    if band == "1.1":
        raise Refused("logprobs is not supported")
    return int(body.get("top_logprobs") or 1) if kind == CHAT else int(value)


def _check_lengths(prompts: Sequence[Sequence[int]], longest: int, most: int | None, options: SimulatorOptions) -> None:
    if longest > options.pace.step_tokens:
        raise Refused(
            f"The sum of prompt length ({longest}) and query length (0) should not exceed max_num_tokens "
            f"({options.pace.step_tokens})"
        )
    if most is not None and most < 1:
        raise Refused(f"max_tokens must be at least 1, got {most}")
    if longest + (most or 1) > options.context_length:
        raise Refused(
            f"The sum of prompt length ({longest}) and max_tokens ({most or 1}) should not exceed max_seq_len "
            f"({options.context_length})"
        )
    size = options.vocabulary.size
    if any(max(prompt) >= size or min(prompt) < 0 for prompt in prompts if prompt):
        raise Refused(f"The prompt has token ids outside the vocabulary (0..{size - 1})")
