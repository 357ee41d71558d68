"""Jupyter kernels with a worker, which are shut down and restarted as Jupyter does it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).parents[2]
READY_S = 180  # then a kernel counts as hanging; on a busy machine one takes a minute to start
IDLE = """
import threading
from tests.worker.faults import LONG, SHORT, compiled
assert compiled(SHORT).ok
"""
BUSY = """
begun = threading.Event()
enter = lambda stage: stage == "compile" and begun.set()
threading.Thread(target=lambda: compiled(LONG, progress=enter)).start()
assert begun.wait(60)
"""
IMPORT = "from tests.worker.faults import SHORT, compiled"
NEXT = "assert compiled(SHORT).ok"


@dataclass
class Kernel:
    """A running kernel.

    Attributes:
        manager, client: jupyter_client's own.
    """

    manager: KernelManager
    client: BlockingKernelClient

    @classmethod
    def start(cls) -> Kernel:
        """Starts a kernel."""
        manager = KernelManager(kernel_name="python3")
        manager.start_kernel(env={**os.environ, "JAX_PLATFORMS": "cpu"}, cwd=str(ROOT))
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(READY_S)
        return cls(manager, client)

    def run(self, code: str) -> float:
        """Runs a cell; returns how many seconds it took."""
        begun = time.perf_counter()
        reply = self.client.execute_interactive(
            code, timeout=READY_S, output_hook=lambda message: None
        )
        assert reply["content"]["status"] == "ok", reply["content"]
        return time.perf_counter() - begun

    def shutdown(self) -> float:
        """Shuts it down as Jupyter does; returns how many seconds it took."""
        begun = time.perf_counter()
        self.manager.shutdown_kernel()
        seconds = time.perf_counter() - begun
        self.client.stop_channels()
        return seconds

    def restart(self) -> float:
        """Restarts it as Jupyter does; returns the seconds until the new process starts."""
        begun = time.perf_counter()
        self.manager.restart_kernel()
        seconds = time.perf_counter() - begun
        self.client.wait_for_ready(READY_S)
        return seconds
