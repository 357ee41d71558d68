"""Worker processes: how they are started, kept for later calls, limited, and how they ended.

A worker is sent calls over one pipe and answers over another. It ends by itself when its kernel
does, since the pipe from the kernel ends then; it is ended where it exceeds a limit or the call is
cancelled. A child that is forked off the kernel has none of its workers.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from shardviz.core.backend.devices import host_available, host_total
from shardviz.core.backend.failures import (
    WorkerError,
    ended_for_memory,
    exit_error,
    memory_error,
    read_log,
    timeout_error,
)
from shardviz.core.backend.folders import dump_root, make_folder, remove_abandoned, remove_folder
from shardviz.core.backend.partitioner import xla_flags
from shardviz.core.backend.worker import child, messages
from shardviz.core.errors import TargetError
from shardviz.core.format import shown

# Of the user's settings of jax a worker has only those that change what XLA makes of a program.
# The kernel lowers it, with all of them. Some (a number of devices, a guard, what forbids jax to
# compile) would keep the worker from its work.
_KEPT = frozenset(
    {
        "JAX_DEFAULT_MATMUL_PRECISION",
        "JAX_DEFAULT_PRNG_IMPL",
        "JAX_DISABLE_MOST_OPTIMIZATIONS",
        "JAX_ENABLE_REMAT_OPT_PASS",
        "JAX_ENABLE_X64",
        "JAX_EXEC_TIME_OPTIMIZATION_EFFORT",
        "JAX_MEMORY_FITTING_EFFORT",
        "JAX_MEMORY_FITTING_LEVEL",
        "JAX_OPTIMIZATION_LEVEL",
        "JAX_THREEFRY_PARTITIONABLE",
        "JAX_USE_SHARDY_PARTITIONER",
    }
)
# A worker dumps to folders of its own.
_NOT_PASSED = ("--xla_force_host_platform_device_count=", "--xla_dump_")
# Every worker sees CPU devices alone: what is attached belongs to the kernel. What comes out of
# jax's cache on disk was not partitioned, so there would be nothing to read.
_COMMON = {
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",  # only a cloud machine has the metadata server
    "TPU_LOG_DIR": "disabled",
    "TPU_STDERR_LOG_LEVEL": "2",
    "TPU_MIN_LOG_LEVEL": "2",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_GPU = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
_COUNTS = (64, 512)  # so many devices take 10 MB and 240 MB


@dataclass(frozen=True)
class Settings:
    """The kind of a worker: one process does all compiles of a kind.

    Attributes:
        kind: `"cpu"`, `"tpu"` or `"gpu"`.
        devices: how many CPU devices it simulates.

    >>> Settings("cpu", 8).name, Settings("tpu").name
    ('cpu:8', 'tpu')
    """

    kind: str
    devices: int = 1

    @classmethod
    def of(cls, platform: str, needed: int, most: int) -> Settings:
        """The worker for so many devices of a platform.

        Workers have one of a few numbers of CPU devices, so that another mesh finds one running.

        Args:
            platform: `"cpu"`, `"tpu"` or `"gpu"`.
            needed: how many devices the program is for.
            most: how many CPU devices one process simulates.

        >>> [Settings.of("cpu", needed, 1024).devices for needed in (2, 65, 513)]
        [64, 512, 1024]
        """
        if platform != "cpu":
            return cls(platform)
        return cls(platform, next(n for n in (*_COUNTS, max(most, needed)) if needed <= n))

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.kind}:{self.devices}" if self.kind == "cpu" else self.kind

    def environment(self, own: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of the worker.

        Args:
            own: the environment of this process; the real one where not given.

        >>> Settings("cpu", 8).environment({"XLA_FLAGS": "--xla_a=1", "JAX_DISABLE_JIT": "1"})[
        ...     "XLA_FLAGS"
        ... ]
        '--xla_a=1 --xla_force_host_platform_device_count=8'
        """
        own = os.environ if own is None else own
        kept = {n: v for n, v in own.items() if not n.startswith("JAX_") or n in _KEPT}
        flags = [_quoted(f) for f in xla_flags(own) if not f.startswith(_NOT_PASSED)]
        flags.append(f"--xla_force_host_platform_device_count={self.devices}")
        extra = {"tpu": _TPU, "gpu": _GPU}.get(self.kind, {})
        return {**kept, **_COMMON, **extra, "XLA_FLAGS": " ".join(flags)}


def _quoted(flag: str) -> str:
    """A flag as XLA reads it: a value with spaces stands in quotes.

    >>> _quoted("--xla_a=1"), _quoted("--xla_b=c d")
    ('--xla_a=1', "--xla_b='c d'")
    """
    name, _, value = flag.partition("=")
    return f"{name}='{value}'" if re.search(r"\s", value) else flag


@dataclass(frozen=True)
class Limits:
    """The limits at which a compile or run in a worker is ended.

    Attributes:
        seconds: how long one may take; None for no limit.
        start_seconds: how long a worker may take to start.
        memory: bytes of memory that a worker may use; None for what the machine has.
        spare: the part of the machine's memory that is kept free: where less is left, the worker
            is ended.
        poll: seconds between two polls.

    >>> Limits(memory=1 << 30).seconds
    3600.0
    """

    seconds: float | None = 3600.0
    start_seconds: float = 120.0
    memory: int | None = None
    spare: float = 0.02
    poll: float = field(default=0.02, repr=False)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Limits:
        """The limits that the user set: `SHARDVIZ_WORKER_SECONDS`, `SHARDVIZ_WORKER_GIB`.

        Raises:
            TargetError: for what is no positive number.

        >>> Limits.of({"SHARDVIZ_WORKER_GIB": "1.5"}).memory
        1610612736
        """
        seconds = _number(environment, "SHARDVIZ_WORKER_SECONDS")
        memory = _number(environment, "SHARDVIZ_WORKER_GIB")
        return cls(
            cls.seconds if seconds is None else seconds,
            memory=None if memory is None else int(memory * (1 << 30)),
        )


def _number(environment: Mapping[str, str], name: str) -> float | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or float(text) <= 0:
        raise TargetError(f"{name} is a number above 0, such as 60; got {shown(text)}.")
    return float(text)


START, WORK = "worker", "compile"
_POLLS_PER_CHECK = 8  # the memory is checked in every eighth poll
_WAIT = 5.0  # seconds in which the system ends a killed process
# What libraries print while they are imported goes to the log, not into the pipe.
_MAIN = """
import gc, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
gc.disable()  # nothing that is imported becomes garbage: a tenth of the time until it is ready
pipes = os.dup(0), os.dup(1)
os.dup2(2, 1)
sys.path[:] = {path!r}
import threading
from {module} import left, main
gc.freeze()
gc.enable()
# In a thread of its own: jax writes the lines that led to a program into it, and this text, which
# has no file, is not the user's.
thread = threading.Thread(target=main, args=(*pipes, {kernel!r}, {folder!r}))
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
        self._received: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    @property
    def pid(self) -> int | None:
        """Its process id; None before it runs."""
        return None if self._system is None else self._system.pid

    @property
    def usable(self) -> bool:
        """Whether it can take a call: it was not ended, nor its folder removed, by anybody."""
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
        """Lets go of it in a forked child: closes its pipes here, which the parent keeps open."""
        self.alive = False
        self._close()
        if self._system is not None:
            self._system.returncode = 0  # not ours to wait for

    def _close(self) -> None:
        system = self._system
        for file in (self._log, *((system.stdin, system.stdout) if system else ())):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()

    def _start(self, poll: Callable[[], None], progress: Callable[[str], None]) -> None:
        progress(START)
        self.stage = START
        remove_abandoned()
        self._folder = self._in_folder(lambda root: make_folder("worker", root), dump_root())
        # Without a name: nobody who cleans up can remove it.
        self._log = self._in_folder(_open_log)
        self._system = subprocess.Popen(
            [sys.executable, "-c", self._main()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            env=self.settings.environment(),
            # An interrupt is for the kernel alone. Jupyter's kernel waits, when it is to end, for
            # every process of its own group.
            start_new_session=True,
        )
        receive = threading.Thread(
            target=_receive, args=(self._system.stdout, self._received), daemon=True
        )
        receive.start()
        self._exchange(
            messages.Call(child.ready, messages.packed(())), self.limits.start_seconds, poll
        )
        self.stage = WORK
        progress(WORK)

    def _main(self) -> str:
        return _MAIN.format(
            path=_import_path(),
            module=child.__name__,
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
        """Sends a call and waits for its answer; raises where a limit is reached or `poll` does."""
        assert self._system is not None
        self.stage = self.stage or WORK
        self._log.seek(0)  # the worker writes where we are: the position is shared
        self._log.truncate()
        # In a thread: a worker that hangs reads nothing, and a cancel must work all the same.
        sending = (self._system.stdin, pickle.dumps(call))
        threading.Thread(target=_send, args=sending, daemon=True).start()
        begun, polls = time.monotonic(), 0
        _continue(self.pid)
        while True:
            try:
                received = self._received.get(timeout=self.limits.poll)
            except queue.Empty:
                poll()
                polls += 1
                if seconds is not None and time.monotonic() - begun > seconds:
                    raise timeout_error(seconds, self.stage) from None
                if polls % _POLLS_PER_CHECK == 0:
                    _continue(self.pid)
                    self._check_memory()
                continue
            if received is None:
                raise self._ended()
            found = pickle.loads(received)
            if isinstance(found, messages.Answer):
                return found
            self.stage = found.name
            progress(self.stage)

    def _ended(self) -> WorkerError:
        """The error for a worker that closed its pipe."""
        assert self._system is not None
        try:
            code = self._system.wait(_WAIT)
        except subprocess.TimeoutExpired:
            code = None
        return exit_error(code, self.stage, read_log(self._log), self._ended_for_memory)

    def _check_memory(self) -> None:
        held = memory_of(self.pid)
        if held is None:
            return
        limit, left, total = self.limits.memory, host_available(), host_total()
        if limit is not None and held > limit:
            raise memory_error(held, limit, self.stage)
        if left is not None and total and left < self.limits.spare * total and held > left:
            raise memory_error(held, None, self.stage)


def _continue(pid: int | None) -> None:
    """Lets a process go on that somebody has stopped; it makes no difference to one that runs."""
    go_on = getattr(signal, "SIGCONT", None)
    if pid is not None and go_on is not None:
        with contextlib.suppress(OSError):  # it ended
            os.kill(pid, go_on)


def _open_log(folder: str) -> Any:
    return tempfile.TemporaryFile(buffering=0, dir=folder)


def _import_path() -> list[str]:
    """Where the worker finds modules: as here, and beside the notebook last.

    A file there may have the name of a module that this kernel imported before it looked there.
    """
    here = os.getcwd()
    path = [p or here for p in sys.path if isinstance(p, str)]
    if str(Path(__file__).parents[4]) == here:  # this package is itself found there
        return path
    return [*(p for p in path if p != here), here]


def _send(pipe: BinaryIO, message: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # it ended: the other pipe says so
        messages.write(pipe, message)


def _receive(pipe: BinaryIO, received: queue.SimpleQueue[bytes | None]) -> None:
    """Hands on what a worker sends, and None where its pipe ends."""
    message = b""
    while message is not None:
        try:
            message = messages.read(pipe)
        except (OSError, ValueError):  # closed here
            message = None
        received.put(message)


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
            os.register_at_fork(after_in_child=lambda: (pool := me()) and pool._forget())

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
        self._end_at_exit()
        while True:
            limits = self.limits or Limits.of(os.environ)
            process = self._process(settings)
            try:
                while not process.lock.acquire(timeout=limits.poll):
                    poll()
                process.limits = limits
                if process.usable:  # the call before, or somebody else, may have ended it
                    return process.call(
                        function, *arguments, poll=poll, progress=progress, poll_folder=poll_folder
                    )
                process.end()
            finally:
                # An interrupt may come between any two lines, before it is acquired as well.
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
        """In a forked child: the workers are the parent's, whose threads may hold the locks."""
        self._lock = threading.Lock()
        processes, self._processes = self._processes, {}
        for process in processes.values():
            process.forget()

    def _end_at_exit(self) -> None:
        # Before Python waits for threads, one of which may wait for a worker that hangs.
        if not self._ends_at_exit:
            self._ends_at_exit = True
            me = weakref.ref(self)
            register = getattr(threading, "_register_atexit", atexit.register)
            with contextlib.suppress(RuntimeError):  # too late: the worker ends with the kernel
                register(lambda: (pool := me()) and pool.end())

    def _process(self, settings: Settings) -> Process:
        with self._lock:
            process = self._processes.get(settings)
            if process is None or not process.alive:
                self._end_idle()
                process = self._processes[settings] = Process(settings)
            return process

    def _end_idle(self) -> None:
        """Ends the worker that was used least recently, where there are many and it waits."""
        if len(self._processes) < MOST_WORKERS:
            return
        for settings, process in sorted(self._processes.items(), key=lambda item: item[1].used):
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
