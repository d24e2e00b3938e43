"""Taking one of the eligible. A picker that counts belongs to one profile, and so to one leg of one model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

from routers.base import Candidate, Query

_MOST_TURNS = 4096


class MaxScore:
    """The highest score; equal ones are drawn among, never taken by order. Without scores all are equal."""

    name: ClassVar[str] = "max-score"
    __slots__ = ("_random",)

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random

    def __call__(self, candidates: Sequence[Candidate], scores: Sequence[float] | None, query: Query, /) -> Candidate:
        if scores is None:
            return candidates[int(self._random() * len(candidates))]
        best = max(scores)
        tied = [candidate for candidate, score in zip(candidates, scores, strict=True) if score == best]
        return tied[0] if len(tied) == 1 else tied[int(self._random() * len(tied))]


class RoundRobin:
    """Whoever has waited longest for a turn.

    Not a counter modulo the number of candidates: when the candidates differ from request to request (two groups that
    pair only within themselves, say), such a counter falls into step with the requests and always meets the same few.
    """

    name: ClassVar[str] = "round-robin"
    __slots__ = ("_now", "_turns")

    def __init__(self) -> None:
        self._turns: dict[int, int] = {}
        self._now = 0

    def __call__(self, candidates: Sequence[Candidate], scores: Sequence[float] | None, query: Query, /) -> Candidate:
        turns = self._turns
        oldest = self._now + 1
        picked = candidates[0]
        for candidate in candidates:
            turn = turns.get(candidate.worker.id, 0)
            if turn < oldest:
                oldest, picked = turn, candidate
        self._now += 1
        turns[picked.worker.id] = self._now
        if len(turns) > _MOST_TURNS:
            self._forget_the_oldest()
        return picked

    def _forget_the_oldest(self) -> None:
        """Workers come and go under new ids; those unseen for longest are most likely gone."""
        newest = sorted(self._turns.items(), key=lambda item: item[1])[_MOST_TURNS // 2 :]
        self._turns = dict(newest)


class Random:
    """Any, with equal chance."""

    name: ClassVar[str] = "random"
    __slots__ = ("_random",)

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random

    def __call__(self, candidates: Sequence[Candidate], scores: Sequence[float] | None, query: Query, /) -> Candidate:
        return candidates[int(self._random() * len(candidates))]


class PowerOfTwo:
    """Of two different ones drawn at random, the one with fewer requests in flight; the first drawn if equal."""

    name: ClassVar[str] = "power-of-two"
    __slots__ = ("_random",)

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random

    def __call__(self, candidates: Sequence[Candidate], scores: Sequence[float] | None, query: Query, /) -> Candidate:
        count = len(candidates)
        if count == 1:
            return candidates[0]
        one = int(self._random() * count)
        other = int(self._random() * (count - 1))
        first = candidates[one]
        second = candidates[other + (other >= one)]
        return second if second.load.total < first.load.total else first


class Pinned:
    """The worker that the pin has left."""

    name: ClassVar[str] = "direct"

    def __call__(self, candidates: Sequence[Candidate], scores: Sequence[float] | None, query: Query, /) -> Candidate:
        return candidates[0]
