"""Worker processes: started when first needed, kept for later calls, limited, and how they ended.

loky starts a worker, sends it calls and notices when it dies. Here it gets its settings, and is
ended where it exceeds a limit or the call is cancelled.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
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

from shardviz.core.backend.devices import host_available, host_total
from shardviz.core.backend.partitioner import dump_root
from shardviz.core.backend.worker import child
from shardviz.core.backend.worker.settings import Limits, Settings
from shardviz.core.errors import TargetError
from shardviz.core.format import bytes_text

LAST_LINES = 3
_MOST_READ = 8192
_SIGNALS = {
    "SIGKILL": "killed from outside, often by the system where memory runs out",
    "SIGABRT": "aborted: the compiler or runtime met a state that it cannot go on from",
    "SIGSEGV": "crashed: a fault in memory, inside the compiler or a library",
    "SIGTERM": "asked to end from outside",
}
_NOISE = re.compile(r"^(?:WARNING: All log messages|[IW]\d{4} |\s*@|\*\*\*|\s*$)")


class WorkerError(TargetError):
    """The worker ended before it answered."""


def exit_error(exit_code: int | None, stage: str, log: Path | None = None) -> WorkerError:
    """The error for a worker that ended by itself.

    Args:
        exit_code: as Python has it: negative for a signal; None where it is not known.
        stage: the stage it was in; `""` for none.
        log: the file with its output.

    >>> print(exit_error(-6, "compile"))
    The worker process ended in the stage 'compile': aborted: the compiler or runtime met a state...
    """
    where = f" in the stage {stage!r}" if stage else ""
    said = last_lines(log)
    words = f" It said last: {said}" if said else ""
    return WorkerError(
        f"The worker process ended{where}: {exit_in_words(exit_code)}.{words} Your kernel is not"
        " touched, and the next compile gets a new worker."
    )


def timeout_error(seconds: float, stage: str) -> WorkerError:
    """The error for a worker that was ended because it took too long.

    >>> print(timeout_error(60, "run"))
    The worker process was ended after 60 s in the stage 'run': that is the limit. ...
    """
    return WorkerError(
        f"The worker process was ended after {seconds:.3g} s in the stage {stage!r}: that is the"
        " limit. It may hang, or need longer: give it more time, or a smaller program."
    )


def memory_error(held: int, limit: int | None, stage: str) -> WorkerError:
    """The error for a worker that was ended because it held too much memory.

    >>> print(memory_error(3 << 30, 2 << 30, "compile"))
    The worker process was ended in the stage 'compile': it held 3 GiB and may hold 2 GiB. ...
    """
    why = (
        f"it held {bytes_text(held)} and may hold {bytes_text(limit)}"
        if limit is not None
        else f"it held {bytes_text(held)} and the machine's memory was about to run out"
    )
    return WorkerError(
        f"The worker process was ended in the stage {stage!r}: {why}. Compile a smaller program,"
        " fewer devices, or on a machine with more memory."
    )


def exit_in_words(code: int | None) -> str:
    """An exit code or signal as people say it.

    >>> exit_in_words(-9)
    'killed from outside, often by the system where memory runs out (SIGKILL)'
    >>> exit_in_words(3), exit_in_words(None)
    ('it left with exit code 3', 'it left without saying why')
    """
    if code is None:
        return "it left without saying why"
    if code >= 0:
        return f"it left with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"ended by signal {-code}"
    return f"{_SIGNALS[name]} ({name})" if name in _SIGNALS else f"ended by {name}"


def last_lines(log: Path | None) -> str:
    """The last lines that a worker printed, joined, without what compilers always print."""
    try:
        text = "" if log is None else log.read_bytes()[-_MOST_READ:].decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if not _NOISE.match(line)]
    words = " / ".join(lines[-LAST_LINES:])
    return "".join(c if c.isprintable() else "?" for c in words)[-400:]


START, WORK = "worker", "compile"
_EXIT_CODE = re.compile(r"\((-?\d+)\)")
_POLLS_PER_CHECK = 8  # the memory is checked in every eighth poll


class Process:
    """One worker process.

    Args:
        settings: what kind of worker it is.

    Attributes:
        limits: those of the next call.
        stage: the stage it is in; `""` while it waits for a call.
        alive: whether calls can be sent to it.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.limits = settings, Limits()
        self.stage, self.alive = "", True
        self.lock = threading.Lock()  # one call at a time: an end ends the call of nobody else
        self.used = time.monotonic()
        self._folder = Path(tempfile.mkdtemp(prefix="shardviz-worker-", dir=dump_root()))
        self._started = self._registered = False
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
        poll_folder: Callable[[Path], None] = lambda folder: None,
    ) -> Any:
        """Calls a function in the worker, with a folder as its last argument.

        Args:
            function: something that the worker can import by name.
            *arguments: plain data.
            poll: called repeatedly; what it raises ends the worker at once.
            progress: called with the name of every stage as it begins.
            poll_folder: called repeatedly with the folder of the call.

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
                lambda: (self._follow(folder, progress), poll_folder(folder), poll()),
                WORK,
            )
        finally:
            self.stage, self.used = "", time.monotonic()
            shutil.rmtree(folder, ignore_errors=True)

    def end(self) -> None:
        """Ends the worker at once."""
        self.alive = False
        self._executor.shutdown(wait=True, kill_workers=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end_at_exit(self) -> None:
        # loky waits for its workers before atexit, and one that hangs would keep the kernel from
        # ending. These callbacks run last in, first out: after loky's, which came with `submit`.
        if not self._registered:
            me = weakref.ref(self)
            register = getattr(threading, "_register_atexit", atexit.register)
            register(lambda: (process := me()) and process.end())
            self._registered = True

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
            self._end_at_exit()
            self._watch(future, seconds, poll)
            return future.result()
        except BrokenProcessPool as error:
            code = _EXIT_CODE.search(str(error))
            words = exit_error(int(code[1]) if code else None, self.stage, self._folder / child.LOG)
            self.end()
            raise words from error
        except (WorkerError, KeyboardInterrupt):
            self.end()
            raise

    def _watch(self, future: Future, seconds: float | None, poll: Callable[[], Any]) -> None:
        """Waits, and ends the worker where a limit is reached or `poll` raises."""
        begun, polls = time.monotonic(), 0
        while not wait([future], timeout=self.limits.poll).done:
            try:
                poll()
            except BaseException:
                self.end()
                raise
            polls += 1
            if seconds is not None and time.monotonic() - begun > seconds:
                raise timeout_error(seconds, self.stage)
            if polls % _POLLS_PER_CHECK == 0:
                self._check_memory()

    def _follow(self, folder: Path, progress: Callable[[str], None]) -> None:
        try:
            stage = (folder / child.STAGE).read_text()
        except OSError:
            return  # not written yet
        if stage != self.stage:
            self.stage = stage
            progress(stage)

    def _check_memory(self) -> None:
        held = memory_of(self.pid)
        if held is None:
            return
        limit, left, total = self.limits.memory, host_available(), host_total()
        if limit is not None and held > limit:
            raise memory_error(held, limit, self.stage)
        if left is not None and total and left < self.limits.spare * total and held > left:
            raise memory_error(held, None, self.stage)


def memory_of(pid: int | None) -> int | None:
    """Bytes of memory that a process uses; None where the system does not say.

    >>> memory_of(None)
    """
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None  # gone, or not Linux


MOST_WORKERS = 3  # each holds about 300 MB once it has compiled


class Pool:
    """Worker processes by kind; safe to use from any thread.

    Attributes:
        limits: those of each call; None to read them from the environment at each call.

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
        poll_folder: Callable[[Path], None] = lambda folder: None,
    ) -> Any:
        """Calls a function in the worker of that kind; as `Process.call`.

        Calls to one worker wait for each other. A call that is cancelled while it waits does not
        end the worker.
        """
        while True:
            limits = self.limits or Limits.of(os.environ)
            process = self._process(settings)
            while not process.lock.acquire(timeout=limits.poll):
                poll()
            try:
                process.limits = limits
                if process.alive:  # the call before may have ended it
                    return process.call(
                        function, *arguments, poll=poll, progress=progress, poll_folder=poll_folder
                    )
            finally:
                process.lock.release()
                self._remove_ended()

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
                self._end_idle()
                process = self._processes[settings] = Process(settings)
            return process

    def _end_idle(self) -> None:
        """Ends the worker that was used least recently, where there are many and it waits."""
        idle = [s for s, p in self._processes.items() if not p.lock.locked()]
        if len(self._processes) >= MOST_WORKERS and idle:
            oldest = min(idle, key=lambda s: self._processes[s].used)
            self._processes.pop(oldest).end()

    def _remove_ended(self) -> None:
        with self._lock:
            for settings in [s for s, p in self._processes.items() if not p.alive]:
                del self._processes[settings]


#: The workers of this kernel.
workers = Pool()
