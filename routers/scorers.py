"""How good each candidate is, from 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from routers.base import Candidate, Query


class InFlight:
    """1 for the worker with the fewest requests of this gateway, 0 for the one with the most, linear between."""

    name: ClassVar[str] = "in-flight"

    def __call__(self, candidates: Sequence[Candidate], query: Query, /) -> Sequence[float]:
        counts = [candidate.load.total for candidate in candidates]
        most = max(counts)
        spread = most - min(counts)
        if not spread:
            return [1.0] * len(counts)
        return [(most - count) / spread for count in counts]
