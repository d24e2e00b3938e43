"""Each test starts a real parent with real forks, about 0.1 s: signals and exit codes have no fake worth trusting."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SERVE = """
import os, signal, sys
from app.processes import run_processes

def work():
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(os.write(1, b"told %d\\n" % os.getpid())))
    os.write(1, b"ready %d\\n" % os.getpid())
    while not ended:
        signal.pause()
    return {code}

sys.exit(run_processes(2, work))
"""


@contextmanager
def parent(program: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, bufsize=0)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def lines(process: subprocess.Popen[bytes], count: int) -> list[bytes]:
    assert process.stdout is not None
    return [line_of(process.stdout.fileno()) for _ in range(count)]


def line_of(fd: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        assert select.select([fd], [], [], 10)[0], "the process says nothing"
        byte = os.read(fd, 1)
        assert byte, f"the process ended, its last words: {line!r}"
        line += byte
    return line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_parent_ends_every_child_once(number: signal.Signals) -> None:
    with parent(SERVE.format(code=0)) as process:
        ready = lines(process, 2)

        process.send_signal(number)
        code = process.wait(10)

        assert sorted(lines(process, 2)) == sorted(line.replace(b"ready", b"told") for line in ready)
        assert code == 0
        assert process.stdout is not None
        assert process.stdout.read() == b""


def test_a_child_killed_by_a_signal_ends_the_others_and_names_the_signal() -> None:
    with parent(SERVE.format(code=0)) as process:
        first, second = (int(line.split()[1]) for line in lines(process, 2))

        os.kill(first, signal.SIGKILL)

        assert lines(process, 1) == [b"told %d\n" % second]
        assert process.wait(10) == 128 + signal.SIGKILL


def test_a_childs_exit_code_is_the_parents() -> None:
    with parent(SERVE.format(code=3)) as process:
        lines(process, 2)

        process.terminate()

        assert process.wait(10) == 3


def test_an_exception_in_a_child_is_code_1() -> None:
    program = "import sys\nfrom app.processes import run_processes\nsys.exit(run_processes(2, lambda: 1 // 0))"
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=10, check=False)

    assert process.returncode == 1
    assert b"ZeroDivisionError" in process.stderr


def test_children_end_when_their_parent_is_killed() -> None:
    with parent(SERVE.format(code=0)) as process:
        ready = lines(process, 2)

        process.kill()

        assert sorted(lines(process, 2)) == sorted(line.replace(b"ready", b"told") for line in ready)
