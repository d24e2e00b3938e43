"""One model's workers, and what follows from them: candidates by leg, who can pair with whom, can the model serve.

Everything a request asks for is computed when a worker changes, and handed out unchanged until the next change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from protocols.worker import Leg, Role
from routers.base import Candidate, Status
from workers.member import Member

_FREE = frozenset((Status.READY, Status.SUSPECT))
_UP = frozenset((Status.READY, Status.SUSPECT, Status.BUSY))
_PAIRED = {Leg.PREFILL: Role.PREFILL, Leg.DECODE: Role.DECODE}

PairKeys = frozenset[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class RoleCount:
    """Workers of one role: those that are up, and all."""

    up: int
    total: int


@dataclass(frozen=True, slots=True)
class Servability:
    """Can a model answer requests now? `reason` says why not, and is empty when it can."""

    ok: bool
    reason: str
    roles: dict[Role, RoleCount] = field(default_factory=dict)
    """Only roles that some worker has."""


class Pool:
    """The workers of one model.

    `prefill_policy`: "local", "strict", or None for the engine's own. `alone` tells whether a worker of a pair may
    answer without its peer; `engine_policy` gives the policy of a worker's engine.
    """

    __slots__ = (
        "_alone",
        "_context_length",
        "_decode",
        "_disaggregated",
        "_engine_policy",
        "_keys",
        "_prefill",
        "_servable",
        "_stale",
        "members",
        "prefill_policy",
    )

    def __init__(self, alone: Callable[[Member], bool], engine_policy: Callable[[Member], str]) -> None:
        self.members: dict[int, Member] = {}
        self.prefill_policy: str | None = None
        self._alone = alone
        self._engine_policy = engine_policy
        self._prefill: tuple[Candidate, ...] = ()
        self._decode: tuple[Candidate, ...] = ()
        self._disaggregated = False
        self._servable: Servability | None = None
        self._context_length: int | None = None
        self._keys: dict[Leg, PairKeys] = {}
        self._stale = True

    def changed(self) -> None:
        """A member came, went, or changed its standing."""
        self._stale = True

    def candidates(self, leg: Leg, now: float) -> tuple[Candidate, ...]:
        """Prefill workers, or decode and aggregated ones, whatever their standing. The same tuple until a change."""
        self._refresh(now)
        return self._prefill if leg is Leg.PREFILL else self._decode

    def pair_keys(self, leg: Leg, excluded: frozenset[int], now: float) -> PairKeys:
        """The pair keys of this leg's workers that can take a request now; of all of them when none can.

        In that case the leg's own choice fails, and its error says what is wrong.
        """
        candidates = self.candidates(leg, now)
        return _free_keys(candidates, leg, excluded) if excluded else self._keys[leg]

    def context_length(self, now: float) -> int | None:
        """The most tokens per request that all workers hold, prompt and answer together; None when none has told."""
        self._refresh(now)
        return self._context_length

    def policy(self) -> str:
        """What happens when the prefill pool is gone: "local" or "strict"."""
        return self.prefill_policy or self.engine_policy()

    def engine_policy(self) -> str:
        decode = (member for member in self.members.values() if member.worker.role is Role.DECODE)
        member = next(decode, None)
        return self._engine_policy(member) if member is not None else "strict"

    def disaggregated(self, now: float) -> bool:
        """Are there prefill or decode workers, up or not?"""
        self._refresh(now)
        return self._disaggregated

    def has_aggregated(self, now: float) -> bool:
        """Is an aggregated worker up?"""
        return any(c.worker.role is Role.AGGREGATED and c.status in _UP for c in self.candidates(Leg.DECODE, now))

    def servable(self, now: float) -> Servability:
        self._refresh(now)
        if self._servable is None:
            candidates = (*self._prefill, *self._decode)
            reason = self._obstacle(candidates)
            self._servable = Servability(not reason, reason, _counts(candidates))
        return self._servable

    def _obstacle(self, candidates: Iterable[Candidate]) -> str:
        """Why the model cannot serve; empty when it can."""
        by_role: dict[Role, list[Candidate]] = {role: [] for role in Role}
        for candidate in candidates:
            by_role[candidate.worker.role].append(candidate)
        up = {role: [c for c in found if c.status in _UP] for role, found in by_role.items()}
        if up[Role.AGGREGATED]:
            return ""
        if not any(by_role.values()):
            return "no workers"
        if not self._disaggregated:
            return f"no ready worker ({_standing(by_role[Role.AGGREGATED])})"
        return self._obstacle_of_pairs(by_role, up)

    def _obstacle_of_pairs(self, by_role: dict[Role, list[Candidate]], up: dict[Role, list[Candidate]]) -> str:
        if not up[Role.DECODE]:
            return f"no ready decode worker ({_standing(by_role[Role.DECODE])})"
        if self.policy() == "local" and any(c.alone for c in up[Role.DECODE]):
            return ""
        if not up[Role.PREFILL]:
            return f"no ready prefill worker ({_standing(by_role[Role.PREFILL])}), prefill policy {self.policy()}"
        if {c.pair_key for c in up[Role.PREFILL]}.isdisjoint(c.pair_key for c in up[Role.DECODE]):
            return "no prefill worker agrees with a decode worker in engine, version, connector, page size and KV dtype"
        return ""

    def _refresh(self, now: float) -> None:
        if not self._stale:
            return
        members = self.members.values()
        found = [member.candidate(now, alone=self._alone(member)) for member in members]
        self._prefill = tuple(c for c in found if c.worker.role is Role.PREFILL)
        self._decode = tuple(c for c in found if c.worker.role is not Role.PREFILL)
        self._keys = {
            Leg.PREFILL: _free_keys(self._prefill, Leg.PREFILL),
            Leg.DECODE: _free_keys(self._decode, Leg.DECODE),
        }
        self._disaggregated = any(c.worker.role is not Role.AGGREGATED for c in found)
        self._servable = None
        known = (c.worker.context_length or c.worker.traits.context_length for c in found)
        self._context_length = min((length for length in known if length), default=None)
        self._stale = False


def _free_keys(candidates: Iterable[Candidate], leg: Leg, excluded: frozenset[int] = frozenset()) -> PairKeys:
    paired = [c for c in candidates if c.worker.role is _PAIRED[leg]]
    free = [c for c in paired if c.status in _FREE and c.worker.id not in excluded]
    return frozenset(c.pair_key for c in free or paired)


def _counts(candidates: Iterable[Candidate]) -> dict[Role, RoleCount]:
    total = Counter(c.worker.role for c in candidates)
    up = Counter(c.worker.role for c in candidates if c.status in _UP)
    return {role: RoleCount(up[role], total[role]) for role in Role if total[role]}


def _standing(candidates: list[Candidate]) -> str:
    """How many are in which status: "2 down, 1 joining"."""
    counts = Counter(c.status.value for c in candidates)
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "none registered"
