"""A worker that starts before a call: when it does, and that nothing of it is left."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from shardviz.programs.backend.worker.process import Pool
from shardviz.programs.backend.worker.settings import Settings
from tests.structure.isolation import printed, run_python
from tests.worker.crashes import number_of_this_process
from tests.worker.forks import nothing_left

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

INTERACTIVE = "import sys; sys.ps1 = '>>> '\n"
# `started` is whether a worker starts, without waiting until it has.
BEGIN = """
import os
os.cpu_count = lambda: {cpus}
import shardviz as sv
x = sv.array("x", (8, 4), spec="data")
double = lambda x: x * 2

def started():
    process = sys.modules.get("shardviz.programs.backend.worker.process")
    return process is not None and bool(process.workers._processes)
"""
WAYS = {
    "a program": ("sv.program(double, x, mesh='data=8')", True),
    "a plan of a function": ("sv.plan(double, x, mesh='data=8')", True),
    "an Explorer on a function": ("sv.explore(double, x, mesh='data=8')", True),
    "a layout": ("sv.layout((8, 4), 'data', sv.mesh('data=8'))", False),
    "an audit": ("sv.audit([x], [('a', 'data')], 'data=8')", False),
    "one device": ("sv.program(double, x, mesh='data=1')", False),
    "a child of multiprocessing": (
        "import multiprocessing as m\nm.parent_process = lambda: 1\n"
        "sv.program(double, x, mesh='data=8')",
        False,
    ),
    "a forked child": (
        "from shardviz.programs.backend.worker import process\n"
        "if child := os.fork():\n    sys.exit(os.waitpid(child, 0)[1])\n"
        "sv.program(double, x, mesh='data=8')",
        False,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_first_program_of_an_interactive_session_starts_a_worker(way):
    code, starts = WAYS[way]
    begin = BEGIN.format(cpus=2)
    assert printed(f"{INTERACTIVE}{begin}{code}\nprint(started())") == str(starts)


@pytest.mark.parametrize(
    ("name", "head", "cpus"),
    [("a script", "import sys\n", 2), ("a machine with one CPU", INTERACTIVE, 1)],
)
def test_plans_elsewhere_start_none(name, head, cpus):
    code = "sv.plan(double, x, mesh='data=8')\nprint(started())"
    assert printed(head + BEGIN.format(cpus=cpus) + code) == "False"


def test_a_call_is_answered_by_the_worker_that_started_early():
    pool, settings = Pool(), Settings("cpu")
    pool.start(settings, number_of_this_process)
    pool.start(settings, number_of_this_process)
    number = pool.call(settings, number_of_this_process)
    assert pool.pids == (number,)
    pool.end()


def cannot(_folder: str) -> None:
    raise OSError


def test_a_start_that_fails_is_repeated_by_the_next_call(monkeypatch):
    pool, settings = Pool(), Settings("cpu")
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", cannot)
        pool.start(settings, number_of_this_process)
        for thread in threading.enumerate():
            if thread.name == "shardviz-early":
                thread.join()
        assert pool.pids == ()
    assert pool.call(settings, number_of_this_process) == pool.pids[0]
    pool.end()


ENDS = {
    "at once": "os._exit(0)",
    "by an error": "raise ValueError",
    "after the process started": "while not process.workers.pids: pass\nos._exit(0)",
    "after the program": "",
    "by a signal": "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_kernel_that_ends_leaves_nothing(end):
    code = (
        "sv.program(double, x, mesh='data=8')\n"
        "from shardviz.programs.backend.worker import process\n"
    )
    with nothing_left() as left:
        run_python(INTERACTIVE + BEGIN.format(cpus=2) + code + ENDS[end])
    assert left == []
