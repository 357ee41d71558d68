"""Processes that end, stop or hang, planted in one of them; run by `tests/bench/mistakes.py`.

The process VICTIM does it; every case prints when, and returns what the others' `sv.run` said.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.core.backend.run import here
from tests.spmd.mistakes import X, mesh, program, total

VICTIM = "SHARDVIZ_TEST_VICTIM"
PLANTED = "@planted "
CASES: dict[str, Callable[[int], Any]] = {}


def _is_victim(rank: int) -> bool:
    return rank == int(os.environ.get(VICTIM, "1"))


def plant(fault: Callable[[], Any]) -> None:
    print(f"\n{PLANTED}{time.time()}", flush=True)
    fault()


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def left() -> None:
    os._exit(3)


def raises() -> None:
    raise RuntimeError("the disk is full")


def hangs() -> None:
    threading.Event().wait()


def exhausts_memory() -> None:
    limit = 1 << 34
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    np.ones(1 << 40, np.uint8)


FAULTS = {f.__name__: f for f in (killed, stopped, left, raises, hangs, exhausts_memory)}


def error(report: Any) -> str:
    return "" if report.error is None else str(report.error)


def before(fault: Callable[[], Any], rank: int) -> str:
    """Before the call."""
    if _is_victim(rank):
        plant(fault)
    return error(sv.run(program(total)))


def tracing(fault: Callable[[], Any], rank: int) -> str:
    """While the function is traced."""

    def step(x):
        if _is_victim(rank):
            plant(fault)
        return x.sum()

    return error(sv.run(program(step)))


def placing(fault: Callable[[], Any], rank: int) -> str:
    """When all have agreed, before the arguments are on the devices."""
    if _is_victim(rank):
        made = here.Inputs.place_all
        here.Inputs.place_all = lambda self: (plant(fault), made(self))[1]  # type: ignore[method-assign]
    return error(sv.run(program(total)))


def _with_callback(act: Callable[[np.ndarray], np.ndarray], repeat: int = 1) -> str:
    grid = mesh()

    def local(x):
        y = jax.pure_callback(act, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return jax.lax.psum(y, "data")

    step = jax.shard_map(local, mesh=grid, in_specs=P("data"), out_specs=P(), check_vma=False)
    return error(sv.run(sv.program(step, X, mesh=grid, in_specs=(P("data"),)), repeat=repeat))


def calling(fault: Callable[[], Any], rank: int) -> str:
    """While the program runs, in a function that it calls."""
    once = threading.Lock()

    def act(x: np.ndarray) -> np.ndarray:
        if _is_victim(rank) and once.acquire(blocking=False):
            plant(fault)
        return x

    return _with_callback(act)


def calling_again(fault: Callable[[], Any], rank: int) -> str:
    """In a later repetition of the run."""
    seen: list[int] = []

    def act(x: np.ndarray) -> np.ndarray:
        seen.append(1)
        if _is_victim(rank) and len(seen) == 10:
            plant(fault)
        return x

    return _with_callback(act, repeat=5)


MOMENTS = {f.__name__: f for f in (before, tracing, placing, calling, calling_again)}
CASES |= {
    f"{fault}-{moment}": lambda rank, f=FAULTS[fault], m=MOMENTS[moment]: m(f, rank)
    for fault in FAULTS
    for moment in MOMENTS
}
sys.setswitchinterval(0.005)
