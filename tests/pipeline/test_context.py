"""What belongs to one request while it runs: ids, flow, migration state, lifecycle."""

from __future__ import annotations

import asyncio

from pipeline.background import Background
from pipeline.context import Flow, MigrationState, RequestContext, new_ids, typed_cause
from protocols.errors import (
    Disconnected,
    EngineFailure,
    NoAvailableWorkers,
    Overloaded,
    WorkerBusy,
    WorkerMisconfigured,
)
from telemetry.tracker import RequestTracker


class Reply:
    def __init__(self) -> None:
        self.paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


class Lifecycle:
    """Follows one request; `causes` is how it was told to end."""

    def __init__(self) -> None:
        self.causes: list[BaseException | None] = []

    def abort(self, cause: BaseException | None) -> None:
        self.causes.append(cause)


def context_of(deadline: float | None = None) -> RequestContext:
    return RequestContext(
        "r1",
        "m",
        clock=lambda: 0.0,
        background=Background(),
        tracker=RequestTracker(lambda: 0.0),
        deadline=deadline,
    )


# ---- ids


def test_ids_are_new_each_time_and_fit_every_engine() -> None:
    ids = [new_ids() for _ in range(200)]

    assert len({given.name for given in ids}) == len({given.number for given in ids}) == 200
    assert all(len(given.name) == 32 and int(given.name, 16) >= 0 for given in ids)
    assert all(2**40 <= given.number < 2**63 for given in ids)


# ---- flow


def test_a_flow_pauses_and_resumes_every_reply() -> None:
    flow, replies = Flow(), [Reply(), Reply()]
    for reply in replies:
        flow.join(reply)

    flow.pause()
    assert [reply.paused for reply in replies] == [True, True]
    flow.resume()
    assert [reply.paused for reply in replies] == [False, False]


def test_a_reply_that_joins_a_paused_flow_is_paused() -> None:
    flow, reply = Flow(), Reply()
    flow.pause()

    flow.join(reply)

    assert reply.paused


def test_a_reply_that_has_left_is_no_longer_paused_nor_counted() -> None:
    flow, reply = Flow(), Reply()
    flow.join(reply)

    flow.leave(reply)
    flow.leave(reply)
    flow.pause()

    assert not reply.paused
    assert len(flow) == 0


# ---- migration state


def test_failed_workers_are_excluded_and_the_last_error_is_kept() -> None:
    state = MigrationState()
    first, second = Disconnected("one"), EngineFailure("two")

    state.record_failure(1, first)
    state.record_failure(2, second)
    state.record_failure(2, None)

    assert state.excluded_worker_ids() == {1, 2}
    assert state.last_error is second


def test_an_error_that_is_nobodys_fault_excludes_nobody() -> None:
    state = MigrationState()

    state.record_error(WorkerBusy("full"))

    assert state.excluded_worker_ids() == frozenset()
    assert isinstance(state.last_error, WorkerBusy)


def test_exhaustion_tells_overloaded_from_gone() -> None:
    state = MigrationState()
    assert state.exhausted_error() is None

    state.record_error(WorkerBusy("full"))
    overloaded = state.exhausted_error()
    assert isinstance(overloaded, Overloaded)
    assert overloaded.message == "all eligible workers rejected the request as overloaded"

    state.record_failure(1, Disconnected("it broke"))
    gone = state.exhausted_error()
    assert isinstance(gone, NoAvailableWorkers)
    assert gone.message.startswith("no untried eligible worker remains after migration")
    assert "it broke" in gone.message
    assert "it broke" not in gone.envelope("r")["error"]["message"]


def test_workers_that_refuse_our_key_are_not_a_lack_of_workers() -> None:
    state = MigrationState()
    refused = WorkerMisconfigured("the worker answered 401: Unauthorized")

    state.record_failure(1, refused)

    assert state.exhausted_error() is refused


def test_a_lifecycle_is_handed_out_once() -> None:
    state, lifecycle = MigrationState(), Lifecycle()

    assert state.store_lifecycle(lifecycle) is None

    assert state.take_lifecycle() is lifecycle
    assert state.take_lifecycle() is None


def test_storing_a_lifecycle_gives_back_the_unclaimed_one_that_it_replaces() -> None:
    state, first, second = MigrationState(), Lifecycle(), Lifecycle()
    state.store_lifecycle(first)

    assert state.store_lifecycle(second) is first
    assert state.take_lifecycle() is second


def test_a_lifecycle_is_aborted_with_the_typed_cause_and_only_once() -> None:
    state, lifecycle = MigrationState(), Lifecycle()
    state.store_lifecycle(lifecycle)
    typed = Disconnected("it broke")
    error = RuntimeError("wrapped")
    error.__cause__ = typed

    state.abort_lifecycle(error)
    state.abort_lifecycle(error)

    assert lifecycle.causes == [typed]


def test_without_a_typed_cause_the_error_itself_is_the_cause() -> None:
    error = RuntimeError("ours")

    assert typed_cause(error) is error
    assert typed_cause(None) is None


def test_a_lifecycle_that_was_taken_is_not_aborted() -> None:
    state, lifecycle = MigrationState(), Lifecycle()
    state.store_lifecycle(lifecycle)
    state.take_lifecycle()

    state.abort_lifecycle(None)

    assert lifecycle.causes == []


# ---- contexts


def test_a_choice_shares_deadline_flow_and_explanation_but_not_its_failures() -> None:
    context = context_of(deadline=5.0)

    child = context.child(1)
    child.migration.record_failure(1, Disconnected("no"))

    assert (child.deadline, child.flow, child.choices) == (5.0, context.flow, context.choices)
    assert child.tracker is context.tracker
    assert context.migration.excluded_worker_ids() == frozenset()


def test_what_outlives_its_client_has_neither_its_deadline_nor_its_pace() -> None:
    context = context_of(deadline=5.0)
    context.flow.pause()

    released = context.released()

    assert released.deadline is None
    assert not released.flow.paused
    assert released.request_id == context.request_id
    assert released.choices is not context.choices


# ---- the application's own tasks


async def test_a_drain_waits_for_tasks_that_begin_meanwhile() -> None:
    background, ended = Background(), []
    first = asyncio.Event()

    async def second() -> None:
        await asyncio.sleep(0)
        ended.append("second")

    async def one() -> None:
        await first.wait()
        background.spawn(second(), "second")
        ended.append("first")

    background.spawn(one(), "first")
    draining = asyncio.create_task(background.drain(1.0))
    await asyncio.sleep(0)
    assert not draining.done()
    first.set()

    await draining
    assert ended == ["first", "second"]
    assert len(background) == 0


async def test_a_drain_cancels_what_does_not_end() -> None:
    background, cancelled = Background(), []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    background.spawn(endless(), "endless")

    await background.drain(0.01)

    assert cancelled == [True]
    assert len(background) == 0


async def test_a_drain_without_time_still_lets_what_has_just_begun_clean_up() -> None:
    """A task that is cancelled before its first step never runs its `finally`."""
    background, cleaned = Background(), []

    async def just_begun() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    background.spawn(just_begun(), "just begun")

    await background.drain(0.0)

    assert cleaned == [True]


async def test_a_failed_task_is_logged_and_forgotten(caplog) -> None:  # type: ignore[no-untyped-def]
    background = Background()

    async def broken() -> None:
        raise ValueError("our bug")

    background.spawn(broken(), "broken")
    await background.drain(1.0)

    assert len(background) == 0
    assert "background task broken failed" in caplog.text
