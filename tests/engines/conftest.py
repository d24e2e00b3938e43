"""Recorded and composed exchanges under tests/golden, and replies fed to a parser in pieces.

`golden("trtllm/v12_stream.resp")` is a `Message`. `read_all(parser, body)` feeds it whole, `read_cut(make, body)` in
every way of cutting it in two and byte by byte, and insists that all of them come to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from engines.base import ReplyParser
from protocols.outputs import LLMEngineOutput

GOLDEN = Path(__file__).parent.parent / "golden"


@dataclass(frozen=True)
class Message:
    """An HTTP message: `start` line, headers by lower-case name, body with its chunking undone."""

    start: str
    headers: dict[str, str]
    body: bytes

    @property
    def status(self) -> int:
        return int(self.start.split()[1])

    @property
    def path(self) -> str:
        return self.start.split()[1]

    def json(self) -> Any:
        return orjson.loads(self.body)


def read_message(raw: bytes) -> Message:
    head, _, body = raw.partition(b"\r\n\r\n")
    start, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = _dechunked(body)
    return Message(start, headers, body)


def _dechunked(body: bytes) -> bytes:
    """The chunks' bytes; a chunk that was cut off gives what came of it."""
    out = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        out += body[:length]
        body = body[length + 2 :]
    return out


@dataclass
class Outcome:
    """What a reply came to, whatever the reads it arrived in."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float | None] = field(default_factory=list)
    top: list[Any] = field(default_factory=list)
    text: str = ""
    ending: LLMEngineOutput | None = None
    error: str | None = None
    finish_seen: bool = False

    def add(self, outputs: Iterable[LLMEngineOutput]) -> None:
        for output in outputs:
            assert self.ending is None, "an output after the finishing one"
            self._add(output)

    def _add(self, output: LLMEngineOutput) -> None:
        count = len(output.token_ids)
        for values in (output.log_probs, output.top_logprobs):
            assert values is None or len(values) == count
        self.token_ids += output.token_ids
        self.log_probs += output.log_probs or [None] * count
        self.top += output.top_logprobs or [None] * count
        self.text += output.text or ""
        if output.finish_reason is not None:
            assert not output.token_ids, "the finishing output has no ids"
            self.ending = output


def _read(parser: ReplyParser, pieces: Iterable[bytes]) -> Outcome:
    outcome = Outcome()
    for piece in pieces:
        outcome.add(parser.feed(piece))
    outcome.add(parser.end())
    outcome.add(parser.end())
    error = parser.error
    outcome.error = None if error is None else f"{type(error).__name__}: {error}"
    outcome.finish_seen = parser.finish_seen
    return outcome


@pytest.fixture
def golden() -> Callable[[str], Message]:
    return lambda name: read_message((GOLDEN / name).read_bytes())


@pytest.fixture
def read_all() -> Callable[[ReplyParser, bytes], Outcome]:
    return lambda parser, body: _read(parser, [body])


@pytest.fixture
def read_cut() -> Callable[[Callable[[], ReplyParser], bytes], Outcome]:
    def read(make: Callable[[], ReplyParser], body: bytes) -> Outcome:
        whole = _read(make(), [body])
        assert _read(make(), [body[i : i + 1] for i in range(len(body))]) == whole
        for cut in range(1, len(body)):
            assert _read(make(), [body[:cut], body[cut:]]) == whole, f"cut at {cut}"
        return whole

    return read
