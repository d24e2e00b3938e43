"""Workers as a product: starting, killing, many at once, pairs across processes; and the server under them."""

from __future__ import annotations

import asyncio
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from simulator.fleet import Fleet, Simulator, running, start
from simulator.http import Connection
from simulator.model import Pace
from simulator.options import NativeOptions, SimulatorOptions
from simulator.vocabulary import Vocabulary, load_vocabulary, word_codec
from tests.simulator.wire_form import exchange, get, post, read_reply, received, until

ENGINES = ["vllm", "sglang", "trtllm", "openai", "native"]
SLOW = Pace(ttft_s=0, prefill_s=0, decode_s=0.005, batch_s=0)
PROMPT = list(range(100, 140))


def options(engine: str = "vllm", role: str = "aggregated", **changes: Any) -> SimulatorOptions:
    return replace(SimulatorOptions(engine=engine, role=role, model="m", pace=Pace(speed=0)), **changes)


def completion(**changes: Any) -> bytes:
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "return_token_ids": True, **changes}
    return post("/v1/completions", body)


def native(**changes: Any) -> bytes:
    return post("/v1/native/generate", {"token_ids": PROMPT, "stop_conditions": {"max_tokens": 6}, **changes})


async def test_a_fleet_starts_every_worker_on_a_port_of_its_own() -> None:
    wanted = [options(engine, role) for engine in ("vllm", "sglang", "trtllm") for role in ("prefill", "decode")]
    async with Fleet(wanted) as fleet:
        urls = {simulator.url for simulator in fleet.simulators}

        assert len(urls) == 6
        assert [simulator.options.engine for simulator in fleet.select(role="prefill")] == ["vllm", "sglang", "trtllm"]
        assert "bootstrap_port" in fleet.select(engine="sglang", role="prefill")[0].worker_kwargs


async def test_a_worker_tells_a_gateway_what_it_is() -> None:
    async with running(options("sglang", "decode", dp_size=2)) as simulator:
        assert simulator.worker_kwargs == {"url": simulator.url, "engine": "sglang", "role": "decode", "dp_size": 2}


async def test_a_taken_port_is_an_error_and_leaves_nothing_behind() -> None:
    async with running(options()) as first:
        with pytest.raises(OSError):
            async with Fleet([options(), options(port=first.worker.port)]):
                pytest.fail("started")


@pytest.mark.parametrize("engine", ENGINES)
async def test_an_idle_worker_sets_no_timers(engine: str) -> None:
    async with running(options(engine)) as simulator:
        assert simulator.engine.due() is None
        assert simulator.state()["timers"] == simulator.state()["tasks"] == 0


async def test_a_killed_worker_breaks_its_connections_and_refuses_new_ones() -> None:
    async with running(options(pace=SLOW)) as simulator:
        asking = asyncio.ensure_future(received(simulator.worker.port, completion(stream=True, max_tokens=500)))
        await until(lambda: simulator.state()["requests_running"] == 1)
        simulator.kill()
        data, _ = await asking

        assert b"[DONE]" not in data
        with pytest.raises(ConnectionRefusedError):
            await received(simulator.worker.port, get("/health"))


async def test_a_connection_that_was_accepted_as_its_worker_died_is_broken_off_too() -> None:
    class Transport(asyncio.Transport):
        aborted = False

        def abort(self) -> None:
            self.aborted = True

    async with running(options()) as worker:
        worker.kill()
        connection, transport = Connection(worker.worker.server), Transport()

        connection.connection_made(transport)

    assert transport.aborted
    assert worker.worker.server.connections == set()


async def test_a_stopped_worker_finishes_its_answers_first() -> None:
    async with running(options("openai", pace=SLOW)) as simulator:
        asking = asyncio.ensure_future(exchange(simulator.worker.port, completion(stream=True)))
        await until(lambda: simulator.state()["requests_running"] == 1)
        await simulator.stop()

        assert (await asking).events()[-1] == "[DONE]"
        await simulator.stop()


# A child process takes its time to start, but nothing else shows that KV crosses processes.
CHILD = """
from simulator.fleet import run
from simulator.model import Pace
from simulator.options import SimulatorOptions
run(SimulatorOptions(engine={engine!r}, role="prefill", model="m", pace=Pace(speed=0)))
"""


async def test_a_pair_hands_over_across_processes_and_a_killed_one_is_gone() -> None:
    code = CHILD.format(engine="vllm")
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert child.stdout is not None
    port = int((await child.stdout.readline()).rsplit(b":", 1)[1])
    async with running(options(role="decode")) as decode:
        alone = (await exchange(decode.worker.port, completion())).json()["choices"][0]["token_ids"]
        ask = completion(max_tokens=1, kv_transfer_params={"do_remote_decode": True})
        params = [(await exchange(port, ask)).json()["kv_transfer_params"] for _ in range(2)]
        together = await exchange(decode.worker.port, completion(kv_transfer_params=params[0], cache_salt="s"))
        child.kill()
        await child.wait()
        lost = await exchange(decode.worker.port, completion(kv_transfer_params=params[1], cache_salt="t"))
        child._transport.close()  # type: ignore[attr-defined]

    assert together.json()["choices"][0]["token_ids"] == alone
    assert lost.status == 500


# ---- the native dialect's pairs, which no recording covers


async def test_a_native_pair_hands_over_one_after_the_other() -> None:
    async with running(options("native", "prefill")) as prefill, running(options("native", "decode")) as decode:
        first = (await exchange(prefill.worker.port, native())).events()[0]
        result = {"disaggregated_params": first["disaggregated_params"]}
        second = (await exchange(decode.worker.port, native(prefill_result=result))).events()

        assert [event["token_ids"] for event in second[:-1]] == await alone_ids()
        assert prefill.state()["blocks_used"] == decode.state()["blocks_used"] == 0


async def test_a_native_pair_with_a_bootstrap_runs_at_once() -> None:
    changes = {"native": NativeOptions(bootstrap=True)}
    async with (
        running(options("native", "prefill", **changes)) as prefill,
        running(options("native", "decode")) as decode,
    ):
        port = prefill.worker_kwargs["bootstrap_port"]
        meeting = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": 2**60}
        raw = native(bootstrap_info=meeting)
        first, second = await asyncio.gather(exchange(prefill.worker.port, raw), exchange(decode.worker.port, raw))

        assert first.events()[0]["finish_reason"] == "length"
        assert [event["token_ids"] for event in second.events()[:-1]] == await alone_ids()
        assert prefill.state()["rooms"] == prefill.state()["blocks_used"] == 0


async def alone_ids() -> list[list[int]]:
    async with running(options("native")) as alone:
        return [event["token_ids"] for event in (await exchange(alone.worker.port, native())).events()[:-1]]


async def test_native_speaks_messagepack_with_packed_ids() -> None:
    msgpack = pytest.importorskip("msgpack")
    ids = b"".join(i.to_bytes(4, "little") for i in PROMPT)
    body = msgpack.packb({"token_ids": ids, "stop_conditions": {"max_tokens": 3}})
    raw = post("/v1/native/generate", body).replace(b"application/json", b"application/msgpack")
    async with running(options("native", native=NativeOptions(msgpack=True, packed_ids=True))) as simulator:
        reply = await exchange(simulator.worker.port, raw)

    unpacker = msgpack.Unpacker(raw=False)
    unpacker.feed(reply.body)
    messages = list(unpacker)
    assert [message["data"]["token_ids"] for message in messages[:-1]] == (await alone_ids())[:3]
    assert messages[-1] == {"done": True}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token_ids": []}, "must not be empty"),
        ({"token_ids": [10**6]}, "out of vocabulary"),
        ({"token_ids": [5] * 9000}, "exceed the context"),
        ({"token_ids": "x"}, "token_ids"),
    ],
)
async def test_native_refuses_by_naming_the_field(changes: dict[str, Any], words: str) -> None:
    async with running(options("native")) as simulator:
        reply = await exchange(simulator.worker.port, native(**changes))

    assert reply.status == 400
    assert words in reply.json()["error"]["message"]


async def test_an_openai_server_knows_chat_and_text() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    async with running(options("openai")) as simulator:
        port = simulator.worker.port
        unary = await exchange(port, post("/v1/chat/completions", body))
        stream = await exchange(port, post("/v1/chat/completions", {**body, "stream": True}))
        unknown = await exchange(port, post("/v1/chat/completions", {**body, "model": "other"}))

    told = "".join(event["choices"][0]["delta"].get("content", "") for event in stream.events()[:-1])
    assert told == unary.json()["choices"][0]["message"]["content"]
    assert unary.json()["usage"]["completion_tokens"] == 3
    assert (unknown.status, unknown.json()["error"]["code"]) == (404, "model_not_found")


# ---- the server


async def raw_talk(simulator: Simulator, *parts: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", simulator.worker.port)
    for part in parts:
        writer.write(part)
        await asyncio.sleep(0.001)
    writer.write_eof()
    data = await reader.read()
    writer.close()
    return data


async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with running(options()) as simulator:
        kept = get("/health").replace(b"connection: close\r\n", b"")
        data = await raw_talk(simulator, kept + kept + get("/version"))

    assert data.count(b"HTTP/1.1 200 OK") == 3
    assert data.endswith(b'{"version":"0.32.0"}')


async def test_a_request_may_come_in_any_pieces() -> None:
    raw = completion(max_tokens=2)
    async with running(options()) as simulator:
        whole = await exchange(simulator.worker.port, raw)
        pieces = read_reply(await raw_talk(simulator, raw[:7], raw[7:60], raw[60:-5], raw[-5:]))

    assert pieces.json()["choices"] == whole.json()["choices"]


async def test_head_has_no_body_and_expectations_are_met() -> None:
    async with running(options()) as simulator:
        head = await raw_talk(simulator, get("/version").replace(b"GET", b"HEAD"))
        expecting = completion(max_tokens=1).replace(b"host: x", b"host: x\r\nexpect: 100-continue")
        data = await raw_talk(simulator, expecting)

    assert head.endswith(b"\r\n\r\n")
    assert b"content-length: 20" in head
    assert data.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


async def test_what_is_no_http_is_refused() -> None:
    async with running(options()) as simulator:
        data = await raw_talk(simulator, b"\x16\x03\x01 hello\r\n\r\n")

    assert data.startswith(b"HTTP/1.1 400")


async def test_a_client_that_does_not_read_gets_what_gathered_in_few_events() -> None:
    async with running(options()) as simulator:
        for listener in simulator.worker.server._listeners:
            listener.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # type: ignore[attr-defined]
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.connect(("127.0.0.1", simulator.worker.port))
        reader, writer = await asyncio.open_connection(sock=narrow, limit=1024)
        writer.write(completion(stream=True, max_tokens=4000))
        await until(lambda: simulator.state()["answers"] == 1)
        await until(lambda: simulator.state()["requests_running"] == 0)
        data = await reader.read(-1)
        writer.close()

    ids = [event["choices"][0]["token_ids"] for event in read_reply(data).events()[:-1]]
    assert sum(map(len, ids)) == 4000
    assert max(map(len, ids)) > 1000


# ---- a model's files


def test_a_vocabulary_is_read_from_a_models_files(tmp_path: Path) -> None:
    words = {f"Ġword{letter}": 10 + place for place, letter in enumerate("abcdefghijklmnopqrst")}
    tokenizer = {
        "model": {"vocab": {"<s>": 0, "!": 1, **words}},
        "added_tokens": [{"id": 40, "content": "<end>", "special": True}],
    }
    (tmp_path / "tokenizer.json").write_bytes(orjson.dumps(tokenizer))
    (tmp_path / "config.json").write_text('{"vocab_size": 64, "eos_token_id": 2}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [40, 2]}')

    vocabulary = load_vocabulary(tmp_path)

    assert (vocabulary.size, vocabulary.eos_ids) == (64, (40, 2))
    assert vocabulary.words == tuple(range(10, 30))
    assert vocabulary.special == {40, 2}


def test_the_made_up_codec_reads_what_it_writes() -> None:
    codec = word_codec(Vocabulary.synthetic())

    assert codec.decode([500, 501]) == " w500 w501"
    assert codec.encode(" w500 w501 hello") == [500, 501, codec.encode("hello")[0]]


async def test_a_worker_can_be_started_and_ended_by_hand() -> None:
    simulator = await start(options())
    assert (await exchange(simulator.worker.port, get("/health"))).status == 200
    await simulator.stop()
    assert simulator.worker.dead


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_reply_cut_into_segments_is_the_same_reply(size: int) -> None:
    async with running(options()) as whole, running(options(segment_bytes=size)) as cut:
        expected = await exchange(whole.worker.port, completion(stream=True))
        reply = await exchange(cut.worker.port, completion(stream=True))
        unary = await exchange(cut.worker.port, completion())

    ids = [event["choices"][0]["token_ids"] for event in expected.events()[:-1]]
    assert [event["choices"][0]["token_ids"] for event in reply.events()[:-1]] == ids
    assert unary.json()["choices"][0]["token_ids"] == [token for part in ids for token in part]
