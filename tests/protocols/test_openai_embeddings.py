"""Requests for vectors: the shapes of input, and how its members are named."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import orjson
import pytest

from protocols.errors import InvalidRequest
from protocols.openai import EmbeddingRequest, parse_detokenize, parse_embedding, parse_tokenize

TEXT = {"type": "text", "text": "a"}


def parsed(given: Any, **fields: Any) -> EmbeddingRequest:
    return parse_embedding(orjson.dumps({"model": "m", "input": given, **fields}))


@pytest.mark.parametrize(
    ("given", "inputs", "places"),
    [
        ("a", ["a"], ["input"]),
        (["a"], ["a"], ["input[0]"]),
        (["a", "b"], ["a", "b"], ["input[0]", "input[1]"]),
        ([1, 2], [[1, 2]], ["input"]),
        ([[1, 2]], [[1, 2]], ["input[0]"]),
        ([[1], [2, 3]], [[1], [2, 3]], ["input[0]", "input[1]"]),
    ],
)
def test_every_shape_is_a_list_of_inputs_with_places(given, inputs, places):
    request = parsed(given)

    assert (request.inputs(), request.parts()) == (inputs, [])
    assert [request.place(index) for index in range(len(inputs))] == places


@pytest.mark.parametrize(
    "parts",
    [
        [TEXT],
        [TEXT, {"type": "image_url", "image_url": {"url": "http://p"}}],
        [{"text": "a"}, {"image": "http://p"}, {"video": "http://v"}, {"text": "a", "image": "b"}],
        [{"text": None, "image": "http://p"}],
        [{"type": "a_type_of_tomorrow", "anything": 1}],
    ],
)
def test_content_parts_are_kept_as_they_came(parts):
    request = parsed(parts)

    assert (request.inputs(), request.parts()) == ([], parts)


def test_the_body_is_what_came_nulls_and_unknown_members_included():
    body = {"model": "m", "input": ["a"], "dimensions": None, "encoding_format": "base64", "odd": [1]}

    assert parse_embedding(orjson.dumps(body)).body() == body


def test_2048_inputs_are_the_most_but_ids_of_one_input_are_not_counted():
    assert len(parsed([[1]] * 2048).inputs()) == 2048
    assert len(parsed([1] * 5000).inputs()[0]) == 5000
    with pytest.raises(InvalidRequest, match="at most 2048 inputs, but got 2049"):
        parsed([[1]] * 2049)


MEMBERS = ("model", "input", "prompt", "messages", "tokens", "dimensions", "encoding_format", "tandem", "text", "type")
LEAVES: tuple[Any, ...] = (None, True, 0, -1, 5, 2**63, 1.5, "", "m", "text", "float", [], {})


def anything(rng: random.Random, depth: int = 3) -> Any:
    """JSON of any shape, with the members' own names in unusual places."""
    kind = rng.random() if depth else 1.0
    if kind < 0.3:
        return [anything(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind < 0.5:
        return {name: anything(rng, depth - 1) for name in rng.sample(MEMBERS, rng.randrange(4))}
    return rng.choice(LEAVES)


@pytest.mark.parametrize(
    "parse", [parse_embedding, lambda body: parse_tokenize(body, "m"), lambda body: parse_detokenize(body, None)]
)
def test_any_body_is_a_request_or_refused(parse):
    """2000 bodies take a tenth of a second."""
    rng = random.Random(0)
    for _ in range(2000):
        body = {name: anything(rng) for name in rng.sample(MEMBERS, rng.randrange(6))}
        with contextlib.suppress(InvalidRequest):
            parse(orjson.dumps(body))
