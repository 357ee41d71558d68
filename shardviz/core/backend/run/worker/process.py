"""Worker processes: how they are started, kept for later calls, limited, and how they
ended.

A worker is sent calls over a socket and answers over the same. It ends by itself when
its kernel does, since the socket ends then; it is ended where it exceeds a limit or the
call is cancelled. A child that is forked off the kernel has none of its workers.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from shardviz.core.backend.devices import host_available, host_total
from shardviz.core.backend.exits import (
    WorkerError,
    cause,
    ended_for_memory,
    exit_of,
    read_log,
)
from shardviz.core.backend.run.folders import (
    dump_root,
    make_folder,
    remove_abandoned,
    remove_folder,
)
from shardviz.core.backend.run.worker import child, messages
from shardviz.core.backend.run.worker.settings import Limits, Settings
from shardviz.core.program.failure import WorkerEnd

START, WORK = "worker", "compile"
MOST_WORKERS = 3  # each holds about 300 MB once it has compiled
_POLLS_PER_CHECK = 8  # the memory is checked in every eighth poll
_WAIT = 5.0  # seconds in which the system ends a killed process
_MAIN = """
import gc, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
gc.disable()  # nothing that is imported becomes garbage: a tenth of the time until it is ready
sys.path[:] = {path!r}
import threading
from {module} import left, main
gc.freeze()
gc.enable()
# In a thread of its own: jax writes the lines that led to a program into it, and this
# text, which has no file, is not the user's.
thread = threading.Thread(target=main, args=({socket!r}, {kernel!r}, {folder!r}))
thread.start()
thread.join()
sys.exit(*left)
"""


def _nothing(*_: Any) -> None:
    pass


class Process:
    """One worker process.

    Args:
        settings: what kind of worker it is.

    Attributes:
        limits: those of the next call.
        alive: whether calls can be sent to it.
        lock: held during a call, so that an end ends the call of nobody else.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.limits = settings, Limits()
        self.alive, self.used = True, time.monotonic()
        self.lock = threading.RLock()  # its release says who holds it
        self._maker = os.getpid()
        self._folder: Path | None = None
        self._log: Any = None
        self._system: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    @property
    def pid(self) -> int | None:
        """Its process id; None before it runs."""
        return None if self._system is None else self._system.pid

    @property
    def usable(self) -> bool:
        """Whether it can take a call: nobody ended it, nor removed its folder."""
        if self._system is None or self._folder is None:
            return self.alive
        return self.alive and self._system.poll() is None and self._folder.is_dir()

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        poll: Callable[[], None] = _nothing,
        progress: Callable[[str], None] = _nothing,
        poll_folder: Callable[[Path], None] = _nothing,
    ) -> Any:
        """Calls a function in the worker, with a folder as its last argument.

        Args:
            function: something that the worker can import by name.
            *arguments: plain data.
            poll: called repeatedly; what it raises ends the worker at once.
            progress: called with the name of every stage as it begins.
            poll_folder: called repeatedly with the folder of the call.
        """
        folder = None
        try:
            if self._system is None:
                self._start(poll, progress)
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            answer = self._exchange(
                (function, *arguments, str(folder)),
                self.limits.seconds,
                lambda: (poll_folder(folder), poll()),
                progress,
            )
        except BaseException:
            self.end()
            raise
        finally:
            self.used = time.monotonic()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        return answer.result()

    def end(self) -> None:
        """Ends the worker at once; in a process that did not start it, only forgets it."""
        if os.getpid() != self._maker:
            self.forget()
            return
        if self._system is not None:
            _kill(self._system)
        self._close()
        if self._folder is not None:
            remove_folder(self._folder)

    def forget(self) -> None:
        """Lets go of it in a forked child: closes its pipes, which the parent keeps."""
        self._close()
        if self._system is not None:
            self._system.returncode = 0  # not ours to wait for

    def _close(self) -> None:
        self.alive = False
        for file in (self._log, self._connection):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()

    def _start(self, poll: Callable[[], None], progress: Callable[[str], None]) -> None:
        progress(START)
        remove_abandoned()
        self._folder = make_folder("worker", dump_root())
        # Without a name: nobody who cleans up can remove it.
        self._log = tempfile.TemporaryFile(buffering=0, dir=self._folder)  # noqa: SIM115
        self._connection, theirs = Pipe()
        main = _MAIN.format(
            path=_import_path(),
            module=child.__name__,
            socket=theirs.fileno(),
            kernel=os.getpid(),
            folder=str(self._folder),
        )
        with theirs:
            self._system = subprocess.Popen(
                [sys.executable, "-c", main],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs.fileno(),),
                env=self.settings.environment(),
                # An interrupt is for the kernel alone. Jupyter's kernel waits, when it
                # is to end, for every process of its own group.
                start_new_session=True,
            )
        seconds = self.limits.start_seconds
        self._exchange((child.ready,), seconds, poll, _nothing, START)
        progress(WORK)

    def _exchange(
        self,
        call: tuple[Any, ...],
        seconds: float | None,
        poll: Callable[[], Any],
        progress: Callable[[str], None],
        stage: str = WORK,
    ) -> messages.Answer:
        """Sends a call and waits for its answer, until a limit or until `poll` raises."""
        assert self._connection is not None
        self._log.seek(0)  # the worker writes where we are: the position is shared
        self._log.truncate()
        ended_before = ended_for_memory()
        # In a thread: a worker that hangs reads nothing, and a cancel must work all the
        # same.
        sending = (self._connection, pickle.dumps(call))
        threading.Thread(target=_send, args=sending, daemon=True).start()
        begun, polls = time.monotonic(), 0
        while True:
            try:
                message = None
                if self._connection.poll(self.limits.poll):
                    message = pickle.loads(self._connection.recv_bytes())
            except (OSError, EOFError) as error:  # it ended, or another thread ended it
                raise WorkerError(self._how_it_ended(stage, ended_before)) from error
            if isinstance(message, messages.Answer):
                return message
            if message is not None:
                stage = message.name
                progress(stage)
                continue
            poll()
            polls += 1
            if seconds is not None and time.monotonic() - begun > seconds:
                raise WorkerError(WorkerEnd("too long", stage, seconds=seconds))
            if polls % _POLLS_PER_CHECK == 0:
                self._check_memory(stage)

    def _how_it_ended(self, stage: str, ended_before: int | None) -> WorkerEnd:
        assert self._system is not None
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._system.wait(_WAIT)
        said = cause(read_log(self._log))
        return WorkerEnd("exit", stage, exit_of(code, ended_before), said)

    def _check_memory(self, stage: str) -> None:
        held, limit = memory_of(self.pid) or 0, self.limits.memory
        if limit is not None and held > limit:
            raise WorkerError(WorkerEnd("memory", stage, held=held, limit=limit))
        left, total = host_available(), host_total()
        if left is None or total is None:
            return
        # A worker that holds less than what is left is not the one to blame.
        if left < self.limits.spare * total and held > left:
            raise WorkerError(WorkerEnd("memory", stage, held=held))


def _import_path() -> list[str]:
    """Where the worker finds modules: as here, and beside the notebook last.

    A file there may have the name of a module that this kernel imported before it
    looked there.
    """
    here = os.getcwd()
    path = [p or here for p in sys.path if isinstance(p, str)]
    if str(Path(__file__).parents[5]) == here:  # this package is itself found there
        return path
    return [*(p for p in path if p != here), here]


def _send(connection: Connection, message: bytes) -> None:
    # Where it ended the reader sees that too.
    with contextlib.suppress(OSError, ValueError):
        connection.send_bytes(message)


def _kill(system: subprocess.Popen[bytes]) -> None:
    if system.poll() is None:
        # With what it started, such as an assembler.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(system.pid, signal.SIGKILL)
        system.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            system.wait(_WAIT)


def memory_of(pid: int | None) -> int | None:
    """Bytes of memory that a process uses; None where the system does not say.

    >>> memory_of(None)
    """
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None  # gone, or not Linux


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
        self._ends_at_exit = False
        if hasattr(os, "register_at_fork"):
            me = weakref.ref(self)
            forget = lambda: (pool := me()) and pool._forget()  # noqa: E731
            os.register_at_fork(after_in_child=forget)

    def call(
        self,
        settings: Settings,
        function: Callable[..., Any],
        *arguments: Any,
        poll: Callable[[], None] = _nothing,
        **options: Any,
    ) -> Any:
        """Calls a function in the worker of that kind; as `Process.call`.

        Calls to one worker wait for each other. A call that is cancelled while it waits
        does not end the worker.
        """
        self._end_at_exit()
        while True:
            limits = self.limits or Limits.of(os.environ)
            process = self._process(settings)
            try:
                while not process.lock.acquire(timeout=limits.poll):
                    poll()
                process.limits = limits
                if process.usable:  # the call before may have ended it
                    return process.call(function, *arguments, poll=poll, **options)
                process.end()
            finally:
                # An interrupt may come between any two lines, before it is acquired as
                # well.
                try:  # noqa: SIM105  a context manager would be more such lines
                    process.lock.release()
                except RuntimeError:
                    pass
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
            processes, self._processes = self._processes, {}
        for process in processes.values():
            process.end()

    def _forget(self) -> None:
        # In a forked child the workers are the parent's, whose threads may hold the
        # locks.
        self._lock = threading.Lock()
        processes, self._processes = self._processes, {}
        for process in processes.values():
            process.forget()

    def _end_at_exit(self) -> None:
        # Before Python waits for threads, one of which may wait for a worker that
        # hangs.
        if not self._ends_at_exit:
            self._ends_at_exit = True
            me = weakref.ref(self)
            register = getattr(threading, "_register_atexit", atexit.register)
            # Where it is too late, the worker ends with the kernel.
            with contextlib.suppress(RuntimeError):
                register(lambda: (pool := me()) and pool.end())

    def _process(self, settings: Settings) -> Process:
        with self._lock:
            process = self._processes.get(settings)
            if process is None or not process.alive:
                self._end_idle()
                process = self._processes[settings] = Process(settings)
            return process

    def _end_idle(self) -> None:
        """Where there are many, ends the one that waits and was used least recently."""
        if len(self._processes) < MOST_WORKERS:
            return
        for process in sorted(self._processes.values(), key=lambda p: p.used):
            if process.lock.acquire(blocking=False):
                try:
                    del self._processes[process.settings]
                    process.end()
                finally:
                    process.lock.release()
                return

    def _remove_ended(self) -> None:
        with self._lock:
            for process in list(self._processes.values()):
                if not process.alive:
                    del self._processes[process.settings]


#: The workers of this kernel.
workers = Pool()
