"""TensorRT-LLM's logprobs: of completions (texts without ids), and prefill's for the token it hands over.

`FIRST_TOKEN` is our own member of a hand-off's parameters, written by `first_token_member`, read by `HandedOver`, and
never sent to a worker.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocols.errors import ProtocolViolation
from protocols.outputs import LLMEngineOutput, TopLogprob
from protocols.preprocessed import PrefillResult
from protocols.wire import from_wire, to_wire

FIRST_TOKEN = "_first_token"  # noqa: S105
UNKNOWN_ID = -1


def first_token_member(answer: LLMEngineOutput) -> dict[str, Any]:
    """`{FIRST_TOKEN: ...}` from a prefill reply that has the first token's logprob; else nothing."""
    if not answer.log_probs:
        return {}
    top = to_wire(answer.top_logprobs[0]) if answer.top_logprobs else None
    return {FIRST_TOKEN: {"logprob": answer.log_probs[0], "top": top}}


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What decode's reply must agree with, or lacks: the token prefill sampled, and its logprobs."""

    token_id: int | None = None
    logprob: float | None = None
    top: tuple[TopLogprob, ...] | None = None

    @classmethod
    def of(cls, result: PrefillResult | None) -> HandedOver:
        """Reads it from a hand-off's parameters."""
        params = result.disaggregated_params if result is not None else None
        if not isinstance(params, Mapping):
            return cls()
        tokens = params.get("first_gen_tokens")
        token_id = tokens[0] if isinstance(tokens, (list, tuple)) and len(tokens) == 1 else None
        first = params.get(FIRST_TOKEN) or {}
        top = first.get("top")
        entries = None if top is None else tuple(from_wire(TopLogprob, entry) for entry in top)
        return cls(token_id=token_id, logprob=first.get("logprob"), top=entries)


def logprobs_of(raw: Any, ids: list[int], *, with_top: bool) -> tuple[list[float], list[list[TopLogprob]] | None]:
    """The chosen tokens' logprobs, for the last of `ids`, and per token the alternatives, likeliest first."""
    if raw is None:
        return [], None
    if not isinstance(raw, dict):
        raise ProtocolViolation("logprobs are not an object")
    chosen = raw.get("token_logprobs") or []
    top = raw.get("top_logprobs") or []
    texts = raw.get("tokens") or []
    if not isinstance(chosen, list) or any(type(value) not in (int, float) for value in chosen):
        raise ProtocolViolation("logprobs are not numbers")
    if not with_top or not len(top) == len(texts) == len(chosen) <= len(ids):
        return chosen, None
    known = zip(ids[len(ids) - len(chosen) :], texts, top, strict=True)
    return chosen, [_alternatives(token_id, text, entry) for token_id, text, entry in known]


def _alternatives(token_id: int, text: str, entry: Any) -> list[TopLogprob]:
    """One token's alternatives; only the chosen one's id is known, by its text."""
    if not isinstance(entry, dict) or any(type(value) not in (int, float) for value in entry.values()):
        raise ProtocolViolation("a token's alternatives are not an object of numbers")
    ranked = sorted(entry.items(), key=operator.itemgetter(1), reverse=True)
    return [
        TopLogprob(rank, token_id if other == text else UNKNOWN_ID, other, logprob)
        for rank, (other, logprob) in enumerate(ranked, 1)
    ]
