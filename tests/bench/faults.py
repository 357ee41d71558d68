"""A hundred faults of the worker: the kernel lives, each is reported, the next compile works."""

from __future__ import annotations

import itertools
import time
from collections import Counter

import pytest

from shardviz.core.backend.run.worker.process import workers
from tests.worker.faults import FAULTS, Faults, children, inject

COUNT = 100


def main() -> int:
    """Injects them; returns how many did harm."""
    harm, reported, begun = 0, Counter(), time.perf_counter()
    before = children()
    for seed, name in zip(range(COUNT), itertools.cycle(FAULTS), strict=False):
        with pytest.MonkeyPatch.context() as patch:
            try:
                answer = inject(name, Faults(seed, patch))
                reported[name, "too late" if answer == "too late" else "reported"] += 1
            except Exception as error:  # noqa: BLE001  go on with the others
                print(f"fault {seed}, {name}: {type(error).__name__}: {error}")
                harm += 1
    workers.end()
    left = children() - before
    for (name, how), count in sorted(reported.items()):
        print(f"{name:>10}  {how:<9} {count}")
    print(f"{COUNT} faults in {time.perf_counter() - begun:.0f} s: {harm} did harm; child"
          f" processes left: {len(left)}")  # fmt: skip
    return harm + len(left)
