"""What each engine is sent for a request's parameter: the rows and columns of docs/api.md's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from engines import adapter_for
from engines.base import AttemptIds
from engines.openai_text import forward_call
from pipeline.preprocess import Preprocessor
from protocols.errors import InvalidRequest
from protocols.model_card import ModelCard
from protocols.openai import parse_chat, parse_completion
from protocols.worker import Engine, Worker, WorkerTraits
from tests.pipeline.engines_in_process import context_of
from tests.text.small_tokenizers import byte_level
from text.answer_parser import ModelMarkup
from text.chat_reader import ChatReader
from text.chat_template import ChatTemplate

ENGINES = ("vllm", "sglang", "trtllm", "native", "openai")
CARD = ModelCard("m", context_length=1000, vocab_size=300)
IDS = AttemptIds(name="0" * 32, number=2**50)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "Why?"}
PROMPTS = frozenset({"prompt", "input_ids", "token_ids", "messages"})
NEWEST = "1.3.0"

FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
SAMPLES: Mapping[str, Any] = {
    "add_generation_prompt": False,
    "add_special_tokens": True,
    "allowed_token_ids": [5],
    "audio": {"voice": "x", "format": "wav"},
    "bad_words": ["x"],
    "best_of": 2,
    "cache_salt": "s",
    "chat_template_args": {"x": 1},
    "chat_template_kwargs": {"x": 1},
    "continue_final_message": True,
    "documents": [{"text": "x"}],
    "ebnf": "root ::= 'a'",
    "echo": True,
    "frequency_penalty": 1,
    "function_call": {"name": "f"},
    "functions": [TOOL["function"]],
    "guided_choice": ["a", "b"],
    "guided_decoding_backend": "xgrammar",
    "guided_grammar": "root ::= 'a'",
    "guided_json": {"type": "object"},
    "guided_regex": "a",
    "guided_whitespace_pattern": " ",
    "ignore_eos": True,
    "include_reasoning": False,
    "include_stop_str_in_output": True,
    "json_schema": {"type": "object"},
    "length_penalty": 1.1,
    "logit_bias": {"5": 1},
    "logprob_token_ids": [5],
    "max_completion_tokens": 7,
    "max_tokens": 7,
    "media_io_kwargs": {"x": 1},
    "metadata": {"a": "b"},
    "min_p": 0.1,
    "min_tokens": 3,
    "mm_processor_kwargs": {"x": 1},
    "modalities": ["text"],
    "moderation": {"model": "x"},
    "n": 2,
    "nvext": {"greed_sampling": True},
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "x"},
    "presence_penalty": 1,
    "priority": 3,
    "prompt_cache_key": "x",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "prompt_embeds": "AAAA",
    "prompt_logprobs": 1,
    "reasoning_effort": "low",
    "regex": "a",
    "repetition_detection": {"x": 1},
    "repetition_penalty": 1.1,
    "response_format": FORMAT,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "safety_identifier": "x",
    "seed": 5,
    "separate_reasoning": False,
    "service_tier": "auto",
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "stop": ["x"],
    "stop_regex": "a",
    "stop_token_ids": [5],
    "store": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "structural_tag": {"type": "structural_tag", "format": {}},
    "structured_outputs": {"regex": "a"},
    "suffix": "x",
    "tandem": {"greed_sampling": True},
    "temperature": 0.5,
    "thinking": {"type": "enabled", "budget_tokens": 4},
    "thinking_token_budget": 9,
    "tool_choice": "required",
    "tools": [TOOL],
    "top_k": 5,
    "top_logprobs": 2,
    "top_p": 0.5,
    "truncate_prompt_tokens": 2,
    "truncation_side": "right",
    "use_beam_search": True,
    "user": "x",
    "verbosity": "low",
    "watermarking": True,
    "web_search_options": {},
    "kv_transfer_params": {"x": 1},
    "disaggregated_params": {"x": 1},
    "custom_params": {"x": 1},
    "vllm_xargs": {"x": 1},
    "request_id": "x",
    "rid": "x",
    "session_id": "x",
    "lora_path": "x",
    "bootstrap_host": "x",
    "bootstrap_room": 1,
    "data_parallel_rank": 1,
    "return_routed_experts": True,
    "vendor_field": 1,
}
"""A value for each parameter that shows whether it is heard; `logprobs` has one for each endpoint."""

BASES: Mapping[str, dict[str, Any]] = {
    "best_of": {"n": 1},
    "continue_final_message": {"messages": [USER, {"role": "assistant", "content": "So"}]},
    "echo": {"messages": [USER, {"role": "assistant", "content": "So"}]},
    "function_call": {"functions": [TOOL["function"]]},
    "guided_whitespace_pattern": {"guided_json": {}},
    "max_completion_tokens": {"max_tokens": 5},
    "min_tokens": {"max_tokens": 50},
    "parallel_tool_calls": {"tools": [TOOL], "tool_choice": "required"},
    "stream_options": {"stream": True},
    "tool_choice": {"tools": [TOOL]},
    "top_logprobs": {"logprobs": True},
    "truncate_prompt_tokens": {"max_tokens": 5},
    "truncation_side": {"max_tokens": 5, "truncate_prompt_tokens": 2},
}
"""By parameter, what else a request must say for it to mean something."""


def worker_of(engine: str, version: str = NEWEST) -> Worker:
    traits = WorkerTraits(served_name="m", version=version if engine == "trtllm" else None)
    return Worker(1, "http://w:1", Engine(engine), traits=traits)


async def told(engine: str, chat: bool, fields: Mapping[str, Any], version: str = NEWEST) -> dict[str, Any] | None:
    """The body a worker gets, its inner objects' members beside its own; None where the request is refused."""
    shown: dict[str, Any] = {"messages": [USER]} if chat else {"prompt": "Why?"}
    body = {"model": "m", **shown, **fields}
    request = (parse_chat if chat else parse_completion)(orjson.dumps(body))
    worker = worker_of(engine, version)
    if engine == "openai":
        return _flat(orjson.loads(forward_call(request.body(), worker, "/v1/x").body))
    tokenizer, template = byte_level(), ChatTemplate("{{ messages[-1].content }}")
    tags = adapter_for(worker, "m").structural_tags
    reader = ChatReader(ModelMarkup("hermes"), tokenizer, structural_tags=tags)
    try:
        prepared = await Preprocessor(CARD, tokenizer, template, reader=reader).prepare(request, context_of(), 0)
        adapter = adapter_for(worker, "m")
        if adapter.unsupported(prepared.prompts[0]) is not None:
            return None
        return _flat(orjson.loads(adapter.generate_call(prepared.prompts[0], IDS).body))
    except InvalidRequest:
        return None


def _flat(body: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in body.items():
        if name == "sampling_params" or name in (
            "stop_conditions",
            "sampling_options",
            "output_options",
            "routing",
            "extra_args",
        ):
            out |= value
        else:
            out[name] = value
    return {name: value for name, value in out.items() if name not in PROMPTS}


async def effect(engine: str, chat: bool, parameter: str, version: str = NEWEST) -> frozenset[str] | None:
    """The members of a worker's body that saying the parameter changes; None where it is refused."""
    value = (True if chat else 2) if parameter == "logprobs" else SAMPLES[parameter]
    base = {name: each for name, each in BASES.get(parameter, {}).items() if chat or name != "messages"}
    before = await told(engine, chat, base, version)
    after = await told(engine, chat, {**base, parameter: value}, version)
    if before is None or after is None:
        return None
    return frozenset(name for name in {*before, *after} if before.get(name) != after.get(name))
