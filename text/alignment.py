"""Which tokens belong to the text that is out: a token's report is told together with its text.

Engines' ids come before their text: the decoder withholds half characters and half stop strings. So a token waits here
until its text is out. A token that is part of a character has no text of its own (it reads U+FFFD): its bytes tell
where it belongs, and where they are not known, the next token that can be found in the text.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from protocols.outputs import TopLogprob

BROKEN = "\ufffd"
Step = tuple[int, int, int]
"""How many tokens go next, after how many characters that are nobody's, and over how many."""


@dataclass(slots=True)
class TokenLogprob:
    """One token: its own text, log probability (None: unknown), alternatives, and where its text starts.

    `offset` counts characters from the start of the told text, echoed prompt included.
    """

    token: str
    token_id: int
    logprob: float | None
    top: list[TopLogprob] = field(default_factory=list)
    offset: int = 0


class Alignment:
    """Holds tokens until their text is out.

    `offset`: how many characters stand before the first token's. `bytes_of`: a token's own bytes by its id.
    """

    __slots__ = ("_bytes_of", "_offset", "_tail", "_waiting")

    def __init__(self, offset: int = 0, bytes_of: Callable[[int], bytes] | None = None) -> None:
        self._offset = offset
        self._bytes_of = bytes_of
        self._tail = ""
        self._waiting: deque[TokenLogprob] = deque()

    def add(self, tokens: Iterable[TokenLogprob]) -> None:
        self._waiting.extend(tokens)

    def take(self, text: str) -> list[TokenLogprob]:
        """The tokens whose text is out when `text` follows what was sent before."""
        return self._released(text, final=False)

    def close(self, text: str, *, keep_rest: bool) -> list[TokenLogprob]:
        """The same at the end of the answer. `keep_rest`: tokens that never had a text are told too."""
        released = self._released(text, final=True)
        if keep_rest:
            for token in self._waiting:
                token.offset = self._offset
            released += self._waiting
        self._waiting.clear()
        return released

    def _released(self, text: str, *, final: bool) -> list[TokenLogprob]:
        self._tail += text
        released: list[TokenLogprob] = []
        while self._waiting and self._tail:
            step = self._step(final)
            if step is None:
                break
            count, gap, width = step
            for place in range(count):
                token = self._waiting.popleft()
                token.offset = self._offset + gap + place * width // count
                released.append(token)
            self._offset += gap + width
            self._tail = self._tail[gap + width :]
        if not self._waiting:
            self._offset += len(self._tail)
            self._tail = ""
        return released

    def _step(self, final: bool) -> Step | None:
        """The next step; None: its text is still to come."""
        tail, token = self._tail, self._waiting[0].token
        if BROKEN in token:
            return self._broken_run(final)
        if not token:
            return 1, 0, 0
        if tail.startswith(token):
            return 1, 0, len(token)
        bare = token.lstrip(" ")
        if bare and tail.startswith(bare):
            return 1, 0, len(bare)
        if token.startswith(tail):
            return (1, 0, len(tail)) if final else None
        gap = tail.find(token)
        # A token whose text is nowhere was not shown: a special one.
        return (1, 0, 0) if gap < 0 else (1, gap, len(token))

    def _broken_run(self, final: bool) -> Step | None:
        """The fewest tokens that make whole characters."""
        if self._bytes_of is None:
            return self._guessed_run()
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text, count = "", 0
        for token in self._waiting:
            text += decoder.decode(self._bytes_of(token.token_id))
            count += 1
            if not decoder.getstate()[0]:
                break
        else:
            if not final:
                return None
            text += decoder.decode(b"", True)
        if self._tail.startswith(text):
            return count, 0, len(text)
        if text.startswith(self._tail):
            return self._cut_run(self._bytes_of) if final else None
        return self._guessed_run()

    def _cut_run(self, bytes_of: Callable[[int], bytes]) -> Step:
        """The tokens that reach the end of the text, which a stop cut in the midst of them."""
        size, count = len(self._tail.encode()), 0
        for token in self._waiting:
            size -= len(bytes_of(token.token_id))
            count += 1
            if size <= 0:
                break
        return count, 0, len(self._tail)

    def _guessed_run(self) -> Step:
        """Up to the next token that has a text of its own, which is looked for in what is out."""
        count = 0
        for token in self._waiting:
            follower = token.token
            if follower and BROKEN not in follower:
                found = self._tail.find(follower, 1)
                width = found if found > 0 else len(self._tail) - _overlap(self._tail, follower)
                return count, 0, width
            count += 1
        return count, 0, len(self._tail)


def _overlap(text: str, follower: str) -> int:
    """How many of the last characters of `text` begin `follower`; never all of them."""
    longest = min(len(text), len(follower)) - 1
    return next((size for size in range(longest, 0, -1) if follower.startswith(text[-size:])), 0)
