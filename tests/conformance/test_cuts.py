"""However the bytes of a worker's reply are cut, the client is told the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.asking import streamed, whole
from tests.conformance.conftest import CRUMBS
from tests.conformance.joined import comparable
from tests.conformance.table import BOTH, CALLS, IDS, Row
from tests.stories.house import PAIRED, House

FEW = (
    "top logprobs of two choices",
    "batch, usage",
    "stop and logprobs",
    "token ids of a batch",
    "usage all along",
    "cut at 24",
)
"""Rows with the most in a reply."""


def few(*rows: Row) -> list[Row]:
    return [row for row in rows if row.name in FEW]


def told(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in comparable(answer).items() if name != "model"}


CELLS = [
    *((engine, "", row) for engine in PAIRED for row in few(*BOTH, *IDS)),
    *(("openai", "", row) for row in few(*BOTH)),
    *((engine, "calls-", row) for engine in PAIRED for row in few(*CALLS)),
]


@pytest.mark.parametrize("size", CRUMBS)
@pytest.mark.parametrize(("engine", "kind", "row"), CELLS, ids=str)
def test_a_reply_in_crumbs_tells_what_a_reply_in_one_piece_tells(
    house: House, engine: str, kind: str, row: Row, size: int
) -> None:
    at_once, crumbled = f"{kind}solo-{engine}", f"{kind}crumbs-{size}-{engine}"

    assert told(streamed(house, row.route, crumbled, row.fields)) == told(
        streamed(house, row.route, at_once, row.fields)
    )
    assert told(whole(house, row.route, crumbled, row.fields)) == told(whole(house, row.route, at_once, row.fields))
