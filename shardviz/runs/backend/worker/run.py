"""compile_program() and run_program(): in this kernel on its own devices, else in a
worker.

No error of a program is raised from here: it becomes the `error` of the Report, with
its stage.
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
from shardviz.compiled.read_collectives import read_collectives
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import roofline
from shardviz.hardware.targets import Target, only_described
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
from shardviz.runs.backend.runner import (
    Failed,
    Job,
    NotExportable,
    Runner,
    drive,
)
from shardviz.runs.backend.targets import choose, decide, device_mesh
from shardviz.runs.backend.worker import child
from shardviz.runs.backend.worker.export import (
    ExportedProgram,
    TakenCallbacks,
    export_program,
    trace_for_export,
)
from shardviz.runs.cache import ExecutableCache

# What a program is lowered for, by the platform of its target.
_LOWERED_FOR = {"gpu": "cuda"}
_SHOWN = ("worker", "compile", "place", "run", "check")  # the others are the kernel's
# Where a callback raises, XLA ends the run at once, or the other devices wait 40 s and
# it aborts.
_WAIT_AFTER_ERROR = 2.0
#: What a report from another process says of a compile and run.
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
)


class Elsewhere(Runner):
    """Has other processes do a job: sends them the lowered program.

    Args:
        job: what to do.
        platform: the platform of its devices.
    """

    def __init__(self, job: Job, platform: str) -> None:
        super().__init__(job)
        self.platform = _LOWERED_FOR.get(platform, platform)
        self.traced: Traced

    def trace(self) -> Traced:
        self.traced = trace_for_export(self.job.program)
        return self.traced

    def export(self, **options: Any) -> ExportedProgram:
        """The program to be sent; the options are further ones of `export_program`."""
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
        """The user's values, ready to be sent; None for made-up ones."""
        if self.job.leaves is None:
            return None
        return [child.value_of(summed(leaf)) for leaf in self.job.leaves]

    def take_over(self, report: Report, *more: str) -> None:
        """Notes what the others found; the stages before their own were here."""
        job = self.job
        job.add_notes(report.notes)
        job.note(**{name: getattr(report, name) for name in (*FROM_ELSEWHERE, *more)})
        job.note(in_layouts={**job.report.in_layouts, **report.in_layouts})


class InWorker(Elsewhere):
    """Has a worker process do a job, and notes its answer.

    Args:
        job: what to do.
        target: CPU devices or described hardware.
        pool: the workers.
    """

    def __init__(self, job: Job, target: Target, pool: Pool = workers) -> None:
        super().__init__(job, target.platform)
        self.target, self.pool = target, pool
        self.settings = Settings.of(target.platform, target.count or 1, MOST_SIMULATED)
        self.taken = TakenCallbacks()

    def lower(self, traced: Traced) -> ExportedProgram:
        topology = self.target.topology
        if topology is None:
            return self.export(callbacks=self.taken)
        self.traced, note = without_prints(traced)
        self.job.add_notes([note] if note else [])
        return self.export(target=self.target.text, capacity=topology.chip.device_bytes)

    def compile(self, lowered: ExportedProgram) -> None:
        job = self.job
        job.enter("compile")
        if job.repeat is not None:
            return  # it is compiled in the message that has it run
        made: list[Report] = []

        def make() -> Report:
            made.append(self._compiled(self._call(lowered, new=True)))
            return made[0]

        report = self._cache().get_or_make(lowered.key, make, job.program.name)
        self.take_over(report)
        job.note(cache_hit=not made, compile_s=report.compile_s if made else 0.0)

    def run(self, lowered: ExportedProgram, executable: None) -> None:
        job, cache = self.job, self._cache()
        new = cache.find(lowered.key) is None
        answer = self._call(lowered, new)
        if new:
            made = self._compiled(answer)
            cache.get_or_make(lowered.key, lambda: made, job.program.name)
        self.take_over(answer.report, "cache_hit", "compile_s")
        if answer.values is not None:
            leaves = self._arrays(answer.values)
            job.note(outputs=self.traced.out_tree.unflatten(leaves))

    def _cache(self) -> ExecutableCache:
        # The text of a program with callbacks does not say what it calls.
        return ExecutableCache(size=1) if self.taken.program else self.job.cache

    def _call(self, exported: ExportedProgram, new: bool) -> child.WorkerAnswer:
        job, dump = self.job, _DumpReader(self.job)
        server = CallbackServer(self.taken.program, self.taken.unsharded)

        def poll() -> None:
            job.poll(CancelledIn(job.stage))
            if server.seconds_since_error > _WAIT_AFTER_ERROR:
                raise Failed(_callback_failure(server.raised))

        def enter(stage: str) -> None:
            # The stages before them are those of the exported program, and over here.
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
            # XLA tells only the words; the line is that of the function here.
            if server.raised is not None:
                error = replace(error, source=source_of(server.raised) or error.source)
            raise Failed(error)
        return answer

    def _compiled(self, answer: child.WorkerAnswer) -> Report:
        """What the worker's compile found, with the roofline where chips are known."""
        report, topology = answer.compiled, self.target.topology
        assert report is not None  # else the answer has an error
        if topology is None:
            return report
        return report.replace(roofline=roofline(report, topology, report.mesh))

    @copies_allowed()
    def _arrays(self, values: Sequence[child.Value]) -> list[Any]:
        """The results as jax arrays, placed as in the worker if this kernel has
        devices.
        """
        mesh, layouts = self.job.program.mesh, self.job.report.out_layouts
        # Without devices of its own the kernel has the results on one device.
        on = None
        if count_of("cpu") >= mesh.size:
            on = device_mesh(mesh, choose(f"cpu:{mesh.size}", mesh.size))
        arrays: list[Any] = []
        for value, output in zip(values, self.traced.outputs, strict=True):
            leaf = value.leaf()
            layout = layouts.get(output.name)
            if leaf is None:
                arrays.append(None)
            elif on is None or layout is None or layout.spec is None:
                arrays.append(jax.device_put(leaf))
            elif layout.mesh.size != mesh.size:
                # A program that reads no argument runs on fewer devices.
                arrays.append(jax.device_put(leaf))
            else:
                # It may be on another mesh of the same devices.
                there = mesh_of(list(on.devices.flat), layout.mesh)
                sharding = NamedSharding(there, layout.spec.to_jax())
                arrays.append(jax.device_put(leaf, sharding))
        return arrays


class InKernel(Here):
    """Does a job in this kernel, after a trial of what may end the process."""

    def before_compile(self, lowered: Lowered) -> None:
        """Tries programs with partial sums in the worker first: XLA aborts at some."""
        program = self.job.program
        few = 1 < program.mesh.size <= MOST_SIMULATED
        if "unreduced={" not in lowered.text or not few:
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
            pass  # it is compiled here, which may say more


class _DumpReader:
    """Notes what XLA's partitioner made of the program while the worker still compiles."""

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
        assert self.job.preview is not None  # else it is done from the beginning
        self.job.preview(self.job.report)


def _callback_failure(error: BaseException | None) -> Failure:
    """The failure of a run whose callback raised, and which XLA did not end by itself."""
    error = error or RuntimeError()
    return Failure("run", in_words(error), source_of(error), CallbackRaised())


def compile_program(
    program: Program,
    target: Target | str | None = None,
    *,
    cache: ExecutableCache,
    **options: Any,
) -> Report:
    """Compiles a program; nothing is placed or executed.

    Args:
        program: what to compile.
        target: what for: text as `targets.decide` parses it; None for this kernel's
            devices where there are enough, else simulated ones.
        cache: where executables are kept.
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
    *values: Any,
    target: Target | str | None = None,
    repeat: int = 1,
    cache: ExecutableCache,
    **options: Any,
) -> Report:
    """Compiles and runs a program, and checks what was predicted against what happened.

    Args:
        program: what to run.
        *values: its arguments; where none are given, small made-up values, the same
            each time.
        target, cache: as for `compile_program`.
        repeat: how often to execute it.
        **options: further ones of `Job`.

    >>> import jax.numpy as jnp
    >>> from shardviz.base.array_spec import ArraySpec
    >>> from shardviz.base.mesh import make_mesh
    >>> program = Program(jnp.sin, (ArraySpec("x", (8,)),), make_mesh(data=1))
    >>> run_program(program, cache=ExecutableCache()).outputs.shape
    (8,)
    """
    job = Job(program, cache=cache, repeat=repeat, values=values, **options)
    return drive(job, lambda job: runner_for(job, target)).replace(of=program)


def runner_for(job: Job, target: Target | str | None) -> Runner:
    """The runner for a target: this kernel or a worker."""
    job.note(target=target if isinstance(target, str) else "")
    chosen = decide(target, job.program.mesh.size)
    job.note(target=str(chosen), on=chosen)
    if chosen.text and job.repeat is not None:
        raise only_described(chosen.text)
    if chosen.worker:
        refuse_in_callback(worker=True)
        return InWorker(job, chosen)
    return here(job, chosen)


def here(job: Job, target: Target) -> Runner:
    """The runner for devices of this kernel."""
    refuse_in_callback(worker=False)
    mesh = device_mesh(job.program.mesh, target)
    join(job, mesh)
    return InKernel(job, mesh)
