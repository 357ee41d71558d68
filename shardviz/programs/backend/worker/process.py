"""Starts worker processes, reuses them for later calls, and ends them.

Calls and answers are sent over a socket. A worker ends when its kernel ends, and is
killed if it exceeds a limit or its call is cancelled. A forked child of the kernel has
no workers.
"""

from __future__ import annotations

import atexit
import contextlib
import os
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

from shardviz.programs.backend.worker import answering, kernel_watch, messages
from shardviz.programs.backend.worker.exits import WorkerError, cause, read_log
from shardviz.programs.backend.worker.folders import (
    dump_root,
    make_folder,
    remove_abandoned,
    remove_folder,
)
from shardviz.programs.backend.worker.settings import Limits, Settings
from shardviz.programs.failure import Exited, TookTooLong, TookTooMuchMemory

START = "worker"
# Seconds to wait for a killed process to end.
_WAIT = 5.0
_MAIN = (
    "import sys; sys.path[:] = {path!r}; from {watch} import end_with;"
    " end_with({kernel}); from {module} import main; main({socket})"
)


def _nothing(*_: object) -> None:
    pass


class Process:
    """A worker process.

    Args:
        settings: the kind of worker to start.

    Attributes:
        alive: True if the worker accepts calls.
        lock: held during a call, so that `end` cannot end another caller's call.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.alive = True
        self.lock = threading.Lock()
        self._maker = os.getpid()
        self._log: Any = None
        self._system: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._folder: Path | None = None
        # Held while the process starts or ends.
        self._starting = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The worker's process id; None before it starts."""
        return None if self._system is None else self._system.pid

    @property
    def usable(self) -> bool:
        """True if the worker can take a call. An idle worker may have been killed."""
        return self.alive and (self._system is None or self._system.poll() is None)

    def call(
        self,
        function: Callable[..., Any],
        *arguments: object,
        limits: Limits,
        poll: Callable[[], None] = _nothing,
        progress: Callable[[str], None] = _nothing,
        poll_folder: Callable[[Path], None] = _nothing,
    ) -> Any:
        """Calls a function in the worker, with a temporary folder as last argument.

        Args:
            function: a function that the worker can import by name.
            *arguments: plain data.
            limits: limits of this call.
            poll: called repeatedly; if it raises, the worker is ended immediately.
            progress: called with the name of each stage when it begins.
            poll_folder: called repeatedly with the call's folder.
        """
        try:
            if self._system is None:
                progress(START)
                self._start()
            self._remove_folder()  # the last call's removal may have been interrupted
            folder = self._folder = make_folder("call", dump_root())

            def poll_all() -> None:
                poll_folder(folder)
                poll()

            call = (function, *arguments, str(folder))
            answer = self._exchange(call, limits, poll_all, progress)
        except BaseException:
            # End the worker after an interrupt, too: the result is no longer needed.
            self.end()
            raise
        finally:
            self._remove_folder()
        return answer.result()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            remove_folder(self._folder)
            self._folder = None

    def end(self) -> None:
        """Kills the worker. In a process that did not start it, only calls `forget`."""
        self.alive = False
        if os.getpid() == self._maker:
            with self._starting:
                if self._system is not None:
                    _kill(self._system)
        self.forget()

    def forget(self) -> None:
        """Closes the connection. In a forked child, the parent's end stays open."""
        self.alive = False
        for file in (self._log, self._connection):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
        if self._system is not None and os.getpid() != self._maker:
            self._system.returncode = 0  # this process cannot wait for it

    def _start(self) -> None:
        remove_abandoned()
        self._log = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._connection, worker_end = Pipe()
        socket = worker_end.fileno()
        main = _MAIN.format(
            path=_import_path(),
            watch=kernel_watch.__name__,
            kernel=os.getpid(),
            module=answering.__name__,
            socket=socket,
        )
        environment = self.settings.environment()
        errors: list[Exception] = []

        def start() -> None:
            with worker_end, self._starting:
                if not self.alive:
                    return
                try:
                    self._system = subprocess.Popen(
                        [sys.executable, "-c", main],
                        stdin=subprocess.DEVNULL,
                        stdout=self._log,
                        stderr=self._log,
                        pass_fds=(socket,),
                        env=environment,
                        # numpy cannot be imported if the current folder was removed.
                        cwd=_working_folder() or tempfile.gettempdir(),
                        # Keyboard interrupts should reach the kernel only. Also, a
                        # Jupyter kernel waits for its process group before it ends.
                        start_new_session=True,
                    )
                except Exception as error:  # noqa: BLE001  raised below
                    errors.append(error)
                else:
                    if not self.alive:  # `end` may have been interrupted while waiting
                        _kill(self._system)

        # Started in a thread, because interrupts are raised in the main thread. One
        # raised inside Popen would lose the new process.
        starter = threading.Thread(target=start, name="shardviz-start", daemon=True)
        starter.start()
        starter.join()
        if errors:
            raise errors[0]

    def _exchange(
        self,
        call: tuple[object, ...],
        limits: Limits,
        poll: Callable[[], None],
        progress: Callable[[str], None],
    ) -> messages.Answer:
        """Sends a call and waits for its answer, a limit, or an error from `poll`."""
        connection = self._connection
        assert connection is not None
        self._log.seek(0)  # the worker shares this file position
        self._log.truncate()
        # Sent in a thread, because a hanging worker reads nothing, and a cancellation
        # must still work.
        threading.Thread(target=_send, args=(connection, call), daemon=True).start()
        begun, stage = time.monotonic(), START
        while True:
            try:
                message = connection.recv() if connection.poll(limits.poll) else None
            except (OSError, EOFError) as error:  # the worker exited or was killed
                raise WorkerError(self._how_it_ended(stage)) from error
            if isinstance(message, messages.Answer):
                return message
            if message is not None:
                stage = message.name
                progress(stage)
                continue
            poll()
            if time.monotonic() - begun > limits.seconds:
                end = TookTooLong(stage=stage, seconds=limits.seconds)
                raise WorkerError(end)
            used = memory_of(self.pid) or 0
            if limits.memory is not None and used > limits.memory:
                raise WorkerError(
                    TookTooMuchMemory(stage=stage, used=used, limit=limits.memory)
                )

    def _how_it_ended(self, stage: str) -> Exited:
        assert self._system is not None
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._system.wait(_WAIT)
        return Exited(stage=stage, code=code, printed=cause(read_log(self._log)))


def _import_path() -> list[str]:
    """Returns the worker's import path: this kernel's path, then the notebook's folder.

    The folder comes last, because a file in it may have the name of a module that this
    kernel imported from elsewhere.
    """
    folder = _working_folder()
    if folder is None:
        return [p for p in sys.path if isinstance(p, str) and p]
    path = [p or folder for p in sys.path if isinstance(p, str)]
    if str(Path(__file__).parents[4]) == folder:  # this package is imported from there
        return path
    return [*(p for p in path if p != folder), folder]


def _working_folder() -> str | None:
    """Returns the current folder of this kernel; None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _send(connection: Connection, call: tuple[object, ...]) -> None:
    # If the worker has ended, the thread that waits for its answer notices.
    with contextlib.suppress(OSError, ValueError):
        connection.send(call)


def _kill(system: subprocess.Popen[bytes]) -> None:
    if system.poll() is None:
        # Kill the whole process group, which includes children such as an assembler.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(system.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            system.wait(_WAIT)


def memory_of(pid: int | None) -> int | None:
    """Returns the bytes of memory that a process uses; None if unknown.

    >>> memory_of(None)
    """
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None  # the process is gone, or the system isn't Linux


class Pool:
    """Worker processes by kind; safe to use from any thread.

    Attributes:
        limits: limits of each call; None to read them from the environment each time.

    >>> Pool().pids
    ()
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits
        self._maker = os.getpid()
        self._processes: dict[Settings, Process] = {}
        self._lock = threading.Lock()
        self._ends_at_exit = False
        me = weakref.ref(self)
        forget = lambda: (pool := me()) and pool._forget()  # noqa: E731
        os.register_at_fork(after_in_child=forget)

    def call(
        self,
        settings: Settings,
        function: Callable[..., Any],
        *arguments: object,
        poll: Callable[[], None] = _nothing,
        **options: Any,
    ) -> Any:
        """Calls a function in the worker of the given kind; see `Process.call`.

        Calls to the same worker wait for each other. Cancelling a waiting call doesn't
        end the worker.
        """
        self._end_at_exit()
        limits = self.limits or Limits.of(os.environ)
        while True:
            process = self._process(settings)
            while not process.lock.acquire(timeout=limits.poll):
                poll()
            try:
                if process.usable:  # the previous call may have ended it
                    return process.call(
                        function, *arguments, limits=limits, poll=poll, **options
                    )
                process.end()
            finally:
                process.lock.release()

    def start(self, settings: Settings, prepare: Callable[[str], None]) -> None:
        """Starts a worker in the background, unless there was one. Returns immediately.

        Args:
            settings: the kind of worker.
            prepare: the worker's first call. If it fails, the next call starts a new
                worker, and raises if that fails too.
        """
        # A forked child, such as one that loads data, starts a worker only for a call.
        if os.getpid() != self._maker or settings in self._processes:
            return
        self._end_at_exit()
        process = self._process(settings)

        def call() -> None:
            with process.lock, contextlib.suppress(Exception):
                if process.pid is None:  # else another thread's call was first
                    limits = self.limits or Limits.of(os.environ)
                    process.call(prepare, limits=limits)

        threading.Thread(target=call, name="shardviz-early", daemon=True).start()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the running workers."""
        with self._lock:
            pids = [p.pid for p in self._processes.values() if p.alive]
        return tuple(pid for pid in pids if pid is not None)

    def end(self) -> None:
        """Ends all workers. The next call starts a new one."""
        with self._lock:
            processes, self._processes = self._processes, {}
        for process in processes.values():
            process.end()

    def _forget(self) -> None:
        # In a forked child, the workers belong to the parent, and the parent's threads
        # may hold the locks.
        self._lock = threading.Lock()
        processes, self._processes = self._processes, {}
        for process in processes.values():
            process.forget()

    def _end_at_exit(self) -> None:
        # Registered with `threading`, because its callbacks run before Python waits for
        # threads. A thread may be waiting for a worker that hangs.
        if not self._ends_at_exit:
            self._ends_at_exit = True
            me = weakref.ref(self)
            register = getattr(threading, "_register_atexit", atexit.register)
            # If Python is already exiting, the worker ends together with the kernel.
            with contextlib.suppress(RuntimeError):
                register(lambda: (pool := me()) and pool.end())

    def _process(self, settings: Settings) -> Process:
        with self._lock:
            process = self._processes.get(settings)
            if process is None or not process.alive:
                process = self._processes[settings] = Process(settings)
            return process


#: The workers of this kernel.
workers = Pool()
