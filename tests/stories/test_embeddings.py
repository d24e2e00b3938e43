"""Vectors through the real client: every shape of input, both encodings, every kind of worker that makes them."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.types import CreateEmbeddingResponse

from simulator.embeddings import vector_of
from simulator.model import Pace
from tests.stories.house import Hosted, House, solo
from tests.stories.oracle import ids_of
from tests.stories.test_front_door import assert_envelope
from tests.stories.wire import Reply

MODELS = ["solo-vllm", "solo-sglang", "solo-native", "solo-openai"]
TOKEN_MODELS = MODELS[:-1]
SIZE = 64
VOCABULARY = 6893
TEXTS = ["Tell me of the sea", "and of the ships", "naïve 日本語 👩‍👩‍👧"]


def expected(*inputs: Any) -> list[list[float]]:
    return [vector_of(ids_of(given) if isinstance(given, str) else given, SIZE) for given in inputs]


def vectors_of(response: CreateEmbeddingResponse) -> list[list[float]]:
    return [list(entry.embedding) for entry in response.data]


def post(house: House, body: Any, path: str = "/v1/embeddings", **headers: str) -> Reply:
    with house.wire() as wire:
        wire.post(path, body, **headers)
        return wire.reply()


# ---- the client asks


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("encoding", [openai.NOT_GIVEN, "float", "base64"], ids=str)
def test_a_text_becomes_the_vector_that_the_model_makes_of_it(house: House, model: str, encoding: Any) -> None:
    response = house.sdk.embeddings.create(model=model, input=TEXTS[0], encoding_format=encoding)

    assert (response.object, response.model) == ("list", model)
    entry = response.data[0]
    assert (len(response.data), entry.object, entry.index) == (1, "embedding", 0)
    vector = entry.embedding if encoding != "base64" else floats_of(entry.embedding)
    assert list(vector) == expected(TEXTS[0])[0]
    tokens = len(ids_of(TEXTS[0]))
    assert (response.usage.prompt_tokens, response.usage.total_tokens) == (tokens, tokens)


def floats_of(packed: Any) -> list[float]:
    raw = base64.b64decode(packed)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


@pytest.mark.parametrize("model", MODELS)
def test_each_shape_of_input_is_answered_in_its_order(house: House, model: str) -> None:
    first, second = [5, 6, 7], [8]
    shapes: list[Any] = [TEXTS, [TEXTS[0]], first, [first], [first, second], [second, first, second]]

    told = [vectors_of(house.sdk.embeddings.create(model=model, input=shape)) for shape in shapes]

    assert told == [
        expected(*TEXTS),
        expected(TEXTS[0]),
        expected(first),
        expected(first),
        expected(first, second),
        expected(second, first, second),
    ]


def test_as_many_inputs_as_openai_takes_are_taken(house: House) -> None:
    """Slow: a simulated worker makes 2048 vectors."""
    inputs = [[place % 1000, 5] for place in range(2048)]

    response = house.sdk.embeddings.create(model="solo-vllm", input=inputs)

    assert [entry.index for entry in response.data] == list(range(2048))
    assert vectors_of(response)[::500] == expected(*inputs[::500])
    assert response.usage.prompt_tokens == 4096


@pytest.mark.parametrize("model", MODELS)
def test_fewer_dimensions_are_what_the_model_makes_of_them(house: House, model: str) -> None:
    response = house.sdk.embeddings.create(model=model, input=[5, 6], dimensions=8)

    assert vectors_of(response) == [vector_of([5, 6], 8)]


@pytest.mark.parametrize("model", MODELS)
def test_dimensions_that_the_model_does_not_have_are_the_clients_fault(house: House, model: str) -> None:
    with pytest.raises(openai.BadRequestError, match="dimensions") as refused:
        house.sdk.embeddings.create(model=model, input=[5, 6], dimensions=SIZE + 1)

    assert refused.value.param == ("dimensions" if model in TOKEN_MODELS else None)


def test_nulls_and_unknown_fields_change_nothing(house: House) -> None:
    body = {"model": "solo-vllm", "input": [5], "dimensions": None, "encoding_format": None, "user": None, "odd": 1}

    reply = post(house, body)

    assert (reply.status, reply.json()["data"][0]["embedding"]) == (200, expected([5])[0])
    assert set(reply.json()) == {"object", "model", "data", "usage"}
    assert set(reply.json()["usage"]) == {"prompt_tokens", "total_tokens"}


def test_a_model_answers_by_the_name_it_was_called(house: House) -> None:
    assert house.sdk.embeddings.create(model="org/alias", input="x").model == "org/alias"


# ---- content parts


PICTURE = {"type": "image_url", "image_url": {"url": "http://pictures.test/1.png"}}


@pytest.mark.parametrize("model", ["solo-vllm", "solo-openai"])
def test_content_parts_are_forwarded_and_make_one_vector(house: House, model: str) -> None:
    reply = post(house, {"model": model, "input": [{"type": "text", "text": "The sea"}, PICTURE]})

    assert (reply.status, len(reply.json()["data"])) == (200, 1)
    assert reply.json()["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize(
    "parts",
    [[{"type": "text", "text": "The sea"}, PICTURE], [{"text": "The sea"}, {"image": PICTURE["image_url"]["url"]}]],
)
def test_sglang_makes_a_vector_of_each_part_in_either_form(house: House, parts: list[Any]) -> None:
    reply = post(house, {"model": "solo-sglang", "input": parts})

    url = "http://pictures.test/1.png"
    assert [entry["embedding"] for entry in reply.json()["data"]] == expected("The sea", url)


@pytest.mark.parametrize("model", ["solo-native", "solo-trtllm"])
def test_content_parts_that_no_worker_takes_are_refused(house: House, model: str) -> None:
    error = assert_envelope(post(house, {"model": model, "input": [PICTURE]}), 400)

    assert error["param"] == "model"
    assert "content parts" in error["message"]


# ---- inputs that are too long


LONGEST = [("solo-vllm", 8192), ("solo-sglang", 8191), ("solo-native", 8192)]
"""SGLang wants a token's room beside the input."""


@pytest.mark.parametrize(("model", "longest"), LONGEST)
def test_an_input_as_long_as_the_context_is_taken(house: House, model: str, longest: int) -> None:
    assert post(house, {"model": model, "input": [5] * longest}).status == 200


@pytest.mark.parametrize(("model", "longest"), LONGEST)
def test_an_input_longer_than_the_context_is_told_with_both_numbers(house: House, model: str, longest: int) -> None:
    error = assert_envelope(post(house, {"model": model, "input": [[5], [5] * (longest + 1)]}), 400)

    assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")
    assert f"at most {longest} tokens, but 'input[1]' has {longest + 1}" in error["message"]


@pytest.mark.parametrize(("side", "kept"), [(None, [1, 2, 3]), ("right", [1, 2, 3]), ("left", [7, 8, 9])], ids=str)
@pytest.mark.parametrize("model", TOKEN_MODELS)
def test_a_long_input_is_cut_where_the_client_asks_for_it(house: House, model: str, side: Any, kept: list[int]) -> None:
    reply = post(
        house, {"model": model, "input": [[*range(1, 10)]], "truncate_prompt_tokens": 3, "truncation_side": side}
    )

    assert reply.json()["data"][0]["embedding"] == expected(kept)[0]
    assert reply.json()["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize(("model", "longest"), LONGEST)
def test_minus_one_cuts_to_the_context(house: House, model: str, longest: int) -> None:
    reply = post(house, {"model": model, "input": [5] * 9000, "truncate_prompt_tokens": -1})

    assert reply.json()["usage"]["prompt_tokens"] == longest


# ---- inputs that are none


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("input", {}),
        ("input", {"input": None}),
        ("input", {"input": ""}),
        ("input", {"input": []}),
        ("input", {"input": 5}),
        ("input", {"input": {"text": "x"}}),
        ("input", {"input": True}),
        ("input", {"input": [[5]] * 2049}),
        ("input", {"input": ["x"] * 2049}),
        ("input[0]", {"input": [""]}),
        ("input[0]", {"input": [None]}),
        ("input[0]", {"input": [True]}),
        ("input[0]", {"input": [1.5]}),
        ("input[1]", {"input": ["x", 5]}),
        ("input[1]", {"input": ["x", ""]}),
        ("input[1]", {"input": [5, "x"]}),
        ("input[1]", {"input": [5, -1]}),
        ("input[1]", {"input": [5, VOCABULARY]}),
        ("input[0]", {"input": [[]]}),
        ("input[1]", {"input": [[5], "x"]}),
        ("input[1]", {"input": [[5], []]}),
        ("input[1][0]", {"input": [[5], [VOCABULARY]]}),
        ("input[1][1]", {"input": [[5], [6, 2**40]]}),
        ("input[0].type", {"input": [{}]}),
        ("input[0].type", {"input": [{"words": "x"}]}),
        ("input[0].text", {"input": [{"text": 5}]}),
        ("input[0].text", {"input": [{"type": "text"}]}),
        ("input[1]", {"input": [{"text": "x"}, "x"]}),
        ("model", {"model": "", "input": "x"}),
        ("model", {"model": None, "input": "x"}),
        ("dimensions", {"input": "x", "dimensions": 0}),
        ("dimensions", {"input": "x", "dimensions": 1.5}),
        ("dimensions", {"input": "x", "dimensions": "8"}),
        ("encoding_format", {"input": "x", "encoding_format": "float16"}),
        ("encoding_format", {"input": "x", "encoding_format": 5}),
        ("user", {"input": "x", "user": 5}),
        ("truncate_prompt_tokens", {"input": "x", "truncate_prompt_tokens": 0}),
        ("truncate_prompt_tokens", {"input": "x", "truncate_prompt_tokens": -2}),
        ("truncation_side", {"input": "x", "truncation_side": "middle"}),
        ("normalize", {"input": "x", "normalize": False}),
        ("endianness", {"input": "x", "endianness": "big"}),
        ("nvext", {"input": "x", "tandem": {}, "nvext": {}}),
    ],
)
def test_a_wrong_request_is_told_by_its_place_and_no_worker_hears_of_it(
    house: House, param: str, fields: dict[str, Any]
) -> None:
    chosen = house.count("choices")

    error = assert_envelope(post(house, {"model": "solo-vllm", **fields}), 400)

    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param in error["message"]
    assert len(error["message"]) < 300
    assert house.count("choices") == chosen


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"model": "solo-vllm", "input": NaN}'])
def test_a_body_that_is_no_json_object_is_told_so(house: House, body: bytes) -> None:
    assert_envelope(post(house, body), 400)


# ---- models that make none


@pytest.mark.parametrize("model", ["solo-trtllm", "pair-vllm", "pair-sglang", "pair-trtllm", "pair-native"])
def test_a_model_without_workers_for_it_makes_no_embeddings(house: House, model: str) -> None:
    error = assert_envelope(post(house, {"model": model, "input": "x"}), 400)

    assert error["param"] == "model"
    assert f"'{model}' makes no embeddings" in error["message"]


def test_an_unknown_model_is_a_404(house: House) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        house.sdk.embeddings.create(model="nobody", input="x")


@pytest.fixture(scope="module")
def generating_house() -> Any:
    models = [
        *(solo(engine, embedding_size=0) for engine in ("vllm", "sglang", "native", "openai")),
        Hosted("embeds", "vllm", settings={"kind": "embed"}),
        Hosted("generates", "vllm", settings={"kind": "generate"}),
    ]
    with House(models) as house:
        yield house
        house.rest()


@pytest.mark.parametrize("model", MODELS)
def test_a_model_whose_server_makes_none_is_the_clients_fault_and_not_the_workers(
    generating_house: House, model: str
) -> None:
    for _ in range(4):
        assert_envelope(post(generating_house, {"model": model, "input": "x"}), 400)

    states = generating_house.call(generating_house.gateway.registry.states)
    assert {state.failures for state in states if state.model == model} == {0}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_an_embedding_model_generates_nothing(generating_house: House, path: str) -> None:
    body = {"model": "embeds", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}

    error = assert_envelope(post(generating_house, body, path), 400)

    assert (error["param"], error["message"]) == ("model", "The model 'embeds' makes embeddings and generates no text.")
    assert post(generating_house, {"model": "embeds", "input": "x"}).status == 200


def test_a_generating_model_embeds_nothing(generating_house: House) -> None:
    error = assert_envelope(post(generating_house, {"model": "generates", "input": "x"}), 400)

    assert error["message"] == "The model 'generates' generates text and makes no embeddings."


# ---- workers that fail


FAULTS = [
    "reset@request",
    "close@request",
    "garbage@head",
    "truncate@last",
    "status=500@request",
    "status=503@request",
    "reset@connect",
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "native", "openai"])
def test_a_request_goes_to_another_worker_when_its_own_fails(
    open_house: Callable[..., House], engine: str, fault: str
) -> None:
    house = open_house(solo(engine, workers=2))
    for simulator in house.workers(f"solo-{engine}")[:1]:
        house.call(simulator.worker.faults.add, fault)

    told = [post(house, {"model": f"solo-{engine}", "input": [5, place + 6]}) for place in range(2)]

    assert [reply.status for reply in told] == [200, 200]
    assert [reply.json()["data"][0]["embedding"] for reply in told] == expected([5, 6], [5, 7])
    assert house.workers(f"solo-{engine}")[0].state()["faults_committed"] == 1


def test_when_every_worker_fails_the_client_is_told_so(open_house: Callable[..., House]) -> None:
    house = open_house(solo("vllm", workers=2))
    for simulator in house.workers("solo-vllm"):
        house.call(simulator.worker.faults.add, "status=500@request*0")

    error = assert_envelope(post(house, {"model": "solo-vllm", "input": [5]}), 503)

    assert error["code"] == "no_available_workers"
    assert house.count("finished", endpoint="embeddings", status="error") == 1


def test_a_worker_that_says_nothing_is_given_up_within_its_deadline(open_house: Callable[..., House]) -> None:
    house = open_house(solo("vllm", workers=2), deadlines={"first_token_s": 0.3, "first_token_per_1000_s": 0.0})
    house.call(house.workers("solo-vllm")[0].worker.faults.add, "silence@request")

    told = [post(house, {"model": "solo-vllm", "input": [5]}).status for _ in range(2)]

    assert told == [200, 200]


# ---- clients that leave


SLOW = Pace(ttft_s=20.0, prefill_s=1e-6, decode_s=0.01)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "native", "openai"])
def test_leaving_frees_the_worker(open_house: Callable[..., House], engine: str) -> None:
    house = open_house(solo(engine, pace=SLOW))
    model = f"solo-{engine}"
    wire = house.wire()
    wire.post("/v1/embeddings", {"model": model, "input": [[5], [6]]})
    house.eventually(lambda: house.workers(model)[0].worker.answers)

    wire.close()

    house.settle(within_s=1)
    assert house.count("disconnects", model=model, endpoint="embeddings") == 1


# ---- what is told of it


def test_an_answer_is_counted_and_says_how_long_it_took(house: House) -> None:
    def counted() -> tuple[float, float]:
        ended = house.count("finished", model="solo-vllm", endpoint="embeddings", status="success")
        return ended, house.count("input_tokens", model="solo-vllm")

    ended, tokens = counted()

    reply = post(house, {"model": "solo-vllm", "input": [[5], [6, 7]]}, **{"x-request-id": "mine"})

    assert reply.header("openai-processing-ms").isdigit()
    assert reply.header("x-request-id") == "mine"
    house.settle()
    assert counted() == (ended + 1, tokens + 3)


@pytest.mark.parametrize("model", ["solo-sglang", "solo-openai"])
def test_who_made_it_is_told_to_who_asks(house: House, model: str) -> None:
    reply = post(house, {"model": model, "input": [5]}, **{"x-tandem-explain": "1"})

    assert house.by_id(reply.header("x-tandem-decode-worker")).options.model == model
    assert reply.json()["tandem"]["routing"][0]["worker"] == reply.header("x-tandem-decode-worker")


@pytest.mark.parametrize("engine", ["vllm", "openai"])
def test_a_request_goes_to_the_worker_that_its_header_names(open_house: Callable[..., House], engine: str) -> None:
    house = open_house(solo(engine, workers=3))
    asked = {"model": f"solo-{engine}", "input": [5]}
    first = post(house, asked, **{"x-tandem-explain": "1"}).header("x-tandem-decode-worker")

    again = [post(house, asked, **{"x-tandem-explain": "1", "x-tandem-worker": first}) for _ in range(3)]

    assert {reply.header("x-tandem-decode-worker") for reply in again} == {first}
