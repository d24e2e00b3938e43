"""`tandem demo`: a gateway and a fleet of simulated workers in one process, and what to paste next."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

from app.config_document import ConfigDocument
from app.gateway import Gateway
from app.settings import Settings, settings_of
from app.simulate import DEMO_MODEL, tokenizer_of
from protocols.worker import worker_id_of
from simulator.fleet import Fleet, Simulator
from simulator.generation import ReplyRule
from simulator.model import Pace
from simulator.options import SimulatorOptions, TrtllmOptions
from telemetry.logging import configure_logging

ENGINES = ("vllm", "sglang", "trtllm")
ROLES = ("prefill", "decode")
WORKERS_PER_ROLE = 2

_MEAN_ANSWER_TOKENS = 60.0


def run(host: str, port: int, speed: float = 1.0) -> int:
    """Runs the demo until SIGTERM or Ctrl-C; then nothing of it is left. Returns the exit code."""
    configure_logging(sys.stderr, style="text", level="WARNING")
    return asyncio.run(_run(host, port, speed))


async def _run(host: str, port: int, speed: float) -> int:
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(Fleet(fleet_options(speed)))
        gateway = await stack.enter_async_context(Gateway(settings_for(fleet.simulators, host, port)))
        await gateway.ready()
        print(welcome(fleet.simulators, *gateway.address), flush=True)
        await gateway.wait()
        print("Stopping.", file=sys.stderr, flush=True)
    return 0


def model_name(engine: str) -> str:
    return f"demo-{engine}"


def fleet_options(speed: float = 1.0) -> Iterator[SimulatorOptions]:
    """Two prefill and two decode workers for each engine, each on a free port of this machine."""
    codec, vocabulary = tokenizer_of(DEMO_MODEL)
    for seed, engine in enumerate(ENGINES):
        for role in ROLES:
            for _ in range(WORKERS_PER_ROLE):
                yield SimulatorOptions(
                    engine=engine,
                    role=role,
                    model=model_name(engine),
                    model_path=str(DEMO_MODEL),
                    vocabulary=vocabulary,
                    codec=codec,
                    seed=seed,
                    rule=ReplyRule(mean_length=_MEAN_ANSWER_TOKENS),
                    pace=Pace(decode_s=0.03, speed=speed),
                    calls_tools=True,
                    trtllm=TrtllmOptions(guided=True),
                )


def settings_for(simulators: Sequence[Simulator], host: str, port: int) -> Settings:
    """The gateway's settings for these workers, one model for each engine."""
    models: dict[str, dict[str, Any]] = {}
    for simulator in simulators:
        name = simulator.options.model
        model = models.setdefault(name, {"name": name, "path": str(DEMO_MODEL), "workers": []})
        model["workers"].append(simulator.worker_kwargs)
    values = {
        "server": {"host": host, "port": port, "shutdown_timeout_s": 1.0},
        "models": list(models.values()),
    }
    return settings_of(ConfigDocument("tandem demo", values))


def welcome(simulators: Sequence[Simulator], host: str, port: int) -> str:
    """What a person needs to know, ready to paste."""
    base = f"http://{_reachable(host)}:{port}"
    rows = "\n".join(map(_row, simulators))
    victim = next(simulator for simulator in simulators if simulator.options.role == "decode")
    return f"""\
Tandem is ready: {base}

  POST {base}/v1/chat/completions
  POST {base}/v1/completions
  GET  {base}/v1/models
  GET  {base}/health
  GET  {base}/metrics

  model         role      worker                    id
{rows}

Paste this:

  curl -N {base}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{model_name(ENGINES[0])}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'

or, with the OpenAI SDK:

  from openai import OpenAI
  client = OpenAI(base_url="{base}/v1", api_key="unused")
  for chunk in client.chat.completions.create(
      model="{model_name(ENGINES[1])}", messages=[{{"role": "user", "content": "Hello"}}], stream=True
  ):
      print(chunk.choices[0].delta.content or "", end="", flush=True)

Answers are made-up words, in the form that is asked for; tools are called. Let a decode worker of
{victim.options.model} die in the middle of the next answer that it gives, and see that the answer goes on at the other:

  curl {victim.url}/_sim/faults -d '{{"faults": ["die@token:5"]}}'

Ctrl-C ends everything.
"""


def _row(simulator: Simulator) -> str:
    options = simulator.options
    return f"  {options.model:<12}  {options.role:<8}  {simulator.url:<24}  {worker_id_of(simulator.url)}"


def _reachable(host: str) -> str:
    """An address to call where `host` is one to listen on."""
    if host in ("0.0.0.0", "::", ""):  # noqa: S104
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
