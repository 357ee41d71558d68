"""Results of one program in several processes, put together from the shards of each."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np

from tests.spmd.processes import Ended


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
