"""Injects faults into a worker, and checks that the kernel survives each of them.

After a fault the error must be reported, and the next compile must work.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from shardviz.compiled.report import Report
from shardviz.programs.backend.worker.process import workers
from shardviz.programs.backend.worker.settings import Limits
from shardviz.runs.backend.worker import child
from shardviz.runs.backend.worker.run import compile_program
from shardviz.runs.cache import ExecutableCache
from tests.program.helpers import array, program

TARGET = "cpu:8"
real_compile = child.do_exported


def long(x, w):
    """A function that takes about a second to compile."""
    for turn in range(60):
        x = jnp.tanh(x @ w) + jnp.sin(x * turn).cumsum(0)
    return x


LONG = program(long, array("x", (64, 64), "a"), array("w", (64, 64), "None, b"))
SHORT = program(jnp.sin, array("x", (8,), "a"))


def abort_at_once(*_: Any) -> None:
    os.abort()


def abort_midway(*arguments: Any) -> Any:
    threading.Timer(0.2, os.abort).start()
    return real_compile(*arguments)


def hang(*_: Any) -> None:
    time.sleep(600)


def fill_memory(*_: Any) -> None:
    blocks = []
    while True:
        blocks.append(np.ones(1 << 23))  # 64 MiB each
        time.sleep(0.01)


def compiled(tested_program=LONG, **options: Any) -> Report:
    return compile_program(tested_program, TARGET, cache=ExecutableCache(), **options)


class Faults:
    """Injects faults, each at a random moment; `monkeypatch` replaces functions of the worker."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random, self.monkeypatch = random.Random(seed), monkeypatch

    def instead(self, function: Callable[..., Any]) -> Report:
        with self.monkeypatch.context() as patch:
            patch.setattr(child, "do_exported", function)
            return compiled()

    def killed(self) -> Report:
        def kill() -> None:
            for pid in workers.pids:
                os.kill(pid, signal.SIGKILL)

        timer = threading.Timer(self.random.uniform(0, 1.0), kill)
        timer.start()
        report = compiled()
        timer.cancel()
        timer.join()
        return report

    def aborted(self) -> Report:
        return self.instead(self.random.choice((abort_at_once, abort_midway)))

    def hung(self) -> Report:
        with self.monkeypatch.context() as patch:
            patch.setattr(workers, "limits", Limits(seconds=self.random.uniform(0.1, 0.5)))
            return self.instead(hang)

    def too_big(self) -> Report:
        with self.monkeypatch.context() as patch:
            patch.setattr(workers, "limits", Limits(memory=1 << 30))
            return self.instead(fill_memory)

    def malformed(self) -> Report:
        from shardviz.runs.backend.worker import export, run

        def spoiled(*arguments: Any, **options: Any) -> Any:
            exported = packed(*arguments, **options)
            # At least a tenth is cut off: a module that lacks only a few bytes may be readable.
            bytecode = exported.module.bytecode
            length = self.random.randrange(len(bytecode) * 9 // 10)
            noise = self.random.randbytes(self.random.randrange(64))
            module = replace(exported.module, bytecode=bytecode[:length] + noise)
            return replace(exported, module=module)

        packed = export.export_program
        with self.monkeypatch.context() as patch:
            patch.setattr(run, "export_program", spoiled)
            return compiled()

    def cancelled(self) -> Report:
        end = time.monotonic() + self.random.uniform(0, 1.2)
        return compiled(cancelled=lambda: time.monotonic() > end)


#: Each fault, and a part of its error message. Two may come too late: then there is no error.
FAULTS = {
    "killed": (Faults.killed, "SIGKILL"),
    "aborted": (Faults.aborted, "SIGABRT"),
    "hung": (Faults.hung, "limit of"),
    "too big": (Faults.too_big, "limit is 1 GiB"),
    "malformed": (Faults.malformed, ""),
    "cancelled": (Faults.cancelled, "Cancelled"),
}
MAY_BE_TOO_LATE = ("killed", "cancelled")


def children() -> set[int]:
    """The ids of the processes that this kernel has started."""
    pids = set()
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except (OSError, NotADirectoryError):
            continue
        if name.isdigit() and int(fields[1]) == os.getpid():
            pids.add(int(name))
    return pids


def inject(name: str, faults: Faults) -> str:
    """Injects a fault and checks the kernel afterwards; returns the error of the report."""
    fault, message = FAULTS[name]
    report = fault(faults)
    if report.error is None:
        assert name in MAY_BE_TOO_LATE, f"{name}: no error was reported"
    else:
        assert message in report.error.message, f"{name}: {report.error}"
        assert "\n" not in report.error.message
    after = compiled(SHORT)
    assert after.error is None, f"after {name}: {after.error}"
    return str(report.error or "too late")
