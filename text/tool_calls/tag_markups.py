"""The markups that put parameters into tags: Qwen3-Coder and Nemotron, GLM, MiniMax M2, DeepSeek V3.2, Step 3."""

from __future__ import annotations

import re

from text.tool_calls.functions import STRING, as_json, is_json
from text.tool_calls.tagged_calls import TaggedCalls

_LITERAL = frozenset({"null", "integer", "number", "boolean", "object", "array"})


class Qwen3Coder(TaggedCalls):
    """`<tool_call>\\n<function=NAME>\\n<parameter=KEY>\\nVALUE\\n</parameter>\\n</function>\\n</tool_call>`;
    Qwen3-Coder, Qwen 3.5, Nemotron 3, Granite 4.2."""

    call = "<function="
    call_end = "</function>"
    parameter = "<parameter="
    parameter_end = "</parameter>"
    wrappers = (("<tool_call>", "</tool_call>"),)
    trimmed = True


class SeedOss(Qwen3Coder):
    """The same in wrappers of its own."""

    wrappers = (("<seed:tool_call>", "</seed:tool_call>"),)


class MiniMaxM2(TaggedCalls):
    """`<minimax:tool_call>\\n<invoke name="NAME">\\n<parameter name="KEY">VALUE</parameter>\\n</invoke>\\n…`. A value
    is taken as it stands."""

    call = "<invoke name="
    call_end = "</invoke>"
    parameter = "<parameter name="
    parameter_end = "</parameter>"
    wrappers = (("<minimax:tool_call>", "</minimax:tool_call>"),)


class Step3(TaggedCalls):
    """`<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME">…`."""

    call = "<steptml:invoke name="
    call_end = "</steptml:invoke>"
    parameter = "<steptml:parameter name="
    parameter_end = "</steptml:parameter>"
    wrappers = (("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),)
    strays = (
        "<｜tool_call_begin｜>function<｜tool_sep｜>",
        "<｜tool_call_end｜>",
        "<steptml:parameter name=",
        "</steptml:parameter>",
    )


class Glm(TaggedCalls):
    """`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`, from GLM 4.7 on; GLM 4.5 and 4.6
    put line breaks between."""

    call = "<tool_call>"
    call_end = "</tool_call>"
    parameter = "<arg_key>"
    key_end = "<arg_value>"
    parameter_end = "</arg_value>"
    strays = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    head = re.compile(r"""([\w.\-/:]{1,128})\s*(?=<)""")
    head_to_come = re.compile(r"""[\w.\-/:]{0,128}\s*""")


class Dsml(TaggedCalls):
    """`<｜DSML｜function_calls>\\n<｜DSML｜invoke name="NAME">\\n<｜DSML｜parameter name="KEY" string="true">VALUE…`.

    The tag says whether the value is a string or JSON. DeepSeek V4 calls the wrapper `tool_calls`.
    """

    call = "<｜DSML｜invoke name="
    call_end = "</｜DSML｜invoke>"
    parameter = "<｜DSML｜parameter name="
    parameter_end = "</｜DSML｜parameter>"
    wrappers = (
        ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
        ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
    )
    strays = ("<｜DSML｜parameter name=", "</｜DSML｜parameter>")

    def _types_of(self, key: str, rest: str) -> frozenset[str]:
        if 'string="true"' in rest:
            return STRING
        return _LITERAL if 'string="false"' in rest else super()._types_of(key, rest)

    def _as_json(self, raw: str) -> str:
        text = raw.strip()
        return text if self._types is _LITERAL and is_json(text) else as_json(raw, self._types)
