"""Hosts: joins several processes into one target, and calls and monitors them."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from shardviz.base.errors import TargetError
from shardviz.base.format import plural
from shardviz.compiled.processes import ProcessGroup
from shardviz.hardware.targets import Target
from shardviz.programs.failure import (
    Exited,
    Failure,
    Group,
    GroupClosed,
    GroupForked,
    GroupInterrupted,
    Lost,
    OthersWait,
    ProcessEnd,
    Stopped,
)
from shardviz.runs.backend.hosts import cluster, engine
from shardviz.runs.backend.hosts.cluster import EngineLost, Engines
from shardviz.runs.backend.hosts.engine import EngineInfo, Joining, ProcessAnswer
from shardviz.runs.backend.runner import Failed

if TYPE_CHECKING:
    from ipyparallel import AsyncResult, Client

# Seconds without a heartbeat after which a process counts as lost, by default.
HEARTBEAT = 10
_POLL = 0.05
# Seconds that other processes get to finish after an error.
_AFTER_ERROR = 2.0

#: Hosts that this kernel has started and not closed.
_STARTED: list[weakref.ref[Hosts]] = []
# Hosts that were started by text. This list keeps them alive.
_BY_TEXT: list[Hosts] = []


class Hosts(ProcessGroup):
    """Several processes as one target; a context manager, created by `sv.hosts`.

    `.processes` lists the processes, `.device_ids` their devices, and `.mesh(data=4,
    model=2)` returns a mesh of these devices.

    Attributes:
        heartbeat: seconds without a heartbeat after which a process counts as lost.
        stages: rank -> current stage of that process, during a compile or run.

    >>> Hosts.__mro__[1].__name__
    'ProcessGroup'
    """

    def __init__(
        self,
        engines: Engines,
        devices: int | None,
        platform: str,
        heartbeat: int = HEARTBEAT,
    ) -> None:
        super().__init__("", ())
        self.heartbeat, self.stages = heartbeat, dict[int, str]()
        self._engines = engines
        self._lock = threading.RLock()
        # Called once: by `close`, at garbage collection, or when Python exits.
        self._end = weakref.finalize(self, engines.end)
        try:
            self._join(devices, platform)
        except BaseException:
            self.close()
            raise

    def _join(self, devices: int | None, platform: str) -> None:
        """Joins the engines with `jax.distributed`, and starts jax on them."""
        ranks = range(len(self._engines.ids))
        engine_infos = self.call("describe", dict.fromkeys(ranks, ()))
        for rank, info in engine_infos.items():
            # Process ids are only meaningful for engines on this machine.
            if info.host == engine.describe().host:
                self._engines.pids[rank] = info.pid
        group = _group_of(engine_infos) or uuid.uuid4().hex
        hosts = {info.host for info in engine_infos.values()}
        name = "127.0.0.1" if len(hosts) == 1 else ""
        # The coordinator runs in the first process, so find a free port there.
        address = self.call("coordinator_address", {0: (name,)})[0]
        arguments = {}
        for rank in ranks:
            joining = Joining(
                group,
                address,
                count=len(ranks),
                rank=rank,
                platform=platform,
                devices=devices,
                heartbeat=self.heartbeat,
                controller=self._engines.controller,
            )
            arguments[rank] = (joining,)
        self.processes = tuple(self.call("join", arguments).values())
        size = max(len(p.device_ids) for p in self.processes)
        origin = "ipyparallel" if self._engines.cluster is None else "local"
        self.name = f"{plural(len(ranks), 'host')} x {size}, {origin}"

    @property
    def client(self) -> Client:
        """The ipyparallel client, to run your own code on the engines.

        `hosts.client[:].apply_sync(function)` returns the results in rank order.
        """
        self.refuse_lost()
        return self._engines.client

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends engines that shardviz started; the user's engines keep running."""
        self.problem = self.problem or str(GroupClosed(self.name))
        self._end()
        _STARTED[:] = [ref for ref in _STARTED if ref() not in (None, self)]
        _BY_TEXT[:] = [hosts for hosts in _BY_TEXT if hosts is not self]

    def call(
        self,
        function: str,
        arguments: Mapping[int, tuple[object, ...]],
        poll: Callable[[], None] = lambda: None,
        progress: Callable[[str], None] = lambda stage: None,
    ) -> dict[int, Any]:
        """Calls a function of `engine.py` on several engines, and waits for answers.

        If an engine ends, stays stopped, or fails while others wait for it, all engines
        are ended.

        Args:
            function: the name of the function.
            arguments: rank -> arguments of the call.
            poll: called repeatedly; if it raises, the engines are ended.
            progress: called with every stage that an engine enters.

        Returns:
            rank -> result of the call, sorted by rank.

        Raises:
            EngineLost: if an engine ended or was stopped.
            TargetError: if the engines cannot be used.
        """
        self.refuse_lost()
        with self._lock:
            self.stages.clear()
            pending: dict[int, AsyncResult] = {}
            for rank, call_arguments in arguments.items():
                log = self._engines.log_of(rank)
                request = engine.Request(function, pickle.dumps(call_arguments), log)
                pending[rank] = self._engines.call(rank, request)
            try:
                answers = self._answers(pending, poll, progress)
            except BaseException as error:
                if pending or isinstance(error, EngineLost):
                    # The only way to end a running XLA program is to end its process.
                    self._break(error)
                raise
            return dict(sorted(answers.items()))

    def _answers(
        self,
        pending: dict[int, AsyncResult],
        poll: Callable[[], None],
        progress: Callable[[str], None],
    ) -> dict[int, Any]:
        """Waits for all answers; removes answered calls from `pending`."""
        answers: dict[int, Any] = {}
        raised: list[Exception] = []
        first_failure: _FailedProcess | None = None
        stopped_since: dict[int, float] = {}  # rank -> time
        while pending:
            wait(list(pending.values()), _POLL, FIRST_COMPLETED)
            for rank in [rank for rank, call in pending.items() if call.ready()]:
                failure = None
                try:
                    answers[rank] = answer = cluster.answer_of(pending[rank])
                    if isinstance(answer, ProcessAnswer):
                        failure = answer.process.error
                except EngineLost:
                    raise self._first_lost(rank, pending, stopped_since) from None
                except Exception as error:  # noqa: BLE001  the engine may raise anything
                    raised.append(error)
                    failure = Failure(self.stages.get(rank, "target"), str(error))
                del pending[rank]
                if failure is not None and first_failure is None:
                    first_failure = _FailedProcess(rank, failure, time.monotonic())
            poll()
            # Show stages while the calls are still running.
            for rank, call in pending.items():
                stage = cluster.stage_of(call)
                if stage and stage != self.stages.get(rank):
                    self.stages[rank] = stage
                    progress(stage)
            self._refuse_lost_or_stopped(pending, stopped_since)
            if pending and first_failure is not None:
                if time.monotonic() - first_failure.time > _AFTER_ERROR:
                    raise Failed(self._waited_for(first_failure, pending))
        if raised:
            raise raised[0]
        return answers

    def _refuse_lost_or_stopped(
        self, pending: Mapping[int, AsyncResult], stopped_since: dict[int, float]
    ) -> None:
        """Raises if an engine has ended, or stays stopped for a heartbeat timeout."""
        now = time.monotonic()
        stopped = self._engines.stopped()
        for rank in pending:
            if rank not in stopped:
                stopped_since.pop(rank, None)
            elif now - stopped_since.setdefault(rank, now) > self.heartbeat:
                raise self._first_lost(rank, pending, stopped_since)
        for rank in self._engines.ended():
            if rank in pending:
                raise self._first_lost(rank, pending, stopped_since)

    def _first_lost(
        self,
        lost: int,
        pending: Mapping[int, AsyncResult],
        stopped_since: Mapping[int, float],
    ) -> EngineLost:
        """Returns the error for a lost process, or for the process that caused its end.

        A process aborts if it misses the heartbeats of a stopped process. It may abort
        before we report the stopped process, because both use the same timeout.
        """
        for rank in self._engines.stopped():
            if rank in pending:
                now = time.monotonic()
                seconds = now - stopped_since.get(rank, now)
                end = Stopped(seconds=seconds, group=self._group)
                return self._lost(rank, end, pending[rank])
        rank, end = self._ended_from_outside(
            {lost, *self._engines.ended()} & {lost, *pending}
        )
        return self._lost(rank, end, pending.get(rank))

    def _ended_from_outside(self, ranks: Iterable[int]) -> tuple[int, ProcessEnd]:
        """Finds the process that probably ended first; prefers one ended by a signal.

        If one process is lost, the others abort, so several may have ended by now.
        """
        ends = {rank: self._engines.end_of(rank) for rank in sorted(ranks)}
        for rank, end in ends.items():
            if isinstance(end, Exited) and end.code in (
                -signal.SIGKILL,
                -signal.SIGTERM,
            ):
                return rank, end
        for rank, end in ends.items():
            # A process that aborts prints a reason; a killed process can't.
            is_silent = isinstance(end, Exited) and end.code is None and not end.printed
            if is_silent or isinstance(end, Lost):
                return rank, end
        return next(iter(ends.items()))

    def refuse_lost(self) -> None:
        """Checks that the group is usable and all its engines are running.

        Raises:
            TargetError: if the group cannot be used or an engine has ended; the message
                names the process, and what to do.
        """
        if os.getpid() != self._engines.kernel:
            raise TargetError(GroupForked(self.name))
        self.require_usable()
        if ended := self._engines.ended():
            error = self._lost(*self._ended_from_outside(ended))
            self._break(error)
            raise error

    def _lost(
        self, rank: int, end: ProcessEnd, call: AsyncResult | None = None
    ) -> EngineLost:
        """Returns the error for a process that ended or was stopped."""
        process = f"Process {rank}"
        if rank < len(self.processes):
            process = f"P{self.processes[rank].words[1:]}"
        stage = "" if call is None else cluster.stage_of(call)
        return EngineLost(replace(end, process=process, stage=stage))

    def _waited_for(
        self, failed: _FailedProcess, pending: Mapping[int, AsyncResult]
    ) -> Failure:
        """Returns the failure of a process that other processes wait for."""
        waiting = tuple(sorted(pending))
        cause = OthersWait(failed.rank, waiting, self._group)
        return replace(
            failed.failure,
            said=failed.failure.message,
            cause=cause,
            processes="",
            largest_arrays=None,
        )

    @property
    def _group(self) -> Group:
        return "foreign" if self._engines.cluster is None else "own"

    def _break(self, error: BaseException) -> None:
        self.problem = str(GroupInterrupted(self.name))
        if isinstance(error, (TargetError, Failed)):
            self.problem = str(error)
        self._end()


class _FailedProcess(NamedTuple):
    rank: int
    failure: Failure
    time: float  # time.monotonic() when the failure was reported


def _group_of(engine_infos: Mapping[int, EngineInfo]) -> str:
    """Returns the group that all engines have already joined; `""` for none.

    Raises:
        TargetError: if engines have different versions from the kernel, have started
            jax, or only some have joined a group.
    """
    kernel_versions = engine.describe().versions
    for rank, info in engine_infos.items():
        for package, version in info.versions.items():
            kernel_version = kernel_versions[package]
            if version != kernel_version:
                raise TargetError(
                    f"Engine {rank} on {info.host} has {package} {version}, and this"
                    f" kernel has {kernel_version}. A program is sent as its lowered"
                    " module, which other versions may not read: install the same there."
                )
    groups = {info.group for info in engine_infos.values()}
    # All engines are already in one group; they can't join twice.
    if len(groups) == 1 and groups != {""}:
        return groups.pop()
    for rank, info in engine_infos.items():
        if info.started or info.group:
            raise TargetError(
                f"jax has started its devices in engine {rank} (pid {info.pid} on"
                f" {info.host}) already, and can no longer join others. Restart the"
                " engines, and use sv.hosts before anything else runs on them."
            )
    return ""


def running() -> list[Hosts]:
    """Returns the usable Hosts that this kernel has started."""
    alive = [ref() for ref in _STARTED]
    return [hosts for hosts in alive if hosts is not None and not hosts.problem]


def running_targets() -> list[Target]:
    """Returns the running Hosts as targets."""
    targets = []
    for hosts in running():
        platform, count = hosts.processes[0].platform, len(hosts.processes)
        target = Target("hosts", platform, hosts.devices, hosts.name, processes=count)
        targets.append(target)
    return targets


def keep_started(hosts: Hosts, by_text: bool = False) -> None:
    """Registers started Hosts, so that text can name them.

    Args:
        hosts: the Hosts.
        by_text: True if text started them, to keep them alive until they are closed.
    """
    if by_text:
        _BY_TEXT.append(hosts)
    else:
        _STARTED.append(weakref.ref(hosts))
