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
from shardviz.core.errors import TargetError
from shardviz.core.program.failure import WorkerEnd

START, WORK = "worker", "compile"
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


class Process:
    """One worker process.

    Args:
        settings: what kind of worker it is.

    Attributes:
        limits: those of the next call.
        stage: the stage it is in; `""` while it waits for a call.
        alive: whether calls can be sent to it.
        lock: held during a call, so that an end ends the call of nobody else.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.limits = settings, Limits()
        self.stage, self.alive = "", True
        self.lock = threading.RLock()  # its release says who holds it
        self.used = time.monotonic()
        self._ended_for_memory = ended_for_memory()
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
        """Whether it can take a call: it was not ended, nor its folder removed, by
        anybody.
        """
        if self._system is None or self._folder is None:
            return self.alive
        return self.alive and self._system.poll() is None and self._folder.is_dir()

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
            TargetError: where the files of the worker cannot be written.
            ProgramError: where an argument is no plain data.
            Exception: what the function raises, or `poll`.
        """
        packed = messages.packed(arguments)  # before anything starts: it may be refused
        folder = None
        self._ended_for_memory = ended_for_memory()
        try:
            if self._system is None:
                self._start(poll, progress)
            folder = Path(self._in_folder(lambda root: tempfile.mkdtemp(dir=root)))
            answer = self._exchange(
                messages.Call(function, packed, str(folder)),
                self.limits.seconds,
                lambda: (poll_folder(folder), poll()),
                progress,
            )
        except BaseException:
            self.end()
            raise
        finally:
            self.stage, self.used = "", time.monotonic()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        return answer.result()

    def end(self) -> None:
        """Ends the worker at once; in a process that did not start it, only forgets it."""
        self.alive = False
        if os.getpid() != self._maker:
            self.forget()
            return
        if self._system is not None:
            _kill(self._system)
        self._close()
        if self._folder is not None:
            remove_folder(self._folder)

    def forget(self) -> None:
        """Lets go of it in a forked child: closes its pipes here, which the parent
        keeps open.
        """
        self.alive = False
        self._close()
        if self._system is not None:
            self._system.returncode = 0  # not ours to wait for

    def _close(self) -> None:
        for file in (self._log, self._connection):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()

    def _start(self, poll: Callable[[], None], progress: Callable[[str], None]) -> None:
        progress(START)
        self.stage = START
        remove_abandoned()
        self._folder = self._in_folder(
            lambda root: make_folder("worker", root), dump_root()
        )
        # Without a name: nobody who cleans up can remove it.
        self._log = self._in_folder(_open_log)
        self._connection, theirs = Pipe()
        with theirs:
            self._system = subprocess.Popen(
                [sys.executable, "-c", self._main(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs.fileno(),),
                env=self.settings.environment(),
                # An interrupt is for the kernel alone. Jupyter's kernel waits, when it
                # is to end, for every process of its own group.
                start_new_session=True,
            )
        self._exchange(
            messages.Call(child.ready, messages.packed(())),
            self.limits.start_seconds,
            poll,
        )
        self.stage = WORK
        progress(WORK)

    def _main(self, socket: int) -> str:
        return _MAIN.format(
            path=_import_path(),
            module=child.__name__,
            socket=socket,
            kernel=os.getpid(),
            folder=str(self._folder),
        )

    def _in_folder(self, make: Callable[[str], Any], root: str = "") -> Any:
        root = root or str(self._folder)
        try:
            return make(root)
        except OSError as error:
            raise TargetError(
                f"The worker process needs a folder for its files, and {root} takes none:"
                f" {error.strerror}. Free some space there, or set TMPDIR to another folder."
            ) from error

    def _exchange(
        self,
        call: messages.Call,
        seconds: float | None,
        poll: Callable[[], Any],
        progress: Callable[[str], None] = lambda stage: None,
    ) -> messages.Answer:
        """Sends a call and waits for its answer; raises where a limit is reached or
        `poll` does.
        """
        assert self._connection is not None
        self.stage = self.stage or WORK
        self._log.seek(0)  # the worker writes where we are: the position is shared
        self._log.truncate()
        # In a thread: a worker that hangs reads nothing, and a cancel must work all the
        # same.
        sending = (self._connection, pickle.dumps(call))
        threading.Thread(target=_send, args=sending, daemon=True).start()
        begun, polls = time.monotonic(), 0
        while True:
            message = self._receive()
            if message is None:
                poll()
                polls += 1
                if seconds is not None and time.monotonic() - begun > seconds:
                    raise WorkerError(
                        WorkerEnd("too long", self.stage, seconds=seconds)
                    )
                if polls % _POLLS_PER_CHECK == 0:
                    self._check_memory()
                continue
            received = pickle.loads(message)
            if isinstance(received, messages.Answer):
                return received
            self.stage = received.name
            progress(self.stage)

    def _receive(self) -> bytes | None:
        """What the worker sends within the time of one poll; None for nothing."""
        assert self._connection is not None
        try:
            if not self._connection.poll(self.limits.poll):
                return None
            return self._connection.recv_bytes()
        except (OSError, EOFError) as error:  # it ended, or was ended by another thread
            raise self._ended() from error

    def _ended(self) -> WorkerError:
        """The error for a worker that closed its socket."""
        assert self._system is not None
        try:
            code = self._system.wait(_WAIT)
        except subprocess.TimeoutExpired:
            code = None
        exit = exit_of(code, self._ended_for_memory)
        said = cause(read_log(self._log))
        return WorkerError(WorkerEnd("exit", self.stage, exit, said))

    def _check_memory(self) -> None:
        held = memory_of(self.pid)
        if held is None:
            return
        limit, left, total = self.limits.memory, host_available(), host_total()
        if limit is not None and held > limit:
            raise WorkerError(WorkerEnd("memory", self.stage, held=held, limit=limit))
        if (
            left is not None
            and total
            and left < self.limits.spare * total
            and held > left
        ):
            raise WorkerError(WorkerEnd("memory", self.stage, held=held))


def _open_log(folder: str) -> Any:
    return tempfile.TemporaryFile(buffering=0, dir=folder)


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
    with contextlib.suppress(
        OSError, ValueError
    ):  # it ended, which the reader sees too
        connection.send_bytes(message)


def _kill(system: subprocess.Popen[bytes]) -> None:
    if system.poll() is None:
        if hasattr(os, "killpg"):  # with what it started, such as an assembler
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
        self._ends_at_exit = False
        if hasattr(os, "register_at_fork"):
            me = weakref.ref(self)
            os.register_at_fork(
                after_in_child=lambda: (pool := me()) and pool._forget()
            )

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
                if (
                    process.usable
                ):  # the call before, or somebody else, may have ended it
                    return process.call(
                        function,
                        *arguments,
                        poll=poll,
                        progress=progress,
                        poll_folder=poll_folder,
                    )
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
            processes = list(self._processes.values())
            self._processes.clear()
        for process in processes:
            process.end()

    def _forget(self) -> None:
        """In a forked child: the workers are the parent's, whose threads may hold the
        locks.
        """
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
            with contextlib.suppress(
                RuntimeError
            ):  # too late: the worker ends with the kernel
                register(lambda: (pool := me()) and pool.end())

    def _process(self, settings: Settings) -> Process:
        with self._lock:
            process = self._processes.get(settings)
            if process is None or not process.alive:
                self._end_idle()
                process = self._processes[settings] = Process(settings)
            return process

    def _end_idle(self) -> None:
        """Ends the worker that was used least recently, where there are many and it
        waits.
        """
        if len(self._processes) < MOST_WORKERS:
            return
        for settings, process in sorted(
            self._processes.items(), key=lambda item: item[1].used
        ):
            if process.lock.acquire(blocking=False):
                try:
                    del self._processes[settings]
                    process.end()
                finally:
                    process.lock.release()
                return

    def _remove_ended(self) -> None:
        with self._lock:
            for settings in [s for s, p in self._processes.items() if not p.alive]:
                del self._processes[settings]


#: The workers of this kernel.
workers = Pool()
