"""How many requests are on each worker, counted by this gateway.

A reservation is bound to the counter that it raised, not to a worker's id: a worker that left and came back under the
same id starts at zero, and the releases of its former life do not touch it.
"""

from __future__ import annotations

from protocols.worker import Leg


class Load:
    """One worker's counters, in requests. Raised by `Loads.reserve`, lowered by `Reservation.release` alone."""

    __slots__ = ("decode", "prefill", "total")

    def __init__(self) -> None:
        self.prefill = 0
        self.decode = 0
        self.total = 0
        """Both legs together: what the worker has to carry."""

    def __repr__(self) -> str:
        return f"Load(prefill={self.prefill}, decode={self.decode})"


class Reservation:
    """One request's place on one worker, for one leg."""

    __slots__ = ("_load", "leg", "worker_id")

    def __init__(self, worker_id: int, leg: Leg, load: Load) -> None:
        self.worker_id = worker_id
        self.leg = leg
        self._load: Load | None = load
        if leg is Leg.PREFILL:
            load.prefill += 1
        else:
            load.decode += 1
        load.total += 1

    @property
    def held(self) -> bool:
        return self._load is not None

    def release(self) -> None:
        """Gives the place back. Every call after the first does nothing."""
        load = self._load
        if load is None:
            return
        self._load = None
        if self.leg is Leg.PREFILL:
            load.prefill -= 1
        else:
            load.decode -= 1
        load.total -= 1


class Loads:
    """The counters of all workers."""

    __slots__ = ("_by_worker",)

    def __init__(self) -> None:
        self._by_worker: dict[int, Load] = {}

    def of(self, worker_id: int) -> Load:
        """The worker's live counters; zero for a worker never seen."""
        load = self._by_worker.get(worker_id)
        if load is None:
            load = self._by_worker[worker_id] = Load()
        return load

    def reserve(self, worker_id: int, leg: Leg) -> Reservation:
        """Counts one request onto the worker. No `await` stands between choosing a worker and this call."""
        return Reservation(worker_id, leg, self.of(worker_id))

    def forget(self, worker_id: int) -> None:
        """The worker is gone; reservations still held on it release into nothing."""
        self._by_worker.pop(worker_id, None)
