"""A prompt without an answer (max_tokens 0 with echo): what scoring a text by its logprobs asks for.

No engine takes such a request: it is asked for one token, which is dropped. Without logprobs nobody is asked at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline.context import RequestContext
from pipeline.service import Service, Sink
from protocols.options import StopConditions
from protocols.outputs import BackendOutput, FinishReason
from protocols.preprocessed import PreprocessedRequest


async def prompt_only(
    request: PreprocessedRequest,
    context: RequestContext,
    sink: Sink[BackendOutput],
    downstream: Service[PreprocessedRequest, BackendOutput],
) -> None:
    """The operator; requests for an answer pass as they are."""
    if request.stop_conditions.max_tokens != 0:
        await downstream(request, context, sink)
        return
    if request.output_options.prompt_logprobs is None:
        sink([BackendOutput(finish_reason=FinishReason.LENGTH)])
        return

    def observe(outputs: Sequence[BackendOutput]) -> None:
        sink([_without_answer(output) for output in outputs])

    one_token = StopConditions(max_tokens=1, ignore_eos=True)
    await downstream(replace(request, stop_conditions=one_token), context, observe)


def _without_answer(output: BackendOutput) -> BackendOutput:
    """What an output tells of the prompt. The finish is the length that was asked for."""
    usage = output.completion_usage
    if usage is not None:
        usage = replace(usage, completion_tokens=0, total_tokens=usage.prompt_tokens)
    return BackendOutput(
        finish_reason=FinishReason.LENGTH if output.finish_reason is not None else None,
        completion_usage=usage,
        engine_data=output.engine_data,
    )
