"""What workers are told of the trace that a request belongs to, so that an operator finds both ends of it.

The W3C headers pass as they came, where they are well-formed; the client's own request id goes as baggage. It is never
an engine's id: two requests may have the same one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

Trace = tuple[tuple[str, str], ...]

_PARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_STATE = re.compile(rb"[ -~]{1,512}")


def trace_of(named: Mapping[bytes, bytes], request_id: bytes) -> Trace:
    """Headers for workers. `named`: the client's headers; `request_id`: what the request is known by."""
    trace: list[tuple[str, str]] = []
    parent = named.get(b"traceparent")
    if parent is not None and _PARENT.fullmatch(parent):
        trace.append(("traceparent", parent.decode()))
        state = named.get(b"tracestate")
        if state is not None and _STATE.fullmatch(state):
            trace.append(("tracestate", state.decode()))
    if named.get(b"x-request-id") == request_id:
        trace.append(("baggage", f"request_id={quote(request_id, safe='')}"))
    return tuple(trace)
