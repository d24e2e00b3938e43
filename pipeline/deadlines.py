"""How long a worker may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadlines:
    """All in seconds.

    `first_token_s` plus `first_token_per_1000_s` for each 1,000 prompt tokens: from the call's sending to the first
    output (prefill: to its reply). `between_tokens_s`: from one output to the next. `prefill_tail_s`: how long a
    finished answer waits for a concurrent prefill that is still running (hard rule 1). `lease_margin_s`: a hand-off is
    given up this long before the engine's lease on it ends (hard rule 8).
    """

    first_token_s: float = 30.0
    first_token_per_1000_s: float = 1.0
    between_tokens_s: float = 60.0
    prefill_tail_s: float = 10.0
    lease_margin_s: float = 10.0

    def first_output(self, prompt_tokens: int) -> float:
        return self.first_token_s + self.first_token_per_1000_s * prompt_tokens / 1000
