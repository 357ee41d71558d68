"""Processes: a target with several processes, and the report of each process.

A collective stays within a process if each of its groups has devices of only one
process. Otherwise its data is sent between processes, which is slower. If the
processes are on different hosts, the data crosses the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shardviz.base.collective import Collective
from shardviz.base.display import Displayed
from shardviz.base.errors import MeshError, TargetError
from shardviz.base.format import joined, plural, seconds_text
from shardviz.base.format import processes as processes_text
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.compiled.checks import InProcesses
from shardviz.compiled.report import Check, Report
from shardviz.programs.failure import Failure

#: The stages of a process, in order.
STAGES = ("lower", "compile", "place", "run", "check")
# Results of a check, from worst to best.
_VERDICTS = (False, None, True)
# The most findings to list when processes disagree.
_MOST_FINDINGS = 4


@dataclass(frozen=True)
class HostProcess:
    """One process of a target.

    Attributes:
        rank: process number, as `jax.process_index()` returns it.
        host: name of the machine.
        pid: process id on that machine.
        device_ids: ids of the process's devices, in JAX's order.
        platform: `"cpu"`, `"gpu"` or `"tpu"`.

    >>> HostProcess(1, "node2", 4711, (2048, 2049)).words
    'process 1 (pid 4711 on node2)'
    """

    rank: int
    host: str
    pid: int
    device_ids: tuple[int, ...]
    platform: str = "cpu"

    @property
    def words(self) -> str:
        """The process's name in messages."""
        return f"process {self.rank} (pid {self.pid} on {self.host})"


class ProcessGroup(Displayed):
    """Processes that are connected by `jax.distributed`, with their devices.

    Attributes:
        name: the text that selects this target, such as `"2 hosts x 4, local"`.
        processes: a HostProcess per process, by rank.
        problem: a sentence on why the group can no longer be used; `""` if it can.

    >>> group = ProcessGroup("2 hosts x 2, local", [
    ...     HostProcess(0, "here", 11, (0, 1)), HostProcess(1, "here", 12, (2048, 2049))])
    >>> group.devices, group.device_ids, group.mesh(data=4).process_indices.tolist()
    (4, (0, 1, 2048, 2049), [0, 0, 1, 1])
    """

    def __init__(
        self, name: str, processes: Iterable[HostProcess], problem: str = ""
    ) -> None:
        self.name, self.problem = name, problem
        self.processes: tuple[HostProcess, ...] = tuple(processes)

    @property
    def device_ids(self) -> tuple[int, ...]:
        """The ids of all devices, process by process."""
        ids: list[int] = []
        for process in self.processes:
            ids += process.device_ids
        return tuple(ids)

    @property
    def devices(self) -> int:
        """The number of devices in all processes."""
        return len(self.device_ids)

    def mesh(
        self, axes: Any = None, *, axis_types: Any = None, **sizes: Any
    ) -> MeshSpec:
        """Returns a mesh of these devices, process by process.

        Args:
            axes, axis_types, **sizes: as for `sv.mesh`.

        Raises:
            MeshError: if the axes are invalid, or need more devices than the group has.
        """
        return self.placed(make_mesh(axes, axis_types=axis_types, **sizes))

    def placed(self, mesh: MeshSpec) -> MeshSpec:
        """Returns a mesh on the devices of these processes.

        The mesh keeps its device ids if these processes own all of them. Otherwise only
        the order of the ids counts: the lowest id becomes the first device, and so on.

        Args:
            mesh: the mesh.

        Raises:
            MeshError: if the mesh needs more devices than the group has.
        """
        owner: dict[int, int] = {}
        for process in self.processes:
            owner.update(dict.fromkeys(process.device_ids, process.rank))
        ids = mesh.device_ids.reshape(-1)
        if mesh.size > len(owner):
            raise MeshError(
                f"The mesh has {plural(mesh.size, 'device')} and {self.name} has"
                f" {plural(len(owner), 'device')}. Use a smaller mesh, or start more:"
                f" sv.hosts({max(1, len(self.processes))},"
                f" devices={-(-mesh.size // max(1, len(self.processes)))})."
            )
        own_ids = np.array(self.device_ids[: mesh.size], np.int64)
        if mesh.ids_are_positions:
            ids = own_ids
        elif not owner.keys() >= set(ids.tolist()):
            # The order of unknown ids still shows where each device goes.
            ids = own_ids[np.argsort(np.argsort(ids))]
        ranks = np.array([owner[i] for i in ids.tolist()], np.int64)
        shape = mesh.axis_sizes
        return MeshSpec(
            mesh.axis_names,
            shape,
            mesh.axis_types,
            device_ids=ids.reshape(shape),
            process_indices=ranks.reshape(shape),
            concrete=True,
        )

    def require_usable(self) -> None:
        """Raises an error if the group is closed or has lost a process.

        Raises:
            TargetError: with the reason, and what to do.
        """
        # jax.distributed cannot replace a process that it has lost.
        if self.problem:
            raise TargetError(self.problem)

    def __repr__(self) -> str:
        state = "; not usable" if self.problem else ""
        return f"Hosts({self.name}: {plural(self.devices, 'device')}{state})"


@dataclass(frozen=True)
class ProcessReport:
    """One process's report on a compile or run.

    Attributes:
        rank, host, pid, device_ids: as in a HostProcess.
        seconds: duration of each of the STAGES, by name.
        memory: bytes that the process used at the end; None if the system doesn't
            report them.
        checks: predictions, compared with what happened in this process.
        output: the text that the process printed.
        warnings: the warnings that were raised in the process, as text.
        error: the Failure that ended the process; None if it succeeded.
        stage: the last stage that the process entered.

    >>> report = ProcessReport(1, "node2", 4711, (2048,), {"run": 0.25})
    >>> report.ok, report.seconds["run"]
    (True, 0.25)
    """

    rank: int
    host: str
    pid: int
    device_ids: tuple[int, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)
    memory: int | None = None
    checks: tuple[Check, ...] = ()
    output: str = ""
    warnings: tuple[str, ...] = ()
    error: Failure | None = None
    stage: str = ""

    @property
    def ok(self) -> bool:
        """True if the process had no error and no failed check."""
        return self.error is None and all(c.ok is not False for c in self.checks)


@dataclass(frozen=True)
class ProcessGroups:
    """A collective and the processes in each of its groups.

    Attributes:
        collective: the collective.
        groups: ranks of the processes in each group, without duplicates; `()` if the
            groups are unknown.
    """

    collective: Collective
    groups: tuple[tuple[int, ...], ...]

    @property
    def between(self) -> bool | None:
        """Whether data is sent between processes; None if unknown."""
        if not self.groups:
            return None
        return max(map(len, self.groups)) > 1

    @property
    def words(self) -> str:
        """A phrase such as `within each process` or `between processes 0 and 1`.

        >>> ProcessGroups(Collective("all-reduce", (), 8), ((0, 1), (2, 3))).words
        'between processes 0 and 1; 2 and 3'
        """
        if self.between is None:
            return "between unknown processes"
        if not self.between:
            return "within each process"
        crossing = []
        for group in self.groups[:4]:
            if len(group) > 1:
                crossing.append(joined(group, limit=8))
        if len(self.groups) > 4:
            crossing.append("…")
        return f"between processes {'; '.join(crossing)}"


def by_process(
    collectives: Iterable[Collective], mesh: MeshSpec
) -> tuple[ProcessGroups, ...]:
    """Returns the processes in each group of every collective, most bytes first.

    Args:
        collectives: the collectives of a Report.
        mesh: the mesh of the compile or run, with the process of each device.

    >>> mesh = make_mesh("data=4", processes=2)
    >>> reduce = Collective("all-reduce", ("data",), 8, groups=((0, 1), (2, 3)))
    >>> by_process([reduce], mesh)[0].groups
    ((0,), (1,))
    """
    owner = mesh.process_indices.reshape(-1)
    rows: list[ProcessGroups] = []
    for collective in collectives:
        # A dict removes duplicates: many groups have the same processes.
        ranks: dict[tuple[int, ...], None] = {}
        for group in collective.groups:
            ranks[tuple(np.unique(owner[list(group)]).tolist())] = None
        rows.append(ProcessGroups(collective, tuple(ranks)))
    return tuple(sorted(rows, key=lambda row: -row.collective.drawn_bytes))


def slowest(processes: Sequence[ProcessReport], stage: str) -> ProcessReport | None:
    """Returns the process that took longest in a stage; None if none completed it."""
    completed = [p for p in processes if stage in p.seconds]
    return max(completed, key=lambda p: p.seconds[stage], default=None)


def stage_words(processes: Sequence[ProcessReport]) -> list[str]:
    """Returns each stage's duration in the slowest process, which the others wait for.

    >>> pair = [ProcessReport(r, "h", r, (), {"run": s}) for r, s in ((0, 0.1), (1, 0.25))]
    >>> stage_words(pair)
    ['run 250 ms (process 1)']
    """
    lines = []
    for stage in STAGES:
        last = slowest(processes, stage)
        if last is not None:
            seconds = seconds_text(last.seconds[stage])
            lines.append(f"{stage} {seconds} (process {last.rank})")
    return lines


def merged_checks(processes: Sequence[ProcessReport]) -> tuple[Check, ...]:
    """Merges the checks of all processes, into one check for each property.

    A check fails if it fails in any process. Otherwise it is undecided if it is
    undecided in any process. Its detail names the processes, and its shards are counted
    together.

    >>> here, there = (Check("indices", ok, "Seen.", 4, array="x") for ok in (True, False))
    >>> merged_checks([ProcessReport(0, "h", 1, (), checks=(here,)),
    ...                ProcessReport(1, "h", 2, (), checks=(there,))])
    (Check(name='x: indices of 8 shards', ok=False, detail='Process 1: Seen.'),)
    """
    same_checks: dict[tuple[str, str], list[tuple[int, Check]]] = {}
    for process in processes:
        for check in process.checks:
            key = check.array, check.about
            same_checks.setdefault(key, []).append((process.rank, check))
    merged: list[Check] = []
    for (array, about), checks in same_checks.items():
        shards = sum(check.shards for _, check in checks)
        # Failures matter most to a reader, then undecided checks.
        ok = min((check.ok for _, check in checks), key=_VERDICTS.index)
        findings = [(rank, check.finding) for rank, check in checks if check.ok is ok]
        finding = findings[0][1]
        # If every process has the same verdict, the first finding is enough.
        if ok is not True and len(findings) < len(processes):
            finding = InProcesses(tuple(findings[:_MOST_FINDINGS]))
        merged.append(Check(about, ok, finding, shards, array=array))
    return tuple(merged)


def first_error(processes: Sequence[ProcessReport]) -> Failure | None:
    """Returns the first failed rank's error, with the ranks of all failed processes."""
    failed = [process for process in processes if process.error is not None]
    if not failed:
        return None
    error = failed[0].error
    assert error is not None  # every process in `failed` has an error
    ranks = processes_text(process.rank for process in failed)
    return replace(error, processes=ranks)


def prepared_report(report: Report, processes: Sequence[ProcessReport]) -> Report:
    """Returns one process's report, with the times, checks and errors of all processes.

    Args:
        report: the report of the first process. Its layouts, collectives and memory are
            the same in every process.
        processes: the report of each process.
    """
    # Processes work at the same time, so a stage takes as long as in the slowest one.
    longest: dict[str, float] = {}
    for stage in ("compile", "place", "run"):
        last = slowest(processes, stage)
        if last is not None:
            longest[f"{stage}_s"] = last.seconds[stage]
    return report.replace(
        processes=tuple(processes),
        checks=merged_checks(processes),
        error=first_error(processes),
        **longest,
    )
