"""vLLM's logprobs, of either token route, as one list per generated token.

`/inference/v1/generate` tells ids and ranks. `/v1/completions` tells a map from token to logprob, whose keys are
`token_id:N` because we ask for that, and no ranks: the map holds the chosen token first, then the others by rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protocols.outputs import TopLogprob

_ID = "token_id:"
UNKNOWN_ID = -1
"""The id of a token that was told as text only."""

Chosen = list[float]
Alternatives = list[list[TopLogprob]]


def logprobs_of(ids: list[int], logprobs: Any) -> tuple[Chosen, Alternatives]:
    """The chosen tokens' logprobs, and the alternatives by rank, the chosen token among them.

    Raises ValueError, TypeError or KeyError when they do not belong to `ids`.
    """
    content = logprobs.get("content")
    if content is None:
        return _completions(ids, logprobs)
    if len(content) != len(ids):
        raise ValueError(f"{len(content)} logprobs for {len(ids)} tokens")
    return [float(entry["logprob"]) for entry in content], [_told(*pair) for pair in zip(ids, content, strict=True)]


def _completions(ids: list[int], logprobs: Any) -> tuple[Chosen, Alternatives]:
    tokens, values, tops = logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]
    if not len(tokens) == len(values) == len(tops) == len(ids):
        raise ValueError(f"{len(values)} logprobs for {len(ids)} tokens")
    alternatives = []
    for token_id, token, value, top in zip(ids, tokens, values, tops, strict=True):
        others = [_named(key, logprob) for key, logprob in (top or {}).items() if key != token]
        alternatives.append(_ranked(TopLogprob(0, token_id, _text(token), value), others))
    return [float(value) for value in values], alternatives


def _told(token_id: int, entry: Any) -> list[TopLogprob]:
    """One position of the generate route; with `output_mode: text` it has the chat route's shape, without ids."""
    if "token_id" not in entry:
        others = [
            _named(top["token"], top["logprob"]) for top in entry["top_logprobs"] if top["token"] != entry["token"]
        ]
        return _ranked(TopLogprob(0, token_id, entry["token"], entry["logprob"]), others)
    if entry["token_id"] != token_id:
        raise ValueError(f"the logprob of token {entry['token_id']} stands at token {token_id}")
    tops = [TopLogprob(top["rank"] or 0, top["token_id"], None, top["logprob"]) for top in entry["top_logprobs"]]
    return sorted(tops, key=_rank)


def _ranked(chosen: TopLogprob, others: Iterable[TopLogprob]) -> list[TopLogprob]:
    """Ranks for a position that tells none. As vLLM counts: the chosen token comes after those of equal logprob.

    Outside the top k its rank is one more than k, the least it can be.
    """
    tops = sorted([*others, chosen], key=lambda top: -top.logprob)
    for rank, top in enumerate(tops, start=1):
        top.rank = rank
    return tops


def _named(key: str, logprob: float) -> TopLogprob:
    return TopLogprob(0, int(key[len(_ID) :]) if key.startswith(_ID) else UNKNOWN_ID, _text(key), logprob)


def _text(token: str) -> str | None:
    return None if token.startswith(_ID) else token


def _rank(top: TopLogprob) -> int:
    return top.rank
