"""How many of the bytes at memory peaks have a value and a spec, on CPUs and a TPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.bench.memory_peaks import _ENVIRONMENT

TARGETS = ("attached", "tpu:v5e:2x4")
#: On TPUs a few programs of each kind are enough: their compiles take minutes.
ON_TPU = ("step", "checkpointed_step", "MLP, gradient", "linen_transformer", "pipeline")


def main() -> int:
    """Measures each target in a process of its own; 1 if fewer than 90 % have an owner."""
    missed = 0
    for target in TARGETS:
        names = ON_TPU if target.startswith("tpu") else ()
        command = [sys.executable, "-m", "tests.bench.memory_owners", target, *names]
        ran = subprocess.run(command, env={**os.environ, **_ENVIRONMENT}, check=False)
        missed += ran.returncode
    return missed


def measure(target: str, names: tuple[str, ...] = ()) -> int:
    """Compiles the programs for one target and prints whose bytes have no owner."""
    import shardviz as sv

    without: Counter[tuple[str, ...]] = Counter()
    owned = total = 0
    for name, program in programs():
        if names and name not in names:
            continue
        report = sv.compile(program, target)
        if report.error is not None or report.memory.peak is None:
            print(f"{name}: {report.error}")
            continue
        here = here_owned = 0
        for buffer in report.memory.peak.buffers:
            here += buffer.bytes
            if buffer.value and buffer.spec is not None:
                here_owned += buffer.bytes
            else:
                op = "/".join(buffer.op.split("/")[-2:])
                row = (name, buffer.kind, buffer.shape, op, buffer.source, buffer.name)
                without[row] += buffer.bytes
        print(f"{here_owned / here:7.1%} of {here:>13,} {name} on {program.mesh}", flush=True)
        owned, total = owned + here_owned, total + here
    print(f"{target}: {owned / total:.1%} of {total:,} bytes have a value and a spec")
    for row, size in without.most_common(60):
        print(f"  {size / total:6.2%}  {'  '.join(row)}")
    return int(owned < 0.9 * total)


def foreign() -> Iterator[tuple[str, Any]]:
    """The programs of `memory_foreign`."""
    import shardviz as sv
    from tests.bench import memory_foreign

    for name, fn, arguments in memory_foreign.programs():
        yield name, sv.program(fn, *arguments)


def programs() -> Iterator[tuple[str, Any]]:
    """Those of `memory_foreign`, and the programs of the memory bench."""
    import shardviz as sv
    from tests.bench import memory_peaks

    yield from foreign()
    for name, fn, arrays, mesh, donate in memory_peaks.programs():
        named = []
        for array, (shape, dtype, spec) in arrays.items():
            named.append(sv.array(array, shape, dtype=dtype, spec=spec))
        yield name, sv.program(fn, *named, mesh=mesh, donate=donate)


if __name__ == "__main__":
    sys.exit(measure(sys.argv[1], tuple(sys.argv[2:])))
