"""What a request's parameters come to for one model: everything below that does not depend on its prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocols.model_card import ModelCard
from protocols.openai import REMEMBERED, ChatCompletionRequest, CompletionRequest
from protocols.options import OutputOptions, SamplingOptions, StopConditions
from protocols.preprocessed import RouterParams, RoutingHints
from text.options import (
    check_against,
    output_options,
    router_params,
    routing_hints,
    sampling_options,
    stop_conditions,
    told_annotations,
    wanted_tokens,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """`stop`: for an answer of `wanted` tokens. `hints`: the body's own."""

    sampling: SamplingOptions
    output: OutputOptions
    stop: StopConditions
    wanted: int | None
    router: RouterParams | None
    hints: RoutingHints | None
    annotations: tuple[str, ...]
    extra_args: Mapping[str, Any] | None
    timestamp_ms: float | None

    @classmethod
    def of(cls, request: ChatCompletionRequest | CompletionRequest, card: ModelCard) -> Asked:
        """Raises InvalidRequest for what the model cannot do."""
        check_against(request, card)
        wanted, extras = wanted_tokens(request, card), request.extras()
        return cls(
            sampling=sampling_options(request, card),
            output=output_options(request),
            stop=stop_conditions(request, card, wanted),
            wanted=wanted,
            router=router_params(request),
            hints=routing_hints(request),
            annotations=told_annotations(request),
            extra_args={"extra_body": request.model_extra} if request.model_extra else None,
            timestamp_ms=extras.request_timestamp_ms if extras is not None else None,
        )


class Remembered:
    """One model's requests by their parameters. Chats that are alike are read once."""

    def __init__(self, card: ModelCard) -> None:
        self._card = card
        self._known: dict[int, tuple[ChatCompletionRequest, Asked]] = {}
        """By the identity of what is alike, which is kept here so that nothing else can get it."""

    def asked(self, request: ChatCompletionRequest | CompletionRequest) -> Asked:
        """Raises InvalidRequest for what the model cannot do."""
        alike = getattr(request, "alike", None)
        if alike is None:
            return Asked.of(request, self._card)
        known = self._known.get(id(alike))
        if known is not None:
            return known[1]
        asked = Asked.of(request, self._card)
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[id(alike)] = alike, asked
        return asked
