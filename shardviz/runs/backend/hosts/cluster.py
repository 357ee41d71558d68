"""Starts, calls and ends ipyparallel engines; only this module imports ipyparallel."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardviz.base.errors import TargetError, needed_by
from shardviz.base.format import shown
from shardviz.programs.backend.worker.exits import cause, read_log
from shardviz.programs.backend.worker.folders import (
    make_folder,
    remove_abandoned,
    remove_folder,
)
from shardviz.programs.backend.worker.settings import Settings
from shardviz.programs.failure import Exited, Lost, ProcessEnd

if TYPE_CHECKING:
    import psutil
    from ipyparallel import AsyncResult, Client

# Maximum number of engines per machine.
MOST_ENGINES = 64
START_SECONDS = 120
# Gloo prints this line for every replica group that it connects.
GLOO = re.compile(r"^\[Gloo\] Rank \d+ is connected to .*\n?", re.MULTILINE)
# Seconds to wait for an ended process's exit code.
_EXIT_SECONDS = 1.0

# A controller with threads starts faster than one with processes. It registers engines
# at their second heartbeat, so the heartbeat period is short.
_CONTROLLER = (
    "--IPController.use_threads=True",
    "--IPController.broadcast_scheduler_depth=0",
    "--HeartMonitor.period=400",
    "--HeartMonitor.max_heartmonitor_misses=600",
)
_ENGINE = ("--IPEngine.enable_nanny=False", "--IPEngine.max_heartbeat_misses=600")


class EngineLost(TargetError):
    """An engine ended, or does not answer.

    Attributes:
        end: the cause, which also provides the error message.
    """

    def __init__(self, end: ProcessEnd) -> None:
        super().__init__(end)
        self.end = end


def answer_of(call: AsyncResult) -> Any:
    """Returns the answer of a finished call.

    Raises:
        EngineLost: if the engine ended.
        TargetError: if the engine could not make the call, or the function raised.
    """
    from ipyparallel import error

    try:
        packed: Any = call.get()
    except error.EngineError:
        raise EngineLost(Lost()) from None
    except error.RemoteError as remote:
        if remote.ename == "EngineError":  # as reported by the controller
            raise EngineLost(Lost()) from None
        raise TargetError(
            f"An engine refused the call: {remote.ename}: {remote.evalue}. It needs what"
            " is installed here, in the same versions: pip install shardviz."
        ) from None
    return pickle.loads(packed).result()


def stage_of(call: AsyncResult) -> str:
    """Returns the stage that an engine has published for a call, or `""`."""
    data = call.data
    return data.get("stage", "") if isinstance(data, dict) else ""


def publish(stage: str) -> None:
    """Reports the start of a stage from an engine to the kernel."""
    from ipyparallel.datapub import publish_data

    publish_data({"stage": stage})


class Engines:
    """The engines of an ipyparallel cluster, numbered by rank.

    Attributes:
        client: ipyparallel's client.
        cluster: the ipyparallel Cluster if shardviz started it; None for the user's
            engines.
        folder: the profile folder of a cluster that shardviz started; else None.
        ids: rank -> ipyparallel's engine id.
        pids: rank -> process id, for engines on this machine.
        kernel: id of the process that created this object, the only process that may
            end the engines.
    """

    def __init__(
        self, client: Client, cluster: Any = None, folder: Path | None = None
    ) -> None:
        self.client, self.cluster, self.folder = client, cluster, folder
        self.ids: tuple[int, ...] = tuple(sorted(client.ids))
        self.pids: dict[int, int] = {}
        self.kernel = os.getpid()
        self._launchers: list[Any] = []
        if cluster is not None:
            # Keep the launchers, because ipyparallel drops those of ended engines.
            self._launchers = list(cluster.engine_set.launchers.values())

    @property
    def controller(self) -> int | None:
        """Process id of the controller, if shardviz started it."""
        return None if self.cluster is None else self.cluster.controller.pid

    def call(self, rank: int, request: Callable[[], bytes]) -> AsyncResult:
        """Sends a call to an engine.

        Args:
            rank: the rank of the engine.
            request: a callable whose class the engine can import.
        """
        return self.client[self.ids[rank]].apply_async(request)

    def log_of(self, rank: int) -> str:
        """Returns the file for an engine's output; `""` for the user's engines."""
        return "" if self.folder is None else str(self.folder / f"printed-{rank}")

    def ended(self) -> list[int]:
        """Returns the ranks of engines that have ended."""
        # The controller notices late that an engine has ended, so also check the
        # processes on this machine.
        registered = set(self.client.ids)
        ranks = []
        for rank, number in enumerate(self.ids):
            pid = self.pids.get(rank)
            if number not in registered or (pid and status_of(pid) == "ended"):
                ranks.append(rank)
        return ranks

    def stopped(self) -> list[int]:
        """Returns the ranks of engines on this machine that a signal has stopped."""
        return [r for r, pid in self.pids.items() if status_of(pid) == "stopped"]

    def end_of(self, rank: int) -> ProcessEnd:
        """Finds out how an engine ended and which error it printed."""
        # Exit codes are known only for engines that shardviz started.
        if self.cluster is None:
            return Lost(group="foreign")
        code = None
        for launcher in self._launchers:
            if launcher.pid == self.pids.get(rank):
                # Let ipyparallel's thread wait for the process first: only one wait
                # gets the exit code.
                if (thread := getattr(launcher, "_wait_thread", None)) is not None:
                    thread.join(_EXIT_SECONDS)
                with contextlib.suppress(Exception):  # psutil may raise any error
                    code = launcher.process.wait(timeout=0)
        printed = ""
        with contextlib.suppress(OSError), open(self.log_of(rank), "rb") as file:
            printed = cause(GLOO.sub("", read_log(file)))
        return Exited(code=code, printed=printed, group="own")

    def end(self) -> None:
        """Ends a cluster that shardviz started; does nothing in a forked process."""
        if self.folder is None or os.getpid() != self.kernel:
            return
        # The controller has a process of its own, which ipyparallel does not stop.
        children = children_of(self.controller)
        with contextlib.suppress(Exception):  # processes may have ended already
            self.cluster.stop_cluster_sync()
        kill(children)
        with contextlib.suppress(Exception):  # the controller may have ended
            self.client.close(linger=0)
        remove_folder(self.folder)
        remove_abandoned()  # removes dumps of ended engines in shared memory


def start(count: int, platform: str) -> Engines:
    """Starts engines on this machine.

    Args:
        count: number of engines.
        platform: `"cpu"`, or the platform of attached accelerators.

    Raises:
        MissingPackage: if ipyparallel is not installed.
        TargetError: if the engines do not start.
    """
    ipp = imported()
    remove_abandoned()
    folder = make_folder("hosts", tempfile.gettempdir())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Use a separate profile, so that the user's ipyparallel settings don't apply.
        cluster = ipp.Cluster(
            n=count,
            profile_dir=str(folder),
            cluster_id="shardviz",
            controller_args=list(_CONTROLLER),
            engine_timeout=START_SECONDS,
            shutdown_atexit=False,
            load_profile=False,
            log_level=50,
            delay=0.0,
            config=_launcher_config(_environment(platform)),
        )
        try:
            cluster.start_cluster_sync(n=count)
            client = cluster.connect_client_sync()
            # interactive=True would draw a progress bar in the cell.
            client.wait_for_engines(count, timeout=START_SECONDS, interactive=False)
            return Engines(client, cluster, folder)
        except BaseException as error:
            with contextlib.suppress(Exception):
                cluster.stop_cluster_sync()
            remove_folder(folder)
            if not isinstance(error, Exception):
                raise
            raise TargetError(
                f"ipyparallel could not start {count} engines here:"
                f" {type(error).__name__}: {error}. Start fewer, or free some memory."
            ) from error


def taken_over(source: Any) -> Engines:
    """Connects to the engines of the user's ipyparallel Client or Cluster.

    Raises:
        MissingPackage: if ipyparallel is not installed.
        TargetError: if `source` is not a Client or Cluster with running engines.
    """
    ipp = imported()
    client = source
    if isinstance(source, ipp.Cluster) and source.engines:
        client = source.connect_client_sync()
        client.wait_for_engines(source.n or 1, timeout=START_SECONDS, interactive=False)
    if not isinstance(client, ipp.Client) or not client.ids:
        raise TargetError(
            "sv.hosts takes how many processes to start here, as in sv.hosts(2,"
            " devices=4), or an ipyparallel Client or Cluster with engines that run; got"
            f" {shown(source)}."
        )
    return Engines(client)


def imported() -> Any:
    """Imports ipyparallel.

    Raises:
        MissingPackage: if ipyparallel is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with needed_by("sv.hosts"):
            import ipyparallel
    return ipyparallel


def _launcher_config(environment: Mapping[str, str]) -> Any:
    from traitlets.config import Config

    return Config(
        {
            "EngineLauncher": {
                "environment": dict(environment),
                "engine_args": list(_ENGINE),
            },
            # Kill engines immediately: they have nothing to finish.
            "LocalProcessLauncher": {"stop_seconds_until_kill": 0},
        }
    )


def _environment(platform: str) -> dict[str, str]:
    """Returns the engines' environment variables that differ from the kernel's."""
    variables: dict[str, str] = {}
    # As in a worker, hide accelerators, which the kernel uses.
    if platform == "cpu":
        for name, value in Settings("cpu").environment().items():
            if os.environ.get(name) != value:
                variables[name] = value
    # If shardviz is not installed but imported from a checkout, engines need its path.
    root = str(Path(__file__).parents[4])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        old_path = os.environ.get("PYTHONPATH", "")
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (root, old_path)))
    return variables


def children_of(pid: int | None) -> list[psutil.Process]:
    """Returns the processes on this machine that a process has started."""
    import psutil

    with contextlib.suppress(psutil.Error):
        if pid is not None:
            return psutil.Process(pid).children(recursive=True)
    return []


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kills processes that have not ended yet."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def status_of(pid: int) -> str:
    """Returns the state of a local process: `"runs"`, `"stopped"` or `"ended"`.

    >>> status_of(os.getpid())
    'runs'
    """
    import psutil  # a dependency of ipyparallel

    try:
        status = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return "ended"
    except psutil.Error:
        return "runs"  # no access, such as to another user's process
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return "ended"
    return "stopped" if status == psutil.STATUS_STOPPED else "runs"
