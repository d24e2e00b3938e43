"""Markups as xgrammar's structural tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from text.tool_calls.rules import CallRules


@dataclass(frozen=True, slots=True)
class TagFormat:
    """One markup. A call is `begin`, arguments, `end`, with `separator` between calls; `NAME` in `begin` is replaced.

    `opening` and `closing` stand around all calls together. `style`: how xgrammar knows the arguments' notation.
    `trigger`: what a call can be told by; where it is empty, the opening. `numbered`: a number stands behind the name,
    then this. `lead`: what may come before forced calls; `answer`: what an answer that is no call begins with.
    """

    begin: str
    end: str
    separator: str = ""
    opening: str = ""
    closing: str = ""
    style: str = "json"
    trigger: str = ""
    numbered: str = ""
    lead: Mapping[str, Any] | None = None
    answer: str = ""

    def bound(self, rules: CallRules) -> dict[str, Any]:
        """Nothing but calls."""
        calls = self._calls(rules, strict_only=False)
        elements = [self.lead] if self.lead is not None else []
        if self.opening:
            elements += [_text(self.opening), calls, _text(self.closing)]
        else:
            elements.append(calls)
        return {"type": "sequence", "elements": elements} if len(elements) > 1 else calls

    def either(self, rules: CallRules, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Calls, or an answer by a schema."""
        answer: dict[str, Any] = {"type": "json_schema", "json_schema": schema}
        if self.answer:
            answer = {"type": "sequence", "elements": [_text(self.answer), answer]}
        calls = replace(self, lead=None).bound(rules)
        choice = {"type": "or", "elements": [answer, calls]}
        return choice if self.lead is None else {"type": "sequence", "elements": [self.lead, choice]}

    def free(self, rules: CallRules) -> dict[str, Any]:
        """Any text, in which calls have to be right."""
        calls = self._calls(rules, strict_only=True)
        if self.opening:
            tags = [{"type": "tag", "begin": self.opening, "content": calls, "end": self.closing}]
            return {"type": "triggered_tags", "triggers": [self.opening.rstrip()], "tags": tags}
        return {
            "type": "triggered_tags",
            "triggers": [self.trigger],
            "tags": calls["tags"],
            "stop_after_first": not rules.parallel,
        }

    def _calls(self, rules: CallRules, *, strict_only: bool) -> dict[str, Any]:
        return {
            "type": "tags_with_separator",
            "tags": [self._call(rules, name, strict_only) for name in rules.functions],
            "separator": self.separator,
            "at_least_one": True,
            "stop_after_first": not rules.parallel,
        }

    def _call(self, rules: CallRules, name: str, strict_only: bool) -> dict[str, Any]:
        functions = rules.functions
        schema: Any = {"type": "object", **functions.schema(name)}
        if strict_only and not functions.is_strict(name):
            schema = {"type": "object"}
        content: dict[str, Any] = {"type": "json_schema", "json_schema": schema}
        if self.style != "json":
            content["style"] = self.style
        if self.numbered:
            number = {"type": "regex", "pattern": "[0-9]+"}
            content = {"type": "sequence", "elements": [number, _text(self.numbered), content]}
        return {"type": "tag", "begin": self.begin.replace("NAME", name), "content": content, "end": self.end}


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


_THOUGHTS_FIRST: Mapping[str, Any] = {
    "type": "optional",
    "content": {
        "type": "tag",
        "begin": "<|channel|>analysis<|message|>",
        "content": {"type": "any_text"},
        "end": "<|end|><|start|>assistant",
    },
}
FORMATS: dict[str, TagFormat] = {
    "hermes": TagFormat('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", "\n", trigger="<tool_call>"),
    "qwen3_coder": TagFormat(
        "<tool_call>\n<function=NAME>\n", "\n</function>\n</tool_call>", "\n", style="qwen_xml", trigger="<tool_call>"
    ),
    "glm47": TagFormat("<tool_call>NAME", "</tool_call>", style="glm_xml", trigger="<tool_call>"),
    "kimi_k2": TagFormat(
        "<|tool_call_begin|>functions.NAME:",
        "<|tool_call_end|>",
        opening="<|tool_calls_section_begin|>",
        closing="<|tool_calls_section_end|>",
        numbered="<|tool_call_argument_begin|>",
    ),
    "deepseek_v3": TagFormat(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
        "\n```<｜tool▁call▁end｜>",
        "\n",
        opening="<｜tool▁calls▁begin｜>",
        closing="<｜tool▁calls▁end｜>",
    ),
    "deepseek_v3_1": TagFormat(
        "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        opening="<｜tool▁calls▁begin｜>",
        closing="<｜tool▁calls▁end｜>",
    ),
    "deepseek_v3_2": TagFormat(
        '<｜DSML｜invoke name="NAME">\n',
        "</｜DSML｜invoke>\n",
        opening="<｜DSML｜function_calls>\n",
        closing="</｜DSML｜function_calls>",
        style="deepseek_xml",
    ),
    "minimax_m2": TagFormat(
        '<invoke name="NAME">\n',
        "</invoke>\n",
        opening="<minimax:tool_call>\n",
        closing="</minimax:tool_call>",
        style="minimax_xml",
    ),
    "harmony": TagFormat(
        "<|channel|>commentary to=functions.NAME<|constrain|>json<|message|>",
        "<|call|>",
        "<|start|>assistant",
        trigger="<|channel|>commentary to=functions.",
        lead=_THOUGHTS_FIRST,
        answer="<|channel|>final<|message|>",
    ),
}
