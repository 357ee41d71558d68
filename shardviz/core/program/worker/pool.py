"""Pool: the workers of this kernel, one of a kind, started when first needed and kept warm."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardviz.core.program.worker.process import Process
from shardviz.core.program.worker.settings import Limits, Settings

MOST_WORKERS = 3  # each holds about 300 MB once it has compiled


class Pool:
    """Worker processes by kind; safe to use from any thread.

    Attributes:
        limits: how far a call may go; where none are set, those of the environment at the time.

    >>> Pool().pids
    ()
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits
        self._processes: dict[Settings, Process] = {}
        self._lock = threading.Lock()

    def call(
        self,
        settings: Settings,
        function: Callable[..., Any],
        *arguments: Any,
        poll: Callable[[], None] = lambda: None,
        progress: Callable[[str], None] = lambda stage: None,
        look: Callable[[Path], None] = lambda folder: None,
    ) -> Any:
        """What the function gives in the worker of that kind; as `Process.call`.

        Calls to one worker wait for each other, and a call that is given up while it waits leaves
        the worker alone.
        """
        while True:
            limits = self.limits or Limits.of(os.environ)
            process = self._process(settings)
            while not process.lock.acquire(timeout=limits.poll):
                poll()
            try:
                process.limits = limits
                if process.alive:  # whoever had it before may have ended it
                    return process.call(
                        function, *arguments, poll=poll, progress=progress, look=look
                    )
            finally:
                process.lock.release()
                self._forget_the_dead()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers that run."""
        with self._lock:
            found = [p.pid for p in self._processes.values() if p.alive]
        return tuple(pid for pid in found if pid is not None)

    def end(self) -> None:
        """Ends every worker at once; the next call starts a new one."""
        with self._lock:
            processes = list(self._processes.values())
            self._processes.clear()
        for process in processes:
            process.end()

    def _process(self, settings: Settings) -> Process:
        with self._lock:
            process = self._processes.get(settings)
            if process is None or not process.alive:
                self._make_room()
                process = self._processes[settings] = Process(settings)
            return process

    def _make_room(self) -> None:
        """Ends the worker that was used least recently, where there are many and it waits."""
        idle = [s for s, p in self._processes.items() if not p.lock.locked()]
        if len(self._processes) >= MOST_WORKERS and idle:
            oldest = min(idle, key=lambda s: self._processes[s].used)
            self._processes.pop(oldest).end()

    def _forget_the_dead(self) -> None:
        with self._lock:
            for settings in [s for s, p in self._processes.items() if not p.alive]:
                del self._processes[settings]


#: The workers of this kernel.
workers = Pool()
