"""What comes through the gateway is what the engine answers alone: greedy, so to the letter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import openai
import pytest

from tests.real.fleets import ALONE, PAIRS, SETUPS, Fleet, on
from tests.real.processes import ENGINE_MODEL, GatewayServer, status
from tests.real.prompts import CHAT, CONTEXT, LONG, SHORT, STORY, TOKENS, UNKNOWN_ID, Known

BUDGET: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0}


def completed(gateway: GatewayServer, *, stream: bool, **request: Any) -> str:
    """The text of the only choice."""
    if not stream:
        return str(gateway.sdk.completions.create(model="smol", **request).choices[0].text)
    chunks = gateway.sdk.completions.create(model="smol", stream=True, **request)
    return "".join(choice.text for chunk in chunks for choice in chunk.choices)


def chatted(gateway: GatewayServer, *, stream: bool, **request: Any) -> str:
    if not stream:
        return gateway.sdk.chat.completions.create(model="smol", messages=CHAT, **request).choices[0].message.content
    chunks = gateway.sdk.chat.completions.create(model="smol", messages=CHAT, stream=True, **request)
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


# ---- text


@on(*SETUPS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_is_what_the_engine_alone_says(
    fleet: Fleet, gateway: GatewayServer, known: Known, stream: bool
) -> None:
    told = [completed(gateway, stream=stream, prompt=prompt, **BUDGET) for prompt in (SHORT, LONG)]

    assert told == [known.short, known.long]


@on(*SETUPS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_what_the_engine_alone_says(fleet: Fleet, gateway: GatewayServer, known: Known, stream: bool) -> None:
    assert chatted(gateway, stream=stream, **BUDGET) == known.chat


@on(*SETUPS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_of_ids_is_the_same_prompt(fleet: Fleet, gateway: GatewayServer, known: Known, stream: bool) -> None:
    asked = {"prompt": SHORT, "max_tokens": 1, "temperature": 0, "extra_body": {"return_token_ids": True}}
    ids = gateway.sdk.completions.create(model="smol", **asked).choices[0].prompt_token_ids  # type: ignore[attr-defined]

    assert completed(gateway, stream=stream, prompt=ids, **BUDGET) == known.short


@on(*SETUPS)
def test_usage_counts_the_prompt_once_and_every_token_of_the_answer(
    fleet: Fleet, gateway: GatewayServer, known: Known
) -> None:
    whole = gateway.sdk.completions.create(model="smol", prompt=LONG, **BUDGET)
    chunks = list(
        gateway.sdk.completions.create(
            model="smol", prompt=LONG, stream=True, stream_options={"include_usage": True}, **BUDGET
        )
    )

    counts = [(usage.prompt_tokens, usage.completion_tokens) for usage in (whole.usage, chunks[-1].usage)]
    assert counts == [(known.long_tokens, TOKENS)] * 2


@on(*SETUPS)
def test_a_prompt_that_comes_again_is_found_in_the_cache(fleet: Fleet, gateway: GatewayServer, known: Known) -> None:
    def cached() -> int:
        usage = gateway.sdk.completions.create(model="smol", prompt=LONG, **BUDGET).usage
        return usage.prompt_tokens_details.cached_tokens  # whole blocks of 32 (vLLM), all but one (SGLang)

    cached()

    assert known.long_tokens - 33 <= cached() < known.long_tokens


@on(*SETUPS)
def test_an_answer_that_ends_by_itself_tells_its_usage_whole(fleet: Fleet, gateway: GatewayServer) -> None:
    longer: list[Any] = [{"role": "system", "content": STORY}, *CHAT[1:]]

    for _ in range(2):
        answer = gateway.sdk.chat.completions.create(model="smol", messages=longer, temperature=0)

    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens > 0


@on(*SETUPS)
def test_several_choices_each_come(fleet: Fleet, gateway: GatewayServer) -> None:
    answer = gateway.sdk.completions.create(model="smol", prompt=SHORT, n=2, max_tokens=12, temperature=1.0, seed=11)

    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text != answer.choices[1].text
    assert answer.usage.completion_tokens <= 24


@on(*SETUPS)
def test_greedy_choices_are_alike(fleet: Fleet, gateway: GatewayServer, known: Known) -> None:
    answer = gateway.sdk.completions.create(model="smol", prompt=SHORT, n=2, **BUDGET)

    assert [choice.text for choice in answer.choices] == [known.short] * 2


@on(*SETUPS)
def test_prompts_in_one_request_are_answered_in_their_order(fleet: Fleet, gateway: GatewayServer, known: Known) -> None:
    answer = gateway.sdk.completions.create(model="smol", prompt=[LONG, SHORT], **BUDGET)

    assert [choice.text for choice in answer.choices] == [known.long, known.short]


# ---- the end of an answer


def words_of(text: str) -> str:
    """A stop string that neither begins nor ends with the answer, out of its middle."""
    middle = len(text) // 2
    return text[middle : middle + 6]


@on(*SETUPS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_before_it(
    fleet: Fleet, gateway: GatewayServer, known: Known, stream: bool
) -> None:
    stop = words_of(known.long)

    told = completed(gateway, stream=stream, prompt=LONG, stop=[stop], **BUDGET)

    assert told == known.long[: known.long.index(stop)]


@on(*SETUPS)
def test_a_stop_string_may_be_kept(fleet: Fleet, gateway: GatewayServer, known: Known) -> None:
    stop = words_of(known.long)

    told = completed(
        gateway,
        stream=False,
        prompt=LONG,
        stop=[stop],
        extra_body={"include_stop_str_in_output": True},
        **BUDGET,
    )

    assert told == known.long[: known.long.index(stop) + len(stop)]


@on(*SETUPS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_id_ends_the_text_where_it_does_at_the_engine(
    fleet: Fleet, gateway: GatewayServer, known: Known, stream: bool
) -> None:
    ids = _answer_ids(gateway, LONG)

    told = completed(gateway, stream=stream, prompt=LONG, extra_body={"stop_token_ids": [ids[9]]}, **BUDGET)

    ended = gateway.sdk.completions.create(model="smol", prompt=LONG, extra_body={"stop_token_ids": [ids[9]]}, **BUDGET)
    assert known.long.startswith(told)
    assert ended.choices[0].finish_reason == "stop"
    assert ended.usage.completion_tokens == ids.index(ids[9]) + 1


def _answer_ids(gateway: GatewayServer, prompt: str) -> list[int]:
    answer = gateway.sdk.completions.create(
        model="smol", prompt=prompt, extra_body={"return_token_ids": True}, **BUDGET
    )
    return answer.choices[0].token_ids  # type: ignore[attr-defined,no-any-return]


@on(*SETUPS)
def test_the_end_may_be_ignored_and_an_answer_has_a_least_length(fleet: Fleet, gateway: GatewayServer) -> None:
    asked: dict[str, Any] = {"model": "smol", "messages": CHAT, "temperature": 0, "max_tokens": 20}

    endless = gateway.sdk.chat.completions.create(**asked, extra_body={"ignore_eos": True})
    longer = gateway.sdk.chat.completions.create(**asked, extra_body={"min_tokens": 14})

    assert (endless.usage.completion_tokens, endless.choices[0].finish_reason) == (20, "length")
    assert longer.usage.completion_tokens >= 14


@on(*ALONE)
def test_an_answer_is_cut_where_the_context_ends(fleet: Fleet, gateway: GatewayServer) -> None:
    answer = gateway.sdk.completions.create(
        model="smol", prompt=[300 + n for n in range(CONTEXT - 12)], max_tokens=100, temperature=0
    )

    assert answer.choices[0].finish_reason == "length"
    assert 8 <= answer.usage.completion_tokens <= 12


# ---- log probabilities


@on(*ALONE)
@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_completion_are_the_engines(fleet: Fleet, gateway: GatewayServer, stream: bool) -> None:
    asked: dict[str, Any] = {"prompt": SHORT, "max_tokens": 8, "temperature": 0, "logprobs": 3}
    own = fleet.last.sdk.completions.create(model=ENGINE_MODEL, **asked).choices[0].logprobs

    told = _completion_logprobs(gateway, stream, asked)

    assert own is not None
    assert [token for token, _, _ in told] == own.tokens
    assert [value for _, value, _ in told] == pytest.approx(own.token_logprobs, abs=1e-3)
    assert [sorted(top) for _, _, top in told] == [sorted(top) for top in own.top_logprobs or ()]


@on(*PAIRS)
@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_over_a_pair_are_of_the_answers_tokens(fleet: Fleet, gateway: GatewayServer, stream: bool) -> None:
    asked: dict[str, Any] = {"prompt": SHORT, "max_tokens": 8, "temperature": 0, "logprobs": 3}

    told = _completion_logprobs(gateway, stream, asked)

    assert "".join(token for token, _, _ in told) == completed(
        gateway, stream=False, prompt=SHORT, max_tokens=8, temperature=0
    )
    assert all(value == max(top.values()) for _, value, top in told)
    assert {len(top) for _, _, top in told} == {3}


def _completion_logprobs(
    gateway: GatewayServer, stream: bool, asked: dict[str, Any]
) -> list[tuple[str, float, dict[str, float]]]:
    """Token, logprob, alternatives; of each token of the answer."""
    if stream:
        chunks = list(gateway.sdk.completions.create(model="smol", stream=True, **asked))
        told = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs is not None]
    else:
        told = [gateway.sdk.completions.create(model="smol", **asked).choices[0].logprobs]
    return [triple for part in told for triple in zip(part.tokens, part.token_logprobs, part.top_logprobs, strict=True)]


@on(*ALONE)
@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_chat_are_the_engines(fleet: Fleet, gateway: GatewayServer, stream: bool) -> None:
    asked: dict[str, Any] = {
        "messages": CHAT, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 2
    }  # fmt: skip
    own = fleet.last.sdk.chat.completions.create(model=ENGINE_MODEL, **asked).choices[0].logprobs

    if stream:
        chunks = list(gateway.sdk.chat.completions.create(model="smol", stream=True, **asked))
        told = [entry for chunk in chunks for choice in chunk.choices for entry in _content(choice.logprobs)]
    else:
        told = _content(gateway.sdk.chat.completions.create(model="smol", **asked).choices[0].logprobs)

    assert _flat(told) == [pytest.approx(entry, abs=1e-3) for entry in _flat(_content(own))]
    assert [[top.token for top in entry.top_logprobs] for entry in told] == [
        [top.token for top in entry.top_logprobs] for entry in _content(own)
    ]
    assert [entry.token for entry in told] == [entry.token for entry in _content(own)]


def _content(logprobs: Any) -> Sequence[Any]:
    return logprobs.content or () if logprobs is not None else ()


def _flat(entries: Sequence[Any]) -> list[list[float]]:
    return [[entry.logprob, *(top.logprob for top in entry.top_logprobs)] for entry in entries]


@on("vllm", "vllm-completions", "vllm-pair", "vllm-pair-completions")
@pytest.mark.parametrize("stream", [False, True])
def test_tokens_told_as_ids_are_told_so(fleet: Fleet, gateway: GatewayServer, stream: bool) -> None:
    ids = _answer_ids(gateway, SHORT)[:6]
    asked: dict[str, Any] = {"prompt": SHORT, "max_tokens": 6, "temperature": 0, "logprobs": 2}

    told = _completion_logprobs(gateway, stream, {**asked, "extra_body": {"return_tokens_as_token_ids": True}})

    assert [token for token, _, _ in told] == [f"token_id:{token_id}" for token_id in ids]
    assert all(key.startswith("token_id:") for _, _, top in told for key in top)


# ---- the prompt's own log probabilities


@on(*SETUPS)
def test_the_prompts_logprobs_are_the_engines(fleet: Fleet, gateway: GatewayServer, known: Known) -> None:
    answer = gateway.sdk.completions.create(model="smol", prompt=LONG, extra_body={"prompt_logprobs": 1}, **BUDGET)

    told = answer.choices[0].prompt_logprobs  # type: ignore[attr-defined]
    assert answer.choices[0].text == known.long
    assert told[0] is None
    own = [next(iter(entry.values()))["logprob"] for entry in told[1:]]
    assert own == pytest.approx(known.prompt_logprobs[1:], abs=1e-3)


@on(*SETUPS)
def test_an_echo_with_logprobs_begins_with_the_prompts(fleet: Fleet, gateway: GatewayServer, known: Known) -> None:
    answer = gateway.sdk.completions.create(
        model="smol", prompt=LONG, echo=True, logprobs=1, max_tokens=4, temperature=0
    )

    told = answer.choices[0].logprobs
    assert told is not None
    assert answer.choices[0].text.startswith(LONG)
    assert "".join(told.tokens or ()) == answer.choices[0].text
    assert told.token_logprobs is not None
    assert told.token_logprobs[0] is None
    assert told.token_logprobs[1 : known.long_tokens] == pytest.approx(known.prompt_logprobs[1:], abs=1e-3)
    assert len(told.token_logprobs) == known.long_tokens + 4


# ---- constraints


@on(*SETUPS)
def test_a_schema_shapes_the_answer(fleet: Fleet, gateway: GatewayServer) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }

    answer = gateway.sdk.chat.completions.create(
        model="smol",
        messages=CHAT,
        max_tokens=40,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
    )

    assert json.loads(answer.choices[0].message.content)["city"] in ("Paris", "Rome")


@on(*SETUPS)
def test_a_bias_moves_the_answer(fleet: Fleet, gateway: GatewayServer) -> None:
    [wanted, *_] = _answer_ids(gateway, LONG)

    answer = gateway.sdk.completions.create(
        model="smol",
        prompt=SHORT,
        max_tokens=3,
        temperature=0,
        logit_bias={str(wanted): 100},
        extra_body={"return_token_ids": True},
    )

    assert answer.choices[0].token_ids == [wanted] * 3  # type: ignore[attr-defined]


# ---- refusals


@on(*SETUPS)
def test_a_prompt_longer_than_the_context_is_the_clients_fault(fleet: Fleet, gateway: GatewayServer) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        gateway.sdk.completions.create(model="smol", prompt=[300] * (CONTEXT + 1), max_tokens=1)

    assert refused.value.code == "context_length_exceeded"


@on(*SETUPS)
def test_an_id_outside_the_vocabulary_is_refused_and_kills_nobody(
    fleet: Fleet, gateway: GatewayServer, known: Known
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        gateway.sdk.completions.create(model="smol", prompt=[1, UNKNOWN_ID], max_tokens=1)

    assert refused.value.param == "prompt[1]"
    assert [status(f"{server.url}/v1/models") for server in fleet.servers] == [200] * len(fleet.servers)
    assert completed(gateway, stream=False, prompt=SHORT, **BUDGET) == known.short
