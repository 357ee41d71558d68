"""The same programs in one, two and four processes, on two orders of the mesh: equal values.

    python -m tests.bench.processes          # 60 programs
    python -m tests.bench.processes 10 2     # the first 10, in one and two processes

Each process runs all programs with `sv.run`, which checks every shard against its layout and the
values against the unsharded function. The shards of all processes are put together here and
compared with those of one process.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.spmd.processes import Ended, run_cases
from tests.spmd.same_script import ORDERS, SHARDS
from tests.stages.programs import CASES

_EQUAL = 1e-5  # of the largest value: sums in another order


def assembled(folder: Path, name: str) -> dict[str, np.ndarray]:
    """The results of a program, from the shards of all processes.

    Raises:
        ValueError: where two shards of the same indices differ.
    """
    found: dict[str, np.ndarray] = {}
    filled: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob(f"{name} *.npz")):
        with np.load(path, allow_pickle=False) as shards:
            for key, block in shards.items():
                number, shape, index = _parsed(key)
                if number not in found:
                    found[number] = np.zeros(shape, block.dtype)
                    filled[number] = np.zeros(shape, bool)
                place = tuple(slice(*bounds) for bounds in index)
                held = found[number][place][filled[number][place]]
                if not np.array_equal(held, block[filled[number][place]], equal_nan=_floats(block)):
                    raise ValueError(f"two processes hold other values of {key}")
                found[number][place], filled[number][place] = block, True
    for number, complete in filled.items():
        if not complete.all():
            raise ValueError(f"result {number}: no process holds some of it")
    return found


def _floats(block: np.ndarray) -> bool:
    return block.dtype.kind in "fc"


def _parsed(key: str) -> tuple[str, list[int], list[tuple[int, int]]]:
    number, _, rest = key.partition(" ")
    shape, _, index = rest.partition("] ")
    return number, ast.literal_eval(f"{shape}]"), ast.literal_eval(index)


def apart(found: dict[str, np.ndarray], one: dict[str, np.ndarray]) -> float:
    """The largest difference of two sets of results, as a fraction of the largest value."""
    if found.keys() != one.keys():
        return float("inf")
    worst = 0.0
    for number, reference in one.items():
        wide = reference.astype(np.complex128 if reference.dtype.kind == "c" else np.float64)
        scale = float(np.nanmax(np.abs(wide), initial=0.0)) or 1.0
        difference = np.abs(found[number].astype(wide.dtype) - wide)
        worst = max(worst, float(np.nanmax(difference, initial=0.0)) / scale)
    return worst


def mistakes(processes: list[Ended], case: str) -> list[str]:
    """What went wrong with a program in any of the processes."""
    found = []
    for rank, ended in enumerate(processes):
        answer: Any = ended.cases.get(case)
        if answer is None or "raised" in answer:
            found.append(f"process {rank}: {answer or 'no answer'}")
        elif answer["error"]:
            found.append(f"process {rank}: {answer['error']}")
        else:
            found += [f"process {rank}: {n}: {d}" for n, ok, d in answer["checks"] if ok is False]
    return found


def main(programs: int = 60, most: int = 4) -> int:
    """Compares, and prints one line for each number of processes and order."""
    cases = [f"run-{n}-{order}" for n in range(min(programs, len(CASES))) for order in ORDERS]
    counts = [n for n in (1, 2, 4) if n <= most]
    wrong = 0
    with tempfile.TemporaryDirectory() as top:
        for count in counts:
            folder = Path(top, str(count))
            folder.mkdir()
            begun = time.monotonic()

            processes = run_cases(
                "tests.spmd.same_script",
                count,
                cases,
                seconds=3000,
                environment={SHARDS: str(folder)},
            )
            for order in ORDERS:
                wrong += _compare(Path(top), count, order, processes, cases)
            print(f"   {time.monotonic() - begun:.0f} s", flush=True)
    return wrong


def _compare(top: Path, count: int, order: str, processes: list[Ended], cases: list[str]) -> int:
    equal = close = wrong = checks = compared = 0
    for case in cases:
        _, number, of = case.split("-")
        if of != order:
            continue
        found = mistakes(processes, case)
        if not found:
            here = [c for ended in processes for c in ended.cases[case]["checks"]]
            checks += sum(ok is True for name, ok, _ in here if ": indices" in name)
            compared += sum(ok is True for name, ok, _ in here if ": values" in name)
            name = f"{number} {order}"
            try:
                far = apart(assembled(top / str(count), name), assembled(top / "1", name))
            except ValueError as error:
                found.append(str(error))
            else:
                equal, close = equal + (far == 0), close + (0 < far <= _EQUAL)
                found += [f"apart by {far:.2g} of the largest value"] * (far > _EQUAL)
        for words in found:
            print(f"WRONG {CASES[int(number)].name}, {count} processes, {order}: {words}")
        wrong += bool(found)
    total = sum(case.endswith(order) for case in cases)
    print(
        f"{count} processes, {order}: {total} programs, {equal} equal in every bit, {close} within"
        f" {_EQUAL:g}, {wrong} wrong; {checks} arrays checked on their devices, {compared} results"
        " equal to the unsharded function",
        flush=True,
    )
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
