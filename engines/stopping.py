"""When an answer ends: what vLLM and SGLang are told beforehand, and what they tell of it afterwards."""

from __future__ import annotations

from typing import Any

from protocols.outputs import FinishReason, StopReason
from protocols.preprocessed import PreprocessedRequest
from protocols.worker import Worker

DEFAULT_MAX_TOKENS = 16
"""Said when neither the request nor the worker's context length says more: OpenAI's own default."""


def token_limit(request: PreprocessedRequest, worker: Worker, *, margin: int = 0) -> int:
    """How many tokens an engine may generate, always said: engines default to 16, to 128 or to the whole context.

    Never more than this worker's context has room for: SGLang refuses that. `margin`: tokens that the engine keeps for
    itself where nobody says how many are wanted.
    """
    wanted = request.stop_conditions.max_tokens
    length = worker.context_length or worker.traits.context_length
    if length is None:
        return DEFAULT_MAX_TOKENS if wanted is None else wanted
    room = length - len(request.token_ids)
    return max(room - margin if wanted is None else min(wanted, room), 1)


def stop_ids(request: PreprocessedRequest) -> list[int]:
    """Every id that ends the answer, once; with `ignore_eos` not those that are hidden stops for being eos."""
    stop = request.stop_conditions
    hidden = stop.stop_token_ids_hidden or ()
    if stop.ignore_eos:
        hidden = tuple(token_id for token_id in hidden if token_id not in request.eos_token_ids)
    return list(dict.fromkeys((*(stop.stop_token_ids or ()), *(stop.stop_token_ids_visible or ()), *hidden)))


def stopped(request: PreprocessedRequest, matched: Any) -> tuple[FinishReason, StopReason | None]:
    """What a finish "stop" means, given the matched string or token id.

    An eos is no stop reason, though it was sent as a stop id or is told by its id (SGLang); and nothing else matches
    while eos is ignored.
    """
    if isinstance(matched, str):
        return FinishReason.STOP, matched
    if type(matched) is not int:
        return FinishReason.EOS, None
    if matched in request.eos_token_ids and not request.stop_conditions.ignore_eos:
        return FinishReason.EOS, None
    return FinishReason.STOP, matched
