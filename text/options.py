"""A request and a model's card to the options of the internal request; pure.

What a request leaves out is filled here, from the operator's template for the model, then the model's own
generation_config.json, then OpenAI's defaults; engines never fill in theirs. One `PreprocessedRequest` is one choice of
one prompt, so `n` is always 1 in what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from protocols.errors import ContextLengthExceeded, UnsupportedParameter
from protocols.model_card import ModelCard
from protocols.openai import ChatCompletionRequest, CompletionRequest, GenerationRequest
from protocols.openai_errors import invalid
from protocols.openai_fields import Extras
from protocols.options import OutputOptions, SamplingOptions, StopConditions
from protocols.preprocessed import RouterParams, RoutingConstraints, RoutingHints
from text.guided import guided_decoding

Request = ChatCompletionRequest | CompletionRequest

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default of /v1/completions; a chat may fill the context."""
SMALLEST_TOP_P = 1e-6
"""What top_p 0 becomes: engines refuse 0 (vLLM, SGLang: "(0, 1]"), and this keeps the likeliest token only, too."""
TOP_K_OFF = -1
_REPORT_FIELDS = frozenset(
    {
        "logprobs", "top_logprobs", "prompt_logprobs", "best_of", "skip_special_tokens", "return_tokens_as_token_ids",
    }
)  # fmt: skip
"""The fields that say what is reported beside the text."""
_NOTHING_BESIDE = OutputOptions()


_BYPASS = "x-bypass-remote-prefill"
"""An annotation that Dynamo's workers take for its router's word."""


def told_annotations(request: GenerationRequest) -> tuple[str, ...]:
    """The client's annotations as workers are told them: without what only a router may say."""
    extras = request.extras()
    if extras is None or not extras.annotations:
        return ()
    return tuple(each for each in extras.annotations if not each.startswith(_BYPASS))


def check_against(request: Request, card: ModelCard) -> None:
    """What only the model can tell. Raises InvalidRequest for what it cannot do, and for ids outside its vocabulary."""
    extras = request.extras()
    if extras is not None and extras.token_data:
        check_vocabulary(extras.token_data, card.vocab_size, "tandem.token_data")
    if isinstance(request, CompletionRequest):
        if request.suffix:
            raise UnsupportedParameter("'suffix' is not supported: no engine inserts text before one", param="suffix")
        for index, prompt in enumerate(request.prompts()):
            if not isinstance(prompt, str):
                whole = prompt is request.prompt
                check_vocabulary(prompt, card.vocab_size, "prompt" if whole else f"prompt[{index}]")
    else:
        _check_chat(request)
    for key in request.logit_bias or ():
        if 0 < card.vocab_size <= int(key):
            raise _outside(f"logit_bias.{key}", int(key), card.vocab_size)


def _check_chat(request: ChatCompletionRequest) -> None:
    if request.modalities and "audio" in request.modalities:
        raise invalid("modalities", "this model answers with text only")
    for index, tool in enumerate(request.tools or ()):
        if tool["type"] == "custom" and (tool["custom"].get("format") or {}).get("type") == "grammar":
            raise invalid(f"tools[{index}].custom.format", "this model's calls cannot be bound to a grammar")


def check_vocabulary(ids: Sequence[int], vocab_size: int, place: str) -> None:
    """Refuses a prompt with ids that the model does not have. `vocab_size` 0: not known, all pass."""
    if vocab_size and max(ids, default=0) >= vocab_size:
        index = next(index for index, token_id in enumerate(ids) if token_id >= vocab_size)
        raise _outside(f"{place}[{index}]", ids[index], vocab_size)


def _outside(place: str, token_id: int, vocab_size: int) -> Exception:
    return invalid(place, f"expected a token id from 0 to {vocab_size - 1}, but got {token_id} instead")


def wanted_tokens(request: Request, card: ModelCard) -> int | None:
    """The longest answer asked for, in tokens: the request's word, the template's, the endpoint's or model's default.

    None: as many as the context holds. Raises InvalidRequest when the shortest answer asked for is longer.
    """
    wanted = request.wanted_tokens()
    if wanted is None:
        wanted = card.template.max_completion_tokens
    if wanted is None:
        wanted = COMPLETION_MAX_TOKENS if isinstance(request, CompletionRequest) else _longest_by_default(card)
    if wanted is not None and request.min_tokens is not None and request.min_tokens > wanted:
        raise invalid("min_tokens", f"expected a value <= max_tokens ({wanted}), but got {request.min_tokens} instead")
    return wanted


def _longest_by_default(card: ModelCard) -> int | None:
    most = card.sampling_defaults.get("max_new_tokens")
    return most if type(most) is int and most > 0 else None


def budget(
    prompt_tokens: int,
    max_tokens: int | None,
    context_length: int | None,
    *,
    param: str = "messages",
    clamp: bool = True,
) -> int | None:
    """How many tokens the answer may have: `max_tokens`, or less where the context ends earlier.

    None only when neither number is known. `param` is the field that holds the prompt. Raises ContextLengthExceeded
    when the prompt leaves no room for an answer, and without `clamp` when it leaves none for `max_tokens`.
    """
    if context_length is None:
        return max_tokens
    room = context_length - prompt_tokens
    if room <= 0:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context_length} tokens, but the prompt has {prompt_tokens}. "
            f"Shorten '{param}'.",
            param=param,
        )
    if max_tokens is None:
        return room
    if max_tokens > room and not clamp:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context_length} tokens, but {prompt_tokens + max_tokens} are "
            f"asked for: {prompt_tokens} of the prompt and {max_tokens} of the answer. Shorten '{param}', or ask for "
            "less.",
            param=param,
        )
    return min(max_tokens, room)


def stop_conditions(request: Request, card: ModelCard, max_tokens: int | None) -> StopConditions:
    """When the answer ends; `max_tokens` is what `budget` gave.

    Integers in `stop` are stop ids beside `stop_token_ids`. `ignore_eos` takes the eos ids away and nothing else.
    """
    strings, ids = _stops(request)
    least = request.min_tokens
    if least is not None and max_tokens is not None:
        least = min(least, max_tokens)
    return StopConditions(
        max_tokens=max_tokens,
        stop=strings,
        stop_token_ids=ids,
        stop_token_ids_hidden=eos_token_ids(request, card) or None,
        min_tokens=least,
        ignore_eos=request.ignore_eos,
        max_thinking_tokens=_max_thinking_tokens(request),
    )


def _stops(request: GenerationRequest) -> tuple[tuple[str, ...] | None, tuple[int, ...] | None]:
    stop = request.stop
    if stop is None and not request.stop_token_ids:
        return None, None
    items: Sequence[str | int] = (stop,) if isinstance(stop, str) else stop or ()
    strings = tuple(item for item in items if isinstance(item, str))
    ids = dict.fromkeys(item for item in items if isinstance(item, int))
    ids.update(dict.fromkeys(request.stop_token_ids or ()))
    return strings or None, tuple(ids) or None


def eos_token_ids(request: GenerationRequest, card: ModelCard) -> tuple[int, ...]:
    """The ids that end the answer by themselves; none when the client ignores them."""
    return () if request.ignore_eos else card.eos_token_ids


def _max_thinking_tokens(request: GenerationRequest) -> int | None:
    extras = request.extras()
    if extras is not None and extras.max_thinking_tokens is not None:
        return extras.max_thinking_tokens
    if request.thinking_token_budget is None and isinstance(request, ChatCompletionRequest) and request.thinking:
        budget_tokens: int | None = request.thinking.get("budget_tokens")
        return budget_tokens
    return request.thinking_token_budget


def sampling_options(request: Request, card: ModelCard) -> SamplingOptions:
    """How tokens are drawn. Raises InvalidRequest when two constraints are put on the text."""
    defaults = card.sampling_defaults
    top_p = _first(request.top_p, defaults.get("top_p"), 1.0)
    top_k = _first(request.top_k, defaults.get("top_k"))
    return SamplingOptions(
        n=1,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=_first(request.repetition_penalty, defaults.get("repetition_penalty")),
        temperature=_temperature(request, card),
        top_p=max(top_p, SMALLEST_TOP_P),
        top_k=top_k if top_k is None else int(top_k) or TOP_K_OFF,
        min_p=_first(request.min_p, defaults.get("min_p")),
        use_beam_search=request.use_beam_search,
        length_penalty=request.length_penalty,
        seed=request.seed,
        include_stop_str_in_output=request.include_stop_str_in_output,
        guided_decoding=guided_decoding(request),
        logit_bias={int(key): float(bias) for key, bias in request.logit_bias.items()} if request.logit_bias else None,
    )


def _temperature(request: GenerationRequest, card: ModelCard) -> float:
    extras = request.extras()
    if extras is not None and extras.greed_sampling:
        return 0.0
    return float(_first(request.temperature, card.template.temperature, card.sampling_defaults.get("temperature"), 1.0))


def _first(*values: Any) -> Any:
    """The first number; a model's file may hold anything else, which counts as nothing."""
    for value in values:
        if type(value) is float or type(value) is int:
            return value
    return None


def choice_sampling(options: SamplingOptions, index: int) -> SamplingOptions:
    """The options of one of several choices: a seed gives each its own, the first one the request's."""
    if options.seed is None or index == 0:
        return options
    return replace(options, seed=(options.seed + index + 2**63) % 2**64 - 2**63)


def output_options(request: Request) -> OutputOptions:
    """What the engine reports beside the text.

    That is more than the client asked for where a prompt is echoed with logprobs or candidates are ranked.
    """
    if request.model_fields_set.isdisjoint(_REPORT_FIELDS):
        return _NOTHING_BESIDE
    prompt = request.prompt_logprobs
    if isinstance(request, ChatCompletionRequest):
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
    else:
        logprobs = request.logprobs
        if request.echo and logprobs is not None:
            prompt = max(prompt or 0, logprobs)
    if logprobs is None and request.candidates() > (request.n or 1):
        logprobs = 0
    return OutputOptions(
        logprobs=logprobs,
        prompt_logprobs=prompt,
        skip_special_tokens=request.skip_special_tokens,
        return_tokens_as_token_ids=request.return_tokens_as_token_ids,
    )


class Hinting(Protocol):
    """A request whose body may say where and when it is to be served."""

    @property
    def cache_salt(self) -> str | None: ...
    @property
    def priority(self) -> int | None: ...
    def extras(self) -> Extras | None: ...


def routing_hints(request: Hinting) -> RoutingHints | None:
    """What the body says of where and when; headers, which win, are the caller's to add."""
    extras = request.extras()
    if extras is None:
        if request.cache_salt is None and request.priority is None:
            return None
        return RoutingHints(cache_namespace=request.cache_salt, priority=request.priority)
    hints, taints = extras.agent_hints, extras.routing_constraints
    priority = request.priority if hints is None or hints.priority is None else hints.priority
    jump = None if hints is None else hints.latency_sensitivity
    if jump is None and hints is not None and hints.priority is not None:
        jump = max(0.0, float(hints.priority))
    said = RoutingHints(
        backend_instance_id=extras.backend_instance_id,
        prefill_worker_id=extras.prefill_worker_id,
        decode_worker_id=extras.decode_worker_id,
        dp_rank=extras.dp_rank,
        prefill_dp_rank=extras.prefill_dp_rank,
        cache_namespace=extras.cache_salt or request.cache_salt,
        expected_output_tokens=None if hints is None else hints.osl,
        priority=priority,
        priority_jump=jump,
        strict_priority=None if hints is None else hints.strict_priority,
        routing_constraints=None
        if taints is None
        else RoutingConstraints(frozenset(taints.required_taints or ()), taints.preferred_taints or {}),
    )
    return None if said == RoutingHints() else said


def router_params(request: GenerationRequest) -> RouterParams | None:
    """The request's own latency targets."""
    extras = request.extras()
    if extras is None or extras.router is None:
        return None
    return RouterParams(ttft_target=extras.router.ttft_target, itl_target=extras.router.itl_target)
