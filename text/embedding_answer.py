"""The body of an answer of `/v1/embeddings`, of vectors in their base64 form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from protocols.vectors import unpack_vector


def embedding_body(
    vectors: Sequence[str], *, model: str, prompt_tokens: int, floats: bool, extra: Mapping[str, Any] | None = None
) -> bytes:
    """`vectors` in the order of the inputs; `floats`: as lists of numbers, else in base64 as they are.

    `extra`: further members. Raises WireError for a vector that is none.
    """
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    head = orjson.dumps({"object": "list", "model": model, "usage": usage, **(extra or {})})
    # One vector after another, so that a thread that does this lets the event loop run in between.
    entries = [
        b'{"object":"embedding","index":%d,"embedding":%b}' % (index, orjson.dumps(_shown(vector, floats)))
        for index, vector in enumerate(vectors)
    ]
    return b'%b,"data":[%b]}' % (head[:-1], b",".join(entries))


def _shown(vector: str, floats: bool) -> list[float] | str:
    return unpack_vector(vector) if floats else vector
