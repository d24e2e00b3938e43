"""What a request's extras (`tandem`, or `nvext`) ask to be told beside its answer.

Annotations come before it, in a stream's first chunk; `extra_fields` after it, in the last. An answer in one piece has
both. Surprising: worker ids are texts, as everywhere in JSON (JavaScript's numbers are too short for them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.preprocess import ChoiceOutputs, Prepared
from protocols.openai import GenerationRequest
from protocols.worker import Leg
from telemetry.tracker import RequestTracker

ANNOTATIONS = frozenset({"request_id", "token_ids", "formatted_prompt"})
FIELDS = frozenset({"timing", "worker_id", "stop_reason", "completion_token_ids"})

Sink = Callable[[Sequence[ChoiceOutputs]], None]


class Asides:
    """One request's. `name`: the member that they stand in, called as the client called its own."""

    def __init__(self, name: str, annotations: frozenset[str], fields: frozenset[str]) -> None:
        self.name = name
        self._annotations = annotations
        self._fields = fields
        self._before: dict[str, Any] = {}
        self._stop_reasons: dict[int, Any] = {}
        self._token_ids: dict[int, list[int]] = {}

    @classmethod
    def of(cls, request: GenerationRequest) -> Asides | None:
        """None where nothing is asked for."""
        extras = request.extras()
        if extras is None:
            return None
        annotations = ANNOTATIONS.intersection(extras.annotations or ())
        fields = FIELDS.intersection(extras.extra_fields or ())
        if not annotations and not fields:
            return None
        return cls("tandem" if request.tandem is not None else "nvext", annotations, fields)

    # ---- before the answer

    def request_named(self, request_id: str) -> None:
        if "request_id" in self._annotations:
            self._before["request_id"] = request_id

    def prompt_known(self, prepared: Prepared, decode: Callable[[Sequence[int]], str]) -> None:
        """`decode`: the text of a prompt that came as ids."""
        prompts = [list(prompt.token_ids) for prompt in prepared.prompts]
        if "token_ids" in self._annotations:
            self._before["token_ids"] = _one_or_all(prompts)
        if "formatted_prompt" in self._annotations:
            texts = [decode(ids) for ids in prompts] if prepared.texts is None else prepared.texts
            self._before["formatted_prompt"] = _one_or_all(texts)

    def announcement(self) -> dict[str, Any] | None:
        """What a stream begins with; what was announced is not told again."""
        before, self._before = self._before, {}
        return {self.name: before} if before else None

    # ---- after it

    def watching(self, sink: Sink) -> Sink:
        """The sink, with what it takes noted here where that is to be told."""
        if self._fields.isdisjoint(("stop_reason", "completion_token_ids")):
            return sink

        def watched(batch: Sequence[ChoiceOutputs]) -> None:
            for choice in batch:
                self._note(choice)
            sink(batch)

        return watched

    def _note(self, choice: ChoiceOutputs) -> None:
        token_ids = self._token_ids.setdefault(choice.index, [])
        for output in choice.outputs:
            token_ids += output.token_ids
            if output.finish_reason is not None:
                self._stop_reasons[choice.index] = output.stop_reason

    def closing(self, tracker: RequestTracker) -> dict[str, Any]:
        """What is left to be told when the answer is over."""
        told = dict(self._before)
        if "worker_id" in self._fields:
            told["worker_id"] = _workers(tracker)
        if "stop_reason" in self._fields and self._stop_reasons:
            told["stop_reason"] = _one_or_all(_in_order(self._stop_reasons))
        if "completion_token_ids" in self._fields and self._token_ids:
            told["completion_token_ids"] = _one_or_all(_in_order(self._token_ids))
        if "timing" in self._fields:
            told["timing"] = tracker.timing()
        return {self.name: told}


def _workers(tracker: RequestTracker) -> dict[str, Any]:
    """Who served, under Dynamo's names: of several attempts the last."""
    told: dict[str, Any] = {}
    for leg in Leg:
        served = tracker.worker_of(leg)
        if served is not None:
            told[f"{leg.value}_worker_id"] = str(served.worker_id)
            if served.dp_rank is not None:
                told[f"{leg.value}_dp_rank"] = served.dp_rank
    return told


def _in_order(by_index: Mapping[int, Any]) -> list[Any]:
    return [by_index[index] for index in sorted(by_index)]


def _one_or_all(values: Sequence[Any]) -> Any:
    """A single prompt's or choice's stands alone."""
    return values[0] if len(values) == 1 else list(values)
