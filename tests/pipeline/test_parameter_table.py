"""docs/api.md's table of parameters says what each engine really gets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from protocols.openai import ChatCompletionRequest, CompletionRequest
from tests.pipeline.parameters import ENGINES, SAMPLES, effect

DOCS = Path(__file__).parents[2] / "docs" / "api.md"
ENDPOINTS = {"both": (True, False), "chat": (True,), "text": (False,)}
APART = {"model", "messages", "prompt", "tandem", "nvext"}
"""What is no parameter of an engine's, or is explained elsewhere."""
BEFORE = {"1.2": "1.1.0", "1.3": "1.2.0"}
"""By the first version of TensorRT-LLM that honours a parameter, one that does not."""

Row = tuple[str, str, dict[str, str]]


def rows() -> list[Row]:
    """Parameter, endpoints, and each engine's cell."""
    lines = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.count(" | ") == 7]
    return [(name.strip("` "), of, dict(zip(ENGINES, told, strict=True))) for name, of, _, *told in cells]


CASES = [
    pytest.param(name, chat, engine, cell, id=f"{name}-{'chat' if chat else 'text'}-{engine}")
    for name, of, told in rows()
    for chat in ENDPOINTS[of]
    for engine, cell in told.items()
]


@pytest.mark.parametrize(("parameter", "chat", "engine", "cell"), CASES)
async def test_an_engine_gets_what_the_table_says(parameter: str, chat: bool, engine: str, cell: str) -> None:
    named = None if cell == "400" else frozenset(re.findall(r"`(\w+)`", cell))

    assert await effect(engine, chat, parameter) == named
    assert cell in ("400", "gateway", "–") or named


@pytest.mark.parametrize(
    ("parameter", "chat", "engine", "cell"), [case for case in CASES if "before" in str(case.values[3])]
)
async def test_an_older_release_refuses_what_the_table_says(parameter: str, chat: bool, engine: str, cell: str) -> None:
    version = BEFORE[cell.rpartition("before ")[2]]

    assert await effect(engine, chat, parameter, version) is None


@pytest.mark.parametrize(("request_type", "endpoint"), [(ChatCompletionRequest, "chat"), (CompletionRequest, "text")])
def test_every_parameter_stands_in_the_table(request_type: type[ChatCompletionRequest], endpoint: str) -> None:
    known = {name for name, of, _ in rows() if of in ("both", endpoint)}

    assert set(request_type.model_fields) - APART - known == set()
    assert known <= {"logprobs", *SAMPLES}
