"""What the replies of vLLM and SGLang have in common: an event stream or one JSON object, and one output that ends it.

Which of the two a reply is, its first byte tells; how it is cut into reads changes nothing but how ids are grouped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import orjson

from engines.base import MAX_EVENT_BYTES, MAX_UNARY_BYTES
from engines.sse import SseParser
from protocols.errors import Blame, EngineFailure, GatewayError, IncompleteReply, ProtocolViolation, WorkerBusy
from protocols.outputs import FinishReason, LLMEngineOutput, StopReason

_DONE = b"[DONE]"
_MALFORMED = (ValueError, TypeError, KeyError, IndexError, AttributeError)


class Reply(ABC):
    """The part of `ReplyParser` that knows no engine.

    A subclass reads one event or one document, appends outputs, and says `_finished` or `_fail`. What goes wrong after
    the finish is no failure: nothing but usage could still have come.
    """

    __slots__ = (
        "_document",
        "_document_size",
        "_finish",
        "_open_braces",
        "_preface",
        "_sse",
        "_stop_reason",
        "done",
        "error",
        "finish_seen",
    )

    def __init__(self) -> None:
        self.error: GatewayError | None = None
        self.finish_seen = False
        self.done = False
        self._sse: SseParser | None = None
        self._document: list[bytes] | None = None
        self._document_size = 0
        self._open_braces = 0
        self._finish: FinishReason | None = None
        self._stop_reason: StopReason | None = None
        self._preface: Any = None
        """`engine_data` of the first output, for as long as that is not out."""

    # ---- what an engine's reply must say

    @abstractmethod
    def _event(self, event: Any, outputs: list[LLMEngineOutput]) -> None:
        """Takes one event of a stream. May raise `_MALFORMED`: the event is not what the engine sends."""

    @abstractmethod
    def _whole(self, document: Any, outputs: list[LLMEngineOutput]) -> None:
        """Takes the one object of an unstreamed reply, its finish included. May raise `_MALFORMED`."""

    @abstractmethod
    def _ending(self) -> LLMEngineOutput:
        """The output that ends the answer, once the finish was seen."""

    # ---- ReplyParser

    def feed(self, data: bytes) -> Sequence[LLMEngineOutput]:
        if self.done or self.error is not None:
            return ()
        if self._sse is None and not self._is_stream(data):
            return self._feed_document(data) if self._document is not None else ()
        assert self._sse is not None
        try:
            payloads = self._sse.feed(data)
        except ProtocolViolation as violation:
            outputs: list[LLMEngineOutput] = []
            self._broken(violation, outputs)
            return outputs
        return self._read(payloads) if payloads else ()

    def end(self) -> Sequence[LLMEngineOutput]:
        if self.done or self.error is not None:
            return ()
        outputs: list[LLMEngineOutput] = []
        if self._document is not None:
            self._read_document(outputs, complete=True)
        elif self.finish_seen:
            self._close(outputs)
        else:
            self.error = IncompleteReply("the worker's reply ended before its answer did")
        return self._sealed(outputs)

    # ---- for subclasses

    def _finished(self, reason: FinishReason, stop_reason: StopReason | None = None) -> None:
        self._finish, self._stop_reason = reason, stop_reason
        self.finish_seen = True

    def _fail(self, error: GatewayError) -> None:
        """The engine reported a failure."""
        self.error = error

    # ---- events

    def _read(self, payloads: list[bytes]) -> list[LLMEngineOutput]:
        outputs: list[LLMEngineOutput] = []
        try:
            for payload in payloads:
                if payload[:1] == b"[" and payload.strip() == _DONE:
                    self._close(outputs)
                    break
                self._event(orjson.loads(payload), outputs)
                if self.error is not None:
                    break
        except _MALFORMED as malformed:
            self._broken(_violation(malformed), outputs)
        return self._sealed(outputs)

    def _broken(self, error: GatewayError, outputs: list[LLMEngineOutput]) -> None:
        if self.finish_seen:
            self._close(outputs)
        else:
            self.error = error

    def _close(self, outputs: list[LLMEngineOutput]) -> None:
        self.done = True
        if self.finish_seen:
            outputs.append(self._ending())
        else:
            self.error = IncompleteReply("the worker ended its reply without a finish reason")

    def _sealed(self, outputs: list[LLMEngineOutput]) -> list[LLMEngineOutput]:
        if self._preface is not None and outputs:
            outputs[0].engine_data, self._preface = self._preface, None
        return outputs

    # ---- documents

    def _is_stream(self, data: bytes) -> bool:
        """Tells a stream from a document by the first byte that is not a blank."""
        if self._document is not None:
            return False
        first = data.lstrip()[:1]
        if first in (b"{", b"["):
            self._document = []
        elif first:
            self._sse = SseParser(MAX_EVENT_BYTES)
        return self._sse is not None

    def _feed_document(self, data: bytes) -> list[LLMEngineOutput]:
        assert self._document is not None
        outputs: list[LLMEngineOutput] = []
        self._document.append(data)
        self._document_size += len(data)
        if self._document_size > MAX_UNARY_BYTES:
            self.error = ProtocolViolation(f"the worker's reply exceeds {MAX_UNARY_BYTES} bytes")
            return outputs
        # Braces inside strings may hide the end; then `end` finds it.
        self._open_braces += data.count(b"{") - data.count(b"}")
        if self._open_braces <= 0 and data.rstrip().endswith(b"}"):
            self._read_document(outputs, complete=False)
        return self._sealed(outputs)

    def _read_document(self, outputs: list[LLMEngineOutput], *, complete: bool) -> None:
        try:
            document = orjson.loads(b"".join(self._document or ()))
        except orjson.JSONDecodeError:
            if complete:
                self.error = IncompleteReply("the worker's reply is cut off")
            return
        try:
            self._whole(document, outputs)
        except _MALFORMED as malformed:
            self.error = _violation(malformed)
        if self.error is None:
            self._close(outputs)


def after_tokens(found: GatewayError) -> GatewayError:
    """The failure of a reply that has begun: the worker is not merely busy, it had taken the request."""
    if isinstance(found, WorkerBusy):
        return EngineFailure(found.message, worker_status=found.worker_status, blame=Blame.NOBODY)
    return found


def _violation(malformed: BaseException) -> ProtocolViolation:
    what = (
        f"{type(malformed).__name__}: {malformed}" if not isinstance(malformed, orjson.JSONDecodeError) else "not JSON"
    )
    return ProtocolViolation(f"the worker's reply is malformed ({what:.200})")
