"""SGLang 0.5.23: one request's answer, on the native and the OpenAI routes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from simulator import sglang_replies as replies
from simulator.answers import Answer
from simulator.digests import mix
from simulator.http import Exchange
from simulator.jobs import Finish, Job, Output, Spec
from simulator.rooms import Bootstrap
from simulator.sglang_rendering import DONE, Part, Rendering
from simulator.sglang_requests import NATIVE, Item, SglangRequest
from simulator.text import Hold, TextStream

if TYPE_CHECKING:
    from simulator.sglang import SglangWorker

_SSE = "text/event-stream; charset=utf-8"
_HEADERS = {"vary": "Origin"}


class SglangAnswer(Answer):
    """The answer to one request."""

    def __init__(self, worker: SglangWorker, exchange: Exchange, request: SglangRequest) -> None:
        limits = worker.options.sglang
        super().__init__(worker, exchange, leave_s=limits.stream_leave_s if request.stream else limits.unary_leave_s)
        self.sglang = worker
        self.request = request
        now = time.time()
        self._parts = [Part(item, self._text_stream(item), replies.Times(now, time.time())) for item in request.items]
        self._render = Rendering(request, self._parts, worker.options, worker.codec, worker.voice)

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
        seed = item.seed if not place else mix((item.seed or 0) + place)
        spec = Spec(
            prompt=item.prompt,
            limit=1 if prefill else item.max_tokens,
            min_tokens=item.min_tokens,
            ignore_eos=item.ignore_eos,
            stop_ids=item.stop_ids,
            temperature=item.temperature,
            seed=seed,
            salt=item.salt,
            logprobs=None if self.request.logprobs is None else max(self.request.logprobs, 1),
            pin=item.bootstrap.pin if prefill and item.bootstrap is not None and not item.bootstrap.fake else None,
            peer=item.bootstrap if sglang.options.role == "decode" else None,
            recompute_last=False,
            script=sglang.script(item.prompt, item.constraint, item.temperature, seed),
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

    def _take(self, part: Part, job: Job, output: Output) -> None:
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
                self.reply(200, self._render.whole())
            return
        waiting = part.pending < part.item.stream_interval and not part.first
        if part.finish is None and (part.text.held or waiting or self.exchange.slow):
            return
        self._send(place, part)

    def _send(self, place: int, part: Part) -> None:
        if not self.exchange.started and not self._start_stream():
            return
        events = list(self._render.events(place))
        for at, event in enumerate(events, 1):
            last = part.finish is not None and at == len(events)
            if last and self.meets_fault("last", event):
                return
            if not self.write(event, part.pending if at == len(events) else 0):
                return
        part.sent()
        if all(known.closed for known in self._parts):
            self._close_stream()

    def _start_stream(self) -> bool:
        """The head. False: a fault came instead."""
        self.exchange.start(200, _SSE, None, _HEADERS)
        self.exchange.on_drain = self._drained
        return not self.meets_fault("head")

    def _drained(self) -> None:
        for place, part in enumerate(self._parts):
            if part.pending and not part.text.held and not self.over:
                self._send(place, part)

    def _close_stream(self) -> None:
        if self.meets_fault("done", DONE):
            return
        if self.request.include_usage:
            self.write(self._render.usage_event())
        self.write(DONE)
        self.settle()
        self.exchange.finish()

    # ---- other ends

    def abort(self) -> None:
        """`/abort_request`: what there is, with finish "abort" and no status."""
        for place, part in enumerate(self._parts):
            if part.finish is None:
                queued = place not in self.jobs or self.jobs[place].started_at is None
                self.stop_job(place)
                self.sglang.rooms.leave_prefill(part.item.bootstrap, self)
                part.end(replies.abort_of("Abort in waiting queue" if queued else "Aborted"))
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
                    part.end(replies.abort_of(message, status, kind))
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
