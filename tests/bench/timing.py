"""How to time functions, and the table that benchmarks print."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def best(run: Callable[[], Any], seconds: float = 0.3, at_least: int = 5) -> float:
    """The least seconds that one call of `run` takes, over as many calls as fit.

    The least, because other load on the machine can only make a call slower.
    """
    run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < at_least or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def each(
    make: Callable[[int], Any], run: Callable[[Any], Any], count: int, batch: int = 1
) -> float:
    """The median over `count` batches of the mean seconds of `run` on new values.

    The time of `make` is not counted. So no cache of results helps `run`, though its modules are
    imported. Python's garbage collector stays on, as in a notebook, so its time counts.
    """
    means = []
    for number in range(count):
        values = [make(number * batch + i) for i in range(batch)]
        start = time.perf_counter()
        for value in values:
            run(value)
        means.append((time.perf_counter() - start) / batch)
    return statistics.median(means)


def side_by_side(
    ours: Callable[[], float], theirs: Callable[[], float], rounds: int = 5
) -> tuple[float, float]:
    """Both times, of the round with the median ratio: other load slows both alike."""
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    return sorted(pairs, key=lambda p: p[1] / p[0])[len(pairs) // 2]


def text(seconds: float) -> str:
    """Seconds in s, ms or µs, the largest unit that gives at least 1."""
    for scale, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * scale >= 1 or unit == "µs":
            return f"{seconds * scale:.3g} {unit}"
    raise AssertionError


class Table:
    """Rows of targets and measured values; counts the missed targets."""

    def __init__(self) -> None:
        self.missed = 0
        print(f"  {'what':<58} {'target':>12} {'measured':>12}")

    def row(self, what: str, target: str, measured: str, met: bool, note: str = "") -> None:
        """One row, printed at once."""
        self.missed += not met
        mark = "" if met else "  MISSED"
        print(f"  {what:<58} {target:>12} {measured:>12}{mark}  {note}".rstrip(), flush=True)

    def at_least(self, what: str, target: float | None, ours: float, theirs: float) -> None:
        """A row on how many times faster `ours` is; without a target it is only printed."""
        note = f"({text(theirs)} / {text(ours)})"
        ratio = theirs / ours
        wanted = "" if target is None else f">= {target:g}x"
        self.row(what, wanted, f"{ratio:.3g}x", target is None or ratio >= target, note)

    def at_most(self, what: str, target: float, ours: float, theirs: float) -> None:
        """A row on how many times longer `ours` may take."""
        note = f"({text(ours)} / {text(theirs)})"
        ratio = ours / theirs
        self.row(what, f"<= {target:g}x", f"{ratio:.3g}x", ratio <= target, note)

    def within(self, what: str, target: float, ours: float) -> None:
        """A row on how many seconds `ours` may take."""
        self.row(what, f"<= {text(target)}", text(ours), ours <= target)
