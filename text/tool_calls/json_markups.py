"""The markups around JSON call objects: Hermes and Qwen, Llama 3, Phi 4, Jamba, Nemotron, Granite, Cohere, Mistral."""

from __future__ import annotations

import re
import secrets
import string
from typing import ClassVar

from text.tool_calls.json_calls import JsonCalls

_ALPHANUMERIC = string.ascii_letters + string.digits


class Hermes(JsonCalls):
    """`<tool_call>\\n{"name": …, "arguments": …}\\n</tool_call>`; Hermes 2 and 3, Qwen 2.5 and 3."""

    openers = ("<tool_call>",)
    closers = ("</tool_call>",)


class Llama3Json(JsonCalls):
    """`{"name": …, "parameters": …}`, bare or behind `<|python_tag|>`, several with `;` between; Llama 3.1 to 4."""

    openers = ("<|python_tag|>", "<|python_start|>")
    closers = ("<|python_end|>",)
    bare = ("{", "[")


class Phi4(JsonCalls):
    """`functools[{"name": …, "arguments": …}, …]`, or `<|tool_call|>[…]<|/tool_call|>`, as the template has it."""

    openers = ("<|tool_call|>",)
    closers = ("<|/tool_call|>",)
    shapes = ("functools",)


class Jamba(JsonCalls):
    """`<tool_calls>[{"name": …, "arguments": …}, …]</tool_calls>`."""

    openers = ("<tool_calls>",)
    closers = ("</tool_calls>",)


class NemotronDeci(JsonCalls):
    """`<TOOLCALL>[{"name": …, "arguments": …}, …]</TOOLCALL>`; Llama-Nemotron, Nemotron Nano 2."""

    openers = ("<TOOLCALL>",)
    closers = ("</TOOLCALL>",)


class Granite(JsonCalls):
    """`<|tool_call|>[{"name": …, "arguments": …}, …]`; Granite 3."""

    openers = ("<|tool_call|>", "<tool_call>")
    closers = ("</tool_call>",)


class Cohere(JsonCalls):
    """`<|START_ACTION|>[{"tool_call_id": …, "tool_name": …, "parameters": …}, …]<|END_ACTION|>`, and marks around what
    it says; Command R7B and A."""

    openers = ("<|START_ACTION|>",)
    closers = (
        *("<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        *("<|START_TEXT|>", "<|END_TEXT|>"),
    )


class AnyJson(JsonCalls):
    """Every one of the above, and call objects that stand bare or in a code fence."""

    openers = ("<tool_call>", "<tool_calls>", "<TOOLCALL>", "<|tool_call|>", "<|python_tag|>")
    closers = ("</tool_call>", "</tool_calls>", "</TOOLCALL>")
    shapes = ("functools",)
    bare = ("{", "[")
    fences = ("```json", "```tool_call")


class Mistral(JsonCalls):
    """`[TOOL_CALLS][{"name": …, "arguments": …}, …]`, or `[TOOL_CALLS]NAME[ARGS]{…}` from tokenizer v11 on (with
    `[CALL_ID]ID` before `[ARGS]` in v11 alone). The templates take no ids but nine letters and digits."""

    openers = ("[TOOL_CALLS]",)
    closers = ("[ARGS]", "[CALL_ID]")
    longest: ClassVar[int] = 300
    head: ClassVar[re.Pattern[str]] = re.compile(
        r"\s*([\w.\-]{1,128})\s*(?:\[CALL_ID\]\s*([\w\-]{1,64})\s*)?(?:\[ARGS\]\s*)?"
    )
    head_to_come: ClassVar[re.Pattern[str]] = re.compile(r"[\w.\-\s\[\]]*")

    @staticmethod
    def make_id() -> str:
        return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))

    def _open_other(self) -> None:
        self._state = self._compact

    def _compact(self) -> bool:
        """A name, then the arguments' brace."""
        brace = self._buffer.find("{", self._at, self._at + self.longest)
        found = self.head.fullmatch(self._buffer, self._at, brace) if brace >= 0 else None
        if found is not None:
            self._at = brace
            self._commit(found.group(1), found.group(2))
            self._read_arguments(self._finish_call)
            return True
        waiting = len(self._buffer) - self._at < self.longest and not self._final
        if brace < 0 and waiting and self.head_to_come.fullmatch(self._buffer, self._at):
            return False
        self._release()
        return True
