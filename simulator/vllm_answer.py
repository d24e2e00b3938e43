"""vLLM 0.32: one request's answer, streamed or whole, on all three generation routes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from simulator import vllm_replies as replies
from simulator.answers import Answer
from simulator.digests import mix
from simulator.generation import Alternative
from simulator.http import Exchange
from simulator.model import Finish, Job, Output, Spec
from simulator.text import TextStream
from simulator.vllm_requests import CHAT, COMPLETION, GENERATE, VllmRequest

if TYPE_CHECKING:
    from simulator.vllm import VllmWorker

_PREFIXES = {COMPLETION: "cmpl-", CHAT: "chatcmpl-", GENERATE: "generate-tokens-"}
_FINISHES = {Finish.EOS: "stop", Finish.STOP: "stop", Finish.LENGTH: "length", Finish.ABORT: "abort"}
DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class _Choice:
    """One sequence's share of the reply. `pending`: ids (and their logprobs) not yet sent in the stream."""

    prompt: Sequence[int]
    text: TextStream | None
    shown: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[list[Alternative]] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    pending_logprobs: list[list[Alternative]] = field(default_factory=list)
    pending_text: str = ""
    offset: int = 0
    first: bool = True
    finish: str | None = None
    stop: str | int | None = None


class VllmAnswer(Answer):
    """The answer to one request. `rank`: the engine it was given to."""

    def __init__(self, worker: VllmWorker, exchange: Exchange, request: VllmRequest, header_id: str | None) -> None:
        super().__init__(worker, exchange)
        self.vllm = worker
        self.request = request
        name = header_id or request.request_id or secrets.token_hex(8)
        self.id = _PREFIXES[request.kind] + name
        self.created = int(time.time())
        self.rank = 0
        self._choices: list[_Choice] = []
        self._kv: Mapping[str, Any] | None = None

    # ---- start

    def begin(self, rank: int) -> None:
        """Submits every choice; a stream's head goes out at once, before any token."""
        if self.meets_fault("request"):
            return
        self.rank = rank
        request = self.request
        if request.stream:
            self.exchange.start(200, "text/event-stream; charset=utf-8", None, self.reply_headers())
            self.exchange.on_drain = self._drained
            if self.meets_fault("head"):
                return
        for place, prompt in enumerate(request.prompts):
            for _ in range(request.n):
                stream = self._text_stream(prompt) if self._wants_text else None
                self._choices.append(_Choice(prompt, stream))
            for copy in range(request.n):
                index = place * request.n + copy
                self.submit(self.vllm.models[rank], self._spec(prompt, place, copy), index)

    @property
    def engine_ids(self) -> list[str]:
        """The ids that the abort route knows this request by."""
        if self.request.kind == COMPLETION:
            return [f"{self.id}-{index}" for index in range(len(self.request.prompts) * self.request.n)]
        return [self.id]

    @property
    def _wants_text(self) -> bool:
        return self.request.text or bool(self.request.stops)

    def _text_stream(self, prompt: Sequence[int]) -> TextStream:
        request = self.request
        return TextStream(
            self.vllm.codec,
            self.vllm.vocabulary,
            prompt,
            request.stops,
            skip_special=request.skip_special,
            include_stop=request.include_stop,
        )

    def _spec(self, prompt: Sequence[int], place: int, copy: int) -> Spec:
        request, kv = self.request, self.request.kv
        nixl = self.vllm.options.vllm.nixl
        pin = nixl and kv.get("do_remote_decode")
        suffix = f"-{place}" if request.kind == COMPLETION else ""
        return Spec(
            prompt=prompt,
            limit=request.max_tokens,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            stop_ids=request.stop_ids,
            temperature=request.temperature,
            seed=request.seed if not copy else mix((request.seed or 0) + copy),
            salt=request.salt,
            logprobs=request.logprobs,
            pin=f"{self.id}{suffix}-{secrets.token_hex(4)}" if pin else None,
            pin_s=self.vllm.options.vllm.lease_s,
            peer=kv if nixl and kv.get("do_remote_prefill") and request.prompt_logprobs is None else None,
        )

    # ---- outputs

    def on_output(self, place: int, job: Job, output: Output) -> None:
        choice = self._choices[place]
        choice.pending += output.ids
        choice.ids += output.ids
        if output.logprobs:
            choice.pending_logprobs += output.logprobs
            choice.logprobs += output.logprobs
        if choice.text is not None:
            hidden = output.finish in (Finish.EOS, Finish.STOP) and not self.request.include_stop
            choice.pending_text += choice.text.push(output.ids[:-1] if hidden else output.ids)
            if output.finish is not None:
                choice.pending_text += choice.text.finish(partial=False)
            if choice.text.stopped is not None and output.finish is None:
                self.stop_job(place)
        self._note_finish(choice, output)
        if choice.finish and job.pinned_blocks and self._kv is None:
            self._kv = self._transfer_params(job)
        if not self.request.stream:
            if all(known.finish for known in self._choices):
                self.reply(200, self._whole())
        elif choice.finish or (not self.exchange.slow and self._enough(choice)):
            self._send(place)

    def _enough(self, choice: _Choice) -> bool:
        return choice.first or len(choice.pending) >= self.request.stream_interval

    def _drained(self) -> None:
        """A slow client reads again: what has gathered goes out as one chunk."""
        for place, choice in enumerate(self._choices):
            if choice.pending:
                self._send(place)

    def _note_finish(self, choice: _Choice, output: Output) -> None:
        if choice.text is not None and choice.text.stopped is not None:
            choice.finish, choice.stop = "stop", choice.text.stopped
        elif output.finish is not None:
            choice.finish = _FINISHES[output.finish]
            choice.stop = output.ids[-1] if output.finish is Finish.STOP else None

    def _transfer_params(self, job: Job) -> Mapping[str, Any]:
        vllm = self.vllm
        return replies.transfer_params(
            job.pinned_blocks,
            vllm.engine_ids[self.rank],
            job.spec.pin or "",
            vllm.advertised_host,
            vllm.port,
            job.computed,
            job.cached_tokens if job.limit == 1 else None,
        )

    # ---- a stream

    def _send(self, place: int) -> None:
        choice, request = self._choices[place], self.request
        if choice.first and request.kind == CHAT and not self._role_chunk(place):
            return
        tokens = len(choice.pending)
        if choice.finish and self.meets_fault("last", self._chunk(place, choice)):
            return
        if not self.write(self._chunk(place, choice), tokens):
            return
        choice.first = False
        choice.offset += len(choice.pending_text)
        choice.pending, choice.pending_logprobs, choice.pending_text = [], [], ""
        if choice.finish and all(known.finish for known in self._choices):
            self._close_stream()

    def _role_chunk(self, place: int) -> bool:
        request = self.request
        delta = {"role": "assistant", "content": ""}
        value = replies.chunk(
            CHAT,
            self.id,
            self.created,
            self.vllm.options.model,
            [{"index": place, "delta": delta, "logprobs": None, "finish_reason": None}],
        )
        value["prompt_token_ids"] = self._choices[place].prompt if request.return_token_ids else None
        value["prompt_text"] = None
        return self.write(_event(value))

    def _chunk(self, place: int, choice: _Choice) -> bytes:
        request = self.request
        logprobs = self._logprobs(choice, choice.pending, choice.pending_logprobs, choice.offset)
        spent = replies.counts(len(choice.prompt), len(choice.ids))
        if request.kind == GENERATE:
            value: dict[str, Any] = {"request_id": self.id, "usage": None}
            if request.continuous_usage:
                value["usage"] = {**spent, "prompt_tokens_details": None, "completion_tokens_details": None}
            if request.return_token_ids and choice.first:
                value["prompt_token_ids"] = choice.prompt
            value["output_mode"] = "text" if request.text else "tokens"
            text = choice.pending_text if request.text else None
            value["choices"] = [
                replies.generate_choice(
                    place, text, logprobs, choice.finish, choice.stop, choice.pending, len(choice.ids)
                )
            ]
            return _event(value)
        make = self._chat_delta if request.kind == CHAT else self._completion_delta
        value = replies.chunk(
            request.kind, self.id, self.created, self.vllm.options.model, [make(place, choice, logprobs)]
        )
        if choice.finish and not request.include_usage:
            value["system_fingerprint"] = replies.FINGERPRINT
        if request.continuous_usage:
            value["usage"] = spent
        return _event(value)

    def _completion_delta(self, place: int, choice: _Choice, logprobs: Any) -> dict[str, Any]:
        ids = self.request.return_token_ids
        text = choice.pending_text
        if self.request.echo and choice.first:
            text = self.vllm.codec.decode(choice.prompt) + text
        return {
            "index": place,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": choice.finish,
            "stop_reason": choice.stop,
            "prompt_token_ids": choice.prompt if ids and choice.first else None,
            "token_ids": choice.pending if ids else None,
        }

    def _chat_delta(self, place: int, choice: _Choice, logprobs: Any) -> dict[str, Any]:
        delta: dict[str, Any] = {
            "index": place,
            "delta": {"content": choice.pending_text},
            "logprobs": logprobs,
            "finish_reason": choice.finish,
        }
        if choice.finish:
            delta["stop_reason"] = choice.stop
        delta["token_ids"] = choice.pending if self.request.return_token_ids else None
        return delta

    def _close_stream(self) -> None:
        """The usage event, the end mark, and the end."""
        if self.meets_fault("done", DONE):
            return
        if self.request.include_usage:
            self.write(self._usage_chunk())
        self.write(DONE)
        self.settle()
        self.exchange.finish()

    def _usage_chunk(self) -> bytes:
        request = self.request
        prompt, completion = self._spent()
        used = replies.stream_usage(request.kind, prompt, completion, self._cached(0), self._created_cache())
        if request.kind == GENERATE:
            mode = "text" if request.text else "tokens"
            return _event({"request_id": self.id, "usage": used, "output_mode": mode, "choices": []})
        value = replies.chunk(request.kind, self.id, self.created, self.vllm.options.model, [])
        value["usage"] = used
        value["system_fingerprint"] = replies.FINGERPRINT
        return _event(value)

    # ---- a whole reply

    def _whole(self) -> dict[str, Any]:
        request, options = self.request, self.vllm.options
        prompt, completion = self._spent()
        used = replies.usage(request.kind, prompt, completion, self._cached(-1), self._created_cache())
        prompt_ids = request.prompts[0] if request.return_token_ids else None
        found = self._prompt_logprobs(request.prompts[0])
        if request.kind == GENERATE:
            choices = [self._generate_choice(place, choice) for place, choice in enumerate(self._choices)]
            return replies.generate(
                self.id, self.created, options.model, choices, used, self._kv, found, prompt_ids, request.text
            )
        if request.kind == CHAT:
            choices = [self._chat_choice(place, choice) for place, choice in enumerate(self._choices)]
            return replies.chat(self.id, self.created, options.model, choices, used, self._kv, found, prompt_ids)
        choices = [self._completion_choice(place, choice) for place, choice in enumerate(self._choices)]
        return replies.completion(self.id, self.created, options.model, choices, used, self._kv)

    def _completion_choice(self, place: int, choice: _Choice) -> dict[str, Any]:
        ids = self.request.return_token_ids
        text, entries, tokens = choice.pending_text, choice.logprobs, choice.ids
        found = self._prompt_logprobs(choice.prompt)
        if self.request.echo:
            text = self.vllm.codec.decode(choice.prompt) + text
        logprobs = self._logprobs(choice, tokens, entries, 0)
        if self.request.echo and logprobs is not None:
            logprobs = self._echoed(choice, logprobs)
        return replies.completion_choice(
            place,
            text,
            logprobs,
            choice.finish,
            choice.stop,
            choice.ids if ids else None,
            found,
            choice.prompt if ids else None,
        )

    def _chat_choice(self, place: int, choice: _Choice) -> dict[str, Any]:
        ids = choice.ids if self.request.return_token_ids else None
        logprobs = self._logprobs(choice, choice.ids, choice.logprobs, 0)
        return replies.chat_choice(place, choice.pending_text, logprobs, choice.finish, choice.stop, ids)

    def _generate_choice(self, place: int, choice: _Choice) -> dict[str, Any]:
        text = choice.pending_text if self.request.text else None
        logprobs = self._logprobs(choice, choice.ids, choice.logprobs, 0)
        return replies.generate_choice(place, text, logprobs, choice.finish, choice.stop, choice.ids, len(choice.ids))

    # ---- counts and logprobs

    def _spent(self) -> tuple[int, int]:
        return sum(map(len, self.request.prompts)), sum(len(choice.ids) for choice in self._choices)

    def _cached(self, which: int) -> int | None:
        """A batch reports the first prompt's hits in a stream and the last one's otherwise, as recorded."""
        if not self.vllm.options.vllm.token_details:
            return None
        if not self.jobs:
            return 0
        job = self.jobs[which % len(self.jobs)]
        peer = job.spec.peer
        if isinstance(peer, Mapping) and job.peer_answered:
            return int(peer.get("remote_prefill_cached_tokens", job.prompt_tokens - 1))
        return job.cached_tokens

    def _created_cache(self) -> int:
        size = self.vllm.options.block_size
        job = self.jobs[0] if self.jobs else None
        return 0 if job is None else job.prompt_tokens // size * size - job.cached_tokens

    def _logprobs(
        self, choice: _Choice, ids: Sequence[int], found: Sequence[Sequence[Alternative]], offset: int
    ) -> dict[str, Any] | None:
        if self.request.logprobs is None:
            return None
        kind = self.request.kind
        if kind == GENERATE and self.request.text:
            kind = CHAT
        texts = [self._names(position) for position in found]
        return replies.logprobs_of(kind, ids, found, texts, offset)

    def _names(self, position: Sequence[Alternative]) -> list[str]:
        if self.request.tokens_as_ids:
            return [f"token_id:{entry.token_id}" for entry in position]
        return [self.vllm.codec.decode([entry.token_id]) for entry in position]

    def _positions(self, prompt: Sequence[int], count: int) -> list[list[Alternative]]:
        voice = self.vllm.voice
        return [voice.logprobs(token_id, mix(token_id ^ mix(at)), count) for at, token_id in enumerate(prompt[1:], 1)]

    def _prompt_logprobs(self, prompt: Sequence[int]) -> list[Any] | None:
        count = self.request.prompt_logprobs
        if count is None and self.request.echo and self.request.logprobs is not None:
            count = self.request.logprobs
        if count is None:
            return None
        positions = self._positions(prompt, max(count, 1))
        return replies.prompt_logprobs_of(positions, [self._names(position) for position in positions])

    def _echoed(self, choice: _Choice, logprobs: dict[str, Any]) -> dict[str, Any]:
        """Logprobs of an echoed prompt stand before those of the answer; the first token has none."""
        positions = self._positions(choice.prompt, max(self.request.logprobs or 0, 1))
        first = self.vllm.codec.decode(choice.prompt[:1])
        texts = [self._names(position) for position in positions]
        before = replies.logprobs_of(COMPLETION, choice.prompt, positions, texts, len(first))
        shift = len(self.vllm.codec.decode(choice.prompt))
        return {
            "text_offset": [0, *before["text_offset"], *(shift + offset for offset in logprobs["text_offset"])],
            "token_logprobs": [None, *before["token_logprobs"], *logprobs["token_logprobs"]],
            "tokens": [first, *before["tokens"], *logprobs["tokens"]],
            "top_logprobs": [None, *before["top_logprobs"], *logprobs["top_logprobs"]],
        }

    # ---- other ends

    def abort(self) -> None:
        """The engine was told to abort: what there is, with finish "abort"."""
        for place, choice in enumerate(self._choices):
            if choice.finish is None:
                self.stop_job(place)
                self.on_output(place, self.jobs[place], Output([], finish=Finish.ABORT))
        if not self._choices and not self.over:
            self.refuse_quietly()

    def refuse_quietly(self) -> None:
        """A draining engine answers 200 with an aborted, empty choice."""
        self._choices = [_Choice(prompt, None, finish="abort") for prompt in self.request.prompts]
        if not self.request.stream:
            self.reply(200, self._whole())
            return
        if not self.exchange.started:
            self.exchange.start(200, "text/event-stream; charset=utf-8", None, self.reply_headers())
        for place in range(len(self._choices)):
            self._send(place)

    def fail(self, status: int, message: str) -> None:
        """The engine failed: an error reply, or an error event where the stream has begun."""
        kinds = {400: "BadRequestError", 429: "RateLimitError", 503: "Service Unavailable"}
        error = {"message": message, "type": kinds.get(status, "InternalServerError"), "param": None, "code": status}
        if not self.exchange.started:
            self.reply(status, {"error": error})
            return
        self.fault = None
        self.write(_event({"error": error}))
        self.write(DONE)
        self.settle()
        self.exchange.finish()

    def reply_headers(self) -> Mapping[str, str]:
        return self.vllm.headers_for(self.exchange)

    def on_job_aborted(self, job: Job) -> None:
        if isinstance(job.spec.peer, Mapping) and not job.peer_answered:
            self.vllm.release_at_peer(job.spec.peer)

    def on_end(self) -> None:
        self.vllm.forget(self)


def _event(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
