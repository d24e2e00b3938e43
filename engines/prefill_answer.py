"""A complete prefill reply as one output, for `EngineAdapter.handoff`."""

from __future__ import annotations

from collections.abc import Sequence

from protocols.errors import EngineAborted, EngineFailure, IncompleteReply
from protocols.outputs import FinishKind, LLMEngineOutput, PromptTokensDetails


def prefill_answer(outputs: Sequence[LLMEngineOutput]) -> LLMEngineOutput:
    """All that prefill said, in one output.

    Raises IncompleteReply when it said nothing, EngineFailure when its finish is an error and EngineAborted when it was
    cancelled (the seeds hand those up as terminal outputs; here they are failures of the attempt).
    """
    if not outputs:
        raise IncompleteReply("prefill returned no output")
    whole = LLMEngineOutput()
    for output in outputs:
        _add(whole, output)
    finish = whole.finish_reason
    if finish is not None and finish.kind is FinishKind.ERROR:
        raise EngineFailure(f"prefill failed: {finish.message or 'the engine reported an error'}")
    if finish is not None and finish.kind is FinishKind.CANCELLED:
        raise EngineAborted("prefill was cancelled by the engine")
    return whole


def is_terminal(answer: LLMEngineOutput) -> bool:
    """Whether the first token was the last: eos, a stop or a filter. `length` and no finish mean hand-off."""
    return answer.finish_reason is not None and answer.finish_reason.kind is not FinishKind.LENGTH


def prompt_details(answer: LLMEngineOutput) -> PromptTokensDetails | None:
    """What prefill found in its cache, where it told."""
    return answer.completion_usage.prompt_tokens_details if answer.completion_usage is not None else None


def _add(whole: LLMEngineOutput, output: LLMEngineOutput) -> None:
    if output.token_ids:
        _add_tokens(whole, output)
    if output.text is not None:
        whole.text = (whole.text or "") + output.text
    if whole.completion_usage is None or _has_details(output):
        whole.completion_usage = output.completion_usage or whole.completion_usage
    whole.finish_reason = output.finish_reason or whole.finish_reason
    if output.stop_reason is not None:
        whole.stop_reason = output.stop_reason
    if whole.disaggregated_params is None:
        whole.disaggregated_params = output.disaggregated_params
    if whole.engine_data is None:
        whole.engine_data = output.engine_data
    whole.worker_trace_link = whole.worker_trace_link or output.worker_trace_link


def _add_tokens(whole: LLMEngineOutput, output: LLMEngineOutput) -> None:
    """Per-token lists are kept only as long as every output has them: they must stay aligned with the ids."""
    first = not whole.token_ids
    for name in ("tokens", "log_probs", "top_logprobs"):
        have, more = getattr(whole, name), getattr(output, name)
        if first:
            setattr(whole, name, more)
        else:
            setattr(whole, name, None if have is None or more is None else have + more)
    whole.token_ids = whole.token_ids + output.token_ids


def _has_details(output: LLMEngineOutput) -> bool:
    usage = output.completion_usage
    return usage is not None and usage.prompt_tokens_details is not None
