"""Operators around engines that are callables of this process: what a worker's reading does for them otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from pipeline.context import RequestContext
from pipeline.outcome import raise_if_failed
from pipeline.preprocess import ChoiceOutputs
from pipeline.service import Service, Sink
from protocols.errors import DeadlineExceeded, IncompleteReply
from protocols.openai import GenerationRequest
from protocols.outputs import BackendOutput
from workers.exchange import push

Request = TypeVar("Request")
Output = TypeVar("Output")


async def in_time(
    request: Request, context: RequestContext, sink: Sink[Output], engine: Service[Request, Output]
) -> None:
    """Cancels the engine at the request's deadline."""
    scope = asyncio.timeout_at(context.deadline)
    try:
        async with scope:
            await engine(request, context, sink)
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise DeadlineExceeded("the request's deadline has passed") from error


async def whole_texts(
    request: GenerationRequest,
    context: RequestContext,
    sink: Sink[ChoiceOutputs],
    engine: Service[GenerationRequest, ChoiceOutputs],
) -> None:
    """Passes texts up and withholds every choice's ending, which goes up when the engine has come back.

    Raises what an ending stands for that is a failure, and IncompleteReply for a choice without one.
    """
    endings: dict[int, BackendOutput | None] = {}

    def observe(batch: Sequence[ChoiceOutputs]) -> None:
        shown = [kept for choice in batch if (kept := _withheld(choice, endings)) is not None]
        if shown:
            sink(shown)

    await engine(request, context, observe)
    if not endings:
        raise IncompleteReply("the engine answered nothing")
    for ending in endings.values():
        raise_if_failed(ending)
    push(sink, [ChoiceOutputs(index, [ending]) for index, ending in sorted(endings.items()) if ending is not None])


def _withheld(choice: ChoiceOutputs, endings: dict[int, BackendOutput | None]) -> ChoiceOutputs | None:
    """What of a choice's outputs may go up now. After its ending it says nothing more."""
    if endings.setdefault(choice.index, None) is not None:
        return None
    outputs = list(choice.outputs)
    place = next((place for place, output in enumerate(outputs) if output.finish_reason is not None), None)
    if place is not None:
        endings[choice.index] = outputs[place]
        del outputs[place:]
    return replace(choice, outputs=outputs) if outputs else None
