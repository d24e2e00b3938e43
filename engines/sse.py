"""Server-Sent Events, bytes in, payloads out.

Only the `data` of events matters to us, and an event's name when it has one. Lines end in LF, CR or CRLF, also cut
between two reads; comments and unknown fields are skipped; an event without data is none.
"""

from __future__ import annotations

from protocols.errors import ProtocolViolation

_START, _BETWEEN = b"data: ", b"\n\ndata: "


class SseParser:
    """Feed it bytes, get the data of every event that became complete.

    Raises ProtocolViolation when one event grows beyond `max_event_bytes`, but never with events in hand: those are
    returned, and the next call raises.
    """

    __slots__ = ("_data", "_data_size", "_last_cr", "_max", "_name", "_overflow", "_rest", "_rest_size")

    def __init__(self, max_event_bytes: int = 16 * 1024 * 1024) -> None:
        self._max = max_event_bytes
        self._rest: list[bytes] = []
        """The pieces of a line that has not ended yet."""
        self._rest_size = 0
        self._data: list[bytes] = []
        self._data_size = 0
        self._name = b""
        self._last_cr = False
        self._overflow = False

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads only; what engines' streams need."""
        fresh = not (self._rest or self._data or self._last_cr or self._overflow)
        if fresh and data[:6] == _START and data[-2:] == b"\n\n" and len(data) <= self._max and b"\r" not in data:
            # The usual read: one or more whole events of one `data` line each, if there are no other line ends.
            payloads = data[6:-2].split(_BETWEEN)
            if data.count(b"\n") == 2 * len(payloads):
                return payloads
        return [payload for _, payload in self.feed_named(data)]

    def feed_named(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """(event name or b"", payload) of every complete event."""
        events: list[tuple[bytes, bytes]] = []
        if not self._overflow:
            self._take(data, events)
            self._overflow = self._data_size + self._rest_size > self._max
        if self._overflow and not events:
            raise ProtocolViolation(f"an event of the reply exceeds {self._max} bytes")
        return events

    def _take(self, data: bytes, events: list[tuple[bytes, bytes]]) -> None:
        for line in self._lines(data):
            if line:
                self._line(line)
                if self._data_size > self._max:
                    return
                continue
            if self._data:
                events.append((self._name, b"\n".join(self._data)))
                self._data, self._data_size = [], 0
            self._name = b""

    def _lines(self, data: bytes) -> list[bytes]:
        """The lines that ended in `data`."""
        if self._last_cr and data[:1] == b"\n":
            data = data[1:]
            self._last_cr = False
        if data:
            self._last_cr = data[-1:] == b"\r"
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        self._rest.append(lines[0])
        if len(lines) > 1:
            lines[0] = b"".join(self._rest)
            self._rest, self._rest_size = [], 0
            self._rest.append(lines[-1])
        self._rest_size += len(self._rest[-1])
        if not self._rest_size:
            self._rest = []
        return lines[:-1]

    def _line(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if field == b"data":
            self._data.append(value)
            self._data_size += len(value)
        elif field == b"event":
            self._name = value

    @property
    def unfinished(self) -> bool:
        """Bytes of an event that never became complete."""
        return bool(self._rest or self._data)
