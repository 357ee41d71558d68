"""A fork, an interrupt, the end of a kernel: the next call works, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from shardviz.programs.backend.worker import answering
from shardviz.programs.backend.worker.process import Pool
from shardviz.programs.backend.worker.settings import Settings
from tests.worker.crashes import number_of_this_process
from tests.worker.forks import ROOT, nothing_left, processes
from tests.worker.kernels import BUSY, IDLE, IMPORT, NEXT, Kernel

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_after_forks_and_interrupts_the_next_call_works_and_nothing_is_left():
    with nothing_left() as left, tempfile.TemporaryFile("w+") as out:
        # A file, not a pipe: a child that stays would keep a pipe open.
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.worker.forks"],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=180,
        )
        out.seek(0)
        said = out.read()
    assert ran.returncode == 0, said[-4000:]
    assert left == []


def test_an_interrupt_while_a_worker_starts_leaves_no_process(monkeypatch):
    started: list[int] = []
    real = subprocess.Popen

    def interrupted(*args, **options):
        system = real(*args, **options)
        started.append(system.pid)
        os.kill(os.getpid(), signal.SIGINT)
        return system

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    # Shells start background jobs with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Pool().call(Settings("cpu"), number_of_this_process)
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ChildProcessError):  # it has ended, and was waited for
        os.waitpid(started[0], os.WNOHANG)


KERNEL = """
import os, threading
from tests.worker.faults import LONG, SHORT, compiled
assert compiled(SHORT).ok
{more}
print("ready", flush=True)
{end}
"""
RUN = """
begun = threading.Event()
enter = lambda stage: stage == "compile" and begun.set()
threading.Thread(target=lambda: compiled(LONG, progress=enter), daemon=True).start()
begun.wait()
"""
STAYS = """
if not os.fork():
    import time
    time.sleep(8)
    os._exit(0)
"""
KILL = "os.kill(os.getpid(), 9)"
DEATHS = {
    "a call runs and a forked child stays": (RUN + STAYS, KILL),
    "terminated": (RUN, "os.kill(os.getpid(), 15)"),
}


@pytest.mark.parametrize(("more", "end"), DEATHS.values(), ids=DEATHS)
def test_a_worker_ends_when_its_kernel_is_gone(more, end):
    with nothing_left() as left:
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", KERNEL.format(more=more, end=end)],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            check=False,
        )
    assert ran.stdout == b"ready\n"
    assert left == []


def test_a_worker_that_was_killed_while_it_waited_is_replaced():
    pool = Pool()
    first = pool.call(Settings("cpu"), number_of_this_process)
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert pool.call(Settings("cpu"), number_of_this_process) != first
    pool.end()


@pytest.mark.long
def test_jupyter_restarts_and_ends_a_kernel_and_its_busy_worker():
    code = IDLE + BUSY
    with nothing_left() as left:
        kernel = Kernel.start()
        kernel.run(code)
        (worker,) = processes(answering.__name__) & set(_children(kernel))
        kernel.restart()
        kernel.run(IMPORT)
        kernel.run(NEXT)
        assert worker not in processes(answering.__name__)
        kernel.run(code)
        system = kernel.manager.provisioner.process
        kernel.manager.shutdown_wait_time = 60  # with Jupyter's own 5 s, a slow machine would fail
        kernel.shutdown()
        assert system.returncode == 0  # it ended by itself: Jupyter did not have to kill it
    assert left == []


def _children(kernel: Kernel) -> list[int]:
    pid = kernel.manager.provisioner.pid
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(number) for number in file.read().split()]
