"""What a real model's template writes of a call, the parser that is chosen by that template reads back."""

from __future__ import annotations

import json
from itertools import takewhile

import pytest

from tests.text.conversations import TOOLS, as_sent, call
from tests.text.readings import calls_of, told
from tests.text.real_templates import REAL
from text.chat_template import ChatTemplate
from text.reasoning.styles import reasoning_for_template
from text.tool_calls.rules import call_rules
from text.tool_calls.table import parser_for_template, tool_call_parser

MODELS = {
    "tokenizer-deepseek_v3": ("deepseek_v3", None),
    "tokenizer-qwen3": ("hermes", "qwen3"),
    "ByteDance-Seed-OSS": ("seed_oss", "seed_oss"),
    "Cohere2MoE": ("cohere", "cohere"),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("cohere", "cohere"),
    "GLM-4.6": ("glm45", "glm45"),
    "GLM-4.7-Flash": ("glm47", "glm45"),
    "LFM2.5-8B-A1B": ("pythonic", "basic"),
    "MiniMax-M1": ("jamba", None),
    "MiniMax-M2": ("minimax_m2", "minimax_m2"),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", None),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("qwen3_coder", "nemotron"),
    "NVIDIA-Nemotron-Nano-v2": ("nemotron_deci", "nemotron_deci"),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", None),
    "Qwen-QwQ-32B": ("hermes", "qwen3"),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", None),
    "Qwen-Qwen3-0.6B": ("hermes", "qwen3"),
    "Qwen3-Coder": ("qwen3_coder", None),
    "Qwen3.5-4B": ("qwen3_coder", "qwen3"),
    "StepFun3.5-Flash": ("qwen3_coder", "qwen3"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("deepseek_v3", "deepseek_v3"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("deepseek_v3", "deepseek_v3"),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek_v3_1", "deepseek_v3"),
    "deepseek-ai-DeepSeek-V3.2": ("deepseek_v3_2", "deepseek_v3"),
    "deepseek-ai-DeepSeek-V4-Flash-0731": ("deepseek_v3_2", "deepseek_v3"),
    "deepseek-ai-DeepSeek-V4": ("deepseek_v3_2", "deepseek_v3"),
    "google-gemma-4-31B-it-interleaved": ("gemma", "gemma"),
    "google-gemma-4-31B-it": ("gemma", "gemma"),
    "ibm-granite-granite-4.0": ("hermes", None),
    "ibm-granite-granite-4.1": ("hermes", None),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama3_json", None),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama3_json", None),
    "meta-llama-Llama-3.3-70B-Instruct": ("llama3_json", None),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", "mistral"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", None),
    "moonshotai-Kimi-K2": ("kimi_k2", None),
    "openai-gpt-oss-120b": ("harmony", "gpt_oss"),
    "unsloth-mistral-Devstral-Small-2507": ("mistral", None),
}
"""By template: the parsers of calls and of thoughts."""
ARGUMENTS = {
    "city": 'Zürich "x"',
    "days": 3,
    "place": {"lat": 1.5, "n": [1, {"a": "b"}]},
    "tags": ["a", "<b>"],
    "metric": True,
}


at_hand = pytest.mark.parametrize("name", [name for name in MODELS if name in REAL])
"""Those that `make tokenizers` has fetched."""


def template(name: str) -> ChatTemplate:
    return ChatTemplate(REAL[name], special_tokens={"bos_token": "<s>", "eos_token": "</s>"})


@at_hand
def test_the_template_tells_both_parsers(name: str) -> None:
    """Slow: makes a real template."""
    markup = template(name).markup
    assert (parser_for_template(markup), reasoning_for_template(markup)) == MODELS[name]


@at_hand
def test_calls_that_a_template_writes_are_read_as_they_were(name: str) -> None:
    """Slow: makes a real template, and renders with it."""
    user = [{"role": "user", "content": "?"}]
    calls = [call("abcdefgh1", "get_weather", ARGUMENTS)]
    turn = as_sent([*user, {"role": "assistant", "tool_calls": calls}])
    prompt, whole = (template(name).render(each, tools=TOOLS, add_generation_prompt=False) for each in (user, turn))
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, whole, strict=False)))
    written = whole[common:]

    rules = call_rules(TOOLS)
    assert rules is not None
    read = calls_of(told(tool_call_parser(MODELS[name][0], rules), written))
    assert [(each, json.loads(arguments)) for each, arguments in read] == [("get_weather", ARGUMENTS)]
