"""When an ending is an error: asked wherever outputs are read."""

from __future__ import annotations

from protocols.errors import EngineAborted, EngineFailure, IncompleteReply
from protocols.outputs import BackendOutput, FinishKind, LLMEngineOutput


def raise_if_failed(ending: LLMEngineOutput | BackendOutput | None) -> None:
    """Raises the failure that an ending stands for: none came, an error, or a cancel that nobody here asked for."""
    if ending is None or ending.finish_reason is None:
        raise IncompleteReply("the reply ended without a finish")
    kind = ending.finish_reason.kind
    if kind is FinishKind.ERROR:
        raise EngineFailure(ending.finish_reason.message or "the engine reported an error")
    if kind is FinishKind.CANCELLED:
        raise EngineAborted("the engine aborted the answer")
