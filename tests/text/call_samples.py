"""How each model writes calls, well-formed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WEATHER = ("get_weather", {"city": "Paris", "days": 3})
TIME: tuple[str, dict[str, Any]] = ("get_time", {})


@dataclass(frozen=True)
class Sample:
    """How one model writes: a call with two parameters, both calls in one answer."""

    parser: str
    one: str
    two: str


def json_call(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


A = '{"city": "Paris", "days": 3}'
W, T = json_call("get_weather", A), json_call("get_time", "{}")
WP, TP = json_call("get_weather", A, "parameters"), json_call("get_time", "{}", "parameters")
QWEN_W = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
QWEN_T = "<tool_call>\n<function=get_time>\n</function>\n</tool_call>"
GLM_W = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
)
GLM_T = "<tool_call>get_time\n</tool_call>"
INVOKE_W = (
    '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
    '<parameter name="days">3</parameter>\n</invoke>\n'
)
INVOKE_T = '<invoke name="get_time">\n</invoke>\n'
DSML_W = (
    '<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
)
DSML_T = '<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke>\n'
STEP_W = (
    '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather">'
    '<steptml:parameter name="city">Paris</steptml:parameter><steptml:parameter name="days">3</steptml:parameter>'
    "</steptml:invoke><｜tool_call_end｜>"
)
STEP_T = (
    '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_time"></steptml:invoke><｜tool_call_end｜>'
)
V3_W = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{A}\n```<｜tool▁call▁end｜>"
V3_T = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜>"
V31_W = f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{A}<｜tool▁call▁end｜>"
V31_T = "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
KIMI_W = f"<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{A}<|tool_call_end|>"
KIMI_T = "<|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
HARMONY_W = f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{A}<|call|>"
HARMONY_T = "<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{}<|call|>"


COHERE_W = '{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris", "days": 3}}'
COHERE_T = '{"tool_call_id": "1", "tool_name": "get_time", "parameters": {}}'


def seed(call: str) -> str:
    return call.replace("tool_call>", "seed:tool_call>")


def cohere(*calls: str) -> str:
    inner = ",\n    ".join(calls)
    return f"<|START_ACTION|>[\n    {inner}\n]<|END_ACTION|>"


def section(inner: str) -> str:
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def kimi(inner: str) -> str:
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def dsml(inner: str) -> str:
    return f"<｜DSML｜function_calls>\n{inner}</｜DSML｜function_calls>"


def minimax(inner: str) -> str:
    return f"<minimax:tool_call>\n{inner}</minimax:tool_call>"


SAMPLES = (
    Sample(
        "hermes", f"<tool_call>\n{W}\n</tool_call>", f"<tool_call>\n{W}\n</tool_call>\n<tool_call>\n{T}\n</tool_call>"
    ),
    Sample("qwen3_coder", QWEN_W, f"{QWEN_W}\n{QWEN_T}"),
    Sample("llama3_json", f"<|python_tag|>{WP}", f"{WP}; {TP}"),
    Sample("llama3_json", WP, f"<|python_tag|>{WP};{TP}"),
    Sample("pythonic", '[get_weather(city="Paris", days=3)]', '[get_weather(city="Paris", days=3), get_time()]'),
    Sample(
        "pythonic",
        "<|python_start|>[get_weather(city='Paris', days=3)]<|python_end|>",
        "<|python_start|>[get_weather(days=3, city='Paris'),get_time()]<|python_end|>",
    ),
    Sample("mistral", f"[TOOL_CALLS][{W}]", f"[TOOL_CALLS] [{W}, {T}]"),
    Sample(
        "mistral",
        f"[TOOL_CALLS]get_weather[ARGS]{A}",
        f"[TOOL_CALLS]get_weather[ARGS]{A}[TOOL_CALLS]get_time[ARGS]{{}}",
    ),
    Sample("deepseek_v3", section(V3_W), section(f"{V3_W}\n{V3_T}")),
    Sample("deepseek_v3_1", section(V31_W), section(V31_W + V31_T)),
    Sample("deepseek_v3_2", dsml(DSML_W), dsml(DSML_W + DSML_T)),
    Sample("kimi_k2", kimi(KIMI_W), kimi(KIMI_W + KIMI_T)),
    Sample("glm45", GLM_W, f"{GLM_W}\n{GLM_T}"),
    Sample("glm47", GLM_W.replace("\n", ""), (GLM_W + GLM_T).replace("\n", "")),
    Sample("minimax_m2", minimax(INVOKE_W), minimax(INVOKE_W + INVOKE_T)),
    Sample("phi4", f"functools[{W}]", f"functools[{W}, {T}]"),
    Sample("phi4", f"<|tool_call|>[{W}]<|/tool_call|>", f"<|tool_call|>[{W},{T}]<|/tool_call|>"),
    Sample("jamba", f"<tool_calls>[{W}]</tool_calls>", f"<tool_calls>[\n  {W},\n  {T}\n]</tool_calls>"),
    Sample("nemotron_deci", f"<TOOLCALL>[{W}]</TOOLCALL>", f"<TOOLCALL>[{W}, {T}]</TOOLCALL>"),
    Sample("granite", f"<|tool_call|>[{W}]", f"<|tool_call|>[{W}, {T}]"),
    Sample(
        "step3",
        f"<｜tool_calls_begin｜>{STEP_W}<｜tool_calls_end｜>",
        f"<｜tool_calls_begin｜>{STEP_W}\n{STEP_T}<｜tool_calls_end｜>",
    ),
    Sample(
        "gemma",
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>',
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|><|tool_call>call:get_time{}<tool_call|>',
    ),
    Sample(
        "gemma",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>",
        "<start_function_call>call:get_weather{days:<escape>3<escape>,city:<escape>Paris<escape>}<end_function_call>"
        "<start_function_call>call:get_time{}<end_function_call>",
    ),
    Sample("seed_oss", seed(QWEN_W), f"{seed(QWEN_W)}\n{seed(QWEN_T)}"),
    Sample("cohere", f"<|START_ACTION|>[\n    {COHERE_W}\n]<|END_ACTION|>", cohere(COHERE_W, COHERE_T)),
    Sample("harmony", HARMONY_W, HARMONY_W + HARMONY_T),
    Sample("default", f"<tool_call>{W}</tool_call>", f"<TOOLCALL>[{W},{T}]</TOOLCALL>"),
    Sample("default", W, f"[{W}, {T}]"),
    Sample("default", f"```json\n{W}\n```", f"functools[{W},{T}]"),
)
