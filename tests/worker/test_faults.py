"""Whatever happens to a worker, the kernel lives, the error is reported and the next compile works.

`SHARDVIZ_FAULTS=100` injects that many.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time

import pytest

from shardviz.programs.backend.worker.process import workers
from shardviz.runs.backend.worker import child
from shardviz.runs.backend.worker.run import compile_program
from shardviz.runs.cache import ExecutableCache
from tests.worker.faults import (
    FAULTS,
    LONG,
    SHORT,
    Faults,
    children,
    compiled,
    hang,
    inject,
)

COUNT = int(os.environ.get("SHARDVIZ_FAULTS", "6"))
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture(autouse=True)
def _no_child_is_left():
    before = children() - set(workers.pids)
    yield
    workers.end()
    assert children() <= before


SEEDS = [
    pytest.param(seed, name, marks=() if seed < 2 else pytest.mark.long)
    for seed, name in zip(range(COUNT), itertools.cycle(FAULTS), strict=False)
]


@pytest.mark.parametrize(("seed", "name"), SEEDS)
def test_a_fault_ends_the_worker_and_nothing_else(seed, name, monkeypatch):
    inject(name, Faults(seed, monkeypatch))


def test_a_cancel_does_not_wait_for_the_worker(monkeypatch):
    monkeypatch.setattr(child, "do_exported", hang)  # for ten minutes
    begun = time.monotonic()
    report = compiled(cancelled=lambda: time.monotonic() - begun > 0.1)
    assert report.error is not None
    assert report.error.stage == "cancelled"
    assert time.monotonic() - begun < 120


def test_a_job_that_waits_for_the_worker_survives_the_cancel_of_another():
    reports: dict[str, object] = {}
    stop = threading.Event()

    def job(name: str, made, cancelled) -> None:
        reports[name] = compile_program(made, "cpu:8", cache=ExecutableCache(), cancelled=cancelled)

    first = threading.Thread(target=job, args=("first", LONG, stop.is_set))
    first.start()
    while not workers.pids:
        time.sleep(0.01)
    second = threading.Thread(target=job, args=("second", SHORT, lambda: False))
    second.start()
    time.sleep(0.1)
    stop.set()
    first.join(120)
    second.join(120)
    assert reports["second"].ok  # type: ignore[attr-defined]


def test_one_worker_of_each_kind():
    newest = []
    for count in (2, 64, 65):
        made = SHORT.replace(mesh=type(SHORT.mesh)(("a",), (2,)))
        assert compile_program(made, f"cpu:{count}", cache=ExecutableCache()).ok
        newest.append(workers.pids[-1])
    assert newest[0] == newest[1] != newest[2]
    assert set(workers.pids) == set(newest) <= children()
