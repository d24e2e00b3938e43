"""Calls for vectors and their replies, as real servers were recorded, and as none ever should answer."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

import orjson
import pytest

from engines.base import AttemptIds, EngineAdapter
from engines.embeddings import NativeEmbeddings, OpenAIEmbeddings, RelayedEmbeddings
from engines.messagepack import pack
from engines.native import NativeAdapter
from engines.openai_text import OpenAIAdapter, embed_call
from engines.sglang import SglangAdapter
from engines.trtllm import TrtllmAdapter
from engines.vllm import VllmAdapter
from protocols.errors import (
    EngineFailure,
    GatewayError,
    IncompleteReply,
    InternalError,
    InvalidRequest,
    ProtocolViolation,
    WorkerBusy,
    WorkerMisconfigured,
)
from protocols.outputs import EmbeddingsEngineOutput
from protocols.preprocessed import PreprocessedEmbeddingRequest
from protocols.worker import Engine, Worker, WorkerTraits

IDS = AttemptIds("ab" * 16, 2**40)
REQUEST = PreprocessedEmbeddingRequest(((5, 6), (7,)), "m", dimensions=8)
WORKERS = {kind: Worker(1, "http://w", kind, served_name="m") for kind in Engine}
TEXT, PICTURE = {"type": "text", "text": "The sea"}, {"type": "image_url", "image_url": {"url": "http://p/1"}}


def adapter(kind: type[EngineAdapter], engine: Engine) -> Any:
    return kind(WORKERS[engine], "m")


def packed(*numbers: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def document(*vectors: Any, **more: Any) -> bytes:
    data = [{"object": "embedding", "index": place, "embedding": vector} for place, vector in enumerate(vectors)]
    return orjson.dumps({"object": "list", "data": data, "usage": {"prompt_tokens": 3, "total_tokens": 3}, **more})


def read(parser: Any, body: bytes) -> Any:
    """The one output. Raises the parser's error."""
    assert parser.feed(body) == ()
    outputs = parser.end()
    if parser.error is not None:
        assert list(outputs) == []
        raise parser.error
    assert (len(outputs), parser.finish_seen) == (1, True)
    return outputs[0]


# ---- what is asked


def test_vllm_is_asked_for_base64_of_the_ids():
    call = adapter(VllmAdapter, Engine.VLLM).embed_call(REQUEST, IDS)

    assert (call.path, call.headers) == ("/v1/embeddings", (("X-Request-Id", IDS.name),))
    expected = {"model": "m", "input": [[5, 6], [7]], "encoding_format": "base64", "dimensions": 8}
    assert orjson.loads(call.body) == expected


def test_vllm_gets_content_parts_of_either_form_as_one_message():
    flat = {"text": "and", "image": "http://p/2"}

    call = adapter(VllmAdapter, Engine.VLLM).embed_call(
        PreprocessedEmbeddingRequest((), "m"), IDS, [TEXT, PICTURE, flat]
    )

    second = {"type": "image_url", "image_url": {"url": "http://p/2"}}
    content = [TEXT, PICTURE, {"type": "text", "text": "and"}, second]
    expected = {"model": "m", "encoding_format": "base64", "messages": [{"role": "user", "content": content}]}
    assert orjson.loads(call.body) == expected


def test_sglang_is_given_an_id_for_each_input_so_that_all_can_be_aborted():
    call = adapter(SglangAdapter, Engine.SGLANG).embed_call(REQUEST, IDS)

    expected = {
        "model": "m",
        "input": [[5, 6], [7]],
        "encoding_format": "base64",
        "dimensions": 8,
        "rid": [f"{IDS.name}_0", f"{IDS.name}_1"],
    }
    assert (call.path, orjson.loads(call.body)) == ("/v1/embeddings", expected)


@pytest.mark.parametrize(
    ("parts", "flat", "rid"),
    [
        ([TEXT], [{"text": "The sea"}], IDS.name),
        (
            [TEXT, PICTURE, {"text": "a", "image": "b"}],
            [{"text": "The sea"}, {"image": "http://p/1"}, {"text": "a", "image": "b"}],
            [f"{IDS.name}_{index}" for index in range(3)],
        ),
        ([{"type": "video_url", "video_url": "http://p/3"}], [{"video": "http://p/3"}], IDS.name),
    ],
)
def test_sglang_gets_content_parts_flat(parts, flat, rid):
    call = adapter(SglangAdapter, Engine.SGLANG).embed_call(PreprocessedEmbeddingRequest((), "m"), IDS, parts)

    body = orjson.loads(call.body)
    assert (body["input"], body["rid"]) == (flat, rid)


def test_a_part_that_sglang_has_no_word_for_is_refused_by_its_place():
    parts = [TEXT, {"type": "input_audio", "input_audio": {"data": "x"}}]

    with pytest.raises(InvalidRequest, match="input_audio") as refused:
        adapter(SglangAdapter, Engine.SGLANG).embed_call(PreprocessedEmbeddingRequest((), "m"), IDS, parts)

    assert refused.value.param == "input[1].type"


@pytest.mark.parametrize("binary", [False, True])
def test_a_native_worker_gets_the_request_itself(binary):
    worker = Worker(1, "http://w", Engine.NATIVE, served_name="own", traits=WorkerTraits(msgpack=binary))

    call = NativeAdapter(worker, "m").embed_call(REQUEST, IDS)

    expected = {"token_ids": [[5, 6], [7]], "model": "own", "dimensions": 8, "mdc_sum": None, "annotations": []}
    assert call.path == "/v1/native/embed"
    assert call.content_type == ("application/msgpack" if binary else "application/json")
    assert call.body == (pack(expected) if binary else orjson.dumps(expected))


def test_an_openai_worker_gets_the_request_as_it_came():
    asked = {"input": ["a", "b"], "dimensions": 8, "encoding_format": None, "truncate_prompt_tokens": 5, "odd": 1}

    call = embed_call({**asked, "model": "ours", "rid": "x", "tandem": {}}, WORKERS[Engine.OPENAI])

    assert (call.path, orjson.loads(call.body)) == ("/v1/embeddings", {**asked, "model": "m"})


def test_a_trtllm_worker_is_not_asked():
    trtllm = adapter(TrtllmAdapter, Engine.TRTLLM)

    assert not trtllm.embeds(parts=False)
    with pytest.raises(InternalError):
        trtllm.embed_call(REQUEST, IDS)


# ---- replies


@pytest.mark.parametrize("folder", ["vllm_embed", "sglang_embed"])
def test_recorded_vectors_are_read_in_both_encodings(golden, folder):
    numbers = golden(f"{folder}/e01_float.resp").body
    in_base64 = golden(f"{folder}/e02_base64_two.resp").body

    one, two = read(OpenAIEmbeddings(1), numbers), read(OpenAIEmbeddings(2), in_base64)

    told = orjson.loads(numbers)["data"][0]["embedding"]
    assert list(struct.unpack("<576f", base64.b64decode(one.embeddings[0]))) == told
    assert two.embeddings == [entry["embedding"] for entry in orjson.loads(in_base64)["data"]]
    assert struct.unpack("<576f", base64.b64decode(two.embeddings[0])) == pytest.approx(told, abs=1e-5)
    assert [(output.prompt_tokens, output.total_tokens) for output in (one, two)] == [(5, 5), (7, 7)]


@pytest.mark.parametrize(
    ("name", "inputs"),
    [("vllm_embed/e11_parts", 1), ("sglang_embed/e13_flat_parts_as_input", 2), ("sglang_embed/e19_rids", 2)],
)
def test_recorded_vectors_of_parts_are_read(golden, name, inputs):
    assert len(read(OpenAIEmbeddings(inputs), golden(f"{name}.resp").body).embeddings) == inputs


def test_the_order_is_the_indexes():
    data = [
        {"index": 1, "embedding": packed(1)},
        {"index": 2, "embedding": packed(2)},
        {"index": 0, "embedding": [0.5]},
    ]

    output = read(OpenAIEmbeddings(3), orjson.dumps({"data": data}))

    assert output == EmbeddingsEngineOutput([packed(0.5), packed(1), packed(2)], 0, 0)


def test_a_reply_is_the_same_however_it_is_cut():
    body = document(packed(1, 2), [3, 4.5])
    for cut in range(len(body)):
        parser = OpenAIEmbeddings(2)
        parser.feed(body[:cut])
        assert read(parser, body[cut:]).embeddings == [packed(1, 2), packed(3, 4.5)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'{"data": 5}',
        orjson.dumps({"data": []}),
        document(packed(1)),
        document(packed(1), packed(2), packed(3)),
        document(packed(1), ""),
        document(packed(1), []),
        document(packed(1), None),
        document(packed(1), [None]),
        document(packed(1), ["1"]),
        document(packed(1), [True]),
        document(packed(1), [1e300]),
        document(packed(1), "AAA="),
        document(packed(1), "AAAAA"),
        document(packed(1), packed(2))[:-1],
        document(packed(1), packed(2)).replace(b'"index":1', b'"index":0'),
        document(packed(1), packed(2)).replace(b'"index":1', b'"index":7'),
        document(packed(1), packed(2)).replace(b'"index":1', b'"index":"1"'),
    ],
    ids=lambda body: str(body[:40]),
)
def test_what_are_not_two_vectors_is_the_workers_failure(body):
    with pytest.raises((ProtocolViolation, IncompleteReply)):
        read(OpenAIEmbeddings(2), body)


def test_an_error_with_status_200_is_what_it_says():
    with pytest.raises(InvalidRequest, match="no such thing"):
        read(OpenAIEmbeddings(1), orjson.dumps({"object": "error", "message": "no such thing", "code": 400}))


def test_an_endless_reply_is_given_up_unread():
    parser, megabyte = OpenAIEmbeddings(1), bytes(2**20)
    for _ in range(65):
        parser.feed(megabyte)

    assert list(parser.end()) == []
    assert isinstance(parser.error, ProtocolViolation)
    assert "exceeds" in parser.error.message


# ---- answers passed on


@pytest.mark.parametrize("sent", [[1.0, 2.5], packed(1, 2.5)])
@pytest.mark.parametrize("floats", [False, True])
def test_an_answer_passes_in_the_encoding_that_was_asked_for(sent, floats):
    body = document(sent, model="theirs", id="theirs", usage={"prompt_tokens": 1, "odd": 2})

    answer = read(RelayedEmbeddings(1, model="ours", floats=floats), body)

    entry = {"object": "embedding", "index": 0, "embedding": [1.0, 2.5] if floats else packed(1, 2.5)}
    expected = {
        "object": "list",
        "model": "ours",
        "data": [entry],
        "id": "theirs",
        "usage": {"prompt_tokens": 1, "odd": 2},
    }
    assert answer == expected


def test_an_answer_without_usage_tells_zeros():
    body = orjson.dumps({"data": [{"embedding": [1.0]}]})

    assert read(RelayedEmbeddings(None, model="m", floats=True), body)["usage"] == {
        "prompt_tokens": 0,
        "total_tokens": 0,
    }


# ---- native


@pytest.mark.parametrize("encode", [orjson.dumps, pack])
def test_a_native_answer_is_read_in_either_codec(encode):
    body = encode({"embeddings": [packed(1), packed(2)], "prompt_tokens": 3, "total_tokens": 3})

    assert read(NativeEmbeddings(2), body) == EmbeddingsEngineOutput([packed(1), packed(2)], 3, 3)


@pytest.mark.parametrize(
    "body",
    [
        orjson.dumps({"embeddings": [packed(1)]}),
        orjson.dumps({"embeddings": [[1.0], [2.0]], "prompt_tokens": 3, "total_tokens": 3}),
        orjson.dumps({"embeddings": [packed(1)], "prompt_tokens": 3, "total_tokens": 3}),
        orjson.dumps({"embeddings": [packed(1), "AAA="], "prompt_tokens": 3, "total_tokens": 3}),
        pack({"embeddings": [packed(1), packed(2)], "prompt_tokens": 3, "total_tokens": 3})[:-1],
        pack([1]),
        b"\xdf\xff\xff\xff\xff",
    ],
    ids=lambda body: str(body[:40]),
)
def test_what_is_no_native_answer_is_the_workers_failure(body):
    with pytest.raises((ProtocolViolation, IncompleteReply)):
        read(NativeEmbeddings(2), body)


@pytest.mark.parametrize("encode", [orjson.dumps, pack])
def test_a_native_error_with_status_200_is_what_it_says(encode):
    with pytest.raises(EngineFailure, match="CUDA"):
        read(NativeEmbeddings(1), encode({"error": {"message": "CUDA error", "code": 500}}))


# ---- refusals


@pytest.mark.parametrize(
    ("kind", "engine", "name", "expected", "words"),
    [
        (VllmAdapter, Engine.VLLM, "vllm_embed/e05_dimensions", InvalidRequest, "Matryoshka"),
        (VllmAdapter, Engine.VLLM, "vllm_embed/e06_too_long", InvalidRequest, "513"),
        (VllmAdapter, Engine.VLLM, "vllm_embed/e14_completions_there", InvalidRequest, "makes no embeddings"),
        (SglangAdapter, Engine.SGLANG, "sglang_embed/e05_dimensions", InvalidRequest, "matryoshka"),
        (SglangAdapter, Engine.SGLANG, "sglang_embed/e06_too_long", InvalidRequest, "513"),
    ],
)
def test_a_recorded_refusal_is_the_requests_fault(golden, kind, engine, name, expected, words):
    reply = golden(f"{name}.resp")

    error = adapter(kind, engine).embed_rejection(reply.status, reply.body)

    assert isinstance(error, expected)
    assert words in error.message


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (404, {"detail": "Not Found"}, InvalidRequest),
        (405, {"detail": "Method Not Allowed"}, InvalidRequest),
        (404, {"error": {"message": "no model", "code": "model_not_found"}}, WorkerMisconfigured),
        (501, {"error": {"message": "Start it with `--embeddings`", "type": "not_supported_error"}}, InvalidRequest),
        (401, {"error": "Unauthorized"}, WorkerMisconfigured),
        (429, {"error": "busy"}, WorkerBusy),
        (500, {"error": "broken"}, EngineFailure),
    ],
)
@pytest.mark.parametrize(
    ("kind", "engine"),
    [(SglangAdapter, Engine.SGLANG), (NativeAdapter, Engine.NATIVE), (OpenAIAdapter, Engine.OPENAI)],
)
def test_a_missing_route_is_the_models_and_all_else_as_ever(kind, engine, status, body, expected):
    error: GatewayError = adapter(kind, engine).embed_rejection(status, orjson.dumps(body))

    assert type(error) is expected


def test_a_model_that_vllm_does_not_know_is_ours_to_configure(golden):
    reply = golden("vllm_embed/e08_unknown_model.resp")
    ours = VllmAdapter(Worker(1, "http://w", Engine.VLLM, served_name="nobody"), "m")

    assert isinstance(ours.embed_rejection(reply.status, reply.body), WorkerMisconfigured)


def test_a_vector_of_no_numbers_is_seen_when_numbers_are_wanted():
    with pytest.raises(ProtocolViolation, match="finite"):
        read(RelayedEmbeddings(1, model="m", floats=True), document(packed(1.0, math.nan)))
