"""vLLM 0.32: one request's answer, streamed or whole, on all three generation routes."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulator import vllm_replies as replies
from simulator.answers import Answer
from simulator.digests import mix
from simulator.http import Exchange
from simulator.jobs import Finish, Job, Output, Spec
from simulator.text import TextStream
from simulator.vllm_fields import Refused
from simulator.vllm_rendering import DONE, CacheUse, Choice, Rendering, event_of
from simulator.vllm_requests import CHAT, COMPLETION, GENERATE, VllmRequest, engine_refusal

if TYPE_CHECKING:
    from simulator.vllm import VllmWorker

_PREFIXES = {COMPLETION: "cmpl-", CHAT: "chatcmpl-", GENERATE: "generate-tokens-"}
_FINISHES = {Finish.EOS: "stop", Finish.STOP: "stop", Finish.LENGTH: "length", Finish.ABORT: "abort"}


class VllmAnswer(Answer):
    """The answer to one request. `rank`: the engine it was given to."""

    def __init__(self, worker: VllmWorker, exchange: Exchange, request: VllmRequest, header_id: str | None) -> None:
        super().__init__(worker, exchange)
        self.vllm = worker
        self.request = request
        name = header_id or request.request_id or secrets.token_hex(8)
        self.id = _PREFIXES[request.kind] + name
        self.rank = 0
        self._render = Rendering(request, self.id, worker.options.model, worker.codec, worker.voice)
        self._choices = self._render.choices

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
        refused = engine_refusal(request, self.vllm.options)
        if refused is not None:
            self._refused(refused)
            return
        for place, prompt in enumerate(request.prompts):
            for _ in range(request.n):
                stream = self._text_stream(prompt) if self._wants_text else None
                self._choices.append(Choice(prompt, stream))
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
        seed = request.seed if not copy else mix((request.seed or 0) + copy)
        return Spec(
            prompt=prompt,
            limit=request.max_tokens,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            stop_ids=request.stop_ids,
            temperature=request.temperature,
            seed=seed,
            salt=request.salt,
            logprobs=request.logprobs,
            pin=f"{self.id}{suffix}-{secrets.token_hex(4)}" if pin else None,
            pin_s=self.vllm.options.vllm.lease_s,
            peer=kv if nixl and kv.get("do_remote_prefill") and request.prompt_logprobs is None else None,
            script=self.vllm.script(prompt, request.constraint, request.temperature, seed),
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
        if choice.finish and job.pinned_blocks and self._render.kv is None:
            self._render.kv = self._transfer_params(job)
        if not self.request.stream:
            if all(known.finish for known in self._choices):
                self.reply(200, self._render.whole(self._cache_use(-1)))
        elif choice.finish or (not self.exchange.slow and self._enough(choice)):
            self._send(place)

    def _enough(self, choice: Choice) -> bool:
        return choice.first or len(choice.pending) >= self.request.stream_interval

    def _drained(self) -> None:
        """A slow client reads again: what has gathered goes out as one chunk."""
        for place, choice in enumerate(self._choices):
            if choice.pending:
                self._send(place)

    def _note_finish(self, choice: Choice, output: Output) -> None:
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
        if choice.first and request.kind == CHAT and not self.write(self._render.role_chunk(place)):
            return
        chunk = self._render.chunk(place)
        if choice.finish and self.meets_fault("last", chunk):
            return
        if not self.write(chunk, len(choice.pending)):
            return
        choice.sent()
        if choice.finish and all(known.finish for known in self._choices):
            self._close_stream()

    def _close_stream(self) -> None:
        """The usage event, the end mark, and the end."""
        if self.meets_fault("done", DONE):
            return
        if self.request.include_usage:
            self.write(self._render.usage_chunk(self._cache_use(0)))
        self.write(DONE)
        self.settle()
        self.exchange.finish()

    def _cache_use(self, which: int) -> CacheUse:
        """A batch reports the first prompt's hits in a stream and the last one's otherwise, as recorded."""
        if not self.jobs:
            return CacheUse(0, 0)
        size, first = self.vllm.options.block_size, self.jobs[0]
        created = first.prompt_tokens // size * size - first.cached_tokens
        if not self.vllm.options.vllm.token_details:
            return CacheUse(None, created)
        job = self.jobs[which % len(self.jobs)]
        peer = job.spec.peer
        if isinstance(peer, Mapping) and job.peer_answered:
            return CacheUse(int(peer.get("remote_prefill_cached_tokens", job.prompt_tokens - 1)), created)
        return CacheUse(job.cached_tokens, created)

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
        self._choices += [Choice(prompt, None, finish="abort") for prompt in self.request.prompts]
        if not self.request.stream:
            self.reply(200, self._render.whole(self._cache_use(-1)))
            return
        if not self.exchange.started:
            self.exchange.start(200, "text/event-stream; charset=utf-8", None, self.reply_headers())
        for place in range(len(self._choices)):
            self._send(place)

    def fail(self, status: int, message: str) -> None:
        """The engine failed: an error reply, or an error event where the stream has begun."""
        kinds = {400: "BadRequestError", 429: "RateLimitError", 503: "Service Unavailable"}
        self._refused(Refused(message, kind=kinds.get(status, "InternalServerError"), status=status))

    def _refused(self, refused: Refused) -> None:
        """Where a stream has begun, its handler is done and tells prefill nothing."""
        if not self.exchange.started:
            self.reply(refused.status, refused.envelope())
            if not self.jobs:
                self.vllm.refused(self.request.kv, tokens_only=self.request.kind == GENERATE)
            return
        self.fault = None
        self.write(event_of(refused.envelope()))
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
