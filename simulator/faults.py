"""Faults on demand: what goes wrong, and at which moment of a request.

A fault is written `kind[=value][@moment[:tokens]][*count]`, for example `reset@token:5`, `status=503@request*3`,
`slow=2@request`, `refuse@connect*0` (0: until cleared).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

KINDS = frozenset(
    {"refuse", "reset", "close", "silence", "slow", "garbage", "truncate", "status", "error", "abort", "die"}
)
"""What goes wrong.

refuse: the port is closed. reset: TCP reset. close: the connection ends in good order, too early. silence: nothing more
comes, the connection stays. slow: everything after waits `value` seconds. garbage: bytes that are no HTTP or SSE, then
the end. truncate: half of what was due, then the end. status: an HTTP status in the engine's own error shape. error: an
error event in the stream. abort: an end "abort" that nobody asked for. die: the process is gone.
"""

MOMENTS = frozenset({"connect", "request", "head", "token", "last", "done"})
"""When: as a connection comes in; when the request was read; after the reply's head; when `tokens` tokens were sent; in
place of the last chunk; after the finish, before the end mark."""

_SYNTAX = re.compile(
    r"^(?P<kind>[a-z]+)(?:=(?P<value>[0-9.]+))?(?:@(?P<moment>[a-z]+)(?::(?P<tokens>\d+))?)?(?:\*(?P<count>\d+))?$"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `value`: the status for `status`, seconds for `slow`. `count`: how often; 0 means until cleared."""

    kind: str
    moment: str = "request"
    tokens: int = 0
    count: int = 1
    value: float = 0.0

    def __str__(self) -> str:
        value = f"={self.value:g}" if self.value else ""
        tokens = f":{self.tokens}" if self.tokens else ""
        return f"{self.kind}{value}@{self.moment}{tokens}" + (f"*{self.count}" if self.count != 1 else "")

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown fault {self.kind!r}: one of {', '.join(sorted(KINDS))}")
        if self.moment not in MOMENTS:
            raise ValueError(f"unknown moment {self.moment!r}: one of {', '.join(sorted(MOMENTS))}")
        if self.moment == "connect" and self.kind not in ("refuse", "reset", "close", "silence", "die"):
            raise ValueError(f"{self.kind} cannot happen at connect")
        if self.kind == "refuse" and self.moment != "connect":
            raise ValueError("refuse can only happen at connect")

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Reads `kind[=value][@moment[:tokens]][*count]`. Raises ValueError saying what is wrong."""
        match = _SYNTAX.match(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not kind[=value][@moment[:tokens]][*count]")
        moment = match["moment"] or ("connect" if match["kind"] == "refuse" else "request")
        value = float(match["value"] or (500 if match["kind"] == "status" else 0))
        return cls(match["kind"], moment, int(match["tokens"] or 0), int(match["count"] or 1), value)


class Faults:
    """The faults a worker still has to commit; filled at start and at run time.

    `changed` is called after each change. A `refuse` stays until it is cleared, or for `value` seconds.
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._pending = list(faults)
        self.committed = 0
        self.changed: Callable[[], None] = lambda: None

    def add(self, fault: Fault | str) -> None:
        """Adds a fault, or what `Fault.parse` makes of a text."""
        self._pending.append(Fault.parse(fault) if isinstance(fault, str) else fault)
        self.changed()

    def remove(self, fault: Fault) -> None:
        self._pending = [pending for pending in self._pending if pending is not fault]
        self.changed()

    def clear(self) -> None:
        self._pending.clear()
        self.changed()

    @property
    def pending(self) -> tuple[Fault, ...]:
        return tuple(self._pending)

    @property
    def refusal(self) -> Fault | None:
        """The fault that keeps the port closed."""
        return next((fault for fault in self._pending if fault.kind == "refuse"), None)

    def at_connect(self) -> Fault | None:
        """The fault that meets a new connection."""
        return self._claim(lambda fault: fault.moment == "connect" and fault.kind != "refuse")

    def for_request(self) -> Fault | None:
        """The fault that one generation request will meet, at whatever moment."""
        return self._claim(lambda fault: fault.moment != "connect")

    def _claim(self, fits: Callable[[Fault], bool]) -> Fault | None:
        for place, fault in enumerate(self._pending):
            if fits(fault):
                if fault.count == 1:
                    del self._pending[place]
                elif fault.count > 1:
                    self._pending[place] = replace(fault, count=fault.count - 1)
                self.committed += 1
                return fault
        return None
