"""vLLM 0.32: turning a request's outputs into chunks and whole replies."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from simulator import vllm_replies as replies
from simulator.digests import mix
from simulator.generation import Alternative, Voice
from simulator.text import TextStream
from simulator.vllm_requests import CHAT, COMPLETION, GENERATE, VllmRequest
from simulator.vocabulary import Codec

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Choice:
    """One sequence's share of the reply. `pending`: ids (and their logprobs) not yet sent in the stream."""

    prompt: Sequence[int]
    text: TextStream | None
    ids: list[int] = field(default_factory=list)
    logprobs: list[list[Alternative]] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    pending_logprobs: list[list[Alternative]] = field(default_factory=list)
    pending_text: str = ""
    offset: int = 0
    first: bool = True
    finish: str | None = None
    stop: str | int | None = None

    def sent(self) -> None:
        """What was pending has gone out."""
        self.first = False
        self.offset += len(self.pending_text)
        self.pending, self.pending_logprobs, self.pending_text = [], [], ""


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What usage tells of the prefix cache. `hits` None: not reported; `created`: tokens stored anew."""

    hits: int | None
    created: int


class Rendering:
    """The bytes and documents of one answer. `kv`: what prefill hands to decode."""

    def __init__(self, request: VllmRequest, reply_id: str, model: str, codec: Codec, voice: Voice) -> None:
        self.request = request
        self.id = reply_id
        self.created = int(time.time())
        self.choices: list[Choice] = []
        self.kv: Mapping[str, Any] | None = None
        self._model = model
        self._codec = codec
        self._voice = voice

    # ---- a stream

    def role_chunk(self, place: int) -> bytes:
        """A chat stream's first chunk of a choice."""
        request = self.request
        delta = {"role": "assistant", "content": ""}
        value = replies.chunk(
            CHAT,
            self.id,
            self.created,
            self._model,
            [{"index": place, "delta": delta, "logprobs": None, "finish_reason": None}],
        )
        value["prompt_token_ids"] = self.choices[place].prompt if request.return_token_ids else None
        value["prompt_text"] = None
        return event_of(value)

    def chunk(self, place: int) -> bytes:
        """A choice's pending ids and text, and its finish if it has one."""
        choice = self.choices[place]
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
            return event_of(value)
        make = self._chat_delta if request.kind == CHAT else self._completion_delta
        value = replies.chunk(request.kind, self.id, self.created, self._model, [make(place, choice, logprobs)])
        if choice.finish and not request.include_usage:
            value["system_fingerprint"] = replies.FINGERPRINT
        if request.continuous_usage:
            value["usage"] = spent
        return event_of(value)

    def _completion_delta(self, place: int, choice: Choice, logprobs: Any) -> dict[str, Any]:
        ids = self.request.return_token_ids
        text = choice.pending_text
        if self.request.echo and choice.first:
            text = self._codec.decode(choice.prompt) + text
        return {
            "index": place,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": choice.finish,
            "stop_reason": choice.stop,
            "prompt_token_ids": choice.prompt if ids and choice.first else None,
            "token_ids": choice.pending if ids else None,
        }

    def _chat_delta(self, place: int, choice: Choice, logprobs: Any) -> dict[str, Any]:
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

    def usage_chunk(self, cache: CacheUse) -> bytes:
        """The last event before the end mark, where usage was asked for."""
        request = self.request
        prompt, completion = self._spent()
        used = replies.stream_usage(request.kind, prompt, completion, cache.hits, cache.created)
        if request.kind == GENERATE:
            mode = "text" if request.text else "tokens"
            return event_of({"request_id": self.id, "usage": used, "output_mode": mode, "choices": []})
        value = replies.chunk(request.kind, self.id, self.created, self._model, [])
        value["usage"] = used
        value["system_fingerprint"] = replies.FINGERPRINT
        return event_of(value)

    # ---- a whole reply

    def whole(self, cache: CacheUse) -> dict[str, Any]:
        """The document of a reply that is not streamed."""
        request = self.request
        prompt, completion = self._spent()
        used = replies.usage(request.kind, prompt, completion, cache.hits, cache.created)
        prompt_ids = request.prompts[0] if request.return_token_ids else None
        found = self._prompt_logprobs(request.prompts[0])
        if request.kind == GENERATE:
            choices = [self._generate_choice(place, choice) for place, choice in enumerate(self.choices)]
            return replies.generate(
                self.id, self.created, self._model, choices, used, self.kv, found, prompt_ids, request.text
            )
        if request.kind == CHAT:
            choices = [self._chat_choice(place, choice) for place, choice in enumerate(self.choices)]
            return replies.chat(self.id, self.created, self._model, choices, used, self.kv, found, prompt_ids)
        choices = [self._completion_choice(place, choice) for place, choice in enumerate(self.choices)]
        return replies.completion(self.id, self.created, self._model, choices, used, self.kv)

    def _completion_choice(self, place: int, choice: Choice) -> dict[str, Any]:
        ids = self.request.return_token_ids
        text, entries, tokens = choice.pending_text, choice.logprobs, choice.ids
        found = self._prompt_logprobs(choice.prompt)
        if self.request.echo:
            text = self._codec.decode(choice.prompt) + text
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

    def _chat_choice(self, place: int, choice: Choice) -> dict[str, Any]:
        ids = choice.ids if self.request.return_token_ids else None
        logprobs = self._logprobs(choice, choice.ids, choice.logprobs, 0)
        return replies.chat_choice(place, choice.pending_text, logprobs, choice.finish, choice.stop, ids)

    def _generate_choice(self, place: int, choice: Choice) -> dict[str, Any]:
        text = choice.pending_text if self.request.text else None
        logprobs = self._logprobs(choice, choice.ids, choice.logprobs, 0)
        return replies.generate_choice(place, text, logprobs, choice.finish, choice.stop, choice.ids, len(choice.ids))

    # ---- counts and logprobs

    def _spent(self) -> tuple[int, int]:
        return sum(map(len, self.request.prompts)), sum(len(choice.ids) for choice in self.choices)

    def _logprobs(
        self, choice: Choice, ids: Sequence[int], found: Sequence[Sequence[Alternative]], offset: int
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
        return [self._codec.decode([entry.token_id]) for entry in position]

    def _positions(self, prompt: Sequence[int], count: int) -> list[list[Alternative]]:
        voice = self._voice
        return [voice.logprobs(token_id, mix(token_id ^ mix(at)), count) for at, token_id in enumerate(prompt[1:], 1)]

    def _prompt_logprobs(self, prompt: Sequence[int]) -> list[Any] | None:
        count = self.request.prompt_logprobs
        if count is None and self.request.echo and self.request.logprobs is not None:
            count = self.request.logprobs
        if count is None:
            return None
        positions = self._positions(prompt, max(count, 1))
        return replies.prompt_logprobs_of(positions, [self._names(position) for position in positions])

    def _echoed(self, choice: Choice, logprobs: dict[str, Any]) -> dict[str, Any]:
        """Logprobs of an echoed prompt stand before those of the answer; the first token has none."""
        positions = self._positions(choice.prompt, max(self.request.logprobs or 0, 1))
        first = self._codec.decode(choice.prompt[:1])
        texts = [self._names(position) for position in positions]
        before = replies.logprobs_of(COMPLETION, choice.prompt, positions, texts, len(first))
        shift = len(self._codec.decode(choice.prompt))
        return {
            "text_offset": [0, *before["text_offset"], *(shift + offset for offset in logprobs["text_offset"])],
            "token_logprobs": [None, *before["token_logprobs"], *logprobs["token_logprobs"]],
            "tokens": [first, *before["tokens"], *logprobs["tokens"]],
            "top_logprobs": [None, *before["top_logprobs"], *logprobs["top_logprobs"]],
        }


def event_of(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
