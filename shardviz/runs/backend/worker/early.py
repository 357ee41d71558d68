"""Starts the worker in the background, before the first call needs it.

Most of a worker's start is its import of jax. A compile starts the worker before it
traces and lowers the program. In an interactive session, the first program with several
devices also starts the worker, because a compile often follows.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os

import jax

from shardviz.base.backend.jax_compat import backend_started
from shardviz.base.errors import ShardvizError
from shardviz.programs.backend.devices import MOST_SIMULATED
from shardviz.programs.backend.worker.process import workers
from shardviz.programs.backend.worker.settings import Settings
from shardviz.runs.backend.targets import decide


def start_worker(devices: int) -> None:
    """Starts a worker for a program's default target, in an interactive session.

    Does nothing if a compile would use attached devices, in a child of multiprocessing,
    or on a machine with one CPU, because the worker would compete with the kernel.

    Args:
        devices: number of devices in the program's mesh.
    """
    is_child = multiprocessing.parent_process() is not None
    if devices == 1 or is_child or (os.cpu_count() or 1) == 1:
        return
    # Without a backend, jax would have to start to know whether devices are attached.
    if backend_started():
        with contextlib.suppress(ShardvizError):
            if not decide(None, devices).worker:
                return
    workers.start(Settings.of("cpu", devices, MOST_SIMULATED), prepare)


def prepare(_folder: str) -> None:
    """Does in the worker what the first call needs: imports, and jax's devices."""
    from shardviz.runs.backend.worker import child  # noqa: F401

    jax.devices()
