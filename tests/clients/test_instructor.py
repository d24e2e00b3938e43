"""instructor: objects out of answers, in each of its modes."""

from __future__ import annotations

from collections.abc import Iterator

import instructor
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel
from wishes import CHAT, Person, Place

MODES = [instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA]


class Visit(BaseModel):
    """Without an enumeration: instructor checks parts of objects strictly, and a string is none of its members."""

    place: Place
    days: int
    seen: list[str]


@pytest.fixture(params=MODES, ids=lambda mode: mode.name)
def mode(request: pytest.FixtureRequest) -> instructor.Mode:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def client(base_url: str, mode: instructor.Mode) -> Iterator[instructor.Instructor]:
    with OpenAI(base_url=base_url, api_key="unused", max_retries=0) as plain:
        yield instructor.from_openai(plain, mode=mode)


def test_an_object(client: instructor.Instructor, model: str) -> None:
    person, answer = client.chat.completions.create_with_completion(
        model=model, messages=CHAT, response_model=Person, max_retries=0
    )

    assert isinstance(person, Person)
    assert answer.usage.total_tokens > 0


def test_parts_of_an_object(client: instructor.Instructor, model: str) -> None:
    parts = list(client.chat.completions.create_partial(model=model, messages=CHAT, response_model=Visit))

    assert len(parts) > 1
    assert Visit.model_validate(parts[-1].model_dump())


def test_one_object_after_another(client: instructor.Instructor, model: str) -> None:
    people = list(client.chat.completions.create_iterable(model=model, messages=CHAT, response_model=Person))

    assert people
    assert all(isinstance(person, Person) for person in people)


async def test_an_object_for_the_async_client(base_url: str, mode: instructor.Mode, model: str) -> None:
    async with AsyncOpenAI(base_url=base_url, api_key="unused", max_retries=0) as plain:
        client = instructor.from_openai(plain, mode=mode)
        person = await client.chat.completions.create(model=model, messages=CHAT, response_model=Person, max_retries=0)

    assert isinstance(person, Person)
