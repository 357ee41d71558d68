"""Ends a worker with its kernel. Imports no jax, because it runs before jax is imported."""

from __future__ import annotations

import os
import threading
import time


def end_with(kernel: int) -> None:
    """Ends this process as soon as the kernel is gone, even during a call.

    Args:
        kernel: process id of the kernel, the parent of this process.
    """
    threading.Thread(target=_watch, args=(kernel,), daemon=True).start()


def _watch(kernel: int) -> None:
    # A closed socket isn't enough: a forked child of the kernel may hold it open.
    while os.getppid() == kernel:
        time.sleep(0.25)
    os._exit(0)
