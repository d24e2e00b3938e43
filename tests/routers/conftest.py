"""Candidates as short to write as they are to read."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from protocols.worker import Engine, Leg, Role, Worker
from routers.base import Candidate, Status
from routers.load import Load, Reservation

CandidateMaker = Callable[..., Candidate]


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)


@pytest.fixture
def candidate() -> CandidateMaker:
    def make(
        worker_id: int,
        *,
        in_flight: int = 0,
        status: Status = Status.READY,
        alone: bool = True,
        pair_key: tuple[object, ...] = (),
        cool_s: float | None = None,
        role: Role = Role.DECODE,
        engine: Engine = Engine.VLLM,
        **worker: Any,
    ) -> Candidate:
        load = Load()
        for _ in range(in_flight):
            Reservation(worker_id, Leg.DECODE, load)
        server = Worker(worker_id, f"http://w{worker_id}:8000", engine, role, **worker)
        return Candidate(server, load, status, alone, pair_key, cool_s)

    return make
