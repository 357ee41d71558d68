"""How long a transformer block's gradient takes to compile for machines that are not attached."""

from __future__ import annotations

import time

from shardviz.programs.backend.worker.process import workers
from shardviz.runs.backend.targets import missing
from shardviz.runs.backend.worker.run import compile_program
from shardviz.runs.cache import ExecutableCache
from tests.bench.timing import Table, text
from tests.worker.pods import PODS, block

TARGET = 0.05  # share of the compile's time for reading its dump and making the report
ROUNDS = 5


def main() -> int:
    """Prints the table; how many targets were missed."""
    table = Table()
    for target, axes in PODS.items():
        if error := missing(target.partition(":")[0]):
            print(f"  {target}: {error}")
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
    workers.end()
    return table.missed
