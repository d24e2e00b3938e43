"""The chains, by name. Each is built from the bottom up by `link`; this module is the only picture of their order.

full           preprocess → prompt only → migrate → detokenize → prefill → route     prepared request in, choices out
preprocessed                              migrate →              prefill → route     PreprocessedRequest in, outputs out
in-process     preprocess → prompt only →           detokenize → in time → engine    a callable that takes token ids
text                                               whole texts → in time → engine    one that takes the OpenAI request
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.detokenize import Detokenizer
from pipeline.in_process import in_time, whole_texts
from pipeline.migration import Migration, MigrationLimits, Observer, tokens_length_ending
from pipeline.prefill import PrefillRouter
from pipeline.preprocess import ChoiceOutputs, Prepared, Preprocessor
from pipeline.prompt_only import prompt_only
from pipeline.service import Service, link
from protocols.openai import GenerationRequest
from protocols.outputs import LLMEngineOutput
from protocols.preprocessed import PreprocessedRequest
from text.tokenizer import Tokenizer

TokenService = Service[PreprocessedRequest, LLMEngineOutput]
OpenAIService = Service[Prepared, ChoiceOutputs]
TextService = Service[GenerationRequest, ChoiceOutputs]


@dataclass(frozen=True, slots=True)
class Resilience:
    """How far an answer may wander, and who is told."""

    limits: MigrationLimits
    observer: Observer


def build_pipeline(
    preprocessor: Preprocessor,
    tokenizer: Tokenizer,
    prefill: PrefillRouter,
    workers: TokenService,
    resilience: Resilience,
) -> OpenAIService:
    """The usual assembly: from an OpenAI request to the workers and back."""
    tokens = link(prefill, workers)
    detokenizer = Detokenizer(tokenizer)
    texts = link(detokenizer, tokens)
    resilient = link(Migration(resilience.limits, detokenizer.length_ending, resilience.observer), texts)
    return link(preprocessor, link(prompt_only, resilient))


def build_preprocessed_pipeline(prefill: PrefillRouter, workers: TokenService, resilience: Resilience) -> TokenService:
    """For callers that bring their own pre- and post-processor: token ids in, engine outputs out."""
    tokens = link(prefill, workers)
    return link(Migration(resilience.limits, tokens_length_ending, resilience.observer), tokens)


def build_in_process_tokens(preprocessor: Preprocessor, tokenizer: Tokenizer, engine: TokenService) -> OpenAIService:
    """An engine of this process that takes token ids."""
    timed: TokenService = link(in_time, engine)
    return link(preprocessor, link(prompt_only, link(Detokenizer(tokenizer), timed)))


def build_in_process_text(engine: TextService) -> TextService:
    """An engine of this process that takes the OpenAI request itself and answers in text: it renders, tokenizes and
    stops by itself, and its outputs need hold no ids."""
    timed: TextService = link(in_time, engine)
    return link(whole_texts, timed)
