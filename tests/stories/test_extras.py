"""What clients say and ask in `tandem`, or `nvext`: annotations, extra fields, a prompt's ids, the workers' names."""

from __future__ import annotations

from typing import Any

import pytest

from protocols.worker import worker_id_of
from tests.stories.house import House
from tests.stories.oracle import answer, answer_ids, chat_ids, ids_of, text_of
from tests.stories.wire import events_of

PROMPT = "Tell me of the sea."
USER: dict[str, Any] = {"role": "user", "content": PROMPT}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ALL = {
    "annotations": ["request_id", "token_ids", "formatted_prompt", "unheard-of"],
    "extra_fields": ["timing", "worker_id", "stop_reason", "completion_token_ids", "unheard-of"],
}
NAMES = pytest.mark.parametrize("name", ["tandem", "nvext"])
STREAMED = pytest.mark.parametrize("stream", [False, True])


def asked(model: str, name: str = "tandem", extras: Any = ALL, **fields: Any) -> dict[str, Any]:
    return {"model": model, "max_tokens": 8, "temperature": 0, name: extras, **fields}


def told(house: House, path: str, body: dict[str, Any], name: str = "tandem", **headers: str) -> dict[str, Any]:
    """The member, a stream's parts of it together."""
    reply = house.http.post(path, json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    answers = events_of(reply.content).chunks if body.get("stream") else [reply.json()]
    member: dict[str, Any] = {}
    for each in answers:
        member |= each.get(name, {})
    return member


@NAMES
@STREAMED
def test_all_that_is_asked_is_told_in_a_member_of_the_same_name(house: House, name: str, stream: bool) -> None:
    body = asked("pair-vllm", name, messages=[USER], stream=stream)

    member = told(house, CHAT, body, name, **{"x-request-id": "mine-1"})

    ids, prompt = answer_ids(chat_ids(USER), 8), chat_ids(USER)
    timing, workers = member.pop("timing"), member.pop("worker_id")
    assert member == {
        "request_id": "mine-1",
        "token_ids": prompt,
        "formatted_prompt": text_of(prompt),
        "stop_reason": None,
        "completion_token_ids": ids,
    }
    assert {"request_received_ms", "prefill_time_ms", "ttft_ms", "total_time_ms"} <= timing.keys()
    prefill, decode = workers["prefill_worker_id"], workers["decode_worker_id"]
    assert house.by_id(prefill).options.role == "prefill"
    assert house.by_id(decode).options.role == "decode"


@pytest.mark.parametrize("model", ["pair-sglang", "pair-trtllm", "solo-native"])
@STREAMED
def test_every_engine_s_answer_is_told_of(house: House, model: str, stream: bool) -> None:
    member = told(house, COMPLETIONS, asked(model, prompt=PROMPT, stream=stream))

    assert member["completion_token_ids"] == answer_ids(PROMPT, 8)
    assert (member["token_ids"], member["formatted_prompt"]) == (ids_of(PROMPT), PROMPT)
    assert "decode_worker_id" in member["worker_id"]


def test_annotations_come_before_the_answer_and_fields_after_it(house: House) -> None:
    body = asked("solo-vllm", messages=[USER], stream=True, stream_options={"include_usage": True})

    chunks = events_of(house.http.post(CHAT, json=body).content).chunks

    assert (chunks[0]["choices"], set(chunks[0]["tandem"])) == ([], {"request_id", "token_ids", "formatted_prompt"})
    assert (chunks[0]["usage"], chunks[-1]["usage"]["completion_tokens"]) == (None, 8)
    assert set(chunks[-1]["tandem"]) == {"timing", "worker_id", "stop_reason", "completion_token_ids"}
    assert all("tandem" not in chunk for chunk in chunks[1:-1])


def test_the_clients_own_parser_takes_a_stream_with_all_of_it(house: House) -> None:
    with house.sdk.chat.completions.stream(
        model="solo-vllm", messages=[USER], temperature=0, max_tokens=8, extra_body={"tandem": ALL}
    ) as stream:
        said = "".join(event.delta for event in stream if event.type == "content.delta")

    assert said == answer(chat_ids(USER), 8)


@STREAMED
def test_several_choices_and_prompts_are_told_in_their_order(house: House, stream: bool) -> None:
    body = asked("pair-vllm", prompt=["One.", "Two."], n=2, seed=5, temperature=1, stream=stream)

    member = told(house, COMPLETIONS, body)

    assert member["token_ids"] == [ids_of("One."), ids_of("Two.")]
    assert member["formatted_prompt"] == ["One.", "Two."]
    assert [len(ids) for ids in member["completion_token_ids"]] == [8] * 4
    assert member["stop_reason"] == [None] * 4


@STREAMED
def test_what_stopped_the_answer_is_told(house: House, stream: bool) -> None:
    word = answer(PROMPT, 8)[4:7]

    member = told(house, COMPLETIONS, asked("solo-sglang", prompt=PROMPT, stop=[word], stream=stream))

    assert member["stop_reason"] == word


@STREAMED
def test_who_asks_for_nothing_is_told_nothing(house: House, stream: bool) -> None:
    for extras in ({}, {"annotations": ["other"], "extra_fields": ["routed_experts"]}):
        assert told(house, COMPLETIONS, asked("solo-vllm", extras=extras, prompt=PROMPT, stream=stream)) == {}


@STREAMED
def test_an_explanation_stands_beside_it(house: House, stream: bool) -> None:
    body = asked("solo-vllm", prompt=PROMPT, stream=stream)

    member = told(house, COMPLETIONS, body, **{"x-tandem-explain": "1"})

    assert [choice["leg"] for choice in member["routing"]] == ["decode"]
    assert member["completion_token_ids"] == answer_ids(PROMPT, 8)


@STREAMED
def test_of_an_openai_server_s_answer_the_worker_and_the_times_are_told(house: House, stream: bool) -> None:
    body = asked("solo-openai", messages=[USER], stream=stream)

    member = told(house, CHAT, body, **{"x-request-id": "mine-2"})

    assert house.by_id(member["worker_id"]["decode_worker_id"]).options.model == "solo-openai"
    assert "total_time_ms" in member["timing"]
    assert member["request_id"] == "mine-2"


# ---- what is said


@pytest.mark.parametrize("model", ["pair-vllm", "solo-trtllm"])
@pytest.mark.parametrize(("path", "prompt"), [(CHAT, {"messages": [USER]}), (COMPLETIONS, {"prompt": PROMPT})])
def test_a_prompts_ids_take_the_place_of_its_text(house: House, model: str, path: str, prompt: dict[str, Any]) -> None:
    ids = ids_of("Another prompt.")

    member = told(house, path, asked(model, extras={**ALL, "token_data": ids}, **prompt))

    assert (member["token_ids"], member["formatted_prompt"]) == (ids, "Another prompt.")
    assert member["completion_token_ids"] == answer_ids(ids, 8)


def test_a_raw_prompt_is_not_put_into_the_template(house: House) -> None:
    member = told(house, CHAT, asked("solo-vllm", extras={**ALL, "use_raw_prompt": True}, messages=[USER]))

    assert member["formatted_prompt"] == PROMPT


def test_ids_outside_the_vocabulary_are_refused(house: House) -> None:
    body = asked("solo-vllm", extras={"token_data": [5, 10**6]}, prompt="Hi")

    reply = house.http.post(COMPLETIONS, json=body)

    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tandem.token_data[1]")


@NAMES
def test_a_request_goes_to_the_workers_that_it_names(house: House, name: str) -> None:
    prefill, decode = (house.workers("pair-vllm", role)[1] for role in ("prefill", "decode"))
    named = {"prefill_worker_id": str(worker_id_of(prefill.url)), "decode_worker_id": worker_id_of(decode.url)}
    extras = {**named, "extra_fields": ["worker_id"]}

    chosen = [
        told(house, COMPLETIONS, asked("pair-vllm", name, extras, prompt=PROMPT), name)["worker_id"] for _ in range(3)
    ]

    assert chosen == [{name: str(worker_id) for name, worker_id in named.items()}] * 3


def test_a_worker_that_is_not_there_is_the_clients_mistake(house: House) -> None:
    body = asked("solo-vllm", extras={"backend_instance_id": 5}, prompt=PROMPT)

    assert house.http.post(COMPLETIONS, json=body).status_code == 400
