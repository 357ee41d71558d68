"""Compiles and runs on several processes, from the kernel.

Compiles and runs for any other target are passed on to `worker/run.py`. No error of a
program is raised from here: it becomes the `error` of the Report, with its stage and
the process.
"""

from __future__ import annotations

import re
from typing import Any

import jax

from shardviz.base.errors import TargetError
from shardviz.base.format import plural, shown
from shardviz.base.parse import check_size
from shardviz.compiled.checks import IdleProcesses, OutputsStay
from shardviz.compiled.processes import prepared_report
from shardviz.compiled.report import Report
from shardviz.hardware.targets import Target
from shardviz.programs.backend.devices import MOST_SIMULATED
from shardviz.programs.failure import CancelledIn, Failure
from shardviz.programs.program import Program
from shardviz.runs.backend.hosts import cluster
from shardviz.runs.backend.hosts.cluster import EngineLost
from shardviz.runs.backend.hosts.group import (
    HEARTBEAT,
    Hosts,
    keep_started,
    running,
)
from shardviz.runs.backend.runner import (
    Failed,
    Job,
    drive,
    requested_layouts,
)
from shardviz.runs.backend.worker import run as worker_run
from shardviz.runs.backend.worker.export import ExportedProgram
from shardviz.runs.backend.worker.run import Elsewhere

MOST_GATHERED = 64 << 20  # bytes of outputs that are sent to the kernel
_TEXT = re.compile(
    r"\s*(\d{1,3})\s*hosts?\s*[x×*]\s*(\d{1,4})\s*(?:,\s*local)?\s*", re.IGNORECASE
)


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
    # True is an int to Python, and means no number of processes.
    if isinstance(what, bool) or not isinstance(what, int):
        return Hosts(cluster.taken_over(what), devices, platform or "", seconds)
    if not 1 <= what <= cluster.MOST_ENGINES:
        raise TargetError(
            f"From 1 to {cluster.MOST_ENGINES} processes are started on one machine; got"
            f" {shown(what)}."
        )
    kind = platform or "cpu"
    hosts = Hosts(cluster.start(what, kind), devices or 1, kind, seconds)
    keep_started(hosts)
    return hosts


def _positive(number: Any, what: str) -> int:
    size = check_size(number, what, TargetError)
    if not 1 <= size <= MOST_SIMULATED:
        raise TargetError(f"{what} is from 1 to {MOST_SIMULATED:,}; got {shown(size)}.")
    return size


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
    return drive(job, lambda job: OnHosts(job, target)).replace(of=program)


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
    return drive(job, lambda job: OnHosts(job, target)).replace(of=program)


def _is_hosts(target: Any) -> bool:
    if isinstance(target, Hosts) or (
        isinstance(target, Target) and target.kind == "hosts"
    ):
        return True
    return isinstance(target, str) and (
        _TEXT.fullmatch(target) is not None or any(h.name == target for h in running())
    )


class OnHosts(Elsewhere):
    """Does a job on several processes.

    Args:
        job: what to do.
        target: the Hosts, or what names them.
    """

    def __init__(self, job: Job, target: Any) -> None:
        job.note(target=str(getattr(target, "name", target)))
        hosts = chosen(target)
        if hosts is None:
            raise TargetError(
                f"No processes are called {shown(target)} any more. Start them with"
                " sv.hosts."
            )
        hosts.refuse_lost()
        super().__init__(job, hosts.processes[0].platform)
        self.hosts = hosts
        # A program names positions or ids of its own; jax knows only those of the
        # processes.
        mesh = hosts.placed(job.program.mesh)
        self.ranks: tuple[int, ...] = tuple(mesh.processes)
        job.program = job.program.replace(mesh=mesh)
        job.note(in_layouts=requested_layouts(job.program), mesh=mesh)
        idle = [p.rank for p in hosts.processes if p.rank not in self.ranks]
        if idle:
            job.add_notes([IdleProcesses(mesh.size, tuple(idle))])

    def compile(self, lowered: ExportedProgram) -> None:
        """Has every process compile it, and compares what they compiled."""
        job = self.job
        job.enter("compile")
        # They keep what they compiled, so the cache of this kernel is of no use.
        answers = self._call("prepare", (lowered, self.values(), job.repeat))
        first = self.ranks[0]
        for rank in self.ranks:
            if answers[rank].fingerprint != answers[first].fingerprint:
                raise TargetError(
                    f"Process {rank} compiled another program than process {first}."
                    " Nothing ran. Start all processes with the same settings, such as"
                    " XLA_FLAGS, and the same versions."
                )

    def run(self, lowered: ExportedProgram, executable: None) -> None:
        job = self.job
        answers = self._call("run", (MOST_GATHERED,))
        job.enter("check")
        values = answers[self.ranks[0]].outputs
        outputs: list[Any] = []
        if values is None:
            job.add_notes([OutputsStay(MOST_GATHERED)])
            for output in self.traced.outputs:
                outputs.append(jax.ShapeDtypeStruct(output.shape, output.dtype))
        else:
            for value in values:
                outputs.append(jax.device_put(value.leaf()))
        job.note(outputs=self.traced.out_tree.unflatten(outputs))

    def _call(self, function: str, arguments: tuple[Any, ...]) -> dict[int, Any]:
        """Calls a function of all processes, and notes what they found.

        Raises:
            Failed: where one of them failed or ended.
        """
        job, mesh = self.job, self.job.report.mesh

        def progress(stage: str) -> None:
            # The one shown is the latest: a process may enter one that others left.
            if _ORDER.get(stage, -1) > _ORDER.get(job.stage, -1):
                job.enter(stage)

        def poll() -> None:
            job.poll(CancelledIn(job.stage))

        each = dict.fromkeys(self.ranks, arguments)
        try:
            answers = self.hosts.call(function, each, poll, progress)
        except EngineLost as lost:
            stage = lost.end.stage or job.stage
            raise Failed(Failure(stage, str(lost))) from None
        processes = tuple(answers[rank].process for rank in self.ranks)
        report = prepared_report(answers[self.ranks[0]].report, processes)
        self.take_over(report, "cache_hit", "compile_s", "processes", "error")
        job.note(mesh=mesh)  # with the process of each device, as it is known here
        if job.report.error is not None:
            raise Failed(job.report.error)
        return answers


# Of the stages that are shown.
_ORDER = {"compile": 0, "place": 1, "run": 2, "check": 3}
