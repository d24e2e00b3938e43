"""Reads what a native engine sends: `LLMEngineOutput`s as events (JSON) or as a sequence of maps (MessagePack).

Unlike other engines' events, one of these may hold ids and the finish together, or say nothing at all. A finish of kind
error is an error, and so is a cancel, since nobody here asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from engines.base import MAX_EVENT_BYTES
from engines.error_body import error_value, event_error
from engines.messagepack import ObjectScanner, unpack
from engines.reply import Reply
from protocols.errors import EngineAborted, EngineFailure, GatewayError, ProtocolViolation
from protocols.outputs import Annotated, CompletionUsage, FinishKind, FinishReason, LLMEngineOutput
from protocols.worker import Leg


class NativeReply(Reply):
    """Events: `data:` an output or an `Annotated` envelope, `event: error` with {message, code}, `[DONE]`."""

    __slots__ = ("_any_output", "_blamed", "_last", "_leg", "_usage")

    def __init__(self, leg: Leg, blamed: Callable[[GatewayError], GatewayError]) -> None:
        """`blamed` says whose fault a failure is that the engine reports."""
        super().__init__()
        self._leg = leg
        self._blamed = blamed
        self._any_output = False
        self._last = LLMEngineOutput()
        self._usage: CompletionUsage | None = None

    # ---- Reply

    def _event(self, event: Any, outputs: list[LLMEngineOutput]) -> None:
        if not isinstance(event, dict):
            raise TypeError("not an object")
        if "token_ids" in event:
            self._output(LLMEngineOutput.from_wire(event), outputs)
        elif event.get("error") is not None or ("message" in event and "data" not in event):
            self._failed(event_error(error_value(event)))
        else:
            self._envelope(Annotated.from_wire(event), outputs)

    def _whole(self, document: Any, outputs: list[LLMEngineOutput]) -> None:
        self._event(document, outputs)

    def _close(self, outputs: list[LLMEngineOutput]) -> None:
        # A prefill output without a finish means "not finished yet": hand over (the seeds' prefill stream).
        if self._leg is Leg.PREFILL and self._any_output and not self.finish_seen:
            self._finished(FinishReason.LENGTH)
        super()._close(outputs)

    def _ending(self) -> LLMEngineOutput:
        return replace(
            self._last,
            finish_reason=self._finish,
            stop_reason=self._stop_reason,
            completion_usage=self._usage,
        )

    # ---- one event

    def _fail(self, error: GatewayError) -> None:
        super()._fail(self._blamed(error))

    def _failed(self, error: GatewayError) -> None:
        if not self.finish_seen:
            self._fail(error)

    def _envelope(self, envelope: Annotated, outputs: list[LLMEngineOutput]) -> None:
        words = envelope.failure() if envelope.data is None else None
        if words is not None:
            self._failed(EngineFailure(words))
        elif envelope.data is not None:
            self._output(envelope.data, outputs)
        elif self._leg is Leg.PREFILL and not self._any_output:
            self._fail(EngineFailure("prefill's first output has no data"))

    def _output(self, output: LLMEngineOutput, outputs: list[LLMEngineOutput]) -> None:
        self._any_output = True
        if output.completion_usage is not None:
            self._usage, output.completion_usage = output.completion_usage, None
        if self.finish_seen:
            return
        finish, stop_reason = output.finish_reason, output.stop_reason
        output.finish_reason = output.stop_reason = None
        if finish is not None and finish.kind is FinishKind.ERROR:
            self._fail(EngineFailure(finish.message or "the engine reported an error"))
            return
        if finish is not None and finish.kind is FinishKind.CANCELLED:
            self._fail(EngineAborted("the engine cancelled the answer"))
            return
        if finish is None or output.token_ids or output.text:
            if output != LLMEngineOutput(index=output.index):
                outputs.append(output)
            output = LLMEngineOutput(index=output.index)
        if finish is not None:
            self._last = output
            self._finished(finish, stop_reason)


class NativeMsgpackReply(NativeReply):
    """MessagePack: maps {"data": output} or {"error": {message, code}} one after another, then {"done": true}."""

    __slots__ = ("_buffer", "_scanner")

    def __init__(self, leg: Leg, blamed: Callable[[GatewayError], GatewayError]) -> None:
        super().__init__(leg, blamed)
        self._buffer = bytearray()
        self._scanner = ObjectScanner()

    def feed(self, data: bytes) -> Sequence[LLMEngineOutput]:
        if self.done or self.error is not None:
            return ()
        self._buffer += data
        outputs: list[LLMEngineOutput] = []
        try:
            self._messages(outputs)
        except ProtocolViolation as violation:
            self._broken(violation, outputs)
        except (ValueError, TypeError, KeyError, AttributeError) as malformed:
            self._broken(ProtocolViolation(f"a message of the reply is malformed: {malformed!s:.200}"), outputs)
        return self._sealed(outputs)

    def _messages(self, outputs: list[LLMEngineOutput]) -> None:
        while not self.done and self.error is None:
            end = self._scanner.feed(self._buffer)
            if end is None:
                if len(self._buffer) > MAX_EVENT_BYTES:
                    raise ProtocolViolation(f"a message of the reply exceeds {MAX_EVENT_BYTES} bytes")
                return
            message = unpack(self._buffer[:end])
            del self._buffer[:end]
            self._scanner = ObjectScanner()
            if isinstance(message, dict) and message.get("done") is True:
                self._close(outputs)
            else:
                self._event(message, outputs)
