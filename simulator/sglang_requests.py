"""SGLang 0.5.23: what a request body says, and what is refused with which words."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from simulator.constraints import Constraint, constraint_in
from simulator.options import SimulatorOptions
from simulator.rooms import Bootstrap
from simulator.vocabulary import Codec

NATIVE, COMPLETION, CHAT = "native", "completion", "chat"
_SERVER_FILE = "/opt/sgl-venv/lib/python3.11/site-packages/sglang/srt/entrypoints/http_server.py"
_AS_THEY_ARE = (
    "temperature", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens", "regex", "ebnf", "response_format",
)  # fmt: skip
"""Members that the OpenAI routes share with the native one's sampling parameters."""


class Refused(Exception):
    """The request is answered with this error. `kind` is the type on the OpenAI routes."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind

    def flat(self) -> dict[str, Any]:
        return {"object": "error", "message": self.message, "type": self.kind, "param": None, "code": self.status}


class FlatRefused(Refused):
    """Refused before the route saw it: flat on every route, and never inside a stream."""


class OutOfVocabulary(Exception):
    """An id that the real engine dies of (0.5.23, seen on CPU)."""


@dataclass(frozen=True)
class Item:
    """One sequence of a request."""

    prompt: Sequence[int]
    rid: str
    max_tokens: int
    bootstrap: Bootstrap | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    seed: int | None = None
    stops: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    skip_special: bool = True
    no_stop_trim: bool = False
    stream_interval: int = 1
    salt: str = ""
    constraint: Constraint | None = None


@dataclass(frozen=True)
class SglangRequest:
    """A request that passed the route's own checks.

    `batch`: the reply is a list. `logprobs`: alternatives per token, None for none; `logprobs_from`: the first prompt
    position to report, -1 for none. `rank`: the asked data-parallel rank.
    """

    kind: str
    items: Sequence[Item]
    model: str = ""
    batch: bool = False
    stream: bool = False
    include_usage: bool = False
    logprobs: int | None = None
    logprobs_from: int = -1
    text_in_logprobs: bool = False
    return_prompt_ids: bool = False
    return_token_ids: bool = False
    rank: int | None = None


def read_body(body: bytes, path: str) -> Mapping[str, Any]:
    """The JSON object of a request. Raises FlatRefused, with the server's own file in the text, as recorded."""
    try:
        value = orjson.loads(body)
    except ValueError as error:
        reason = str(error).split(":", 1)[0]
        where = _position(body)
        detail = (
            f"{{'type': 'json_invalid', 'loc': ('body', {where}), 'msg': 'JSON decode error', 'input': {{}}, "
            f"'ctx': {{'error': '{reason}'}}}}"
        )
        name = {"/generate": ("928", "generate_request")}.get(path, ("1", "request"))
        raise FlatRefused(
            f'1 validation error:\n  {detail}\n\n  File "{_SERVER_FILE}", line {name[0]}, in {name[1]}\n'
            f"    POST {path} [{detail}]",
            kind="Bad Request",
        ) from None
    if not isinstance(value, dict):
        raise FlatRefused("1 validation error:\n  body: Input should be a valid dictionary", kind="Bad Request")
    return value


def read_native(body: Mapping[str, Any], options: SimulatorOptions, codec: Codec) -> SglangRequest:
    text, ids = body.get("text"), body.get("input_ids")
    if text is None and ids is None:
        raise Refused("Either text, input_ids or input_embeds should be provided.")
    batch, prompts = _prompts(text if ids is None else ids, codec)
    sampling = body.get("sampling_params") or {}
    _refuse_lora(body)
    n = int((sampling[0] if isinstance(sampling, list) else sampling).get("n") or 1)
    batch = batch or n > 1
    prompts = [prompt for prompt in prompts for _ in range(n)]
    most_by_default = 128
    items = [
        _item(body, _nth(sampling, place), prompt, place, batch, options, most_by_default)
        for place, prompt in enumerate(prompts)
    ]
    wanted = body.get("return_logprob")
    wanted = any(wanted) if isinstance(wanted, list) else bool(wanted)
    start = body.get("logprob_start_len")
    return SglangRequest(
        kind=NATIVE,
        items=items,
        batch=batch,
        stream=bool(body.get("stream")),
        logprobs=int(_nth(body.get("top_logprobs_num"), 0) or 0) if wanted else None,
        logprobs_from=-1 if start is None else int(_nth(start, 0)),
        text_in_logprobs=bool(body.get("return_text_in_logprobs")),
        return_prompt_ids=bool(body.get("return_prompt_token_ids")),
        rank=_rank(body.get("routed_dp_rank", body.get("data_parallel_rank")), options),
    )


def read_completion(
    body: Mapping[str, Any], headers: Mapping[str, str], options: SimulatorOptions, codec: Codec
) -> SglangRequest:
    if body.get("prompt") is None:
        raise _missing("prompt", body)
    batch, prompts = _prompts(body["prompt"], codec)
    most = body.get("max_tokens")
    if most is not None and (type(most) is not int or most < 1):
        raise FlatRefused("max_tokens must be positive")
    return _openai(
        COMPLETION, body, headers, prompts, batch, 16 if most is None else most, body.get("logprobs"), options
    )


def read_chat(
    body: Mapping[str, Any], headers: Mapping[str, str], options: SimulatorOptions, codec: Codec
) -> SglangRequest:
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise _missing("messages", body)
    if not messages:
        raise FlatRefused("Messages cannot be empty.")
    if body.get("stream") and (body.get("return_token_ids") or body.get("return_prompt_token_ids")):
        raise FlatRefused("return_token_ids is not supported with stream in chat completions.")
    given = body.get("input_ids")
    prompt = list(given) if given is not None else codec.render(messages)
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    room = options.context_length - len(prompt) - 1
    logprobs = (body.get("top_logprobs") or 0) if body.get("logprobs") else None
    return _openai(CHAT, body, headers, [prompt], False, most or max(room, 1), logprobs, options)


def check_lengths(request: SglangRequest, options: SimulatorOptions) -> None:
    """What the tokenizer manager refuses. Raises Refused, or OutOfVocabulary."""
    context = options.context_length
    for item in request.items:
        length = len(item.prompt)
        if length >= context:
            raise Refused(f"The input ({length} tokens) is longer than the model's context length ({context} tokens).")
        if length + item.max_tokens > context:
            raise Refused(
                f"Requested token count exceeds the model's maximum context length of {context} tokens. "
                f"You requested a total of {length + item.max_tokens} tokens: {length} tokens from the input "
                f"messages and {item.max_tokens} tokens for the completion. Please reduce the number of tokens in "
                "the input messages or the completion to fit within the limit."
            )
        if not item.prompt:
            raise Refused("The input_ids cannot be empty.")
        if max(item.prompt) >= options.vocabulary.size or min(item.prompt) < 0:
            raise OutOfVocabulary


def _openai(
    kind: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    prompts: Sequence[Sequence[int]],
    batch: bool,
    most: int,
    logprobs: Any,
    options: SimulatorOptions,
) -> SglangRequest:
    n = int(body.get("n") or 1)
    sampling = {
        **{key: body.get(key) for key in _AS_THEY_ARE},
        "no_stop_trim": body.get("no_stop_trim"),
        "sampling_seed": body.get("seed"),
        "min_new_tokens": body.get("min_tokens"),
        "max_new_tokens": most,
    }
    prompts = [prompt for prompt in prompts for _ in range(n)]
    rank = headers.get("x-data-parallel-rank")
    if rank is not None and not rank.lstrip("-").isdigit():
        raise FlatRefused(f"Invalid X-Data-Parallel-Rank header: {rank}")
    asked = int(rank) if rank is not None else body.get("routed_dp_rank")
    return SglangRequest(
        kind=kind,
        items=[
            _item(body, sampling, prompt, place, batch or n > 1, options, most) for place, prompt in enumerate(prompts)
        ],
        model=str(body.get("model") or options.model),
        batch=batch,
        stream=bool(body.get("stream")),
        include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        logprobs=None if logprobs is None else int(logprobs),
        return_token_ids=bool(body.get("return_token_ids")),
        return_prompt_ids=bool(body.get("return_token_ids") or body.get("return_prompt_token_ids")),
        rank=_rank(asked, options),
    )


def _item(
    body: Mapping[str, Any],
    sampling: Mapping[str, Any],
    prompt: Sequence[int],
    place: int,
    batch: bool,
    options: SimulatorOptions,
    default: int,
) -> Item:
    temperature = _number(sampling, "temperature", 1.0)
    if temperature < 0 or not math.isfinite(temperature):
        shown = sampling["temperature"]
        raise Refused(f"temperature must be a non-negative finite number, got {shown}.")
    most = sampling.get("max_new_tokens", default)
    most = options.context_length - len(prompt) - 1 if most is None else int(most)
    if most < 0:
        raise Refused(f"max_new_tokens must be at least 0, got {most}.")
    stops = sampling.get("stop") or ()
    rid = body.get("rid")
    rid = _nth(rid, place) if isinstance(rid, list) else f"{rid}_{place}" if rid is not None and batch else rid
    return Item(
        prompt=prompt,
        rid=str(rid) if rid is not None else secrets.token_hex(16),
        max_tokens=max(most, 1),
        bootstrap=_bootstrap(body, place, batch),
        min_tokens=int(sampling.get("min_new_tokens") or 0),
        temperature=temperature,
        seed=sampling.get("sampling_seed"),
        stops=(stops,) if isinstance(stops, str) else tuple(stops),
        stop_ids=frozenset(sampling.get("stop_token_ids") or ()),
        ignore_eos=bool(sampling.get("ignore_eos")),
        skip_special=sampling.get("skip_special_tokens") is not False,
        no_stop_trim=bool(sampling.get("no_stop_trim")),
        stream_interval=int(sampling.get("stream_interval") or 1),
        salt=str(body.get("cache_salt") or body.get("extra_key") or ""),
        constraint=constraint_in(sampling),
    )


def _bootstrap(body: Mapping[str, Any], place: int, batch: bool) -> Bootstrap | None:
    """A scalar room of a batch stands for room + place."""
    room = body.get("bootstrap_room")
    if room is None:
        return None
    room = int(_nth(room, place)) if isinstance(room, list) else int(room) + (place if batch else 0)
    host = str(_nth(body.get("bootstrap_host"), place) or "")
    port = _nth(body.get("bootstrap_port"), place)
    return Bootstrap(host, int(port) if port is not None else 8998, room)


def _prompts(value: Any, codec: Codec) -> tuple[bool, list[list[int]]]:
    if isinstance(value, str):
        return False, [list(codec.encode(value))]
    if not isinstance(value, list):
        raise Refused("The prompt must be a string, a list of strings, or token ids.")
    if all(type(i) is int for i in value):
        return False, [value]
    if all(isinstance(part, str) for part in value):
        return True, [list(codec.encode(part)) for part in value]
    if all(isinstance(part, list) and all(type(i) is int for i in part) for part in value):
        return True, value
    raise Refused("The prompt must be a string, a list of strings, or token ids.")


def _number(sampling: Mapping[str, Any], name: str, default: float) -> float:
    value = sampling.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refused(f"{name} must be a number, got {value!r}.")
    return float(value)


def _refuse_lora(body: Mapping[str, Any]) -> None:
    if body.get("lora_path"):
        raise Refused(
            f"LoRA adapter '{_nth(body['lora_path'], 0)}' was requested, but LoRA is not enabled. Please launch the "
            "server with --enable-lora flag and preload adapters using --lora-paths or /load_lora_adapter endpoint."
        )


def _rank(asked: Any, options: SimulatorOptions) -> int | None:
    if asked is None:
        return None
    if type(asked) is not int or not 0 <= asked < options.dp_size:
        raise Refused(f"routed_dp_rank {asked} is out of range [0, {options.dp_size}).")
    return asked


def _missing(name: str, body: Mapping[str, Any]) -> FlatRefused:
    detail = f"{{'type': 'missing', 'loc': ('body', '{name}'), 'msg': 'Field required', 'input': {dict(body)!r:.200}}}"
    return FlatRefused(f"1 validation error:\n  {detail}", kind="Bad Request")


def _position(body: bytes) -> int:
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        return error.pos
    except UnicodeDecodeError:
        pass
    return 0


def _nth(value: Any, place: int) -> Any:
    return value[min(place, len(value) - 1)] if isinstance(value, list) and value else value
