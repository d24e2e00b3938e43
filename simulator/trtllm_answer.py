"""TensorRT-LLM: one request's answer, plain, context_only or generation_only."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from simulator import trtllm_replies as replies
from simulator.answers import Answer
from simulator.digests import mix
from simulator.generation import Alternative
from simulator.http import Exchange
from simulator.jobs import Finish, Job, Output, Spec
from simulator.text import Hold, TextStream
from simulator.trtllm_requests import CHAT, CONTEXT, GENERATION, TrtllmRequest, flat_error

if TYPE_CHECKING:
    from simulator.trtllm import TrtllmWorker

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class _Choice:
    prompt: Sequence[int]
    text: TextStream
    ids: list[int] = field(default_factory=list)
    logprobs: list[list[Alternative]] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    pending_logprobs: list[list[Alternative]] = field(default_factory=list)
    pending_text: str = ""
    first: bool = True
    finish: str | None = None
    stop: str | int | None = None
    params: dict[str, Any] | None = None


class TrtllmAnswer(Answer):
    """The answer to one request."""

    def __init__(self, worker: TrtllmWorker, exchange: Exchange, request: TrtllmRequest) -> None:
        super().__init__(worker, exchange, leave_s=worker.options.trtllm.leave_s)
        self.trtllm = worker
        self.request = request
        self.created = int(time.time())
        self.context_id = 0
        self._id = self._new_id()
        self._missing_logprobs = 0
        self._choices = [
            _Choice(prompt, self._text_stream(prompt)) for prompt in request.prompts for _ in range(request.n)
        ]

    # ---- start

    def begin(self) -> None:
        """Submits every choice. A generation_only choice waits for its KV inside the engine."""
        if self.meets_fault("request"):
            return
        request = self.request
        band = self.trtllm.options.trtllm.band
        if request.part == GENERATION and band < "1.3" and request.logprobs is not None:
            self._missing_logprobs = len(request.params.get("first_gen_tokens") or [0])
        for place, choice in enumerate(self._choices):
            self.submit(self.trtllm.models[self.trtllm.least_loaded()], self._spec(place, choice.prompt), place)

    def _spec(self, place: int, prompt: Sequence[int]) -> Spec:
        request, limits = self.request, self.trtllm.options.trtllm
        limit = 1 if request.part == CONTEXT else request.max_tokens
        if request.part == GENERATION and limits.two_tokens:
            limit = max(limit, 2)
        if request.part == CONTEXT:
            self.context_id = request.params.get("disagg_request_id") or self.trtllm.next_context_id()
        seed = request.seed if not place else mix((request.seed or 0) + place)
        return Spec(
            prompt=prompt,
            limit=limit,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            stop_ids=request.stop_ids,
            temperature=request.temperature,
            seed=seed,
            salt=request.salt,
            logprobs=request.logprobs,
            pin=f"ctx-{self.context_id}" if request.part == CONTEXT else None,
            pin_s=limits.transfer_timeout_s,
            peer=request.params if request.part == GENERATION else None,
            recompute_last=False,
            script=self.trtllm.script(prompt, request.constraint, request.temperature, seed),
        )

    def _text_stream(self, prompt: Sequence[int]) -> TextStream:
        request = self.request
        return TextStream(
            self.trtllm.codec,
            self.trtllm.vocabulary,
            prompt,
            () if request.ids_only else request.stops,
            skip_special=request.skip_special,
            include_stop=request.include_stop,
            hold=Hold.NOTHING,
        )

    # ---- outputs

    def on_output(self, place: int, job: Job, output: Output) -> None:
        choice = self._choices[place]
        finish = output.finish
        ids = output.ids
        if finish is Finish.STOP and not self.request.include_stop:
            ids = ids[:-1]
        choice.pending += ids
        choice.ids += ids
        if output.logprobs:
            found = output.logprobs[self._missing_logprobs : len(ids)]
            self._missing_logprobs = max(self._missing_logprobs - len(ids), 0)
            choice.pending_logprobs += found
            choice.logprobs += found
        if not self.request.ids_only:
            choice.pending_text += choice.text.push(ids)
            if finish is not None:
                choice.pending_text += choice.text.finish()
        self._note_finish(place, choice, output)
        if self.request.part == CONTEXT:
            self._context_done(job, choice, output)
        if self.request.stream:
            if choice.finish or not self.exchange.slow:
                self._send(place, choice)
        elif all(known.finish for known in self._choices):
            self.reply(200, self._whole())

    def _note_finish(self, place: int, choice: _Choice, output: Output) -> None:
        """Text stops by text; otherwise a stop string is a suffix of ids, in one tokenization."""
        if choice.text.stopped is not None:
            choice.finish, choice.stop = "stop", choice.text.stopped
        elif self.request.ids_only and (suffix := self._stop_suffix(choice)) is not None:
            stop, length = suffix
            choice.finish, choice.stop = "stop", stop
            if not self.request.include_stop:
                del choice.ids[len(choice.ids) - length :]
                del choice.pending[max(len(choice.pending) - length, 0) :]
        elif output.finish is not None:
            choice.finish = "length" if output.finish is Finish.LENGTH else "stop"
            choice.stop = output.ids[-1] if output.finish is Finish.STOP else None
        if choice.finish is not None and output.finish is None:
            self.stop_job(place)

    def _stop_suffix(self, choice: _Choice) -> tuple[str, int] | None:
        for stop in self.request.stops:
            suffix = list(self.trtllm.codec.encode(stop))
            if suffix and choice.ids[-len(suffix) :] == suffix:
                return stop, len(suffix)
        return None

    def _context_done(self, job: Job, choice: _Choice, output: Output) -> None:
        """The prompt is computed. If the first token was not the last, the blocks stay for decode to fetch."""
        if choice.finish != "length":
            self.trtllm.release(job.spec.pin)
            return
        params = self.request.params
        choice.params = replies.handover(
            self.trtllm.options.trtllm.band,
            output.ids,
            self.context_id,
            self.trtllm.opaque_state(job),
            params.get("disagg_request_id"),
            params.get("schedule_style", 0),
            self.trtllm.endpoint,
            output.logprobs,
        )
        self.trtllm.context_ready(self.context_id, choice.params)

    # ---- a stream

    def _send(self, place: int, choice: _Choice) -> None:
        if not self.exchange.started:
            self.exchange.start(200, "text/event-stream; charset=utf-8", None)
            self.exchange.on_drain = self._drained
            if self.meets_fault("head"):
                return
        if choice.first and self.request.kind == CHAT and not self._send_role(place):
            return
        data = self._event(self._delta(place, choice), choice)
        if choice.finish and self.meets_fault("last", data):
            return
        if not self.write(data, len(choice.pending)):
            return
        choice.first = False
        choice.pending, choice.pending_logprobs, choice.pending_text = [], [], ""
        if choice.finish and all(known.finish for known in self._choices):
            self._close_stream(choice.finish)

    def _send_role(self, place: int) -> bool:
        """The first event of a chat stream ends with a blank before its newlines."""
        choices = [{"index": place, "delta": {"role": "assistant"}}]
        value = replies.frame("chat.completion.chunk", self._chunk_id(), self.created, self.request.model, choices)
        return self.write(b"data: " + orjson.dumps(value) + b" \n\n")

    def _delta(self, place: int, choice: _Choice) -> dict[str, Any]:
        request = self.request
        logprobs = self._logprobs(choice.pending_logprobs)
        if request.kind == CHAT:
            # exclude_none: what is null is not there.
            delta: dict[str, Any] = {
                "index": place,
                "delta": {"content": choice.pending_text, "reasoning_content": ""},
            }
            extras = {"logprobs": logprobs, "finish_reason": choice.finish, "stop_reason": choice.stop}
            return delta | {key: value for key, value in extras.items() if value is not None}
        ids = choice.pending if request.ids_only else None
        return replies.completion_delta(place, choice.pending_text, ids, logprobs, choice.finish, choice.stop)

    def _event(self, delta: dict[str, Any], choice: _Choice) -> bytes:
        chat = self.request.kind == CHAT
        kind = "chat.completion.chunk" if chat else "text_completion"
        value = replies.frame(kind, self._chunk_id(), self.created, self.request.model, [delta])
        if self.request.continuous_usage:
            value["usage"] = self._usage()
        elif not chat:
            value["usage"] = None
        return b"data: " + orjson.dumps(value) + b"\n\n"

    def _drained(self) -> None:
        for place, choice in enumerate(self._choices):
            if choice.pending and not self.over:
                self._send(place, choice)

    def _close_stream(self, finish: str) -> None:
        if self.meets_fault("done", DONE):
            return
        if self.request.include_usage and finish in ("stop", "length"):
            chat = self.request.kind == CHAT
            kind = "chat.completion.chunk" if chat else "text_completion"
            value = replies.frame(kind, self._chunk_id(), self.created, self.request.model, [])
            value["usage"] = self._usage()
            self.write(b"data: " + orjson.dumps(value) + b"\n\n")
        self._done()

    def _done(self) -> None:
        self.write(DONE)
        if self.trtllm.options.trtllm.done_twice:
            self.write(DONE)
        self.settle()
        self.exchange.finish()

    # ---- a whole reply

    def _whole(self) -> dict[str, Any]:
        request = self.request
        choices = []
        for place, choice in enumerate(self._choices):
            logprobs = self._logprobs(choice.logprobs)
            if request.kind == CHAT:
                made = replies.chat_choice(
                    place, choice.pending_text, logprobs, choice.finish, choice.stop, choice.params
                )
            else:
                ids = choice.ids if request.ids_only else None
                made = replies.completion_choice(
                    place, choice.pending_text, ids, logprobs, choice.finish, choice.stop, choice.params
                )
            choices.append(made)
        kind = "chat.completion" if request.kind == CHAT else "text_completion"
        return {
            **replies.frame(kind, self._id, self.created, request.model, choices),
            "usage": self._usage(),
            "prompt_token_ids": request.prompts[0] if request.part == CONTEXT else None,
        }

    def _usage(self) -> dict[str, Any]:
        """Since 1.3 decode reports prefill's prompt counts; before, its own view: all of it was there."""
        prompt = sum(map(len, self.request.prompts))
        cached = sum(job.cached_tokens for job in self.jobs.values())
        if self.request.part == GENERATION:
            told = self.request.params.get("ctx_usage") or {}
            details = told.get("prompt_tokens_details") or {}
            newer = self.trtllm.options.trtllm.band >= "1.3"
            prompt = told.get("prompt_tokens", prompt) if newer else prompt
            cached = details.get("cached_tokens", prompt) if newer else prompt
        return replies.usage(prompt, sum(len(choice.ids) for choice in self._choices), cached)

    def _logprobs(self, found: Sequence[Sequence[Alternative]]) -> dict[str, Any] | None:
        if self.request.logprobs is None or not found:
            return None
        decode = self.trtllm.codec.decode
        texts = [[decode([entry.token_id]) for entry in position] for position in found]
        return replies.logprobs_of(self.request.kind == CHAT, found, texts)

    def _new_id(self) -> str:
        return ("chatcmpl-" if self.request.kind == CHAT else "cmpl-") + uuid.uuid4().hex

    def _chunk_id(self) -> str:
        """Up to 1.2 every chunk has another id."""
        return self._new_id() if self.trtllm.options.trtllm.band < "1.3" else self._id

    # ---- other ends

    def abort(self) -> None:
        """The engine cancelled: finish "cancelled", nothing after it but the end mark."""
        for place, choice in enumerate(self._choices):
            if choice.finish is None and not self.over:
                self.stop_job(place)
                choice.finish = "cancelled"
                if self.request.stream:
                    self._send(place, choice)
        if not self.request.stream and not self.over:
            self.reply(200, self._whole())

    def fail(self, status: int, message: str) -> None:
        """400 for everything. In a stream: an error event, or the connection just ends (before 1.3, and in chat)."""
        if not self.exchange.started:
            error = flat_error(message) if status != 500 else flat_error(f"Error while generating: {message}")
            known = status if status in (429, 503) else 400
            self.reply(known, {**error, "code": known})
        elif self.request.kind == CHAT or self.trtllm.options.trtllm.cuts_streams:
            self.settle()
            self.exchange.close()
        else:
            self.fault = None
            error = {"message": message, "type": "server_error", "code": None, "param": None}
            self.write(b"data: " + orjson.dumps({"error": error}) + b"\n\n")
            self._done()

    def on_job_aborted(self, job: Job) -> None:
        self.trtllm.call_off(job)

    def on_end(self) -> None:
        self.trtllm.forget(self)
