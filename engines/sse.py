"""Server-Sent Events, bytes in, payloads out.

Only the `data` of events matters to us, and an event's name when it has one. Lines end in LF, CR or CRLF, also cut
between two reads; comments and unknown fields are skipped; an event without data is none.
"""

from __future__ import annotations

from protocols.errors import ProtocolViolation

_FAST = b"data: "


class SseParser:
    """Feed it bytes, get the data of every event that became complete.

    `events`, when asked for, pairs each payload with its event name. Raises ProtocolViolation when one event grows
    beyond `max_event_bytes`.
    """

    __slots__ = ("_data", "_last_cr", "_max", "_name", "_rest", "_size")

    def __init__(self, max_event_bytes: int = 16 * 1024 * 1024) -> None:
        self._rest = b""
        self._max = max_event_bytes
        self._data: list[bytes] = []
        self._name = b""
        self._size = 0
        self._last_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads only; what engines' streams need."""
        if not self._rest and not self._data and b"\r" not in data and not self._last_cr and data.endswith(b"\n\n"):
            fast = _whole_events(data)
            if fast is not None:
                return fast
        return [payload for _, payload in self.feed_named(data)]

    def feed_named(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """(event name or b"", payload) of every complete event."""
        if self._last_cr and data[:1] == b"\n":
            data = data[1:]
        if data:
            self._last_cr = data[-1:] == b"\r"
        text = self._rest + data if self._rest else data
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = text.split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) + self._size > self._max:
            raise ProtocolViolation(f"an event of the reply exceeds {self._max} bytes")
        events = []
        for line in lines:
            if line:
                self._line(line)
            elif self._data:
                events.append((self._name, b"\n".join(self._data)))
                self._data, self._name, self._size = [], b"", 0
            else:
                self._name = b""
        return events

    def _line(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if field == b"data":
            self._data.append(value)
            self._size += len(value)
            if self._size > self._max:
                raise ProtocolViolation(f"an event of the reply exceeds {self._max} bytes")
        elif field == b"event":
            self._name = value

    @property
    def unfinished(self) -> bool:
        """Bytes of an event that never became complete."""
        return bool(self._rest or self._data)


def _whole_events(data: bytes) -> list[bytes] | None:
    """The usual read: one or more whole one-line `data: …` events. None when it is anything else."""
    payloads = data[:-2].split(b"\n\n")
    out = []
    for event in payloads:
        if event[:6] != _FAST or b"\n" in event:
            return None
        out.append(event[6:])
    return out
