"""Answers that a simulated model does not draw word by word: those bound by a constraint, and calls of tools.

They follow from seed and prompt like all answers, so both legs write the same, and an answer that moved goes on.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from simulator.constraints import Constraint, is_any_object, shown_schema, text_for
from simulator.digests import Chain
from simulator.patterns import Unfollowed
from simulator.schemas import Words
from simulator.tool_use import Occasion, call_for, occasion_in
from simulator.vocabulary import Codec, Vocabulary


class Scribe:
    """Writes for one model. `calls_tools`: it calls tools that its prompt shows."""

    def __init__(self, codec: Codec, vocabulary: Vocabulary, seed: int, *, calls_tools: bool) -> None:
        self._codec = codec
        self._vocabulary = vocabulary
        self._seed = seed
        self._calls_tools = calls_tools

    def script(
        self, prompt: Sequence[int], constraint: Constraint | None, temperature: float, seed: int | None
    ) -> tuple[int, ...]:
        """The ids of the answer, end-of-text aside; none where the model says what it likes."""
        drawn = f"{self._seed}.{0 if temperature <= 0 else seed or 0}"
        if constraint is not None:
            chain = Chain(self._seed)
            chain.extend(prompt)
            rng = random.Random(f"{drawn}.{chain.value}")
            if is_any_object(constraint):
                schema = shown_schema(self._codec.decode(prompt))
                constraint = Constraint("json", schema) if schema is not None else constraint
            try:
                text = text_for(constraint, rng, self._words(rng))
            except Unfollowed:
                return ()
            if text is not None:
                return tuple(self._codec.encode(text))
        return self._call(prompt, drawn) if self._calls_tools else ()

    def _call(self, prompt: Sequence[int], drawn: str) -> tuple[int, ...]:
        occasion = occasion_in(self._codec.decode(prompt))
        if occasion is None:
            return ()
        rng = random.Random(f"{drawn}.{hashlib.blake2b(occasion.asked.encode()).hexdigest()}")
        try:
            ids = tuple(self._codec.encode(call_for(occasion, rng, self._words(rng))))
        except Unfollowed:
            return ()
        return self._rest(ids, occasion)

    def _rest(self, ids: tuple[int, ...], occasion: Occasion) -> tuple[int, ...]:
        """What is still to be said of these."""
        said = next((place for place in range(len(ids)) if self._codec.decode(ids[:place]) == occasion.said), None)
        return () if said is None else ids[said:]

    def _words(self, rng: random.Random) -> Words:
        return lambda count: self._codec.decode(rng.choices(self._vocabulary.words, k=count)).strip()
