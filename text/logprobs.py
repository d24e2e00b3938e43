"""Tokens' log probabilities, told with the text they belong to, in OpenAI's two shapes.

Engines' ids come before their text: the decoder withholds half characters and half stop strings. So an entry waits
until its text is out. Tokens of a split character have no text of their own (U+FFFD); a run of them shares the
characters up to the next token that can be found in the text.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocols.outputs import BackendOutput, PromptLogprobs, TopLogprob
from text.answer_form import PromptEcho

BROKEN = "\ufffd"
LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot say (vLLM's convention)."""


@dataclass(slots=True)
class TokenLogprob:
    """One token: its own text, log probability (None: unknown), alternatives, and where its text starts.

    `offset` counts characters from the start of the told text, echoed prompt included.
    """

    token: str
    token_id: int
    logprob: float | None
    top: list[TopLogprob] = field(default_factory=list)
    offset: int = 0


class Alignment:
    """Holds tokens until their text is out. `offset`: how many characters stand before the first token's."""

    __slots__ = ("_offset", "_tail", "_waiting")

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset
        self._tail = ""
        self._waiting: deque[TokenLogprob] = deque()

    def add(self, tokens: Iterable[TokenLogprob]) -> None:
        self._waiting.extend(tokens)

    def take(self, text: str) -> list[TokenLogprob]:
        """The tokens whose text is out when `text` follows what was sent before."""
        return self._released(text, final=False)

    def close(self, text: str, *, keep_rest: bool) -> list[TokenLogprob]:
        """The same at the end of the answer. `keep_rest`: tokens that never had a text are told too."""
        released = self._released(text, final=True)
        if keep_rest:
            for token in self._waiting:
                token.offset = self._offset
            released += self._waiting
        self._waiting.clear()
        return released

    def _released(self, text: str, *, final: bool) -> list[TokenLogprob]:
        self._tail += text
        released: list[TokenLogprob] = []
        while self._waiting and self._tail:
            step = self._step(final)
            if step is None:
                break
            count, gap, width = step
            for place in range(count):
                token = self._waiting.popleft()
                token.offset = self._offset + gap + place * width // count
                released.append(token)
            self._offset += gap + width
            self._tail = self._tail[gap + width :]
        if not self._waiting:
            self._offset += len(self._tail)
            self._tail = ""
        return released

    def _step(self, final: bool) -> tuple[int, int, int] | None:
        """How many tokens go next, after how many characters that are nobody's, and over how many.

        None: their text is still to come.
        """
        tail, token = self._tail, self._waiting[0].token
        if BROKEN in token:
            return self._broken_run()
        if not token:
            return 1, 0, 0
        if tail.startswith(token):
            return 1, 0, len(token)
        bare = token.lstrip(" ")
        if bare and tail.startswith(bare):
            return 1, 0, len(bare)
        if token.startswith(tail):
            return (1, 0, len(tail)) if final else None
        gap = tail.find(token)
        # A token whose text is nowhere was not shown: a special one.
        return (1, 0, 0) if gap < 0 else (1, gap, len(token))

    def _broken_run(self) -> tuple[int, int, int]:
        count = 0
        for token in self._waiting:
            follower = token.token
            if follower and BROKEN not in follower:
                found = self._tail.find(follower, 1)
                width = found if found > 0 else len(self._tail) - _overlap(self._tail, follower)
                return count, 0, width
            count += 1
        return count, 0, len(self._tail)


def _overlap(text: str, follower: str) -> int:
    """How many of the last characters of `text` begin `follower`; never all of them."""
    longest = min(len(text), len(follower)) - 1
    return next((size for size in range(longest, 0, -1) if follower.startswith(text[-size:])), 0)


def tokens_of(output: BackendOutput) -> list[TokenLogprob]:
    """An output's tokens. A missing figure stays missing and shifts no other."""
    logprobs, tops, texts = output.log_probs or (), output.top_logprobs or (), output.tokens
    return [
        TokenLogprob(
            token=(texts[place] if place < len(texts) else None) or "",
            token_id=token_id,
            logprob=_finite(logprobs[place]) if place < len(logprobs) else None,
            top=tops[place] if place < len(tops) else [],
        )
        for place, token_id in enumerate(output.token_ids)
    ]


def prompt_tokens_of(prompt: PromptEcho, told: PromptLogprobs | None) -> list[TokenLogprob]:
    """An echoed prompt's tokens; the first has no log probability, as nothing stands before it."""
    entries = []
    for place, token_id in enumerate(prompt.token_ids):
        position = told[place] if told is not None and place < len(told) else None
        own = position.get(token_id) if position else None
        top = [
            TopLogprob(entry.rank or 0, alternative, entry.decoded_token, entry.logprob)
            for alternative, entry in (position or {}).items()
        ]
        text = prompt.tokens[place] if place < len(prompt.tokens) else ""
        entries.append(TokenLogprob(text, token_id, None if own is None else _finite(own.logprob), top))
    alignment = Alignment()
    alignment.add(entries)
    return alignment.close(prompt.text, keep_rest=True)


def prompt_logprobs_json(told: PromptLogprobs | None) -> list[dict[str, Any] | None] | None:
    """vLLM's shape: per position null, or token id -> {logprob, rank, decoded_token}."""
    if told is None:
        return None
    return [
        None
        if position is None
        else {
            str(token_id): {
                "logprob": known(entry.logprob),
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for token_id, entry in position.items()
        }
        for position in told
    ]


def chat_logprobs(tokens: Sequence[TokenLogprob], alternatives: int, *, as_ids: bool) -> dict[str, Any]:
    """The chat's shape. `as_ids`: `token_id:5` in place of the token's text (vLLM)."""
    content = []
    for token in tokens:
        entry = _chat_entry(_name(token.token, token.token_id, as_ids), token.token, token.logprob, _bytes(token))
        entry["top_logprobs"] = [
            _chat_entry(_name(top.token, top.token_id, as_ids), top.token, top.logprob, top.bytes)
            for top in _best(token, alternatives)
        ]
        content.append(entry)
    return {"content": content, "refusal": None}


def _chat_entry(name: str, text: str | None, logprob: float | None, raw: list[int] | None) -> dict[str, Any]:
    if raw is None and text is not None and BROKEN not in text:
        raw = list(text.encode())
    return {"token": name, "logprob": known(logprob), "bytes": raw}


def completion_logprobs(tokens: Sequence[TokenLogprob], alternatives: int, *, as_ids: bool) -> dict[str, Any]:
    """The completions' shape: four lists side by side. A token's map holds the token itself, too."""
    names = [_name(token.token, token.token_id, as_ids) for token in tokens]
    tops: list[dict[str, float] | None] = []
    for name, token in zip(names, tokens, strict=True):
        top = {} if token.logprob is None else {name: token.logprob}
        for alternative in _best(token, alternatives):
            top.setdefault(_name(alternative.token, alternative.token_id, as_ids), known(alternative.logprob))
        tops.append(top or None)
    return {
        "tokens": names,
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": tops,
        "text_offset": [token.offset for token in tokens],
    }


def _best(token: TokenLogprob, alternatives: int) -> list[TopLogprob]:
    """The likeliest alternatives; engines may add the chosen token to them, whatever its rank."""
    return sorted(token.top, key=lambda top: -top.logprob)[:alternatives]


def _name(text: str | None, token_id: int, as_ids: bool) -> str:
    return f"token_id:{token_id}" if as_ids else text or ""


def _bytes(token: TokenLogprob) -> list[int] | None:
    """The engine's own bytes of the chosen token, where it told them among the alternatives."""
    return next((top.bytes for top in token.top if top.token_id == token.token_id), None)


def known(logprob: float | None) -> float:
    """For places that have no null."""
    finite = _finite(logprob)
    return LOWEST if finite is None else finite


def _finite(logprob: float | None) -> float | None:
    if logprob is None or math.isnan(logprob):
        return None
    return max(logprob, LOWEST)
