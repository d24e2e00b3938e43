"""/tokenize and /detokenize as clients of vLLM use them, without a worker's help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from tests.golden_files import recording
from tests.stories.house import House, demo_tokenizer, solo
from tests.stories.oracle import chat_ids, ids_of
from tests.stories.test_front_door import assert_envelope
from tests.stories.wire import Reply

PATHS = [("/tokenize", "/detokenize"), ("/v1/tokenize", "/v1/detokenize"), ("/tokenize/", "/v1/detokenize/")]
USER: dict[str, Any] = {"role": "user", "content": "Of the sea?"}
TEXT = "Tell me of naïve ships 日本語 👩‍👩‍👧."
VOCABULARY = 6893
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def post(house: House, path: str, body: Any, **headers: str) -> Reply:
    with house.wire() as wire:
        wire.post(path, body, **headers)
        return wire.reply()


@pytest.mark.parametrize(("tokenize", "detokenize"), PATHS)
def test_a_text_becomes_ids_and_the_ids_the_text(house: House, tokenize: str, detokenize: str) -> None:
    ids = post(house, tokenize, {"model": "solo-vllm", "prompt": TEXT}).json()
    text = post(house, detokenize, {"model": "solo-vllm", "tokens": ids["tokens"]}).json()

    count = len(ids_of(TEXT))
    assert ids == {"count": count, "max_model_len": 8192, "tokens": ids_of(TEXT), "token_strs": None}
    assert text == {"prompt": TEXT}


def test_the_answers_have_the_members_of_vllms(house: House) -> None:
    """As recorded of vLLM 0.32."""
    for name in ("10_tokenize_prompt", "11_tokenize_chat", "12_detokenize"):
        recorded = recording("vllm_tokenize", name)

        reply = post(house, recorded.path, {**recorded.request, "model": "pair-vllm", **known(recorded.request)})

        assert reply.status == recorded.status
        assert {key: type(value) for key, value in reply.json().items()} == types_of(recorded.body)


def known(request: Any) -> dict[str, Any]:
    """Ids that the demo's model has."""
    return {"tokens": [token_id % VOCABULARY for token_id in request["tokens"]]} if "tokens" in request else {}


def types_of(body: bytes) -> dict[str, type]:
    return {key: type(value) for key, value in orjson.loads(body).items()}


def test_names_of_tokens_are_those_of_the_vocabulary(house: House) -> None:
    told = post(house, "/tokenize", {"model": "solo-vllm", "prompt": "of the sea", "return_token_strs": True}).json()

    assert "".join(told["token_strs"]).replace("Ġ", " ") == "of the sea"
    assert any(name.startswith("Ġ") for name in told["token_strs"])
    assert len(told["token_strs"]) == told["count"]


@pytest.mark.parametrize("model", ["solo-vllm", "pair-sglang", "chat"])
def test_a_chat_becomes_the_ids_that_it_would_be_sent_with(house: House, model: str) -> None:
    system = {"role": "system", "content": "Be brief."}

    told = post(house, "/tokenize", {"model": model, "messages": [system, USER]}).json()

    assert told["tokens"] == chat_ids(system, USER)
    usage = house.sdk.chat.completions.create(model=model, messages=[system, USER], max_tokens=1).usage  # type: ignore[list-item]
    assert usage is not None
    assert usage.prompt_tokens == told["count"]


def ids_with(house: House, **fields: Any) -> list[int]:
    return post(house, "/tokenize", {"model": "solo-vllm", "messages": [USER], **fields}).json()["tokens"]


def test_what_a_template_is_told_changes_the_ids(house: House) -> None:
    usual = ids_with(house)
    unopened = ids_with(house, add_generation_prompt=False)
    continued = ids_with(house, messages=[USER, {"role": "assistant", "content": "It is"}], continue_final_message=True)

    assert usual == ids_with(house, add_generation_prompt=True) == ids_with(house, tools=[])
    assert usual[: len(unopened)] == unopened
    assert len(unopened) < len(usual)
    assert demo_tokenizer()[0].decode(continued).endswith("It is")
    assert ids_with(house, tools=[TOOL]) != usual


@pytest.mark.parametrize("special", [True, False])
def test_special_tokens_are_put_in_front_where_the_tokenizer_has_some(house: House, special: bool) -> None:
    model: Any = house.gateway.models.get("solo-vllm")

    body = {"model": "solo-vllm", "prompt": "sea", "add_special_tokens": special}
    told = post(house, "/tokenize", body).json()

    assert told["tokens"] == model.tokenizer.encode("sea", add_special_tokens=special)


def test_no_text_is_no_tokens(house: House) -> None:
    assert post(house, "/tokenize", {"model": "solo-vllm", "prompt": ""}).json()["count"] == 0
    assert post(house, "/detokenize", {"model": "solo-vllm", "tokens": []}).json() == {"prompt": ""}


def test_a_long_text_is_read_off_the_loop_and_is_the_same(house: House) -> None:
    long = "of the sea and of the ships " * 2000

    told = post(house, "/tokenize", {"model": "solo-vllm", "prompt": long}).json()

    assert told["tokens"] == ids_of(long)
    assert post(house, "/detokenize", {"model": "solo-vllm", "tokens": told["tokens"]}).json() == {"prompt": long}


def test_special_tokens_are_shown(house: House) -> None:
    ids = chat_ids(USER)

    told = post(house, "/detokenize", {"model": "solo-vllm", "tokens": ids}).json()

    assert told == {"prompt": demo_tokenizer()[0].decode(ids)}


# ---- refusals


@pytest.mark.parametrize(
    ("path", "param", "fields"),
    [
        ("/tokenize", "prompt", {}),
        ("/tokenize", "prompt", {"prompt": None}),
        ("/tokenize", "prompt", {"prompt": ["a"]}),
        ("/tokenize", "prompt", {"prompt": 5}),
        ("/tokenize", "messages", {"messages": []}),
        ("/tokenize", "messages", {"messages": [USER], "prompt": "a"}),
        ("/tokenize", "messages[0].content", {"messages": [{"role": "user"}]}),
        ("/tokenize", "add_special_tokens", {"prompt": "a", "add_special_tokens": "yes"}),
        ("/tokenize", "return_token_strs", {"prompt": "a", "return_token_strs": 1}),
        ("/tokenize", "return_token_strs", {"messages": [USER], "return_token_strs": 1}),
        (
            "/tokenize",
            "continue_final_message",
            {"messages": [USER], "add_generation_prompt": True, "continue_final_message": True},
        ),
        ("/tokenize", "chat_template", {"messages": [USER], "chat_template": "{{ 1 }}"}),
        ("/detokenize", "tokens", {}),
        ("/detokenize", "tokens", {"tokens": None}),
        ("/detokenize", "tokens", {"tokens": "5"}),
        ("/detokenize", "tokens[1]", {"tokens": [5, "6"]}),
        ("/detokenize", "tokens[0]", {"tokens": [True]}),
        ("/detokenize", "tokens[1]", {"tokens": [5, -1]}),
        ("/detokenize", "tokens[1]", {"tokens": [5, VOCABULARY]}),
        ("/detokenize", "tokens[0]", {"tokens": [2**40]}),
    ],
)
def test_a_wrong_request_is_told_by_its_place(house: House, path: str, param: str, fields: dict[str, Any]) -> None:
    error = assert_envelope(post(house, path, {"model": "solo-vllm", **fields}), 400)

    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff"])
@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_a_body_that_is_no_json_object_is_told_so(house: House, path: str, body: bytes) -> None:
    assert_envelope(post(house, path, body), 400)


def test_no_worker_hears_of_it_and_no_model_is_said_to_have_answered(house: House) -> None:
    before = house.count("choices"), house.count("started"), house.count("finished")

    post(house, "/tokenize", {"model": "solo-vllm", "messages": [USER]})
    post(house, "/detokenize", {"model": "solo-vllm", "tokens": [5]})
    post(house, "/detokenize", {"model": "solo-vllm", "tokens": "5"})

    assert (house.count("choices"), house.count("started"), house.count("finished")) == before


@pytest.mark.parametrize(("path", "asked"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [5]})])
def test_a_model_must_be_named_where_there_are_several(house: House, path: str, asked: dict[str, Any]) -> None:
    assert assert_envelope(post(house, path, asked), 400)["param"] == "model"
    assert assert_envelope(post(house, path, {"model": "nobody", **asked}), 404)["code"] == "model_not_found"


@pytest.mark.parametrize(("path", "asked"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [5]})])
def test_a_model_whose_tokenizer_is_not_here_is_refused(house: House, path: str, asked: dict[str, Any]) -> None:
    error = assert_envelope(post(house, path, {"model": "solo-openai", **asked}), 400)

    assert error["param"] == "model"
    assert "tokenizer" in error["message"]


class TestAlone:
    @pytest.fixture
    def house(self, open_house: Callable[..., House]) -> House:
        return open_house(solo("vllm"))

    def test_the_only_model_need_not_be_named(self, house: House) -> None:
        assert post(house, "/tokenize", {"prompt": "sea"}).json()["tokens"] == ids_of("sea")
        assert post(house, "/tokenize", {"messages": [USER], "model": None}).json()["tokens"] == chat_ids(USER)
        assert post(house, "/detokenize", {"tokens": ids_of("sea")}).json() == {"prompt": "sea"}
