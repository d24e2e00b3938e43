"""How many tokens were thoughts, by each token's own text; apart from the text that is shown, which may lag behind."""

from __future__ import annotations

from collections.abc import Iterable

from text.reasoning.splitter import Splitter


class ReasoningCount:
    """Counts with a splitter of its own. The marks around thoughts are not counted where they are one token each."""

    __slots__ = ("_splitter", "tokens")

    def __init__(self, splitter: Splitter) -> None:
        self._splitter = splitter
        self.tokens = 0

    def feed(self, tokens: Iterable[str | None]) -> None:
        """Takes the texts of the tokens that were generated; None where a token has none."""
        splitter = self._splitter
        for token in tokens:
            before = splitter.thinking
            thought, _ = splitter.feed(token or "")
            if before and (splitter.thinking or thought):
                self.tokens += 1
