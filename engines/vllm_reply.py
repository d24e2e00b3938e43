"""Reads vLLM's replies on both token routes, streamed or whole. The routes differ in their logprobs only.

Ids are deltas; the text that the completions route sends beside them is not looked at, and an event may hold no id.
The finish comes with the last ids, the usage after it, then `[DONE]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engines.error_body import ErrorBody, error_value
from engines.reply import Reply, after_tokens
from engines.stopping import stopped
from engines.vllm_logprobs import logprobs_of
from engines.vllm_request import handed_over
from protocols.errors import EngineAborted, EngineFailure, GatewayError
from protocols.outputs import CompletionUsage, FinishReason, LLMEngineOutput, PromptTokensDetails
from protocols.preprocessed import PreprocessedRequest
from protocols.worker import Leg

Judge = Callable[[ErrorBody, bool], GatewayError]
"""What an error inside a reply means; the flag says that the KV may still have been on its way from prefill."""


class VllmReply(Reply):
    """One reply. `judge` is the adapter's."""

    __slots__ = ("_any_ids", "_judge", "_kv_transfer_params", "_leg", "_request", "_usage")

    def __init__(self, request: PreprocessedRequest, leg: Leg, judge: Judge) -> None:
        super().__init__()
        self._request = request
        self._leg = leg
        self._judge = judge
        self._any_ids = False
        self._usage: Any = None
        self._kv_transfer_params: Any = None
        if leg is Leg.DECODE and request.prefill_result is not None:
            known = handed_over(request)[1]
            self._preface = {"prompt_logprobs": known} if known is not None else None

    def _event(self, event: Any, outputs: list[LLMEngineOutput]) -> None:
        choices = event.get("choices")
        if not choices:
            self._without_choice(event)
            return
        choice = choices[0]
        ids = choice["token_ids"]
        if self.finish_seen:
            return
        # The usual event by far: one token more, nothing else to say.
        if type(ids) is list and choice["finish_reason"] is None and choice["logprobs"] is None and not choice["index"]:
            self._plain(ids, outputs)
        else:
            self._choice(choices, outputs)

    def _plain(self, ids: list[int], outputs: list[LLMEngineOutput]) -> None:
        """Ids without logprobs."""
        if ids:
            self._any_ids = True
            outputs.append(LLMEngineOutput(token_ids=ids))

    def _without_choice(self, event: Any) -> None:
        if event.get("error") is not None or event.get("object") == "error":
            if not self.finish_seen:
                remote = self._request.prefill_result is not None and not self._any_ids
                self._fail(after_tokens(self._judge(error_value(event), remote)))
        elif event["choices"] == [] and event.get("usage") is not None:
            self._usage = event["usage"]

    def _choice(self, choices: Any, outputs: list[LLMEngineOutput]) -> None:
        choice = choices[0]
        if len(choices) != 1 or choice.get("index", 0) != 0:
            raise ValueError("more than the one choice that was asked for")
        ids = choice.get("token_ids")
        if ids is None:
            # Prefill's token is dropped, so its id is not asked for.
            if choice.get("text") and self._leg is Leg.DECODE:
                raise ValueError("text without token ids")
        elif type(ids) is not list:
            raise ValueError("token ids that are no list")
        elif choice.get("logprobs") is None:
            self._plain(ids, outputs)
        elif ids:
            self._any_ids = True
            chosen, alternatives = logprobs_of(ids, choice["logprobs"])
            outputs.append(LLMEngineOutput(token_ids=ids, log_probs=chosen, top_logprobs=alternatives))
        if choice["finish_reason"] is not None:
            self._end_by(choice["finish_reason"], choice.get("stop_reason"))

    def _end_by(self, finish: Any, matched: Any) -> None:
        if finish == "stop":
            self._finished(*stopped(self._request, matched))
        elif finish == "length":
            self._finished(FinishReason.LENGTH)
        elif finish == "repetition":
            self._finished(FinishReason.STOP, matched if isinstance(matched, (str, int)) else None)
        elif finish == "content_filter":
            self._finished(FinishReason.CONTENT_FILTER)
        elif finish == "abort":
            # vLLM 0.32 ends so what a shutdown cuts off, and whatever is sent to it while it drains.
            self._fail(EngineAborted("the engine aborted the answer"))
        elif finish == "error":
            self._fail(EngineFailure("the engine failed while it generated"))
        else:
            raise ValueError(f"unknown finish reason {finish!r:.40}")

    def _whole(self, document: Any, outputs: list[LLMEngineOutput]) -> None:
        choices = document.get("choices")
        if not choices:
            self._without_choice(document)
            return
        self._choice(choices, outputs)
        self._usage = document.get("usage")
        if self._leg is Leg.PREFILL:
            self._kv_transfer_params = document.get("kv_transfer_params")
        prompt_logprobs = choices[0].get("prompt_logprobs") or document.get("prompt_logprobs")
        if prompt_logprobs:
            self._preface = {"prompt_logprobs": prompt_logprobs}

    def _ending(self) -> LLMEngineOutput:
        return LLMEngineOutput(
            finish_reason=self._finish,
            stop_reason=self._stop_reason,
            completion_usage=self._counted(),
            disaggregated_params=self._kv_transfer_params,
        )

    def _counted(self) -> CompletionUsage | None:
        usage = self._usage
        if not isinstance(usage, dict):
            return None
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if type(prompt) is not int or type(completion) is not int:
            return None
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        known = PromptTokensDetails(cached_tokens=cached) if type(cached) is int else None
        return CompletionUsage(prompt, completion, prompt + completion, self._cached(known))

    def _cached(self, known: PromptTokensDetails | None) -> PromptTokensDetails | None:
        """Cache hits are prefill's (hard rule 9). vLLM's decode copies them from the hand-off, where they are missing
        it counts what was transferred.
        """
        given = self._request.prefill_result if self._leg is Leg.DECODE else None
        if given is None:
            return known
        if given.prompt_tokens_details is not None:
            return given.prompt_tokens_details
        params = given.disaggregated_params
        told = isinstance(params, dict) and params.get("remote_prefill_cached_tokens") is not None
        return known if told else None
