"""What the replies to a worker's probes say, as far as engines say it alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from engines.base import ProbeReply


def object_at(replies: Mapping[str, ProbeReply], path: str) -> dict[str, Any]:
    """The JSON object that the probe of `path` was answered with; empty when there was none."""
    reply = replies.get(path)
    if reply is None or reply.status != 200:
        return {}
    try:
        value = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def served_model(replies: Mapping[str, ProbeReply]) -> tuple[str | None, int | None]:
    """The name and the context length of the worker's own model. Adapters are listed after it, with a parent."""
    listed = object_at(replies, "/v1/models").get("data")
    cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
    card = next((card for card in cards if card.get("parent") is None), {})
    return text(card.get("id")), count(card.get("max_model_len"))


def text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def count(value: Any) -> int | None:
    """A whole number above 0; else None."""
    return value if type(value) is int and value > 0 else None
