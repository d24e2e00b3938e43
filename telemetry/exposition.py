"""The metrics as Prometheus reads them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """One gateway's own registry, apart from the process's default one, and its text format."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def text(self) -> bytes:
        return generate_latest(self.registry)
