"""Properties are checked without a time limit: a busy machine is no counterexample."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("text", deadline=None)
settings.load_profile("text")
