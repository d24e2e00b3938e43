"""What a simulated model says: the next id as a pure function of its seed, of all ids before it, and of the KV read.

Prompt and generated ids count alike, so an answer that is cut and continued elsewhere (prompt plus what was generated)
goes on as if nothing had happened. KV that is stale, foreign or missing changes every following id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.digests import Chain, digest_of, mix
from simulator.vocabulary import Vocabulary

_END_BITS = 20
_LOWEST_LOGPROB = 3.0


@dataclass(frozen=True, slots=True)
class ReplyRule:
    """How answers look and when they end by themselves. With nothing set they are words without an end.

    `text`: the ids of one fixed answer, followed by end-of-text. `echo`: repeats the id that stands this many places
    back. `mean_length`: an end-of-text falls after so many ids on average (geometric). `every`: it falls where the
    number of ids, prompt included, is a multiple of this (answers of 1..every ids, equally likely).
    """

    text: tuple[int, ...] = ()
    echo: int = 0
    mean_length: float = 0.0
    every: int = 0


@dataclass(frozen=True, slots=True)
class Alternative:
    """An id with its pretended log probability."""

    token_id: int
    logprob: float


class Context:
    """All ids of one sequence, with what the next id depends on.

    `marks[i]` is the digest of the first `i * block_size` ids. `corruption` is 0 while every KV slot that was read
    holds what these ids would have put there.
    """

    __slots__ = ("_chain", "_matched", "_rule", "block_size", "corruption", "ids", "marks")

    def __init__(self, ids: Sequence[int], block_size: int, voice: Voice) -> None:
        self.block_size = block_size
        self.ids = list(ids)
        self.corruption = 0
        self._chain = Chain(voice.seed)
        self._rule = voice.rule
        self.marks = [self._chain.value]
        for start in range(0, len(self.ids), block_size):
            part = self.ids[start : start + block_size]
            self._chain.extend(part)
            if len(part) == block_size:
                self.marks.append(self._chain.value)
        self._matched = voice.progress(0, self.ids[-len(voice.rule.text) :]) if voice.rule.text else 0

    def append(self, token_id: int, voice: Voice) -> None:
        self.ids.append(token_id)
        self._chain.extend((token_id,))
        if len(self.ids) % self.block_size == 0:
            self.marks.append(self._chain.value)
        if self._rule.text:
            self._matched = voice.progress(self._matched, (token_id,))

    @property
    def state(self) -> int:
        """What the model has seen: the ids, and the KV as it really was."""
        return self._chain.value ^ self.corruption

    @property
    def matched(self) -> int:
        """How much of the fixed answer stands at the end of the ids."""
        return self._matched

    def content(self, block: int, tokens: int) -> int:
        """What the block at this place holds of the first `tokens` ids, when it was computed rightly."""
        start = block * self.block_size
        return digest_of(self.marks[block], self.ids[start : min(start + self.block_size, tokens)])


class Voice:
    """A model's way of speaking: vocabulary, rule and seed. Workers of one model share all three."""

    def __init__(self, vocabulary: Vocabulary, rule: ReplyRule | None = None, seed: int = 0) -> None:
        self.vocabulary = vocabulary
        self.rule = rule or ReplyRule()
        self.seed = seed
        self._fallback = _failure_table(self.rule.text)

    def draw(self, context: Context, temperature: float, seed: int | None) -> int:
        """The random bits of the next position. Greedy sampling ignores the request's seed."""
        return mix(context.state if temperature <= 0 else context.state ^ mix(seed or 0))

    def next_id(self, context: Context, draw: int, may_end: bool = True) -> int:
        """The next id. `may_end` False keeps end-of-text from being drawn, as min_tokens does."""
        rule, eos_ids = self.rule, self.vocabulary.eos_ids
        if rule.text and not context.corruption:
            if context.matched < len(rule.text):
                return rule.text[context.matched]
            return eos_ids[0] if may_end and eos_ids else self._word(draw)
        if rule.echo and not context.corruption:
            return context.ids[-min(rule.echo, len(context.ids))]
        if may_end and eos_ids and self._ends(context, draw):
            return eos_ids[0]
        return self._word(draw)

    def logprobs(self, token_id: int, draw: int, count: int) -> list[Alternative]:
        """The chosen id first, then others, `max(count, 1)` in all, each less likely than the one before."""
        count = min(count, len(self.vocabulary.words))
        logprob = -((draw >> 44) & 0xFFFF) / 65536.0 * _LOWEST_LOGPROB - 0.001
        chosen = [Alternative(token_id, logprob)]
        while len(chosen) < count:
            draw = mix(draw)
            other = self._word(draw)
            if all(other != known.token_id for known in chosen):
                logprob -= 0.125 + (draw & 0xFF) / 256.0
                chosen.append(Alternative(other, logprob))
        return chosen

    def progress(self, matched: int, ids: Sequence[int]) -> int:
        """How much of the fixed answer stands at the end after these ids, when `matched` of it stood there before."""
        text = self.rule.text
        for token_id in ids:
            while matched and (matched == len(text) or text[matched] != token_id):
                matched = self._fallback[matched - 1]
            if text[matched] == token_id:
                matched += 1
        return matched

    def _word(self, draw: int) -> int:
        words = self.vocabulary.words
        return words[(draw >> _END_BITS) % len(words)]

    def _ends(self, context: Context, draw: int) -> bool:
        if self.rule.every:
            return (len(context.ids) + 1) % self.rule.every == 0
        if self.rule.mean_length:
            return (draw & ((1 << _END_BITS) - 1)) * self.rule.mean_length < (1 << _END_BITS)
        return False


def _failure_table(text: Sequence[int]) -> list[int]:
    """For each prefix of the answer, the longest shorter prefix that ends it (Knuth-Morris-Pratt)."""
    table = [0] * len(text)
    matched = 0
    for place in range(1, len(text)):
        while matched and text[matched] != text[place]:
            matched = table[matched - 1]
        if text[matched] == text[place]:
            matched += 1
        table[place] = matched
    return table
