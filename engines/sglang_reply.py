"""Reads SGLang's native replies: events that each tell everything so far, or only what is new, or one whole object.

Which of the two a server sends is a flag of its own; `completion_tokens`, which counts all so far, tells them apart on
every event. Text is not looked at: it may shrink. A stream answers 200 to everything, so refusals arrive as events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engines.error_body import ErrorBody, error_value
from engines.reply import Reply, after_tokens
from engines.sglang_logprobs import alternatives, chosen, prompt_logprobs
from engines.stopping import stop_ids, stopped
from protocols.errors import EngineAborted, GatewayError
from protocols.outputs import (
    CompletionTokensDetails,
    CompletionUsage,
    FinishReason,
    LLMEngineOutput,
    PromptTokensDetails,
)
from protocols.preprocessed import PreprocessedRequest

Judge = Callable[[ErrorBody], GatewayError]


class SglangReply(Reply):
    """One reply. `incremental`: what the server told of its events, where they do not count. `judge`: the adapter's."""

    __slots__ = ("_incremental", "_judge", "_meta", "_request", "_seen")

    def __init__(self, request: PreprocessedRequest, incremental: bool | None, judge: Judge) -> None:
        super().__init__()
        self._request = request
        self._incremental = incremental
        self._judge = judge
        self._seen = 0
        self._meta: Any = {}

    def _event(self, event: Any, outputs: list[LLMEngineOutput]) -> None:
        if self.finish_seen:
            return
        meta = event.get("meta_info")
        if meta is None:
            self._without_answer(event)
            return
        ids, finish = event.get("output_ids") or [], meta["finish_reason"]
        known = self._known(len(ids), meta.get("completion_tokens"), finish)
        if meta.get("input_token_logprobs"):
            self._take_prompt_logprobs(meta)
        if known < len(ids):
            self._take_ids(ids[known:], known, meta, outputs)
        if finish is not None:
            self._meta = meta
            self._end_by(finish)

    def _whole(self, document: Any, outputs: list[LLMEngineOutput]) -> None:
        self._event(document, outputs)

    def _without_answer(self, event: Any) -> None:
        if event.get("error") is None and event.get("object") != "error":
            raise ValueError("neither meta_info nor an error")
        self._report(error_value(event))

    def _report(self, error: ErrorBody) -> None:
        found = self._judge(error)
        self._fail(after_tokens(found) if self._seen else found)

    # ---- ids

    def _known(self, told: int, count: int | None, finish: Any) -> int:
        """How many of the ids that an event tells came before. All of them in the abort that ends an incremental
        stream: it repeats the last one (SGLang 0.5.23).
        """
        if count is None:
            if not self._incremental:
                return self._seen
            return 0 if finish is None or finish["type"] != "abort" else told
        if told >= count:
            return self._seen
        known = told - (count - self._seen)
        if known < 0:
            raise ValueError(f"{-known} tokens are missing")
        return known

    def _take_ids(self, ids: list[int], known: int, meta: Any, outputs: list[LLMEngineOutput]) -> None:
        self._seen += len(ids)
        limit = self._request.output_options.logprobs
        if limit is not None:
            span = slice(known, known + len(ids))
            triples, tops = meta["output_token_logprobs"][span], meta.get("output_top_logprobs")
            rows = alternatives(tops[span] if tops else None, triples, limit)
            outputs.append(LLMEngineOutput(token_ids=ids, log_probs=chosen(triples, ids), top_logprobs=rows))
        else:
            outputs.append(LLMEngineOutput(token_ids=ids))

    def _take_prompt_logprobs(self, meta: Any) -> None:
        limit = self._request.output_options.prompt_logprobs
        if limit is not None and not self._seen:
            told = prompt_logprobs(meta["input_token_logprobs"], meta.get("input_top_logprobs"), limit)
            self._preface = {"prompt_logprobs": told}

    # ---- the end

    def _end_by(self, finish: Any) -> None:
        kind = finish["type"]
        if kind == "length":
            self._finished(FinishReason.LENGTH)
        elif kind == "stop":
            matched = finish.get("matched")
            # A grammar that is complete "matches" the last id, which nobody asked to stop at.
            asked = type(matched) is not int or matched in stop_ids(self._request)
            self._finished(*stopped(self._request, matched if asked else None))
        elif kind == "abort":
            self._aborted(finish)
        else:
            raise ValueError(f"unknown finish reason {kind!r:.40}")

    def _aborted(self, finish: Any) -> None:
        """With a status it is a failure that came too late for one; without, somebody aborted it."""
        message, status = str(finish.get("message") or "aborted"), finish.get("status_code")
        if type(status) is int:
            self._report(ErrorBody(message, type=finish.get("err_type"), code=status))
        else:
            self._fail(EngineAborted(f"the engine aborted the answer: {message}"))

    def _ending(self) -> LLMEngineOutput:
        return LLMEngineOutput(
            finish_reason=self._finish, stop_reason=self._stop_reason, completion_usage=self._counted()
        )

    def _counted(self) -> CompletionUsage | None:
        prompt, completion = self._meta.get("prompt_tokens"), self._meta.get("completion_tokens")
        if type(prompt) is not int or type(completion) is not int:
            return None
        cached, reasoning = self._meta.get("cached_tokens"), self._meta.get("reasoning_tokens")
        usage = CompletionUsage(prompt, completion, prompt + completion)
        if type(cached) is int:
            # Decode counts some hits twice with its own radix cache.
            usage.prompt_tokens_details = PromptTokensDetails(cached_tokens=min(cached, prompt))
        if type(reasoning) is int and reasoning > 0:
            usage.completion_tokens_details = CompletionTokensDetails(reasoning_tokens=reasoning)
        return usage
