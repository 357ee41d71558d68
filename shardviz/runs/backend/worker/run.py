"""compile_program() and run_program(), on this kernel's devices or in a worker.

A program's errors are not raised: each becomes the `error` of the Report, with the
stage in which it occurred.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding

from shardviz.base.errors import TargetError
from shardviz.base.typing import PyTree
from shardviz.compiled.read_collectives import read_collectives
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import roofline
from shardviz.hardware.targets import Target, TargetLike, only_described
from shardviz.programs.backend.devices import MOST_SIMULATED, count_of, mesh_of
from shardviz.programs.backend.failures import in_words, source_of
from shardviz.programs.backend.retraced import without_prints
from shardviz.programs.backend.trace import Traced
from shardviz.programs.backend.worker.exits import WorkerError
from shardviz.programs.backend.worker.messages import CallbackServer, refuse_in_callback
from shardviz.programs.backend.worker.process import (
    Pool,
    Settings,
    workers,
)
from shardviz.programs.failure import CallbackRaised, CancelledIn, Failure
from shardviz.programs.program import Program
from shardviz.runs.backend.agree import join
from shardviz.runs.backend.compile import Lowered, compiled_names
from shardviz.runs.backend.here import Here
from shardviz.runs.backend.inputs import copies_allowed, summed
from shardviz.runs.backend.partitioner import partitioned_module
from shardviz.runs.backend.profiling import ONE_BY_ONE
from shardviz.runs.backend.runner import (
    Failed,
    Job,
    NotExportable,
    Runner,
    drive,
)
from shardviz.runs.backend.targets import choose, decide, device_mesh
from shardviz.runs.backend.worker import child
from shardviz.runs.backend.worker.early import prepare
from shardviz.runs.backend.worker.export import (
    ExportedProgram,
    ProgramCallbacks,
    export_program,
    trace_for_export,
)
from shardviz.runs.cache import ExecutableCache

# Target platform -> jax's name of the lowering platform, if different.
_LOWERED_FOR = {"gpu": "cuda"}
# The worker's stages that the user sees; the kernel itself shows earlier stages.
_SHOWN = ("worker", "compile", "place", "run", "check")
# Seconds to wait after a callback raises: XLA either ends the run immediately, or
# aborts only after the other devices have waited for 40 s.
_WAIT_AFTER_ERROR = 2.0
#: Report attributes that another process sets.
FROM_ELSEWHERE = (
    "partition_s",
    "place_s",
    "run_s",
    "runs_s",
    "out_layouts",
    "partitioned",
    "collectives",
    "memory",
    "cost",
    "loops",
    "checks",
    "mesh",
    "roofline",
    "measured",
)


class Elsewhere(Runner[ExportedProgram, None]):
    """Runs a job in other processes, which receive the lowered program.

    Args:
        job: the job.
        platform: platform of these processes' devices.
    """

    def __init__(self, job: Job, platform: str) -> None:
        super().__init__(job)
        self.platform = _LOWERED_FOR.get(platform, platform)
        self.traced: Traced

    def trace(self) -> Traced:
        self.traced = trace_for_export(self.job.program)
        return self.traced

    def export(self, **options: Any) -> ExportedProgram:
        """Exports the program; takes further options of `export_program`."""
        run = self.job.repeat is not None and self.job.compare
        return export_program(
            self.job.program, self.traced, self.platform, run=run, **options
        )

    def lower(self, traced: Traced) -> ExportedProgram:
        return self.export()

    def key(self, lowered: ExportedProgram) -> str:
        return lowered.key

    @copies_allowed()
    def values(self) -> list[child.Value] | None:
        """Packs the user's values to send them; None for generated values."""
        if self.job.leaves is None:
            return None
        return [child.value_of(summed(leaf)) for leaf in self.job.leaves]

    def take_over(self, report: Report, *names: str) -> None:
        """Copies the results of the other processes into the job's report.

        Args:
            report: the other processes' report.
            *names: the attributes to copy besides FROM_ELSEWHERE.
        """
        job = self.job
        job.add_notes(report.notes)
        # Also for a failed report: figures of a preview would otherwise stay.
        reached = report.without_error
        job.note(**{name: getattr(reached, name) for name in (*FROM_ELSEWHERE, *names)})
        job.note(in_layouts={**job.report.in_layouts, **report.in_layouts})


class InWorker(Elsewhere):
    """Runs a job in a worker process, and copies the answer to the report.

    Args:
        job: the job.
        target: simulated CPU devices or described hardware.
        pool: the worker processes.
    """

    def __init__(self, job: Job, target: Target, pool: Pool = workers) -> None:
        super().__init__(job, target.platform)
        self.target, self.pool = target, pool
        self.settings = Settings.of(target.platform, target.count or 1, MOST_SIMULATED)
        self.callbacks = ProgramCallbacks()
        pool.start(self.settings, prepare)

    def lower(self, traced: Traced) -> ExportedProgram:
        topology = self.target.topology
        if topology is None:
            return self.export(callbacks=self.callbacks)
        self.traced, note = without_prints(traced)
        self.job.add_notes([note] if note else [])
        return self.export(target=self.target.text, capacity=topology.chip.device_bytes)

    def compile(self, lowered: ExportedProgram) -> None:
        job = self.job
        job.enter("compile")
        if job.repeat is not None:
            return  # `run` will compile and run with a single message
        new: list[Report] = []

        def compile_new() -> Report:
            new.append(self._compiled(self._call(lowered, new=True)))
            return new[0]

        report = self._cache().get_or_make(lowered.key, compile_new, job.program.name)
        self.take_over(report)
        job.note(cache_hit=not new, compile_s=report.compile_s if new else 0.0)

    def run(self, lowered: ExportedProgram, executable: None) -> None:
        job, cache = self.job, self._cache()
        new = cache.find(lowered.key) is None
        answer = self._call(lowered, new)
        if new:
            compiled = self._compiled(answer)
            cache.get_or_make(lowered.key, lambda: compiled, job.program.name)
        self.take_over(answer.report, "cache_hit", "compile_s")
        if answer.values is not None:
            leaves = self._arrays(answer.values)
            job.note(outputs=self.traced.out_tree.unflatten(leaves))

    def _cache(self) -> ExecutableCache:
        # Don't cache programs with callbacks: their text lacks the called functions.
        return ExecutableCache(size=1) if self.callbacks.program else self.job.cache

    def _call(self, exported: ExportedProgram, new: bool) -> child.WorkerAnswer:
        job, dump = self.job, _DumpReader(self.job)
        server = CallbackServer(self.callbacks.program, self.callbacks.unsharded)

        def poll() -> None:
            job.poll(CancelledIn(job.stage))
            if server.seconds_since_error > _WAIT_AFTER_ERROR:
                raise Failed(_callback_failure(server.raised))

        def enter(stage: str) -> None:
            # Skip the other stages, which this kernel has already entered for its own
            # trace and lowering.
            if stage in _SHOWN and stage != job.stage:
                job.enter(stage)

        with server.listen() as address:
            try:
                answer = self.pool.call(
                    self.settings,
                    child.do_exported,
                    exported,
                    address,
                    new,
                    job.repeat,
                    self.values(),
                    job.measure,
                    poll=poll,
                    progress=enter,
                    poll_folder=dump.poll,
                )
            except WorkerError:
                if server.raised is None:
                    raise
                raise Failed(_callback_failure(server.raised)) from None
        if (error := answer.report.error) is not None:
            self.take_over(answer.report, "compile_s")
            # XLA reports only the message; the kernel also knows the callback's line.
            if server.raised is not None:
                error = replace(error, source=source_of(server.raised) or error.source)
            raise Failed(error)
        return answer

    def _compiled(self, answer: child.WorkerAnswer) -> Report:
        """Returns the report of the worker's compile, with a roofline if possible."""
        report, topology = answer.compiled, self.target.topology
        assert report is not None  # without an error, there is a report
        if topology is None:
            return report
        return report.replace(roofline=roofline(report, topology, report.mesh))

    @copies_allowed()
    def _arrays(self, values: Sequence[child.Value]) -> list[jax.Array | None]:
        """Converts results to jax arrays; shards them if there are enough devices."""
        mesh, layouts = self.job.program.mesh, self.job.report.out_layouts
        # If this kernel has too few devices, put the results on one device.
        device_grid = None
        if count_of("cpu") >= mesh.size:
            device_grid = device_mesh(mesh, choose(f"cpu:{mesh.size}", mesh.size))
        arrays: list[jax.Array | None] = []
        for value, output in zip(values, self.traced.outputs, strict=True):
            leaf = value.leaf()
            layout = layouts.get(output.name)
            if leaf is None:
                arrays.append(None)
            elif device_grid is None or layout is None or layout.spec is None:
                arrays.append(jax.device_put(leaf))
            elif layout.mesh.size != mesh.size:
                # jax ran the program on fewer devices, because it reads no argument.
                arrays.append(jax.device_put(leaf))
            else:
                # An output's layout can have another mesh of the same devices.
                layout_mesh = mesh_of(list(device_grid.devices.flat), layout.mesh)
                sharding = NamedSharding(layout_mesh, layout.spec.to_jax())
                arrays.append(jax.device_put(leaf, sharding))
        return arrays


class InKernel(Here):
    """Runs a job in this kernel, after trying risky programs in a worker."""

    def before_compile(self, lowered: Lowered) -> None:
        """Compiles unreduced programs in a worker first, because XLA may abort."""
        program = self.job.program
        can_be_simulated = 1 < program.mesh.size <= MOST_SIMULATED
        if "unreduced={" not in lowered.text or not can_be_simulated:
            return
        trial = Job(
            program, cache=ExecutableCache(size=1), cancelled=self.job.cancelled
        )
        target = decide(f"cpu:{program.mesh.size}", program.mesh.size)
        runner = InWorker(trial, target)
        try:
            runner.compile(runner.lower(runner.trace()))
        except WorkerError as error:
            if error.crashed:
                raise TargetError(
                    "XLA ends the process that compiles this program, so it was not compiled in"
                    f" this kernel. It was tried with simulated devices first. {error}"
                ) from error
        except (NotExportable, Failed):
            pass  # compiling in this kernel may give a better error


class _DumpReader:
    """Reports the partitioned module's collectives while the worker still compiles."""

    def __init__(self, job: Job) -> None:
        self.job, self.begun = job, time.perf_counter()
        self.done = job.preview is None

    def poll(self, folder: Path) -> None:
        """Reads the dump once, as soon as it is complete."""
        module = None if self.done else partitioned_module(folder / child.DUMP)
        if module is None:
            return
        self.done = True
        program = self.job.program
        collectives = read_collectives(
            module,
            program.mesh.axis_names,
            program.mesh.axis_sizes,
            arguments=compiled_names(program),
        )
        seconds = time.perf_counter() - self.begun
        self.job.note(partitioned=collectives, partition_s=seconds)
        assert self.job.preview is not None  # without a preview, `done` is always True
        self.job.preview(self.job.report)


def _callback_failure(error: BaseException | None) -> Failure:
    """Creates the failure for a callback that raised without XLA ending the run."""
    error = error or RuntimeError()
    return Failure("run", in_words(error), source_of(error), CallbackRaised())


def compile_program(
    program: Program,
    target: TargetLike = None,
    *,
    cache: ExecutableCache,
    **options: Any,
) -> Report:
    """Compiles a program; nothing is placed or executed.

    Args:
        program: the program.
        target: the devices, as text for `targets.decide`; None for this kernel's
            devices if there are enough, else simulated ones.
        cache: the cache for executables.
        **options: `progress`, `cancelled` and `preview` of `Job`.

    >>> import jax.numpy as jnp
    >>> from shardviz.base.array_spec import ArraySpec
    >>> from shardviz.base.mesh import make_mesh
    >>> program = Program(jnp.sin, (ArraySpec("x", (8,)),), make_mesh(data=1))
    >>> compile_program(program, cache=ExecutableCache()).ok
    True
    """
    job = Job(program, cache=cache, **options)
    return drive(job, lambda job: runner_for(job, target)).replace(of=program)


def run_program(
    program: Program,
    *values: PyTree,
    target: TargetLike = None,
    repeat: int = 1,
    cache: ExecutableCache,
    **options: Any,
) -> Report:
    """Compiles and runs a program, and checks the predictions against the run.

    Args:
        program: the program.
        *values: the program's arguments; by default small values are generated, the
            same each time.
        target, cache: as for `compile_program`.
        repeat: number of executions.
        **options: further options of `Job`.

    >>> import jax.numpy as jnp
    >>> from shardviz.base.array_spec import ArraySpec
    >>> from shardviz.base.mesh import make_mesh
    >>> program = Program(jnp.sin, (ArraySpec("x", (8,)),), make_mesh(data=1))
    >>> run_program(program, cache=ExecutableCache()).outputs.shape
    (8,)
    """
    job = Job(program, cache=cache, repeat=repeat, values=values, **options)
    return drive(job, lambda job: runner_for(job, target)).replace(of=program)


def runner_for(job: Job, target: TargetLike) -> InWorker | InKernel:
    """Chooses the runner for a target: this kernel or a worker."""
    job.note(target=target if isinstance(target, str) else "")
    chosen = decide(target, job.program.mesh.size)
    job.note(target=str(chosen), on=chosen)
    if chosen.text and job.repeat is not None:
        raise only_described(chosen.text)
    if chosen.worker:
        refuse_in_callback(worker=True)
        return InWorker(job, chosen)
    return here(job, chosen)


def here(job: Job, target: Target) -> InKernel:
    """Creates the runner for this kernel's devices."""
    refuse_in_callback(worker=False)
    mesh = device_mesh(job.program.mesh, target)
    if job.measure and target.platform == "gpu":
        options = {**ONE_BY_ONE, **job.program.options}
        job.program = job.program.replace(options=options)
    join(job, mesh)
    return InKernel(job, mesh)
