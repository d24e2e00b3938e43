"""Answers of vectors: valid by OpenAI's own types, in either encoding."""

from __future__ import annotations

import orjson
import pytest
from openai.types import CreateEmbeddingResponse

from protocols.vectors import pack_vector
from protocols.wire import WireError
from text.embedding_answer import embedding_body

VECTORS = [[0.5, -1.25], [3.0]]


def test_numbers_are_lists_of_numbers():
    body = embedding_body([pack_vector(v) for v in VECTORS], model="m", prompt_tokens=7, floats=True)

    answer = CreateEmbeddingResponse.model_validate_json(body, strict=True)
    assert [(entry.index, entry.object, entry.embedding) for entry in answer.data] == [
        (0, "embedding", VECTORS[0]),
        (1, "embedding", VECTORS[1]),
    ]
    assert (answer.object, answer.model) == ("list", "m")
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (7, 7)


def test_base64_stays_as_it_is():
    vectors = [pack_vector(v) for v in VECTORS]

    body = orjson.loads(embedding_body(vectors, model="m", prompt_tokens=7, floats=False))

    assert [entry["embedding"] for entry in body["data"]] == vectors


def test_further_members_stand_beside():
    body = embedding_body(
        [pack_vector([1])], model='a "name"', prompt_tokens=1, floats=True, extra={"tandem": {"a": 1}}
    )

    assert (orjson.loads(body)["tandem"], orjson.loads(body)["model"]) == ({"a": 1}, 'a "name"')


def test_a_vector_that_is_none_is_told():
    with pytest.raises(WireError):
        embedding_body(["AAA="], model="m", prompt_tokens=1, floats=True)
