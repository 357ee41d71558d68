"""Processes: a target of several, and what each of them did in one compile or run.

A collective stays within a process where each of its groups has devices of one process
only; else its data goes from process to process, which is slower: over the network,
where they are on different hosts.
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
        rank: its number, as `jax.process_index()` gives it there.
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
        """What messages call it."""
        return f"process {self.rank} (pid {self.pid} on {self.host})"


class ProcessGroup(Displayed):
    """Processes that are joined in one `jax.distributed`, with their devices.

    Attributes:
        name: the text that chooses it as a target: `"2 hosts x 4, local"`.
        processes: one HostProcess each, by rank.
        problem: why it cannot be used any more, in words; `""` where it can.

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
        """The ids of all devices, process after process."""
        ids: list[int] = []
        for process in self.processes:
            ids += process.device_ids
        return tuple(ids)

    @property
    def devices(self) -> int:
        """How many devices all processes have together."""
        return len(self.device_ids)

    def mesh(
        self, axes: Any = None, *, axis_types: Any = None, **sizes: Any
    ) -> MeshSpec:
        """A mesh of these devices, in order, process after process.

        Args:
            axes, axis_types, **sizes: as for `sv.mesh`.

        Raises:
            MeshError: for axes that no mesh has, or more positions than there are
                devices.
        """
        return self.placed(make_mesh(axes, axis_types=axis_types, **sizes))

    def placed(self, mesh: MeshSpec) -> MeshSpec:
        """A mesh with devices of these processes.

        A mesh of ids that are all here keeps them, in its order. Of any other the ids
        are names: the lowest of them is the first device, and so on.

        Args:
            mesh: the mesh.

        Raises:
            MeshError: for more positions than there are devices.
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
        known = np.array(self.device_ids[: mesh.size], np.int64)
        if mesh.ids_are_positions:
            ids = known
        elif not owner.keys() >= set(ids.tolist()):
            # The order of foreign ids still says which device comes where.
            ids = known[np.argsort(np.argsort(ids))]
        ranks = np.array([owner[i] for i in ids.tolist()], np.int64)
        shape = mesh.axis_sizes
        return MeshSpec(
            mesh.axis_names,
            shape,
            mesh.axis_types,
            ids.reshape(shape),
            ranks.reshape(shape),
            True,
        )

    def require_usable(self) -> None:
        """Refuses a group that is closed or broken.

        Raises:
            TargetError: with the reason, and what to do.
        """
        # Once a process is lost, jax.distributed cannot take another in its place.
        if self.problem:
            raise TargetError(self.problem)

    def __repr__(self) -> str:
        state = "; not usable" if self.problem else ""
        return f"Hosts({self.name}: {plural(self.devices, 'device')}{state})"


@dataclass(frozen=True)
class ProcessReport:
    """What one process did in one compile or run.

    Attributes:
        rank, host, pid, device_ids: as of a HostProcess.
        seconds: what each stage took there, by its name in STAGES.
        memory: bytes that the process held at the end; None where the system does not
            say.
        checks: predictions, compared there with what happened.
        output: what it printed.
        warnings: the warnings that were raised there, in words.
        error: None, or the Failure that ended it.
        stage: the last stage that it entered.

    >>> one = ProcessReport(1, "node2", 4711, (2048,), {"run": 0.25})
    >>> one.ok, one.seconds["run"]
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
        """Whether it had no error and no check failed there."""
        return self.error is None and all(c.ok is not False for c in self.checks)


@dataclass(frozen=True)
class ProcessGroups:
    """A collective, with its groups by process.

    Attributes:
        collective: the collective.
        groups: the ranks of the processes in each of its groups, each set of them once;
            `()` where the compiled text does not name its groups.
    """

    collective: Collective
    groups: tuple[tuple[int, ...], ...]

    @property
    def between(self) -> bool | None:
        """Whether data goes from process to process; None where that is not known."""
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
        collectives: those of a Report.
        mesh: the mesh that it ran on, with the process of each device.

    >>> mesh = make_mesh("data=4", processes=2)
    >>> found = by_process([Collective("all-reduce", ("data",), 8, groups=((0, 1), (2, 3)))], mesh)
    >>> found[0].groups, found[0].between
    (((0,), (1,)), False)
    """
    owner = mesh.process_indices.reshape(-1)
    rows = []
    for one in collectives:
        # A dict, since many groups have the same processes.
        ranks: dict[tuple[int, ...], None] = {}
        for group in one.groups:
            ranks[tuple(np.unique(owner[list(group)]).tolist())] = None
        rows.append(ProcessGroups(one, tuple(ranks)))
    return tuple(sorted(rows, key=lambda row: -row.collective.bytes_in_all))


def slowest(processes: Sequence[ProcessReport], stage: str) -> ProcessReport | None:
    """The process that took longest in a stage; None where none went through it."""
    through = [p for p in processes if stage in p.seconds]
    return max(through, key=lambda p: p.seconds[stage], default=None)


def stage_words(processes: Sequence[ProcessReport]) -> list[str]:
    """What each stage took, a phrase each: in the slowest process, which all wait for.

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
    """The checks of all processes, one for each thing that was checked.

    What went wrong anywhere comes first, then what is not known; its detail names each
    process. Where shards are counted, those of all processes are.

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
    merged = []
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
    """The error of the lowest rank that has one, with who failed."""
    failed = [process for process in processes if process.error is not None]
    if not failed:
        return None
    error = failed[0].error
    assert error is not None  # they were chosen by it
    ranks = processes_text(process.rank for process in failed)
    return replace(error, processes=ranks)


def prepared_report(report: Report, processes: Sequence[ProcessReport]) -> Report:
    """A report of one process with what all of them found: times, checks, errors.

    Args:
        report: that of the first process, whose layouts, collectives and memory hold
            for all.
        processes: what each did; stages took as long as in the slowest.
    """
    # They work at the same time, so that a stage takes as long as in the slowest.
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
