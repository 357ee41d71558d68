"""Hosts that are not there: what the Explorer uses of them, and a run that a test steps through."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from shardviz.core.errors import TargetError
from shardviz.core.program.report import Report

#: The module that knows who runs, and the one that compiles and runs.
MODULES = ("shardviz.core.backend.run.hosts.group", "shardviz.core.backend.run.hosts.run")
NAME = "2 hosts x 4, local"
WAIT_S = 30.0


@dataclass
class PretendedHosts:
    """What the Explorer uses of Hosts."""

    name: str = NAME
    problem: str = ""
    devices: int = 8
    stages: dict[int, str] = field(default_factory=dict)
    restarts: int = 0
    refuses: str = ""

    @property
    def processes(self) -> list[Any]:
        return [SimpleNamespace(rank=r, pid=100 + r, host="here") for r in range(2)]

    def restart(self) -> None:
        self.restarts += 1
        if self.refuses:
            raise TargetError(self.refuses)
        self.problem = ""


@dataclass(frozen=True)
class ReportOfHosts(Report):
    processes: tuple[Any, ...] = ()


def did(rank: int, seconds: dict[str, float], **more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{"rank": rank, "pid": 100 + rank, "host": "here", "seconds": seconds, "error": None,
           "checks": (), **more}
    )  # fmt: skip


class PretendedRun:
    """Both of MODULES: stands in each stage until the test goes on."""

    def __init__(self, group: PretendedHosts) -> None:
        self.group, self.known = group, [group]
        self.entered, self.goes_on = threading.Semaphore(0), threading.Semaphore(0)
        self.report: Any = ReportOfHosts("f", NAME)
        self.targets: list[str] = []

    def running(self) -> list[PretendedHosts]:
        return [group for group in self.known if not group.problem]

    def run_program(self, program: Any, *, target: str, progress: Any, **_: Any) -> Report:
        self.targets.append(target)
        for stages in ({0: "lower"}, {0: "compile", 1: "lower"}, {0: "run", 1: "run"}):
            self.group.stages.update(stages)
            progress(next(iter(stages.values())))
            self.entered.release()
            assert self.goes_on.acquire(timeout=WAIT_S)
        return self.report

    compile_program = run_program
