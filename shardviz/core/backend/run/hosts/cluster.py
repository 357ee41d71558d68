"""Engines of ipyparallel, which is imported here alone: started, called, watched and
ended.

Engines that are started here end with the kernel, however that ends. A process that
watches them is started first: it ends every process that was started for their folder,
and removes it.
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
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardviz.core.backend.exits import cause, ended_for_memory, exit_of, read_log
from shardviz.core.backend.run.folders import make_folder, pid_exists, remove_abandoned
from shardviz.core.backend.run.worker.settings import Settings
from shardviz.core.errors import MissingPackage, TargetError
from shardviz.core.format import shown
from shardviz.core.program.failure import Exit

MOST_ENGINES = 64  # on one machine
START_SECONDS = 120.0
# What gloo says of every group of devices that it connects.
GLOO = re.compile(r"^\[Gloo\] Rank \d+ is connected to .*\n?", re.MULTILINE)
_EXIT_SECONDS = 0.5  # in which the system says how a process ended
_REAP_SECONDS = 5.0  # in which a killed process is gone
_BEAT_SECONDS = 1.0
ENDED, STOPPED = "ended", "stopped"
_MARK = (
    "IPP_PROFILE_DIR"  # ipyparallel sets it in the environment of whatever it starts
)
# Few processes, which start sooner; and an engine counts as there at its second
# heartbeat.
_CONTROLLER = (
    "--IPController.use_threads=True",
    "--IPController.broadcast_scheduler_depth=0",
    "--HeartMonitor.period=400",
    "--HeartMonitor.max_heartmonitor_misses=600",
)
_ENGINE = ("--IPEngine.enable_nanny=False", "--IPEngine.max_heartbeat_misses=600")
# Ends what was started for a folder when its kernel is gone, or when it is asked to.
_GUARD = """
import os, shutil, signal, sys, time
kernel, folder, mark = int(sys.argv[1]), sys.argv[2], os.fsencode(sys.argv[3])
class Asked(Exception): pass
def ask(*_): raise Asked
signal.signal(signal.SIGINT, signal.SIG_IGN)
try:
    signal.signal(signal.SIGTERM, ask)
    while os.getppid() == kernel:
        time.sleep(0.25)
except Asked:
    pass
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def started():
    if not os.path.isdir("/proc/self"):
        try:
            with open(os.path.join(folder, "pids")) as file:
                yield from map(int, file.read().split())
        except OSError:
            pass
        return
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark + b"=" + os.fsencode(folder) in file.read().split(b"\\0"):
                        yield int(name)
            except OSError:
                pass
for _ in range(40):
    found = list(started())
    if not found:
        break
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    time.sleep(0.02)
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

    @property
    def stage(self) -> str:
        """The stage that the engine entered last; `""` for none."""
        return self._published("stage", "")

    @property
    def beat(self) -> int:
        """How often the engine has said that it lives."""
        return self._published("beat", 0)

    def _published(self, name: str, default: Any) -> Any:
        data = self.future.data
        return data.get(name, default) if isinstance(data, dict) else default

    def result(self) -> Any:
        """The answer.

        Raises:
            EngineLost: where the engine ended.
            TargetError: where it cannot make the call, in words.
            Exception: what the function raised there.
        """
        from ipyparallel import error

        try:
            packed = self.future.get()
        except error.EngineError as lost:
            raise EngineLost(str(lost)) from None
        except error.RemoteError as remote:
            raise TargetError(_remote_words(remote)) from None
        return pickle.loads(packed).result()


def _remote_words(remote: Any) -> str:
    if remote.ename in ("ModuleNotFoundError", "ImportError"):
        return (
            f"An engine has not all of what shardviz needs: {remote.evalue}. Install there what is"
            " installed here (pip install shardviz), and start the engines again."
        )
    return f"An engine refused the call: {remote.ename}: {remote.evalue}"


def wait_for_any(pending: Mapping[int, Pending], seconds: float) -> None:
    """Waits until one of some calls is answered, and no longer than that."""
    wait(
        [p.future for p in pending.values()],
        timeout=seconds,
        return_when=FIRST_COMPLETED,
    )


def publish(stage: str) -> None:
    """Tells the kernel, from an engine, which stage begins."""
    from ipyparallel.datapub import publish_data

    publish_data({"stage": stage})


@contextlib.contextmanager
def beating() -> Iterator[None]:
    """Has an engine tell the kernel again and again that it lives, while it answers a
    call.

    A process that is stopped, or whose machine is gone, is known by its silence.
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
        cluster: the Cluster that they belong to; None where only a client is known.
        folder: of a cluster that was started here, its folder; else None.
        ids: ipyparallel's number of each engine, by rank.
        pids: the process ids of engines on this machine, by rank.
    """

    def __init__(
        self,
        client: Any,
        cluster: Any,
        folder: Path | None = None,
        guard: Any = None,
        close: bool = True,
    ) -> None:
        self.client: Any = client
        self._closes = close  # whether the client was made here
        self.cluster, self.folder, self._guard = cluster, folder, guard
        self.ids: tuple[int, ...] = tuple(sorted(client.ids))
        self.pids: dict[int, int] = {}
        self._maker = os.getpid()
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
        return str(getattr(self.cluster, "cluster_id", "") or "ipyparallel")

    def call(self, rank: int, request: Any) -> Pending:
        """Sends a call to an engine.

        Args:
            rank: which one.
            request: something to call there, which is sent by the name of its class.
        """
        self._ended_for_memory = ended_for_memory()
        return Pending(self.client[self.ids[rank]].apply_async(request))

    def log_of(self, rank: int) -> str:
        """The file that takes what an engine prints during a call; `""` where it is not
        here.
        """
        return "" if self.folder is None else str(self.folder / f"printed-{rank}")

    def printed(self, rank: int) -> str:
        """What an engine printed in its last call, as far as that can be read here."""
        try:
            with open(self.log_of(rank), "rb") as file:
                return GLOO.sub("", read_log(file))
        except OSError:
            return ""

    def states(self) -> dict[int, str]:
        """The ranks of engines that ended or were stopped, each with which; as far as
        is known.
        """
        gone = set(self.ids) - set(self.client.ids)
        found = {rank: ENDED for rank, own in enumerate(self.ids) if own in gone}
        for rank, pid in self.pids.items():
            if state := state_of(pid):
                found[rank] = state
        return found

    def exit_words(self, rank: int) -> tuple[Exit, str]:
        """How an engine ended, and that in words with what it printed of the cause."""
        code = None
        for one in self.launched():
            if (
                one.pid == self.pids.get(rank)
                and getattr(one, "process", None) is not None
            ):
                code = _exit_code(one)
        if code is None and not self.own:
            words = "how is not known here; what it printed is on its machine."
            return Exit(None), words
        exit = exit_of(code, self._ended_for_memory)
        said = cause(self.printed(rank))
        return exit, f"{exit}.{f' It said: {said}' if said else ''}"

    def launched(self) -> list[Any]:
        """ipyparallel's launchers of the processes that it started from here, each with
        a pid.
        """
        return [one for one in _launchers(self.cluster) if getattr(one, "pid", -1) > 0]

    def end(self) -> None:
        """Ends engines that were started here, at once; lets go of others."""
        if os.getpid() != self._maker or self.client is None:
            return
        client, self.client = self.client, None
        if self.folder is not None:
            _end_folder(self._guard, self.folder)
            _reap(self.cluster)
            remove_abandoned()  # what an engine that compiled has left in shared memory
        if not self._closes:
            return
        with contextlib.suppress(Exception):  # the controller is gone
            client.close(linger=0)

    def restarted(self) -> Engines:
        """New engines in place of those of a cluster that was not started here.

        Raises:
            TargetError: where only a client is known, or they do not start.
        """
        cluster, client = self.cluster, self.client
        if cluster is None or client is None:
            raise TargetError(
                "Only a client of these engines is known, which cannot restart them. Restart them"
                " where they were started, and call sv.hosts(client) again; or give sv.hosts the"
                " ipyparallel Cluster itself."
            )
        old, count = set(self.ids), len(self.ids)
        try:
            cluster.restart_engines_sync()
        except Exception as error:  # a launcher's own, of any kind
            raise TargetError(
                f"ipyparallel could not restart the engines: {error} Restart them where they were"
                " started."
            ) from error
        begun = time.monotonic()
        while len(set(client.ids) - old) < count:
            if time.monotonic() - begun > START_SECONDS:
                raise TargetError(_too_slow(count))
            time.sleep(0.1)
        new = Engines(client, cluster, close=self._closes)
        new.ids = tuple(sorted(set(client.ids) - old))
        return new

    def forget(self) -> None:
        """Lets go of them in a forked child, whose parent goes on using them."""
        _KEPT.append(
            (self.client, self.cluster, self._guard)
        )  # closing them would end the parent's
        self.client = self.cluster = None
        if self._guard is not None:
            self._guard.returncode = 0  # not ours to wait for


_KEPT: list[Any] = []


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
        [sys.executable, "-IS", "-c", _GUARD, str(os.getpid()), str(folder), _MARK],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    cluster = None
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
            client.wait_for_engines(count, timeout=START_SECONDS, interactive=False)
    except BaseException as error:
        said = _said_at_start(folder)
        _end_folder(guard, folder)
        if cluster is not None:
            _reap(cluster)
        if not isinstance(error, Exception):
            raise
        raise TargetError(
            f"ipyparallel could not start {count} engines here: {type(error).__name__}: {error}."
            f"{f' They said: {said}' if said else ''} Start fewer, or free some memory."
        ) from error
    return Engines(client, cluster, folder, guard)


def taken_over(thing: Any) -> Engines:
    """The engines of an ipyparallel Client or Cluster that a person has.

    Raises:
        MissingPackage: where ipyparallel is not installed.
        TargetError: for anything else, or where it has no engines.
    """
    ipp, own = imported(), True
    if isinstance(thing, ipp.Client):
        own = False
        client, cluster = thing, getattr(thing, "cluster", None)
    elif isinstance(thing, ipp.Cluster):
        cluster = thing
        if not thing.engines:
            raise TargetError(
                "The cluster has no engines yet. Start them first: cluster.start_cluster_sync()."
            )
        client = thing.connect_client_sync()
        client.wait_for_engines(thing.n or 1, timeout=START_SECONDS, interactive=False)
    else:
        raise TargetError(
            "sv.hosts takes how many processes to start here, as in sv.hosts(2, devices=4), or an"
            f" ipyparallel Client or Cluster; got {shown(thing)}."
        )
    if not client.ids:
        raise TargetError(
            "The client has no engines. Start some, and call sv.hosts again."
        )
    return Engines(client, cluster, close=own)


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
            "Targets of several processes need ipyparallel, which is not installed here:"
            ' pip install "shardviz[hosts]".'
        ) from error
    return ipyparallel


def _launcher_config(environment: Mapping[str, str]) -> Any:
    from traitlets.config import Config

    own = {"environment": dict(environment), "engine_args": list(_ENGINE)}
    return Config({"LocalEngineLauncher": own, "LocalEngineSetLauncher": own})


def _environment(platform: str) -> dict[str, str]:
    """The variables of engines that differ from the kernel's own."""
    found: dict[str, str] = {}
    if platform == "cpu":
        own = Settings("cpu").environment()
        found = {
            name: value for name, value in own.items() if os.environ.get(name) != value
        }
    root = str(Path(__file__).parents[5])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        known = os.environ.get("PYTHONPATH", "")
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (root, known)))
    return found


def _said_at_start(folder: Path) -> str:
    """What the logs of engines that did not start say of the cause."""
    for path in sorted((folder / "log").glob("*.log")):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if said := cause(read_log(file)):
                return said
    return ""


def _too_slow(count: int) -> str:
    return (
        f"{count} engines did not start within {START_SECONDS:.0f} s. Look at what they print, and"
        " start them again."
    )


def _end_folder(guard: Any, folder: Path) -> None:
    """Ends every process that was started for a folder, and removes it."""
    if guard.poll() is None:
        guard.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        guard.wait(20)
    if folder.is_dir():  # it was ended before it could
        command = [sys.executable, "-IS", "-c", _GUARD, "0", str(folder), _MARK]
        subprocess.run(command, check=False, timeout=60, capture_output=True)


def _reap(cluster: Any) -> None:
    """Waits until the ended processes of a cluster are known to have ended."""
    for one in _launchers(cluster):
        _await_exit(one, _REAP_SECONDS)


def _await_exit(launcher: Any, seconds: float) -> None:
    """Waits for a process by the thread with which ipyparallel waits for it.

    Who waits beside that thread takes the exit code from it, or has it raise an error.
    """
    if (waiting := getattr(launcher, "_wait_thread", None)) is not None:
        waiting.join(seconds)


def _launchers(cluster: Any) -> list[Any]:
    """What started each process of a cluster."""
    if cluster is None:
        return []
    sets = list((cluster.engines or {}).values())
    each = [one for found in sets for one in getattr(found, "launchers", {}).values()]
    return [
        launcher
        for launcher in (cluster.controller, *sets, *each)
        if launcher is not None
    ]


def _exit_code(launcher: Any) -> int | None:
    """How a process ended; None where that is not known."""
    _await_exit(launcher, _EXIT_SECONDS)
    code = None
    with contextlib.suppress(Exception):  # psutil's own, of any kind
        code = launcher.process.wait(timeout=0)
    return code if isinstance(code, int) else None


def state_of(pid: int) -> str:
    """Whether a process of this machine has ended or was stopped; `""` where it runs.

    >>> state_of(os.getpid())
    ''
    """
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "" if not Path("/proc/self").exists() and pid_exists(pid) else ENDED
    return {"Z": ENDED, "X": ENDED, "T": STOPPED, "t": STOPPED}.get(letter, "")


def at_end(value: Any, end: str, forget: str) -> None:
    """Has a method of a value called when Python ends, and another one in a forked
    child.
    """
    me, maker = weakref.ref(value), os.getpid()

    def call(name: str, in_maker: bool) -> None:
        if (alive := me()) is not None and (os.getpid() == maker) is in_maker:
            getattr(alive, name)()

    register = getattr(threading, "_register_atexit", atexit.register)
    with contextlib.suppress(RuntimeError):  # too late: the engines end with the kernel
        register(lambda: call(end, True))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: call(forget, False))
