"""Content parts of an embedding's input, from one engine's form to another's.

Clients send either OpenAI's parts (`{"type": "image_url", "image_url": {"url": …}}`) or SGLang's flat ones
(`{"text": …, "image": …}`, any of them in one part), whatever engine the model runs on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protocols.errors import InvalidRequest

Part = Mapping[str, Any]

_MEDIA = {"image": "image_url", "video": "video_url", "audio": "audio_url"}
_FLAT = {kind: name for name, kind in _MEDIA.items()}


def chat_parts(parts: Sequence[Part]) -> list[Part]:
    """As a chat message's content has them."""
    typed: list[Part] = []
    for part in parts:
        if "type" in part:
            typed.append(part)
            continue
        if part.get("text") is not None:
            typed.append({"type": "text", "text": part["text"]})
        for name, kind in _MEDIA.items():
            if part.get(name) is not None:
                typed.append({"type": kind, kind: {"url": part[name]}})
    return typed


def flat_parts(parts: Sequence[Part]) -> list[Part]:
    """As SGLang has them, one for each part. Raises InvalidRequest for a type that it has no word for."""
    return [part if "type" not in part else _flattened(part, f"input[{index}]") for index, part in enumerate(parts)]


def _flattened(part: Part, place: str) -> Part:
    kind = part["type"]
    if kind == "text":
        return {"text": part["text"]}
    if kind not in _FLAT:
        raise InvalidRequest(f"'{kind}' is not supported by this model's engine (sglang)", param=f"{place}.type")
    holder = part[kind]
    return {_FLAT[kind]: holder["url"] if isinstance(holder, Mapping) else holder}
