"""Re-shapes the answers of OpenAI-compatible servers: chunk by chunk, or whole.

Seen: usage in the finishing chunk itself (llama.cpp completions), `finish_reason` left out until the end and a blank at
the end of a line (TensorRT-LLM chat), another id on every chunk (TensorRT-LLM), errors as events with status 200.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from engines.base import MAX_EVENT_BYTES, MAX_UNARY_BYTES
from engines.error_body import error_value, event_error
from engines.sse import SseParser
from protocols.errors import EngineAborted, EngineFailure, GatewayError, IncompleteReply, ProtocolViolation

Chunk = dict[str, Any]
_SAID = ("content", "text", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal")
"""The members of a choice that say something."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What of an answer is ours. `object` is OpenAI's name for a whole answer or for a chunk of the endpoint."""

    id: str
    created: int
    model: str
    object: str

    def put_on(self, answer: Chunk) -> Chunk:
        answer.update(id=self.id, created=self.created, model=self.model, object=self.object)
        return answer


class OpenAIStream:
    """Reads a streamed answer.

    `feed` gives the chunks that became complete, ours in id, created, model and object, all else as it came. `end` says
    that nothing more comes. After the chunks before it, a failure stands in `error`; an answer whose `choices` have not
    all told their finish reason is one (IncompleteReply). `usage` is the server's, once it was told; its chunk is
    dropped unless `include_usage`. `done`: `[DONE]` was read, and whatever follows is ignored.
    """

    __slots__ = (
        "_begun",
        "_choices",
        "_document",
        "_finished",
        "_include_usage",
        "_shape",
        "_sse",
        "done",
        "error",
        "usage",
    )

    def __init__(self, shape: Shape, *, include_usage: bool, choices: int = 1) -> None:
        self._shape = shape
        self._include_usage = include_usage
        self._choices = choices
        self._begun: set[int] = set()
        self._finished: set[int] = set()
        self._sse: SseParser | None = None
        self._document: OpenAIUnary | None = None
        """What came instead of a stream."""
        self.usage: Chunk | None = None
        self.error: GatewayError | None = None
        self.done = False

    @property
    def finish_seen(self) -> bool:
        """Every choice has told its finish reason: what breaks off now was complete."""
        return len(self._finished) >= max(self._choices, len(self._begun))

    def feed(self, data: bytes) -> list[Chunk]:
        if self.done or self.error is not None:
            return []
        if not self._is_stream(data):
            return []
        assert self._sse is not None
        chunks: list[Chunk] = []
        try:
            for payload in self._sse.feed(data):
                if payload.strip() == b"[DONE]":
                    self._finish()
                    break
                chunk = self._chunk(parsed(payload))
                if chunk is not None:
                    chunks.append(chunk)
        except GatewayError as error:
            self._fail(error)
        return chunks

    def end(self) -> None:
        if self.done or self.error is not None or self.finish_seen:
            return
        if self._document is None:
            self.error = IncompleteReply("the worker's reply ended before its answer did")
        elif self._document.end() is None:
            self.error = self._document.error
        else:
            self.error = ProtocolViolation("the worker answered a streamed request with one document")

    def _is_stream(self, data: bytes) -> bool:
        """Tells a stream from a document by the first byte that is not a blank."""
        first = data.lstrip()[:1]
        if self._sse is None and first == b"{":
            self._document = OpenAIUnary(self._shape)
        elif self._sse is None and first:
            self._sse = SseParser(MAX_EVENT_BYTES)
        if self._document is not None:
            self._document.feed(data)
        return self._sse is not None

    def _finish(self) -> None:
        self.done = True
        if not self.finish_seen:
            self.error = IncompleteReply("the worker ended its reply without a finish reason")

    def _fail(self, error: GatewayError) -> None:
        """After the finish nothing can fail any more."""
        if self.finish_seen:
            self.done = True
        else:
            self.error = error

    def _chunk(self, chunk: Chunk) -> Chunk | None:
        choices = _choices_of(chunk)
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        for choice in choices:
            self._note(choice)
        if not self._include_usage and chunk.pop("usage", None) is not None and not choices:
            return None
        return self._shape.put_on(chunk)

    def _note(self, choice: Chunk) -> None:
        index = choice.get("index", 0)
        if type(index) is not int:
            raise ProtocolViolation("a choice's index is not a number")
        self._begun.add(index)
        if choice.setdefault("finish_reason", None) is not None:
            _check_finish(choice)
            self._finished.add(index)


class OpenAIUnary:
    """Reads an answer that is one document. `end` gives it, re-shaped, or None with a failure in `error`."""

    __slots__ = ("_parts", "_shape", "_size", "error", "usage")

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._parts: list[bytes] = []
        self._size = 0
        self.usage: Chunk | None = None
        self.error: GatewayError | None = None

    def feed(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_UNARY_BYTES:
            self.error = ProtocolViolation(f"the worker's reply exceeds {MAX_UNARY_BYTES} bytes")
        else:
            self._parts.append(data)

    def end(self) -> Chunk | None:
        if self.error is None:
            try:
                return self._answer()
            except GatewayError as error:
                self.error = error
        return None

    def _answer(self) -> Chunk:
        body = b"".join(self._parts)
        if body.rstrip()[-1:] != b"}":
            raise IncompleteReply("the worker's reply is cut off")
        answer = parsed(body)
        choices = _choices_of(answer)
        if not choices:
            raise IncompleteReply("the worker's answer has no choices")
        for choice in choices:
            _check_finish(choice)
        usage = answer.get("usage")
        self.usage = usage if isinstance(usage, dict) else None
        return self._shape.put_on(answer)


def parsed(payload: bytes) -> Chunk:
    """The JSON object that these bytes are. Raises ProtocolViolation."""
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise ProtocolViolation(f"the worker's reply is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProtocolViolation("the worker's reply is not an object")
    return value


def tells_something(chunk: Chunk) -> bool:
    """Is there text, thought or call in the chunk, and not only a role or an end?"""
    for choice in chunk["choices"]:
        delta = choice.get("delta")
        said = {**choice, **delta} if isinstance(delta, dict) else choice
        if any(said.get(name) for name in _SAID):
            return True
    return False


def _choices_of(answer: Chunk) -> list[Chunk]:
    """The choices of an answer or a chunk; raises the error that it is instead."""
    choices = answer.get("choices")
    if answer.get("error") is not None or answer.get("object") == "error" or (choices is None and "message" in answer):
        raise event_error(error_value(answer))
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise ProtocolViolation("the worker's reply has no choices")
    return choices


def _check_finish(choice: Mapping[str, Any]) -> None:
    if choice.get("finish_reason") == "abort":
        # vLLM and SGLang while they shut down: a 200 all the same.
        raise EngineAborted("the engine aborted the answer")
    if choice.get("finish_reason") == "error":
        raise EngineFailure("the engine failed while it generated")
