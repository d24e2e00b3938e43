"""Bodies that nobody should send, at every route that is posted to: no 500, no hang, no answer but OpenAI's.

Takes several seconds, for the number of requests: `FUZZ_BODIES` of them (`make test-fuzz`: 10,000), made from
`FUZZ_SEED`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.asking import PATHS
from tests.conformance.table import BOTH, CALLS, IDS
from tests.fuzz.mutations import shots
from tests.fuzz.range import fire
from tests.stories.conftest import no_bug_logged
from tests.stories.house import PAIRED, Hosted, House, pair, solo

__all__ = ["no_bug_logged"]

COUNT = int(os.environ.get("FUZZ_BODIES", "400"))
SEED = os.environ.get("FUZZ_SEED", "1")
REPLY = (
    "<think>\nOf Paris.\n</think>\n\nLet me see.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>'
)
MODELS = [*(f"pair-{engine}" for engine in PAIRED), *(f"solo-{engine}" for engine in PAIRED), "solo-openai"]


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    models = [
        *(pair(engine, prefill=1, decode=1, reply=REPLY) for engine in PAIRED),
        *(solo(engine, reply=REPLY) for engine in PAIRED),
        Hosted("solo-openai", "openai", options={"reply": REPLY}),
    ]
    with House(models, logging={"level": "error"}) as house:
        yield house


def valid_bodies(model: str) -> list[tuple[str, dict[str, Any]]]:
    asked = [
        (PATHS[row.route], {"model": model, **row.fields, "stream": stream})
        for row in (*BOTH, *IDS, *CALLS)
        for stream in (False, True)
    ]
    chats = [{"model": model, **row.fields} for row in (*BOTH, *CALLS) if row.route == "chat"]
    inputs: list[Any] = [
        "The sea",
        ["The sea", "The ships"],
        [700, 701],
        [[700], [701]],
        [{"type": "text", "text": "a"}],
    ]
    return [
        *asked,
        *(("/v1/embeddings", {"model": model, "input": given, "encoding_format": "float"}) for given in inputs * 3),
        *(("/tokenize", chat) for chat in chats),
        *(("/v1/tokenize", {"model": model, "prompt": "The sea", "return_token_strs": True}) for _ in range(10)),
        *(("/detokenize", {"model": model, "tokens": [700, 701, 702]}) for _ in range(10)),
    ]


@pytest.mark.parametrize("model", MODELS)
def test_no_body_brings_anything_but_an_answer_or_openais_error(house: House, model: str) -> None:
    rng = random.Random(f"{SEED} {model}")

    score = fire(house, shots(valid_bodies(model), rng, max(1, COUNT // len(MODELS))))

    assert not score.faults, score.told()
    assert score.statuses[200]
    assert score.statuses[400]
    house.rest(5)
    assert house.http.get("/health").json()["status"] == "healthy"
