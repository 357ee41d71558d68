"""What runs on an engine: it joins the others, compiles an exported program, runs it.

Functions are called by name, with plain data; no code is sent. An engine keeps what it
compiled, so that a second run compiles nothing.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import platform as system
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib.version import __version__ as jaxlib_version

from shardviz.base.backend.jax_compat import backend_started
from shardviz.base.errors import TargetError
from shardviz.compiled.processes import HostProcess, ProcessReport
from shardviz.compiled.report import Report
from shardviz.programs.backend.devices import mesh_of, processes_of
from shardviz.programs.backend.failures import said_by
from shardviz.programs.backend.worker.folders import (
    dump_root,
    make_folder,
    remove_folder,
)
from shardviz.programs.backend.worker.messages import Answer
from shardviz.programs.backend.worker.process import memory_of
from shardviz.runs.backend.compile import Executable, Lowered, fingerprint
from shardviz.runs.backend.hosts import cluster
from shardviz.runs.backend.runner import Job
from shardviz.runs.backend.worker.child import (
    HereForKernel,
    Value,
    job_of,
    value_of,
)
from shardviz.runs.backend.worker.export import ExportedProgram
from shardviz.runs.cache import ExecutableCache

_CACHE = ExecutableCache(size=8)
_DEVICE_COUNT = "--xla_force_host_platform_device_count"
_LONGEST_OUTPUT = 20_000  # characters of what a process printed
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


@dataclass(frozen=True)
class Request:
    """A call of a function of this module by its name; ipyparallel sends and calls it.

    Attributes:
        function: the name.
        arguments: a pickle of the arguments.
        log: the file for what the process prints meanwhile; `""` to leave it alone.
    """

    function: str
    # ipyparallel asks for the text of what it calls.
    arguments: bytes = field(repr=False)
    log: str = ""

    def __call__(self) -> bytes:
        """Makes the call, and packs its answer."""
        with _printed_to(self.log):
            try:
                arguments = pickle.loads(self.arguments)
                return pickle.dumps(Answer(_CALLED[self.function](*arguments)))
            except Exception as error:  # noqa: BLE001  the kernel raises whatever it is
                return pickle.dumps(Answer(error=TargetError(said_by(error))))


@dataclass(frozen=True)
class Place:
    """What an engine is, before it joins the others.

    Attributes:
        host, pid: its machine and process.
        versions: of Python, jax, jaxlib and shardviz.
        started: whether jax has started its devices there.
        group: the name of the group that it joined; `""` for none.
    """

    host: str
    pid: int
    versions: Mapping[str, str]
    started: bool
    group: str = ""


@dataclass(frozen=True)
class Joining:
    """How an engine joins the others.

    Attributes:
        group: a name that no other group has.
        address: of the coordinator: host and port.
        count, rank: how many processes there are, and which one this is.
        platform: `"cpu"`, `"gpu"`; `""` for what jax finds.
        devices: how many CPU devices to simulate, or of attached ones its share; None
            for all.
        heartbeat: seconds after which a process that says nothing counts as lost.
        controller: the process id of ipyparallel's controller, if the kernel started
            it: then both end with the kernel.
    """

    group: str
    address: str
    count: int
    rank: int
    platform: str
    devices: int | None
    heartbeat: int
    controller: int | None = None


@dataclass(frozen=True, eq=False)
class Done:
    """What a process found when it compiled or ran a program.

    Attributes:
        report: what it found out, without outputs.
        process: times, checks, output, memory.
        fingerprint: of what it compiled, and of the flags of its compiler.
        outputs: every result, of the first process; None where they are too large.
    """

    report: Report
    process: ProcessReport
    fingerprint: str = ""
    outputs: tuple[Value, ...] | None = None


_GROUP: list[Joining] = []
#: What `run` runs: the runner, the lowered program and its executable.
_PREPARED: list[tuple[HereForKernel, Lowered, Executable]] = []
#: The file for what is printed during a call.
_LOG: list[str] = []


def describe() -> Place:
    """What this engine is; starts nothing."""
    versions = {
        "Python": system.python_version().rpartition(".")[0],
        "jax": jax.__version__,
        "jaxlib": jaxlib_version,
        "shardviz": sys.modules["shardviz"].__version__,
    }
    group = _GROUP[0].group if _GROUP else ""
    return Place(socket.gethostname(), os.getpid(), versions, backend_started(), group)


def coordinator_address(name: str) -> str:
    """A free port of this machine, for the coordinator.

    Args:
        name: how the other processes reach this machine; `""` for the address of its
            network.
    """
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    return f"{name or _own_address()}:{port}"


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        try:
            # This sends nothing: the system picks the interface.
            out.connect(("192.0.2.1", 9))
            return out.getsockname()[0]
        except OSError:
            return socket.gethostbyname(socket.gethostname())


def join(how: Joining) -> HostProcess:
    """Joins the other processes, then starts jax, unless that has happened."""
    # A cell that calls sv.hosts on a client may be run again.
    if _GROUP and _GROUP[0].group == how.group:
        return _own_process()
    flags = os.environ.get("XLA_FLAGS", "")
    if how.platform == "cpu" or (not how.platform and how.devices is not None):
        # It would win over the option of jax that is set here.
        kept = [flag for flag in flags.split() if not flag.startswith(_DEVICE_COUNT)]
        os.environ["XLA_FLAGS"] = " ".join(kept)
        jax.config.update("jax_num_cpu_devices", how.devices or 1)
    if how.platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Otherwise jax handles SIGTERM, with which schedulers end an engine.
    jax.config.update("jax_enable_preemption_service", False)
    own = None
    if how.platform not in ("", "cpu") and how.devices is not None:
        own = list(range(how.rank * how.devices, (how.rank + 1) * how.devices))
    jax.distributed.initialize(
        how.address,
        how.count,
        how.rank,
        local_device_ids=own,
        initialization_timeout=60,
        heartbeat_timeout_seconds=how.heartbeat,
    )
    # ipyparallel's handler waits for a running program, and then jax waits for the other
    # processes; meanwhile nothing shows that this one is ending.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if how.controller is not None:
        ends = (os.getppid(), how.controller)
        threading.Thread(target=_end_with_kernel, args=ends, daemon=True).start()
    _GROUP[:] = [how]
    return _own_process()


def _end_with_kernel(kernel: int, controller: int) -> None:
    """Ends this process and ipyparallel's controller once the kernel is gone."""
    while os.getppid() == kernel:
        time.sleep(0.2)
    with contextlib.suppress(ProcessLookupError):
        os.kill(controller, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _own_process() -> HostProcess:
    devices = jax.local_devices()
    return HostProcess(
        jax.process_index(),
        socket.gethostname(),
        os.getpid(),
        tuple(d.id for d in devices),
        devices[0].platform,
    )


def prepare(
    exported: ExportedProgram, values: Sequence[Any] | None, repeat: int | None
) -> Done:
    """Compiles an exported program, and refuses one that has not enough memory.

    Args:
        exported: the program; its mesh has ids of jax's own.
        values: what `run` will run it with, each a `Value`; None for made-up ones.
        repeat: how often `run` will execute it; None where it will not be run.
    """
    _PREPARED.clear()
    folder = make_folder("dump", dump_root())
    job = job_of(exported, str(folder), _CACHE, repeat, values, cluster.publish)
    fingerprints = [""]

    def steps() -> None:
        job.enter("target")
        # The kernel knows devices by their ids alone.
        by_id = {device.id: device for device in jax.devices()}
        devices = [by_id[int(i)] for i in exported.mesh.device_ids.ravel()]
        runner = HereForKernel(job, exported, None, mesh_of(devices, exported.mesh))
        lowered, executable = runner.compile_sent()
        runner.refuse_if_too_big(executable, runner.inputs(lowered, executable))
        # Flags of XLA are no part of it, and change what it makes of the same text.
        compiled = fingerprint(lowered, runner.devices, exported.options)
        flags = [os.environ.get(name, "") for name in _FLAGS]
        fingerprints[0] = " ".join([compiled, *flags])
        _PREPARED.append((runner, lowered, executable))

    try:
        return _done(job, steps, fingerprints)
    finally:
        remove_folder(folder)


def run(most: int) -> Done:
    """Runs what was prepared last.

    Args:
        most: bytes of outputs that are sent.
    """
    runner, lowered, executable = _PREPARED.pop()
    job = runner.job
    outputs: list[Value] = []

    def steps() -> None:
        runner.run(lowered, executable)
        results = jax.tree.leaves(job.report.outputs)
        if sum(result.nbytes for result in results) <= most:
            # Every process takes part, and the first of them sends what it then has.
            everywhere = NamedSharding(runner.mesh, PartitionSpec())
            gather = jax.jit(lambda *values: values, out_shardings=everywhere)
            for result in gather(*results):
                outputs.append(value_of(result.addressable_data(0)))

    done = _done(job, steps)
    is_first = jax.process_index() == min(processes_of(runner.devices))
    has_all = len(outputs) == len(lowered.traced.outputs)
    return replace(done, outputs=tuple(outputs) if is_first and has_all else None)


def _done(
    job: Job, steps: Callable[[], Any], fingerprints: Sequence[str] = ("",)
) -> Done:
    """Takes the steps of a job; what this process found."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        begun = time.perf_counter()
        job.follow(steps)
        took = time.perf_counter() - begun
    warned = dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in caught)
    own, report, seconds = _own_process(), job.report, {}
    for stage in ("lower", "compile", "place", "run"):
        if (spent := getattr(report, f"{stage}_s")) is not None:
            seconds[stage] = spent
    if job.stage == "check":  # what of the call is left
        seconds["check"] = took - seconds.get("place", 0.0) - sum(report.runs_s)
    process = ProcessReport(
        own.rank,
        own.host,
        own.pid,
        own.device_ids,
        seconds,
        memory_of(own.pid),
        report.checks,
        _printed(),
        tuple(warned),
        report.error,
        job.stage,
    )
    return Done(report.replace(outputs=None), process, fingerprints[0])


@contextlib.contextmanager
def _printed_to(path: str) -> Iterator[None]:
    """Has what this process prints, its libraries included, go to a file meanwhile."""
    if not path:
        yield
        return
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)  # what the call before has printed
    with open(path, "ab", 0) as file, open(path, "a", 1, errors="replace") as text:
        kept = {number: os.dup(number) for number in (1, 2)}
        for number in kept:
            os.dup2(file.fileno(), number)
        # Python's own output goes to ipyparallel otherwise.
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            _LOG[:] = [path]
            try:
                yield
            finally:
                _LOG.clear()
                for number, own in kept.items():
                    os.dup2(own, number)
                    os.close(own)


def _printed() -> str:
    """What this process has printed in the call."""
    if not _LOG:
        return ""
    sys.stdout.flush()
    with open(_LOG[0], "rb") as file:
        file.seek(max(0, os.path.getsize(_LOG[0]) - _LONGEST_OUTPUT))
        printed = file.read().decode(errors="replace")
    return cluster.GLOO.sub("", printed).strip()


_CALLED: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (describe, coordinator_address, join, prepare, run)
}
