"""SGLang 0.5.23: turning a request's outputs into events and whole replies."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from simulator import sglang_replies as replies
from simulator.digests import mix
from simulator.generation import Alternative, Voice
from simulator.options import SimulatorOptions
from simulator.sglang_requests import CHAT, NATIVE, Item, SglangRequest
from simulator.text import TextStream
from simulator.vocabulary import Codec

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Part:
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

    @property
    def pending(self) -> int:
        """Ids not yet sent."""
        return len(self.ids) - self.sent_ids

    def sent(self) -> None:
        """What there is has gone out."""
        self.first = False
        self.sent_ids, self.sent_text = len(self.ids), len(self.shown)
        self.closed = self.finish is not None

    def end(self, finish: dict[str, Any]) -> None:
        self.finish = finish
        self.times.finished = time.time()


class Rendering:
    """The bytes and documents of one answer."""

    def __init__(
        self, request: SglangRequest, parts: list[Part], options: SimulatorOptions, codec: Codec, voice: Voice
    ):
        self.request = request
        self.parts = parts
        self._created = int(time.time())
        self._options = options
        self._codec = codec
        self._voice = voice

    # ---- a stream

    def events(self, place: int) -> Iterator[bytes]:
        """What a part has to show. Chat: role, then content, then the finish on an event of its own."""
        part = self.parts[place]
        if self.request.kind == NATIVE:
            part.times.first_sent = part.times.first_sent or time.time()
            yield event_of(self._native(place, part))
        elif self.request.kind == CHAT:
            yield from self._chat_events(place, part)
        else:
            yield event_of({**self._frame([self._completion(place, part)]), "usage": None})

    def _chat_events(self, place: int, part: Part) -> Iterator[bytes]:
        if part.first:
            yield self._chat_event(place, {"role": "assistant", "content": ""})
        delta = part.shown[part.sent_text :]
        if delta:
            yield self._chat_event(place, {"content": delta}, self._logprobs(part.logprobs[part.sent_ids :]))
        if part.finish:
            yield self._chat_event(place, {}, finish=part.finish)

    def usage_event(self) -> bytes:
        """Chat's has its nulls, completions' has not."""
        used = self._usage()
        if self.request.kind != CHAT:
            used = {key: value for key, value in used.items() if value is not None}
        return event_of({**self._frame([]), "usage": used})

    def _chat_event(
        self, place: int, delta: Mapping[str, Any], logprobs: Any = None, finish: Mapping[str, Any] | None = None
    ) -> bytes:
        choice = {
            "index": place,
            "delta": {"reasoning_content": None, **delta},
            "logprobs": logprobs,
            "finish_reason": finish["type"] if finish else None,
            "matched_stop": finish.get("matched") if finish else None,
        }
        return event_of(self._frame([choice]))

    # ---- a whole reply

    def whole(self) -> Any:
        """The document of a reply that is not streamed; a list for a native batch."""
        if self.request.kind == NATIVE:
            documents = [self._native(place, part) for place, part in enumerate(self.parts)]
            return documents if self.request.batch else documents[0]
        choices = [self._whole_choice(place, part) for place, part in enumerate(self.parts)]
        return {
            **self._frame(choices),
            "object": "chat.completion" if self.request.kind == CHAT else "text_completion",
            "usage": self._usage(),
            "metadata": {
                "weight_version": replies.WEIGHTS,
                "weight_versions": replies.versions(len(self.parts[0].ids)),
            },
        }

    def _whole_choice(self, place: int, part: Part) -> dict[str, Any]:
        if self.request.kind != CHAT:
            return self._completion(place, part)
        assert part.finish is not None
        choice = {
            "index": place,
            "message": {"role": "assistant", "content": part.shown, "reasoning_content": None},
            "logprobs": self._logprobs(part.logprobs),
            "finish_reason": part.finish["type"],
            "matched_stop": part.finish.get("matched"),
        }
        if self.request.return_token_ids:
            choice["response_token_ids"] = part.ids
            choice["prompt_token_ids"] = part.item.prompt
        return choice

    # ---- native shapes

    def _native(self, place: int, part: Part) -> dict[str, Any]:
        """Cumulative, unless the server streams increments."""
        incremental = self._options.sglang.incremental and self.request.stream
        ids, text = (part.sent_ids, part.sent_text) if incremental else (0, 0)
        document: dict[str, Any] = {
            "text": part.shown[text:],
            "output_ids": part.ids[ids:],
            "meta_info": replies.meta_info(
                part.item.rid,
                part.finish,
                len(part.item.prompt),
                len(part.ids),
                part.cached,
                part.times,
                self._native_logprobs(part, part.logprobs[ids:]),
                decode=self._options.role == "decode",
                stream=self.request.stream,
                first=part.first,
            ),
        }
        if self.request.return_prompt_ids:
            document["prompt_token_ids"] = part.item.prompt
        if self.request.batch and self.request.stream:
            document["index"] = place
        return document

    def _native_logprobs(self, part: Part, found: Sequence[Sequence[Alternative]]) -> dict[str, Any] | None:
        top = self.request.logprobs
        if top is None:
            return None
        prompt, prompt_top = self._prompt_logprobs(part, top)
        texts = [self._names(position, self.request.text_in_logprobs) for position in found]
        return replies.native_logprobs(found, texts, top, prompt, prompt_top)

    def _prompt_logprobs(self, part: Part, top: int) -> tuple[list[Any], list[Any]]:
        """Only whoever computed the prompt has them: decode gives none."""
        start = self.request.logprobs_from
        if start < 0 or self._options.role == "decode":
            return [], []
        named, entries, tops = self.request.text_in_logprobs, [], []
        for at, token_id in enumerate(part.item.prompt[start:], start):
            position = self._voice.logprobs(token_id, mix(token_id ^ mix(at)), max(top, 1))
            names = self._names(position, named)
            triples = [[entry.logprob, entry.token_id, name] for entry, name in zip(position, names, strict=True)]
            entries.append([None, token_id, names[0]] if at == 0 else triples[0])
            tops.append(None if at == 0 else triples[:top])
        return entries, tops

    # ---- OpenAI shapes

    def _frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.request.items[0].rid,
            "object": "chat.completion.chunk" if self.request.kind == CHAT else "text_completion",
            "created": self._created,
            "model": self.request.model,
            "choices": choices,
        }

    def _completion(self, place: int, part: Part) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": place,
            "text": part.shown[part.sent_text :],
            "logprobs": self._logprobs(part.logprobs[part.sent_ids :]),
            "finish_reason": part.finish["type"] if part.finish else None,
            "matched_stop": part.finish.get("matched") if part.finish else None,
        }
        if self.request.return_token_ids:
            choice["token_ids"] = part.ids[part.sent_ids :]
            if part.first:
                choice["prompt_token_ids"] = part.item.prompt
        return choice

    def _usage(self) -> dict[str, Any]:
        prompts = sum(len(part.item.prompt) for part in self.parts)
        if not self.request.batch:
            prompts //= len(self.parts)
        cached = sum(part.cached for part in self.parts) if self._options.sglang.cache_report else None
        return replies.usage(prompts, sum(len(part.ids) for part in self.parts), cached)

    def _logprobs(self, found: Sequence[Sequence[Alternative]]) -> dict[str, Any] | None:
        if self.request.logprobs is None:
            return None
        texts = [self._names(position, True) for position in found]
        return replies.openai_logprobs(self.request.kind == CHAT, found, texts)

    def _names(self, position: Sequence[Alternative], named: bool) -> list[Any]:
        return [self._codec.decode([entry.token_id]) if named else None for entry in position]


def event_of(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
