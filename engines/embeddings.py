"""Reads the replies to embedding calls: one JSON document with a vector for each input.

Seen: vectors as lists of numbers where base64 was asked for and `dimensions` passed over (SGLang's releases of early
2025), the model's folder in `model` (SGLang 0.5.23). Vectors are put in the order of the inputs by their `index`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from engines.base import MAX_UNARY_BYTES
from engines.error_body import error_value, event_error
from engines.messagepack import INSTALLED, ObjectScanner, unpack
from engines.openai_reply import Chunk, parsed
from protocols.errors import GatewayError, IncompleteReply, ProtocolViolation
from protocols.outputs import EmbeddingsEngineOutput
from protocols.vectors import pack_vector, unpack_vector, vector_length
from protocols.wire import WireError, from_wire

T = TypeVar("T")


class WholeReply(ABC, Generic[T]):
    """Gathers a reply; what it says comes from `end`, as the one output. See `base.EmbeddingParser`."""

    done = False

    def __init__(self) -> None:
        self.error: GatewayError | None = None
        self.finish_seen = False
        self._parts: list[bytes] = []
        self._size = 0

    @abstractmethod
    def _read(self, body: bytes) -> T:
        """Raises GatewayError, or WireError for a vector that is none."""

    def feed(self, data: bytes) -> Sequence[T]:
        self._size += len(data)
        if self._size > MAX_UNARY_BYTES:
            self.error = self.error or ProtocolViolation(f"the worker's reply exceeds {MAX_UNARY_BYTES} bytes")
        else:
            self._parts.append(data)
        return ()

    def end(self) -> Sequence[T]:
        if self.error is not None:
            return ()
        try:
            output = self._read(b"".join(self._parts))
        except GatewayError as error:
            self.error = error
            return ()
        except WireError as error:
            self.error = ProtocolViolation(f"the worker's reply is malformed: {error}")
            return ()
        self.finish_seen = True
        return (output,)


class OpenAIEmbeddings(WholeReply[EmbeddingsEngineOutput]):
    """The reply of a server that speaks OpenAI's dialect. `inputs`: how many vectors were asked for."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self._inputs = inputs

    def _read(self, body: bytes) -> EmbeddingsEngineOutput:
        document = _document(body)
        vectors = [_packed(entry.get("embedding")) for entry in _ordered_entries(document, self._inputs)]
        usage = document.get("usage")
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        counted = tokens if type(tokens) is int and tokens >= 0 else 0
        return EmbeddingsEngineOutput(vectors, counted, counted)


class RelayedEmbeddings(WholeReply[Chunk]):
    """The same reply for a client: ours in `model` and the vectors' form, all else as it came.

    `inputs` None: nobody knows how many vectors content parts make. `floats`: lists of numbers are wanted, else base64.
    """

    def __init__(self, inputs: int | None, *, model: str, floats: bool) -> None:
        super().__init__()
        self._inputs = inputs
        self._model = model
        self._floats = floats

    def _read(self, body: bytes) -> Chunk:
        document = _document(body)
        entries = _ordered_entries(document, self._inputs)
        for index, entry in enumerate(entries):
            entry.update(object="embedding", index=index, embedding=self._shown(entry.get("embedding")))
        document.setdefault("usage", {"prompt_tokens": 0, "total_tokens": 0})
        document.update(object="list", model=self._model, data=entries)
        return document

    def _shown(self, vector: Any) -> list[float] | str:
        if self._floats:
            return unpack_vector(vector) if isinstance(vector, str) else _numbers(vector)
        return _packed(vector)


class NativeEmbeddings(WholeReply[EmbeddingsEngineOutput]):
    """An `EmbeddingsEngineOutput`, in JSON or in MessagePack: the first byte tells."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self._inputs = inputs

    def _read(self, body: bytes) -> EmbeddingsEngineOutput:
        binary = INSTALLED and body[:1] >= b"\x80"
        output: EmbeddingsEngineOutput = from_wire(EmbeddingsEngineOutput, (_unpacked if binary else _document)(body))
        _check_count(len(output.embeddings), self._inputs)
        for vector in output.embeddings:
            vector_length(vector)
        return output


def _document(body: bytes) -> Chunk:
    """The reply's object. Raises the error that it is instead, or IncompleteReply when it is cut off."""
    if body.rstrip()[-1:] != b"}":
        raise IncompleteReply("the worker's reply is cut off")
    return _no_error(parsed(body))


def _unpacked(body: bytes) -> Chunk:
    if ObjectScanner().feed(body) is None:
        raise IncompleteReply("the worker's reply is cut off")
    try:
        document = unpack(body)
    except ValueError as error:
        raise ProtocolViolation(f"the worker's reply is not MessagePack: {error}") from None
    if not isinstance(document, dict):
        raise ProtocolViolation("the worker's reply is not a map")
    return _no_error(document)


def _no_error(document: Chunk) -> Chunk:
    if document.get("error") is not None or document.get("object") == "error":
        raise event_error(error_value(document))
    return document


def _ordered_entries(document: Chunk, inputs: int | None) -> list[dict[str, Any]]:
    """The reply's entries in the order of the inputs. Raises ProtocolViolation when one is missing."""
    entries = document.get("data")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ProtocolViolation("the worker's reply has no vectors")
    _check_count(len(entries), inputs)
    indexes = [entry.get("index", place) for place, entry in enumerate(entries)]
    in_order = range(len(entries))
    if indexes == [*in_order]:
        return entries
    if any(type(index) is not int for index in indexes) or sorted(indexes) != [*in_order]:
        raise ProtocolViolation("the vectors' indexes are not those of the inputs")
    return [entry for _, entry in sorted(zip(indexes, entries, strict=True), key=lambda pair: pair[0])]


def _check_count(vectors: int, inputs: int | None) -> None:
    if inputs is not None and vectors != inputs:
        raise ProtocolViolation(f"the worker's reply has {vectors} vectors for {inputs} inputs")


def _packed(vector: Any) -> str:
    if isinstance(vector, str):
        vector_length(vector)
        return vector
    return pack_vector(_numbers(vector))


def _numbers(vector: Any) -> list[float]:
    if not isinstance(vector, list):
        raise WireError("a vector that is neither a list nor base64")
    return vector
