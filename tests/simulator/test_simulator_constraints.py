"""Texts within a constraint: whatever is drawn, the constraint is kept."""

from __future__ import annotations

import json
import random
import re
from datetime import date, datetime
from enum import Enum
from ipaddress import IPv4Address
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from simulator.constraints import Constraint, constraint_in, is_any_object, shown_schema, text_for
from simulator.patterns import Unfollowed, derived, matching
from simulator.schemas import Example
from text.tool_calls.functions import Functions
from text.tool_calls.rules import CallMode, CallRules
from text.tool_calls.tag_formats import FORMATS

SEEDS = range(12)


def words(count: int) -> str:
    return " ".join(["sea", "ship", "wind"][:count])


# ---- regular expressions and grammars


PATTERNS = [
    r"yes|no", r"(a|b|c\.)+x?", r"^\d{3}-[A-Z]{2}$", r"[^\W_]{2,}", r"(?:foo|bar)[\w.-]*@[a-z]+\.com", r"\+?[1-9]\d+",
    r"\x41B\t?", r"[\]a-c-]{3}", r"(?P<year>\d{4})-\d\d", r"a{2}b{,3}c*?", r"[^a-z0-9]", r"\bword\b", r"()|x",
]  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_text_for_a_pattern_matches_it(pattern: str, seed: int) -> None:
    assert re.fullmatch(pattern, matching(pattern, random.Random(seed)))


@pytest.mark.parametrize("pattern", [r"(?=a)b", r"(a)\1", r"\p{L}", "(a", "[a", "a\\", "a)", r"\x4"])
def test_a_pattern_that_cannot_be_followed_is_refused(pattern: str) -> None:
    with pytest.raises(Unfollowed):
        matching(pattern, random.Random(0))


LISTS = r"""
# lists of lists
root ::= list
list ::= "[" (item ("," item)*)? "]"
item ::= [0-9]+ | list | "\"" [a-z]{1,3} "\""
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_text_of_a_grammar_is_derived_from_it(seed: int) -> None:
    assert isinstance(json.loads(re.sub(r"\b0+(?=\d)", "", derived(LISTS, random.Random(seed)))), list)


def test_a_grammar_that_always_goes_deeper_takes_the_shortest_way_out() -> None:
    text = derived('root ::= "(" root root ")" | "x"', random.Random(3))

    assert set(text) <= set("()x")


@pytest.mark.parametrize("grammar", ["root ::= other", "start: /a/", "", "root ::= {"])
def test_a_grammar_that_cannot_be_followed_is_refused(grammar: str) -> None:
    with pytest.raises(Unfollowed):
        derived(grammar, random.Random(0))


# ---- schemas


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Branch(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    left: Branch | None = None
    right: Branch | None
    more: list[Branch] = Field(default=[], max_length=2)


class Many(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(min_length=8, max_length=9)]
    code: Annotated[str, Field(pattern=r"^[A-Z]{2}\d{4}$")]
    count: Annotated[int, Field(gt=3, lt=6)]
    even: Annotated[int, Field(multiple_of=2, le=-2)]
    share: Annotated[float, Field(ge=0, le=0.5)]
    quarter: Annotated[float, Field(multiple_of=0.25, ge=1)]
    kind: Literal["a", 1, None]
    colour: Colour
    either: int | bool | list[str]
    pair: tuple[int, str]
    unique: set[Colour]
    words: dict[str, int]
    day: date
    moment: datetime
    place: IPv4Address
    identity: UUID
    anything: Any


TYPES: list[Any] = [Many, Branch, list[Many], dict[str, Branch], int, str, float, bool, type(None), Many | Branch]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_value_by_a_schema_is_valid(kind: Any, seed: int) -> None:
    adapter = TypeAdapter(kind)

    value = Example(adapter.json_schema(), random.Random(seed), words).value()

    assert adapter.validate_json(json.dumps(value)) is not ...


@pytest.mark.parametrize(
    "schema",
    [
        {"minItems": 2}, {"properties": {"a": {"minimum": 1}}}, {"type": ["string", "null"]}, {"minProperties": 2}, {},
        {"allOf": [{"properties": {"a": True}, "required": ["a"]}, {"properties": {"b": {"const": 1}}}]},
    ],
    ids=str,
)  # fmt: skip
def test_a_schema_that_says_little_is_followed_as_far_as_it_goes(schema: dict[str, Any]) -> None:
    Example(schema, random.Random(0), words).value()


@pytest.mark.parametrize(
    "schema",
    [
        False, {"$ref": "https://example.com/x"}, {"type": "colour"}, {"minimum": 2, "maximum": 1}, {"$ref": "#"},
        {"pattern": "a", "minLength": 2},
    ],
    ids=str,
)  # fmt: skip
def test_a_schema_that_cannot_be_followed_is_refused(schema: Any) -> None:
    with pytest.raises(Unfollowed):
        Example(schema, random.Random(0), words).value()


# ---- the engines' spellings


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "Hi"}}


@pytest.mark.parametrize(
    ("sampling", "constraint"),
    [
        ({}, None),
        ({"structured_outputs": None, "response_format": {"type": "text"}}, None),
        ({"structured_outputs": {"json": SCHEMA}}, Constraint("json", SCHEMA)),
        ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, Constraint("tag", TAG)),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Constraint("choice", ["a", "b"])),
        ({"json_schema": json.dumps(SCHEMA)}, Constraint("json", SCHEMA)),
        ({"regex": "a+"}, Constraint("regex", "a+")),
        ({"ebnf": 'root ::= "a"'}, Constraint("grammar", 'root ::= "a"')),
        ({"response_format": {"type": "json", "schema": SCHEMA}}, Constraint("json", SCHEMA)),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, Constraint("json", SCHEMA)),
        ({"response_format": {"type": "json_object"}}, Constraint("json", {"type": "object"})),
        ({"response_format": {"type": "regex", "regex": "a+"}}, Constraint("regex", "a+")),
        ({"response_format": {"type": "ebnf", "ebnf": 'root ::= "a"'}}, Constraint("grammar", 'root ::= "a"')),
        ({"response_format": TAG}, Constraint("tag", TAG)),
    ],
    ids=str,
)
def test_every_engines_way_of_asking_is_understood(sampling: dict[str, Any], constraint: Constraint | None) -> None:
    assert constraint_in(sampling) == constraint


def test_a_schema_that_is_written_in_the_prompt_is_found() -> None:
    prompt = f'Answer in JSON. {{not json}} {{"a": 1}} Schema: {json.dumps(SCHEMA)} Now {{'

    assert shown_schema(prompt) == SCHEMA
    assert shown_schema("nothing { here }") is None
    assert is_any_object(Constraint("json", {"type": "object"}))
    assert not is_any_object(Constraint("json", SCHEMA))


# ---- structural tags


def rules() -> CallRules:
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("one", "two")]
    return CallRules(Functions.of(tools), CallMode.REQUIRED)


@pytest.mark.parametrize("seed", SEEDS)
def test_calls_that_are_forced_by_a_tag_are_written_in_its_markup(seed: int) -> None:
    tag = {"format": FORMATS["hermes"].bound(rules())}

    text = text_for(Constraint("tag", tag), random.Random(seed), words)

    call = re.fullmatch(r"<tool_call>\n(.*)\n</tool_call>", text or "")
    assert call
    assert json.loads(call[1])["name"] in ("one", "two")


def test_a_tag_that_forces_nothing_leaves_the_answer_free() -> None:
    assert text_for(Constraint("tag", {"format": FORMATS["hermes"].free(rules())}), random.Random(0), words) is None


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("tag", {"format": FORMATS["qwen3_coder"].bound(rules())}),
        Constraint("tag", {"format": {"type": "new"}}),
        Constraint("tag", {"structures": []}),
        Constraint("tag", None),
        Constraint("json", None),
        Constraint("choice", []),
    ],
    ids=str,
)
def test_a_constraint_that_cannot_be_followed_is_refused(constraint: Constraint) -> None:
    with pytest.raises(Unfollowed):
        text_for(constraint, random.Random(0), words)
