"""What people do to a kernel that has a worker: forks and interrupts, in a Python of its own."""

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

NEXT_S = 3.0  # the next call works within so many seconds
ROOT = Path(__file__).parents[2]
_MARK = "SHARDVIZ_TEST_MARK"  # an environment variable
_CHANCE = random.Random(7)


def _some(x, w):
    for turn in range(12):
        x = jnp.tanh(x @ w) + jnp.sin(x * turn).cumsum(0)
    return x


# A compile of some tenths of a second, for what happens at a random moment of it.
SOME = program(_some, array("x", (64, 64), "a"), array("w", (64, 64), "None, b"))


def _fork(do: Callable[[], bool], leave: Callable[[], Any]) -> int:
    """Forks a child that does something and leaves; its process id, once it said that it did.

    A child of a process in which jax has devices often hangs or crashes where it leaves by
    `sys.exit`, with jax alone as well: so it says before whether all went well.
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
            os.kill(pid, signal.SIGABRT)  # faulthandler says where it is
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
    """Whether a child has no worker at first, and then one of its own."""
    before = workers.pids
    return compiled(SHORT).ok and not before and len(workers.pids) == 1


def _has_none() -> bool:
    """Whether a child has no worker. Forked while another thread is in jax it can do no more.

    A lock that the other thread held is never released in the child: `jax.jit` hangs there, in
    jaxlib's own code and without shardviz as well.
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
    """Compiles, and does something soon after a stage has begun; the report."""
    timer = threading.Timer(_CHANCE.uniform(0, 0.15), do)

    def enter(entered: str) -> None:
        if entered == stage and timer.ident is None:  # a stage may be entered here and there
            timer.start()

    report = compiled(SOME, progress=enter)
    timer.join()  # it may be late: an interrupt comes here then
    return report


def interrupt_kernel() -> None:
    # `compile` is in the worker, `trace` is not.
    stage = _CHANCE.choice(("program", "trace", "lower", "compile", "compile", "compile"))
    with contextlib.suppress(KeyboardInterrupt):
        _at_a_random_moment(lambda: signal.raise_signal(signal.SIGINT), stage)
        raise AssertionError("no interrupt came")


def folders(pid: int) -> list[Path]:
    """The folders that a process has made and not removed."""
    roots = {Path("/dev/shm"), Path(tempfile.gettempdir())}
    return [folder for root in roots for folder in root.glob(f"shardviz-*-{pid}-*")]


def processes(words: str, file: str = "cmdline") -> set[int]:
    """The other processes whose command line, or environment, holds these words."""
    found = set()
    for path in Path("/proc").glob(f"[0-9]*/{file}"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile, or is another user's
        if words in line and int(path.parent.name) != os.getpid():
            found.add(int(path.parent.name))
    return found


@contextmanager
def nothing_left(seconds: float = NEXT_S) -> Iterator[list[str]]:
    """The processes that are left afterwards, once there was time to end.

    Other tests may run at the same time: their processes have another environment.
    """
    left: list[str] = []
    os.environ[_MARK] = mark = secrets.token_hex(8)
    try:
        yield left
    finally:
        del os.environ[_MARK]
    end = time.monotonic() + seconds
    while found := processes(mark, "environ"):
        if time.monotonic() > end:
            left += map(str, found)
            return
        time.sleep(0.02)


#: What is done, and whether the worker is the same afterwards.
KINDS = (
    (fork_and_compile, True),
    (fork_while_a_call_runs, True),
    (interrupt_kernel, False),
)


def main() -> None:
    """Does each once in this process, and makes the next call."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    for do, same in KINDS:
        assert compiled(SHORT).ok
        before = workers.pids
        do()
        report = compiled(SHORT)
        assert report.ok, (do, report.error)
        assert not same or workers.pids == before, (do, "another worker")
    workers.end()
    assert not folders(os.getpid())


if __name__ == "__main__":
    main()
