"""max_tokens 0: what is asked of an engine, and what of its reply is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.background import Background
from pipeline.context import RequestContext
from pipeline.prompt_only import prompt_only
from protocols.options import OutputOptions, StopConditions
from protocols.outputs import BackendOutput, CompletionUsage, FinishReason
from protocols.preprocessed import PreprocessedRequest
from telemetry.tracker import RequestTracker

TOLD = {"prompt_logprobs": [None, {"6": -0.5}]}
ANSWER = [
    BackendOutput(token_ids=[7], tokens=["x"], text="x", log_probs=[-1.0], engine_data=TOLD),
    BackendOutput(finish_reason=FinishReason.EOS, completion_usage=CompletionUsage(2, 1, 3)),
]


class Engine:
    """Notes what it is asked, and answers one token."""

    def __init__(self) -> None:
        self.asked: list[PreprocessedRequest] = []

    async def __call__(self, request: PreprocessedRequest, context: RequestContext, sink: Any) -> None:
        self.asked.append(request)
        sink(ANSWER)


def request(max_tokens: int | None, prompt_logprobs: int | None = None) -> PreprocessedRequest:
    return PreprocessedRequest(
        (5, 6),
        stop_conditions=StopConditions(max_tokens=max_tokens, stop=("x",), min_tokens=0),
        output_options=OutputOptions(prompt_logprobs=prompt_logprobs),
    )


async def outputs_of(asked: PreprocessedRequest, engine: Engine) -> list[BackendOutput]:
    taken: list[BackendOutput] = []

    def sink(outputs: Sequence[BackendOutput]) -> None:
        taken.extend(outputs)

    context = RequestContext(
        "r", "m", clock=lambda: 0.0, background=Background(), tracker=RequestTracker(lambda: 0.0, received_unix_s=0.0)
    )
    await prompt_only(asked, context, sink, engine)
    return taken


async def test_a_request_for_an_answer_passes_as_it_is() -> None:
    engine, asked = Engine(), request(max_tokens=8)

    assert await outputs_of(asked, engine) == ANSWER
    assert engine.asked == [asked]


async def test_a_prompt_without_an_answer_asks_nobody() -> None:
    engine = Engine()

    (output,) = await outputs_of(request(max_tokens=0), engine)

    assert output.finish_reason is FinishReason.LENGTH
    assert (output.token_ids, output.text) == ([], None)
    assert engine.asked == []


async def test_a_prompts_logprobs_are_asked_for_with_one_token_that_nothing_cuts_short() -> None:
    engine = Engine()

    await outputs_of(request(max_tokens=0, prompt_logprobs=1), engine)

    (asked,) = engine.asked
    assert asked.stop_conditions == StopConditions(max_tokens=1, ignore_eos=True)
    assert asked.token_ids == (5, 6)


async def test_what_the_engine_tells_of_the_prompt_comes_up_and_its_token_does_not() -> None:
    first, last = await outputs_of(request(max_tokens=0, prompt_logprobs=1), Engine())

    assert (first.token_ids, first.text, first.log_probs, first.engine_data) == ([], None, None, TOLD)
    assert last.finish_reason is FinishReason.LENGTH
    assert last.completion_usage == CompletionUsage(2, 0, 2)
