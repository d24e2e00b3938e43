"""Chat templates against transformers, byte for byte. Slow for their size: importing transformers takes a second."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from app.demo_model.make import HERE as DEMO
from tests.text import small_tokenizers
from text.chat_template import ChatTemplate

DEMO_TEMPLATE = (Path(DEMO) / "chat_template.jinja").read_text(encoding="utf-8")

TRIMMING = """
{%- set loop_messages = messages %}
{% for message in loop_messages %}
  {# trimmed, with the first token in front #}
    {% set content = '<|' + message['role'] + '|>\n\n' + message['content'] | trim + eos_token %}
    {% if loop.index0 == 0 %}
{% set content = bos_token + content %}
    {% endif %}
{{ content }}
{% endfor %}
{% if add_generation_prompt %}

{{ '<|assistant|>\n\n' }}
{% endif %}
"""
EVERYTHING = """{% macro put(x) %}[{{ x }}]{% endmacro -%}
{% macro frame() %}({{ caller() }}){% endmacro -%}
{% set ns = namespace(n=0) %}
{%- for message in messages recursive %}
    {%- set ns.n = ns.n + 1 %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- if ns.n > 3 %}{% break %}{% endif %}
    {%- if message.role == 'assistant' %}
{% generation %}
    {{ message.reasoning_content }}{{ put(message.content) }}
{% endgeneration %}
    {%- else %}
{{ put(message.content) | upper }}
    {%- endif %}
{%- endfor %}
{{ tools | tojson }}|{{ tools | tojson(indent=4) }}|{{ messages[0] | tojson(sort_keys=true, separators=(',', ':')) }}
{{- messages | map(attribute='role') | join(',') }} {{ ns.n }} {{ thinking is defined }} {{ bos_token }}{{ eos_token }}
{% filter indent(2) %}
a
b
{% endfilter %}
{% call frame() %}y{% endcall %}{{ "%.2f" | format(1.005) }}{{ {'b': 1, 'a': [1, none, 'é<']} | tojson }}
"""

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "plain": [{"role": "user", "content": "Hi"}],
    "long": [
        {"role": "system", "content": " Be <brief>. "},
        {"role": "user", "content": 'naïve "é" & 😀\n'},
        {"role": "assistant", "content": "\n\nWell\t", "reasoning": "hm"},
        {"role": "user", "content": "  more  "},
    ],
}
TOOL = {"type": "function", "function": {"name": "f", "description": 'a <b> "c" é', "parameters": {"type": "object"}}}
TOKENS = {"bos_token": "<|call|>", "eos_token": "<|end|>"}


@pytest.mark.parametrize("generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["no_tools", "tools"])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("source", [DEMO_TEMPLATE, TRIMMING, EVERYTHING], ids=["demo", "trimming", "everything"])
def test_a_prompt_is_the_one_that_transformers_makes(
    source: str, conversation: str, tools: list[dict[str, Any]] | None, generation_prompt: bool
) -> None:
    messages = CONVERSATIONS[conversation]
    reference = PreTrainedTokenizerFast(
        tokenizer_object=small_tokenizers.byte_level()._hf, chat_template=source, **TOKENS
    )
    expected = reference.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=generation_prompt
    )
    template = ChatTemplate(source, special_tokens=TOKENS)
    assert template.render(messages, tools=tools, add_generation_prompt=generation_prompt) == expected


@pytest.mark.parametrize("source", [DEMO_TEMPLATE, TRIMMING], ids=["demo", "trimming"])
@pytest.mark.parametrize("text", ["So I ", "So"])
def test_an_open_last_message_is_left_open_as_transformers_does(source: str, text: str) -> None:
    messages = [*CONVERSATIONS["plain"], {"role": "assistant", "content": text}]
    reference = PreTrainedTokenizerFast(
        tokenizer_object=small_tokenizers.byte_level()._hf, chat_template=source, **TOKENS
    )
    expected = reference.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    template = ChatTemplate(source, special_tokens=TOKENS)
    assert template.render(messages, add_generation_prompt=False, continue_final_message=True) == expected
    assert re.search(r"So( I ?)?$", expected)
