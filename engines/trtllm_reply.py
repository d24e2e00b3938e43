"""Reads TensorRT-LLM's completions: ids only, streamed (decode) or whole (prefill).

Up to 1.2 a decode server that was handed a token by prefill reports no logprob for it: the list is one short at its
front, and prefill's own reply has what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from engines.base import MAX_EVENT_BYTES, MAX_UNARY_BYTES
from engines.error_body import ErrorBody, error_value
from engines.sse import SseParser
from engines.trtllm_logprobs import HandedOver, logprobs_of
from protocols.errors import (
    Blame,
    ContextLengthExceeded,
    EngineAborted,
    EngineFailure,
    GatewayError,
    IncompleteReply,
    ProtocolViolation,
    WorkerMisconfigured,
)
from protocols.outputs import CompletionUsage, FinishReason, LLMEngineOutput, StopReason, TopLogprob
from protocols.preprocessed import PreprocessedRequest
from protocols.token_ids import read_token_list
from protocols.wire import WireError, from_wire
from protocols.worker import Leg

_TRANSFER = ("transfer", "transceiver", "kv cache", "disagg", "ctx_request_id")
_ENGINE = ("timeout", "timed out", "executor", "cancel")


def reported_error(error: ErrorBody, otherwise: type[GatewayError]) -> GatewayError:
    """What the server's words mean. Nearly every error is a 400 there, so only the words tell whose fault it is.

    `otherwise`: what it is when they tell nothing.
    """
    words = error.message.lower()
    if "extra_forbidden" in words or "extra inputs are not permitted" in words:
        return WorkerMisconfigured(f"the worker does not know a field that was sent: {error.message}")
    if error.too_long():
        return ContextLengthExceeded(error.message, param=error.param)
    if "validation error" not in words:
        if any(word in words for word in _TRANSFER):
            return EngineFailure(error.message, blame=Blame.PAIR)
        if any(word in words for word in _ENGINE):
            return EngineFailure(error.message)
    return otherwise(error.message, param=error.param)


class CompletionReply:
    """What both forms of the reply share: one chunk in, outputs out. See `ReplyParser`."""

    __slots__ = ("_any_ids", "_ending", "_handed", "_leg", "_request", "_usage", "done", "error", "finish_seen")

    def __init__(self, request: PreprocessedRequest, leg: Leg) -> None:
        self._request = request
        self._leg = leg
        self._handed = HandedOver.of(request.prefill_result) if leg is Leg.DECODE else HandedOver()
        self._any_ids = False
        self._ending: LLMEngineOutput | None = None
        self._usage: CompletionUsage | None = None
        self.error: GatewayError | None = None
        self.finish_seen = False
        self.done = False

    def _read(self, payload: bytes, out: list[LLMEngineOutput]) -> None:
        """One JSON chunk; its outputs are appended, its failure becomes `error`."""
        try:
            chunk = orjson.loads(payload)
            if not isinstance(chunk, dict):
                raise ProtocolViolation("a chunk of the reply is not an object")
            self._take(chunk, out)
        except orjson.JSONDecodeError as error:
            self._fail(ProtocolViolation(f"a chunk of the reply is not JSON: {error}"))
        except WireError as error:
            self._fail(ProtocolViolation(f"a chunk of the reply is malformed: {error}"))
        except GatewayError as error:
            self._fail(error)

    def _take(self, chunk: dict[str, Any], out: list[LLMEngineOutput]) -> None:
        if chunk.get("error") is not None or chunk.get("object") == "error":
            raise reported_error(error_value(chunk), EngineFailure)
        usage = chunk.get("usage")
        if usage is not None:
            self._usage = from_wire(CompletionUsage, usage)
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            raise ProtocolViolation("a chunk of the reply has no choices")
        if self._leg is Leg.PREFILL:
            self._check_prefill(chunk, choices)
        if choices:
            self._take_choice(choices[0], out)

    def _check_prefill(self, chunk: dict[str, Any], choices: list[Any]) -> None:
        """Hard rule 5, and the prompt's length: decode would allocate other blocks than prefill has filled."""
        if len(choices) != 1:
            raise EngineFailure(f"prefill must give exactly one choice, but gave {len(choices)}")
        prompt = chunk.get("prompt_token_ids")
        if isinstance(prompt, list) and len(prompt) != len(self._request.token_ids):
            raise EngineFailure(f"prefill read {len(prompt)} prompt tokens instead of {len(self._request.token_ids)}")

    def _take_choice(self, choice: Any, out: list[LLMEngineOutput]) -> None:
        if not isinstance(choice, dict):
            raise ProtocolViolation("a choice of the reply is not an object")
        raw = choice.get("token_ids")
        ids = [] if raw is None else read_token_list(raw)
        if ids and not self.finish_seen:
            out += self._outputs(ids, choice.get("logprobs"))
        finish = choice.get("finish_reason")
        if finish is None and self._leg is Leg.PREFILL:
            finish = "not_finished"
        if finish is not None and not self.finish_seen:
            self._finish(finish, choice)

    def _finish(self, finish: Any, choice: dict[str, Any]) -> None:
        reason, stop_reason = self._finish_reason(finish, choice.get("stop_reason"))
        self._ending = LLMEngineOutput(
            finish_reason=reason, stop_reason=stop_reason, disaggregated_params=choice.get("disaggregated_params")
        )
        self.finish_seen = True

    def _finish_reason(self, finish: Any, stop: Any) -> tuple[FinishReason, StopReason | None]:
        if finish == "stop":
            # Eos is told as "stop" without a reason, or as a stop id where we sent it as one.
            if stop is None or stop in self._request.eos_token_ids:
                return FinishReason.EOS, None
            return FinishReason.STOP, stop if isinstance(stop, (str, int)) else None
        if finish == "length" or (finish == "not_finished" and self._leg is Leg.PREFILL):
            return FinishReason.LENGTH, None
        if finish == "content_filter":
            return FinishReason.CONTENT_FILTER, None
        if finish == "cancelled":
            raise EngineAborted("the engine cancelled the answer")
        if finish in ("timeout", "error"):
            raise EngineFailure(f"the engine ended the answer by {finish}")
        raise ProtocolViolation(f"unknown finish reason {finish!r:.60}")

    # ---- tokens and their logprobs

    def _outputs(self, ids: list[int], logprobs: Any) -> list[LLMEngineOutput]:
        first, self._any_ids = not self._any_ids, True
        if first and self._handed.token_id not in (None, ids[0]):
            words = f"decode began with token {ids[0]}, but prefill had sampled {self._handed.token_id}"
            raise EngineFailure(words, blame=Blame.PAIR)
        wanted = self._request.output_options.logprobs
        if wanted is None:
            return [LLMEngineOutput(token_ids=ids)]
        chosen, top = logprobs_of(logprobs, ids, with_top=wanted > 0)
        if len(chosen) == len(ids):
            return [_scored(ids, chosen, top)]
        if first and len(chosen) == len(ids) - 1:
            return [self._first_output(ids[0]), *([_scored(ids[1:], chosen, top)] if chosen else [])]
        if logprobs is None:
            return [LLMEngineOutput(token_ids=ids)]
        raise ProtocolViolation(f"{len(chosen)} logprobs for {len(ids)} tokens")

    def _first_output(self, token_id: int) -> LLMEngineOutput:
        """Decode's first token, for which it has no logprob: with prefill's, where prefill was asked."""
        handed = self._handed
        if handed.logprob is None:
            return LLMEngineOutput(token_ids=[token_id])
        return _scored([token_id], [handed.logprob], None if handed.top is None else [list(handed.top)])

    # ---- the end

    def _conclude(self) -> list[LLMEngineOutput]:
        """The finishing output, once; without a finish the reply is incomplete."""
        ending, self._ending = self._ending, None
        if ending is not None:
            ending.completion_usage = self._usage
            return [ending]
        if not self.finish_seen and self.error is None:
            self.error = IncompleteReply("the reply ended without a finish")
        return []

    def _fail(self, error: GatewayError) -> None:
        """After the finish nothing can fail any more."""
        if not self.finish_seen:
            self.error = error
        self.done = True


class TrtllmStream(CompletionReply):
    """Decode's reply: one event per step, a usage event, `[DONE]` once or twice."""

    __slots__ = ("_sse",)

    def __init__(self, request: PreprocessedRequest, leg: Leg) -> None:
        super().__init__(request, leg)
        self._sse = SseParser(MAX_EVENT_BYTES)

    def feed(self, data: bytes) -> Sequence[LLMEngineOutput]:
        if self.done:
            return ()
        try:
            payloads = self._sse.feed(data)
        except ProtocolViolation as error:
            self._fail(error)
            return self._conclude()
        out: list[LLMEngineOutput] = []
        for payload in payloads:
            if payload.strip() == b"[DONE]":
                self.done = True
            else:
                self._read(payload, out)
            if self.done:
                return out + self._conclude()
        return out

    def end(self) -> Sequence[LLMEngineOutput]:
        return self._conclude()


class TrtllmUnary(CompletionReply):
    """Prefill's reply: one JSON document, read when it is over."""

    __slots__ = ("_parts", "_size")

    def __init__(self, request: PreprocessedRequest, leg: Leg) -> None:
        super().__init__(request, leg)
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Sequence[LLMEngineOutput]:
        if not self.done:
            self._parts.append(data)
            self._size += len(data)
            if self._size > MAX_UNARY_BYTES:
                self._fail(ProtocolViolation(f"the reply exceeds {MAX_UNARY_BYTES} bytes"))
        return ()

    def end(self) -> Sequence[LLMEngineOutput]:
        if self.done:
            return ()
        body = b"".join(self._parts)
        if body.rstrip()[-1:] != b"}":
            self.error = IncompleteReply("the reply ended before it was complete")
            return ()
        out: list[LLMEngineOutput] = []
        self._read(body, out)
        self.done = True
        return out + self._conclude()


def _scored(ids: list[int], chosen: list[float], top: list[list[TopLogprob]] | None) -> LLMEngineOutput:
    return LLMEngineOutput(token_ids=ids, log_probs=chosen, top_logprobs=top)
