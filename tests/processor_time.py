"""`python -m pytest -p tests.processor_time`: the tests that use the most processor time.

The time includes all child processes: browsers, kernels, workers, compilers. A test is charged for
the time since the previous test, which includes its fixtures. Only Linux reports the time of
processes that are still running; on other systems, only ended processes count.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from pathlib import Path

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")
_NAME = "processor seconds"
_MOST = 60
_SHORT = 0.02  # seconds


def seconds_used() -> float:
    """The processor seconds of this process and all its descendants, running or ended."""
    used: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            # The name of the process, in brackets, may contain any character.
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            used[pid] = sum(map(int, fields[11:15])) / _TICKS  # including reaped children
            children.setdefault(int(fields[1]), []).append(pid)
    used[os.getpid()] = sum(os.times()[:4])  # more precise, and on every system
    pids = [os.getpid()]
    for pid in pids:
        pids += children.get(pid, [])
    return sum(used[pid] for pid in pids)


class ProcessorTime:
    """Measures in each process that runs tests; adds up and prints in the first one.

    Attributes:
        before: the seconds of this process and its descendants at the last call of `since`.
        at: the time of that call.
        own: the seconds of this process alone at that call.
        tests: the seconds of each test.
        overhead: the seconds of collecting and importing.
    """

    def __init__(self) -> None:
        self.before, self.at, self.own = 0.0, 0.0, 0.0
        self.tests: Counter[str] = Counter()
        self.overhead: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]):
        report = yield
        if call.when == "teardown":
            report.user_properties.append((_NAME, self.since()))
        return report

    def since(self) -> float:
        """The seconds used since the last call."""
        own = sum(os.times()[:2])
        if time.monotonic() - self.at < _SHORT:
            used = own - self.own  # reading all processes would take longer
            self.before += used
        else:
            now = seconds_used()
            # Negative if a process such as a browser has ended and was not reaped here.
            used = max(0.0, now - self.before)
            self.before = now
        self.own, self.at = own, time.monotonic()
        return used

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        session.config.stash[_COLLECTED] = self.since()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid] += sum(v for k, v in report.user_properties if k == _NAME)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_NAME] = session.config.stash.get(_COLLECTED, 0.0)
        else:  # with -n, nothing is collected here
            used = session.config.stash.get(_COLLECTED, sum(os.times()[:2]))
            self.overhead["collecting and importing, first process"] = used

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error: object) -> None:
        collected = getattr(node, "workeroutput", {}).get(_NAME, 0.0)
        self.overhead["collecting and importing, other processes"] += collected

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files: Counter[str] = Counter()
        for nodeid, used in self.tests.items():
            files[nodeid.partition("::")[0]] += used
        write = terminalreporter.write_line
        terminalreporter.section(
            f"{_NAME}: {sum(files.values()) + sum(self.overhead.values()):.0f}"
        )
        for title, counted in (("", self.overhead), ("Files", files), ("Tests", self.tests)):
            write(title)
            for name, used in counted.most_common(_MOST):
                write(f"{used:8.2f}  {name}")


_COLLECTED = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ProcessorTime(), _NAME)
