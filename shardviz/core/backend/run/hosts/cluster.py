"""Engines of ipyparallel, which is imported here alone: started, called and ended.

Engines that are started here end with the kernel, however that ends: a small process
watches the kernel, and ends them where the kernel was killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardviz.core.backend.exits import cause, read_log
from shardviz.core.backend.run.folders import (
    make_folder,
    remove_abandoned,
    remove_folder,
)
from shardviz.core.backend.run.worker.settings import Settings
from shardviz.core.errors import TargetError, import_optional
from shardviz.core.format import shown
from shardviz.core.program.failure import ProcessEnd

MOST_ENGINES = 64  # on one machine
START_SECONDS = 120.0
# What gloo says of every group of devices that it connects.
GLOO = re.compile(r"^\[Gloo\] Rank \d+ is connected to .*\n?", re.MULTILINE)
_EXIT_SECONDS = 1.0  # in which a process that was killed is gone
# Few processes, which start sooner; and an engine counts as there at its second
# heartbeat.
_CONTROLLER = (
    "--IPController.use_threads=True",
    "--IPController.broadcast_scheduler_depth=0",
    "--HeartMonitor.period=400",
    "--HeartMonitor.max_heartmonitor_misses=600",
)
_ENGINE = ("--IPEngine.enable_nanny=False", "--IPEngine.max_heartbeat_misses=600")
# Ends the process groups that a file names when the kernel is gone or asks for it.
_GUARD = """
import os, signal, sys, time
kernel, folder = int(sys.argv[1]), sys.argv[2]
asked = []
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
while os.getppid() == kernel and not asked:
    time.sleep(0.1)
pids = os.path.join(folder, "pids")
for pid in open(pids).read().split() if os.path.exists(pids) else ():
    try:
        os.killpg(int(pid), signal.SIGKILL)
    except OSError:
        pass
"""


class EngineLost(TargetError):
    """An engine ended, or does not answer.

    Attributes:
        end: why; the error's words are those of this fact.
    """

    def __init__(self, end: ProcessEnd) -> None:
        super().__init__(end)
        self.end = end


def answer_of(call: Any) -> Any:
    """The answer of a call that is ready.

    Args:
        call: ipyparallel's own `AsyncResult`.

    Raises:
        EngineLost: where the engine ended.
        TargetError: where it cannot make the call, or what the function raised there.
    """
    from ipyparallel import error

    try:
        packed = call.get()
    except error.EngineError:
        raise EngineLost(ProcessEnd("lost")) from None
    except error.RemoteError as remote:
        if remote.ename == "EngineError":  # as the controller says it
            raise EngineLost(ProcessEnd("lost")) from None
        raise TargetError(
            f"An engine refused the call: {remote.ename}: {remote.evalue}. It needs what"
            " is installed here, in the same versions: pip install shardviz."
        ) from None
    return pickle.loads(packed).result()


def stage_of(call: Any) -> str:
    """The stage that the engine of a call is in; `""` for none."""
    data = call.data
    return data.get("stage", "") if isinstance(data, dict) else ""


def publish(stage: str) -> None:
    """Tells the kernel, from an engine, which stage begins."""
    from ipyparallel.datapub import publish_data

    publish_data({"stage": stage})


class Engines:
    """The engines of one ipyparallel cluster, by rank.

    Attributes:
        client: ipyparallel's client.
        cluster: the Cluster that was started here; None for engines of somebody else.
        folder: of a cluster that was started here, its folder; else None.
        ids: ipyparallel's number of each engine, by rank.
        pids: the process ids of engines on this machine, by rank.
    """

    def __init__(
        self,
        client: Any,
        cluster: Any = None,
        folder: Path | None = None,
        guard: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.client: Any = client
        self.cluster: Any = cluster
        self.folder, self._guard = folder, guard
        self.ids: tuple[int, ...] = tuple(sorted(client.ids))
        self.pids: dict[int, int] = {}

    @property
    def own(self) -> bool:
        """Whether they were started here, and end with this kernel."""
        return self.folder is not None

    def call(self, rank: int, request: Any) -> Any:
        """Sends a call to an engine; ipyparallel's `AsyncResult`.

        Args:
            rank: which one.
            request: something to call there, which is sent by the name of its class.
        """
        return self.client[self.ids[rank]].apply_async(request)

    def log_of(self, rank: int) -> str:
        """The file for what an engine of ours prints during a call; `""` for others."""
        return "" if self.folder is None else str(self.folder / f"printed-{rank}")

    def ended(self) -> list[int]:
        """The ranks of engines that have ended, as far as is known."""
        # The controller notices engines of other machines; those of this one are seen
        # at once.
        there = set(self.client.ids)
        ended = []
        for rank, own in enumerate(self.ids):
            if own not in there or self._status(rank) == "ended":
                ended.append(rank)
        return ended

    def stopped(self) -> list[int]:
        """The ranks of engines on this machine that a signal has stopped."""
        return [rank for rank in self.pids if self._status(rank) == "stopped"]

    def _status(self, rank: int) -> str:
        pid = self.pids.get(rank)
        return "" if pid is None else status_of(pid)

    def end_of(self, rank: int) -> ProcessEnd:
        """How an engine ended, and what it printed of the cause."""
        # Nobody but who started a process is told its exit code.
        if self.folder is None:
            return ProcessEnd("lost", after="foreign")
        code = None
        for launcher in self._launchers():
            if launcher.pid == self.pids.get(rank):
                _await_exit(launcher)
                with contextlib.suppress(Exception):  # psutil's own, of any kind
                    code = launcher.process.wait(timeout=0)
        printed = ""
        with contextlib.suppress(OSError), open(self.log_of(rank), "rb") as file:
            printed = cause(GLOO.sub("", read_log(file)))
        return ProcessEnd("exit", exit=code, said=printed, after="own")

    def _launchers(self) -> list[Any]:
        """ipyparallel's launchers of the controller and of each engine."""
        found = [self.cluster.controller]
        for engine_set in (self.cluster.engines or {}).values():
            found += getattr(engine_set, "launchers", {}).values()
        return [one for one in found if getattr(one, "pid", -1) > 0]

    def end(self) -> None:
        """Ends engines that were started here, at once; lets go of others."""
        if self._guard is None or self.client is None:
            return
        end_guard(self._guard)
        for launcher in self._launchers():
            _await_exit(launcher)
        with contextlib.suppress(Exception):  # the controller is gone
            self.client.close(linger=0)
        self.client = None
        assert self.folder is not None  # where there is a guard, there is one
        remove_folder(self.folder)
        remove_abandoned()  # what an engine that compiled has left in shared memory


def end_guard(guard: subprocess.Popen[bytes]) -> None:
    """Has the guard end what it knows of."""
    guard.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        guard.wait(20)


def start(count: int, platform: str) -> Engines:
    """Starts engines on this machine.

    Args:
        count: how many.
        platform: `"cpu"`, or the platform of attached accelerators.

    Raises:
        MissingPackage: where ipyparallel is not installed.
        TargetError: where they do not start.
    """
    ipp = imported()
    remove_abandoned()
    folder = make_folder("hosts", tempfile.gettempdir())
    guard = subprocess.Popen(
        [sys.executable, "-IS", "-c", _GUARD, str(os.getpid()), str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        # Its own profile, so that nothing of the settings of the user counts.
        cluster = ipp.Cluster(
            n=count,
            profile_dir=str(folder),
            cluster_id="shardviz",
            controller_args=list(_CONTROLLER),
            shutdown_atexit=False,
            load_profile=False,
            log_level=50,
            delay=0.0,
            config=_launcher_config(_environment(platform)),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cluster.start_cluster_sync()
            client = cluster.connect_client_sync()
            engines = Engines(client, cluster, folder, guard)
            pids = [str(one.pid) for one in engines._launchers()]
            (folder / "pids").write_text("\n".join(pids))  # what the guard is to end
            client.wait_for_engines(count, timeout=START_SECONDS, interactive=False)
    except BaseException as error:
        end_guard(guard)
        remove_folder(folder)
        if not isinstance(error, Exception):
            raise
        raise TargetError(
            f"ipyparallel could not start {count} engines here: {type(error).__name__}:"
            f" {error}. Start fewer, or free some memory."
        ) from error
    engines.ids = tuple(sorted(client.ids))
    return engines


def taken_over(thing: Any) -> Engines:
    """The engines of an ipyparallel Client or Cluster that a person has.

    Raises:
        MissingPackage: where ipyparallel is not installed.
        TargetError: for anything else.
    """
    ipp = imported()
    client = thing
    if isinstance(thing, ipp.Cluster) and thing.engines:
        client = thing.connect_client_sync()
        client.wait_for_engines(thing.n or 1, timeout=START_SECONDS, interactive=False)
    if not isinstance(client, ipp.Client) or not client.ids:
        raise TargetError(
            "sv.hosts takes how many processes to start here, as in sv.hosts(2,"
            " devices=4), or an ipyparallel Client or Cluster with engines that run; got"
            f" {shown(thing)}."
        )
    return Engines(client)


def imported() -> Any:
    """ipyparallel.

    Raises:
        MissingPackage: where it is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_optional("ipyparallel", "sv.hosts", "shardviz[hosts]")


def _launcher_config(environment: Mapping[str, str]) -> Any:
    from traitlets.config import Config

    own = {"environment": dict(environment), "engine_args": list(_ENGINE)}
    return Config({"LocalEngineLauncher": own, "LocalEngineSetLauncher": own})


def _environment(platform: str) -> dict[str, str]:
    """The variables of engines that differ from the kernel's own."""
    variables: dict[str, str] = {}
    # The same variables as in a worker: what is attached belongs to the kernel.
    if platform == "cpu":
        for name, value in Settings("cpu").environment().items():
            if os.environ.get(name) != value:
                variables[name] = value
    # A checkout that is not installed is found by its engines, too.
    root = str(Path(__file__).parents[5])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        known = os.environ.get("PYTHONPATH", "")
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (root, known)))
    return variables


def _await_exit(launcher: Any) -> None:
    """Waits for a process by the thread with which ipyparallel waits for it.

    Who waits beside that thread takes the exit code from it.
    """
    if (waiting := getattr(launcher, "_wait_thread", None)) is not None:
        waiting.join(_EXIT_SECONDS)


def status_of(pid: int) -> str:
    """`"runs"`, `"stopped"` or `"ended"`: the state of a process of this machine.

    >>> status_of(os.getpid())
    'runs'
    """
    import psutil  # ipyparallel brings it

    try:
        status = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return "ended"
    except psutil.Error:
        return "runs"  # somebody else's
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return "ended"
    return "stopped" if status == psutil.STATUS_STOPPED else "runs"


def at_end(value: Any, end: str) -> None:
    """Has a method called when Python ends."""
    me = weakref.ref(value)

    def call() -> None:
        if (alive := me()) is not None:
            getattr(alive, end)()

    register = getattr(threading, "_register_atexit", atexit.register)
    with contextlib.suppress(RuntimeError):  # too late: the guard ends the engines
        register(call)
