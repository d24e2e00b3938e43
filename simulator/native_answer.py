"""The native dialect: one request's answer, as events or as MessagePack maps."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from protocols.outputs import (
    CompletionUsage,
    FinishReason,
    LLMEngineOutput,
    PromptTokensDetails,
    TopLogprob,
)
from protocols.preprocessed import PreprocessedRequest
from simulator.answers import Answer
from simulator.constraints import Constraint, constraint_in
from simulator.http import Exchange
from simulator.jobs import Finish, Job, Output, Spec
from simulator.rooms import Bootstrap

if TYPE_CHECKING:
    from simulator.native import NativeWorker

try:
    import msgpack  # type: ignore[import-untyped,unused-ignore]
except ImportError:
    msgpack = None

MSGPACK = msgpack is not None
"""Whether the package is installed."""

_FINISHES = {Finish.EOS: FinishReason.EOS, Finish.STOP: FinishReason.STOP, Finish.LENGTH: FinishReason.LENGTH}
_CONSTRAINTS = ("json", "regex", "choice", "grammar", "structural_tag")
_ERROR_TYPES = {400: "invalid_request_error", 503: "service_unavailable"}


@dataclass(frozen=True, slots=True)
class Framing:
    """How outputs travel: events, or MessagePack maps one after another."""

    binary: bool

    @property
    def content_type(self) -> str:
        return "application/msgpack" if self.binary else "text/event-stream; charset=utf-8"

    def output(self, output: LLMEngineOutput) -> bytes:
        value = output.to_wire()
        if self.binary:
            return bytes(msgpack.packb({"data": value}))
        return b"data: " + orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS) + b"\n\n"

    def error(self, message: str, code: int) -> bytes:
        value = {"message": message, "code": code}
        if self.binary:
            return bytes(msgpack.packb({"error": value}))
        return b"event: error\ndata: " + orjson.dumps(value) + b"\n\n"

    def end(self) -> bytes:
        return bytes(msgpack.packb({"done": True})) if self.binary else b"data: [DONE]\n\n"


class NativeAnswer(Answer):
    """The answer to one request, always streamed."""

    def __init__(
        self, worker: NativeWorker, exchange: Exchange, request: PreprocessedRequest, framing: Framing
    ) -> None:
        super().__init__(worker, exchange)
        self.native = worker
        self.request = request
        info = request.bootstrap_info
        self.bootstrap = (
            None if info is None else Bootstrap(info.bootstrap_host, info.bootstrap_port, info.bootstrap_room)
        )
        self._framing = framing
        self._held: tuple[Job, Output] | None = None

    def begin(self) -> None:
        """Gives the engine the request, or brings it to its room."""
        if self.meets_fault("request"):
            return
        if self.native.options.role == "prefill" and self.bootstrap is not None:
            self.native.rooms.join_prefill(self.bootstrap.room, self, 0)
        else:
            self.submit_at(0)

    def submit_at(self, place: int) -> Job:
        request, stop = self.request, self.request.stop_conditions
        sampling, role = request.sampling_options, self.native.options.role
        prefill = role == "prefill"
        ids = (*(stop.stop_token_ids or ()), *(stop.stop_token_ids_hidden or ()), *(stop.stop_token_ids_visible or ()))
        room = self.native.options.context_length - len(request.token_ids)
        pin = self.bootstrap.pin if self.bootstrap is not None else f"native-{uuid.uuid4()}"
        spec = Spec(
            prompt=request.token_ids,
            limit=1 if prefill else min(stop.max_tokens or room, room),
            min_tokens=stop.min_tokens or 0,
            ignore_eos=bool(stop.ignore_eos),
            stop_ids=frozenset(ids) - frozenset(self.native.vocabulary.eos_ids if stop.ignore_eos else ()),
            temperature=sampling.temperature or 0.0,
            seed=sampling.seed,
            salt=(request.routing.cache_namespace if request.routing is not None else None) or "",
            logprobs=request.output_options.logprobs,
            pin=pin if prefill else None,
            pin_s=None if self.bootstrap is not None else self.native.options.native.pin_s,
            peer=self._peer() if role == "decode" else None,
            script=self.native.script(
                request.token_ids, self._constraint(), sampling.temperature or 0.0, sampling.seed
            ),
        )
        return self.submit(self.native.model_for(self.bootstrap), spec, place)

    def submitted(self, place: int) -> bool:
        return place in self.jobs

    def _constraint(self) -> Constraint | None:
        guided = self.request.sampling_options.guided_decoding
        if guided is None:
            return None
        return constraint_in({"structured_outputs": {kind: getattr(guided, kind) for kind in _CONSTRAINTS}})

    def _peer(self) -> object:
        if self.bootstrap is not None:
            return self.bootstrap
        result = self.request.prefill_result
        return result.disaggregated_params if result is not None else None

    # ---- outputs

    def on_output(self, place: int, job: Job, output: Output) -> None:
        if self.native.options.role == "prefill" and self.bootstrap is not None:
            self._held = job, output
            self.native.rooms.prefilled(self.bootstrap.room, job, output)
        else:
            self._show(job, output)

    def transferred(self, place: int) -> None:
        """Prefill's KV has arrived: now it answers."""
        if self._held is not None and not self.over:
            self._show(*self._held)

    def _show(self, job: Job, output: Output) -> None:
        if not self._start():
            return
        shown = LLMEngineOutput(token_ids=list(output.ids), index=0)
        if output.logprobs:
            shown.log_probs = [position[0].logprob for position in output.logprobs]
            shown.top_logprobs = [
                [TopLogprob(rank, entry.token_id, None, entry.logprob) for rank, entry in enumerate(position, 1)]
                for position in output.logprobs
            ]
        if output.finish is not None:
            self._finish(job, output, shown)
        data = self._framing.output(shown)
        if output.finish is not None and self.meets_fault("last", data):
            return
        if self.write(data, len(output.ids)) and output.finish is not None:
            self._close()

    def _finish(self, job: Job, output: Output, shown: LLMEngineOutput) -> None:
        assert output.finish is not None
        shown.finish_reason = _FINISHES[output.finish]
        shown.stop_reason = output.ids[-1] if output.finish is Finish.STOP else None
        prompt = job.prompt_tokens
        cached = PromptTokensDetails(cached_tokens=job.cached_tokens)
        shown.completion_usage = CompletionUsage(prompt, job.generated, prompt + job.generated, cached)
        if job.spec.pin is None or self.bootstrap is not None:
            return
        if output.finish is Finish.LENGTH:
            shown.disaggregated_params = self.native.handover(job)
        else:
            self.native.unpin(job.spec.pin)

    def _start(self) -> bool:
        if self.exchange.started:
            return True
        self.exchange.start(200, self._framing.content_type, None)
        return not self.meets_fault("head")

    def _close(self) -> None:
        if self.meets_fault("done", self._framing.end()):
            return
        self.write(self._framing.end())
        self.settle()
        self.exchange.finish()

    # ---- other ends

    def abort(self) -> None:
        """The engine cancelled by itself."""
        if self._start():
            self.write(self._framing.output(LLMEngineOutput.cancelled()))
            self._close()

    def fail(self, status: int, message: str) -> None:
        if not self.exchange.started:
            kind = _ERROR_TYPES.get(status, "server_error")
            self.reply(status, {"error": {"message": message, "type": kind, "param": None, "code": status}})
            return
        self.fault = None
        self.write(self._framing.error(message, status))
        self.settle()
        self.exchange.finish()

    def on_job_aborted(self, job: Job) -> None:
        self.native.call_off(job)

    def on_end(self) -> None:
        self.native.forget(self)


def unpacked(body: bytes) -> Any:
    """One MessagePack object. Raises ValueError when it is none, or none can be read here."""
    if msgpack is None:
        raise ValueError("MessagePack is not installed here")
    return msgpack.unpackb(body, strict_map_key=False)
