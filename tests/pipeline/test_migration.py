"""An answer goes on at another worker: `Replay` decides, `Migration` runs the attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.background import Background
from pipeline.context import RequestContext
from pipeline.detokenize import Detokenizer
from pipeline.migration import Migration, MigrationLimits, Replay, tokens_length_ending
from pipeline.service import Service, link
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
from telemetry.tracker import RequestTracker
from tests.pipeline.engines_in_process import ScriptedService, SteadyEngine, tokens
from tests.pipeline.rig import PROMPT, Seen, Taken, request_of
from tests.text.small_tokenizers import EOS, byte_level, gemma, llama_2
from text.tokenizer import Tokenizer
from text.usage import UsageCount

LIMITS = MigrationLimits()


def context_of(deadline: float | None = None) -> RequestContext:
    clock = asyncio.get_running_loop().time
    return RequestContext(
        "r1", "m", clock=clock, background=Background(), tracker=RequestTracker(clock), deadline=deadline
    )


def resilient_texts(
    engine: Any, tokenizer: Tokenizer, seen: Seen | None = None, limits: MigrationLimits = LIMITS
) -> Any:
    detokenizer = Detokenizer(tokenizer)
    return link(Migration(limits, detokenizer.length_ending, seen or Seen()), link(detokenizer, engine))


def resilient_tokens(engine: Any, seen: Seen | None = None, limits: MigrationLimits = LIMITS) -> Any:
    return link(Migration(limits, tokens_length_ending, seen or Seen()), engine)


async def run(service: Service[Any, Any], request: PreprocessedRequest, context: RequestContext | None = None) -> Taken:
    taken = Taken()
    await service(request, context or context_of(), taken)
    return taken


def told(taken: Taken) -> dict[str, Any]:
    """All that a client sees of an answer."""
    usage = UsageCount([len(PROMPT)])
    for output in taken.outputs:
        usage.choices[0].tokens += len(output.token_ids)
        usage.choices[0].observe(output)
    endings = [output for output in taken.outputs if output.finish_reason is not None]
    assert len(endings) == 1
    assert endings[0] is taken.outputs[-1]
    return {
        "text": taken.text,
        "ids": taken.ids,
        "tokens": [text for output in taken.outputs for text in output.tokens],
        "finish": endings[0].finish_reason,
        "stop_reason": endings[0].stop_reason,
        "usage": usage.usage(),
    }


# ---- a break anywhere gives the unbroken answer

EURO = "naïve café: 12 €, 😀 stop it. The end".encode()
STOPPED = [
    {},
    {"stop": ("stop",)},
    {"stop": ("é: 1", "never")},
    {"stop": ("😀",), "min_tokens": 4},
    {"stop": ("stop",), "min_tokens": 40},
    {"max_tokens": 11},
    {"max_tokens": 1},
    {"stop_token_ids": (ord("i"),)},
    {"stop_token_ids": (ord("i"),), "min_tokens": 9},
]


@pytest.mark.parametrize("read", [1, 3, 100])
@pytest.mark.parametrize("stop", STOPPED)
async def test_a_break_at_every_position_gives_the_unbroken_answer(stop: dict[str, Any], read: int) -> None:
    """Every position of an answer of 45 bytes: some 50 attempts in one test."""
    tokenizer = byte_level()
    eos = tokenizer.encode(EOS, add_special_tokens=False)[0]
    request = replace(request_of(stop=stop), eos_token_ids=(eos,))
    whole = told(await run(resilient_texts(SteadyEngine(EURO, eos, read), tokenizer), request))

    broken = {
        position: told(await run(resilient_texts(SteadyEngine(EURO, eos, read, [position]), tokenizer), request))
        for position in range(len(EURO) + 2)
    }

    assert {position: answer for position, answer in broken.items() if answer != whole} == {}


@settings(max_examples=150, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("make", [byte_level, llama_2, gemma])
def test_breaks_at_any_positions_give_the_unbroken_answer(make: Any, data: st.DataObject) -> None:
    """Three breaks in an answer of any ids, for 150 answers: longer than other tests."""
    tokenizer = make()
    size = 280
    ids = data.draw(st.lists(st.integers(3, size - 30), min_size=1, max_size=24), label="answer")
    text = tokenizer.decode(ids, skip_special_tokens=True)
    at = data.draw(st.integers(0, max(len(text) - 1, 0)), label="stop begins at")
    stops = (text[at : at + data.draw(st.integers(1, 4), label="length")],) if text[at:] else ()
    request = request_of(
        stop={
            "stop": data.draw(st.sampled_from([None, stops]), label="stop"),
            "max_tokens": data.draw(st.integers(1, len(ids) + 2), label="max_tokens"),
            "min_tokens": data.draw(st.sampled_from([None, 1, len(ids)]), label="min_tokens"),
        },
        sampling={"include_stop_str_in_output": data.draw(st.booleans(), label="include")},
    )
    read = data.draw(st.integers(1, 5), label="read")
    breaks = data.draw(st.lists(st.integers(0, len(ids)), min_size=1, max_size=3), label="breaks")
    alone = data.draw(st.booleans(), label="finish alone")

    async def answers() -> tuple[dict[str, Any], dict[str, Any]]:
        engines = [SteadyEngine(ids, 2, read, list(cuts), alone) for cuts in ([], breaks)]
        whole, broken = [await run(resilient_texts(engine, tokenizer, limits=PATIENT), request) for engine in engines]
        return told(whole), told(broken)

    whole, broken = asyncio.run(answers())
    assert broken == whole


PATIENT = MigrationLimits(retries=3, migrations=3)


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
