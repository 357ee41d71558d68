"""What runs in the worker process: compiles and runs exported programs.

It answers with a Report that holds nothing of jax. The process has its own jax settings
(its devices, its plugins), chosen by the environment it was started with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from shardviz.base.errors import ProgramError
from shardviz.base.mesh_context import MeshContext
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
# Key to how often the kernel asked for a new compile of it.
_RECOMPILES: dict[str, int] = {}


@dataclass(frozen=True, eq=False)
class Value:
    """An array as it is sent between processes.

    Attributes:
        data: its elements; of random keys their words; None for partial sums.
        keys: the implementation of random keys; `""` for any other array.
    """

    data: np.ndarray | None
    keys: str = ""

    def leaf(self) -> Any:
        """The array: of numpy, or random keys; None for partial sums.

        >>> Value(np.arange(3)).leaf()
        array([0, 1, 2])
        """
        if self.keys:
            return jax.random.wrap_key_data(jax.device_put(self.data), impl=self.keys)
        return self.data


@dataclass(frozen=True, eq=False)
class WorkerAnswer:
    """What the worker sends back.

    Attributes:
        report: what was done, without outputs.
        compiled: the report when the program was compiled and had not run; None where
            it did not come so far.
        values: the outputs, leaf by leaf; None for a compile, or after an error.
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
    folder: str,
) -> WorkerAnswer:
    """Compiles an exported program, and runs it.

    Args:
        exported: the program.
        callbacks: where the kernel answers its callbacks; None where it has none.
        new: whether to compile it even where it is in the cache here.
        repeat: how often to execute it; None to compile only.
        values: its arguments; None for examples.
        folder: where the dump is written, for the kernel to read meanwhile.
    """
    if new:  # the entry under the last number is dropped in time
        _RECOMPILES[exported.key] = _RECOMPILES.get(exported.key, 0) + 1
    # Of described devices nothing is kept, since nothing runs there.
    cache = ExecutableCache(size=1) if exported.target else _CACHE
    job = job_of(exported, folder, cache, repeat, values, send_stage)
    runners: list[HereForKernel] = []

    def steps() -> None:
        job.enter("target")
        runner = HereForKernel(job, exported, callbacks, _mesh_here(job, exported))
        runners.append(runner)
        lowered, executable = runner.compile_sent()
        if job.repeat is not None:
            runner.run(lowered, executable)

    job.follow(steps)
    if not runners:  # no devices were found
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
    """The job of an exported program; it sets jax as it is set in the kernel."""
    jax.config.update("jax_enable_x64", exported.x64)
    program = sent_program(exported, folder)
    job = Job(program, cache=cache, repeat=repeat, progress=progress)
    if values is not None:
        job.leaves = [value.leaf() for value in values]
    return job


def _mesh_here(job: Job, exported: ExportedProgram) -> Mesh:
    """The jax mesh of this process's devices that an exported program is for."""
    if exported.target:
        mesh, notes = compile_only_mesh(exported.mesh, exported.target)
        job.note(notes=notes)
        return mesh
    return device_mesh(exported.mesh, Target("cpu", "cpu", jax.device_count("cpu")))


class HereForKernel(Here):
    """Compiles and runs an exported program here, for the kernel that sent it.

    Args:
        job: what to do.
        exported: the program.
        callbacks: where the kernel answers its callbacks; None where it has none.
        mesh: the jax mesh of the devices.
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
        """Compiles what the kernel has traced and lowered."""
        job = self.job
        job.enter("trace")
        traced = self.trace()
        job.note(effects=traced.effects)
        job.enter("lower")
        lowered = self.lower(traced)
        job.note(lower_s=lowered.lower_s, key=self.key(lowered))
        return lowered, self.compile(lowered)

    def trace(self) -> Traced:
        # How it was traced is said by the kernel, which traced the user's own function,
        # and named its outputs.
        traced = super().trace()
        # jax names results by their place in the tree, which only the kernel knows.
        outputs = []
        for output, name in zip(traced.outputs, self.exported.outputs, strict=True):
            outputs.append(replace(output, name=name))
        return replace(traced, outputs=tuple(outputs), notes=())

    def lower(self, traced: Traced) -> Lowered:
        return self._lower_as_sent(traced, self.exported.module)

    def lower_unsharded(self, single: Program, mesh: Mesh) -> Lowered:
        module = self.exported.unsharded
        if not isinstance(module, LoweredModule):
            raise ProgramError(module or "It was not lowered for one.")
        # Without the dump that `sent_program` adds: nobody reads that of one device.
        own = self.exported.options
        options = {k: v for k, v in single.options.items() if k in own}
        single = single.replace(fn=placeholder(module, single.name), options=options)
        return self._lower_as_sent(trace(single, mesh), module, unsharded=True)

    def _lower_as_sent(
        self, traced: Traced, module: LoweredModule, unsharded: bool = False
    ) -> Lowered:
        def change(lowered: Any) -> None:
            put_module(lowered, module)
            if self.callbacks is not None:
                put_callbacks(lowered, self.callbacks.callbacks(unsharded))

        lowered = lower(traced, change=change)
        if _LAPACK in lowered.text:
            _start_lapack()
        return lowered

    def positive(self, traced: Traced) -> tuple[int, ...]:
        # An exported program has no jaxpr to look into.
        return self.exported.positive

    def key(self, lowered: Lowered) -> str:
        # The kernel's own fingerprint, and how often it asked for a new compile.
        return f"{self.exported.key}/{_RECOMPILES.get(self.exported.key, 0)}"

    def compile(self, lowered: Lowered) -> Executable:
        executable = super().compile(lowered)
        self._compiled = self.job.report
        return executable

    def note_roofline(self) -> None:
        """Leaves it to the kernel, which knows where described devices are."""

    def with_capacity(self, memory: Memory) -> Memory:
        if self.exported.capacity is None:
            return super().with_capacity(memory)
        return memory.replace(capacity=self.exported.capacity)  # of a described chip

    def answer(self) -> WorkerAnswer:
        """What is sent back."""
        report, values = self.job.report, None
        if report.outputs is not None and report.error is None:
            values = tuple(value_of(leaf) for leaf in jax.tree.leaves(report.outputs))
        return WorkerAnswer(report.replace(outputs=None), self._compiled, values)


@functools.cache
def _start_lapack() -> None:
    # jax finds LAPACK only when it lowers such an operation itself, else it crashes.
    jax.jit(jax.numpy.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), np.float32))


def value_of(leaf: Any) -> Value:
    """An array, ready to be sent.

    >>> value_of(np.arange(3)).data
    array([0, 1, 2])
    """
    if isinstance(leaf, jax.Array):
        if partial_axes(leaf):
            return Value(None)
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            words = np.asarray(jax.random.key_data(leaf))
            return Value(words, str(jax.random.key_impl(leaf)))
    return Value(np.asarray(leaf))


def sent_program(exported: ExportedProgram, folder: str) -> Program:
    """The program that does what an exported one does, with a dump to a folder."""
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
        # The mesh of arguments that are on none, unless another argument is on it.
        context=MeshContext(current=mesh, abstract=mesh) if exported.free else None,
        mesh_from="context" if exported.free else "given",
    )
