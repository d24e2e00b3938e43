"""Workers, requests and calls for the adapters' tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from engines.base import AttemptIds, Call, EngineAdapter
from protocols.options import OutputOptions, SamplingOptions, StopConditions
from protocols.preprocessed import PreprocessedRequest, RoutingHints
from protocols.worker import Engine, Role, Worker, WorkerTraits

IDS = AttemptIds(name="0123456789abcdef0123456789abcdef", number=2**62 + 12345)
PROMPT = (1, 450, 7483)


def worker(engine: Engine, role: Role = Role.AGGREGATED, *, traits: WorkerTraits | None = None, **more: Any) -> Worker:
    known = traits or WorkerTraits(served_name="m")
    return Worker(id=7, url="http://10.0.0.5:8100", engine=engine, role=role, traits=known, **more)


def request(
    *,
    stop: dict[str, Any] | None = None,
    sampling: dict[str, Any] | None = None,
    output: dict[str, Any] | None = None,
    routing: dict[str, Any] | None = None,
    extra_body: dict[str, Any] | None = None,
    **more: Any,
) -> PreprocessedRequest:
    """A request of three prompt tokens and 64 to come; eos is 2."""
    asked = PreprocessedRequest(
        token_ids=PROMPT,
        model="gateway-name",
        stop_conditions=StopConditions(**{"max_tokens": 64, **(stop or {})}),
        sampling_options=SamplingOptions(**(sampling or {})),
        output_options=OutputOptions(**(output or {})),
        eos_token_ids=(2,),
        routing=RoutingHints(**routing) if routing is not None else None,
        extra_args={"extra_body": extra_body} if extra_body is not None else None,
    )
    return replace(asked, **more)


def body_of(call: Call) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(call.body)
    return body


def answer_body(adapter: EngineAdapter, asked: PreprocessedRequest) -> dict[str, Any]:
    return body_of(adapter.generate_call(asked, IDS))


def prefill_body(adapter: EngineAdapter, asked: PreprocessedRequest) -> dict[str, Any]:
    return body_of(adapter.prefill_call(asked, IDS))
