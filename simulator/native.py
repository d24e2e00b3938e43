"""A simulated engine of the native dialect: `PreprocessedRequest` in, `LLMEngineOutput` out.

The wire is docs/native_protocol.md's.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

import orjson

from protocols.preprocessed import PreprocessedRequest
from protocols.wire import WireError
from simulator import embeddings
from simulator.http import Exchange
from simulator.jobs import Job
from simulator.model import EngineModel
from simulator.native_answer import MSGPACK, Framing, NativeAnswer, unpacked
from simulator.options import SimulatorOptions
from simulator.peers import PeerLost, call_peer
from simulator.rooms import Bootstrap, Rooms
from simulator.worker import Exit, SimulatedWorker


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
        if options.embedding_size:
            self.routes["/v1/native/embed"] = {"POST": lambda exchange: embeddings.native(self, exchange)}

    async def start(self) -> None:
        if self.options.native.msgpack and not MSGPACK:
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
            body = unpacked(exchange.body) if binary else orjson.loads(exchange.body)
            request = PreprocessedRequest.from_wire(body)
            self._check(request)
        except (WireError, ValueError) as error:
            value = {"message": str(error), "type": "invalid_request_error", "param": None, "code": 400}
            exchange.json(400, {"error": value})
            return
        answer = NativeAnswer(self, exchange, request, Framing(binary))
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
        model = next((model for model in self.models if job in model.loading), None)
        if model is None:
            return
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
