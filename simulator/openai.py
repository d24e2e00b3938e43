"""A simulated server that only knows OpenAI's own routes: text in, text or vectors out, no token ids, no roles."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from simulator import embeddings
from simulator.answers import Answer
from simulator.constraints import Constraint, constraint_in
from simulator.digests import mix
from simulator.generation import Alternative
from simulator.http import Exchange
from simulator.jobs import Finish, Job, Output, Spec
from simulator.options import SimulatorOptions
from simulator.text import TextStream
from simulator.worker import Exit, SimulatedWorker

_DONE = b"data: [DONE]\n\n"


class Refused(Exception):
    """Answered with OpenAI's envelope."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


@dataclass(frozen=True)
class OpenAIRequest:
    """A request that passed. `chat` tells the route."""

    chat: bool
    prompts: Sequence[Sequence[int]]
    max_tokens: int
    n: int
    temperature: float
    seed: int | None
    stops: tuple[str, ...]
    logprobs: int | None
    stream: bool
    include_usage: bool
    constraint: Constraint | None


class OpenAIAnswer(Answer):
    """The answer to one request."""

    def __init__(self, worker: OpenAIWorker, exchange: Exchange, request: OpenAIRequest) -> None:
        super().__init__(worker, exchange)
        self.request = request
        self._id = ("chatcmpl-" if request.chat else "cmpl-") + secrets.token_hex(12)
        self._created = int(time.time())
        self._prompts = [prompt for prompt in request.prompts for _ in range(request.n)]
        self._texts = [TextStream(worker.codec, worker.vocabulary, prompt, request.stops) for prompt in self._prompts]
        self._shown = [""] * len(self._prompts)
        self._logprobs: list[list[list[Alternative]]] = [[] for _ in self._prompts]
        self._finishes: list[str | None] = [None] * len(self._prompts)

    def begin(self) -> None:
        if self.meets_fault("request"):
            return
        request = self.request
        if request.stream:
            self.exchange.start(200, "text/event-stream", None)
            if self.meets_fault("head"):
                return
        for place, prompt in enumerate(self._prompts):
            seed = request.seed if not place else mix((request.seed or 0) + place)
            spec = Spec(
                prompt=prompt,
                limit=request.max_tokens,
                temperature=request.temperature,
                seed=seed,
                logprobs=request.logprobs,
                script=self.worker.script(prompt, request.constraint, request.temperature, seed),
            )
            self.submit(self.worker.models[self.worker.least_loaded()], spec, place)

    def on_output(self, place: int, job: Job, output: Output) -> None:
        text = self._texts[place]
        first = not self._shown[place] and job.generated == len(output.ids)
        hidden = output.finish in (Finish.EOS, Finish.STOP)
        delta = text.push(output.ids[:-1] if hidden else output.ids)
        if output.finish is not None:
            delta += text.finish()
        if text.stopped is not None and output.finish is None:
            self.stop_job(place)
        if text.stopped is not None or output.finish is not None:
            length = output.finish is Finish.LENGTH and text.stopped is None
            self._finishes[place] = "length" if length else "stop"
        self._shown[place] += delta
        self._logprobs[place] += output.logprobs or []
        if not self.request.stream:
            if all(self._finishes):
                self.reply(200, self._whole())
            return
        self._send(place, delta, output, first)

    # ---- a stream

    def _send(self, place: int, delta: str, output: Output, first: bool) -> None:
        if (
            self.request.chat
            and first
            and not self._event({"index": place, "delta": {"role": "assistant", "content": ""}})
        ):
            return
        finish = self._finishes[place]
        shown = {"delta": {"content": delta}} if self.request.chat else {"text": delta}
        logprobs = self._logprobs_of(output.logprobs or [])
        if (delta or logprobs) and not self._event(
            {"index": place, **shown, "logprobs": logprobs, "finish_reason": None}, len(output.ids)
        ):
            return
        if finish is None:
            return
        last: dict[str, Any] = {"index": place, **({"delta": {}} if self.request.chat else {"text": ""})}
        last |= {"logprobs": None, "finish_reason": finish}
        if self.meets_fault("last", orjson.dumps(last)) or not self._event(last):
            return
        if all(self._finishes) and not self.meets_fault("done", _DONE):
            if self.request.include_usage:
                self.write(b"data: " + orjson.dumps({**self._frame([]), "usage": self._usage()}) + b"\n\n")
            self.write(_DONE)
            self.settle()
            self.exchange.finish()

    def _event(self, choice: dict[str, Any], tokens: int = 0) -> bool:
        return self.write(b"data: " + orjson.dumps(self._frame([choice])) + b"\n\n", tokens)

    def _frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.request.chat else "text_completion"
        if not self.request.stream and self.request.chat:
            kind = "chat.completion"
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self.worker.options.model,
            "choices": choices,
        }

    # ---- a whole reply

    def _whole(self) -> dict[str, Any]:
        choices = []
        for place, text in enumerate(self._shown):
            message = {"role": "assistant", "content": text, "refusal": None}
            shown: dict[str, Any] = {"message": message} if self.request.chat else {"text": text}
            logprobs = self._logprobs_of(self._logprobs[place])
            choices.append({"index": place, **shown, "logprobs": logprobs, "finish_reason": self._finishes[place]})
        return {**self._frame(choices), "usage": self._usage()}

    def _usage(self) -> dict[str, Any]:
        prompt = sum(map(len, self.request.prompts))
        completion = sum(job.generated for job in self.jobs.values())
        cached = sum(job.cached_tokens for job in self.jobs.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _logprobs_of(self, found: Sequence[Sequence[Alternative]]) -> dict[str, Any] | None:
        if self.request.logprobs is None or not found:
            return None
        decode = self.worker.codec.decode
        named = [[(decode([entry.token_id]), entry.logprob) for entry in position] for position in found]
        if self.request.chat:
            content = []
            for position in named:
                entries = [{"token": t, "logprob": p, "bytes": list(t.encode())} for t, p in position]
                content.append({**entries[0], "top_logprobs": entries})
            return {"content": content}
        return {
            "tokens": [position[0][0] for position in named],
            "token_logprobs": [position[0][1] for position in named],
            "top_logprobs": [dict(position) for position in named],
            "text_offset": [0] * len(named),
        }

    # ---- other ends

    def abort(self) -> None:
        """Such a server has no word for it: the connection just ends."""
        self.settle()
        self.exchange.close()

    def fail(self, status: int, message: str) -> None:
        error = {"error": {"message": message, "type": "server_error", "param": None, "code": None}}
        if not self.exchange.started:
            self.reply(status, error)
            return
        self.fault = None
        self.write(b"data: " + orjson.dumps(error) + b"\n\n")
        self.settle()
        self.exchange.finish()


class OpenAIWorker(SimulatedWorker):
    """Chat, completions and the list of models."""

    def __init__(self, options: SimulatorOptions, *, exit_process: Exit | None = None) -> None:
        super().__init__(options, exit_process=exit_process)
        self.routes |= {
            "/health": {"GET": lambda exchange: exchange.json(200, {"status": "ok"})},
            "/v1/models": {"GET": self._models},
            "/v1/chat/completions": {"POST": lambda exchange: self._generation(exchange, True)},
            "/v1/completions": {"POST": lambda exchange: self._generation(exchange, False)},
        }
        if options.embedding_size:
            self.routes["/v1/embeddings"] = {"POST": lambda exchange: embeddings.openai(self, exchange)}

    def _models(self, exchange: Exchange) -> None:
        options = self.options
        card = {
            "id": options.model,
            "object": "model",
            "created": int(self.started_at),
            "owned_by": "simulator",
            "max_model_len": options.context_length,
        }
        exchange.json(200, {"object": "list", "data": [card]})

    def _generation(self, exchange: Exchange, chat: bool) -> None:
        try:
            request = self._read(orjson.loads(exchange.body), chat)
        except Refused as refused:
            exchange.json(refused.status, refused.body)
            return
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            exchange.json(400, Refused(f"invalid request: {error}").body)
            return
        answer = OpenAIAnswer(self, exchange, request)
        answer.fault = self.faults.for_request()
        answer.begin()

    def _read(self, body: Mapping[str, Any], chat: bool) -> OpenAIRequest:
        if body.get("model") != self.options.model:
            name = body.get("model")
            raise Refused(f"The model `{name}` does not exist", status=404, param="model", code="model_not_found")
        prompts = self._prompts(body, chat)
        longest = max(map(len, prompts))
        room = self.options.context_length - longest
        if room < 1:
            limit = self.options.context_length
            text = f"This model's maximum context length is {limit} tokens, the prompt has {longest}."
            raise Refused(text, param="messages" if chat else "prompt", code="context_length_exceeded")
        most = body.get("max_completion_tokens") or body.get("max_tokens") or (room if chat else 16)
        if type(most) is not int or most < 1:
            raise Refused("max_tokens must be a positive integer", param="max_tokens")
        stops = body.get("stop") or ()
        if not all(isinstance(stop, str) for stop in stops):
            raise Refused("stop must be a string or an array of strings", param="stop")
        top = body.get("top_logprobs") if chat else body.get("logprobs")
        wanted = body.get("logprobs") not in (None, False)
        temperature = body.get("temperature")
        return OpenAIRequest(
            chat=chat,
            prompts=prompts,
            max_tokens=min(most, room),
            n=int(body.get("n") or 1),
            temperature=1.0 if temperature is None else float(temperature),
            seed=body.get("seed"),
            stops=(stops,) if isinstance(stops, str) else tuple(stops),
            logprobs=int(top or 0) if wanted else None,
            stream=bool(body.get("stream")),
            include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
            constraint=constraint_in(body),
        )

    def _prompts(self, body: Mapping[str, Any], chat: bool) -> list[list[int]]:
        if chat:
            messages = body.get("messages")
            if not isinstance(messages, list) or not messages:
                raise Refused("messages must be a non-empty array", param="messages")
            return [self.codec.render(messages)]
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            return [list(self.codec.encode(prompt))]
        if isinstance(prompt, list) and prompt and all(type(i) is int for i in prompt):
            return [prompt]
        if isinstance(prompt, list) and prompt:
            return [list(self.codec.encode(part)) if isinstance(part, str) else list(part) for part in prompt]
        raise Refused("prompt must be a string, an array of strings or token ids", param="prompt")
