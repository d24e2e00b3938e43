"""Floor 1: how to speak to each engine. Bytes in, bytes out; no sockets, no clocks."""

from __future__ import annotations

from engines.base import EngineAdapter
from protocols.worker import Engine, Worker


def adapter_for(worker: Worker, model: str) -> EngineAdapter:
    """How to speak to `worker` about `model` (the gateway's name for it).

    An `openai` worker's adapter knows its control plane only: requests to it are forwarded (`engines.openai_text`).
    Raises ValueError where there is none: of vLLM's connectors only NIXL is spoken.
    """
    # Imported here, so that whoever needs one module of this room does not load every engine.
    if worker.engine is Engine.VLLM:
        from engines.vllm import VllmAdapter

        if worker.connector != "nixl":
            raise ValueError(
                f"worker {worker.url}: connector {worker.connector!r} is not supported for vLLM, only 'nixl'"
            )
        return VllmAdapter(worker, model)
    if worker.engine is Engine.SGLANG:
        from engines.sglang import SglangAdapter

        return SglangAdapter(worker, model)
    if worker.engine is Engine.TRTLLM:
        from engines.trtllm import TrtllmAdapter

        return TrtllmAdapter(worker, model)
    if worker.engine is Engine.NATIVE:
        from engines.native import NativeAdapter

        return NativeAdapter(worker, model)
    from engines.openai_text import OpenAIAdapter

    return OpenAIAdapter(worker, model)
