"""Parsers by name and by chat template."""

from __future__ import annotations

import json

import pytest

from tests.text.readings import AUTO
from tests.text.real_tokenizers import folder_of
from text.chat_template import ChatTemplate
from text.reasoning.styles import reasoning_for_template
from text.tool_calls.table import (
    ALIASES,
    PARSERS,
    markup_tokens,
    opening_marks,
    parser_for_template,
    parser_name,
    tool_call_parser,
)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("hermes", "hermes"),
        ("qwen25", "hermes"),
        ("Qwen3", "hermes"),
        ("qwen3-coder", "qwen3_coder"),
        ("nemotron_nano", "qwen3_coder"),
        ("deepseek-v3.1", "deepseek_v3_1"),
        ("deepseekv32", "deepseek_v3_2"),
        ("minimax-m2", "minimax_m2"),
        ("llama4_pythonic", "pythonic"),
        ("gpt-oss", "harmony"),
        ("gemma4", "gemma"),
    ],
)
def test_a_parser_goes_by_every_name_that_engines_give_it(written: str, name: str) -> None:
    assert parser_name(written) == name


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no tool-call parser 'hermse'; there are .*hermes"):
        parser_name("hermse")


def test_every_other_name_leads_to_a_parser() -> None:
    assert set(ALIASES.values()) <= set(PARSERS)
    assert not set(ALIASES) & set(PARSERS)


@pytest.mark.parametrize("name", PARSERS)
def test_opening_marks_are_among_the_markups_tokens(name: str) -> None:
    assert opening_marks(name) <= markup_tokens(name)
    assert AUTO is not None
    assert type(tool_call_parser(name, AUTO)) is PARSERS[name]


TEMPLATES = {
    "harmony": "<|start|>assistant<|channel|>commentary to=functions.{{ tool_call.name }}",
    "gemma": "{{ '<|tool_call>call:' + function.name + '{' }}",
    "deepseek_v3_2": "{%- set dsml_token = '｜DSML｜' -%}{{ '<' + dsml_token + 'function_calls>' }}",
    "seed_oss": "<seed:tool_call>\n<function=f>\n<parameter=a>",
    "cohere": "<|START_ACTION|>[{{ calls }}]<|END_ACTION|>",
    "deepseek_v3": "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>' + name + '\\n```json\\n'",
    "deepseek_v3_1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>'",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="{{ name }}">',
    "step3": '<｜tool_calls_begin｜><steptml:invoke name="',
    "glm45": "<tool_call>{name}\n<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>",
    "glm47": "{{ '<tool_call>' + tc.name }}{{ '<arg_key>' + k + '</arg_key><arg_value>' }}",
    "qwen3_coder": "<tool_call>\n<function=example>\n<parameter=a>\nvalue\n</parameter>",
    "nemotron_deci": "<TOOLCALL>[{{ calls }}]</TOOLCALL>",
    "mistral": "{{ '[TOOL_CALLS] [' }}",
    "phi4": "<|tool|>{{ message.tools }}<|/tool|>",
    "jamba": "<tool_calls>[{{ calls }}]</tool_calls>",
    "pythonic": "in the format of [func_name1(params_name1=params_value1), func_name2(params)]",
    "granite": "<|tool_call|>{{ calls }}",
    "hermes": '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
    "llama3_json": 'Respond in the format {"name": function name, "parameters": dictionary of argument name and value}',
    "default": "{% for tool in tools %}{{ tool | tojson }}{% endfor %}",
    None: "{% for message in messages %}{{ message.content }}{% endfor %}",
}


def test_a_template_tells_the_parser_by_what_it_writes_too() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ '<' ~ 'tool_call>' ~ c.function.name ~ c.function.arguments.probe_key ~ '</' ~ 'tool_call>' }}"
        "{% endfor %}{% endfor %}{{ tools }}"
    )
    assert parser_for_template(source) == "default"
    assert parser_for_template(ChatTemplate(source).markup) == "hermes"


@pytest.mark.parametrize(("name", "source"), TEMPLATES.items())
def test_a_template_tells_the_parser(name: str | None, source: str) -> None:
    assert parser_for_template(source) == name


def test_a_real_template_tells_the_parsers() -> None:
    config = json.loads((folder_of("qwen-3") / "tokenizer_config.json").read_text())
    assert parser_for_template(config["chat_template"]) == "hermes"
    assert reasoning_for_template(config["chat_template"]) == "qwen3"
