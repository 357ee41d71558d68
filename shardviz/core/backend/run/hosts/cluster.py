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
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardviz.core.backend.exits import cause, ended_for_memory, exit_of, read_log
from shardviz.core.backend.run.folders import make_folder, remove_abandoned
from shardviz.core.backend.run.worker.settings import Settings
from shardviz.core.errors import MissingPackage, TargetError
from shardviz.core.format import shown
from shardviz.core.program.failure import Exit

MOST_ENGINES = 64  # on one machine
START_SECONDS = 120.0
# What gloo says of every group of devices that it connects.
GLOO = re.compile(r"^\[Gloo\] Rank \d+ is connected to .*\n?", re.MULTILINE)
_BEAT_SECONDS = 1.0
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
import os, shutil, signal, sys, time
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
shutil.rmtree(folder, ignore_errors=True)
"""


class EngineLost(TargetError):
    """An engine ended, or does not answer.

    Attributes:
        stage: the stage it was in; `""` where that is not known.
        lacks_memory: whether the system ended it as memory ran out.

    >>> EngineLost("Process 1 ended.", "run").stage
    'run'
    """

    def __init__(self, message: str, stage: str = "") -> None:
        super().__init__(message)
        self.stage, self.lacks_memory = stage, False


@dataclass(frozen=True, eq=False)
class Pending:
    """A call that an engine has not answered yet.

    Attributes:
        future: ipyparallel's own `AsyncResult`.
    """

    future: Any

    @property
    def ready(self) -> bool:
        """Whether there is an answer, or there will be none."""
        return self.future.ready()

    def published(self, name: str, default: Any) -> Any:
        """What the engine published last under a name: `stage` or `beat`."""
        data = self.future.data
        return data.get(name, default) if isinstance(data, dict) else default

    def result(self) -> Any:
        """The answer.

        Raises:
            EngineLost: where the engine ended.
            TargetError: where it cannot make the call.
            Exception: what the function raised there.
        """
        from ipyparallel import error

        try:
            packed = self.future.get()
        except error.EngineError as lost:
            raise EngineLost(str(lost)) from None
        except error.RemoteError as remote:
            if remote.ename in ("ModuleNotFoundError", "ImportError"):
                raise TargetError(
                    "An engine has not all of what shardviz needs:"
                    f" {remote.evalue}. Install there what is installed here (pip"
                    " install shardviz), and start the engines again."
                ) from None
            raise TargetError(
                f"An engine refused the call: {remote.ename}: {remote.evalue}"
            ) from None
        return pickle.loads(packed).result()


def wait_for_any(pending: Mapping[int, Pending], seconds: float) -> None:
    """Waits until one of some calls is answered, and no longer than that."""
    futures = [one.future for one in pending.values()]
    wait(futures, timeout=seconds, return_when=FIRST_COMPLETED)


def publish(stage: str) -> None:
    """Tells the kernel, from an engine, which stage begins."""
    from ipyparallel.datapub import publish_data

    publish_data({"stage": stage})


@contextlib.contextmanager
def beating() -> Iterator[None]:
    """Has an engine tell the kernel every second that it lives, while it works.

    A process that was stopped, or whose machine is gone, is known by its silence.
    """
    from ipyparallel.datapub import publish_data

    done = threading.Event()

    def beat() -> None:
        number = 0
        while not done.wait(_BEAT_SECONDS):
            number += 1
            publish_data({"beat": number})

    thread = threading.Thread(target=beat, name="beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


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
        self._ended_for_memory = ended_for_memory()

    @property
    def own(self) -> bool:
        """Whether they were started here, and end with this kernel."""
        return self.folder is not None

    @property
    def title(self) -> str:
        """Where they are: `local`, or the id of the cluster."""
        if self.own:
            return "local"
        cluster = getattr(self.client, "cluster", None)
        return str(getattr(cluster, "cluster_id", "") or "ipyparallel")

    def call(self, rank: int, request: Any) -> Pending:
        """Sends a call to an engine.

        Args:
            rank: which one.
            request: something to call there, which is sent by the name of its class.
        """
        self._ended_for_memory = ended_for_memory()
        return Pending(self.client[self.ids[rank]].apply_async(request))

    def log_of(self, rank: int) -> str:
        """The file for what an engine prints during a call; `""` where it is not here."""
        return "" if self.folder is None else str(self.folder / f"printed-{rank}")

    def ended(self) -> list[int]:
        """The ranks of engines that have ended, as far as is known."""
        there = set(self.client.ids)
        ended = []
        for rank, own in enumerate(self.ids):
            pid = self.pids.get(rank)
            if own not in there or (pid is not None and status_of(pid) == "ended"):
                ended.append(rank)
        return ended

    def is_stopped(self, rank: int) -> bool:
        """Whether an engine that is silent was stopped, or is out of sight."""
        pid = self.pids.get(rank)
        if pid is None:
            return not self.own  # one of ours imports jax before it says its process
        return status_of(pid) == "stopped"

    def exit_of(self, rank: int) -> tuple[Exit | None, str]:
        """How an engine of ours ended, and what it printed of the cause."""
        if self.folder is None:
            return None, ""
        code = None
        for launcher in self._launchers():
            if launcher.pid == self.pids.get(rank):
                _await_exit(launcher)
                with contextlib.suppress(Exception):  # psutil's own, of any kind
                    code = launcher.process.wait(timeout=0)
        printed = ""
        with contextlib.suppress(OSError), open(self.log_of(rank), "rb") as file:
            printed = cause(GLOO.sub("", read_log(file)))
        return exit_of(code, self._ended_for_memory), printed

    def _launchers(self) -> list[Any]:
        """ipyparallel's launchers of the controller and of each engine."""
        found = [self.cluster.controller]
        for engine_set in (self.cluster.engines or {}).values():
            found += getattr(engine_set, "launchers", {}).values()
        return [one for one in found if getattr(one, "pid", -1) > 0]

    def note_pids(self) -> None:
        """Tells the guard which processes to end."""
        if self.folder is not None:
            text = "\n".join(str(one.pid) for one in self._launchers())
            (self.folder / "pids").write_text(text)

    def end(self) -> None:
        """Ends engines that were started here, at once; lets go of others."""
        if self._guard is None or self.client is None:
            return
        end_guard(self._guard)
        for launcher in self._launchers():
            _await_exit(launcher)
        remove_abandoned()  # what an engine that compiled has left in shared memory
        with contextlib.suppress(Exception):  # the controller is gone
            self.client.close(linger=0)
        self.client = None

    def forget(self) -> None:
        """Lets go of them in a forked child, whose parent goes on using them."""
        # Closing them would end the parent's.
        _KEPT.append((self.client, self.cluster, self._guard))
        if self._guard is not None:
            self._guard.returncode = 0  # not ours to wait for
        self.client = self.cluster = self._guard = None


_KEPT: list[Any] = []


def end_guard(guard: subprocess.Popen[bytes]) -> None:
    """Has the guard end what it knows of, and remove its folder."""
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
    engines = None
    try:
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
            engines.note_pids()
            client.wait_for_engines(count, timeout=START_SECONDS, interactive=False)
    except BaseException as error:
        printed = _printed_at_start(folder)
        if engines is not None:
            engines.end()
        else:
            end_guard(guard)
        if not isinstance(error, Exception):
            raise
        said = f" They said: {printed}" if printed else ""
        raise TargetError(
            f"ipyparallel could not start {count} engines here: {type(error).__name__}:"
            f" {error}.{said} Start fewer, or free some memory."
        ) from error
    engines.ids = tuple(sorted(client.ids))
    return engines


def taken_over(thing: Any) -> Engines:
    """The engines of an ipyparallel Client or Cluster that a person has.

    Raises:
        MissingPackage: where ipyparallel is not installed.
        TargetError: for anything else, or where it has no engines.
    """
    ipp = imported()
    if isinstance(thing, ipp.Cluster):
        if not thing.engines:
            raise TargetError(
                "The cluster has no engines yet. Start them first:"
                " cluster.start_cluster_sync()."
            )
        client = thing.connect_client_sync()
        client.wait_for_engines(thing.n or 1, timeout=START_SECONDS, interactive=False)
    elif isinstance(thing, ipp.Client):
        client = thing
    else:
        raise TargetError(
            "sv.hosts takes how many processes to start here, as in sv.hosts(2,"
            f" devices=4), or an ipyparallel Client or Cluster; got {shown(thing)}."
        )
    if not client.ids:
        raise TargetError(
            "The client has no engines. Start some, and call sv.hosts again."
        )
    return Engines(client)


def imported() -> Any:
    """ipyparallel.

    Raises:
        MissingPackage: where it is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ipyparallel
    except ImportError as error:
        raise MissingPackage(
            "Targets of several processes need ipyparallel, which is not installed"
            ' here: pip install "shardviz[hosts]".'
        ) from error
    return ipyparallel


def _launcher_config(environment: Mapping[str, str]) -> Any:
    from traitlets.config import Config

    own = {"environment": dict(environment), "engine_args": list(_ENGINE)}
    return Config({"LocalEngineLauncher": own, "LocalEngineSetLauncher": own})


def _environment(platform: str) -> dict[str, str]:
    """The variables of engines that differ from the kernel's own."""
    variables: dict[str, str] = {}
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


def _printed_at_start(folder: Path) -> str:
    """What the logs of engines that did not start say of the cause."""
    for path in sorted((folder / "log").glob("*.log")):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if said := cause(read_log(file)):
                return said
    return ""


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


def at_end(value: Any, end: str, forget: str) -> None:
    """Has one method called when Python ends, and another one in a forked child."""
    me, maker = weakref.ref(value), os.getpid()

    def call(name: str, in_maker: bool) -> None:
        if (alive := me()) is not None and (os.getpid() == maker) is in_maker:
            getattr(alive, name)()

    register = getattr(threading, "_register_atexit", atexit.register)
    with contextlib.suppress(RuntimeError):  # too late: the guard ends the engines
        register(lambda: call(end, True))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: call(forget, False))
