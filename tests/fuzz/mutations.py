"""Valid bodies made wrong: a change or a few, at a random place, of a kind that clients and attackers come up with.

A pure function of the random numbers it is given, so that a seed names a run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

Place = tuple[Any, Any]
"""A container and the key or index of one of its values."""

NUMBERS = (
    0, -1, 1, 2, 17, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**31) - 1, -(2**63),
    0.5, -0.0, 1e-308, 1e308, -1e308, 1.0, 2.0, 3.5,
)  # fmt: skip
STRINGS = (
    "", " ", "\x00", "\x7f", "\ud7ff", "￿", "﻿", "‮", "👩‍👩‍👧", "é" * 300, "a" * 5000, "none", "auto", "required",
    "null", "true", "function", "text", "user", "assistant", "tool", "system", "{{ 7*7 }}", "{% for %}", "</s>",
    "<|im_end|>", "<tool_call>", "<think>", "data: [DONE]\n\n", "\r\n", "../../etc/passwd", "[", "(((((", "(a+)+$",
    "[^", "*", "{}", '{"type": "object"}', "-1", "0", "18446744073709551616", "nan", "json_object", "json_schema",
)  # fmt: skip
RAW = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 400, "0x10", "01", "+1", ".5", "1.", "tru", "undefined",
    '"\\ud800"', '"\\udc00\\ud800"', '"\\x"', '"unterminated', "'single'", "/* comment */ 1", "[1,]", '{"a":1,}',
    "[" * 2000, "[" * 300 + "]" * 300, '{"a":' * 300 + "1" + "}" * 300, "[" * 900 + "]" * 900,
    '{"a":' * 900 + "{}" + "}" * 900, '{"a":1,"a":2}', "\\u0000", "99999999999999999999",
)  # fmt: skip
"""What no JSON encoder writes: it takes the place of a value's text."""
CONTENT_TYPES = (
    b"application/json", b"application/json; charset=utf-8", b"application/problem+json", b"text/plain", b"", b"*/*",
    b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x", b"application/json, text/plain", b"\xff",
)  # fmt: skip
_MARK = "\x1aplace\x1a"


@dataclass(frozen=True)
class Shot:
    """One request of a fuzz."""

    path: str
    body: bytes
    content_type: bytes = b"application/json"


def shots(valid: list[tuple[str, dict[str, Any]]], rng: random.Random, count: int) -> Iterator[Shot]:
    """`count` requests: bodies from `valid`, each with its path, changed."""
    for _ in range(count):
        path, body = rng.choice(valid)
        yield shot(path, orjson.loads(orjson.dumps(body)), rng)


def shot(path: str, body: Any, rng: random.Random) -> Shot:
    """Changes the body, which is its own."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_CHANGES)(body, rng)
    data = orjson.dumps(body)
    if rng.random() < 0.2:
        data = _with_raw(body, rng)
    if rng.random() < 0.1:
        data = rng.choice(_SPOILED)(data, rng)
    kind = rng.choice(CONTENT_TYPES) if rng.random() < 0.05 else b"application/json"
    return Shot(path, data, kind)


# ---- changes of the value


def places(value: Any) -> list[Place]:
    """Every place in it."""
    found: list[Place] = []
    rest = [value]
    while rest:
        holder = rest.pop()
        items = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
        for key, inner in items:
            found.append((holder, key))
            rest.append(inner)
    return found


def anything(rng: random.Random, depth: int = 0) -> Any:
    """A JSON value of any kind."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return None
    if kind == 1:
        return rng.random() < 0.5
    if kind == 2:
        return rng.choice(NUMBERS)
    if kind in (3, 4):
        return rng.choice(STRINGS)
    if kind == 5:
        return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return {rng.choice(STRINGS): anything(rng, depth + 1) for _ in range(rng.randrange(4))}
    return rng.choice(([], {}, [[]], [{}], [None], {"": None}))


def _some(value: Any, rng: random.Random) -> Place:
    found = places(value)
    return rng.choice(found) if found else ([None], 0)


def _replace(body: Any, rng: random.Random) -> None:
    holder, key = _some(body, rng)
    holder[key] = anything(rng)


def _nudge(body: Any, rng: random.Random) -> None:
    """Another value of the same kind, which gets further than one of another kind."""
    holder, key = _some(body, rng)
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int | float):
        holder[key] = rng.choice(NUMBERS)
    elif isinstance(value, str):
        holder[key] = rng.choice((*STRINGS, value * 2, value[:-1], value.upper()))
    elif isinstance(value, list):
        holder[key] = rng.choice(([], value * 2, value[:1] * 40, [*value, anything(rng)], value[::-1]))
    else:
        holder[key] = {}


def _drop(body: Any, rng: random.Random) -> None:
    holder, key = _some(body, rng)
    del holder[key]


def _wrap(body: Any, rng: random.Random) -> None:
    holder, key = _some(body, rng)
    holder[key] = rng.choice(([holder[key]], {"value": holder[key]}, orjson.dumps(holder[key]).decode()))


def _swap(body: Any, rng: random.Random) -> None:
    (one, first), (other, second) = _some(body, rng), _some(body, rng)
    value = orjson.loads(orjson.dumps(other[second]))
    other[second], one[first] = orjson.loads(orjson.dumps(one[first])), value


def _add(body: Any, rng: random.Random) -> None:
    objects = [body, *(holder[key] for holder, key in places(body))]
    holder = rng.choice([value for value in objects if isinstance(value, dict)] or [{}])
    holder[rng.choice((*FIELDS, *STRINGS))] = anything(rng)


def _deepen(body: Any, rng: random.Random) -> None:
    holder, key = _some(body, rng)
    for _ in range(rng.choice((2, 10, 50))):
        holder[key] = rng.choice(([holder[key]], {"a": holder[key]}))


def _swell(body: Any, rng: random.Random) -> None:
    holder, key = _some(body, rng)
    holder[key] = rng.choice(("of the sea " * 3000, [1] * 5000, ["x"] * 2000, {str(i): i for i in range(2000)}))


_CHANGES: tuple[Callable[[Any, random.Random], None], ...] = (
    _replace, _replace, _replace, _nudge, _nudge, _nudge, _drop, _wrap, _swap, _add, _add, _deepen, _swell,
)  # fmt: skip

FIELDS = (
    "model", "messages", "prompt", "input", "tokens", "stream", "stream_options", "n", "best_of", "temperature",
    "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "max_tokens", "max_completion_tokens", "min_tokens",
    "logprobs", "top_logprobs", "prompt_logprobs", "echo", "suffix", "logit_bias", "response_format", "tools",
    "tool_choice", "functions", "function_call", "parallel_tool_calls", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "structured_outputs", "structural_tag", "regex", "ebnf",
    "chat_template_kwargs", "documents", "reasoning_effort", "add_generation_prompt", "continue_final_message",
    "tandem", "nvext", "cache_salt", "priority", "return_token_ids", "ignore_eos", "skip_special_tokens",
    "allowed_token_ids", "bad_words", "encoding_format", "dimensions", "truncate_prompt_tokens", "truncation_side",
    "add_special_tokens", "user", "metadata", "role", "content", "type", "name", "function", "parameters",
    "arguments", "tool_calls", "kv_transfer_params", "rid", "bootstrap_host", "disaggregated_params", "prompt_embeds",
    "use_beam_search", "thinking_token_budget", "modalities",
)  # fmt: skip


# ---- changes of the bytes


def _with_raw(body: Any, rng: random.Random) -> bytes:
    """The body with a text in one place that is no JSON, or that other readers read otherwise."""
    holder, key = _some(body, rng)
    holder[key] = _MARK
    return orjson.dumps(body).replace(orjson.dumps(_MARK), rng.choice(RAW).encode(), 1)


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _flip(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]


def _more(data: bytes, rng: random.Random) -> bytes:
    return data + rng.choice((b"\x00", b"}", data, b" " * 5000, b"\xff\xfe"))


def _before(data: bytes, rng: random.Random) -> bytes:
    return rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\x1f\x8b", b"model=", b"[")) + data


def _twice(data: bytes, rng: random.Random) -> bytes:
    """An object that names its members twice."""
    return data[:-1] + b"," + data[1:] if len(data) > 2 and data.endswith(b"}") else data


def _utf16(data: bytes, rng: random.Random) -> bytes:
    return data.decode().encode("utf-16")


_SPOILED: tuple[Callable[[bytes, random.Random], bytes], ...] = (_cut, _flip, _more, _before, _twice, _utf16)
