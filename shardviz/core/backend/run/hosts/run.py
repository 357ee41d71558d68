"""Compiles and runs on several processes, from the kernel.

Compiles and runs for any other target are passed on to `worker/run.py`. No error of a
program is raised from here: it becomes the `error` of the Report, with its stage and
the process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from shardviz.core.backend.devices import MOST_SIMULATED
from shardviz.core.backend.run.hosts import cluster, engine
from shardviz.core.backend.run.hosts.cluster import EngineLost
from shardviz.core.backend.run.hosts.engine import Bounds, Part
from shardviz.core.backend.run.hosts.group import (
    HEARTBEAT,
    Hosts,
    PreparedProgram,
    keep_started,
    running,
)
from shardviz.core.backend.run.runner import (
    Failed,
    Job,
    Runner,
    drive,
    requested_layouts,
)
from shardviz.core.backend.run.worker import run as worker_run
from shardviz.core.backend.run.worker.child import Value, value_of
from shardviz.core.backend.run.worker.export import (
    ExportedProgram,
    export_program,
    trace_for_export,
    unsharded_module,
)
from shardviz.core.backend.tracing.trace import Traced
from shardviz.core.errors import ProgramError, TargetError
from shardviz.core.format import joined, plural, shown
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.parse import check_size
from shardviz.core.program.checks import Finding, found
from shardviz.core.program.processes import (
    prepared_report,
)
from shardviz.core.program.program import Program, Target
from shardviz.core.program.report import Failure, Report

MOST_GATHERED = 64 << 20  # bytes of outputs that are sent to the kernel
MOST_SENT_TO_ALL = (
    16 << 20
)  # bytes of values that every process gets all of, to compare
_TEXT = re.compile(
    r"\s*(\d{1,3})\s*hosts?\s*[x×*]\s*(\d{1,4})\s*(?:,\s*local)?\s*", re.IGNORECASE
)
_PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}


def make_hosts(
    what: Any,
    devices: Any = None,
    platform: Any = None,
    heartbeat: Any = HEARTBEAT,
) -> Hosts:
    """Starts processes on this machine, or joins the engines of a client.

    Args:
        what: how many processes to start, or an ipyparallel Client or Cluster.
        devices: how many devices each has; of processes that are started here 1 by
            default, of others whatever they have.
        platform: `"cpu"` (by default for processes that are started here) or `"gpu"`.
        heartbeat: seconds after which a process that says nothing counts as lost.

    Raises:
        TargetError: for anything else, or where they cannot be started or joined.
        MissingPackage: where ipyparallel is not installed.
    """
    if devices is not None:
        devices = _positive(devices, "The number of devices per process")
    seconds = _positive(heartbeat, "The heartbeat, in seconds,")
    if platform is not None and (
        type(platform) is not str or platform not in ("cpu", "gpu")
    ):
        raise TargetError(
            f"Processes run on the platform 'cpu' (simulated) or 'gpu'; got {shown(platform)}."
        )
    if isinstance(what, bool) or not isinstance(what, int):
        return Hosts(cluster.taken_over(what), devices, platform or "", seconds)
    if not 1 <= what <= cluster.MOST_ENGINES:
        raise TargetError(
            f"From 1 to {cluster.MOST_ENGINES} processes are started on one machine; got"
            f" {shown(what)}."
        )
    kind = platform or "cpu"
    found = Hosts(
        cluster.start(what, kind), 1 if devices is None else devices, kind, seconds
    )
    keep_started(found)
    return found


def _positive(number: Any, what: str) -> int:
    found = check_size(number, what, TargetError)
    if not 1 <= found <= MOST_SIMULATED:
        raise TargetError(
            f"{what} is from 1 to {MOST_SIMULATED:,}; got {shown(found)}."
        )
    return found


def chosen(target: Any) -> Hosts | None:
    """The Hosts that a target names; None for any other target.

    Text such as `"2 hosts x 4, local"` means running ones, or starts them.

    Raises:
        TargetError: where they cannot be started.
    """
    if isinstance(target, Hosts):
        return target
    text = (
        target.text if isinstance(target, Target) and target.kind == "hosts" else target
    )
    if not isinstance(text, str):
        return None
    for hosts in running():
        if hosts.name == text:
            return hosts
    if (found := _TEXT.fullmatch(text)) is None:
        return None
    count, devices = int(found[1]), int(found[2])
    for hosts in running():
        if hosts.name == f"{plural(count, 'host')} x {devices}, local":
            return hosts
    hosts = make_hosts(count, devices)
    keep_started(hosts, by_text=True)
    return hosts


def compile_program(program: Program, target: Any = None, **options: Any) -> Report:
    """Compiles a program, also for several processes; nothing is placed or executed.

    Args:
        program: what to compile.
        target: as for `worker.run.compile_program`; also Hosts, or text such as
            `"2 hosts x 4, local"`.
        **options: `cache`, `progress`, `cancelled` and `preview`, as there.

    Raises:
        ProgramError: for what is no Program at all.
    """
    if not _is_hosts(target):
        return worker_run.compile_program(program, target, **options)
    job = Job(program, **options)
    return drive(job, lambda job: OnHosts(job, target))


def run_program(
    program: Program, *values: Any, target: Any = None, repeat: int = 1, **options: Any
) -> Report:
    """Compiles and runs a program, also on several processes, and checks what was
    predicted.

    Args:
        program, *values, repeat: as for `worker.run.run_program`.
        target, **options: as for `compile_program`.

    Raises:
        ProgramError: for what is no Program at all.
    """
    if not _is_hosts(target):
        return worker_run.run_program(
            program, *values, target=target, repeat=repeat, **options
        )
    job = Job(program, values=values, repeat=repeat, **options)
    return drive(job, lambda job: OnHosts(job, target))


def _is_hosts(target: Any) -> bool:
    if isinstance(target, Hosts) or (
        isinstance(target, Target) and target.kind == "hosts"
    ):
        return True
    return isinstance(target, str) and (
        _TEXT.fullmatch(target) is not None or any(h.name == target for h in running())
    )


class OnHosts(Runner):
    """Does a job on several processes.

    Args:
        job: what to do.
        target: the Hosts, or what names them.
    """

    def __init__(self, job: Job, target: Any) -> None:
        super().__init__(job)
        self.target = target
        self.hosts: Hosts
        self.traced: Traced
        self.ranks: tuple[int, ...] = ()
        self._choose()

    def trace(self) -> Traced:
        self.traced = trace_for_export(self.job.program)
        return self.traced

    def lower(self, traced: Traced) -> ExportedProgram:
        return export_program(self.job.program, traced, self._platform)

    def key(self, lowered: ExportedProgram) -> str:
        return lowered.key

    def compile(self, lowered: ExportedProgram) -> ExportedProgram:
        """Has the processes compile it; returns it under the key that they keep it by."""
        # They keep what they compiled, so the cache of this kernel is of no use.
        if self.job.repeat is None:
            exported = replace(lowered, key=f"{lowered.key}/compile")
            self._prepared(exported, made_up=False, compared=False)
            return exported
        made_up = self.job.leaves is None
        key = f"{lowered.key}/{lowered.sources[:8]}/{made_up}"
        exported = replace(lowered, key=key)
        self._prepared(exported, made_up, compared=True)
        return exported

    def run(self, lowered: ExportedProgram, executable: ExportedProgram) -> None:
        exported, leaves, repeat = executable, self.job.leaves, self.job.repeat
        for _ in range(2):
            answers = self._call(
                "run", self._arguments(exported.key, leaves, repeat or 1)
            )
            if all(answer is not None for answer in answers.values()):
                return self._note_run(exported, answers)
            # They keep a few programs, and have dropped this one since.
            self.hosts.keep(exported.key, None)
            self._prepared(exported, leaves is None, compared=True)
        raise TargetError(
            "The processes forget what they compile. Restart them: hosts.restart()."
        )

    def _choose(self) -> None:
        """Decides on the processes, and puts the mesh on their devices."""
        job = self.job
        job.note(target=str(self.target) if isinstance(self.target, str) else "")
        hosts = chosen(self.target)
        if hosts is None:
            raise TargetError(
                f"No processes are called {shown(self.target)} any more. Start them with sv.hosts."
            )
        job.note(target=hosts.name)
        hosts.refuse_lost()
        self.hosts = hosts
        mesh = hosts.placed(job.program.mesh)
        self.ranks = tuple(mesh.processes)
        job.program = job.program.replace(mesh=mesh)
        job.note(in_layouts=requested_layouts(job.program), mesh=mesh)
        job.add_notes(self._notes(mesh.size))

    def _notes(self, size: int) -> list[Finding]:
        idle = [p.rank for p in self.hosts.processes if p.rank not in self.ranks]
        if not idle:
            return []
        return [found("idle processes", devices=size, processes=tuple(idle))]

    @property
    def _platform(self) -> str:
        """What the program is lowered for."""
        platform = self.hosts.processes[0].platform
        return _PLATFORMS.get(platform, platform)

    def _prepared(
        self, exported: ExportedProgram, made_up: bool, compared: bool
    ) -> None:
        """Has every process compile, where it has not yet, and compares what they
        compiled.

        Args:
            exported: the program.
            made_up: whether it will run with values that are made up.
            compared: whether its results will be compared with the unsharded function.
        """
        job, known = self.job, self.hosts.kept(exported.key)
        if known is None:
            if compared and job.program.mesh.size > 1:
                single = unsharded_module(job.program, self._platform)
                exported = replace(exported, unsharded=single)
            job.enter("compile")
            answers = self._call(
                "prepare", dict.fromkeys(self.ranks, (exported, made_up))
            )
            processes = tuple(answers[rank].process for rank in self.ranks)
            known = PreparedProgram(answers[self.ranks[0]].report, processes)
            job.note(cache_hit=False)
            self._note(prepared_report(known.report, processes))
            if job.report.error is not None:
                raise Failed(job.report.error)
            _compare({rank: answers[rank].fingerprint for rank in self.ranks})
            self.hosts.keep(exported.key, known)
            return
        self._note(prepared_report(known.report, known.processes))
        job.note(cache_hit=True, compile_s=0.0)

    def _arguments(
        self, key: str, leaves: list[Any] | None, repeat: int
    ) -> dict[int, tuple[Any, ...]]:
        """What each process is sent: its own part of every value."""
        if leaves is None:
            return dict.fromkeys(self.ranks, (key, None, repeat, MOST_GATHERED))
        size = sum(array.bytes for array in self.job.program.arrays)
        values = [value_of(leaf) for leaf in leaves]
        layouts = [self.job.report.in_layouts.get(r.array.name)
                   for r in self.job.program.requests]  # fmt: skip
        owned = {p.rank: p.device_ids for p in self.hosts.processes}
        mesh = self.job.program.mesh
        found = {}
        for rank in self.ranks:
            ids = [i for i in mesh.device_ids.ravel().tolist() if i in owned[rank]]
            parts = tuple(
                _part(value, None if size <= MOST_SENT_TO_ALL else layout, ids)
                for value, layout in zip(values, layouts, strict=True)
            )
            found[rank] = (key, parts, repeat, MOST_GATHERED)
        return found

    def _note_run(self, exported: ExportedProgram, answers: Mapping[int, Any]) -> None:
        job = self.job
        processes = tuple(answers[rank].process for rank in self.ranks)
        hit = job.report.cache_hit
        if hit:
            processes = tuple(
                replace(
                    p, seconds={s: t for s, t in p.seconds.items() if s not in _ONCE}
                )
                for p in processes
            )
        seconds = job.report.compile_s
        self._note(prepared_report(answers[self.ranks[0]].report, processes))
        job.note(compile_s=seconds)
        if (error := job.report.error) is not None:
            raise Failed(error)
        job.enter("check")
        parts = [answers[rank].outputs for rank in self.ranks]
        if any(p is None for p in parts):
            outputs = self._outputs_there(exported.key)
        else:
            outputs = [
                joined_array([p[i] for p in parts])
                for i in range(len(self.traced.outputs))
            ]
        job.note(outputs=self.traced.out_tree.unflatten(outputs))

    def _outputs_there(self, key: str) -> list[Any]:
        """Outputs that are too large to gather, each as a value that gets a part of it."""
        layouts = self.job.report.out_layouts
        self.job.note(
            notes=(
                *self.job.report.notes,
                found("outputs stay", most=MOST_GATHERED),
            )
        )
        return [
            OutputThere(self.hosts, self.ranks, key, number, tuple(o.shape), str(o.dtype),
                        layouts.get(o.name))
            for number, o in enumerate(self.traced.outputs)
        ]  # fmt: skip

    def _call(
        self, function: str, arguments: Mapping[int, tuple[Any, ...]]
    ) -> dict[int, Any]:
        job = self.job

        def progress(stage: str) -> None:
            # The one shown is the latest: a process may enter one that others have
            # left.
            if _ORDER.get(stage, -1) > _ORDER.get(job.stage, -1):
                job.enter(stage)

        try:
            return self.hosts.call(
                function,
                arguments,
                lambda: job.poll(in_stage=job.stage, busy=True),
                progress,
            )
        except EngineLost as lost:
            error = Failure(
                lost.stage or job.stage, str(lost), lacks_memory=lost.lacks_memory
            )
            raise Failed(error) from None

    def _note(self, report: Report) -> None:
        job = self.job
        names = (
            *("compile_s", "partition_s", "place_s", "run_s", "runs_s", "out_layouts"),
            *(
                "partitioned",
                "collectives",
                "memory",
                "cost",
                "loops",
                "checks",
                "roofline",
            ),
            *("processes", "error"),
        )
        job.note(**{name: getattr(report, name) for name in names})
        notes = dict.fromkeys((*job.report.notes, *report.notes))
        layouts = {**job.report.in_layouts, **report.in_layouts}
        job.note(notes=tuple(notes), in_layouts=layouts)


_ORDER = {
    "compile": 0,
    "place": 1,
    "run": 2,
    "check": 3,
}  # of the stages that are shown
_ONCE = ("lower", "compile")


@dataclass(frozen=True, eq=False)
class OutputThere:
    """A result that stays on the processes, since it is too large to gather.

    Attributes:
        shape, dtype: of all of it.
        layout: where its shards are; None where that is not known.
    """

    _hosts: Hosts
    _ranks: tuple[int, ...]
    _key: str
    _number: int
    shape: tuple[int, ...]
    dtype: str
    layout: Layout | None

    def part(self, *index: slice) -> np.ndarray:
        """The elements at an index of slices, one per dimension; the rest are taken in
        full.

        Raises:
            TargetError: where another run took its place, or the processes have ended.
        """
        if len(index) > len(self.shape) or any(
            not isinstance(s, slice) or s.step not in (None, 1) for s in index
        ):
            raise TargetError(
                f"A part of {list(self.shape)} is given by slices without a step, at most one per"
                f" dimension; got {shown(index)}."
            )
        every = (*index, *[slice(None)] * (len(self.shape) - len(index)))
        bounds = engine.bounds_of(every, self.shape)
        given = dict.fromkeys(self._ranks, (self._key, self._number, bounds))
        parts = self._hosts.call("part_of", given)
        return filled([parts[rank] for rank in self._ranks], bounds)


def _compare(found: Mapping[int, Mapping[str, str]]) -> None:
    """Refuses programs that differ between processes.

    Raises:
        TargetError: naming the process and what differs.
    """
    first = min(found)
    for rank, parts in found.items():
        differs = [
            name for name, value in parts.items() if value != found[first].get(name)
        ]
        settings = [n for n in differs if n != "the program"]
        if differs:
            what = joined(
                f"{n} = {shown(parts[n])} (process {first} has {shown(found[first].get(n))})"
                for n in settings
            )
            why = f": process {rank} has {what}" if settings else ""
            raise TargetError(
                f"Process {rank} compiled another program than process {first}{why}. Nothing ran."
                " Start all processes with the same settings and versions."
            )


def _part(value: Value, layout: Layout | None, ids: Sequence[int]) -> Part:
    """What a process is sent of a value: the blocks of its devices, or all of it."""
    data = np.asarray(value.data)
    every = tuple((0, n) for n in data.shape)
    blocks: dict[Bounds, np.ndarray] = {}
    for i in ids if layout is not None else ():
        box = layout.box(i) if layout is not None else ()
        bounds = engine.bounds_of(box, data.shape) + every[len(box) :]
        blocks.setdefault(bounds, data[tuple(slice(a, b) for a, b in bounds)])
    return Part(
        tuple(data.shape),
        data.dtype,
        tuple((blocks or {every: data}).items()),
        value.keys,
    )


def joined_array(parts: Sequence[Part]) -> jax.Array:
    """The array of which every process has sent a part."""
    data = jax.numpy.asarray(filled(parts, tuple((0, n) for n in parts[0].shape)))
    return jax.random.wrap_key_data(data, impl=parts[0].keys) if parts[0].keys else data


def filled(parts: Sequence[Part], bounds: Bounds) -> np.ndarray:
    """The elements within some bounds, from the parts of all processes.

    Raises:
        ProgramError: where no process sent some of them.

    >>> parts = [Part((4,), "int8", ((((a, a + 2),), np.full(2, a)),)) for a in (0, 2)]
    >>> filled(parts, ((1, 4),))
    array([0, 2, 2], dtype=int8)
    """
    found = np.empty([b - a for a, b in bounds], parts[0].dtype)
    count = 0
    for part in parts:
        for own, block in part.blocks:
            common = [
                (max(a, c), min(b, d))
                for (a, b), (c, d) in zip(own, bounds, strict=True)
            ]
            if all(a < b for a, b in common) or not bounds:
                there = tuple(
                    slice(a - c, b - c)
                    for (a, b), (c, _) in zip(common, bounds, strict=True)
                )
                from_ = tuple(
                    slice(a - c, b - c)
                    for (a, b), (c, _) in zip(common, own, strict=True)
                )
                found[there] = block[from_]
                count += block[from_].size
    if count < found.size:
        raise ProgramError(
            f"{plural(found.size - count, 'element')} of a result came from no process. Run it"
            " again."
        )
    return found
