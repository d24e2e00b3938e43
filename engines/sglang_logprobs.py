"""SGLang's logprobs: triples `[logprob, token id, text or null]`, and lists of them per position, best first."""

from __future__ import annotations

from typing import Any

from protocols.outputs import TopLogprob


def chosen(triples: list[Any], ids: list[int]) -> list[float]:
    """The chosen tokens' logprobs. Raises ValueError, TypeError or IndexError when they do not belong to `ids`."""
    if [triple[1] for triple in triples] != ids:
        raise ValueError("the logprobs are not those of the tokens")
    return [float(triple[0]) for triple in triples]


def alternatives(tops: list[Any] | None, triples: list[Any], limit: int) -> list[list[TopLogprob]]:
    """Per token the `limit` likeliest by rank, the chosen token among them or after them.

    `tops`: None when the engine was asked for none.
    """
    rows = tops if tops is not None else [None] * len(triples)
    if len(rows) != len(triples):
        raise ValueError(f"alternatives for {len(rows)} of {len(triples)} tokens")
    return [_row(row or [], triple, limit) for row, triple in zip(rows, triples, strict=True)]


def prompt_logprobs(triples: list[Any], tops: list[Any] | None, limit: int) -> list[dict[str, Any] | None]:
    """The prompt's logprobs in the form of `protocols.outputs.prompt_logprobs_of`; the first position has none."""
    rows = tops if tops else [None] * len(triples)
    return [_entries(triple, row or [], limit) for triple, row in zip(triples, rows, strict=True)]


def _row(row: list[Any], triple: list[Any], limit: int) -> list[TopLogprob]:
    """A chosen token outside what the engine told comes last, with the least rank it can have."""
    tops = [TopLogprob(rank, top[1], top[2], float(top[0])) for rank, top in enumerate(row, start=1)]
    if all(top.token_id != triple[1] for top in tops):
        tops.append(TopLogprob(len(tops) + 1, triple[1], triple[2], float(triple[0])))
    return [top for top in tops if top.rank <= limit or top.token_id == triple[1]]


def _entries(triple: list[Any], row: list[Any], limit: int) -> dict[str, Any] | None:
    """The prompt's own token first; its rank is known where it is among the alternatives."""
    if triple[0] is None:
        return None
    ranks = {top[1]: rank for rank, top in enumerate(row, start=1)}
    entries = {str(triple[1]): _entry(triple, ranks.get(triple[1]))}
    entries |= {str(top[1]): _entry(top, ranks[top[1]]) for top in row[:limit]}
    return entries


def _entry(triple: list[Any], rank: int | None) -> dict[str, Any]:
    return {"logprob": float(triple[0]), "rank": rank, "decoded_token": triple[2]}
