"""Processes: a target that has several, and the report of each on a compile or run.

A collective stays within a process if each of its groups has the devices of only one
process. Otherwise its data goes from process to process, which is slower, and over the
network if they are on different hosts.
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
_VERDICTS = (False, None, True)  # from worst to best
_MOST_FINDINGS = 4  # of processes that disagree


@dataclass(frozen=True)
class HostProcess:
    """One process of a target.

    Attributes:
        rank: its number, the one that `jax.process_index()` returns there.
        host: the name of its machine.
        pid: its process id there.
        device_ids: the ids of its devices, in jax's order.
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
        """Its name in messages."""
        return f"process {self.rank} (pid {self.pid} on {self.host})"


class ProcessGroup(Displayed):
    """Processes that are joined in one `jax.distributed`, with their devices.

    Attributes:
        name: the text that chooses it as a target: `"2 hosts x 4, local"`.
        processes: one HostProcess each, by rank.
        problem: why it can no longer be used, as a sentence; `""` if it can.

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
        """The ids of all devices, in the order of their processes."""
        ids: list[int] = []
        for process in self.processes:
            ids += process.device_ids
        return tuple(ids)

    @property
    def devices(self) -> int:
        """The number of devices of all processes."""
        return len(self.device_ids)

    def mesh(
        self, axes: Any = None, *, axis_types: Any = None, **sizes: Any
    ) -> MeshSpec:
        """A mesh of these devices, in the order of their processes.

        Args:
            axes, axis_types, **sizes: as for `sv.mesh`.

        Raises:
            MeshError: if the axes are invalid, or need more devices than there are.
        """
        return self.placed(make_mesh(axes, axis_types=axis_types, **sizes))

    def placed(self, mesh: MeshSpec) -> MeshSpec:
        """A mesh with the devices of these processes.

        A mesh keeps its device ids if these processes have all of them. Otherwise only
        their order counts: the lowest id becomes the first device, and so on.

        Args:
            mesh: the mesh.

        Raises:
            MeshError: if the mesh needs more devices than there are.
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
            # The order of foreign ids still shows where each device goes.
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
            TargetError: with the reason, and a way out.
        """
        # jax.distributed cannot replace a process that it has lost.
        if self.problem:
            raise TargetError(self.problem)

    def __repr__(self) -> str:
        state = "; not usable" if self.problem else ""
        return f"Hosts({self.name}: {plural(self.devices, 'device')}{state})"


@dataclass(frozen=True)
class ProcessReport:
    """The report of one process on a compile or run.

    Attributes:
        rank, host, pid, device_ids: as in a HostProcess.
        seconds: the duration of each stage in it, by its name in STAGES.
        memory: the bytes that the process used at the end; None if the system does not
            report them.
        checks: predictions, compared in this process with what happened.
        output: the text that it printed.
        warnings: the warnings that were raised in it, as text.
        error: None, or the Failure that ended it.
        stage: the last stage that it entered.

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
        """True if it had no error and none of its checks failed."""
        return self.error is None and all(c.ok is not False for c in self.checks)


@dataclass(frozen=True)
class ProcessGroups:
    """A collective and the processes in each of its groups.

    Attributes:
        collective: the collective.
        groups: the ranks of the processes in each of its groups, each combination once;
            `()` if the groups are unknown.
    """

    collective: Collective
    groups: tuple[tuple[int, ...], ...]

    @property
    def between(self) -> bool | None:
        """Whether data goes from process to process; None if that is unknown."""
        if not self.groups:
            return None
        return max(map(len, self.groups)) > 1

    @property
    def words(self) -> str:
        """`within each process`, `between processes 0 and 1; 2 and 3`.

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
    """Collectives with the processes of each of their groups, the most bytes first.

    Args:
        collectives: the collectives of a Report.
        mesh: the mesh that it ran on, with the process of each device.

    >>> mesh = make_mesh("data=4", processes=2)
    >>> reduce = Collective("all-reduce", ("data",), 8, groups=((0, 1), (2, 3)))
    >>> by_process([reduce], mesh)[0].groups
    ((0,), (1,))
    """
    owner = mesh.process_indices.reshape(-1)
    rows: list[ProcessGroups] = []
    for collective in collectives:
        # A dict, because many groups have the same processes.
        ranks: dict[tuple[int, ...], None] = {}
        for group in collective.groups:
            ranks[tuple(np.unique(owner[list(group)]).tolist())] = None
        rows.append(ProcessGroups(collective, tuple(ranks)))
    return tuple(sorted(rows, key=lambda row: -row.collective.bytes_in_all))


def slowest(processes: Sequence[ProcessReport], stage: str) -> ProcessReport | None:
    """The process that took longest in a stage; None if none completed it."""
    completed = [p for p in processes if stage in p.seconds]
    return max(completed, key=lambda p: p.seconds[stage], default=None)


def stage_words(processes: Sequence[ProcessReport]) -> list[str]:
    """The duration of each stage in the slowest process, which all wait for.

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
    """The checks of all processes, with one check for everything that was checked.

    A check fails if it fails in any process, and is undecided if it is undecided in any.
    Its detail names the processes. Shards of all processes are counted together.

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
        # Failures matter most to a reader, then checks that could not be decided.
        ok = min((check.ok for _, check in checks), key=_VERDICTS.index)
        findings = [(rank, check.finding) for rank, check in checks if check.ok is ok]
        finding = findings[0][1]
        # If every process has the same verdict, the first one's finding is enough.
        if ok is not True and len(findings) < len(processes):
            finding = InProcesses(tuple(findings[:_MOST_FINDINGS]))
        merged.append(Check(about, ok, finding, shards, array=array))
    return tuple(merged)


def first_error(processes: Sequence[ProcessReport]) -> Failure | None:
    """The error of the lowest rank that has one, with the ranks of all that failed."""
    failed = [process for process in processes if process.error is not None]
    if not failed:
        return None
    error = failed[0].error
    assert error is not None  # as in all of `failed`
    ranks = processes_text(process.rank for process in failed)
    return replace(error, processes=ranks)


def prepared_report(report: Report, processes: Sequence[ProcessReport]) -> Report:
    """The report of one process, with the times, checks and errors of all processes.

    Args:
        report: the report of the first process. Its layouts, collectives and memory are
            those of every process.
        processes: the report of each process.
    """
    # The processes work at the same time, so a stage takes as long as in the slowest.
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
