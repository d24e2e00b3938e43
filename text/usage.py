"""Token counts of one request over all its choices. What is unknown is absent, never 0; a known 0 is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocols.outputs import BackendOutput, CompletionUsage
from text.reasoning.count import ReasoningCount


class ChoiceCount:
    """One choice's share: ids shown so far, and what its engine reported.

    `tokens` is counted by whoever renders, and so is `reasoning`, None where thoughts are not told apart.
    """

    __slots__ = ("cached_tokens", "engine", "reasoning", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.engine: CompletionUsage | None = None
        self.cached_tokens: int | None = None
        self.reasoning: ReasoningCount | None = None

    def observe(self, output: BackendOutput) -> None:
        """Takes the engine's own figures. Of the cached tokens the first figure counts: that attempt's prefill."""
        usage = output.completion_usage
        if usage is not None:
            self.engine = usage
            if self.cached_tokens is None:
                self.cached_tokens = usage.cached_tokens()

    def completion_tokens(self) -> int:
        """Ids shown; the engine's figure where it sent text without ids."""
        if self.tokens or self.engine is None:
            return self.tokens
        return self.engine.completion_tokens


class UsageCount:
    """Counts one request: prompts once, answers summed over all that were generated.

    `prompt_tokens`: each prompt's length in tokens; None where only the engine can tell. Choice `i` answers prompt
    `i // candidates`.
    """

    __slots__ = ("_candidates", "_known", "_prompt_tokens", "choices")

    def __init__(self, prompt_tokens: Sequence[int | None], candidates: int = 1) -> None:
        self._prompt_tokens = tuple(prompt_tokens)
        self._known = None if None in self._prompt_tokens else sum(self._prompt_tokens)  # type: ignore[arg-type]
        self._candidates = candidates
        self.choices = [ChoiceCount() for _ in range(len(self._prompt_tokens) * candidates)]

    def prompt_tokens(self) -> int:
        if self._known is not None:
            return self._known
        return sum(
            self._reported(place) if length is None else length for place, length in enumerate(self._prompt_tokens)
        )

    def _reported(self, place: int) -> int:
        return max((choice.engine.prompt_tokens for choice in self._of(place) if choice.engine), default=0)

    def completion_tokens(self) -> int:
        return sum([choice.completion_tokens() for choice in self.choices])

    def cached_tokens(self) -> int | None:
        """Prompt tokens that an earlier request had left cached; None unless known of every prompt.

        A prompt with several choices counts once: the choice that found the least cached tells what was there before.
        """
        if len(self.choices) == 1:
            return self.choices[0].cached_tokens
        total = 0
        for place in range(len(self._prompt_tokens)):
            known = [choice.cached_tokens for choice in self._of(place) if choice.cached_tokens is not None]
            if not known:
                return None
            total += min(known)
        return total

    def reasoning_tokens(self) -> int | None:
        """How many of the completion's tokens were thoughts; None where they are not told apart."""
        counted = [choice.reasoning.tokens for choice in self.choices if choice.reasoning is not None]
        return sum(counted) if counted else None

    def differs(self) -> bool:
        """Did an engine, of one attempt, count otherwise than we did: another prompt, or fewer ids than it sent?

        More ids than were shown are no difference: it may not have known of a stop string.
        """
        for index, choice in enumerate(self.choices):
            engine, ours = choice.engine, self._prompt_tokens[index // self._candidates]
            if engine is None:
                continue
            if ours not in (None, engine.prompt_tokens) or engine.completion_tokens < choice.tokens:
                return True
        return False

    def _of(self, place: int) -> list[ChoiceCount]:
        return self.choices[place * self._candidates : (place + 1) * self._candidates]

    def usage(self) -> dict[str, Any]:
        """OpenAI's `usage` object for what was seen until now."""
        prompt, completion, cached = self.prompt_tokens(), self.completion_tokens(), self.cached_tokens()
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        if cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        reasoning = self.reasoning_tokens()
        if reasoning is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        return usage
