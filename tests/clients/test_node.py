"""The clients for Node.js: each program runs all its scenarios against all models and tells what came of each.

A program's list of scenarios is asked from itself, so none can be forgotten here.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from processes import ENGINES

NODE = Path(__file__).parent / "node"
PROGRAMS = ("openai.mjs", "ai.mjs")
RUN_S = 120


def node(program: str, *arguments: str) -> list[dict[str, Any]]:
    """The lines of JSON that a program prints. It must end well and say nothing else, warnings included."""
    command = shutil.which("node")
    assert command, "node is missing: install Node.js 20 or newer"
    done = subprocess.run(
        [command, program, *arguments], cwd=NODE, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


CASES = [
    (program, scenario["name"], engine)
    for program in PROGRAMS
    for scenario in node(program, "list")
    for engine in ENGINES
    if engine in scenario["engines"]
]


@functools.cache
def outcomes(program: str, demo_url: str, thinkers_url: str) -> dict[tuple[str, str], str | None]:
    """What went wrong in each scenario with each engine; None: nothing."""
    told = node(program, "run", f"{demo_url}/v1", f"{thinkers_url}/v1")
    return {(each["name"], each["engine"]): each["error"] for each in told}


@pytest.mark.parametrize(("program", "name", "engine"), CASES)
def test_node(program: str, name: str, engine: str, demo_url: str, thinkers_url: str) -> None:
    """The first test of each program waits some seconds for all of it."""
    assert outcomes(program, demo_url, thinkers_url)[name, engine] is None
