"""Functions that engines run: join the other engines, compile a program, run it.

The kernel calls these functions by name, with plain data; no code is sent. Each engine
caches its executables, so a second run does not compile again.
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
# Number of characters to keep of a process's output.
_LONGEST_OUTPUT = 20_000
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


@dataclass(frozen=True)
class Request:
    """A call of one of this module's functions, which ipyparallel sends to an engine.

    Attributes:
        function: the name of the function.
        arguments: the pickled arguments.
        log: the file for the process's output during the call; `""` for no redirection.
    """

    function: str
    # Keep the repr short, because ipyparallel computes it for each call.
    arguments: bytes = field(repr=False)
    log: str = ""

    def __call__(self) -> bytes:
        """Calls the function, and pickles its answer."""
        with _printed_to(self.log):
            try:
                arguments = pickle.loads(self.arguments)
                return pickle.dumps(Answer(_CALLED[self.function](*arguments)))
            except Exception as error:  # noqa: BLE001  any error is raised in the kernel
                return pickle.dumps(Answer(error=TargetError(said_by(error))))


@dataclass(frozen=True)
class EngineInfo:
    """The state of an engine, which decides whether it can join a group.

    Attributes:
        host, pid: the engine's machine and process id.
        versions: the versions of Python, jax, jaxlib and shardviz.
        started: whether the engine has initialized jax's backend.
        group: the name of the group that the engine has joined, or `""`.
    """

    host: str
    pid: int
    versions: Mapping[str, str]
    started: bool
    group: str = ""


@dataclass(frozen=True)
class Joining:
    """The settings with which an engine joins a group.

    Attributes:
        group: a unique name of the group.
        address: host and port of the coordinator.
        count: the number of processes.
        rank: the index of this process.
        platform: `"cpu"`, `"gpu"`; `""` for jax's default.
        devices: number of CPU devices to simulate or attached devices to use; None for
            all attached devices.
        heartbeat: seconds without a heartbeat after which a process counts as lost.
        controller: the process id of ipyparallel's controller if the kernel started
            it. Engine and controller then end with the kernel.
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
class ProcessAnswer:
    """The answer of a process that compiled or ran a program.

    Attributes:
        report: the process's report, without outputs.
        process: the process's times, checks, printed output and memory.
        fingerprint: the fingerprint of the compile, and the compiler's flags.
        outputs: all results, if this is the first process; None if they are too large
            to send.
    """

    report: Report
    process: ProcessReport
    fingerprint: str = ""
    outputs: tuple[Value, ...] | None = None


#: The group that this engine has joined, if any.
_GROUP: list[Joining] = []
#: The runner, lowered program and executable for the next call of `run`.
_PREPARED: list[tuple[HereForKernel, Lowered, Executable]] = []
#: The file that receives the output of the current call.
_LOG: list[str] = []


def describe() -> EngineInfo:
    """Describes this engine, without starting jax's backend."""
    versions = {
        "Python": system.python_version().rpartition(".")[0],
        "jax": jax.__version__,
        "jaxlib": jaxlib_version,
        "shardviz": sys.modules["shardviz"].__version__,
    }
    group = _GROUP[0].group if _GROUP else ""
    return EngineInfo(
        socket.gethostname(), os.getpid(), versions, backend_started(), group
    )


def coordinator_address(name: str) -> str:
    """Returns this machine's address with a free port, for the coordinator.

    Args:
        name: the host name by which the other processes reach this machine; `""` for
            this machine's network address.
    """
    with socket.socket() as server:
        server.bind(("", 0))
        port = server.getsockname()[1]
    return f"{name or _network_address()}:{port}"


def _network_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent, but the system chooses a network interface.
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]
        except OSError:
            return socket.gethostbyname(socket.gethostname())


def join(joining: Joining) -> HostProcess:
    """Joins the other processes, then starts jax; a repeated call does nothing."""
    # The user may rerun a cell that calls sv.hosts on a client.
    if _GROUP and _GROUP[0].group == joining.group:
        return _this_process()
    platform, devices = joining.platform, joining.devices
    flags = os.environ.get("XLA_FLAGS", "").split()
    if platform == "cpu" or (not platform and devices is not None):
        # This flag would override `jax_num_cpu_devices`.
        other_flags = [flag for flag in flags if not flag.startswith(_DEVICE_COUNT)]
        os.environ["XLA_FLAGS"] = " ".join(other_flags)
        jax.config.update("jax_num_cpu_devices", devices or 1)
    if platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Otherwise jax handles SIGTERM, which schedulers send to end an engine.
    jax.config.update("jax_enable_preemption_service", False)
    local_device_ids = None
    if platform not in ("", "cpu") and devices is not None:
        first = joining.rank * devices
        local_device_ids = list(range(first, first + devices))
    jax.distributed.initialize(
        joining.address,
        joining.count,
        joining.rank,
        local_device_ids=local_device_ids,
        initialization_timeout=60,
        heartbeat_timeout_seconds=joining.heartbeat,
    )
    # End on SIGTERM immediately. Otherwise ipyparallel's handler would first wait for
    # the running program, and then jax would wait for the other processes.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if joining.controller is not None:
        pids = (os.getppid(), joining.controller)
        threading.Thread(target=_end_with_kernel, args=pids, daemon=True).start()
    _GROUP[:] = [joining]
    return _this_process()


def _end_with_kernel(kernel: int, controller: int) -> None:
    """Ends this process and ipyparallel's controller when the kernel has ended."""
    while os.getppid() == kernel:
        time.sleep(0.2)
    cluster.kill(cluster.children_of(controller))
    with contextlib.suppress(ProcessLookupError):
        os.kill(controller, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _this_process() -> HostProcess:
    devices = jax.local_devices()
    return HostProcess(
        jax.process_index(),
        socket.gethostname(),
        os.getpid(),
        tuple(d.id for d in devices),
        devices[0].platform,
    )


def prepare(
    exported: ExportedProgram, values: Sequence[Value] | None, repeat: int | None
) -> ProcessAnswer:
    """Compiles an exported program; raises if it needs too much memory.

    Args:
        exported: the program; its mesh has jax's own device ids.
        values: the arguments for `run`; None to generate them.
        repeat: number of executions in `run`; None if the program will not be run.
    """
    _PREPARED.clear()
    folder = make_folder("dump", dump_root())
    job = job_of(exported, str(folder), _CACHE, repeat, values, cluster.publish)
    fingerprints = [""]

    def steps() -> None:
        job.enter("target")
        # The kernel sends only device ids, so look up the devices.
        by_id = {device.id: device for device in jax.devices()}
        devices = [by_id[int(i)] for i in exported.mesh.device_ids.ravel()]
        runner = HereForKernel(job, exported, None, mesh_of(devices, exported.mesh))
        lowered, executable = runner.compile_sent()
        runner.refuse_if_too_big(executable, runner.inputs(lowered, executable))
        # Add XLA's flags, which affect the compile but aren't in the fingerprint.
        key = fingerprint(lowered, runner.devices, exported.options)
        flags = [os.environ.get(name, "") for name in _FLAGS]
        fingerprints[0] = " ".join([key, *flags])
        _PREPARED.append((runner, lowered, executable))

    try:
        answer = _answer(job, steps)
        return replace(answer, fingerprint=fingerprints[0])
    finally:
        remove_folder(folder)


def run(most: int) -> ProcessAnswer:
    """Runs the most recently prepared program.

    Args:
        most: maximum bytes of outputs to send; larger outputs are not sent.
    """
    runner, lowered, executable = _PREPARED.pop()
    job = runner.job
    outputs: list[Value] = []

    def steps() -> None:
        runner.run(lowered, executable)
        results = jax.tree.leaves(job.report.outputs)
        if sum(result.nbytes for result in results) <= most:
            # All processes gather the results; then the first process sends them.
            everywhere = NamedSharding(runner.mesh, PartitionSpec())
            gather = jax.jit(lambda *values: values, out_shardings=everywhere)
            for result in gather(*results):
                outputs.append(value_of(result.addressable_data(0)))

    answer = _answer(job, steps)
    is_first = jax.process_index() == min(processes_of(runner.devices))
    has_all = len(outputs) == len(lowered.traced.outputs)
    return replace(answer, outputs=tuple(outputs) if is_first and has_all else None)


def _answer(job: Job, steps: Callable[[], object]) -> ProcessAnswer:
    """Runs stages of a job, and collects the answer of this process."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        begun = time.perf_counter()
        job.follow(steps)
        total_seconds = time.perf_counter() - begun
    messages = dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in caught)
    this, report, seconds = _this_process(), job.report, {}
    reached = report.without_error
    for stage in ("lower", "compile", "place", "run"):
        stage_seconds = getattr(reached, f"{stage}_s")
        if stage_seconds is not None:
            seconds[stage] = stage_seconds
    if job.stage == "check":  # checking took the rest of the call
        ran = sum(reached.runs_s)
        seconds["check"] = total_seconds - seconds.get("place", 0.0) - ran
    process = ProcessReport(
        rank=this.rank,
        host=this.host,
        pid=this.pid,
        device_ids=this.device_ids,
        seconds=seconds,
        memory=memory_of(this.pid),
        checks=reached.checks,
        output=_printed(),
        warnings=tuple(messages),
        error=report.error,
        stage=job.stage,
    )
    return ProcessAnswer(report.replace(outputs=None), process)


@contextlib.contextmanager
def _printed_to(path: str) -> Iterator[None]:
    """Redirects output of this process, including libraries', to a file."""
    if not path:
        yield
        return
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)  # removes the previous call's output
    with open(path, "ab", 0) as file, open(path, "a", 1, errors="replace") as text:
        originals = {number: os.dup(number) for number in (1, 2)}
        for number in originals:
            os.dup2(file.fileno(), number)
        # Redirect Python's output too, which ipyparallel would otherwise capture.
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            _LOG[:] = [path]
            try:
                yield
            finally:
                _LOG.clear()
                for number, original in originals.items():
                    os.dup2(original, number)
                    os.close(original)


def _printed() -> str:
    """Reads the output of this process in the current call."""
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
