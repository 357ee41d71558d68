"""Compiles and runs programs: in this kernel on its own devices, else in the worker.

Nothing that a program does wrong is raised from here: it ends as the `error` of the Report, with
the stage it happened in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding

from shardviz.core.backend.devices import MOST_SIMULATED, count_of
from shardviz.core.backend.execute import Execution, Failed
from shardviz.core.backend.inputs import value_leaves
from shardviz.core.backend.partitioner import partitioned_text, read_partitioned
from shardviz.core.backend.targets import choose, decide, device_mesh
from shardviz.core.backend.tracing import Traced, trace
from shardviz.core.backend.worker import child
from shardviz.core.backend.worker.export import (
    ExportedProgram,
    abstract_mesh,
    export_program,
    must_run_here,
)
from shardviz.core.backend.worker.process import Pool, workers
from shardviz.core.backend.worker.settings import Settings
from shardviz.core.errors import ProgramError, TargetError
from shardviz.core.format import shown
from shardviz.core.hardware.topology import Topology
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.program import Program
from shardviz.core.program.report import Report
from shardviz.core.program.roofline import roofline
from shardviz.core.program.target import Target, only_described

_PLATFORMS = {"cpu": "cpu", "tpu": "tpu", "gpu": "cuda"}
_SHOWN = ("compile", "place", "run", "check")  # what comes before happens here too
_LOOKS = 5  # the dump is looked at in every so many polls


@dataclass(frozen=True, eq=False)
class Compiled:
    """What a compile in the worker gave, as the cache of this kernel keeps it.

    Attributes:
        report: the worker's report.
        sources: a digest of its source lines.
        compile_s: seconds to compile.
        read_s: seconds to read what the compiler wrote, and to make the report, least times
            included.
    """

    report: Report
    sources: str
    compile_s: float
    read_s: float


class WorkerRun:
    """One walk through the worker.

    Args:
        walk: the walk, with its target noted.
        target: CPU devices or described hardware.
        pool: where the workers are.
    """

    def __init__(self, walk: Execution, target: Target, pool: Pool = workers) -> None:
        self.walk, self.target, self.pool = walk, target, pool
        self.settings = Settings.of(target.platform, target.count or 1, MOST_SIMULATED)
        self.traced: Traced

    def compile(self, cache: ExecutableCache) -> None:
        """From the program to a Report on its executable."""
        parcel, walk = self._pack(run=False), self.walk
        walk.enter("compile")
        made: list[Compiled] = []

        def make() -> Compiled:
            answer = self._ask(child.compile_exported, parcel, True)
            made.append(_compiled(answer, parcel, self.target.topology))
            return made[0]

        found = cache.get_or_make(parcel.key, make, walk.program.name)
        report = found.report
        if found.sources != parcel.sources:
            report = _priced(_moved(report), self.target.topology)
        self._note(report)
        walk.note(cache_hit=not made, compile_s=found.compile_s if made else 0.0)

    def run(self, leaves: list[Any] | None, repeat: int, cache: ExecutableCache) -> None:
        """From the program to checked results.

        Args:
            leaves: the values of the arguments, checked; None for examples.
            repeat: how often to execute.
            cache: where it is looked up whether this was compiled before.
        """
        if self.target.text:
            raise TargetError(only_described(self.target.text))
        parcel, walk = self._pack(run=True), self.walk
        walk.enter("compile")
        new = cache.find(parcel.key) is None
        values = None if leaves is None else [child.value_of(leaf) for leaf in leaves]
        answer = self._ask(child.run_exported, parcel, values, repeat, new)
        if new:
            cache.get_or_make(parcel.key, lambda: _compiled(answer, parcel), walk.program.name)
        self._note(answer.report)
        walk.note(cache_hit=answer.report.cache_hit, compile_s=answer.report.compile_s)
        if answer.values is not None:
            walk.note(outputs=self.traced.out_tree.unflatten(self._arrays(answer.values)))

    def _pack(self, run: bool) -> ExportedProgram:
        walk = self.walk
        walk.enter("trace")
        self.traced = trace(walk.program, abstract_mesh(walk.program.mesh))
        walk.note(effects=self.traced.effects)
        walk.refuse_effects(self.traced)
        walk.enter("lower")
        begun, topology = time.perf_counter(), self.target.topology
        parcel = export_program(
            walk.program,
            self.traced,
            _PLATFORMS[self.target.platform],
            self.target.text,
            run=run,
            capacity=None if topology is None else topology.chip.device_bytes,
        )
        walk.note(key=parcel.key, lower_s=self.traced.seconds + time.perf_counter() - begun)
        return parcel

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> child.WorkerAnswer:
        walk, dump = self.walk, _Dump(self.walk)
        answer = self.pool.call(
            self.settings,
            function,
            *arguments,
            poll=lambda: walk.poll(f"in the stage {walk.stage!r}"),
            progress=self._show,
            look=dump.look,
        )
        if answer.report.error is not None:
            self._note(answer.report)
            raise Failed(answer.report.error)
        return answer

    def _show(self, stage: str) -> None:
        # The stages before are those of unpacking: here they have been.
        if stage in _SHOWN or stage == "worker":
            self.walk.enter(stage)

    def _note(self, report: Report) -> None:
        names = (
            *("partition_s", "place_s", "run_s", "runs_s", "out_layouts"),
            *("partitioned", "collectives", "memory", "cost", "loops", "checks", "mesh"),
            "roofline",
        )
        self.walk.note(notes=(*self.walk.report.notes, *report.notes))
        self.walk.note(**{name: getattr(report, name) for name in names})

    def _arrays(self, values: Sequence[child.Value]) -> list[Any]:
        """The results as jax arrays: placed as in the worker where this kernel has the devices."""
        mesh, arrays = self._mesh_here(), []
        layouts = self.walk.report.out_layouts
        for value, output in zip(values, self.traced.outputs, strict=True):
            (leaf,) = child.leaves([value]) or [None]
            layout = layouts.get(output.name)
            if leaf is None or mesh is None or layout is None or layout.spec is None:
                arrays.append(leaf if leaf is None else jax.numpy.asarray(leaf))
            else:
                arrays.append(jax.device_put(leaf, NamedSharding(mesh, layout.spec.to_jax())))
        return arrays

    def _mesh_here(self) -> Any:
        mesh = self.walk.program.mesh
        if count_of("cpu") < mesh.size:
            return None
        return device_mesh(mesh, choose(f"cpu:{mesh.size}", mesh.size))


class _Dump:
    """Shows what XLA's partitioner made of the program while the worker still compiles."""

    def __init__(self, walk: Execution) -> None:
        self.walk, self.begun = walk, time.perf_counter()
        self.turn, self.done = 0, False

    def look(self, folder: Path) -> None:
        """Reads the dump as soon as it is complete, once."""
        self.turn += 1
        if self.done or self.turn % _LOOKS or self.walk.preview is None:
            return
        text = partitioned_text(folder / child.DUMP)
        if text is None:
            return
        self.done = True
        mesh = self.walk.program.mesh
        found = read_partitioned(child.without_export_call(text), mesh.axis_names, mesh.axis_sizes)
        seconds = time.perf_counter() - self.begun
        self.walk.note(partitioned=found, partition_s=seconds)
        self.walk.preview(self.walk.report)


def _compiled(
    answer: child.WorkerAnswer, parcel: ExportedProgram, topology: Topology | None = None
) -> Compiled:
    begun = time.perf_counter()
    # What a run did is not what a compile gave.
    report = answer.report.replace(
        checks=answer.compile_checks, run_s=None, runs_s=(), place_s=None
    )
    report = _priced(report, topology)
    read_s = answer.read_s + time.perf_counter() - begun
    return Compiled(report, parcel.sources, answer.report.compile_s or 0.0, read_s)


def _priced(report: Report, topology: Topology | None) -> Report:
    """The report with its least times, where it is known what the devices are."""
    if topology is None:
        return report
    return report.replace(roofline=roofline(report, topology, report.mesh))


def _moved(report: Report) -> Report:
    """The report of the same code when it stood on other lines."""
    change = {
        name: None if found is None else tuple(c.moved() for c in found)
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
    """Compiles a program, and reports; nothing is placed or executed.

    Args:
        program: what to compile.
        target: what for: text as `targets.decide` reads it, or None for what suits.
        cache: where executables are kept.
        progress: called with the name of every stage as it begins.
        cancelled: asked between stages, and all the time while the worker is busy; True ends the
            walk, and the worker with it.
        preview: called with the report so far as soon as XLA's partitioner has answered in the
            worker, while it still compiles.

    Raises:
        ProgramError: for what is no Program at all.

    >>> import jax.numpy as jnp
    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> program = Program(jnp.sin, (ArraySpec("x", (8,)),), make_mesh(data=1))
    >>> compile_program(program, cache=ExecutableCache()).ok
    True
    """
    walk = Execution(program, progress, cancelled, preview)
    walk.follow(lambda: _compile(walk, target, cache))
    return walk.report


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
    """Compiles and runs a program, and holds what was predicted against what happened.

    Args:
        program: what to run.
        *values: its arguments; made up, small and always the same where none are given.
        target: as for `compile_program`.
        repeat: how often to execute it.
        cache, progress, cancelled, preview: as for `compile_program`; `cancelled` is also asked
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
    walk = Execution(program, progress, cancelled, preview)
    walk.follow(lambda: _run(walk, values, target, repeat, cache))
    return walk.report


def _compile(walk: Execution, target: Target | str | None, cache: ExecutableCache) -> None:
    walk.begin()
    chosen = _target(walk, target)
    if chosen.worker:
        WorkerRun(walk, chosen).compile(cache)
    else:
        walk.compile_on(device_mesh(walk.program.mesh, chosen), cache)


def _run(
    walk: Execution,
    values: Sequence[Any],
    target: Target | str | None,
    repeat: int,
    cache: ExecutableCache,
) -> None:
    if isinstance(repeat, bool) or not isinstance(repeat, int) or not 1 <= repeat <= MAX_REPEAT:
        raise ProgramError(
            f"repeat says how often to run, from 1 to {MAX_REPEAT:,}; got {shown(repeat)}."
        )
    leaves = value_leaves(walk.program, values)
    walk.begin()
    chosen = _target(walk, target)
    if chosen.worker:
        WorkerRun(walk, chosen).run(leaves, repeat, cache)
    else:
        walk.run_on(device_mesh(walk.program.mesh, chosen), leaves, repeat, cache)


def _target(walk: Execution, target: Target | str | None) -> Target:
    walk.enter("target")
    walk.note(target=target if isinstance(target, str) else "")
    chosen = decide(target, walk.program.mesh.size, lambda: must_run_here(walk.program))
    walk.note(target=str(chosen))
    return chosen
