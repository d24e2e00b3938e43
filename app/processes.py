"""Several gateway processes on one port: a small parent that starts them, passes signals on, and ends with them.

The parent serves nothing. It restarts nothing either: when one process ends, all end, and whoever supervises the whole
(systemd, Kubernetes) starts it afresh. POSIX only: the children are forks and share the port by SO_REUSEPORT.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType

_PASSED_ON = (signal.SIGTERM, signal.SIGINT)


def run_processes(count: int, work: Callable[[], int]) -> int:
    """Runs `work` in `count` children and returns when all have ended.

    SIGTERM and SIGINT to the parent reach every child as SIGTERM. A child that ends, well or badly, ends the others.
    The code is the first bad one among the children's (128 + n for a child killed by signal n), else 0. A child whose
    parent is gone ends as if by SIGTERM.
    Call it before threads or an event loop exist.
    """
    children = _Children()
    watched, held = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            os.close(held)
            _run_child(watched, work)
        children.running.add(pid)
    os.close(watched)
    for number in _PASSED_ON:
        signal.signal(number, children.pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    return children.wait()


class _Children:
    def __init__(self) -> None:
        self.running: set[int] = set()
        self._told = False

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        self._told = True
        for pid in tuple(self.running):
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue

    def wait(self) -> int:
        """Reaps all. Each is told to end once: a second SIGTERM would cut its requests off."""
        bad = 0
        while self.running:
            pid, status = os.waitpid(-1, 0)
            self.running.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            bad = bad or (code if code >= 0 else 128 - code)
            if not self._told:
                self.pass_on(signal.SIGTERM, None)
        return bad


def _run_child(watched: int, work: Callable[[], int]) -> None:
    """Never returns. Its own process group: Ctrl-C in a terminal reaches it through the parent alone, once."""
    code = 1
    try:
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        threading.Thread(target=_follow_parent, args=(watched,), daemon=True, name="parent-watch").start()
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _follow_parent(watched: int) -> None:
    """Blocks until the parent, which holds the pipe's other end, is gone."""
    os.read(watched, 1)
    os.kill(os.getpid(), signal.SIGTERM)
