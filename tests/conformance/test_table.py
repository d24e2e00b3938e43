"""The table, asked of every engine: each answer is of OpenAI's types, and a stream tells what a whole answer tells."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.asking import refused, streamed, whole
from tests.conformance.joined import comparable
from tests.conformance.table import BOTH, CALLS, IDS, Row
from tests.stories.house import PAIRED, House

FLEETS = [f"{kind}-{engine}" for engine in PAIRED for kind in ("pair", "solo")]
"""Models whose workers take token ids."""


def engine_of(model: str) -> str:
    return model.rpartition("-")[2]


def cells(rows: list[Row], models: list[str]) -> list[Any]:
    """The table's cells in which a request is answered."""
    return [
        pytest.param(model, row, id=f"{model}-{row}")
        for model in models
        for row in rows
        if engine_of(model) not in row.unable and row.unstreamed is None
    ]


def told_whole(house: House, model: str, row: Row) -> dict[str, Any]:
    answer = comparable(whole(house, row.route, model, row.fields))
    if "stream_options" not in row.fields:
        del answer["usage"]
    return answer


@pytest.mark.parametrize(
    ("model", "row"),
    [
        *cells(BOTH, [*FLEETS, "solo-openai"]),
        *cells(IDS, FLEETS),
        *cells(CALLS, [f"calls-pair-{engine}" for engine in PAIRED]),
        *cells(CALLS[:1], [f"calls-solo-{engine}" for engine in PAIRED]),
    ],
)
def test_a_stream_tells_what_a_whole_answer_tells(house: House, model: str, row: Row) -> None:
    told = told_whole(house, model, row)

    assert comparable(streamed(house, row.route, model, row.fields)) == told


@pytest.mark.parametrize("model", FLEETS)
@pytest.mark.parametrize("row", [row for row in IDS if row.unstreamed], ids=str)
def test_what_cannot_be_streamed_is_told_whole_and_refused_as_a_stream(house: House, model: str, row: Row) -> None:
    answer = whole(house, row.route, model, row.fields)

    assert len(answer["choices"]) == row.fields["n"]
    assert refused(house, row.route, model, {**row.fields, "stream": True}) == (400, row.unstreamed, None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "row"),
    [(model, row) for row in IDS for model in FLEETS if engine_of(model) in row.unable],
    ids=str,
)
def test_what_an_engine_cannot_do_is_refused_by_its_parameter(house: House, model: str, row: Row, stream: bool) -> None:
    status, parameter, _ = refused(house, row.route, model, {**row.fields, "stream": stream})

    assert (status, parameter) == (400, row.unable[engine_of(model)])
