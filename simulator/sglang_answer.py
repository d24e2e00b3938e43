"""SGLang 0.5.23: one request's answer, on the native and the OpenAI routes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson

from simulator import sglang_replies as replies
from simulator.answers import Answer
from simulator.digests import mix
from simulator.generation import Alternative
from simulator.http import Exchange
from simulator.jobs import Finish, Job, Output, Spec
from simulator.rooms import Bootstrap
from simulator.sglang_requests import CHAT, NATIVE, Item, SglangRequest
from simulator.text import Hold, TextStream

if TYPE_CHECKING:
    from simulator.sglang import SglangWorker

DONE = b"data: [DONE]\n\n"
_SSE = "text/event-stream; charset=utf-8"
_HEADERS = {"vary": "Origin"}


@dataclass(slots=True)
class _Part:
    """One sequence's share of the reply. `sent_*`: how much of it the stream has shown."""

    item: Item
    text: TextStream
    times: replies.Times
    shown: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[list[Alternative]] = field(default_factory=list)
    sent_ids: int = 0
    sent_text: int = 0
    first: bool = True
    finish: dict[str, Any] | None = None
    closed: bool = False
    cached: int = 0


class SglangAnswer(Answer):
    """The answer to one request."""

    def __init__(self, worker: SglangWorker, exchange: Exchange, request: SglangRequest) -> None:
        limits = worker.options.sglang
        super().__init__(worker, exchange, leave_s=limits.stream_leave_s if request.stream else limits.unary_leave_s)
        self.sglang = worker
        self.request = request
        self.created = int(time.time())
        received = time.time()
        self._parts = [
            _Part(item, self._text_stream(item), replies.Times(received, time.time())) for item in request.items
        ]

    # ---- start

    def begin(self) -> None:
        """Submits every sequence, or brings it to its room. A native stream's head goes out at once: always 200."""
        if self.meets_fault("request"):
            return
        if self.request.stream and self.request.kind == NATIVE and not self._start_stream():
            return
        for place, part in enumerate(self._parts):
            if self.over:
                return
            self._place(place, part.item)

    def _place(self, place: int, item: Item) -> None:
        sglang, bootstrap = self.sglang, item.bootstrap
        role = sglang.options.role
        if role != "aggregated" and bootstrap is None:
            self.fail(
                400,
                f"Invalid request: Disaggregated request received without bootstrap room id. req.rid={item.rid!r}",
            )
        elif role == "prefill" and bootstrap is not None and not bootstrap.fake:
            sglang.rooms.join_prefill(bootstrap.room, self, place)
        else:
            self.submit_at(place)

    def submit_at(self, place: int) -> Job:
        """Gives the engine this sequence; prefill's turn comes when decode has shaken hands."""
        item = self._parts[place].item
        sglang = self.sglang
        prefill = sglang.options.role == "prefill"
        room = item.bootstrap.room if item.bootstrap is not None else None
        rank = self.request.rank
        if rank is None:
            rank = room % sglang.options.dp_size if prefill and room is not None else sglang.least_loaded()
        spec = Spec(
            prompt=item.prompt,
            limit=1 if prefill else item.max_tokens,
            min_tokens=item.min_tokens,
            ignore_eos=item.ignore_eos,
            stop_ids=item.stop_ids,
            temperature=item.temperature,
            seed=item.seed if not place else mix((item.seed or 0) + place),
            salt=item.salt,
            logprobs=None if self.request.logprobs is None else max(self.request.logprobs, 1),
            pin=item.bootstrap.pin if prefill and item.bootstrap is not None and not item.bootstrap.fake else None,
            peer=item.bootstrap if sglang.options.role == "decode" else None,
            recompute_last=False,
        )
        return self.submit(sglang.models[rank], spec, place)

    def _text_stream(self, item: Item) -> TextStream:
        return TextStream(
            self.sglang.codec,
            self.sglang.vocabulary,
            item.prompt,
            item.stops,
            skip_special=item.skip_special,
            include_stop=item.no_stop_trim,
            hold=Hold.PREFIX,
        )

    @property
    def rids(self) -> list[str]:
        return [item.rid for item in self.request.items]

    # ---- outputs

    def on_output(self, place: int, job: Job, output: Output) -> None:
        part = self._parts[place]
        self._take(part, job, output)
        if part.text.stopped is not None and output.finish is None:
            self.stop_job(place)
        if part.item.bootstrap is not None and self.sglang.options.role == "prefill":
            part.finish = replies.finish_of("length", length=0)
            if not part.item.bootstrap.fake:
                self.sglang.rooms.prefilled(part.item.bootstrap.room, job, output)
                return
        self._show(place)

    def submitted(self, place: int) -> bool:
        return place in self.jobs

    def transferred(self, place: int) -> None:
        """Prefill's KV has arrived at decode: now prefill answers."""
        if not self.over:
            self._parts[place].times.finished = time.time()
            self._show(place)

    def cached_by_peer(self, place: int, cached: int) -> None:
        """Decode reports prefill's cache hits as its own."""
        self._parts[place].cached = cached

    def _take(self, part: _Part, job: Job, output: Output) -> None:
        now = time.time()
        if not part.ids:
            loop_now = self.sglang.loop.time()
            started = job.started_at if job.started_at is not None else loop_now
            part.times.entered = now - (loop_now - started)
            part.times.queue = max(started - job.arrived_at, 0.0)
            part.times.prefilled = now
            if job.spec.peer is None:
                part.cached = job.cached_tokens
        part.ids += output.ids
        part.logprobs += output.logprobs or []
        hidden = output.finish in (Finish.EOS, Finish.STOP) and not part.item.no_stop_trim
        part.shown += part.text.push(output.ids[:-1] if hidden else output.ids)
        if output.finish is None and part.text.stopped is None:
            return
        part.times.finished = now
        part.shown += part.text.finish()
        if part.text.stopped is not None:
            part.finish = replies.finish_of("stop", part.text.stopped)
        elif output.finish is Finish.LENGTH:
            part.finish = replies.finish_of("length", length=len(part.ids))
        else:
            part.finish = replies.finish_of("stop", output.ids[-1])

    def _show(self, place: int) -> None:
        part = self._parts[place]
        if not self.request.stream:
            if all(known.finish for known in self._parts):
                self.reply(200, self._whole())
            return
        waiting = len(part.ids) - part.sent_ids < part.item.stream_interval and not part.first
        if part.finish is None and (part.text.held or waiting or self.exchange.slow):
            return
        self._send(place, part)

    def _send(self, place: int, part: _Part) -> None:
        if not self.exchange.started and not self._start_stream():
            return
        if part.finish and self.meets_fault("last", self._last_event(place, part)):
            return
        if self.request.kind == NATIVE:
            part.times.first_sent = part.times.first_sent or time.time()
            alive = self._write_ids(part, _event(self._native_event(place, part)))
        elif self.request.kind == CHAT:
            alive = self._send_chat(place, part)
        else:
            alive = self._write_ids(part, _event(self._frame([self._completion_delta(place, part)], usage=True)))
        if not alive:
            return
        part.first = False
        part.sent_ids, part.sent_text = len(part.ids), len(part.shown)
        if part.finish:
            part.closed = True
            if all(known.closed for known in self._parts):
                self._close_stream()

    def _write_ids(self, part: _Part, data: bytes) -> bool:
        return self.write(data, len(part.ids) - part.sent_ids)

    def _start_stream(self) -> bool:
        """The head. False: a fault came instead."""
        self.exchange.start(200, _SSE, None, _HEADERS)
        self.exchange.on_drain = self._drained
        return not self.meets_fault("head")

    def _drained(self) -> None:
        for place, part in enumerate(self._parts):
            if len(part.ids) > part.sent_ids and not part.text.held and not self.over:
                self._send(place, part)

    def _last_event(self, place: int, part: _Part) -> bytes:
        if self.request.kind == NATIVE:
            return _event(self._native_event(place, part))
        return _event(self._frame([self._completion_delta(place, part)], usage=True))

    def _close_stream(self) -> None:
        if self.meets_fault("done", DONE):
            return
        if self.request.include_usage:
            used = self._usage()
            if self.request.kind != CHAT:
                used = {key: value for key, value in used.items() if value is not None}
            self.write(_event({**self._frame([], usage=False), "usage": used}))
        self.write(DONE)
        self.settle()
        self.exchange.finish()

    # ---- native shapes

    def _native_event(self, place: int, part: _Part) -> dict[str, Any]:
        incremental = self.sglang.options.sglang.incremental and self.request.stream
        ids = part.ids[part.sent_ids :] if incremental else part.ids
        found = part.logprobs[part.sent_ids :] if incremental else part.logprobs
        event: dict[str, Any] = {
            "text": part.shown[part.sent_text :] if incremental else part.shown,
            "output_ids": ids,
            "meta_info": replies.meta_info(
                part.item.rid,
                part.finish,
                len(part.item.prompt),
                len(part.ids),
                part.cached,
                part.times,
                self._native_logprobs(part, found),
                decode=self.sglang.options.role == "decode",
                stream=self.request.stream,
                first=part.first,
            ),
        }
        if self.request.return_prompt_ids:
            event["prompt_token_ids"] = part.item.prompt
        if self.request.batch and self.request.stream:
            event["index"] = place
        return event

    def _native_logprobs(self, part: _Part, found: Sequence[Sequence[Alternative]]) -> dict[str, Any] | None:
        top = self.request.logprobs
        if top is None:
            return None
        prompt, prompt_top = self._prompt_logprobs(part, top)
        texts = [self._names(position, self.request.text_in_logprobs) for position in found]
        return replies.native_logprobs(found, texts, top, prompt, prompt_top)

    def _prompt_logprobs(self, part: _Part, top: int) -> tuple[list[Any], list[Any]]:
        """Only whoever computed the prompt has them: decode gives none."""
        start = self.request.logprobs_from
        if start < 0 or self.sglang.options.role == "decode":
            return [], []
        named, entries, tops = self.request.text_in_logprobs, [], []
        for at, token_id in enumerate(part.item.prompt[start:], start):
            position = self.sglang.voice.logprobs(token_id, mix(token_id ^ mix(at)), max(top, 1))
            names = self._names(position, named)
            triples = [[entry.logprob, entry.token_id, name] for entry, name in zip(position, names, strict=True)]
            entries.append([None, token_id, names[0]] if at == 0 else triples[0])
            tops.append(None if at == 0 else triples[:top])
        return entries, tops

    def _names(self, position: Sequence[Alternative], named: bool) -> list[Any]:
        return [self.sglang.codec.decode([entry.token_id]) if named else None for entry in position]

    # ---- OpenAI shapes

    def _frame(self, choices: list[dict[str, Any]], *, usage: bool) -> dict[str, Any]:
        """A stream chunk; completions chunks carry `usage: null`, chat chunks no such key."""
        frame: dict[str, Any] = {
            "id": self.request.items[0].rid,
            "object": "chat.completion.chunk" if self.request.kind == CHAT else "text_completion",
            "created": self.created,
            "model": self.request.model,
            "choices": choices,
        }
        if usage:
            frame["usage"] = None
        return frame

    def _completion_delta(self, place: int, part: _Part) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": place,
            "text": part.shown[part.sent_text :],
            "logprobs": self._openai_logprobs(part.logprobs[part.sent_ids :]),
            "finish_reason": part.finish["type"] if part.finish else None,
            "matched_stop": part.finish.get("matched") if part.finish else None,
        }
        if self.request.return_token_ids:
            choice["token_ids"] = part.ids[part.sent_ids :]
            if part.first:
                choice["prompt_token_ids"] = part.item.prompt
        return choice

    def _send_chat(self, place: int, part: _Part) -> bool:
        """Role, then content, then the finish on a chunk of its own."""
        if part.first and not self._write_chat(place, {"role": "assistant", "content": ""}):
            return False
        delta = part.shown[part.sent_text :]
        tokens = len(part.ids) - part.sent_ids
        if delta:
            logprobs = self._openai_logprobs(part.logprobs[part.sent_ids :])
            if not self._write_chat(place, {"content": delta}, logprobs=logprobs, tokens=tokens):
                return False
        if part.finish:
            return self._write_chat(place, {}, finish=part.finish)
        return True

    def _write_chat(
        self,
        place: int,
        delta: Mapping[str, Any],
        *,
        logprobs: Any = None,
        finish: Mapping[str, Any] | None = None,
        tokens: int = 0,
    ) -> bool:
        choice = {
            "index": place,
            "delta": {"reasoning_content": None, **delta},
            "logprobs": logprobs,
            "finish_reason": finish["type"] if finish else None,
            "matched_stop": finish.get("matched") if finish else None,
        }
        return self.write(_event(self._frame([choice], usage=False)), tokens)

    def _openai_logprobs(self, found: Sequence[Sequence[Alternative]]) -> dict[str, Any] | None:
        if self.request.logprobs is None:
            return None
        texts = [self._names(position, True) for position in found]
        return replies.openai_logprobs(self.request.kind == CHAT, found, texts)

    def _usage(self) -> dict[str, Any]:
        n = len(self._parts)
        prompts = sum(len(part.item.prompt) for part in self._parts)
        if not self.request.batch and n > 1:
            prompts //= n
        cached = sum(part.cached for part in self._parts) if self.sglang.options.sglang.cache_report else None
        return replies.usage(prompts, sum(len(part.ids) for part in self._parts), cached)

    def _whole(self) -> Any:
        if self.request.kind == NATIVE:
            events = [self._native_event(place, part) for place, part in enumerate(self._parts)]
            return events if self.request.batch else events[0]
        choices = [self._whole_choice(place, part) for place, part in enumerate(self._parts)]
        return {
            **self._frame(choices, usage=False),
            "object": "chat.completion" if self.request.kind == CHAT else "text_completion",
            "usage": self._usage(),
            "metadata": {
                "weight_version": replies.WEIGHTS,
                "weight_versions": replies.versions(len(self._parts[0].ids)),
            },
        }

    def _whole_choice(self, place: int, part: _Part) -> dict[str, Any]:
        if self.request.kind != CHAT:
            return self._completion_delta(place, part)
        assert part.finish is not None
        choice = {
            "index": place,
            "message": {"role": "assistant", "content": part.shown, "reasoning_content": None},
            "logprobs": self._openai_logprobs(part.logprobs),
            "finish_reason": part.finish["type"],
            "matched_stop": part.finish.get("matched"),
        }
        if self.request.return_token_ids:
            choice["response_token_ids"] = part.ids
            choice["prompt_token_ids"] = part.item.prompt
        return choice

    # ---- other ends

    def abort(self) -> None:
        """`/abort_request`: what there is, with finish "abort" and no status."""
        for place, part in enumerate(self._parts):
            if part.finish is None:
                queued = place not in self.jobs or self.jobs[place].started_at is None
                self.stop_job(place)
                self.sglang.rooms.leave_prefill(part.item.bootstrap, self)
                part.finish = replies.abort_of("Abort in waiting queue" if queued else "Aborted")
                part.times.finished = time.time()
                self._show(place)
                if self.over:
                    return

    def fail(self, status: int, message: str) -> None:
        """A failure with a status. A native stream ends by an ordinary event with an abort in it."""
        kind = {400: "BadRequestError", 503: "SERVICE_UNAVAILABLE"}.get(status, "InternalServerError")
        if self.request.kind == NATIVE and self.request.stream and self.exchange.started:
            for place, part in enumerate(self._parts):
                if part.finish is None and not self.over:
                    self.stop_job(place)
                    part.finish = replies.abort_of(message, status, kind)
                    part.times.finished = time.time()
                    self._show(place)
        elif self.exchange.started:
            error = {
                "object": "error",
                "message": message,
                "type": HTTPStatus(status).name,
                "param": None,
                "code": status,
            }
            self.fault = None
            self.write(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
            self.write(DONE)
            self.settle()
            self.exchange.finish()
        elif self.request.kind == NATIVE and status == 400:
            self.reply(status, {"error": {"message": message}})
        else:
            kind = str(status) if self.request.kind == NATIVE and status == 503 else kind
            error = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
            self.reply(status, error)

    def reply_headers(self) -> Mapping[str, str]:
        return _HEADERS

    def on_job_aborted(self, job: Job) -> None:
        self.sglang.call_off(job)

    def on_end(self) -> None:
        self.sglang.forget(self)

    @property
    def bootstraps(self) -> list[Bootstrap]:
        return [item.bootstrap for item in self.request.items if item.bootstrap is not None]


def _event(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
