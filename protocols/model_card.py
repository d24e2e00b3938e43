"""What the gateway knows of a model: names, limits, stop ids, sampling defaults. `text` reads the files."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from protocols.options import RequestTemplate


class ModelKind(enum.Enum):
    """The one thing that a model does, where its operator says so."""

    GENERATE = "generate"
    EMBED = "embed"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model.

    `name` is what clients call it, `aliases` what they may call it too. `context_length` is in tokens, prompt and
    answer together; None when nobody said. `sampling_defaults` (temperature, top_p, top_k, repetition_penalty,
    max_new_tokens, ...) come from generation_config.json, or are the operator's. `created` is in unix seconds. `kind`
    None: nobody said, so its workers are asked for whatever clients want. `clamps`: an answer that is asked to be
    longer than the context ends with it; else the request is refused.
    """

    name: str
    path: str = ""
    aliases: tuple[str, ...] = ()
    context_length: int | None = None
    vocab_size: int = 0
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    template: RequestTemplate = RequestTemplate()
    created: int = 0
    checksum: str | None = None
    kind: ModelKind | None = None
    clamps: bool = True

    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


def checksum_of(*parts: bytes) -> str:
    """The card's checksum (`mdc_sum`): blake2b over the model's defining files, in order."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
