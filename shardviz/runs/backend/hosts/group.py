"""Hosts: several processes as one target, called together and watched meanwhile."""

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
from typing import Any

from shardviz.base.errors import TargetError
from shardviz.base.format import plural
from shardviz.compiled.processes import ProcessGroup, ProcessReport
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
from shardviz.runs.backend.hosts.engine import Joining, Place
from shardviz.runs.backend.runner import Failed

HEARTBEAT = 10  # seconds
_POLL = 0.05
_AFTER_ERROR = 2.0  # seconds in which the others may end by themselves
#: The Hosts of this kernel that were started here and not closed.
_STARTED: list[weakref.ref[Hosts]] = []
_BY_TEXT: list[Hosts] = []  # those that nobody else holds


class Hosts(ProcessGroup):
    """Several processes as one target: made by `sv.hosts`, a context manager.

    `.processes` are its processes, `.device_ids` their devices, `.mesh(data=4,
    model=2)` a mesh of these.

    Attributes:
        heartbeat: seconds after which a process that says nothing counts as lost.
        stages: the stage that each process is in, by rank, while something compiles or
            runs.

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
        self._engines, self._asked = engines, (devices, platform)
        self._lock = threading.RLock()
        # Called once: by `close`, when this is collected, or when Python ends.
        self._end = weakref.finalize(self, engines.end)
        try:
            self._join()
        except BaseException:
            self.close()
            raise

    def _join(self) -> None:
        """Joins the engines in one `jax.distributed`; then they start jax."""
        count, (devices, platform) = len(self._engines.ids), self._asked
        everyone = range(count)
        places = self.call("describe", dict.fromkeys(everyone, ()))
        for rank, place in places.items():
            # Of others the number of a process says nothing here.
            if place.host == engine.describe().host:
                self._engines.pids[rank] = place.pid
        group = _group_of(places) or uuid.uuid4().hex
        hosts = {place.host for place in places.values()}
        name = "127.0.0.1" if len(hosts) == 1 else ""
        # The first process coordinates, so the port must be free on its machine.
        address = self.call("coordinator_address", {0: (name,)})[0]
        how = Joining(
            group,
            address,
            count,
            0,
            platform,
            devices,
            self.heartbeat,
            self._engines.controller,
        )
        each = {rank: (replace(how, rank=rank),) for rank in everyone}
        self.processes = tuple(self.call("join", each).values())
        size = max(len(p.device_ids) for p in self.processes)
        where = "ipyparallel" if self._engines.cluster is None else "local"
        self.name = f"{plural(count, 'host')} x {size}, {where}"

    @property
    def client(self) -> Any:
        """ipyparallel's client of these engines, to run code of your own on them.

        `hosts.client[:].apply_sync(function)` gives what it returned in each, by rank.
        """
        self.refuse_lost()
        return self._engines.client

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the engines that were started here, and lets go of others."""
        self.problem = self.problem or str(GroupClosed(self.name))
        self._end()
        _STARTED[:] = [ref for ref in _STARTED if ref() not in (None, self)]
        _BY_TEXT[:] = [other for other in _BY_TEXT if other is not self]

    def call(
        self,
        function: str,
        arguments: Mapping[int, tuple[Any, ...]],
        poll: Callable[[], None] = lambda: None,
        progress: Callable[[str], None] = lambda stage: None,
    ) -> dict[int, Any]:
        """Calls a function of `engine` on some of the engines, and waits for answers.

        Where one ends, is stopped for long or fails while others wait for it, all of
        them are ended.

        Args:
            function: its name.
            arguments: by rank, those of each call.
            poll: called repeatedly; what it raises ends the engines.
            progress: called with every stage that an engine enters.

        Returns:
            By rank what each call returned, in order.

        Raises:
            EngineLost: naming the process and what to do.
            TargetError: where they cannot be used.
        """
        self.refuse_lost()
        with self._lock:
            self.stages.clear()
            pending = {}
            for rank, given in arguments.items():
                log = self._engines.log_of(rank)
                request = engine.Request(function, pickle.dumps(given), log)
                pending[rank] = self._engines.call(rank, request)
            try:
                answers = self._answers(pending, poll, progress)
            except BaseException as error:
                if pending or isinstance(error, EngineLost):
                    # Nothing else ends what XLA does.
                    self._break(error)
                raise
            return dict(sorted(answers.items()))

    def _answers(
        self,
        pending: dict[int, Any],
        poll: Callable[[], None],
        progress: Callable[[str], None],
    ) -> dict[int, Any]:
        """The answers by rank; `pending` keeps the calls that are not answered."""
        answers: dict[int, Any] = {}
        raised: list[Exception] = []
        failed: tuple[int, Failure, float] | None = None
        stopped: dict[int, float] = {}  # since when a process is
        while pending:
            wait(list(pending.values()), _POLL, FIRST_COMPLETED)
            for rank in [rank for rank, one in pending.items() if one.ready()]:
                error = None
                try:
                    answers[rank] = cluster.answer_of(pending[rank])
                    error = getattr(answers[rank], "process", _NOTHING).error
                except EngineLost:
                    raise self._first_lost(rank, pending, stopped) from None
                except Exception as refused:  # noqa: BLE001  whatever the engine raised
                    raised.append(refused)
                    error = Failure(self.stages.get(rank, "target"), str(refused))
                del pending[rank]
                if error is not None and failed is None:
                    failed = rank, error, time.monotonic()
            poll()
            # A stage that has begun is shown while the call still runs.
            for rank, one in pending.items():
                stage = cluster.stage_of(one)
                if stage and stage != self.stages.get(rank):
                    self.stages[rank] = stage
                    progress(stage)
            self._refuse_lost_or_stopped(pending, stopped)
            if pending and failed and time.monotonic() - failed[2] > _AFTER_ERROR:
                raise Failed(self._waited_for(*failed[:2], pending))
        if raised:
            raise raised[0]
        return answers

    def _refuse_lost_or_stopped(
        self, pending: Mapping[int, Any], stopped: dict[int, float]
    ) -> None:
        """Raises where an engine has ended, or has been stopped for long."""
        now = time.monotonic()
        stopped_now = self._engines.stopped()
        for rank in pending:
            if rank not in stopped_now:
                stopped.pop(rank, None)
            elif now - stopped.setdefault(rank, now) > self.heartbeat:
                raise self._first_lost(rank, pending, stopped)
        for rank in self._engines.ended():
            if rank in pending:
                raise self._first_lost(rank, pending, stopped)

    def _first_lost(
        self, lost: int, pending: Mapping[int, Any], stopped: Mapping[int, float]
    ) -> EngineLost:
        """The error where a process is lost: of that one, or of the one it waited for.

        A process aborts where it hears nothing of a stopped one for as long as we wait
        ourselves, so it may be seen to end first.
        """
        for rank in self._engines.stopped():
            if rank in pending:
                seconds = time.monotonic() - stopped.get(rank, time.monotonic())
                end = Stopped(seconds=seconds, group=self._group)
                return self._lost(rank, end, pending[rank])
        rank, end = self._ended_from_outside(
            {lost, *self._engines.ended()} & {lost, *pending}
        )
        return self._lost(rank, end, pending.get(rank))

    def _ended_from_outside(self, ranks: Iterable[int]) -> tuple[int, ProcessEnd]:
        """The process that a signal ended, else the first of those that have ended.

        When one process is lost the others abort, so several may have ended by now.
        """
        ends = {rank: self._engines.end_of(rank) for rank in sorted(ranks)}
        for rank, end in ends.items():
            if isinstance(end, Exited) and end.code in (
                -signal.SIGKILL,
                -signal.SIGTERM,
            ):
                return rank, end
        for rank, end in ends.items():
            # A process that aborts prints the reason; a killed one cannot.
            is_silent = isinstance(end, Exited) and end.code is None and not end.printed
            if is_silent or isinstance(end, Lost):
                return rank, end
        return next(iter(ends.items()))

    def refuse_lost(self) -> None:
        """Refuses a group that cannot be used, or of which an engine has ended since.

        Raises:
            TargetError: naming it, and what to do.
        """
        if os.getpid() != self._engines.kernel:
            raise TargetError(GroupForked(self.name))
        self.require_usable()
        if ended := self._engines.ended():
            error = self._lost(*self._ended_from_outside(ended))
            self._break(error)
            raise error

    def _lost(self, rank: int, end: ProcessEnd, call: Any = None) -> EngineLost:
        """The error for a process that ended or was stopped, and the call it was in."""
        process = f"Process {rank}"
        if rank < len(self.processes):
            process = f"P{self.processes[rank].words[1:]}"
        stage = "" if call is None else cluster.stage_of(call)
        return EngineLost(replace(end, process=process, stage=stage))

    def _waited_for(
        self, rank: int, error: Failure, pending: Mapping[int, Any]
    ) -> Failure:
        """The error where one process failed and the others wait for it."""
        waiting = tuple(sorted(pending))
        cause = OthersWait(rank, waiting, self._group)
        return replace(
            error, said=error.message, cause=cause, processes="", largest_arrays=None
        )

    @property
    def _group(self) -> Group:
        return "foreign" if self._engines.cluster is None else "own"

    def _break(self, error: BaseException) -> None:
        self.problem = str(GroupInterrupted(self.name))
        if isinstance(error, (TargetError, Failed)):
            self.problem = str(error)
        self._end()


_NOTHING = ProcessReport(0, "", 0, ())


def _group_of(places: Mapping[int, Place]) -> str:
    """The group that the engines have joined before; `""` for none.

    Raises:
        TargetError: where engines have other versions, jax has started, or some have
            joined.
    """
    own = engine.describe().versions
    for rank, place in places.items():
        for what, version in place.versions.items():
            if version != own[what]:
                raise TargetError(
                    f"Engine {rank} on {place.host} has {what} {version}, and this"
                    f" kernel has {own[what]}. A program is sent as its lowered module,"
                    " which other versions may not read: install the same there."
                )
    groups = {place.group for place in places.values()}
    # They cannot join twice, but they are together already.
    if len(groups) == 1 and groups != {""}:
        return groups.pop()
    for rank, place in places.items():
        if place.started or place.group:
            raise TargetError(
                f"jax has started its devices in engine {rank} (pid {place.pid} on"
                f" {place.host}) already, and cannot join others any more. Restart the"
                " engines, and use sv.hosts before anything else runs on them."
            )
    return ""


def running() -> list[Hosts]:
    """The Hosts that were started in this kernel and can be used."""
    alive = [ref() for ref in _STARTED]
    return [hosts for hosts in alive if hosts is not None and not hosts.problem]


def running_targets() -> list[Target]:
    """The running Hosts as targets."""
    targets = []
    for hosts in running():
        platform, count = hosts.processes[0].platform, len(hosts.processes)
        target = Target("hosts", platform, hosts.devices, hosts.name, processes=count)
        targets.append(target)
    return targets


def keep_started(hosts: Hosts, by_text: bool = False) -> None:
    """Notes Hosts that were started here, so that text finds them.

    Args:
        hosts: the Hosts.
        by_text: whether text has started them, so that nobody else holds them.
    """
    if by_text:
        _BY_TEXT.append(hosts)
    else:
        _STARTED.append(weakref.ref(hosts))
