"""Compiles and runs programs on several processes, from the kernel.

Other targets are passed on to `worker/run.py`. A program's errors are not raised: each
becomes the `error` of the Report, with the stage and process in which it occurred.
"""

from __future__ import annotations

from typing import Any

import jax

from shardviz.base.errors import TargetError
from shardviz.base.format import plural, shown
from shardviz.base.parse import check_size
from shardviz.base.typing import PyTree
from shardviz.compiled.checks import IdleProcesses, OutputsStay
from shardviz.compiled.measured import NotMeasured
from shardviz.compiled.processes import prepared_report
from shardviz.compiled.report import Report
from shardviz.hardware.targets import Target, TargetLike, hosts_in_text
from shardviz.programs.backend.devices import MOST_SIMULATED
from shardviz.programs.failure import CancelledIn, Failure
from shardviz.programs.program import Program
from shardviz.runs.backend.hosts import cluster
from shardviz.runs.backend.hosts.cluster import EngineLost
from shardviz.runs.backend.hosts.engine import ProcessAnswer
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

# Maximum bytes of outputs to send to the kernel.
MOST_GATHERED = 64 << 20


def make_hosts(
    processes: object,
    devices: object = None,
    platform: object = None,
    heartbeat: object = HEARTBEAT,
) -> Hosts:
    """Starts processes on this machine, or joins the engines of a client.

    Args:
        processes: number of processes to start, or an ipyparallel Client or Cluster.
        devices: number of devices per process; by default 1 for processes started
            here, and all devices for a client's engines.
        platform: `"cpu"` (the default for processes started here) or `"gpu"`.
        heartbeat: seconds without a heartbeat after which a process counts as lost.

    Raises:
        TargetError: for invalid arguments, or if processes can't be started or joined.
        MissingPackage: if ipyparallel is not installed.
    """
    devices_each = None
    if devices is not None:
        devices_each = _positive(devices, "The number of devices per process")
    seconds = _positive(heartbeat, "The heartbeat, in seconds,")
    is_platform = isinstance(platform, str) and platform in ("cpu", "gpu")
    if platform is not None and not is_platform:
        raise TargetError(
            f"Processes run on the platform 'cpu' (simulated) or 'gpu'; got {shown(platform)}."
        )
    platform_name = "" if platform is None else str(platform)
    # A bool is an int in Python, but not a number of processes.
    if isinstance(processes, bool) or not isinstance(processes, int):
        engines = cluster.taken_over(processes)
        return Hosts(engines, devices_each, platform_name, seconds)
    if not 1 <= processes <= cluster.MOST_ENGINES:
        raise TargetError(
            f"One machine can start 1 to {cluster.MOST_ENGINES} processes; got"
            f" {shown(processes)}."
        )
    platform_name = platform_name or "cpu"
    engines = cluster.start(processes, platform_name)
    hosts = Hosts(engines, devices_each or 1, platform_name, seconds)
    keep_started(hosts)
    return hosts


def _positive(number: object, subject: str) -> int:
    size = check_size(number, subject, TargetError)
    if not 1 <= size <= MOST_SIMULATED:
        raise TargetError(
            f"{subject} is from 1 to {MOST_SIMULATED:,}; got {shown(size)}."
        )
    return size


def chosen(target: TargetLike) -> Hosts | None:
    """Returns the Hosts that a target names; None for any other target.

    Text such as `"2 hosts x 4, local"` selects running processes, or starts new ones.

    Raises:
        TargetError: if the processes cannot be started.
    """
    if isinstance(target, Hosts):
        return target
    if isinstance(target, Target):
        target = target.text if target.kind == "hosts" else None
    if not isinstance(target, str):
        return None
    text = target
    for hosts in running():
        if hosts.name == text:
            return hosts
    if (sizes := hosts_in_text(text)) is None:
        return None
    count, devices = sizes
    for hosts in running():
        if hosts.name == f"{plural(count, 'host')} x {devices}, local":
            return hosts
    hosts = make_hosts(count, devices)
    keep_started(hosts, by_text=True)
    return hosts


def compile_program(
    program: Program, target: TargetLike = None, **options: Any
) -> Report:
    """Compiles a program for any target, including Hosts; doesn't run it.

    Args:
        program: the program.
        target: a target as for `worker.run.compile_program`, or Hosts, or text such as
            `"2 hosts x 4, local"`.
        **options: `cache`, `progress`, `cancelled` and `preview` of `Job`.

    Raises:
        ProgramError: if `program` is not a Program.
    """
    if isinstance(target, Hosts) or _names_hosts(target):
        job = Job(program, **options)
        return drive(job, lambda job: OnHosts(job, target)).replace(of=program)
    return worker_run.compile_program(program, target, **options)


def run_program(
    program: Program,
    *values: PyTree,
    target: TargetLike = None,
    repeat: int = 1,
    **options: Any,
) -> Report:
    """Compiles and runs a program on any target, including Hosts; checks predictions.

    Args:
        program, *values, repeat: as for `worker.run.run_program`.
        target, **options: as for `compile_program`.

    Raises:
        ProgramError: if `program` is not a Program.
    """
    if isinstance(target, Hosts) or _names_hosts(target):
        job = Job(program, values=values, repeat=repeat, **options)
        return drive(job, lambda job: OnHosts(job, target)).replace(of=program)
    return worker_run.run_program(
        program, *values, target=target, repeat=repeat, **options
    )


def _names_hosts(target: TargetLike) -> bool:
    if isinstance(target, Target):
        return target.kind == "hosts"
    if not isinstance(target, str):
        return False
    is_running = any(hosts.name == target for hosts in running())
    return is_running or hosts_in_text(target) is not None


class OnHosts(Elsewhere):
    """Runs a job on several processes.

    Args:
        job: the job.
        target: the Hosts, or a target that names them.
    """

    def __init__(self, job: Job, target: TargetLike) -> None:
        job.note(target=str(getattr(target, "name", target)))
        hosts = chosen(target)
        if hosts is None:
            raise TargetError(
                f"There are no longer processes called {shown(target)}. Start them with"
                " sv.hosts."
            )
        hosts.refuse_lost()
        super().__init__(job, hosts.processes[0].platform)
        self.hosts = hosts
        # Give the program's mesh the device ids of these processes.
        mesh = hosts.placed(job.program.mesh)
        self.ranks: tuple[int, ...] = tuple(mesh.processes)
        job.program = job.program.replace(mesh=mesh)
        job.note(in_layouts=requested_layouts(job.program), mesh=mesh)
        idle = [p.rank for p in hosts.processes if p.rank not in self.ranks]
        if idle:
            job.add_notes([IdleProcesses(mesh.size, tuple(idle))])

    def compile(self, lowered: ExportedProgram) -> None:
        """Compiles in every process, and compares the processes' fingerprints."""
        job = self.job
        job.enter("compile")
        # Each process has its own executable cache, so this kernel's is not used.
        answers = self._call("prepare", (lowered, self.values(), job.repeat))
        first = self.ranks[0]
        for rank in self.ranks:
            if answers[rank].fingerprint != answers[first].fingerprint:
                raise TargetError(
                    f"Process {rank} compiled a different program than process {first}."
                    " Nothing ran. Start all processes with the same settings, such as"
                    " XLA_FLAGS, and the same versions."
                )

    def run(self, lowered: ExportedProgram, executable: None) -> None:
        job = self.job
        answers = self._call("run", (MOST_GATHERED,))
        job.enter("check")
        values = answers[self.ranks[0]].outputs
        outputs: list[jax.Array | jax.ShapeDtypeStruct] = []
        if values is None:
            job.add_notes([OutputsStay(MOST_GATHERED)])
            for output in self.traced.outputs:
                outputs.append(jax.ShapeDtypeStruct(output.shape, output.dtype))
        else:
            for value in values:
                outputs.append(jax.device_put(value.leaf()))
        job.note(outputs=self.traced.out_tree.unflatten(outputs))

    def _call(
        self, function: str, arguments: tuple[object, ...]
    ) -> dict[int, ProcessAnswer]:
        """Calls a function in all processes, and adds their answers to the report.

        Raises:
            Failed: if a process failed or ended.
        """
        job, mesh = self.job, self.job.report.mesh

        def progress(stage: str) -> None:
            # Skip stages that a faster process has already passed.
            if _ORDER.get(stage, -1) > _ORDER.get(job.stage, -1):
                job.enter(stage)

        def poll() -> None:
            job.poll(CancelledIn(job.stage))

        arguments_by_rank = dict.fromkeys(self.ranks, arguments)
        try:
            answers = self.hosts.call(function, arguments_by_rank, poll, progress)
        except EngineLost as lost:
            stage = lost.end.stage or job.stage
            raise Failed(Failure(stage, str(lost))) from None
        processes = tuple(answers[rank].process for rank in self.ranks)
        report = prepared_report(answers[self.ranks[0]].report, processes)
        self.take_over(report, "cache_hit", "compile_s", "processes", "error")
        if self.job.measure:
            self.job.note_measured(NotMeasured("hosts"))
        job.note(mesh=mesh)  # keep this kernel's mesh, which has process indices
        if job.report.error is not None:
            raise Failed(job.report.error)
        return answers


# The order of the shown stages.
_ORDER = {"compile": 0, "place": 1, "run": 2, "check": 3}
