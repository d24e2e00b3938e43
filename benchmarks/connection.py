"""What a client's connection costs, in µs: a whole answer, a stream of one event, and each further event.

    python benchmarks/connection.py

No sockets and no pipeline: requests are fed to `app.http_protocol` as bytes, read and answered by the parts that all
endpoints share, and written to a transport that counts. Each figure is the best of many short runs.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from uvicorn.server import ServerState

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from app.api.bodies import BodyBudget  # noqa: E402
from app.http_protocol import HttpProtocol  # noqa: E402
from app.http_turn import Turn  # noqa: E402
from app.responses import EventStream, send_json  # noqa: E402
from app.settings import ServerSettings  # noqa: E402
from pipeline.context import Flow  # noqa: E402
from pipeline.ticker import Ticker  # noqa: E402

REPEATS, RUNS = 25, 200
MORE_EVENTS = 100

BODY = b'{"model":"m","messages":[{"role":"user","content":"Hi"}],"stream":true}'
REQUEST = (
    b"POST %b HTTP/1.1\r\nhost: 127.0.0.1:8000\r\naccept: application/json\r\naccept-encoding: gzip, deflate\r\n"
    b"connection: keep-alive\r\ncontent-type: application/json\r\nuser-agent: OpenAI/Python 2.0\r\n"
    b"authorization: Bearer unused\r\nx-stainless-lang: python\r\nx-stainless-os: Linux\r\ncontent-length: %d\r\n\r\n%b"
)
ANSWER = b'{"choices":[' + b"x" * 300 + b"]}"
EVENT = b"data: " + b"x" * 150 + b"\n\n"
HEADERS = [(b"x-request-id", b"req-000000000000000000000000"), (b"openai-processing-ms", b"1")]


class Socket(asyncio.Transport):
    """Takes everything at once."""

    def write(self, data: Any) -> None:
        """Taken."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """Nobody writes."""

    def resume_reading(self) -> None:
        """Nobody writes."""


class Bench:
    """A connection, and behind it the parts of an endpoint that stand at its edge."""

    def __init__(self) -> None:
        self.settings = ServerSettings()
        self.bodies = BodyBudget(max_body=1 << 20, max_in_flight=1 << 30, max_requests=1)
        self.ticker = Ticker()
        self.events = 1
        self.state = ServerState()
        self.state.default_headers = [(b"date", b"Thu, 01 Jan 1970 00:00:00 GMT")]
        config = uvicorn.Config("unused", lifespan="off", log_config=None)
        loop = asyncio.get_running_loop()
        self.connection = HttpProtocol(config, self.state, {}, loop, answer=self.answer, limits=self.settings)
        self.connection.connection_made(Socket())

    async def answer(self, turn: Turn) -> None:
        body = turn.whole_body()
        assert body is not None
        self.bodies.checked(dict(turn.headers), body)
        turn.watch(str)
        await asyncio.sleep(0)
        turn.watch(None)
        if turn.path == "/whole":
            await send_json(turn, 200, ANSWER, HEADERS)
            return
        stream = EventStream(
            turn,
            headers=lambda: [(b"content-type", b"text/event-stream"), *HEADERS],
            flow=Flow(),
            ticker=self.ticker,
            limits=self.settings,
        )
        for _ in range(self.events):
            stream.write(EVENT)
        await stream.end(b"data: [DONE]\n\n")

    async def cost(self, path: bytes, runs: int) -> float:
        request = REQUEST % (path, len(BODY), BODY)
        best = float("inf")
        for _ in range(REPEATS):
            began = time.process_time()
            for _ in range(runs):
                self.connection.data_received(request)
                (task,) = self.state.tasks
                await task
            best = min(best, (time.process_time() - began) / runs)
        return best * 1e6


async def main() -> None:
    bench = Bench()
    whole, stream = await bench.cost(b"/whole", RUNS), await bench.cost(b"/stream", RUNS)
    bench.events += MORE_EVENTS
    longer = await bench.cost(b"/stream", RUNS // 10)
    bench.ticker.close()
    costs = {
        "a whole answer": whole,
        "a stream of one event": stream,
        "each further event": (longer - stream) / MORE_EVENTS,
    }
    for name, micros in costs.items():
        print(f"{name:<28}{micros:8.2f} µs")


if __name__ == "__main__":
    uvloop.run(main())
