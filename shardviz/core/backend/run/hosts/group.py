"""Hosts: several processes as one target, called together and watched meanwhile."""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shardviz.core.backend.run.hosts import cluster, engine
from shardviz.core.backend.run.hosts.cluster import EngineLost, Engines, Pending
from shardviz.core.backend.run.hosts.engine import Joining, Place
from shardviz.core.backend.run.runner import Failed
from shardviz.core.backend.run.worker import messages
from shardviz.core.errors import TargetError
from shardviz.core.format import joined, plural
from shardviz.core.program.processes import ProcessGroup
from shardviz.core.program.program import Target
from shardviz.core.program.report import Failure

HEARTBEAT = 10  # seconds
_POLL = 0.02
_POLLS_PER_CHECK = 5
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
        self._lock, self._maker = threading.RLock(), os.getpid()
        cluster.at_end(self, "_end_at_exit", "_forget")
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
        hosts = {place.host for place in places.values()}
        for rank, place in places.items():
            if place.host == engine.describe().host:
                self._engines.pids[rank] = place.pid
        group = _group_of(places) or uuid.uuid4().hex
        name = "127.0.0.1" if len(hosts) == 1 else ""
        address = self.call("coordinator_address", {0: (name,)})[0]
        how = Joining(group, address, count, 0, platform, devices, self.heartbeat)
        each = {rank: (replace(how, rank=rank),) for rank in everyone}
        self.processes = tuple(self.call("join", each).values())
        sizes = {len(p.device_ids) for p in self.processes}
        size = str(sizes.pop()) if len(sizes) == 1 else "different numbers of devices"
        self.name = f"{plural(count, 'host')} x {size}, {self._engines.title}"

    @property
    def client(self) -> Any:
        """ipyparallel's client of these engines, to run code of your own on them.

        `hosts.client[:].apply_sync(function)` gives what it returned in each, by rank.
        """
        if os.getpid() != self._maker:
            raise TargetError(self.problem)
        self.require_usable()
        return self._engines.client

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_maker") and not is_finalizing():
            self._close("Nobody held them any more.")

    def close(self) -> None:
        """Ends the engines that were started here, and lets go of others."""
        self._close("They were closed. Start others with sv.hosts.")

    def restart(self) -> Hosts:
        """Starts new engines in place of these, also where they are broken.

        Returns:
            Itself.

        Raises:
            TargetError: for engines that were not started here.
        """
        if os.getpid() != self._maker:
            raise TargetError(self.problem)
        if not self._engines.own:
            raise TargetError(
                "These engines were not started here. Restart them where they were"
                " started, such as with cluster.restart_engines_sync(), and call"
                " sv.hosts again."
            )
        count = len(self._engines.ids)
        self._engines.end()
        self._engines = cluster.start(count, self._asked[1] or "cpu")
        self.problem = ""
        self._join()
        return self

    def _close(self, why: str) -> None:
        if os.getpid() != self._maker:
            return
        self.problem = self.problem or f"{self.name or 'The engines'}: {why}"
        self._engines.end()
        _STARTED[:] = [ref for ref in _STARTED if ref() not in (None, self)]
        _BY_TEXT[:] = [other for other in _BY_TEXT if other is not self]

    def _end_at_exit(self) -> None:
        self._close("Python has ended.")

    def _forget(self) -> None:
        self.problem = (
            f"{self.name} belongs to the process that started it, of which this one is"
            " a fork. Start others here with sv.hosts."
        )
        self._lock = threading.RLock()
        self._engines.forget()

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
        with self._lock:
            self.refuse_lost()
            self.stages.clear()
            pending = {}
            for rank, given in arguments.items():
                log = self._engines.log_of(rank)
                request = engine.Request(function, messages.packed(given), log)
                pending[rank] = self._engines.call(rank, request)
            try:
                answers = self._answers(pending, poll, progress)
            except EngineLost as lost:
                self._break(str(lost))
                raise
            except BaseException as error:
                if pending:  # nothing else ends what XLA does
                    why = "The last call was interrupted, which ends its processes."
                    if isinstance(error, (TargetError, Failed)):
                        why = str(error)
                    self._break(why)
                raise
            return dict(sorted(answers.items()))

    def _answers(
        self,
        pending: dict[int, Pending],
        poll: Callable[[], None],
        progress: Callable[[str], None],
    ) -> dict[int, Any]:
        """The answers by rank; `pending` keeps the calls that are not answered."""
        answers: dict[int, Any] = {}
        begun = time.monotonic()
        heard: dict[int, tuple[int, float]] = dict.fromkeys(pending, (0, begun))
        refused: Exception | None = None
        failed: tuple[int, float] | None = None
        polls = 0
        while pending:
            cluster.wait_for_any(pending, _POLL)
            for rank in [rank for rank, one in pending.items() if one.ready]:
                one = pending.pop(rank)
                try:
                    answers[rank] = one.result()
                except EngineLost:
                    pending[rank] = one
                    raise self._first_lost(rank, pending, heard) from None
                except Exception as error:  # noqa: BLE001  whatever the engine raised
                    refused = refused or error
                process = getattr(answers.get(rank), "process", None)
                is_failed = rank not in answers or (process and process.error)
                if is_failed and failed is None:
                    failed = rank, time.monotonic()
            poll()
            for rank, one in pending.items():
                stage = one.published("stage", "")
                if stage and stage != self.stages.get(rank):
                    self.stages[rank] = stage
                    progress(stage)
            polls += 1
            if polls % _POLLS_PER_CHECK == 0:
                self._refuse_silent(pending, heard)
            if pending and failed and time.monotonic() - failed[1] > _AFTER_ERROR:
                raise self._waited_for(failed[0], answers, refused, pending)
        if refused is not None:
            raise refused
        return answers

    def _refuse_silent(
        self, pending: Mapping[int, Pending], heard: dict[int, tuple[int, float]]
    ) -> None:
        """Raises where an engine has ended, or has said nothing for long.

        Args:
            heard: by rank the last beat of an engine, and when it was new.
        """
        ended = set(self._engines.ended())
        for rank in pending:
            if rank in ended:
                raise self._first_lost(rank, pending, heard)
        now = time.monotonic()
        for rank, one in pending.items():
            beat = one.published("beat", 0)
            if beat != heard[rank][0]:
                heard[rank] = beat, now
            silent = now - heard[rank][1]
            # A process of this machine may be late, as it computes; it is not lost.
            if silent > self.heartbeat and self._engines.is_stopped(rank):
                raise self._silent(rank, one, silent)

    def _first_lost(
        self,
        ended: int,
        pending: Mapping[int, Pending],
        heard: Mapping[int, tuple[int, float]],
    ) -> EngineLost:
        """The error where a process has ended: of that one, or of the one it waited for.

        A process aborts where it hears nothing of a stopped one for as long as we wait
        ourselves, so it may be seen to end first.
        """
        for rank, one in pending.items():
            if rank in self._engines.pids and self._engines.is_stopped(rank):
                return self._silent(rank, one, time.monotonic() - heard[rank][1])
        return self._lost(ended, pending[ended])

    def _silent(self, rank: int, call: Pending, seconds: float) -> EngineLost:
        why = f"was stopped, or its machine is gone: silent for {seconds:.0f} s."
        return self._lost(rank, call, why)

    def refuse_lost(self) -> None:
        """Refuses a group that cannot be used, or of which an engine has ended since.

        Raises:
            TargetError: naming it, and what to do.
        """
        self.require_usable()
        for rank in self._engines.ended():
            error = self._lost(rank)
            self._break(str(error))
            raise error

    def _lost(
        self, rank: int, call: Pending | None = None, why: str = ""
    ) -> EngineLost:
        """The error for a process that ended or does not answer.

        Args:
            rank: which.
            call: the call that it was answering, if any.
            why: what happened to it; found out where left out.
        """
        stage = "" if call is None else call.published("stage", "")
        who = f"Process {rank}"
        if rank < len(self.processes):
            who = f"P{self.processes[rank].words[1:]}"
        at = f" in the stage {stage!r}" if stage else ""
        lacks_memory = False
        if not why:
            exit, printed = self._engines.exit_of(rank)
            if exit is None:
                why = f"ended{at}; what it printed is on its machine."
            else:
                said = f" It said: {printed}" if printed else ""
                why = f"ended{at}: {exit}.{said}"
                lacks_memory = exit.lacks_memory
        lost = EngineLost(f"{who} {why} {self._what_now}", stage)
        lost.lacks_memory = lacks_memory
        return lost

    def _waited_for(
        self,
        rank: int,
        answers: Mapping[int, Any],
        refused: Exception | None,
        pending: Mapping[int, Pending],
    ) -> Failed:
        """The error where one process failed and the others wait for it."""
        error = Failure(self.stages.get(rank, "target"), str(refused))
        if rank in answers:
            error = answers[rank].process.error
        waiting = joined(f"process {r}" for r in sorted(pending))
        message = (
            f"Process {rank}: {error.message} It would be waited for by {waiting}."
            f" {self._what_now}"
        )
        return Failed(
            Failure(error.stage, message, error.source, lacks_memory=error.lacks_memory)
        )

    @property
    def _what_now(self) -> str:
        if self._engines.own:
            return (
                "The other processes were ended too, as they would wait for it. Your"
                " kernel is not touched: hosts.restart() starts them anew."
            )
        return (
            "The others of its group are lost with it. Your kernel is not touched:"
            " restart the engines where they were started, and call sv.hosts again."
        )

    def _break(self, why: str) -> None:
        self.problem = why if self._what_now in why else f"{why} {self._what_now}"
        if self._engines.own:
            self._engines.end()


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
