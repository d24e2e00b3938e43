"""Which workers may serve a leg at all. Order matters only for who is named when nobody is left."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from protocols.errors import GatewayError, InvalidRequest, NoAvailableWorkers, Overloaded, UnsupportedParameter
from protocols.worker import Leg, Role
from routers.base import Candidate, Filter, Query, Status

WORKER_HEADER = {Leg.PREFILL: "x-tandem-prefill-worker", Leg.DECODE: "x-tandem-worker"}
DP_RANK_HEADER = {Leg.PREFILL: "x-tandem-prefill-dp-rank", Leg.DECODE: "x-tandem-dp-rank"}


class AllowedWorkers:
    """Only the workers that the request's hints allow, where they say so."""

    name: ClassVar[str] = "allowed"

    def __call__(self, candidates: Sequence[Candidate], query: Query, /) -> Sequence[Candidate]:
        hints = query.hints
        if hints is None or hints.allowed_worker_ids is None:
            return candidates
        allowed = hints.allowed_worker_ids
        return _kept(candidates, [c for c in candidates if c.worker.id in allowed])

    def refusal(self, candidates: Sequence[Candidate], query: Query, /) -> GatewayError:
        return _nobody(self.name, query, "none of the allowed ones serves this leg")


class PinnedWorker:
    """The one worker that the request names for this leg. `required`: a request that names none is refused."""

    name: ClassVar[str] = "pinned"
    __slots__ = ("_required",)

    def __init__(self, *, required: bool = False) -> None:
        self._required = required

    def __call__(self, candidates: Sequence[Candidate], query: Query, /) -> Sequence[Candidate]:
        pin = query.pin
        if pin is None:
            return () if self._required else candidates
        return _kept(candidates, [c for c in candidates if c.worker.id == pin])

    def refusal(self, candidates: Sequence[Candidate], query: Query, /) -> GatewayError:
        header = WORKER_HEADER[query.leg]
        if query.pin is None:
            return InvalidRequest(f"router mode direct needs the header {header}", param=header)
        return InvalidRequest(
            f"{header}: worker {query.pin} is unknown, or does not serve the {query.leg.value} leg of this model",
            param=header,
        )


class DpRank:
    """Workers that have the data-parallel rank which the request names."""

    name: ClassVar[str] = "dp-rank"

    def __call__(self, candidates: Sequence[Candidate], query: Query, /) -> Sequence[Candidate]:
        if query.hints is None:
            return candidates
        rank = query.dp_rank
        if rank is None:
            return candidates
        return _kept(candidates, [c for c in candidates if rank < c.worker.ranks])

    def refusal(self, candidates: Sequence[Candidate], query: Query, /) -> GatewayError:
        header = DP_RANK_HEADER[query.leg]
        most = max(c.worker.ranks for c in candidates)
        return InvalidRequest(f"{header}: rank {query.dp_rank} is out of range, must be 0..{most - 1}", param=header)


class RequiredTaints:
    """Workers that carry every taint which the request requires."""

    name: ClassVar[str] = "taints"

    def __call__(self, candidates: Sequence[Candidate], query: Query, /) -> Sequence[Candidate]:
        hints = query.hints
        if hints is None or hints.routing_constraints is None:
            return candidates
        required = hints.routing_constraints.required_taints
        if not required:
            return candidates
        return _kept(candidates, [c for c in candidates if required <= c.worker.taints])

    def refusal(self, candidates: Sequence[Candidate], query: Query, /) -> GatewayError:
        return _misfit(self.name, query, "has all required taints")


class Capable:
    """Workers that can honour every parameter of the request."""

    name: ClassVar[str] = "capable"

    def __call__(self, candidates: Sequence[Candidate], query: Query, /) -> Sequence[Candidate]:
        incapable = query.incapable
        if not incapable:
            return candidates
        return _kept(candidates, [c for c in candidates if c.worker.id not in incapable])

    def refusal(self, candidates: Sequence[Candidate], query: Query, /) -> GatewayError:
        parameter = (query.incapable or {})[candidates[0].worker.id]
        engines = dict.fromkeys(c.worker.engine.value for c in candidates)
        return UnsupportedParameter(
            f"'{parameter}' is not supported by this model's engine ({', '.join(engines)})", param=parameter
        )


class PartOfAPair:
    """Workers that answer alone, or workers of pairs, as the query asks."""

    name: ClassVar[str] = "part"

    def __call__(self, candidates: Sequence[Candidate], query: Query, /) -> Sequence[Candidate]:
        alone = query.alone
        if alone is None:
            return candidates
        if alone:
            return _kept(candidates, [c for c in candidates if c.alone])
        return _kept(candidates, [c for c in candidates if c.worker.role is not Role.AGGREGATED])

    def refusal(self, candidates: Sequence[Candidate], query: Query, /) -> GatewayError:
        return _misfit(self.name, query, "answers without a peer" if query.alone else "works in a pair")


class SamePair:
    """Workers that can hand KV over to, or take it from, one of the peers in question."""

    name: ClassVar[str] = "pair"

    def __call__(self, candidates: Sequence[Candidate], query: Query, /) -> Sequence[Candidate]:
        keys = query.pair_keys
        if keys is None:
            return candidates
        if len(keys) == 1:
            # The usual case: comparing two tuples that share their members is ten times as fast as hashing one.
            (key,) = keys
            return _kept(candidates, [c for c in candidates if c.pair_key == key])
        return _kept(candidates, [c for c in candidates if c.pair_key in keys])

    def refusal(self, candidates: Sequence[Candidate], query: Query, /) -> GatewayError:
        return _misfit(self.name, query, "agrees with a peer in engine, version, connector, page size and KV dtype")


class NotFailed:
    """Workers that have not failed this very request."""

    name: ClassVar[str] = "excluded"

    def __call__(self, candidates: Sequence[Candidate], query: Query, /) -> Sequence[Candidate]:
        excluded = query.excluded
        if not excluded:
            return candidates
        return _kept(candidates, [c for c in candidates if c.worker.id not in excluded])

    def refusal(self, candidates: Sequence[Candidate], query: Query, /) -> GatewayError:
        return _nobody(self.name, query, "every eligible worker was tried and failed")


_READY, _BUSY, _SUSPECT = Status.READY, Status.BUSY, Status.SUSPECT
_UP = (_READY, _BUSY, _SUSPECT)


class Ready:
    """Workers that are up: identified, and not cooling down after a broken connection."""

    name: ClassVar[str] = "ready"

    def __call__(self, candidates: Sequence[Candidate], query: Query, /) -> Sequence[Candidate]:
        if _all_ready(candidates):
            return candidates
        return _kept(candidates, [c for c in candidates if c.status in _UP])

    def refusal(self, candidates: Sequence[Candidate], query: Query, /) -> GatewayError:
        counts = Counter(c.status.value for c in candidates)
        return _nobody(self.name, query, ", ".join(f"{count} {status}" for status, count in sorted(counts.items())))


class NotBusy:
    """Workers that did not refuse work just now as overloaded."""

    name: ClassVar[str] = "overloaded"

    def __call__(self, candidates: Sequence[Candidate], query: Query, /) -> Sequence[Candidate]:
        if _all_ready(candidates):
            return candidates
        return _kept(candidates, [c for c in candidates if c.status is not _BUSY])

    def refusal(self, candidates: Sequence[Candidate], query: Query, /) -> GatewayError:
        soonest = min((c.cool_s for c in candidates if c.cool_s is not None), default=1.0)
        return Overloaded(
            f"all {len(candidates)} eligible {query.leg.value} workers are overloaded",
            retry_after=float(max(1, math.ceil(soonest))),
        )


class Unsuspected:
    """Workers that do not answer badly; all of them when no other is left."""

    name: ClassVar[str] = "suspect"

    def __call__(self, candidates: Sequence[Candidate], query: Query, /) -> Sequence[Candidate]:
        if _all_ready(candidates):
            return candidates
        better = [c for c in candidates if c.status is not _SUSPECT]
        return _kept(candidates, better) if better else candidates

    def refusal(self, candidates: Sequence[Candidate], query: Query, /) -> GatewayError:
        return _nobody(self.name, query, "all are suspect")


def standard_filters(*, pin_required: bool = False) -> tuple[Filter, ...]:
    """The filters of every mode. What the client got wrong comes first, what may pass by itself last."""
    return (
        AllowedWorkers(),
        PinnedWorker(required=pin_required),
        DpRank(),
        RequiredTaints(),
        Capable(),
        PartOfAPair(),
        SamePair(),
        NotFailed(),
        Ready(),
        NotBusy(),
        Unsuspected(),
    )


def _all_ready(candidates: Sequence[Candidate]) -> bool:
    for candidate in candidates:  # noqa: SIM110  (a generator costs three times as much, three times a request)
        if candidate.status is not _READY:
            return False
    return True


def _kept(candidates: Sequence[Candidate], left: list[Candidate]) -> Sequence[Candidate]:
    return candidates if len(left) == len(candidates) else left


def _nobody(filter_name: str, query: Query, why: str) -> NoAvailableWorkers:
    return NoAvailableWorkers(f"no {query.leg.value} worker is available ({filter_name}: {why})")


def _misfit(filter_name: str, query: Query, what: str) -> GatewayError:
    """Nobody is fit by nature. Where the request itself named the worker, the request is at fault."""
    if query.pin is None:
        return _nobody(filter_name, query, f"none {what}")
    header = WORKER_HEADER[query.leg]
    return InvalidRequest(f"{header}: worker {query.pin} is not one that {what}", param=header)
