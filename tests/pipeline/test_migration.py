"""An answer goes on at another worker: `Replay` decides, `Migration` runs the attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pipeline.context import RequestContext
from pipeline.migration import Replay
from protocols.errors import (
    CannotConnect,
    DeadlineExceeded,
    Disconnected,
    EngineFailure,
    GatewayError,
    InvalidRequest,
    NoAvailableWorkers,
    Overloaded,
    WorkerBusy,
)
from protocols.options import GuidedDecoding
from protocols.outputs import BackendOutput, DecoderCheckpoint, FinishReason, LLMEngineOutput
from protocols.preprocessed import BootstrapInfo, PrefillResult, PreprocessedRequest
from tests.pipeline.engines_in_process import (
    LIMITS,
    ScriptedService,
    SteadyEngine,
    context_of,
    resilient_texts,
    resilient_tokens,
    run,
    tokens,
)
from tests.pipeline.rig import PROMPT, Seen, request_of
from tests.text.small_tokenizers import byte_level


async def test_the_second_attempt_brings_what_is_left() -> None:
    engine = SteadyEngine(b"hello world", 2, breaks=[5])
    request = request_of(
        stop={"max_tokens": 20, "min_tokens": 8},
        prefill_result=PrefillResult({"old": 1}),
        bootstrap_info=BootstrapInfo("h", 1, 2),
    )

    await run(resilient_tokens(engine), request)

    again = engine.attempts[1]
    assert again.token_ids == (*PROMPT, *b"hello")
    assert (again.stop_conditions.max_tokens, again.stop_conditions.min_tokens) == (15, 3)
    assert (again.prefill_result, again.bootstrap_info) == (None, None)
    assert engine.attempts[0] is request


async def test_limits_are_reduced_to_nothing_at_most() -> None:
    replay: Replay[LLMEngineOutput] = Replay(request_of(stop={"max_tokens": 2, "min_tokens": 1}), LIMITS)

    replay.observe([tokens(1, 2, 3)])

    stop = replay.attempt().stop_conditions
    assert (stop.max_tokens, stop.min_tokens) == (0, 0)


async def test_the_decoders_checkpoint_is_the_next_attempts_seed() -> None:
    replay: Replay[BackendOutput] = Replay(request_of(), LIMITS)

    replay.observe([BackendOutput(token_ids=[5], jailed_text=DecoderCheckpoint("st", (7,)))])
    assert replay.attempt().jail_seed == DecoderCheckpoint("st", (7,))
    replay.observe([BackendOutput(token_ids=[6])])
    assert replay.attempt().jail_seed is None


async def test_with_nothing_left_to_generate_the_answer_ends_by_length_without_another_attempt() -> None:
    engine, seen = SteadyEngine("ab😀".encode(), None, breaks=[4]), Seen()

    taken = await run(resilient_texts(engine, byte_level(), seen), request_of(stop={"max_tokens": 4}))

    assert len(engine.attempts) == 1
    assert taken.finish == FinishReason.LENGTH
    assert taken.text == "ab\ufffd"
    assert seen.migrations == []


async def test_cached_tokens_of_a_later_attempt_are_not_told() -> None:
    """They would count our own replayed tokens."""
    engine = SteadyEngine(b"hello", 2, breaks=[2], cached=5)

    taken = await run(resilient_tokens(engine), request_of())

    assert taken.cached_tokens is None


async def test_cached_tokens_of_a_second_attempt_are_told_when_nothing_had_been_shown() -> None:
    engine = SteadyEngine(b"hello", 2, breaks=[0], cached=2)

    taken = await run(resilient_tokens(engine), request_of())

    assert taken.cached_tokens == 2


# ---- what may be tried again


def failing(*errors: GatewayError, after: Sequence[int] = ()) -> ScriptedService:
    """Attempts that fail by these errors, the first after some tokens; then one that ends well."""
    first = [tokens(*after)] if after else []
    script: list[list[LLMEngineOutput | GatewayError]] = [[error] for error in errors]
    script[0] = [*first, *script[0]]
    return ScriptedService([*script, [tokens(100), LLMEngineOutput.length()]])


async def test_nothing_shown_is_retried_twice() -> None:
    seen = Seen()

    taken = await run(resilient_tokens(failing(*[Disconnected("no")] * 2), seen), request_of())

    assert taken.ids == [100]
    assert seen.migrations == ["new_request", "new_request"]


async def test_after_two_retries_the_failure_is_the_clients() -> None:
    service = failing(*[EngineFailure(f"failure {n}") for n in range(3)])

    with pytest.raises(EngineFailure, match="failure 2"):
        await run(resilient_tokens(service), request_of())

    assert len(service.attempts) == 3


async def test_what_was_shown_migrates_three_times() -> None:
    seen = Seen()

    taken = await run(resilient_tokens(failing(*[Disconnected("no")] * 3, after=[5]), seen), request_of())

    assert taken.ids == [5, 100]
    assert seen.migrations == ["ongoing_request"] * 3


async def test_after_three_migrations_the_failure_is_the_clients() -> None:
    service = failing(*[EngineFailure(f"failure {n}") for n in range(4)], after=[5])

    with pytest.raises(EngineFailure, match="failure 3"):
        await run(resilient_tokens(service), request_of())


async def test_retries_are_not_counted_as_migrations() -> None:
    service = ScriptedService(
        [
            [Disconnected("1")],
            [Disconnected("2")],
            *[[tokens(n), Disconnected("3")] for n in range(3)],
            [LLMEngineOutput.length()],
        ]
    )

    taken = await run(resilient_tokens(service), request_of())

    assert taken.ids == [0, 1, 2]


@pytest.mark.parametrize("error", [InvalidRequest("no"), DeadlineExceeded("late")])
async def test_what_another_worker_could_not_better_is_not_tried_again(error: GatewayError) -> None:
    service = failing(error)

    with pytest.raises(type(error)):
        await run(resilient_tokens(service), request_of())

    assert len(service.attempts) == 1


async def test_a_failure_that_says_so_is_not_tried_again() -> None:
    error = EngineFailure("late prefill failure behind our own stop")
    error.retryable = False
    service = failing(error, after=[5])

    with pytest.raises(EngineFailure):
        await run(resilient_tokens(service), request_of())

    assert len(service.attempts) == 1


async def test_a_refusal_of_what_we_made_of_the_request_is_no_fault_of_the_clients() -> None:
    """Prompt and shown tokens may be refused where the prompt alone was not: the client is told what really failed."""
    service = ScriptedService([[tokens(5), Disconnected("it broke")], [InvalidRequest("too long")]])

    with pytest.raises(Disconnected, match="it broke"):
        await run(resilient_tokens(service), request_of())


GUIDED = {"guided_decoding": GuidedDecoding(regex="a+")}


async def test_a_grammars_answer_is_not_migrated_after_its_first_token() -> None:
    service = failing(Disconnected("no"), after=[5])

    with pytest.raises(Disconnected):
        await run(resilient_tokens(service), request_of(sampling=GUIDED))


async def test_a_grammars_answer_is_retried_before_its_first_token() -> None:
    taken = await run(resilient_tokens(failing(Disconnected("no"))), request_of(sampling=GUIDED))

    assert taken.ids == [100]


@pytest.mark.parametrize(("longest", "migrates"), [(None, True), (5, True), (4, False)])
async def test_a_sequence_beyond_the_limit_is_not_migrated(longest: int | None, migrates: bool) -> None:
    """Three prompt tokens and two shown."""
    replay: Replay[LLMEngineOutput] = Replay(request_of(), replace(LIMITS, max_sequence=longest))
    replay.observe([tokens(1, 2)])

    assert replay.may_go_on(Disconnected("no")) is migrates


@pytest.mark.parametrize(
    ("error", "retries"),
    [(EngineFailure("no"), 1), (Disconnected("no"), 1), (CannotConnect("no"), 2), (WorkerBusy("no"), 2)],
)
async def test_a_long_prefill_is_done_again_once_at_most(error: GatewayError, retries: int) -> None:
    request = request_of(prompt=range(16_385))
    replay: Replay[LLMEngineOutput] = Replay(request, LIMITS)

    assert [replay.may_go_on(error) for _ in range(3)] == [n < retries for n in range(3)]


async def test_no_attempt_begins_after_the_deadline() -> None:
    service, seen = failing(Disconnected("no")), Seen()

    with pytest.raises(DeadlineExceeded):
        await run(resilient_tokens(service, seen), request_of(), context_of(deadline=0.0))

    assert len(service.attempts) == 1
    assert seen.migrations == []


async def test_every_further_attempt_is_written_down() -> None:
    service, context = (
        ScriptedService([[Disconnected("1")], [tokens(5), Disconnected("2")], [LLMEngineOutput.length()]]),
        context_of(),
    )

    await run(resilient_tokens(service), request_of(), context)

    assert context.tracker.migrations == ["new_request", "ongoing_request"]


# ---- what follows the request


class Lifecycle:
    """Keeps how it was told to end."""

    def __init__(self) -> None:
        self.causes: list[BaseException | None] = []

    def abort(self, cause: BaseException | None) -> None:
        self.causes.append(cause)


async def test_a_request_that_fails_for_good_aborts_its_lifecycle_with_the_typed_cause() -> None:
    context, lifecycle, error = context_of(), Lifecycle(), InvalidRequest("no")
    context.migration.store_lifecycle(lifecycle)

    with pytest.raises(InvalidRequest):
        await run(resilient_tokens(failing(error)), request_of(), context)

    assert lifecycle.causes == [error]


async def test_a_request_whose_client_leaves_aborts_its_lifecycle_without_a_cause() -> None:
    async def endless(request: PreprocessedRequest, context: RequestContext, sink: Any, /) -> None:
        await asyncio.Event().wait()

    context, lifecycle = context_of(), Lifecycle()
    context.migration.store_lifecycle(lifecycle)
    asking = asyncio.create_task(run(resilient_tokens(endless), request_of(), context))
    await asyncio.sleep(0)

    asking.cancel()
    await asyncio.wait([asking])

    assert lifecycle.causes == [None]


async def test_a_lifecycle_survives_an_attempt_that_another_follows() -> None:
    context, lifecycle = context_of(), Lifecycle()
    context.migration.store_lifecycle(lifecycle)

    await run(resilient_tokens(failing(Disconnected("no"))), request_of(), context)

    assert lifecycle.causes == []
    assert context.migration.take_lifecycle() is lifecycle


# ---- when nobody is left


async def test_when_nobody_untried_is_left_the_error_says_so() -> None:
    service = failing(Disconnected("it broke"), NoAvailableWorkers("none", retry_after=7.0))

    with pytest.raises(NoAvailableWorkers, match=r"no untried eligible worker remains.*it broke"):
        await run(resilient_tokens(service), request_of())


async def test_when_all_were_busy_the_error_says_so_and_when_to_come_back() -> None:
    service = failing(WorkerBusy("full"), Overloaded("all", retry_after=7.0))

    with pytest.raises(Overloaded, match="all eligible workers rejected the request as overloaded") as raised:
        await run(resilient_tokens(service), request_of())

    assert raised.value.retry_after == 7.0


async def test_when_nobody_was_there_from_the_start_the_router_says_why() -> None:
    service = failing(NoAvailableWorkers("no decode worker is available (ready: 2 down)"))

    with pytest.raises(NoAvailableWorkers, match="2 down"):
        await run(resilient_tokens(service), request_of())


async def test_in_the_middle_of_an_answer_the_original_failure_is_told() -> None:
    service = failing(Disconnected("it broke"), NoAvailableWorkers("none"), after=[5])

    with pytest.raises(Disconnected, match="it broke"):
        await run(resilient_tokens(service), request_of())
