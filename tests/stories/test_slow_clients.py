"""Clients that read slowly or not at all, and workers that keep a client waiting."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from simulator.fleet import Simulator
from simulator.model import Pace
from tests.stories.house import QUICK, House, pair, second, solo
from tests.stories.oracle import answer
from tests.stories.wire import Wire, events_of

OpenHouse = Callable[..., House]

TORRENT = Pace(ttft_s=0.0, prefill_s=0.0, decode_s=0.001, batch_s=0.0, tokens_per_step=16)
PATIENT = Pace(ttft_s=60.0, prefill_s=1e-6, decode_s=0.0005, batch_s=0.0)
HELD_FOR = {"first_byte_hold_s": 0.1, "ping_interval_s": 0.1}
PROMPT = "Tell me of the sea."
FLOOD: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 2000, "temperature": 0, "logprobs": 20, "stream": True}
"""More than a megabyte of answer."""


def clog(house: House, model: str) -> Wire:
    """A client that asks for a flood and reads nothing, once the flood stands at its door."""
    house.narrow()
    wire = house.wire(receive_buffer=4096)
    wire.post("/v1/completions", {"model": model, **FLOOD})
    house.eventually(lambda: any(flow.paused for flow in flows(house)), within_s=5)
    return wire


def flows(house: House) -> list[Any]:
    """The flows of the running requests: those whose workers' replies are being read."""
    return [watch.context.flow for watch in house.gateway.ticker._watches if hasattr(watch, "context")]


def unsent(house: House) -> int:
    """Bytes that the gateway holds for its clients."""
    return sum(connection.transport.get_write_buffer_size() for connection in connections(house))


def connections(house: House) -> set[Any]:
    server = house.gateway._server
    assert server is not None
    return server.server_state.connections


def test_what_a_client_does_not_read_stays_at_the_worker(open_house: OpenHouse) -> None:
    house = open_house(pair("vllm", pace=TORRENT))
    clog(house, "pair-vllm")

    house.eventually(lambda: all(worker.engine.idle for worker in house.workers("pair-vllm")), within_s=5)

    assert [flow.paused for flow in house.call(flows, house)] == [True]
    assert 0 < house.call(unsent, house) < 256 * 1024


def test_other_clients_do_not_notice_one_that_reads_nothing(open_house: OpenHouse) -> None:
    house = open_house(pair("vllm", pace=TORRENT))
    clog(house, "pair-vllm")

    replies = [
        house.http.post(
            "/v1/completions", json={"model": "pair-vllm", "prompt": PROMPT, "max_tokens": 20, "temperature": 0}
        )
        for _ in range(4)
    ]

    assert [reply.json()["choices"][0]["text"] for reply in replies] == [answer(PROMPT, 20)] * 4
    assert max(reply.elapsed.total_seconds() for reply in replies) < second()


def test_a_client_that_reads_late_gets_all_of_it(open_house: OpenHouse) -> None:
    house = open_house(pair("vllm", pace=TORRENT))
    wire = clog(house, "pair-vllm")

    events = events_of(wire.reply().body)

    assert events.text() == answer(PROMPT, 2000)
    assert (events.finishes(), events.done) == (["length"], 1)


def test_a_client_that_takes_nothing_for_too_long_is_dropped(open_house: OpenHouse) -> None:
    house = open_house(pair("vllm", pace=TORRENT), server={"write_timeout_s": 0.3})
    clog(house, "pair-vllm")

    house.settle(within_s=2)

    assert house.count("finished", status="error", error_type="cancelled") == 1
    assert house.count("disconnects") == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tokens", [120, 2000])
def test_an_answer_that_is_never_read_holds_nothing_for_long(open_house: OpenHouse, stream: bool, tokens: int) -> None:
    """Be it more than the connection may hold back, or less."""
    house = open_house(pair("vllm", pace=TORRENT), server={"write_timeout_s": 0.2})
    house.narrow()
    wire = house.wire(receive_buffer=4096)
    wire.post("/v1/completions", {"model": "pair-vllm", **FLOOD, "max_tokens": tokens, "stream": stream})

    house.eventually(lambda: unsent(house), within_s=2)
    house.eventually(lambda: not connections(house), within_s=2)

    house.settle()


# ---- clients that wait


def begin(house: House, **fields: Any) -> Wire:
    wire = house.wire()
    wire.post("/v1/completions", {"model": "solo-vllm", "prompt": PROMPT, "temperature": 0, "stream": True, **fields})
    return wire


def at_work(house: House, other_than: Simulator | None = None) -> Simulator:
    """A worker that has taken a request."""

    def found() -> list[Simulator]:
        workers = house.workers("solo-vllm")
        return [worker for worker in workers if worker.worker.answers and worker is not other_than]

    house.eventually(found)
    return found()[0]


def test_a_stream_that_is_slow_to_begin_is_kept_alive_by_comments(open_house: OpenHouse) -> None:
    house = open_house(solo("vllm", workers=3, pace=PATIENT), server=HELD_FOR)
    with ThreadPoolExecutor(1) as elsewhere:
        by_sdk = elsewhere.submit(asked_by_sdk, house)
        first = at_work(house)
        wire = begin(house, max_tokens=8)
        pieces = wire.pieces(wire.head())
        seen = [next(pieces), next(pieces)]

        for worker in house.workers("solo-vllm"):
            worker.engine.pace = QUICK
        for silent in (first, at_work(house, other_than=first)):
            house.kill(silent)  # the third one, which is quick now, takes over
        events = events_of(b"".join([*seen, *pieces]))

        assert seen == [b": ping\n", b": ping\n"]
        assert (events.text(), events.finishes(), events.done) == (answer(PROMPT, 8), ["length"], 1)
        assert by_sdk.result(5) == events.text()


def asked_by_sdk(house: House) -> str:
    chunks = house.sdk.completions.create(model="solo-vllm", prompt=PROMPT, max_tokens=8, temperature=0, stream=True)
    return "".join(chunk.choices[0].text for chunk in chunks)


def test_a_failure_after_the_status_is_out_is_an_event(open_house: OpenHouse) -> None:
    house = open_house(solo("vllm", pace=PATIENT), server=HELD_FOR)
    wire = begin(house)
    head = wire.head()
    pieces = wire.pieces(head)
    seen = next(pieces)

    house.kill(at_work(house))
    events = events_of(seen + b"".join(pieces))

    assert head.status == 200
    assert events.pings
    assert events.error is not None
    assert events.error["code"] == "no_available_workers"
    assert (events.chunks, events.done) == ([], 0)


def test_a_failure_before_the_status_is_out_is_the_status(open_house: OpenHouse) -> None:
    house = open_house(solo("vllm", pace=PATIENT))
    wire = begin(house)

    house.kill(at_work(house))

    reply = wire.reply()
    assert (reply.status, reply.json()["error"]["code"]) == (503, "no_available_workers")


def test_a_client_that_leaves_between_comments_is_noticed(open_house: OpenHouse) -> None:
    house = open_house(solo("vllm", pace=PATIENT), server=HELD_FOR)
    wire = begin(house)
    assert next(wire.pieces(wire.head())) == b": ping\n"

    wire.close()

    house.settle(within_s=0.3)
    assert house.count("disconnects") == 1
