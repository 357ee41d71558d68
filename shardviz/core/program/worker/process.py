"""Process: one worker process, started when it is first needed, watched while it works.

loky starts it, talks to it and notices when it dies; here it is given its settings, held to its
limits and ended at once where somebody asks.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from loky import ProcessPoolExecutor
from loky.backend import get_context

from shardviz.core.program.compiling.partitioner import dump_place
from shardviz.core.program.devices.capacity import host_available, host_total
from shardviz.core.program.worker import child
from shardviz.core.program.worker.endings import WorkerError, ended, too_long, too_much
from shardviz.core.program.worker.settings import Limits, Settings

START, WORK = "worker", "compile"
_EXIT_CODE = re.compile(r"\((-?\d+)\)")
_LOOKS = 8  # the memory is looked at in every so many polls


class Process:
    """One worker process.

    Args:
        settings: what kind of worker it is.

    Attributes:
        limits: how far the next call may go.
        stage: what it does at the moment; `""` where it waits.
        alive: whether calls can be sent to it.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.limits = settings, Limits()
        self.stage, self.alive = "", True
        self.lock = threading.Lock()  # one call at a time: an end ends the call of nobody else
        self.used = time.monotonic()
        self._folder = Path(tempfile.mkdtemp(prefix="shardviz-worker-", dir=dump_place()))
        self._started = self._bound = False
        self._executor = ProcessPoolExecutor(
            max_workers=1,
            context=get_context("loky"),
            initializer=child.begin,
            initargs=(str(self._folder), os.getpid()),
            env=settings.environment(),
        )

    @property
    def pid(self) -> int | None:
        """Its process id; None before it runs."""
        try:
            return int((self._folder / child.PID).read_text())
        except (OSError, ValueError):
            return None

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        poll: Callable[[], None] = lambda: None,
        progress: Callable[[str], None] = lambda stage: None,
        look: Callable[[Path], None] = lambda folder: None,
    ) -> Any:
        """What the function gives in the worker, which takes a folder as its last argument.

        Args:
            function: something that the worker can import by name.
            *arguments: plain data.
            poll: asked all the time; what it raises ends the worker at once.
            progress: called with the name of every stage as it begins.
            look: called with the folder of the call, again and again.

        Raises:
            WorkerError: where the worker ends before it answers, or reaches a limit.
            Exception: what the function raises, or `poll`.
        """
        if not self._started:
            progress(START)
            self._wait_for(child.ready, (), self.limits.start_seconds, poll, START)
            self._started = True
            progress(WORK)
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        (self._folder / child.LOG).write_bytes(b"")
        try:
            return self._wait_for(
                function,
                (*arguments, str(folder)),
                self.limits.seconds,
                lambda: (self._follow(folder, progress), look(folder), poll()),
                WORK,
            )
        finally:
            self.stage, self.used = "", time.monotonic()
            shutil.rmtree(folder, ignore_errors=True)

    def end(self) -> None:
        """Ends the worker at once, whatever it does."""
        self.alive = False
        self._executor.shutdown(wait=True, kill_workers=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end_with_the_kernel(self) -> None:
        # loky waits for its workers before atexit, and one that hangs would keep the kernel from
        # ending. These callbacks run last in, first out: after loky's, which came with `submit`.
        if not self._bound:
            me = weakref.ref(self)
            register = getattr(threading, "_register_atexit", atexit.register)
            register(lambda: (process := me()) and process.end())
            self._bound = True

    def _wait_for(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        seconds: float | None,
        poll: Callable[[], Any],
        stage: str,
    ) -> Any:
        self.stage = stage
        try:
            future = self._executor.submit(function, *arguments)
            self._end_with_the_kernel()
            self._watch(future, seconds, poll)
            return future.result()
        except BrokenProcessPool as error:
            code = _EXIT_CODE.search(str(error))
            words = ended(int(code[1]) if code else None, self.stage, self._folder / child.LOG)
            self.end()
            raise words from error
        except (WorkerError, KeyboardInterrupt):
            self.end()
            raise

    def _watch(self, future: Future, seconds: float | None, poll: Callable[[], Any]) -> None:
        """Waits, and ends the worker where a limit is reached or `poll` raises."""
        begun, turn = time.monotonic(), 0
        while not wait([future], timeout=self.limits.poll).done:
            try:
                poll()
            except BaseException:
                self.end()
                raise
            turn += 1
            if seconds is not None and time.monotonic() - begun > seconds:
                raise too_long(seconds, self.stage)
            if turn % _LOOKS == 0:
                self._weigh()

    def _follow(self, folder: Path, progress: Callable[[str], None]) -> None:
        try:
            stage = (folder / child.STAGE).read_text()
        except OSError:
            return  # not written yet
        if stage != self.stage:
            self.stage = stage
            progress(stage)

    def _weigh(self) -> None:
        held = memory_of(self.pid)
        if held is None:
            return
        limit, left, total = self.limits.memory, host_available(), host_total()
        if limit is not None and held > limit:
            raise too_much(held, limit, self.stage)
        if left is not None and total and left < self.limits.spare * total and held > left:
            raise too_much(held, None, self.stage)


def memory_of(pid: int | None) -> int | None:
    """Bytes of memory that a process holds; None where the system does not say.

    >>> memory_of(None)
    """
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None  # gone, or not Linux
