"""Which parser reads which model: by name (Dynamo's, vLLM's and SGLang's), or by what its chat template writes."""

from __future__ import annotations

import re
from collections.abc import Callable

from text.tool_calls.base import MarkupParser, ToolCallParser
from text.tool_calls.custom_calls import CustomCalls
from text.tool_calls.forced import ForcedCalls
from text.tool_calls.gemma import Gemma
from text.tool_calls.harmony import Harmony
from text.tool_calls.headed_calls import DeepSeekV3, KimiK2
from text.tool_calls.json_markups import AnyJson, Granite, Hermes, Jamba, Llama3Json, Mistral, NemotronDeci, Phi4
from text.tool_calls.pythonic import Pythonic
from text.tool_calls.rules import CallMode, CallRules
from text.tool_calls.tag_markups import Dsml, Glm, MiniMaxM2, Qwen3Coder, Step3

PARSERS: dict[str, type[MarkupParser]] = {
    "default": AnyJson,
    "hermes": Hermes,
    "qwen3_coder": Qwen3Coder,
    "llama3_json": Llama3Json,
    "pythonic": Pythonic,
    "mistral": Mistral,
    "deepseek_v3": DeepSeekV3,
    "deepseek_v3_1": DeepSeekV3,
    "deepseek_v3_2": Dsml,
    "kimi_k2": KimiK2,
    "glm45": Glm,
    "glm47": Glm,
    "minimax_m2": MiniMaxM2,
    "phi4": Phi4,
    "jamba": Jamba,
    "nemotron_deci": NemotronDeci,
    "granite": Granite,
    "step3": Step3,
    "gemma": Gemma,
    "harmony": Harmony,
}
ALIASES = {
    "qwen": "hermes",
    "qwen25": "hermes",
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "nemotron_nano": "qwen3_coder",
    "nemotron_3": "qwen3_coder",
    "nemotron_v3": "qwen3_coder",
    "qwen3_xml": "qwen3_coder",
    "qwen3_5": "qwen3_coder",
    "granite4": "hermes",
    "llama3": "llama3_json",
    "llama4_json": "llama3_json",
    "llama4": "pythonic",
    "llama4_pythonic": "pythonic",
    "lfm2": "pythonic",
    "deepseekv3": "deepseek_v3",
    "deepseek_r1": "deepseek_v3",
    "deepseekv31": "deepseek_v3_1",
    "deepseek_v31": "deepseek_v3_1",
    "deepseekv32": "deepseek_v3_2",
    "deepseek_v32": "deepseek_v3_2",
    "deepseek_v4": "deepseek_v3_2",
    "deepseekv4": "deepseek_v3_2",
    "kimi_k25": "kimi_k2",
    "glm": "glm45",
    "glm4": "glm45",
    "minimax": "minimax_m2",
    "phi4_mini_json": "phi4",
    "gemma4": "gemma",
    "functiongemma": "gemma",
    "gpt_oss": "harmony",
    "openai": "harmony",
}
_TEMPLATES: tuple[tuple[str, str], ...] = (
    (r"<\|channel\|>", "harmony"),
    (r"<\|tool_call>|<\|channel>|<start_function_call>", "gemma"),
    (r"<｜DSML｜(?! )", "deepseek_v3_2"),
    (r"(?s)<｜tool▁calls▁begin｜>.*```json", "deepseek_v3"),
    (r"<｜tool▁calls▁begin｜>", "deepseek_v3_1"),
    (r"<\|tool_calls_section_begin\|>", "kimi_k2"),
    (r"<minimax:tool_call>", "minimax_m2"),
    (r"<steptml:invoke", "step3"),
    (r"(\\n|\n)\s*<arg_key>", "glm45"),
    (r"<arg_key>", "glm47"),
    (r"(?s)<function=.*<parameter=", "qwen3_coder"),
    (r"<TOOLCALL>", "nemotron_deci"),
    (r"\[TOOL_CALLS\]", "mistral"),
    (r"functools\[|<\|/tool\|>", "phi4"),
    (r"<tool_calls>", "jamba"),
    (r"<\|tool_list_start\|>|\[func_name1\(", "pythonic"),
    (r"<\|tool_call\|>", "granite"),
    (r"<tool_call>", "hermes"),
    (r"<\|python_tag\|>|<\|python_start\|>|\"parameters\\?\": ", "llama3_json"),
    (r"\btools\b", "default"),
)
"""What a template writes, most telling first. One that speaks of tools without any markup leaves JSON."""


def parser_name(name: str) -> str:
    """The name in `PARSERS` for what an operator wrote. Raises ValueError, listing the names, for an unknown one."""
    plain = name.strip().lower().replace("-", "_").replace(".", "_")
    plain = ALIASES.get(plain, plain)
    if plain not in PARSERS:
        raise ValueError(f"no tool-call parser {name!r}; there are {', '.join(sorted({*PARSERS, *ALIASES}))}")
    return plain


def parser_for_template(source: str) -> str | None:
    """The parser for a chat template's model; None for a template that knows no tools."""
    return next((name for pattern, name in _TEMPLATES if re.search(pattern, source)), None)


def tool_call_parser(name: str, rules: CallRules, new_id: Callable[[], str] | None = None) -> ToolCallParser:
    """A fresh parser for one choice of a request with these rules. Raises ValueError for an unknown name."""
    kind = PARSERS[parser_name(name)]
    parser: ToolCallParser = kind(rules.functions, parallel=rules.parallel, new_id=new_id)
    if rules.mode is not CallMode.AUTO:
        parser = ForcedCalls(parser, rules, new_id or kind.make_id)
    return CustomCalls(parser, rules.functions) if rules.functions.custom else parser


def opening_marks(name: str) -> frozenset[str]:
    """The marks that calls begin with; some models call in the middle of their thoughts."""
    return PARSERS[parser_name(name)].opens()


def markup_tokens(name: str) -> frozenset[str]:
    """The markup's own strings. Those that are special tokens of a model have to be left in the text that is parsed."""
    return PARSERS[parser_name(name)].tokens()
