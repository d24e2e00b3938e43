"""Faults on demand, at every moment of a request, on every engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from simulator.faults import Fault, Faults
from simulator.fleet import running
from simulator.model import Pace
from simulator.options import SimulatorOptions
from tests.simulator.wire_form import exchange, get, post, received, until

ENGINES = ["vllm", "sglang", "trtllm", "openai", "native"]
PROMPT = list(range(100, 140))
DONE = b"data: [DONE]"


def options(engine: str, *faults: str) -> SimulatorOptions:
    return SimulatorOptions(
        engine=engine, model="m", pace=Pace(speed=0), faults=tuple(Fault.parse(fault) for fault in faults)
    )


def request(engine: str, *, stream: bool = True, tokens: int = 8) -> bytes:
    """A plain request for so many tokens."""
    if engine == "sglang":
        sampling = {"max_new_tokens": tokens, "temperature": 0}
        return post("/generate", {"input_ids": PROMPT, "sampling_params": sampling, "stream": stream})
    if engine == "native":
        return post("/v1/native/generate", {"token_ids": PROMPT, "stop_conditions": {"max_tokens": tokens}})
    return post(
        "/v1/completions",
        {"model": "m", "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "stream": stream},
    )


def events(data: bytes) -> int:
    """Whole events that bring tokens."""
    return data.count(b"data: {")


@pytest.mark.parametrize("engine", ENGINES)
async def test_without_a_fault_an_answer_is_whole(engine: str) -> None:
    async with running(options(engine)) as simulator:
        data, orderly = await received(simulator.worker.port, request(engine))

    assert orderly
    assert DONE in data
    assert data.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_reset_comes_after_the_asked_number_of_tokens(engine: str) -> None:
    async with running(options(engine, "reset@token:3")) as simulator:
        data, orderly = await received(simulator.worker.port, request(engine))

        assert not orderly
        assert DONE not in data
        assert simulator.state()["blocks_used"] == 0


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_close_ends_in_good_order_without_the_rest(engine: str) -> None:
    async with running(options(engine, "close@token:3")) as simulator:
        data, orderly = await received(simulator.worker.port, request(engine))

        assert orderly
        assert events(data) == 3
        assert not data.endswith(b"0\r\n\r\n")
        assert simulator.state()["answers"] == 0


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_truncated_event_has_the_length_of_a_whole_one(engine: str) -> None:
    async with running(options(engine, "truncate@token:2")) as simulator:
        data, _ = await received(simulator.worker.port, request(engine))

    assert events(data) == 3
    last = data.rsplit(b"\r\n", 2)
    assert int(last[-2], 16) > len(last[-1]) > 0


@pytest.mark.parametrize("engine", ENGINES)
async def test_garbage_is_not_the_protocol(engine: str) -> None:
    async with running(options(engine, "garbage@token:2")) as simulator:
        data, _ = await received(simulator.worker.port, request(engine))

    assert b"\x00\xff" in data


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("moment", ["request", "head", "token:2"])
async def test_a_silent_worker_keeps_the_connection_and_frees_its_memory(engine: str, moment: str) -> None:
    async with running(options(engine, f"silence@{moment}")) as simulator:
        waiting = asyncio.ensure_future(received(simulator.worker.port, request(engine)))
        await until(lambda: simulator.faults.committed == 1)
        await asyncio.sleep(0.005)

        assert not waiting.done()
        assert simulator.state()["blocks_used"] == 0
        simulator.kill()
        await waiting


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_status_is_answered_so_many_times_and_then_no_more(engine: str) -> None:
    async with running(options(engine, "status=503@request*2")) as simulator:
        replies = [await exchange(simulator.worker.port, request(engine)) for _ in range(3)]

    assert [reply.status for reply in replies] == [503, 503, 200]
    assert replies[0].json()


FAILURES = {
    "vllm": b'"type":"InternalServerError","param":null,"code":500',
    "sglang": b'"type":"abort","message":"a fault was asked for","status_code":500',
    "trtllm": b'"type":"server_error","code":null',
    "openai": b'"type":"server_error"',
    "native": b"event: error",
}


@pytest.mark.parametrize("engine", ENGINES)
async def test_an_engine_puts_a_failure_inside_a_stream_in_its_own_words(engine: str) -> None:
    async with running(options(engine, "error@token:2")) as simulator:
        data, orderly = await received(simulator.worker.port, request(engine))

    assert orderly
    assert FAILURES[engine] in data


ABORTS = {
    "vllm": b'"finish_reason":"abort"',
    "sglang": b'"type":"abort","message":"Aborted"',
    "trtllm": b'"finish_reason":"cancelled"',
    "native": b'"finish_reason":"cancelled"',
}


@pytest.mark.parametrize("engine", ABORTS)
async def test_an_unasked_abort_is_an_ordinary_end(engine: str) -> None:
    async with running(options(engine, "abort@token:2")) as simulator:
        data, _ = await received(simulator.worker.port, request(engine))

    assert ABORTS[engine] in data
    assert DONE in data


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("moment", ["request", "token:2", "last", "done"])
async def test_a_dying_worker_takes_its_port_with_it(engine: str, moment: str) -> None:
    async with running(options(engine, f"die@{moment}")) as simulator:
        data, _ = await received(simulator.worker.port, request(engine))

        assert DONE not in data
        with pytest.raises(ConnectionRefusedError):
            await received(simulator.worker.port, request(engine))


@pytest.mark.parametrize("engine", ENGINES)
async def test_an_answer_may_break_off_between_finish_and_end_mark(engine: str) -> None:
    async with running(options(engine, "close@done")) as simulator:
        data, _ = await received(simulator.worker.port, request(engine))

    assert b"length" in data
    assert DONE not in data


@pytest.mark.parametrize("engine", ENGINES)
async def test_an_answer_may_break_off_instead_of_its_last_event(engine: str) -> None:
    async with running(options(engine, "close@last")) as simulator:
        data, _ = await received(simulator.worker.port, request(engine))

    assert b'"length"' not in data
    assert events(data) > 0


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "openai"])
async def test_a_whole_reply_may_be_cut_in_its_middle(engine: str) -> None:
    async with running(options(engine, "close@last")) as simulator:
        data, _ = await received(simulator.worker.port, request(engine, stream=False))

    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    assert 0 < len(body) < length


@pytest.mark.parametrize("moment", ["request", "head", "token:2", "done"])
async def test_a_slow_worker_holds_everything_back_and_then_says_all(moment: str) -> None:
    async with running(options("vllm", f"slow=0.03@{moment}")) as simulator:
        started = asyncio.get_running_loop().time()
        data, _ = await received(simulator.worker.port, request("vllm"))

        assert asyncio.get_running_loop().time() - started >= 0.03
    assert DONE in data


async def test_a_closed_port_opens_again_when_the_fault_is_cleared() -> None:
    async with running(options("vllm", "refuse")) as simulator:
        with pytest.raises(ConnectionRefusedError):
            await received(simulator.worker.port, request("vllm"))

        simulator.faults.clear()
        await until(lambda: simulator.worker.server.listening)
        reply = await exchange(simulator.worker.port, request("vllm"))

    assert reply.status == 200


@pytest.mark.parametrize(("fault", "orderly"), [("reset@connect", False), ("close@connect", True)])
async def test_a_connection_may_end_before_a_word(fault: str, orderly: bool) -> None:
    async with running(options("vllm", fault)) as simulator:
        data = await received(simulator.worker.port, request("vllm"))
        after = await exchange(simulator.worker.port, request("vllm"))

    assert data[0] == b""
    assert after.status == 200


async def test_a_deaf_worker_takes_the_connection_and_never_answers() -> None:
    async with running(options("vllm", "silence@connect")) as simulator:
        asking = asyncio.ensure_future(received(simulator.worker.port, request("vllm")))
        await until(lambda: simulator.state()["connections"] == 1)
        after = await exchange(simulator.worker.port, request("vllm"))

        assert (after.status, asking.done(), simulator.state()["answers"]) == (200, False, 0)
        simulator.kill()
        await asking


async def test_faults_are_set_and_cleared_over_http() -> None:
    async with running(options("vllm")) as simulator:
        port = simulator.worker.port
        added = await exchange(port, post("/_sim/faults", {"faults": ["reset@token:2", "status=429*0"]}))
        wrong = await exchange(port, post("/_sim/faults", {"faults": ["explode"]}))
        shown = await exchange(port, get("/_sim/faults"))
        state = await exchange(port, get("/_sim/state"))

    assert added.json() == shown.json() == {"faults": ["reset@token:2", "status=429@request*0"]}
    assert (wrong.status, "unknown fault 'explode'" in wrong.json()["error"]) == (400, True)
    assert state.json()["faults_pending"] == 2


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("reset@token:5", Fault("reset", "token", 5)),
        ("status=503@request*3", Fault("status", "request", 0, 3, 503)),
        ("slow=2.5", Fault("slow", "request", 0, 1, 2.5)),
        ("refuse", Fault("refuse", "connect")),
        ("status", Fault("status", "request", 0, 1, 500)),
        ("die@done*0", Fault("die", "done", 0, 0)),
    ],
)
def test_a_fault_is_written_and_read_alike(text: str, fault: Fault) -> None:
    assert Fault.parse(text) == fault
    assert Fault.parse(str(fault)) == fault


@pytest.mark.parametrize("text", ["", "explode", "reset@never", "truncate@connect", "refuse@token", "reset@token:x"])
def test_a_fault_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Fault.parse(text)


def test_a_fault_is_committed_so_often_and_one_without_count_for_ever() -> None:
    faults = Faults([Fault("reset", count=2), Fault("close", count=0)])

    kinds = [fault.kind for _ in range(5) if (fault := faults.for_request()) is not None]

    assert kinds == ["reset", "reset", "close", "close", "close"]


async def test_a_fault_meets_one_request_and_spares_the_others() -> None:
    async with running(options("vllm", "reset@token:2")) as simulator:
        first, second = await asyncio.gather(
            received(simulator.worker.port, request("vllm")), received(simulator.worker.port, request("vllm"))
        )

    assert sorted([DONE in first[0], DONE in second[0]]) == [False, True]


def test_options_refuse_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="engine must be one of"):
        options("llama")
    with pytest.raises(ValueError, match="cannot hold"):
        replace(options("vllm"), blocks=4)


async def test_a_worker_that_ends_by_a_fault_frees_every_counter() -> None:
    async with running(options("vllm", "close@token:2")) as simulator:
        await received(simulator.worker.port, request("vllm", tokens=100))
        state: Any = orjson.loads(orjson.dumps(simulator.state()))

    zero = ["blocks_used", "blocks_pinned", "pins", "requests_running", "requests_waiting", "answers", "rooms"]
    assert [state[name] for name in zero] == [0] * len(zero)
