"""Faults of a worker, and what has to hold after each: the kernel lives, the error is reported, the
next compile works.
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
    """A program whose compile takes a second or so."""
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
    kept = []
    while True:
        kept.append(np.ones(1 << 23))  # 64 MiB each
        time.sleep(0.01)


def compiled(made=LONG, **options: Any) -> Report:
    return compile_program(made, TARGET, cache=ExecutableCache(), **options)


class Faults:
    """Injects faults, each at a random moment; `monkeypatch` sets the wrong functions in place."""

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
            # With only a few of the last bytes missing it may be read all the same.
            sent = exported.module.bytecode
            length = self.random.randrange(len(sent) * 9 // 10)
            noise = self.random.randbytes(self.random.randrange(64))
            module = replace(exported.module, bytecode=sent[:length] + noise)
            return replace(exported, module=module)

        packed = export.export_program
        with self.monkeypatch.context() as patch:
            patch.setattr(run, "export_program", spoiled)
            return compiled()

    def cancelled(self) -> Report:
        end = time.monotonic() + self.random.uniform(0, 1.2)
        return compiled(cancelled=lambda: time.monotonic() > end)


#: Each fault, and what its error says; none where the compile may be done before it happens.
FAULTS = {
    "killed": (Faults.killed, "SIGKILL"),
    "aborted": (Faults.aborted, "SIGABRT"),
    "hung": (Faults.hung, "that is the limit"),
    "too big": (Faults.too_big, "may hold 1 GiB"),
    "malformed": (Faults.malformed, ""),
    "cancelled": (Faults.cancelled, "Cancelled"),
}
MAY_BE_TOO_LATE = ("killed", "cancelled")


def children() -> set[int]:
    """The processes that this kernel has started."""
    found = set()
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except (OSError, NotADirectoryError):
            continue
        if name.isdigit() and int(fields[1]) == os.getpid():
            found.add(int(name))
    return found


def inject(name: str, faults: Faults) -> str:
    """Injects one fault and holds what has to hold; what the report said."""
    fault, words = FAULTS[name]
    report = fault(faults)
    if report.error is None:
        assert name in MAY_BE_TOO_LATE, f"{name}: no error was reported"
    else:
        assert words in report.error.message, f"{name}: {report.error}"
        assert "\n" not in report.error.message
    after = compiled(SHORT)
    assert after.error is None, f"after {name}: {after.error}"
    return str(report.error or "too late")
