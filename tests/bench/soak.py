"""A long session: 10,000 edits with plans and compiles, 200 runs; latency and memory stay flat.

The same 500 edits are made 20 times over, so that each edit at the end has its peer at the start.
Every fifth edit is left to settle: it is planned and compiled for its simulated devices. The first
round, in which modules are imported and the worker starts, counts as warm-up.

Compared are seconds of processor time, of the kernel's thread for an edit and of the kernel and its
worker for what they do in the background, so that other programs make no difference. Those of the
clock stand beside them. The last column are the objects that Python's collector tracks.

`python -m tests.bench.soak ROUNDS` makes fewer or more rounds.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import shardviz as sv
from shardviz.gallery import programs
from shardviz.programs.backend.worker.process import workers
from tests.bench.timing import Table, text

EDITS, SETTLES, RUNS, ROUNDS = 500, 5, 10, 20  # of a round; every how many edits; of a round; all
SLOWER, MORE_MEMORY = 1.2, 1.2  # of the last round against the first after the warm-up
_PROGRAMS = ("MLP", "attention", "MLP, gradient")
_TYPED: dict[str, tuple[Any, ...]] = {
    "mesh": (
        "data=4, model=2",
        "data=2, model=4",
        "data=8",
        "data=2, model=2, pipe=2",
        "data=",
        "",
    ),
    "rules": (
        "batch -> data\nmlp -> model",
        "batch -> data\nembed -> model",
        "mlp -> data",
        "a ->",
    ),
    "dialect": ("linen", "nnx", "maxtext"),
    "select": (0, 1),
    "size": (("data", "8"), ("data", "4")),
    "move_axis": (("data", 1), ("data", 0)),
    "remove_axis": ("pipe",),
    "by": ("mesh", "host"),
}
_ARRAY: dict[str, tuple[str, ...]] = {
    "shape": ("64, 128", "128, 64", "64, 127", "64,", "8, 8, 8"),
    "logical": ("batch embed", "embed mlp", "batch None", "batch batch"),
    "dtype": ("float32", "bfloat16", "float99"),
    "spec": ("data, None", "None, model", "", "nobody"),
}


@dataclass
class Round:
    """What one round took.

    Attributes:
        edits, settled, runs: seconds of processor time and of the clock, of each edit, of each plan
            with its compile, of each run.
        kernel, worker: resident bytes afterwards.
        objects: how many objects Python's collector tracks afterwards.
    """

    edits: list[tuple[float, float]] = field(default_factory=list)
    settled: list[tuple[float, float]] = field(default_factory=list)
    runs: list[tuple[float, float]] = field(default_factory=list)
    kernel: int = 0
    worker: int = 0
    objects: int = 0


def edits_of_a_round() -> list[dict[str, Any]]:
    """The same for every round: what a person types, right and wrong, in an order of chance."""
    chance = random.Random(10)
    found: list[dict[str, Any]] = []
    for number in range(EDITS):
        if number % 50 == 0:
            name = _PROGRAMS[number // 50 % len(_PROGRAMS)]
            found.append({"kind": "edit", "field": "program", "value": name})
        elif chance.random() < 0.5:
            what = chance.choice(list(_TYPED))
            found.append({"kind": "edit", "field": what, "value": chance.choice(_TYPED[what])})
        else:
            what, array = chance.choice(list(_ARRAY)), chance.randrange(2)
            value = chance.choice(_ARRAY[what])
            found.append({"kind": "edit", "field": what, "value": value, "array": array})
    return found


def resident(pid: int | str = "self") -> int:
    """The resident bytes of a process; 0 where there is no /proc."""
    path = Path(f"/proc/{pid}/statm")
    return int(path.read_text().split()[1]) * 4096 if path.exists() else 0


def one_round(explorer: Any, edits: list[dict[str, Any]], first: int) -> Round:
    """Makes all edits once, and the runs."""
    found = Round()
    for number, edit in enumerate(edits):
        message = {"seq": first + number, "client": "soak", "intents": [edit]}
        edited = partial(explorer._receive, explorer, message, [])
        found.edits.append(_seconds(edited, time.thread_time))
        if number % SETTLES == SETTLES - 1:
            found.settled.append(_seconds(partial(explorer.wait, 120), processor_time))
        if number % (EDITS // RUNS) == 0:
            explorer.wait()
            explorer.run()
            found.runs.append(_seconds(partial(explorer.wait, 120), processor_time))
    found.kernel, found.worker = resident(), sum(map(resident, workers.pids))
    found.objects = len(gc.get_objects())
    return found


def _seconds(call: Callable[[], Any], clock: Callable[[], float]) -> tuple[float, float]:
    begun, time_begun = clock(), time.perf_counter()
    call()
    return clock() - begun, time.perf_counter() - time_begun


def processor_time() -> float:
    """Seconds of processor time that the kernel and its workers have taken."""
    ticks = 0
    for pid in workers.pids:
        with contextlib.suppress(OSError):  # it ended
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()
            ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def main(rounds: int = ROUNDS) -> int:
    """Makes the rounds; returns how many targets were missed."""
    explorer: Any = sv.explore(programs.get("MLP"))
    edits, made = edits_of_a_round(), []
    for number in range(rounds):
        made.append(one_round(explorer, edits, 1 + number * EDITS))
        print(f"  round {number + 1:2}: {_line(made[-1])}", flush=True)
    explorer.close()
    table, first, last = Table(), made[1], made[-1]
    for what in ("edits", "settled", "runs"):
        ours, theirs = (_middle(getattr(r, what), 0) for r in (last, first))
        table.at_most(f"{what}: the last round against the second", SLOWER, ours, theirs)
    for what in ("kernel", "worker"):
        ours, theirs = getattr(last, what), getattr(first, what)
        row = f"memory of the {what}: the last round against the second"
        ratio = ours / theirs if theirs else 1.0
        note = f"({ours >> 20} MiB / {theirs >> 20} MiB)"
        table.row(row, f"<= {MORE_MEMORY:g}x", f"{ratio:.3g}x", ratio <= MORE_MEMORY, note)
    return table.missed


def _line(found: Round) -> str:
    times = []
    for what in ("edits", "settled", "runs"):
        some = getattr(found, what)
        times.append(f"{what} {text(_middle(some, 0))} [{text(_middle(some, 1))}] ({len(some)})")
    return (
        f"{', '.join(times)}; {found.kernel >> 20} MiB, worker {found.worker >> 20} MiB,"
        f" {found.objects:,} objects"
    )


def _middle(times: list[tuple[float, float]], clock: int) -> float:
    return statistics.median(pair[clock] for pair in times)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
