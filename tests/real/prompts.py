"""What is asked, and what one engine alone answers to it: greedy, in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.real.fleets import Fleet
from tests.real.processes import ENGINE_MODEL, EngineServer

STORY = (
    "The lighthouse keeper kept a diary. On the first day he wrote of the sea, of the ships that passed far out, and "
    "of the gulls. On the second day there was a storm; he trimmed the lamp, and he counted the waves until he slept. "
    "On the third day a boat came with bread, letters, and a small grey cat, whom he called Captain. "
)
SHORT = "The capital of France is"
LONG = STORY * 2 + "On the fourth day"
CHAT: list[Any] = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France? Answer in one sentence."},
]
TOKENS = 24
"""Asked of each prompt."""
UNKNOWN_ID = 999_999
CONTEXT = 2048
"""Tokens that the engines here hold."""


@dataclass(frozen=True)
class Known:
    """Answers of one engine alone. `prompt_logprobs`: of LONG's own tokens, in their order, the first None."""

    short: str
    long: str
    chat: str
    long_tokens: int
    prompt_logprobs: list[float | None]


def known_of(server: EngineServer) -> Known:
    """Asks a server that runs alone, past any gateway."""

    def completed(prompt: str) -> Any:
        return server.sdk.completions.create(model=ENGINE_MODEL, prompt=prompt, max_tokens=TOKENS, temperature=0)

    long = completed(LONG)
    chat = server.sdk.chat.completions.create(model=ENGINE_MODEL, messages=CHAT, max_tokens=TOKENS, temperature=0)
    return Known(
        short=completed(SHORT).choices[0].text,
        long=long.choices[0].text,
        chat=chat.choices[0].message.content or "",
        long_tokens=long.usage.prompt_tokens,
        prompt_logprobs=_prompt_logprobs(server),
    )


def _prompt_logprobs(server: EngineServer) -> list[float | None]:
    if server.engine == "sglang":
        asked = {"text": LONG, "sampling_params": {"max_new_tokens": 1}, "return_logprob": True, "logprob_start_len": 0}
        return [told[0] for told in server.ask("/generate", asked)["meta_info"]["input_token_logprobs"]]
    body = {"model": ENGINE_MODEL, "prompt": LONG, "max_tokens": 1, "prompt_logprobs": 0}
    choice = server.ask("/v1/completions", body)["choices"][0]
    return [None if told is None else next(iter(told.values()))["logprob"] for told in choice["prompt_logprobs"]]


class Answers:
    """What each engine answers alone. Asked once; the server for it is the caller's, or runs for as long."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}

    def take(self, fleet: Fleet) -> None:
        """Asks a fleet of one."""
        if fleet.engine not in self._known:
            self._known[fleet.engine] = known_of(fleet.last)

    def of(self, engine: str) -> Known:
        if engine not in self._known:
            with Fleet(engine) as alone:
                self.take(alone)
        return self._known[engine]
