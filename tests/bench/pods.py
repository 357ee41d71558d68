"""How long a transformer block's gradient takes to compile for machines that are not attached."""

from __future__ import annotations

import time

from shardviz.core.backend.run.targets import missing
from shardviz.core.backend.run.worker.process import workers
from shardviz.core.backend.run.worker.run import compile_program
from shardviz.core.program.cache import ExecutableCache
from tests.bench.timing import Table, text
from tests.worker.pods import PODS, block

TARGET = 0.05  # share of the compile's time for reading its dump and making the report
ROUNDS = 5


def main() -> int:
    """Prints the table; how many targets were missed."""
    table = Table()
    for target, axes in PODS.items():
        if words := missing(target.partition(":")[0]):
            print(f"  {target}: {words}")
            continue
        cache, begun = ExecutableCache(), time.perf_counter()
        report = compile_program(block(axes), target, cache=cache)
        wall = time.perf_counter() - begun
        if report.error is not None:
            table.row(f"{target}: {report.error}", "", "", False)
            continue
        table.row(f"{target}, in a new worker: wall time", "", text(wall), True)
        for what, seconds in (
            ("to trace, lower and export", report.lower_s),
            ("until the partitioner had answered", report.partition_s),
            ("the compile", report.compile_s),
        ):
            table.row(f"{target}: {what}", "", text(seconds or 0.0), True)
        read, compiling = cache.find(report.key).read_s, report.compile_s or 0.0
        table.at_most(f"{target}: reading and reporting / compile", TARGET, read, compiling)
        read, compiling = _again(target, axes)
        share = f"{read / compiling:.3g}x  ({text(read)} / {text(compiling)})"
        table.row(f"{target}: the same in a warm worker", "", share, True)
    workers.end()
    return table.missed


def _again(target: str, axes: dict[str, int]) -> tuple[float, float]:
    """Seconds to read and report, and to compile, where the worker has compiled the program before:
    the median by their ratio."""
    pairs = []
    for _ in range(ROUNDS):
        cache = ExecutableCache()
        report = compile_program(block(axes), target, cache=cache)
        pairs.append((cache.find(report.key).read_s, report.compile_s or 0.0))
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
