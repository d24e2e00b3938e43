"""Which clients may ask: those that send one of the configured keys, where there are any."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence

from app.http_turn import Header
from protocols.errors import Unauthorized

CHALLENGE: Header = (b"www-authenticate", b"Bearer")
"""The header of a 401: how a key is to be sent."""
_OPEN = frozenset({"/live", "/health", "/metrics"})
"""What load balancers and Prometheus ask for, without a key."""


class Keys:
    """The keys of `server.api_keys`, at least one."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def refusal(self, path: str, headers: Iterable[Header]) -> Unauthorized | None:
        """Why this request may not be answered; None where it may. How long it takes tells nothing of a key."""
        if path.rstrip("/") in _OPEN:
            return None
        sent = next((value for name, value in headers if name == b"authorization"), None)
        if sent is None:
            return Unauthorized("No API key was sent. Send one as the header 'Authorization: Bearer KEY'.")
        scheme, _, key = sent.partition(b" ")
        right = [hmac.compare_digest(key.strip(), each) for each in self._keys]
        if scheme.lower() != b"bearer" or not any(right):
            return Unauthorized("The API key that was sent is not one of this gateway's.")
        return None
