"""Cutting a text's ids to a length, with the tokenizer's own tokens kept at both ends of what is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Encoder(Protocol):
    """`text.tokenizer.Tokenizer`, as far as it is needed here."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


def encode_at_most(
    tokenizer: Encoder, text: str, limit: int | None, *, add_special_tokens: bool, from_left: bool
) -> list[int]:
    """The text's ids, at most `limit` of them (None: all). `from_left`: the beginning goes, and the end stays.

    What the tokenizer puts in front of a text and behind it ([CLS], [SEP]) counts, and stays.
    """
    ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    if limit is None or len(ids) <= limit:
        return ids
    plain = tokenizer.encode(text, add_special_tokens=False) if add_special_tokens else ids
    added = len(ids) - len(plain)
    front = next((start for start in range(added + 1) if ids[start : start + len(plain)] == plain), None)
    if front is None or added > limit:
        # The tokenizer does more than adding tokens at the ends.
        return cut(ids, limit, from_left=from_left)
    behind = front + len(plain)
    return [*ids[:front], *cut(plain, limit - added, from_left=from_left), *ids[behind:]]


def cut(ids: Sequence[int], limit: int, *, from_left: bool) -> list[int]:
    """At most `limit` ids of the end or of the beginning."""
    return list(ids[max(len(ids) - limit, 0) :] if from_left else ids[:limit])
