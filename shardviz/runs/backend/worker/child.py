"""Compiles and runs exported programs in the worker process.

The worker answers with a Report without jax objects. Environment variables of the
process choose jax's settings, such as devices and plugins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from shardviz.base.errors import ProgramError
from shardviz.base.mesh_context import MeshContext
from shardviz.base.typing import PyTree
from shardviz.compiled.report import Memory, Report
from shardviz.hardware.targets import Target
from shardviz.programs.backend.trace import Traced, trace
from shardviz.programs.backend.worker.answering import send_stage
from shardviz.programs.backend.worker.messages import (
    CallbackAddress,
    put_callbacks,
)
from shardviz.programs.program import Program
from shardviz.runs.backend.compile import Executable, Lowered, lower
from shardviz.runs.backend.here import Here
from shardviz.runs.backend.inputs import partial_axes
from shardviz.runs.backend.runner import Job
from shardviz.runs.backend.targets import compile_only_mesh, device_mesh
from shardviz.runs.backend.worker.export import (
    ExportedProgram,
    LoweredModule,
    placeholder,
    put_module,
)
from shardviz.runs.cache import ExecutableCache

DUMP = "dump"
_LAPACK = "@lapack_"
_CACHE = ExecutableCache(size=32)
# Program key -> number of times that the kernel requested a new compile.
_RECOMPILES: dict[str, int] = {}


@dataclass(frozen=True, eq=False)
class Value:
    """An array as it is sent between processes.

    Attributes:
        data: the elements; for PRNG keys, their key data; None for unreduced arrays.
        keys: the implementation of PRNG keys; `""` for any other array.
    """

    data: np.ndarray | None
    keys: str = ""

    def leaf(self) -> np.ndarray | jax.Array | None:
        """Returns a numpy array or PRNG keys; None for an unreduced array.

        >>> Value(np.arange(3)).leaf()
        array([0, 1, 2])
        """
        if self.keys:
            return jax.random.wrap_key_data(jax.device_put(self.data), impl=self.keys)
        return self.data


@dataclass(frozen=True, eq=False)
class WorkerAnswer:
    """The worker's answer to the kernel.

    Attributes:
        report: the report, without outputs.
        compiled: the report right after the compile, before the run; None if the
            compile failed.
        values: the leaves of the outputs; None without a run, or after an error.
    """

    report: Report
    compiled: Report | None = None
    values: tuple[Value, ...] | None = None


def do_exported(
    exported: ExportedProgram,
    callbacks: CallbackAddress | None,
    new: bool,
    repeat: int | None,
    values: Sequence[Value] | None,
    measure: bool,
    folder: str,
) -> WorkerAnswer:
    """Compiles an exported program, and optionally runs it.

    Args:
        exported: the program.
        callbacks: the address at which the kernel serves the program's callbacks; None
            without callbacks.
        new: True to compile even if this process has cached the executable.
        repeat: number of executions; None to compile only.
        values: the program's arguments; None to generate them.
        measure: whether to profile three further calls.
        folder: the dump folder, which the kernel reads meanwhile.
    """
    if new:  # use a new cache key; the old entry is dropped later
        _RECOMPILES[exported.key] = _RECOMPILES.get(exported.key, 0) + 1
    # Executables for described devices can't run, so they aren't kept.
    cache = ExecutableCache(size=1) if exported.target else _CACHE
    job = job_of(exported, folder, cache, repeat, values, send_stage)
    job.measure = measure
    runners: list[HereForKernel] = []

    def steps() -> None:
        job.enter("target")
        runner = HereForKernel(job, exported, callbacks, _mesh_here(job, exported))
        runners.append(runner)
        lowered, executable = runner.compile_sent()
        if job.repeat is not None:
            runner.run(lowered, executable)

    job.follow(steps)
    if not runners:  # the mesh could not be created
        return WorkerAnswer(job.report)
    return runners[0].answer()


def job_of(
    exported: ExportedProgram,
    folder: str,
    cache: ExecutableCache,
    repeat: int | None,
    values: Sequence[Value] | None,
    progress: Callable[[str], None],
) -> Job:
    """Creates the job of an exported program; sets jax's x64 flag as in the kernel."""
    jax.config.update("jax_enable_x64", exported.x64)
    program = sent_program(exported, folder)
    job = Job(program, cache=cache, repeat=repeat, progress=progress)
    if values is not None:
        job.leaves = [value.leaf() for value in values]
    return job


def _mesh_here(job: Job, exported: ExportedProgram) -> Mesh:
    """Returns an exported program's jax mesh of this process's devices."""
    if exported.target:
        mesh, notes = compile_only_mesh(exported.mesh, exported.target)
        job.note(notes=notes)
        return mesh
    return device_mesh(exported.mesh, Target("cpu", "cpu", jax.device_count("cpu")))


class HereForKernel(Here):
    """Compiles and runs an exported program here, for the kernel that sent it.

    Args:
        job: the job.
        exported: the program.
        callbacks: the address at which the kernel serves the program's callbacks; None
            without callbacks.
        mesh: the jax mesh to run on.
    """

    def __init__(
        self,
        job: Job,
        exported: ExportedProgram,
        callbacks: CallbackAddress | None,
        mesh: Mesh,
    ) -> None:
        super().__init__(job, mesh)
        self.exported, self.callbacks = exported, callbacks
        self._compiled: Report | None = None

    def compile_sent(self) -> tuple[Lowered, Executable]:
        """Compiles the program that the kernel has traced and lowered."""
        job = self.job
        job.enter("trace")
        traced = self.trace()
        job.note(effects=traced.effects)
        job.enter("lower")
        lowered = self.lower(traced)
        job.note(lower_s=lowered.lower_s, key=self.key(lowered))
        return lowered, self.compile(lowered)

    def trace(self) -> Traced:
        # The kernel has traced the user's function, so it has the notes and the output
        # names, which jax derives from paths in the output tree.
        traced = super().trace()
        outputs = []
        for output, name in zip(traced.outputs, self.exported.outputs, strict=True):
            outputs.append(replace(output, name=name))
        return replace(traced, outputs=tuple(outputs), notes=())

    def lower(self, traced: Traced) -> Lowered:
        return self._lower_as_sent(traced, self.exported.module)

    def lower_unsharded(self, original: Traced, single: Program, mesh: Mesh) -> Lowered:
        module = self.exported.unsharded
        if not isinstance(module, LoweredModule):
            raise ProgramError(module or "It was not lowered for one.")
        # Remove the dump options that `sent_program` added: one device needs no dump.
        options = {}
        for name, value in single.options.items():
            if name in self.exported.options:
                options[name] = value
        single = single.replace(fn=placeholder(module, single.name), options=options)
        return self._lower_as_sent(trace(single, mesh), module, unsharded=True)

    def _lower_as_sent(
        self, traced: Traced, module: LoweredModule, unsharded: bool = False
    ) -> Lowered:
        def change(lowered: jax.stages.Lowered) -> None:
            put_module(lowered, module)
            if self.callbacks is not None:
                put_callbacks(lowered, self.callbacks.callbacks(unsharded))

        lowered = lower(traced, change=change)
        if _LAPACK in lowered.text:
            _start_lapack()
        return lowered

    def positive(self, traced: Traced) -> tuple[int, ...]:
        # A placeholder's jaxpr does not show the program's operations.
        return self.exported.positive

    def key(self, lowered: Lowered) -> str:
        # The kernel's fingerprint, and the number of recompiles it requested.
        return f"{self.exported.key}/{_RECOMPILES.get(self.exported.key, 0)}"

    def compile(self, lowered: Lowered) -> Executable:
        executable = super().compile(lowered)
        self._compiled = self.job.report
        return executable

    def note_roofline(self) -> None:
        """Does nothing: the kernel, which knows the topology, adds the roofline."""

    def with_capacity(self, memory: Memory) -> Memory:
        if self.exported.capacity is None:
            return super().with_capacity(memory)
        # A described chip has a published capacity.
        return memory.replace(capacity=self.exported.capacity)

    def answer(self) -> WorkerAnswer:
        """Returns the answer for the kernel."""
        report, values = self.job.report, None
        if report.error is None and report.outputs is not None:
            values = tuple(value_of(leaf) for leaf in jax.tree.leaves(report.outputs))
        return WorkerAnswer(report.replace(outputs=None), self._compiled, values)


@functools.cache
def _start_lapack() -> None:
    # jax loads LAPACK only when it lowers a LAPACK operation; runs crash without it.
    jax.jit(jax.numpy.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), np.float32))


def value_of(leaf: PyTree) -> Value:
    """Packs an array to send it to another process.

    >>> value_of(np.arange(3)).data
    array([0, 1, 2])
    """
    if isinstance(leaf, jax.Array):
        if partial_axes(leaf):
            return Value(None)
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            integers = np.asarray(jax.random.key_data(leaf))
            return Value(integers, str(jax.random.key_impl(leaf)))
    return Value(np.asarray(leaf))


def sent_program(exported: ExportedProgram, folder: str) -> Program:
    """Creates a Program from an exported one, with compiler options for the dump."""
    options, mesh = dict(exported.options), exported.mesh
    if mesh.size > 1:
        options.setdefault("xla_dump_to", str(Path(folder) / DUMP))
        options.setdefault("xla_dump_hlo_as_proto", True)
    return Program(
        placeholder(exported.module, exported.name),
        exported.arrays,
        mesh,
        out_specs=exported.out_specs or None,
        options=options,
        name=exported.name,
        # Provides the mesh if no argument's sharding names it.
        context=MeshContext(current=mesh, abstract=mesh) if exported.free else None,
        mesh_from="context" if exported.free else "given",
    )
