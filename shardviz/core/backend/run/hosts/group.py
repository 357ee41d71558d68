"""Hosts: several processes as one target, called together and watched while they
answer.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardviz.core.backend.devices import host_available, host_total
from shardviz.core.backend.run.hosts import cluster, engine
from shardviz.core.backend.run.hosts.cluster import EngineLost, Engines, Pending
from shardviz.core.backend.run.hosts.engine import Joining, Place
from shardviz.core.backend.run.runner import Failed
from shardviz.core.backend.run.worker import messages
from shardviz.core.backend.run.worker.process import memory_of
from shardviz.core.errors import TargetError
from shardviz.core.format import bytes_text, joined, plural
from shardviz.core.program.processes import ProcessGroup, ProcessReport
from shardviz.core.program.program import Target
from shardviz.core.program.report import Failure, Report

HEARTBEAT = 10  # seconds
_POLL = 0.02
_POLLS_PER_CHECK = 5
_LEAST_SILENCE = 2.5  # seconds: an engine says every second that it lives
_AFTER_ERROR = 2.0  # seconds in which the others may end by themselves
_SPARE = 0.02  # the part of the machine's memory that is kept free
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
        #: What was compiled, by the key that the engines keep it under.
        self._prepared: dict[str, PreparedProgram] = {}
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
        self._engines.pids = _local_pids(places)
        group = _group_of(places) or uuid.uuid4().hex
        same = len({place.host for place in places.values()}) == 1
        address = self.call("coordinator_address", {0: ("127.0.0.1" if same else "",)})[
            0
        ]
        how = Joining(group, address, count, 0, platform, devices, self.heartbeat)
        found = self.call(
            "join", {rank: (replace(how, rank=rank),) for rank in everyone}
        )
        self.processes = tuple(found[rank] for rank in everyone)
        sizes = {len(p.device_ids) for p in self.processes}
        each = str(sizes.pop()) if len(sizes) == 1 else "different numbers of devices"
        self.name = f"{plural(count, 'host')} x {each}, {self._engines.title}"

    @property
    def client(self) -> Any:
        """ipyparallel's client of these engines, to run code of your own in every
        process.

        `hosts.client[:].apply_sync(function)` gives what it returned in each, by rank.
        """
        self._require_maker()
        self.require_usable()
        return self._engines.client

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if (
            hasattr(self, "_maker") and not is_finalizing()
        ):  # nobody can use them any more
            self._close("Nobody held them any more.")

    def close(self) -> None:
        """Ends the engines that were started here, and lets go of others."""
        self._close("They were closed. Start others with sv.hosts.")

    def restart(self) -> Hosts:
        """Starts new engines in place of these, also where they are broken; returns
        itself.

        Raises:
            TargetError: for engines that were not started here and that ipyparallel
                cannot restart.
        """
        engines, platform = self._engines, self._asked[1]
        self._require_maker()
        if engines.own:
            engines.end()
            self._engines = cluster.start(len(engines.ids), platform or "cpu")
        else:
            self._engines = engines.restarted()
        self._prepared.clear()
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
            f"{self.name} belongs to the process that started it, of which this one is a fork."
            " Start others here with sv.hosts."
        )
        self._lock = threading.RLock()
        self._engines.forget()

    def _require_maker(self) -> None:
        if os.getpid() != self._maker:
            raise TargetError(self.problem)

    def call(
        self,
        function: str,
        arguments: Mapping[int, tuple[Any, ...]],
        poll: Callable[[], None] = lambda: None,
        progress: Callable[[str], None] = lambda stage: None,
    ) -> dict[int, Any]:
        """Calls a function of `engine` on some of the engines, and waits for their
        answers.

        Where an engine ends, is stopped for long or fails while others wait for it, all
        are ended.

        Args:
            function: its name.
            arguments: by rank, those of each call.
            poll: called repeatedly; what it raises ends the engines.
            progress: called with every stage that an engine enters.

        Raises:
            EngineLost: naming the process and what to do.
            TargetError: where they cannot be used.
        """
        with self._lock:
            self.refuse_lost()
            return self._call(function, arguments, poll, progress)

    def _call(
        self,
        function: str,
        arguments: Mapping[int, tuple[Any, ...]],
        poll: Callable[[], None],
        progress: Callable[[str], None],
    ) -> dict[int, Any]:
        engines = self._engines
        pending = {
            rank: engines.call(
                rank,
                engine.Request(function, messages.packed(given), engines.log_of(rank)),
            )
            for rank, given in arguments.items()
        }
        answers: dict[int, Any] = {}
        try:
            _Waiting(self, pending, answers).wait(poll, progress)
        except EngineLost as lost:
            self._break(str(lost))
            raise
        except BaseException as error:
            if pending:  # nothing else ends what XLA does
                words = "The last call was interrupted, and only its end ends what XLA does."
                self._break(
                    str(error) if isinstance(error, (TargetError, Failed)) else words
                )
            raise
        return dict(sorted(answers.items()))  # they came in any order

    def refuse_lost(self) -> None:
        """Refuses a group that cannot be used, or of which an engine has ended since.

        Raises:
            TargetError: naming it, and what to do.
        """
        self.require_usable()
        lost = [
            rank
            for rank, state in self._engines.states().items()
            if state == cluster.ENDED
        ]
        if lost:
            error = self.lost(lost, "")
            self._break(str(error))
            raise error

    def lost(
        self, ranks: Sequence[int], stage: str, what: str = "ended", why: str = ""
    ) -> EngineLost:
        """The error for processes that ended or do not answer.

        Args:
            ranks: which.
            stage: the stage that the first was in; `""` for none.
            what: what happened to it.
            why: the cause; found out where left out.
        """
        first = ranks[0]
        process = self.processes[first] if first < len(self.processes) else None
        who = f"Process {first}" if process is None else f"P{process.words[1:]}"
        also = f" (and {joined(f'process {rank}' for rank in ranks[1:])})" * (
            len(ranks) > 1
        )
        where = f" in the stage {stage!r}" if stage else ""
        exit, words = self._engines.exit_words(first)
        lost = EngineLost(
            f"{who}{also} {what}{where}: {why or words} {self._what_now}", stage
        )
        lost.lacks_memory = not why and exit.lacks_memory
        return lost

    @property
    def _what_now(self) -> str:
        if self._engines.own:
            return (
                "The other processes were ended too, as they would wait for it. Your kernel is not"
                " touched: hosts.restart() starts them anew."
            )
        return (
            "The others of its group are lost with it. Your kernel is not touched: restart the"
            " engines, with hosts.restart() or where they were started."
        )

    def _break(self, why: str) -> None:
        self.problem = why if "hosts.restart()" in why else f"{why} {self._what_now}"
        self._prepared.clear()
        if self._engines.own:
            self._engines.end()

    def kept(self, key: str) -> PreparedProgram | None:
        """What the engines have compiled under a key."""
        return self._prepared.get(key)

    def keep(self, key: str, compiled: PreparedProgram | None) -> None:
        """Notes what the engines have compiled, or None where they have it no more."""
        self._prepared.pop(key, None)
        if compiled is not None:
            self._prepared[key] = compiled


@dataclass(frozen=True, eq=False)
class PreparedProgram:
    """What all processes made of a program, as `prepare` gave it.

    Attributes:
        report: of the first process.
        processes: what each of them found.

    >>> PreparedProgram(Report("f", ""), ()).report.ok
    True
    """

    report: Report
    processes: tuple[ProcessReport, ...]


class _Waiting:
    """Waits for the answers of several engines, and notices those that will give none."""

    def __init__(
        self, hosts: Hosts, pending: dict[int, Pending], answers: dict[int, Any]
    ) -> None:
        self.hosts, self.pending, self.answers = hosts, pending, answers
        self.failed: tuple[float, int] | None = None
        self.stopped: dict[int, float] = {}
        #: The last beat of each engine, and when it was heard.
        self.heard: dict[int, tuple[int, float]] = dict.fromkeys(
            pending, (0, time.monotonic())
        )
        self.stages = hosts.stages
        self.stages.clear()
        self.error: Exception | None = None

    def wait(self, poll: Callable[[], None], progress: Callable[[str], None]) -> None:
        """Fills in the answers.

        Raises:
            EngineLost: where one will not come.
            Exception: what an engine raised.
        """
        polls = 0
        while self.pending:
            cluster.wait_for_any(self.pending, _POLL)
            self._take()
            if not self.pending:
                break
            poll()
            self._note_stages(progress)
            polls += 1
            if polls % _POLLS_PER_CHECK == 0:
                self._check()
        if self.error is not None:
            raise self.error

    def _take(self) -> None:
        for rank in [rank for rank, p in self.pending.items() if p.ready]:
            stage = self.pending[rank].stage
            try:
                answer = self.answers[rank] = self.pending[rank].result()
            except EngineLost:
                self.stages[rank] = stage
                self._lost([rank])
            except Exception as error:  # noqa: BLE001  whatever the engine raised
                self.error = self.error or error
                self.failed = self.failed or (time.monotonic(), rank)
            else:
                process = getattr(answer, "process", None)
                if (
                    process is not None
                    and process.error is not None
                    and self.failed is None
                ):
                    self.failed = (time.monotonic(), rank)
            del self.pending[rank]

    def _note_stages(self, progress: Callable[[str], None]) -> None:
        for rank, pending in self.pending.items():
            stage, beat = pending.stage, pending.beat
            if beat != self.heard[rank][0]:
                self.heard[rank] = beat, time.monotonic()
            if stage and stage != self.stages.get(rank):
                self.stages[rank] = stage
                progress(stage)

    def _check(self) -> None:
        """Raises where an engine is lost, fails, or takes too much memory."""
        states = self.hosts._engines.states()
        if any(state == cluster.ENDED for state in states.values()):
            self._lost([r for r, state in states.items() if state == cluster.ENDED])
        now = time.monotonic()
        self.stopped = {
            rank: self.stopped.get(rank, now)
            for rank, state in states.items()
            if state == cluster.STOPPED
        }
        for rank, since in self.stopped.items():
            if now - since > self.hosts.heartbeat:
                self._stopped(rank)
        if self.failed is not None and now - self.failed[0] > _AFTER_ERROR:
            self._failed(self.failed[1])
        self._check_memory()

    def _lost(self, ranks: list[int]) -> None:
        if self.stopped:  # the others ended since they had heard nothing of it
            self._stopped(next(iter(self.stopped)))
        silent = sorted(set(self.pending) - set(ranks))
        if self.hosts._engines.own:
            first = [
                r
                for r in ranks
                if not _ended_with_others(self.hosts._engines.printed(r))
            ]
        else:  # what they printed cannot be read here
            since = time.monotonic() - max(_LEAST_SILENCE, self.hosts.heartbeat / 2)
            silent = [rank for rank in silent if self.heard[rank][1] < since]
            first = [] if silent else ranks
        if not first and silent:
            what = f"has said nothing for {self.hosts.heartbeat} s"
            why = "it hangs, was stopped, or its machine is gone."
            raise self._error(silent, what, why)
        raise self._error(first or ranks)

    def _error(
        self, ranks: Sequence[int], what: str = "ended", why: str = ""
    ) -> EngineLost:
        return self.hosts.lost(ranks, self.stages.get(ranks[0], ""), what, why)

    def _stopped(self, rank: int) -> None:
        seconds = time.monotonic() - self.stopped[rank]
        why = f"it has done nothing for {seconds:.1f} s."
        raise self._error([rank], "was stopped from outside (SIGSTOP)", why)

    def _failed(self, rank: int) -> None:
        """Ends those that wait for one that failed."""
        silent = joined(f"process {r}" for r in sorted(self.pending))
        answer = self.answers.get(rank)
        error = answer.process.error if answer is not None else None
        words = error.message if error is not None else str(self.error)
        stage = error.stage if error is not None else self.stages.get(rank, "target")
        raise Failed(
            Failure(
                stage,
                f"Process {rank}: {words} It would be waited for by {silent}."
                f" {self.hosts._what_now}",
                error.source if error is not None else "",
                lacks_memory=error is not None and error.lacks_memory,
            )
        )

    def _check_memory(self) -> None:
        held = {r: memory_of(pid) or 0 for r, pid in self.hosts._engines.pids.items()}
        left, total = host_available(), host_total()
        if not held or left is None or not total or left >= _SPARE * total:
            return
        largest = max(held, key=lambda rank: held[rank])
        if sum(held.values()) > left:
            why = (
                f"it held {bytes_text(held[largest])} and the machine's memory was about to run"
                " out. Use a smaller program, or fewer processes."
            )
            raise self._error([largest], "was ended", why)


def _ended_with_others(printed: str) -> bool:
    """Whether a process ended because jax had lost another one."""
    return any(
        words in printed
        for words in (
            "JAX distributed service detected",
            "coordination service",
            "heartbeat",
        )
    )


def _local_pids(places: Mapping[int, Place]) -> dict[int, int]:
    """The process ids of engines on this machine."""
    own = engine.describe().host
    return {rank: place.pid for rank, place in places.items() if place.host == own}


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
                    f"Engine {rank} on {place.host} has {what} {version}, and this kernel has"
                    f" {own[what]}. A program is sent as its lowered module, which other versions"
                    " may not read: install the same there."
                )
    groups = {place.group for place in places.values()}
    if len(groups) == 1 and groups != {""}:
        return groups.pop()
    for rank, place in places.items():
        if place.started or place.group:
            raise TargetError(
                f"jax has started its devices in engine {rank} (pid {place.pid} on {place.host})"
                " already, and cannot join others any more. Restart the engines, and use sv.hosts"
                " before anything else runs on them."
            )
    return ""


def running() -> list[Hosts]:
    """The Hosts that were started in this kernel and can be used."""
    found = [hosts for ref in _STARTED if (hosts := ref()) is not None]
    return [hosts for hosts in found if not hosts.problem]


def running_targets() -> list[Target]:
    """The running Hosts as targets."""
    return [
        Target(
            "hosts",
            h.processes[0].platform,
            h.devices,
            h.name,
            processes=len(h.processes),
        )
        for h in running()
    ]


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
