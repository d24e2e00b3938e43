"""The models this gateway serves, by every name that clients may use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.build import OpenAIService
from pipeline.embeddings import EmbeddingService
from pipeline.preprocess import Preprocessor
from pipeline.relay import Relay
from protocols.errors import InvalidRequest, ModelNotFound
from protocols.model_card import ModelCard, ModelKind
from text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenModel:
    """A model whose workers take token ids."""

    card: ModelCard
    tokenizer: Tokenizer
    preprocessor: Preprocessor
    service: OpenAIService
    embeddings: EmbeddingService


@dataclass(frozen=True, slots=True)
class RelayedModel:
    """A model of OpenAI-compatible servers: requests pass as they are."""

    card: ModelCard
    relay: Relay
    embeddings: EmbeddingService


Model = TokenModel | RelayedModel


class Models:
    """Models by name and alias. Raises ValueError for a name that two of them want."""

    def __init__(self, models: Iterable[Model]) -> None:
        self._models = tuple(models)
        self._by_name: dict[str, Model] = {}
        for model in self._models:
            for name in model.card.names():
                if name in self._by_name:
                    raise ValueError(f"two models are called {name!r}")
                self._by_name[name] = model

    def get(self, name: str) -> Model:
        """Raises ModelNotFound (404 `model_not_found`)."""
        model = self._by_name.get(name)
        if model is None:
            raise ModelNotFound(f"The model '{name[:256]}' does not exist.", param="model")
        return model

    def generating(self, name: str) -> Model:
        """A model to be asked for text. Raises ModelNotFound, and InvalidRequest for one that only embeds."""
        model = self.get(name)
        if model.card.kind is ModelKind.EMBED:
            raise InvalidRequest(f"The model '{name}' makes embeddings and generates no text.", param="model")
        return model

    def embedding(self, name: str) -> Model:
        """A model to be asked for vectors. Raises ModelNotFound, and InvalidRequest for one that only generates."""
        model = self.get(name)
        if model.card.kind is ModelKind.GENERATE:
            raise InvalidRequest(f"The model '{name}' generates text and makes no embeddings.", param="model")
        return model

    def all(self) -> tuple[Model, ...]:
        return self._models
