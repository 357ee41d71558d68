"""compile_program() and run_program(): in this kernel on its own devices, else in a worker.

No error of a program is raised from here: it becomes the `error` of the Report, with its stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from shardviz.core.backend.compile import Lowered, compiled_names
from shardviz.core.backend.devices import MOST_SIMULATED, count_of
from shardviz.core.backend.execute import Execution, Failed
from shardviz.core.backend.failures import in_words, source_of
from shardviz.core.backend.inputs import copies_allowed, summed, value_leaves
from shardviz.core.backend.partitioner import partitioned_text
from shardviz.core.backend.rendezvous import store
from shardviz.core.backend.targets import choose, decide, device_mesh
from shardviz.core.backend.tracing import Traced, without_prints
from shardviz.core.backend.worker import child
from shardviz.core.backend.worker.export import (
    ExportedProgram,
    NotExportable,
    TakenCallbacks,
    export_program,
    trace_for_export,
)
from shardviz.core.backend.worker.messages import CallbackServer, refuse_in_callback
from shardviz.core.backend.worker.process import Pool, Settings, WorkerError, workers
from shardviz.core.errors import ProgramError, ShardvizError, TargetError
from shardviz.core.format import shown
from shardviz.core.hardware.topology import Topology
from shardviz.core.hlo.collectives import read_collectives
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.program import Program, Target, only_described
from shardviz.core.program.report import Failure, Report
from shardviz.core.program.roofline import roofline

_PLATFORMS = {"cpu": "cpu", "tpu": "tpu", "gpu": "cuda"}
_SHOWN = ("compile", "place", "run", "check")  # the stages before happen in the kernel
# Where a callback raises, XLA ends the run at once, or the other devices wait 40 s and it aborts.
_WAIT_AFTER_ERROR = 2.0
_POLLS_PER_READ = 5  # the dump is read in every fifth poll


@dataclass(frozen=True, eq=False)
class Compiled:
    """The result of a compile in the worker, as the cache of this kernel keeps it.

    Attributes:
        report: the worker's report.
        sources: a digest of its source lines.
        compile_s: seconds to compile.
        read_s: seconds to read what the compiler wrote and to make the report, roofline included.
    """

    report: Report
    sources: str
    compile_s: float
    read_s: float


class WorkerClient:
    """Has a worker compile or run one program, and notes its answer.

    Args:
        execution: where the answer is noted.
        target: CPU devices or described hardware.
        pool: the workers.
    """

    def __init__(self, execution: Execution, target: Target, pool: Pool = workers) -> None:
        self.execution, self.target, self.pool = execution, target, pool
        self.settings = Settings.of(target.platform, target.count or 1, MOST_SIMULATED)
        self.taken = TakenCallbacks()
        self.traced: Traced

    def compile(self, cache: ExecutableCache) -> None:
        """From the program to a Report on its executable."""
        exported, execution = self._export(run=False), self.execution
        execution.enter("compile")
        made: list[Compiled] = []
        if self.taken.program:
            cache = ExecutableCache(size=1)  # the text does not say what it calls

        def make() -> Compiled:
            answer = self._call(child.compile_exported, exported, True)
            made.append(_compiled(answer, exported, self.target.topology))
            return made[0]

        found = cache.get_or_make(exported.key, make, execution.program.name)
        report = found.report
        if found.sources != exported.sources:
            report = _with_roofline(_without_sources(report), self.target.topology)
        self._note(report)
        execution.note(cache_hit=not made, compile_s=found.compile_s if made else 0.0)

    def run(self, leaves: list[Any] | None, repeat: int, cache: ExecutableCache) -> None:
        """From the program to checked results.

        Args:
            leaves: the values of the arguments, checked; None for examples.
            repeat: how often to execute.
            cache: says whether the program was compiled before.
        """
        if self.target.text:
            raise TargetError(only_described(self.target.text))
        exported, execution = self._export(run=True), self.execution
        execution.enter("compile")
        if self.taken.program:
            cache = ExecutableCache(size=1)
        new = cache.find(exported.key) is None
        with copies_allowed():
            values = None if leaves is None else [child.value_of(summed(leaf)) for leaf in leaves]
        answer = self._call(child.run_exported, exported, values, repeat, new)
        if new:
            cache.get_or_make(
                exported.key, lambda: _compiled(answer, exported), execution.program.name
            )
        self._note(answer.report)
        execution.note(cache_hit=answer.report.cache_hit, compile_s=answer.report.compile_s)
        if answer.values is not None:
            execution.note(outputs=self.traced.out_tree.unflatten(self._arrays(answer.values)))

    def _export(self, run: bool) -> ExportedProgram:
        execution = self.execution
        execution.enter("trace")
        self.traced = trace_for_export(execution.program)
        execution.note_traced(self.traced)
        execution.refuse_effects(self.traced)
        topology = self.target.topology
        if topology is not None:
            self.traced, note = without_prints(self.traced)
            execution.note(notes=(*execution.report.notes, *filter(None, [note])))
        execution.enter("lower")
        begun = time.perf_counter()
        exported = export_program(
            execution.program,
            self.traced,
            _PLATFORMS[self.target.platform],
            self.target.text,
            run=run,
            capacity=None if topology is None else topology.chip.device_bytes,
            callbacks=self.taken if topology is None else None,
        )
        execution.note(key=exported.key, lower_s=self.traced.seconds + time.perf_counter() - begun)
        return exported

    def _call(
        self, function: Callable[..., Any], exported: ExportedProgram, *arguments: Any
    ) -> child.WorkerAnswer:
        execution, dump = self.execution, _DumpReader(self.execution)
        server = CallbackServer(self.taken.program, self.taken.unsharded)

        def poll() -> None:
            execution.poll(f"in the stage {execution.stage!r}")
            if server.seconds_since_error > _WAIT_AFTER_ERROR:
                raise Failed(_callback_failure(server.raised))

        with server.listen() as address:
            try:
                answer = self.pool.call(
                    self.settings,
                    function,
                    exported,
                    address,
                    *arguments,
                    poll=poll,
                    progress=self._enter_stage,
                    poll_folder=dump.poll,
                )
            except WorkerError:
                if server.raised is None:
                    raise
                raise Failed(_callback_failure(server.raised)) from None
        if (error := answer.report.error) is not None:
            self._note(answer.report)
            execution.note(compile_s=answer.report.compile_s)
            if server.raised is not None:
                error = replace(error, source=source_of(server.raised) or error.source)
            raise Failed(error)
        return answer

    def _enter_stage(self, stage: str) -> None:
        # The stages before them are those of the exported program: the kernel is past its own.
        if stage in _SHOWN or stage == "worker":
            self.execution.enter(stage)

    def _note(self, report: Report) -> None:
        names = (
            *("partition_s", "place_s", "run_s", "runs_s", "out_layouts"),
            *("partitioned", "collectives", "memory", "cost", "loops", "checks", "mesh"),
            "roofline",
        )
        self.execution.note(notes=(*self.execution.report.notes, *report.notes))
        self.execution.note(**{name: getattr(report, name) for name in names})
        in_layouts = {**self.execution.report.in_layouts, **report.in_layouts}
        self.execution.note(in_layouts=in_layouts)

    @copies_allowed()
    def _arrays(self, values: Sequence[child.Value]) -> list[Any]:
        """The results as jax arrays, placed as in the worker where this kernel has the devices."""
        mesh, arrays = self._mesh_here(), []
        layouts = self.execution.report.out_layouts
        for value, output in zip(values, self.traced.outputs, strict=True):
            (leaf,) = child.leaves([value]) or [None]
            layout = layouts.get(output.name)
            if leaf is None or mesh is None or layout is None or layout.spec is None:
                arrays.append(leaf if leaf is None else jax.device_put(leaf))
            else:
                arrays.append(jax.device_put(leaf, NamedSharding(mesh, layout.spec.to_jax())))
        return arrays

    def _mesh_here(self) -> Any:
        mesh = self.execution.program.mesh
        if count_of("cpu") < mesh.size:
            return None
        return device_mesh(mesh, choose(f"cpu:{mesh.size}", mesh.size))


class KernelExecution(Execution):
    """One compile or run that the user asked for; in this kernel where the devices are attached."""

    def before_compile(self, lowered: Lowered) -> None:
        """Tries programs with partial sums in the worker first: XLA aborts at some of them.

        Raises:
            TargetError: where it ended the worker, as it would have ended this process.
        """
        program = self.program
        if "unreduced={" not in lowered.text or not 1 < program.mesh.size <= MOST_SIMULATED:
            return
        trial = Execution(program, None, self._cancelled)
        client = WorkerClient(trial, decide(f"cpu:{program.mesh.size}", program.mesh.size))
        try:
            client.compile(ExecutableCache(size=1))
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

    def __init__(self, execution: Execution) -> None:
        self.execution, self.begun = execution, time.perf_counter()
        self.polls, self.done = 0, False

    def poll(self, folder: Path) -> None:
        """Reads the dump once, as soon as it is complete."""
        self.polls += 1
        if self.done or self.polls % _POLLS_PER_READ or self.execution.preview is None:
            return
        text = partitioned_text(folder / child.DUMP)
        if text is None:
            return
        self.done = True
        program = self.execution.program
        mesh, names = program.mesh, compiled_names(program)
        found = read_collectives(text, mesh.axis_names, mesh.axis_sizes, arguments=names)
        seconds = time.perf_counter() - self.begun
        self.execution.note(partitioned=found, partition_s=seconds)
        self.execution.preview(self.execution.report)


def _callback_failure(error: BaseException | None) -> Failure:
    """The failure of a run whose callback raised, and which XLA did not end by itself."""
    words = in_words(error or RuntimeError())
    return Failure(
        "run",
        f"A callback raised {words}. XLA cannot end a run where the other devices wait for the one"
        " that called, so the worker process was ended.",
        source_of(error) if error else "",
    )


def _compiled(
    answer: child.WorkerAnswer, exported: ExportedProgram, topology: Topology | None = None
) -> Compiled:
    begun = time.perf_counter()
    # Without what a run adds.
    report = answer.report.replace(
        checks=answer.compile_checks, run_s=None, runs_s=(), place_s=None
    )
    report = _with_roofline(report, topology)
    read_s = answer.read_s + time.perf_counter() - begun
    return Compiled(report, exported.sources, answer.report.compile_s or 0.0, read_s)


def _with_roofline(report: Report, topology: Topology | None) -> Report:
    """The report with its roofline, where the chips are known."""
    if topology is None:
        return report
    return report.replace(roofline=roofline(report, topology, report.mesh))


def _without_sources(report: Report) -> Report:
    """The report of the same code compiled from other lines, without source lines."""
    change = {
        name: None if found is None else tuple(c.without_source() for c in found)
        for name, found in (
            ("collectives", report.collectives),
            ("partitioned", report.partitioned),
        )
    }
    return report.replace(**change)


MAX_REPEAT = 1_000_000


def compile_program(
    program: Program,
    target: Target | str | None = None,
    *,
    cache: ExecutableCache,
    progress: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    preview: Callable[[Report], None] | None = None,
) -> Report:
    """Compiles a program; nothing is placed or executed.

    Args:
        program: what to compile.
        target: what for: text as `targets.decide` parses it; None for this kernel's devices where
            there are enough, else simulated ones.
        cache: where executables are kept.
        progress: called with the name of every stage as it begins.
        cancelled: called between stages, and repeatedly while the worker is busy; True ends the
            execution and the worker.
        preview: called with the report so far as soon as XLA's partitioner is done in the worker,
            which compiles on.

    Raises:
        ProgramError: for what is no Program at all.

    >>> import jax.numpy as jnp
    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> program = Program(jnp.sin, (ArraySpec("x", (8,)),), make_mesh(data=1))
    >>> compile_program(program, cache=ExecutableCache()).ok
    True
    """
    execution = KernelExecution(program, progress, cancelled, preview)
    execution.follow(lambda: _compile(execution, target, cache))
    return execution.report


def run_program(
    program: Program,
    *values: Any,
    target: Target | str | None = None,
    repeat: int = 1,
    cache: ExecutableCache,
    progress: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    preview: Callable[[Report], None] | None = None,
) -> Report:
    """Compiles and runs a program, and checks what was predicted against what happened.

    Args:
        program: what to run.
        *values: its arguments; where none are given, small made-up values, the same each time.
        target: as for `compile_program`.
        repeat: how often to execute it.
        cache, progress, cancelled, preview: as for `compile_program`; `cancelled` is also called
            between repeats.

    Raises:
        ProgramError: for what is no Program at all.

    >>> import jax.numpy as jnp
    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> program = Program(jnp.sin, (ArraySpec("x", (8,)),), make_mesh(data=1))
    >>> run_program(program, cache=ExecutableCache()).outputs.shape
    (8,)
    """
    execution = KernelExecution(program, progress, cancelled, preview)
    execution.follow(lambda: _run(execution, values, target, repeat, cache))
    return execution.report


def _compile(execution: Execution, target: Target | str | None, cache: ExecutableCache) -> None:
    execution.begin()

    def here(mesh: Mesh) -> None:
        execution.join(mesh, "sv.compile")
        execution.compile_on(mesh, cache)

    _follow(execution, target, lambda client: client.compile(cache), here)


def _run(
    execution: Execution,
    values: Sequence[Any],
    target: Target | str | None,
    repeat: int,
    cache: ExecutableCache,
) -> None:
    check_repeat(repeat)
    leaves: list[Any] | None = None
    refused: ShardvizError | None = None
    try:
        leaves = value_leaves(execution.program, values)
        execution.begin()
    except ShardvizError as error:
        if store() is None:
            raise
        refused = error  # the other processes are to know

    def here(mesh: Mesh) -> None:
        execution.join(mesh, "sv.run")
        if refused is not None:
            execution.stage = "program"
            raise refused
        execution.run_on(mesh, leaves, repeat, cache)

    def in_worker(client: WorkerClient) -> None:
        if refused is not None:
            execution.stage = "program"
            raise refused
        client.run(leaves, repeat, cache)

    _follow(execution, target, in_worker, here)


def check_repeat(repeat: Any) -> None:
    """Refuses what does not say how often to run.

    Raises:
        ProgramError: for anything but a number from 1 to MAX_REPEAT.
    """
    if isinstance(repeat, bool) or not isinstance(repeat, int) or not 1 <= repeat <= MAX_REPEAT:
        raise ProgramError(
            f"repeat says how often to run, from 1 to {MAX_REPEAT:,}; got {shown(repeat)}."
        )


def _follow(
    execution: Execution,
    target: Target | str | None,
    in_worker: Callable[[WorkerClient], None],
    here: Callable[[Mesh], Any],
) -> None:
    """Decides on the target, and goes on in the worker or here."""
    execution.enter("target")
    execution.note(target=target if isinstance(target, str) else "")
    mesh = execution.program.mesh
    chosen = decide(target, mesh.size)
    execution.note(target=str(chosen))
    if chosen.worker:
        refuse_in_callback(worker=True)
        try:
            return in_worker(WorkerClient(execution, chosen))
        except NotExportable:
            # What cannot be sent runs here, where the user has made jax simulate the devices.
            if chosen.text or count_of("cpu") < mesh.size:
                raise
            chosen = choose(f"cpu:{mesh.size}", mesh.size)
    refuse_in_callback(worker=False)
    here(device_mesh(mesh, chosen))
    return None
