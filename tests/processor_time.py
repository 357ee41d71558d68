"""`python -m pytest -p tests.processor_time`: which tests take the most time of the processor.

A test's own process counts, and whatever runs below it: browsers, kernels, workers, compilers. To
a test belongs what was used since the one before, so what its fixtures take as well. Linux alone
tells the time of processes that still run; elsewhere those count that have ended.
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
    """Seconds of the processor that this process used, with all below it, running or ended."""
    used: dict[int, float] = {}
    below: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # The name before it, in brackets, may hold anything.
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            used[pid] = sum(map(int, fields[11:15])) / _TICKS  # with children that were waited for
            below.setdefault(int(fields[1]), []).append(pid)
    used[os.getpid()] = sum(os.times()[:4])  # in finer steps, and on any system
    found = [os.getpid()]
    for pid in found:
        found += below.get(pid, [])
    return sum(used[pid] for pid in found)


class ProcessorTime:
    """Measures in each process that runs tests; adds up and prints in the first one."""

    def __init__(self) -> None:
        self.before, self.at, self.own = 0.0, 0.0, 0.0
        self.tests: Counter[str] = Counter()
        self.rest: Counter[str] = Counter()

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
            used = own - self.own  # to look at all processes would take longer
            self.before += used
        else:
            now = seconds_used()
            used = max(0.0, now - self.before)  # what ended unseen, such as a browser, is gone
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
            self.rest["collecting and importing, first process"] = used

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error: object) -> None:
        collected = getattr(node, "workeroutput", {}).get(_NAME, 0.0)
        self.rest["collecting and importing, other processes"] += collected

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files: Counter[str] = Counter()
        for nodeid, used in self.tests.items():
            files[nodeid.partition("::")[0]] += used
        write = terminalreporter.write_line
        terminalreporter.section(f"{_NAME}: {sum(files.values()) + sum(self.rest.values()):.0f}")
        for title, counted in (("", self.rest), ("Files", files), ("Tests", self.tests)):
            write(title)
            for name, used in counted.most_common(_MOST):
                write(f"{used:8.2f}  {name}")


_COLLECTED = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ProcessorTime(), _NAME)
