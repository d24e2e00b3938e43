"""What a response's headers say of its request: the id it is known by, and the time it took."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

PROCESSING_MS = b"openai-processing-ms"
"""The response header that says how long the gateway took, up to the head, in whole milliseconds."""
MAX_LENGTH = 128
_ALLOWED = re.compile(rb"[!-~](?:[ -~]{0,%d}[!-~])?" % (MAX_LENGTH - 2))


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The client's `x-request-id` where it is short and of printable ASCII, else a fresh one."""
    for name, value in headers:
        if name == b"x-request-id" and _ALLOWED.fullmatch(value):
            return value
    return b"req-%024x" % random.getrandbits(96)
