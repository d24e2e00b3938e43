"""How models mark what they think: by name (Dynamo's, vLLM's and SGLang's), or by what their chat template writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TAIL = 4000
"""Characters at a prompt's end in which the continued message's marks are looked for."""
THINKING_ARGUMENTS = ("enable_thinking", "thinking")
"""The arguments by which templates are told whether to think: Qwen's and GLM's name, and DeepSeek's."""


@dataclass(frozen=True, slots=True)
class ThinkingStyle:
    """One way of marking thoughts.

    `starts`: answers begin with thoughts where nothing else is known. `anywhere`: the opening mark counts wherever it
    stands, because it is nothing that anybody would write; else only at the beginning of a line. `closes_alone`: a
    closing mark without thoughts before it is no content. `interrupted`: these models may call in the middle of their
    thoughts, which ends them. `wraps`: two marks around the whole content, no content themselves. `channels`: harmony's
    messages instead of marks. `appends`: nothing is split off, and the opening mark that the prompt held is put before
    the text.
    """

    opens: tuple[str, ...] = ("<think>",)
    closes: tuple[str, ...] = ("</think>",)
    starts: bool = False
    anywhere: bool = False
    closes_alone: bool = True
    interrupted: bool = False
    wraps: tuple[str, ...] = ()
    channels: bool = False
    appends: bool = False

    def starts_thinking(
        self,
        prompt: str | None,
        arguments: Mapping[str, Any] | None = None,
        *,
        continued: bool = False,
    ) -> bool:
        """Does an answer to this prompt begin inside thoughts?

        `prompt`: the rendered one, or its end; its last mark decides. `arguments`: what the template was told
        (`enable_thinking`). `continued`: the prompt ends with the message to go on with.
        """
        tail = "" if prompt is None else prompt[-_TAIL:].rstrip()
        if tail.endswith(self.opens):
            return True
        if tail.endswith(self.closes):
            return False
        if continued:
            opened = max(tail.rfind(mark) for mark in self.opens)
            closed = max(tail.rfind(mark) for mark in self.closes)
            return opened > closed
        if any((arguments or {}).get(name) is False for name in THINKING_ARGUMENTS):
            return False
        return self.starts

    def tokens(self) -> frozenset[str]:
        """The marks. Those that are special tokens of a model have to be left in the text that is parsed."""
        if self.channels:
            return frozenset()
        return frozenset(self.opens + self.closes + self.wraps)


_THINK = ThinkingStyle()
_STARTS = ThinkingStyle(starts=True)
_CALLS = ThinkingStyle(interrupted=True)
_STARTS_AND_CALLS = ThinkingStyle(starts=True, interrupted=True)

STYLES: dict[str, ThinkingStyle] = {
    "basic": _THINK,
    "deepseek_r1": _STARTS,
    "deepseek_v3": _THINK,
    "qwen3": _CALLS,
    "glm45": _CALLS,
    "kimi": ThinkingStyle(opens=("◁think▷",), closes=("◁/think▷",), anywhere=True),
    "kimi_k2": _CALLS,
    "kimi_k25": _STARTS_AND_CALLS,
    "minimax_m2": _STARTS_AND_CALLS,
    "minimax_append_think": ThinkingStyle(appends=True),
    "mistral": ThinkingStyle(opens=("[THINK]",), closes=("[/THINK]",), anywhere=True),
    "granite": ThinkingStyle(
        opens=("Here is my thought process:", "Here's my thought process:", "<think>"),
        closes=("Here is my response:", "Here's my response:", "</think>"),
        closes_alone=False,
        wraps=("<response>", "</response>"),
    ),
    "cohere": ThinkingStyle(opens=("<|START_THINKING|>",), closes=("<|END_THINKING|>",), anywhere=True),
    "seed_oss": ThinkingStyle(opens=("<seed:think>",), closes=("</seed:think>",), anywhere=True),
    "step3": _STARTS,
    "nemotron_deci": _THINK,
    "nemotron": _STARTS_AND_CALLS,
    "gemma": ThinkingStyle(opens=("<|channel>thought",), closes=("<channel|>",), anywhere=True),
    "gpt_oss": ThinkingStyle(channels=True),
}
ALIASES = {
    "default": "basic",
    "cohere_command3": "cohere",
    "cohere_command4": "cohere",
    "deepseek_v3_1": "deepseek_v3",
    "deepseek_v31": "deepseek_v3",
    "deepseek_v3_2": "deepseek_v3",
    "deepseek_v32": "deepseek_v3",
    "deepseek_v4": "deepseek_v3",
    "qwen3_coder": "qwen3",
    "qwen3_thinking": "deepseek_r1",
    "glm": "glm45",
    "glm47": "glm45",
    "minimax": "minimax_append_think",
    "nemotron_nano": "nemotron",
    "nemotron3": "nemotron",
    "nemotron_3": "nemotron",
    "nemotron_v3": "nemotron",
    "gemma4": "gemma",
    "harmony": "gpt_oss",
    "openai_gptoss": "gpt_oss",
}
_TEMPLATES: tuple[tuple[str, str], ...] = (
    (r"<\|channel\|>", "gpt_oss"),
    (r"<\|channel>", "gemma"),
    (r"◁think▷", "kimi"),
    (r"\[THINK\]", "mistral"),
    (r"<\|START_THINKING\|>", "cohere"),
    (r"<seed:think>", "seed_oss"),
    (r"(?i)Here(?:'s| is) my thought process:|<response></response>", "granite"),
    (r"(?s)^(?!.*</?think>)", ""),
    (r"<\|tool_calls_section_begin\|>", "kimi_k2"),
    (r"<minimax:tool_call>", "minimax_m2"),
    (r"<steptml:invoke", "step3"),
    (r"<｜tool▁calls▁begin｜>|<｜DSML｜|<｜Assistant｜>", "deepseek_v3"),
    (r"\[gMASK\]|<arg_key>", "glm45"),
    (r"truncate_history_thinking", "nemotron"),
    (r"<TOOLCALL>", "nemotron_deci"),
    (r"enable_thinking|<tool_call>", "qwen3"),
    (r"", "basic"),
)
"""What a template writes, most telling first; "" is no thinking at all. Where the thoughts begin, the prompt tells."""


def style_name(name: str) -> str:
    """The name in `STYLES` for what an operator wrote. Raises ValueError, listing the names, for an unknown one."""
    plain = name.strip().lower().replace("-", "_").replace(".", "_")
    plain = ALIASES.get(plain, plain)
    if plain not in STYLES:
        raise ValueError(f"no reasoning parser {name!r}; there are {', '.join(sorted({*STYLES, *ALIASES}))}")
    return plain


def thinking_style(name: str) -> ThinkingStyle:
    """The style of that name. Raises ValueError for an unknown one."""
    return STYLES[style_name(name)]


def reasoning_for_template(source: str) -> str | None:
    """The style of a chat template's model; None for a template that knows no thoughts."""
    return next(name for pattern, name in _TEMPLATES if re.search(pattern, source)) or None
