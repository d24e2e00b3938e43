"""A simulated engine of the native dialect: `PreprocessedRequest` in, `LLMEngineOutput` out.

The wire is docs/native_protocol.md's.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from protocols.outputs import (
    CompletionUsage,
    FinishReason,
    LLMEngineOutput,
    PromptTokensDetails,
    TopLogprob,
)
from protocols.preprocessed import PreprocessedRequest
from protocols.wire import WireError
from simulator.answers import Answer
from simulator.http import Exchange
from simulator.jobs import Finish, Job, Output, Spec
from simulator.model import EngineModel
from simulator.options import SimulatorOptions
from simulator.peers import PeerLost, call_peer
from simulator.rooms import Bootstrap, Rooms
from simulator.worker import Exit, SimulatedWorker

try:
    import msgpack  # type: ignore[import-untyped,unused-ignore]
except ImportError:
    msgpack = None

_FINISHES = {Finish.EOS: FinishReason.EOS, Finish.STOP: FinishReason.STOP, Finish.LENGTH: FinishReason.LENGTH}
_ERROR_TYPES = {400: "invalid_request_error", 503: "service_unavailable"}


@dataclass(frozen=True, slots=True)
class _Framing:
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
        self, worker: NativeWorker, exchange: Exchange, request: PreprocessedRequest, framing: _Framing
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
        )
        return self.submit(self.native.model_for(self.bootstrap), spec, place)

    def submitted(self, place: int) -> bool:
        return place in self.jobs

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


class NativeWorker(SimulatedWorker):
    """Knows its role itself: the request says nothing of it."""

    def __init__(self, options: SimulatorOptions, *, exit_process: Exit | None = None) -> None:
        super().__init__(options, exit_process=exit_process)
        self.rooms = Rooms(self, options.native.handshake_s)
        self._by_job: dict[Job, NativeAnswer] = {}
        self._transfers: dict[Job, asyncio.Task[None]] = {}
        self._incarnation = uuid.uuid4().hex
        self.routes |= {
            "/health": {"GET": lambda exchange: exchange.reply(200, b"", "")},
            "/v1/native/info": {"GET": self._info},
            "/v1/native/generate": {"POST": self._generate},
            "/_sim/room": {"POST": self._room},
        }

    async def start(self) -> None:
        if self.options.native.msgpack and msgpack is None:
            raise RuntimeError("the native dialect's MessagePack needs the package msgpack")
        await super().start()
        if self.options.native.bootstrap and self.options.role == "prefill":
            self.bootstrap_port = await self.server.listen(self.options.host, self.options.bootstrap_port)

    def gauges(self) -> dict[str, int]:
        return {"rooms": self.rooms.count}

    def model_for(self, bootstrap: Bootstrap | None) -> EngineModel:
        """A room's remainder says which prefill rank."""
        if bootstrap is not None and self.options.role == "prefill":
            return self.models[bootstrap.room % self.options.dp_size]
        return self.models[self.least_loaded()]

    # ---- routes

    def _info(self, exchange: Exchange) -> None:
        options = self.options
        info: dict[str, Any] = {
            "model": options.model,
            "version": options.version or "1",
            "page_size": options.block_size,
            "kv_dtype": "simulated",
            "context_length": options.context_length,
            "msgpack": options.native.msgpack,
            "packed_ids": options.native.packed_ids,
            "incarnation": self._incarnation,
            "role": options.role,
            "dp_size": options.dp_size,
        }
        if self.bootstrap_port:
            info["bootstrap_port"] = self.bootstrap_port
        exchange.json(200, info)

    def _generate(self, exchange: Exchange) -> None:
        binary = exchange.headers.get("content-type", "").startswith("application/msgpack")
        try:
            body = _unpacked(exchange.body) if binary else orjson.loads(exchange.body)
            request = PreprocessedRequest.from_wire(body)
            self._check(request)
        except (WireError, ValueError) as error:
            value = {"message": str(error), "type": "invalid_request_error", "param": None, "code": 400}
            exchange.json(400, {"error": value})
            return
        answer = NativeAnswer(self, exchange, request, _Framing(binary))
        answer.fault = self.faults.for_request()
        answer.begin()
        for job in answer.jobs.values():
            if job.spec.peer is not None and not job.done:
                self._by_job[job] = answer

    def _check(self, request: PreprocessedRequest) -> None:
        """Raises ValueError naming what is wrong."""
        ids, options = request.token_ids, self.options
        if not ids:
            raise ValueError("token_ids: must not be empty")
        if max(ids) >= self.vocabulary.size:
            raise ValueError(f"token_ids: {max(ids)} is out of vocabulary")
        if len(ids) >= options.context_length:
            raise ValueError(f"token_ids: {len(ids)} tokens exceed the context of {options.context_length}")
        if options.role == "decode" and request.prefill_result is None and request.bootstrap_info is None:
            raise ValueError("a decode worker needs prefill_result or bootstrap_info")

    def forget(self, answer: NativeAnswer) -> None:
        """An answer is over."""
        self.rooms.leave_prefill(answer.bootstrap, answer)
        for job in answer.jobs.values():
            self._by_job.pop(job, None)

    # ---- the pair

    def handover(self, job: Job) -> dict[str, Any]:
        """The prefill worker's own affair: where its blocks are."""
        rank = next(place for place, model in enumerate(self.models) if model.cache.has_pin(job.spec.pin or ""))
        return {
            "host": self.advertised_host,
            "port": self.port,
            "engine_id": self.engine_ids[rank],
            "name": job.spec.pin,
            "blocks": list(job.pinned_blocks),
        }

    def unpin(self, name: str) -> None:
        for model in self.models:
            if model.cache.unpin(name):
                model.wake()

    def _room(self, exchange: Exchange) -> None:
        self.rooms.join_decode(int(orjson.loads(exchange.body)["room"]), exchange)

    def load(self, job: Job) -> None:
        self._transfers[job] = task = self.spawn(self._fetch(job))
        task.add_done_callback(lambda done: self._transfers.pop(job, None))

    def call_off(self, job: Job) -> None:
        """The job is over before its KV came."""
        transfer = self._transfers.get(job)
        if transfer is not None:
            transfer.cancel()

    async def _fetch(self, job: Job) -> None:
        model = next(model for model in self.models if job in model.loading)
        pace = self.options.pace
        try:
            if isinstance(job.spec.peer, Bootstrap):
                peer = job.spec.peer
                limit = self.options.native.handshake_s
                status, reply = await call_peer(peer.host, peer.port, "/_sim/room", {"room": peer.room}, limit)
                contents = reply["contents"][job.local_hits :]
            else:
                await asyncio.sleep(pace.scaled(pace.transfer_s * model.cache.blocks_for(job.prompt_tokens)))
                status, contents = await self._read(job, model)
        except (PeerLost, KeyError, TypeError, ValueError) as error:
            status, contents = 0, str(error)
        answer = self._by_job.get(job)
        if status == 200:
            model.loaded(job, contents)
        elif answer is not None:
            answer.fail(500, f"KV transfer failed: {contents}")

    async def _read(self, job: Job, model: EngineModel) -> tuple[int, Any]:
        peer = job.spec.peer
        if not isinstance(peer, Mapping):
            raise ValueError("disaggregated_params are not this engine's")
        asked = {
            "engine_id": peer["engine_id"],
            "name": peer["name"],
            "blocks": peer["blocks"][job.local_hits :],
            "tokens": job.prompt_tokens - job.local_hits * model.cache.block_size,
        }
        status, reply = await call_peer(str(peer["host"]), int(peer["port"]), "/_sim/kv/read", asked)
        return (200, reply["contents"]) if status == 200 and reply["known"] else (0, "the blocks are gone")


def _unpacked(body: bytes) -> Any:
    if msgpack is None:
        raise ValueError("MessagePack is not installed here")
    return msgpack.unpackb(body, strict_map_key=False)
