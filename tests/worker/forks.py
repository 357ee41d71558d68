"""What people do to a kernel that has a worker, in a Python of its own: forks and interrupts.

`python -m tests.worker.forks COUNT KIND ...` does each kind so many times and prints, as a line of
JSON for each, how long the next call took each time and what went wrong. `done(kinds, count)` runs
that and looks for what it left.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from shardviz.core.backend.run.worker.process import workers
from tests.program.helpers import array, program
from tests.worker.faults import SHORT, compiled

NEXT_S = 3.0  # the next call works within so many seconds
ROOT = Path(__file__).parents[2]
_MARK = "SHARDVIZ_TEST_MARK"  # an environment variable
_OPTIONS = ("-W", "ignore", "-X", "faulthandler")
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


#: Each kind, and whether the worker is the same afterwards.
FORKS: dict[str, tuple[Callable[[], None], bool]] = {
    "os.fork, the child compiles": (fork_and_compile, True),
    "os.fork while a call runs": (fork_while_a_call_runs, True),
}
INTERRUPTS: dict[str, tuple[Callable[[], None], bool]] = {
    "interrupt in the kernel": (interrupt_kernel, False),
}
KINDS = FORKS | INTERRUPTS


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


def main(kind: str, count: int) -> dict[str, Any]:
    """Does it so many times; the seconds of each next call, and what went wrong."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    do, same = KINDS[kind]
    seconds, wrong = [], []
    for turn in range(count):
        ready = compiled(SHORT)
        before = workers.pids
        try:
            do()
            begun = time.perf_counter()
            report = compiled(SHORT)
            seconds.append(time.perf_counter() - begun)
            assert report.ok, report.error
            assert not same or workers.pids == before, "another worker"
            assert ready.ok, ready.error
        except AssertionError as error:
            wrong.append(f"{kind} {turn}: {error}")
    return {"seconds": seconds, "wrong": wrong}


def done(kinds: Iterable[str], count: int) -> dict[str, dict[str, Any]]:
    """Runs `main` for each kind in one Python of its own; `left` is what that left behind."""
    kinds = tuple(kinds)
    with nothing_left() as left, tempfile.TemporaryFile("w+") as out:
        # A file, not a pipe: a child that stays would keep a pipe open.
        ran = subprocess.Popen(
            [sys.executable, *_OPTIONS, "-m", "tests.worker.forks", str(count), *kinds],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            ended = f"ended with {ran.wait(120 + 4 * count * len(kinds))}"
        except subprocess.TimeoutExpired:
            ran.send_signal(signal.SIGABRT)  # faulthandler says where
            ended = f"hangs, ended with {ran.wait()}"
        out.seek(0)
        said = out.read()
    left += map(str, folders(ran.pid))
    lines = [json.loads(line) for line in said.splitlines() if line.startswith('{"kind')]
    found: dict[str, Any] = {kind: {"seconds": [], "wrong": [ended]} for kind in kinds}
    found |= {line.pop("kind"): line for line in lines}
    for each in found.values():
        each["left"] = left
        if each["wrong"]:
            each["wrong"] = [*each["wrong"], said[-4000:]]
    return found


if __name__ == "__main__":
    for each in sys.argv[2:]:
        print(json.dumps({"kind": each, **main(each, int(sys.argv[1]))}), flush=True)
