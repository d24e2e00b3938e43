"""A model's way from texts to vectors, around a worker that answers as it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from engines import adapter_for
from pipeline.embeddings import TokenEmbeddings
from protocols.errors import ContextLengthExceeded, InvalidRequest, ProtocolViolation
from protocols.model_card import ModelCard
from protocols.openai import parse_embedding
from protocols.outputs import EmbeddingsEngineOutput
from protocols.preprocessed import PreprocessedEmbeddingRequest, RoutingHints
from protocols.vectors import pack_vector
from protocols.worker import Engine, Role, Worker
from routers.base import Candidate
from tests.text.small_tokenizers import byte_level

CARD = ModelCard("m", vocab_size=300, checksum="c")
VLLM, SGLANG, TRTLLM = (
    Worker(place, f"http://{place}", kind) for place, kind in enumerate((Engine.VLLM, Engine.SGLANG, Engine.TRTLLM))
)
DECODE = Worker(7, "http://7", Engine.VLLM, Role.DECODE)


@dataclass
class Workers:
    """The registry and the router, as far as vectors need them."""

    workers: Sequence[Worker]
    model: str = "m"

    @property
    def registry(self) -> Workers:
        return self

    def candidates(self, model: str, leg: object) -> list[Candidate]:
        return [Candidate(worker) for worker in self.workers]

    def adapter(self, worker_id: int) -> Any:
        return adapter_for(next(worker for worker in self.workers if worker.id == worker_id), self.model)


@dataclass
class Answering:
    """In place of `Attempts`: always the same vectors."""

    vectors: Sequence[str]
    workers: Sequence[Worker] = (VLLM,)
    hints: list[RoutingHints | None] = field(default_factory=list)

    @property
    def router(self) -> Workers:
        return Workers(self.workers)

    async def __call__(self, talk: Any, hints: RoutingHints | None, context: Any) -> EmbeddingsEngineOutput:
        self.hints.append(hints)
        return EmbeddingsEngineOutput(list(self.vectors), 40, 40)


async def prepared(answering: Answering, given: Any, longest: int | None = 100, **fields: Any) -> Any:
    service = TokenEmbeddings(CARD, byte_level(), lambda: longest, answering)  # type: ignore[arg-type]
    return await service.prepare(parse_embedding(orjson.dumps({"model": "alias", "input": given, **fields})), None)


async def answered(answering: Answering, given: Any, **fields: Any) -> dict[str, Any]:
    job = await prepared(answering, given, **fields)
    body: dict[str, Any] = orjson.loads(await job.run(None, lambda: None))
    return body


async def test_the_workers_request_is_the_seeds_value():
    job = await prepared(
        Answering([]),
        ["ab", "c"],
        dimensions=4,
        encoding_format="base64",
        truncate_prompt_tokens=50,
        nvext={"annotations": ["a"]},
    )

    assert job.request == PreprocessedEmbeddingRequest(
        token_ids=(tuple(b"ab"), tuple(b"c")),
        model="m",
        encoding_format="base64",
        truncate_prompt_tokens=50,
        dimensions=4,
        mdc_sum="c",
        annotations=("a",),
    )
    assert job.usage.prompt_tokens() == 3


async def test_tokens_are_counted_by_us_whatever_the_worker_says():
    assert (await answered(Answering([pack_vector([1.0])]), "abc"))["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


async def test_only_the_worker_can_count_content_parts():
    told = await answered(Answering([pack_vector([1.0])]), [{"type": "text", "text": "abc"}])

    assert told["usage"] == {"prompt_tokens": 40, "total_tokens": 40}


async def test_dimensions_that_were_passed_over_are_refused_and_not_answered():
    answering = Answering([pack_vector([1.0, 2.0]), pack_vector([1.0, 2.0, 3.0])])

    with pytest.raises(InvalidRequest, match="3 numbers, not 2") as refused:
        await answered(answering, ["a", "b"], dimensions=2)

    assert refused.value.param == "dimensions"


async def test_a_number_that_is_none_is_the_workers_failure():
    with pytest.raises(ProtocolViolation, match="finite"):
        await answered(Answering(["AADAfw=="]), "a")


async def test_many_numbers_are_written_off_the_loop_and_are_the_same():
    vectors = [pack_vector([float(place)] * 1024) for place in range(30)]

    told = await answered(Answering(vectors), ["a"] * 30)

    assert [entry["embedding"][0] for entry in told["data"]] == [float(place) for place in range(30)]


async def test_a_long_input_is_read_off_the_loop():
    job = await prepared(Answering([]), ["a" * 20_000], longest=None)

    assert job.usage.prompt_tokens() == 20_000


@pytest.mark.parametrize(("workers", "room"), [([VLLM], 4), ([SGLANG], 3), ([VLLM, SGLANG], 3), ([VLLM, TRTLLM], 4)])
async def test_the_longest_input_is_what_every_worker_takes(workers, room):
    answering = Answering([], workers)

    assert (await prepared(answering, [97] * room, longest=4)).usage.prompt_tokens() == room
    with pytest.raises(ContextLengthExceeded, match=f"at most {room} tokens"):
        await prepared(answering, [97] * (room + 1), longest=4)


@pytest.mark.parametrize("workers", [[TRTLLM], [DECODE], [TRTLLM, DECODE]])
async def test_a_model_of_other_workers_makes_none(workers):
    with pytest.raises(InvalidRequest, match="'alias' makes no embeddings") as refused:
        await answered(Answering([], workers), "a")

    assert refused.value.param == "model"


@pytest.mark.parametrize(
    ("workers", "given", "allowed"),
    [
        ([VLLM, SGLANG], "a", None),
        ([], "a", None),
        ([VLLM, TRTLLM, DECODE], "a", {VLLM.id}),
        ([VLLM, Worker(9, "http://9", Engine.NATIVE)], "a", None),
        ([VLLM, Worker(9, "http://9", Engine.NATIVE)], [{"text": "a"}], {VLLM.id}),
    ],
)
async def test_a_request_goes_only_to_workers_that_can_answer_it(workers, given, allowed):
    answering = Answering([pack_vector([1.0])], workers)

    await answered(answering, given)

    (hints,) = answering.hints
    assert (hints and hints.allowed_worker_ids) == allowed


async def test_taints_of_the_body_are_required_of_the_worker():
    answering = Answering([pack_vector([1.0])])

    await answered(answering, "a", tandem={"routing_constraints": {"required_taints": ["gpu"]}})

    (hints,) = answering.hints
    assert hints is not None
    assert hints.routing_constraints is not None
    assert hints.routing_constraints.required_taints == {"gpu"}


@pytest.mark.parametrize("field", ["normalize", "use_activation", "embed_dtype", "endianness", "padding"])
async def test_what_would_change_the_vectors_is_refused_by_name(field):
    with pytest.raises(InvalidRequest, match=field) as refused:
        await prepared(Answering([]), "a", **{field: "x"})

    assert refused.value.param == field
