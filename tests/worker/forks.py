"""Forks and interrupts a kernel that has a worker, in a separate Python process."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from shardviz.programs.backend.worker.process import workers
from tests.program.helpers import array, program
from tests.worker.faults import SHORT, compiled

NEXT_S = 3.0  # the next call must work within this many seconds
ROOT = Path(__file__).parents[2]
_MARK = "SHARDVIZ_TEST_MARK"  # an environment variable
_CHANCE = random.Random(7)


def _some(x, w):
    for turn in range(12):
        x = jnp.tanh(x @ w) + jnp.sin(x * turn).cumsum(0)
    return x


# It compiles for a few tenths of a second, so a fork or interrupt can happen meanwhile.
SOME = program(_some, array("x", (64, 64), "a"), array("w", (64, 64), "None, b"))


def _fork(do: Callable[[], bool], leave: Callable[[], Any]) -> int:
    """Forks a child that calls `do` and then `leave`; returns its process id after `do`.

    A child of a process in which jax has devices often hangs or crashes in `sys.exit`, even without
    shardviz. So the child reports the result of `do` before it leaves.
    """
    read, write = os.pipe()
    if not (pid := os.fork()):
        try:
            os.write(write, b"y" if do() else b"n")
        finally:
            leave()
    os.close(write)
    with open(read, "rb", 0) as pipe:
        if not select.select([pipe], [], [], 30)[0]:
            os.kill(pid, signal.SIGABRT)  # faulthandler prints its stack
            os.waitpid(pid, 0)
            raise AssertionError("the child hangs")
        assert pipe.read(1) == b"y", "the child failed"
    return pid


def _reap(pid: int) -> None:
    for _ in range(50):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _leave() -> None:
    os._exit(0)


def _compiles() -> bool:
    """True if a child has no worker at first, and then starts one."""
    before = workers.pids
    return compiled(SHORT).ok and not before and len(workers.pids) == 1


def _has_none() -> bool:
    """True if a child has no worker.

    A child that was forked while another thread was in jax cannot do more: a lock of that thread is
    never released in the child, so `jax.jit` hangs in jaxlib, even without shardviz.
    """
    return not workers.pids


def fork_and_compile() -> None:
    _reap(_fork(_compiles, sys.exit))


def fork_while_a_call_runs() -> None:
    reports: list[Any] = []
    call = threading.Thread(target=lambda: reports.append(compiled(SOME)))
    call.start()
    time.sleep(_CHANCE.uniform(0, 0.3))
    pid = _fork(_has_none, _leave)
    call.join()
    assert reports[0].ok, reports[0].error
    _reap(pid)


def _at_a_random_moment(do: Callable[[], Any], stage: str) -> Any:
    """Compiles, and calls `do` soon after a stage has begun; returns the report."""
    timer = threading.Timer(_CHANCE.uniform(0, 0.15), do)

    def enter(entered: str) -> None:
        # The kernel and the worker may both enter a stage.
        if entered == stage and timer.ident is None:
            timer.start()

    report = compiled(SOME, progress=enter)
    timer.join()  # a late interrupt comes here
    return report


def interrupt_kernel() -> None:
    # `compile` is in the worker, `trace` is not.
    stage = _CHANCE.choice(("program", "trace", "lower", "compile", "compile", "compile"))
    with contextlib.suppress(KeyboardInterrupt):
        _at_a_random_moment(lambda: signal.raise_signal(signal.SIGINT), stage)
        raise AssertionError("no interrupt came")


def folders(pid: int) -> list[Path]:
    """The folders that a process has created and not removed."""
    roots = {Path("/dev/shm"), Path(tempfile.gettempdir())}
    return [folder for root in roots for folder in root.glob(f"shardviz-*-{pid}-*")]


def processes(words: str, file: str = "cmdline") -> set[int]:
    """The ids of other processes whose command line or environment contains these words."""
    pids = set()
    for path in Path("/proc").glob(f"[0-9]*/{file}"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile, or is another user's
        if words in line and int(path.parent.name) != os.getpid():
            pids.add(int(path.parent.name))
    return pids


@contextmanager
def nothing_left(seconds: float = NEXT_S) -> Iterator[list[str]]:
    """Collects the processes that are still running some time after the block.

    They are recognised by an environment variable, since other tests may run at the same time.
    """
    leftovers: list[str] = []
    os.environ[_MARK] = mark = secrets.token_hex(8)
    try:
        yield leftovers
    finally:
        del os.environ[_MARK]
    end = time.monotonic() + seconds
    while running := processes(mark, "environ"):
        if time.monotonic() > end:
            leftovers += map(str, running)
            return
        time.sleep(0.02)


#: What is done, and whether the same worker must exist afterwards.
KINDS = (
    (fork_and_compile, True),
    (fork_while_a_call_runs, True),
    (interrupt_kernel, False),
)


def main() -> None:
    """Does each of them once in this process, and compiles again."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    for do, keeps_worker in KINDS:
        assert compiled(SHORT).ok
        before = workers.pids
        do()
        report = compiled(SHORT)
        assert report.ok, (do, report.error)
        assert not keeps_worker or workers.pids == before, (do, "another worker")
    workers.end()
    assert not folders(os.getpid())


if __name__ == "__main__":
    main()
