"""Router modes: rows in a table, each a profile. What is not in the table is refused at start."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping

from protocols.worker import Leg
from routers.base import Profile
from routers.filters import standard_filters
from routers.pickers import MaxScore, Pinned, PowerOfTwo, Random, RoundRobin
from routers.scorers import InFlight


class RouterMode(enum.Enum):
    """How workers are chosen. Names are Dynamo's (1.6); `RouterMode("round_robin")` is read as well."""

    ROUND_ROBIN = "round-robin"
    RANDOM = "random"
    POWER_OF_TWO = "power-of-two"
    LEAST_LOADED = "least-loaded"
    DEVICE_AWARE_WEIGHTED = "device-aware-weighted"
    DIRECT = "direct"
    KV = "kv"
    LATENCY = "latency"

    @classmethod
    def _missing_(cls, value: object) -> RouterMode | None:
        if not isinstance(value, str):
            return None
        name = value.strip().lower().replace("_", "-").removesuffix("-choices")
        return next((mode for mode in cls if mode.value == name), None)


ProfileBuilder = Callable[[str, random.Random], Profile]


def _round_robin(name: str, rng: random.Random) -> Profile:
    return Profile(name, standard_filters(), RoundRobin())


def _random(name: str, rng: random.Random) -> Profile:
    return Profile(name, standard_filters(), Random(rng))


def _power_of_two(name: str, rng: random.Random) -> Profile:
    return Profile(name, standard_filters(), PowerOfTwo(rng))


def _least_loaded(name: str, rng: random.Random) -> Profile:
    return Profile(name, standard_filters(), MaxScore(rng), scorers=((InFlight(), 1.0),))


def _direct(name: str, rng: random.Random) -> Profile:
    return Profile(name, standard_filters(pin_required=True), Pinned())


_PROFILES: Mapping[RouterMode, ProfileBuilder] = {
    RouterMode.ROUND_ROBIN: _round_robin,
    RouterMode.RANDOM: _random,
    RouterMode.POWER_OF_TWO: _power_of_two,
    RouterMode.LEAST_LOADED: _least_loaded,
    RouterMode.DIRECT: _direct,
}


def available_modes() -> tuple[RouterMode, ...]:
    """The modes that this build can route by."""
    return tuple(_PROFILES)


def build_profile(mode: RouterMode, model: str, leg: Leg, rng: random.Random) -> Profile:
    """A fresh profile for one leg of one model, with counters of its own, named `model/leg/mode`.

    Raises ValueError, naming the available modes, for a mode that is not in the table.
    """
    builder = _PROFILES.get(mode)
    if builder is None:
        available = ", ".join(mode.value for mode in _PROFILES)
        raise ValueError(f"router mode {mode.value} is not available; available are: {available}")
    return builder(f"{model}/{leg.value}/{mode.value}", rng)


_LORA_AWARE = frozenset((RouterMode.KV, RouterMode.RANDOM, RouterMode.ROUND_ROBIN))


def validate_router_mode_for_lora(mode: RouterMode, lora_enabled: bool, session_affinity_enabled: bool) -> None:
    """Refuses, at start and before any wait for workers, a mode that would send adapters' requests astray.

    Adapters are routed by the modes kv, random and round-robin only; with session affinity by kv only.
    Raises ValueError.
    """
    if not lora_enabled:
        return
    if mode not in _LORA_AWARE:
        raise ValueError(
            f"LoRA serving is not supported with router mode {mode.value}; "
            "use kv, random or round-robin, or switch LoRA serving off"
        )
    if session_affinity_enabled and mode is not RouterMode.KV:
        raise ValueError(f"session affinity is unsupported with LoRA serving and router mode {mode.value}; use kv")
