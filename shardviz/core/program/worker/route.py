"""The way of a compile or run through the worker, told in the Report as if it happened here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding

from shardviz.core.errors import TargetError
from shardviz.core.layout.topology import Topology
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.compiling.partitioner import partitioned_text, read_partitioned
from shardviz.core.program.compiling.tracing import Traced, trace
from shardviz.core.program.costs.roofline import roofline
from shardviz.core.program.devices.attached import MOST, count_of
from shardviz.core.program.report import Report
from shardviz.core.program.running.walk import Failed, Walk
from shardviz.core.program.targets import Target, choose, device_mesh, only_described
from shardviz.core.program.worker import child
from shardviz.core.program.worker.parcel import Parcel, abstract_mesh, pack
from shardviz.core.program.worker.pool import Pool, workers
from shardviz.core.program.worker.settings import Settings

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


class Route:
    """One walk through the worker.

    Args:
        walk: the walk, with its target noted.
        target: CPU devices or described hardware.
        pool: where the workers are.
    """

    def __init__(self, walk: Walk, target: Target, pool: Pool = workers) -> None:
        self.walk, self.target, self.pool = walk, target, pool
        self.settings = Settings.of(target.platform, target.count or 1, MOST)
        self.traced: Traced

    def compile(self, cache: ExecutableCache) -> None:
        """From the program to a Report on its executable."""
        parcel, walk = self._pack(run=False), self.walk
        walk.enter("compile")
        made: list[Compiled] = []

        def make() -> Compiled:
            answer = self._ask(child.compile_parcel, parcel, True)
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
        answer = self._ask(child.run_parcel, parcel, values, repeat, new)
        if new:
            cache.get_or_make(parcel.key, lambda: _compiled(answer, parcel), walk.program.name)
        self._note(answer.report)
        walk.note(cache_hit=answer.report.cache_hit, compile_s=answer.report.compile_s)
        if answer.values is not None:
            walk.note(outputs=self.traced.out_tree.unflatten(self._arrays(answer.values)))

    def _pack(self, run: bool) -> Parcel:
        walk = self.walk
        walk.enter("trace")
        self.traced = trace(walk.program, abstract_mesh(walk.program.mesh))
        walk.note(effects=self.traced.effects)
        walk.refuse_effects(self.traced)
        walk.enter("lower")
        begun, topology = time.perf_counter(), self.target.topology
        parcel = pack(
            walk.program,
            self.traced,
            _PLATFORMS[self.target.platform],
            self.target.text,
            run=run,
            capacity=None if topology is None else topology.chip.device_bytes,
        )
        walk.note(key=parcel.key, lower_s=self.traced.seconds + time.perf_counter() - begun)
        return parcel

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> child.Answer:
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

    def __init__(self, walk: Walk) -> None:
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
        found = read_partitioned(child.at_home(text), mesh.axis_names, mesh.axis_sizes)
        seconds = time.perf_counter() - self.begun
        self.walk.note(partitioned=found, partition_s=seconds)
        self.walk.preview(self.walk.report)


def _compiled(answer: child.Answer, parcel: Parcel, topology: Topology | None = None) -> Compiled:
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
