"""What the tests ask of every client: the same tool, the same form of an answer."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

CHAT: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["city", "days", "unit"],
            "additionalProperties": False,
        },
    },
}


def is_weather(arguments: dict[str, Any]) -> bool:
    return (
        arguments.keys() == {"city", "days", "unit"}
        and isinstance(arguments["city"], str)
        and arguments["days"] in range(1, 8)
        and arguments["unit"] in ("C", "F")
    )


class Mood(Enum):
    GLAD = "glad"
    SAD = "sad"


class Place(BaseModel):
    name: str
    country: str | None


class Person(BaseModel):
    """A person of a story."""

    name: str = Field(description="first name")
    age: Annotated[int, Field(ge=0, le=120)]
    height: float
    mood: Mood
    kind: Literal["hero", "villain"]
    alive: bool
    friends: list[str]
    home: Place
