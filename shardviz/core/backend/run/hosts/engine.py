"""What runs on an engine: it joins the others, compiles an exported program, runs its
part of it.

Functions are called by name, with plain data; no code is sent. An engine keeps what it
compiled, so that a second run sends values alone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import platform as system
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib.version import __version__ as jaxlib_version

from shardviz.core.backend.devices import mesh_of
from shardviz.core.backend.failures import in_words
from shardviz.core.backend.jax_compat import backend_started
from shardviz.core.backend.run.compile import Executable, Lowered, fingerprint
from shardviz.core.backend.run.folders import dump_root, make_folder
from shardviz.core.backend.run.hosts import cluster
from shardviz.core.backend.run.inputs import Inputs
from shardviz.core.backend.run.runner import Job
from shardviz.core.backend.run.worker.child import HereForKernel, sent_program
from shardviz.core.backend.run.worker.export import ExportedProgram
from shardviz.core.backend.run.worker.messages import Answer
from shardviz.core.backend.run.worker.process import memory_of
from shardviz.core.errors import ProgramError, TargetError
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.checks import Finding, found
from shardviz.core.program.processes import HostProcess, ProcessReport
from shardviz.core.program.report import Report

Bounds = tuple[tuple[int, int], ...]
_MOST_KEPT = 8  # compiled programs
_DEVICE_COUNT = "--xla_force_host_platform_device_count"
_LONGEST_OUTPUT = 20_000  # characters of what a process printed
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


@dataclass(frozen=True)
class Request:
    """A call of a function of this module, by its name; ipyparallel sends it and calls
    it.

    Attributes:
        function: the name.
        arguments: as `messages.packed` makes them.
        log: the file that takes what the process prints meanwhile; `""` for a file of
            its own.
    """

    function: str
    arguments: bytes = field(
        repr=False
    )  # ipyparallel asks for the text of what it calls
    log: str = ""

    def __call__(self) -> bytes:
        """Makes the call, and packs its answer."""
        with _ended_by_sigterm(), cluster.beating(), _printed_to(self.log):
            try:
                arguments = pickle.loads(self.arguments)
                return pickle.dumps(Answer(_CALLED[self.function](*arguments)))
            except Exception as error:  # noqa: BLE001  whatever it is, the kernel is to raise it
                words = (
                    str(error) if isinstance(error, TargetError) else in_words(error)
                )
                return pickle.dumps(Answer(error=TargetError(words)))


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Has SIGTERM end this process at once.

    The handler of ipyparallel is run by Python, which cannot while XLA computes or
    waits for the other processes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


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
    """

    group: str
    address: str
    count: int
    rank: int
    platform: str
    devices: int | None
    heartbeat: int


@dataclass(frozen=True, eq=False)
class Part:
    """The elements of an array that a process has, or is sent.

    Attributes:
        shape: of all of the array; of random keys, of their words.
        dtype: of its elements.
        blocks: the bounds of each block and its elements.
        keys: the implementation of random keys; `""` for any other array.
    """

    shape: tuple[int, ...]
    dtype: Any
    blocks: tuple[tuple[Bounds, np.ndarray], ...]
    keys: str = ""

    @property
    def all(self) -> np.ndarray | None:
        """The array, where one block is all of it.

        >>> Part((2,), "int8", ((((0, 1),), np.zeros(1)),)).all
        """
        every = tuple((0, n) for n in self.shape)
        return next((block for bounds, block in self.blocks if bounds == every), None)

    def block(self, index: Any) -> np.ndarray:
        """The elements at an index of slices.

        >>> part = Part((4,), "int8", ((((2, 4),), np.array([7, 8])),))
        >>> part.block((slice(2, 4),))
        array([7, 8])
        """
        bounds = bounds_of(index, self.shape)
        for own, block in self.blocks:
            if own == bounds:
                return block
        full = self.all
        if full is None:
            raise ProgramError(
                f"This process was not sent the elements {list(bounds)}."
            )
        return full[tuple(slice(a, b) for a, b in bounds)]


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a process made of a program before anything runs.

    Attributes:
        report: what it found out.
        process: times, checks, output.
        fingerprint: what the compile depends on, each with its digest.
    """

    report: Report
    process: ProcessReport
    fingerprint: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Ran:
    """What a process found when it ran a program.

    Attributes:
        report: without outputs.
        process: times, checks, output, memory.
        outputs: of each leaf the blocks that this process answers for; None where they
            stay here.
    """

    report: Report
    process: ProcessReport
    outputs: tuple[Part, ...] | None


@dataclass(eq=False)
class _Compiled:
    """A program that this engine has compiled."""

    runner: _OnEngine
    lowered: Lowered
    executable: Executable
    report: Report


_GROUP: list[Joining] = []
_COMPILED: dict[str, _Compiled] = {}
_RESULTS: dict[
    str, list[jax.Array]
] = {}  # of the last run, where they are too large to send
#: Where what is printed goes during a call, as text and as bytes.
_LOG: list[Any] = []


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
            out.connect(
                ("192.0.2.1", 9)
            )  # sends nothing: the system picks the interface
            return out.getsockname()[0]
        except OSError:
            return socket.gethostbyname(socket.gethostname())


def join(how: Joining) -> HostProcess:
    """Joins the other processes, then starts jax.

    Raises:
        TargetError: where jax has started here before.
    """
    if _GROUP and _GROUP[0].group == how.group:
        return _own_process()
    if backend_started():
        raise TargetError(_started_words())
    flags = os.environ.get("XLA_FLAGS", "")
    if how.platform == "cpu" or (not how.platform and how.devices is not None):
        kept = [flag for flag in flags.split() if not flag.startswith(_DEVICE_COUNT)]
        os.environ["XLA_FLAGS"] = " ".join(kept)
        jax.config.update("jax_num_cpu_devices", how.devices or 1)
    if how.platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Else jax takes SIGTERM, with which ipyparallel and schedulers end an engine.
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
    _GROUP[:] = [how]
    return _own_process()


def _started_words() -> str:
    return (
        f"jax has started its devices in the engine with pid {os.getpid()} on"
        f" {socket.gethostname()} already, and cannot join others any more. Restart the engines,"
        " and use sv.hosts before anything else runs on them."
    )


def _own_process() -> HostProcess:
    devices = jax.local_devices()
    return HostProcess(
        jax.process_index(),
        socket.gethostname(),
        os.getpid(),
        tuple(d.id for d in devices),
        devices[0].platform,
    )


class _PartInputs(Inputs):
    """The arguments of a run, of which this process was sent its own part."""

    @property
    def bytes_in_place(self) -> int:
        return 0

    @property
    def elsewhere(self) -> Finding | None:
        if all(part.all is not None for part in self.leaves or ()):
            return None
        size = sum(array.bytes for array in self.program.arrays)
        return found("own part", size=size)

    def place_unsharded(self, mesh: Mesh) -> list[jax.Array]:
        if self.leaves is None:
            return super().place_unsharded(mesh)
        return [
            part_array(
                part,
                NamedSharding(mesh, PartitionSpec(), memory_kind=array.memory_kind),
            )
            for part, array in zip(self.leaves, self.program.arrays, strict=True)
        ]

    def _place(self, position: int) -> jax.Array:
        if self.leaves is None:
            return super()._place(position)
        copied = position in self.donated
        return part_array(self.leaves[position], self._sharding(position), copied)


def part_array(part: Part, sharding: NamedSharding, copied: bool = False) -> jax.Array:
    """The jax array of which this process has a part.

    Args:
        part: at least the blocks of this process's devices.
        sharding: of all of the array.
        copied: whether the array may not share the memory of the part.
    """
    take = (lambda i: np.array(part.block(i))) if copied else part.block
    if not part.keys:
        return jax.make_array_from_callback(part.shape, sharding, take)
    words = jax.make_array_from_callback(part.shape, sharding, take)
    return jax.random.wrap_key_data(words, impl=part.keys)


class _EngineJob(Job):
    """A job on an engine, which notes when each stage began."""

    begun: Mapping[str, float] = {}

    def enter(self, stage: str) -> None:
        self.begun = {**self.begun, stage: time.perf_counter()}
        super().enter(stage)

    def check_seconds(self) -> dict[str, float]:
        """What the checks took, where they were made."""
        if self.stage != "check":
            return {}
        return {"check": time.perf_counter() - self.begun["check"]}


class _OnEngine(HereForKernel):
    """Does a job on this process's devices and those of the others."""

    job: _EngineJob

    def inputs(self, lowered: Lowered) -> Inputs:
        positive = self.positive(lowered.traced)
        return _PartInputs(self.job.program, self.mesh, self.job.leaves, positive)


def _mesh(exported: ExportedProgram) -> Mesh:
    mesh, by_id = exported.mesh, {d.id: d for d in jax.devices()}
    return mesh_of([by_id[int(i)] for i in mesh.device_ids.ravel()], mesh)


def prepare(exported: ExportedProgram, made_up: bool) -> Prepared:
    """Compiles an exported program, and refuses one that has not enough memory.

    Args:
        exported: the program; its mesh has ids of jax's own.
        made_up: whether it will run with values that are made up here.
    """
    _RESULTS.clear()
    folder = make_folder("dump", dump_root())
    jax.config.update("jax_enable_x64", exported.x64)
    program = sent_program(exported, str(folder))
    job = _EngineJob(program, cache=ExecutableCache(size=1), progress=cluster.publish)
    job.leaves = None if made_up else []
    parts: dict[str, str] = {}

    def steps() -> None:
        job.enter("target")
        runner = _OnEngine(job, exported, None, _mesh(exported))
        lowered, executable = runner.compile_sent()
        runner.refuse_if_too_big(executable, runner.inputs(lowered))
        parts.update(_fingerprint(runner, lowered))
        while len(_COMPILED) >= _MOST_KEPT:
            del _COMPILED[next(iter(_COMPILED))]
        _COMPILED[exported.key] = _Compiled(runner, lowered, executable, job.report)

    try:
        caught = _follow(job, steps)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Prepared(job.report, _process(job, caught), parts)


def run(key: str, values: Sequence[Part] | None, repeat: int, most: int) -> Ran | None:
    """Runs a program that was prepared; None where it is not kept here any more.

    Args:
        key: of the exported program.
        values: the parts of its arguments; None for examples.
        repeat: how often to execute it.
        most: bytes of outputs that are sent; larger ones stay here until the next run.
    """
    kept = _COMPILED.get(key)
    if kept is None:
        return None
    _COMPILED[key] = _COMPILED.pop(key)  # used last
    _RESULTS.clear()
    job = kept.runner.job
    job.report = kept.report
    job.leaves, job.repeat = None if values is None else list(values), repeat
    caught = _follow(job, lambda: kept.runner.run(kept.lowered, kept.executable))
    results = jax.tree.leaves(job.report.outputs)
    outputs = None
    if job.report.error is None:
        if sum(r.nbytes for r in results) <= most:
            outputs = tuple(own_part(r) for r in results)
        else:
            _RESULTS[key] = results
    report = job.report.replace(outputs=None, in_layouts={})
    job.note(outputs=None)
    return Ran(report, _process(job, caught), outputs)


def part_of(key: str, number: int, bounds: Bounds) -> Part:
    """Of a result that stayed here, what this process answers for within some bounds.

    Args:
        key: of the exported program.
        number: of the result, from 0.
        bounds: start and stop of each dimension.

    Raises:
        TargetError: where the results of another run took its place.
    """
    if key not in _RESULTS:
        raise TargetError(
            "The results of this run are gone: a process keeps those of its last run. Run it again."
        )
    part = own_part(_RESULTS[key][number])
    blocks = []
    for own, block in part.blocks:
        common = tuple(
            (max(a, c), min(b, d)) for (a, b), (c, d) in zip(own, bounds, strict=False)
        )
        if all(a < b for a, b in common):
            index = tuple(
                slice(a - c, b - c) for (a, b), (c, _) in zip(common, own, strict=False)
            )
            blocks.append(((*common, *own[len(common) :]), block[index]))
    return replace(part, blocks=tuple(blocks))


def own_part(array: jax.Array) -> Part:
    """The blocks of an array that this process answers for: no other of a lower rank
    has them.
    """
    keys = ""
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
        keys = str(jax.random.key_impl(array))
        array = jax.random.key_data(array)
    owner: dict[Bounds, int] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        bounds, rank = bounds_of(index, array.shape), int(device.process_index)
        owner[bounds] = min(owner.get(bounds, rank), rank)
    own, blocks = jax.process_index(), {}
    for shard in array.addressable_shards:
        bounds = bounds_of(shard.index, array.shape)
        if owner[bounds] == own and bounds not in blocks:
            blocks[bounds] = np.asarray(shard.data)
    return Part(tuple(array.shape), array.dtype, tuple(blocks.items()), keys)


def bounds_of(index: Any, shape: Sequence[int]) -> Bounds:
    """Start and stop of each dimension.

    >>> bounds_of((slice(None), slice(2, 4)), (3, 8))
    ((0, 3), (2, 4))
    """
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=False))


def _fingerprint(runner: _OnEngine, lowered: Lowered) -> dict[str, str]:
    """What a compile depends on, so that processes that differ can say in what."""
    return {
        "the program": fingerprint(lowered, runner.devices, runner.exported.options),
        **{name: os.environ.get(name, "") for name in _FLAGS},
    }


def _follow(job: Job, steps: Callable[[], Any]) -> list[str]:
    """Runs the steps of an execution; returns the warnings that they raised."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        job.follow(steps)
    return list(dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in caught))


def _process(job: _EngineJob, caught: Sequence[str]) -> ProcessReport:
    report = job.report
    stages = ("lower", "compile", "place", "run")
    seconds = {s: t for s in stages if (t := getattr(report, f"{s}_s")) is not None}
    own = _own_process()
    return ProcessReport(
        own.rank,
        own.host,
        own.pid,
        own.device_ids,
        {**seconds, **job.check_seconds()},
        memory_of(own.pid),
        report.checks,
        _printed(),
        tuple(caught),
        report.error,
        job.stage,
    )


@contextlib.contextmanager
def _printed_to(path: str) -> Iterator[None]:
    """Has what this process prints, its libraries included, go to a file meanwhile."""
    with contextlib.ExitStack() as stack:
        if path:
            file = stack.enter_context(open(path, "w+b", 0))
        else:
            file = stack.enter_context(tempfile.TemporaryFile(buffering=0))
        text = stack.enter_context(
            open(os.dup(file.fileno()), "w", 1, errors="replace")
        )
        kept = {number: os.dup(number) for number in (1, 2)}
        for number in kept:
            os.dup2(file.fileno(), number)
        stack.enter_context(contextlib.redirect_stdout(text))
        stack.enter_context(contextlib.redirect_stderr(text))
        _LOG[:] = [text, file]
        try:
            yield
        finally:
            for number, own in kept.items():
                os.dup2(own, number)
                os.close(own)
            _LOG.clear()


def _printed() -> str:
    """What this process has printed in the call."""
    if not _LOG:
        return ""
    text, file = _LOG
    text.flush()
    at = file.tell()
    file.seek(max(0, at - _LONGEST_OUTPUT))
    text = file.read().decode(errors="replace")
    file.seek(at)
    return cluster.GLOO.sub("", text).strip()


_CALLED: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (describe, coordinator_address, join, prepare, run, part_of)
}
