"""Reads TensorRT-LLM's completions: ids only, streamed (decode) or whole (prefill).

Up to 1.2 a decode server that was handed a token by prefill reports no logprob for it: the list is one short at its
front, and prefill's own reply has what is missing.
"""

from __future__ import annotations

from typing import Any

from engines.error_body import ErrorBody, error_value
from engines.reply import Reply
from engines.stopping import stopped
from engines.trtllm_logprobs import HandedOver, logprobs_of
from protocols.errors import (
    Blame,
    ContextLengthExceeded,
    EngineAborted,
    EngineFailure,
    GatewayError,
    ProtocolViolation,
    WorkerMisconfigured,
)
from protocols.outputs import CompletionUsage, FinishReason, LLMEngineOutput, TopLogprob
from protocols.preprocessed import PreprocessedRequest
from protocols.token_ids import read_token_list
from protocols.wire import from_wire
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


class TrtllmReply(Reply):
    """Both legs' replies: a prefill document, or decode's events, a usage event, and `[DONE]` once or twice."""

    __slots__ = ("_any_ids", "_handed", "_leg", "_params", "_request", "_usage")

    def __init__(self, request: PreprocessedRequest, leg: Leg) -> None:
        super().__init__()
        self._request = request
        self._leg = leg
        self._handed = HandedOver.of(request.prefill_result) if leg is Leg.DECODE else HandedOver()
        self._any_ids = False
        self._usage: CompletionUsage | None = None
        self._params: Any = None

    # ---- Reply

    def _event(self, event: Any, outputs: list[LLMEngineOutput]) -> None:
        if not isinstance(event, dict):
            raise TypeError("not an object")
        try:
            self._take(event, outputs)
        except GatewayError as error:
            if not self.finish_seen:
                self._fail(error)

    def _whole(self, document: Any, outputs: list[LLMEngineOutput]) -> None:
        self._event(document, outputs)

    def _ending(self) -> LLMEngineOutput:
        return LLMEngineOutput(
            finish_reason=self._finish,
            stop_reason=self._stop_reason,
            completion_usage=self._usage,
            disaggregated_params=self._params,
        )

    # ---- one chunk

    def _take(self, chunk: dict[str, Any], outputs: list[LLMEngineOutput]) -> None:
        if chunk.get("error") is not None or chunk.get("object") == "error":
            raise reported_error(error_value(chunk), EngineFailure)
        usage = chunk.get("usage")
        if usage is not None:
            self._usage = from_wire(CompletionUsage, usage)
            given = self._request.prefill_result if self._leg is Leg.DECODE else None
            if given is not None:
                # Up to 1.2 decode tells what it found itself, which is not what prefill had cached.
                self._usage.prompt_tokens_details = given.prompt_tokens_details
        choices: list[dict[str, Any]] = chunk["choices"]
        if self._leg is Leg.PREFILL:
            self._check_prefill(chunk, choices)
        if choices and not self.finish_seen:
            self._take_choice(choices[0], outputs)

    def _check_prefill(self, chunk: dict[str, Any], choices: list[dict[str, Any]]) -> None:
        """Hard rule 5, and the prompt's length: decode would allocate other blocks than prefill has filled."""
        if len(choices) != 1:
            raise EngineFailure(f"prefill must give exactly one choice, but gave {len(choices)}")
        prompt = chunk.get("prompt_token_ids")
        if isinstance(prompt, list) and len(prompt) != len(self._request.token_ids):
            raise EngineFailure(f"prefill read {len(prompt)} prompt tokens instead of {len(self._request.token_ids)}")

    def _take_choice(self, choice: dict[str, Any], outputs: list[LLMEngineOutput]) -> None:
        raw, finish = choice.get("token_ids"), choice.get("finish_reason")
        ids = [] if raw is None else read_token_list(raw)
        if ids:
            outputs += self._outputs(ids, choice.get("logprobs"))
        if finish is None and self._leg is Leg.PREFILL:
            finish = "not_finished"
        if finish is not None:
            self._params = choice.get("disaggregated_params")
            self._take_finish(finish, choice.get("stop_reason"))

    def _take_finish(self, finish: Any, stop_reason: Any) -> None:
        if finish == "stop":
            self._finished(*stopped(self._request, stop_reason))
        elif finish == "length" or (finish == "not_finished" and self._leg is Leg.PREFILL):
            self._finished(FinishReason.LENGTH)
        elif finish == "content_filter":
            self._finished(FinishReason.CONTENT_FILTER)
        elif finish == "cancelled":
            raise EngineAborted("the engine cancelled the answer")
        elif finish in ("timeout", "error"):
            raise EngineFailure(f"the engine ended the answer by {finish}")
        else:
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


def _scored(ids: list[int], chosen: list[float], top: list[list[TopLogprob]] | None) -> LLMEngineOutput:
    return LLMEngineOutput(token_ids=ids, log_probs=chosen, top_logprobs=top)
