"""Work in the background: the latest of many requests; plans; a compile or run; effects; a beat.

All but the beat is done by `LatestWins`. After an edit settles, the program is planned:
milliseconds, no devices. For simulated devices the partitioner then runs, too; for described
hardware that takes many seconds, so it runs only when somebody presses Compile. What XLA has begun
it finishes by itself; the result of cancelled work is dropped.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from shardviz.core.errors import ShardvizError, import_optional
from shardviz.core.format import plural
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program
from shardviz.core.program.report import Failure, Report
from shardviz.widgets.targets import hosts_of, hosts_size, is_simulated, target_title

LAST_WAIT_S = 10.0
BEAT_S = 1.0
SETTLE_S = 0.15
MOST_AUTOMATIC = 512  # devices: beyond, even simulated ones take many seconds
PATIENCE_S = 3.0  # before this a compile is not cancelled: a new worker costs as much
_UNTRACED = ("program", "target", "trace", "lower")
Item = TypeVar("Item")


class LatestWins(Generic[Item]):
    """Does what was requested last, once no other request has come for a while.

    The thread exists only while there is something to do. A request never blocks.

    Args:
        name: of the thread.
        work: does one item; it gets the item and a check whether to stop, because something later
            is due or everything was closed.
        settle_s: seconds without another request before work begins.

    >>> done = []
    >>> latest = LatestWins("example", lambda item, stop: done.append(item), 0.01)
    >>> for number in range(100):
    ...     latest.request(number)
    >>> latest.wait(5), done
    (True, [99])
    """

    def __init__(
        self, name: str, work: Callable[[Item, Callable[[], bool]], None], settle_s: float = 0.0
    ):
        self._name, self._work, self._settle_s = name, work, settle_s
        self._changed = threading.Condition()
        self._next: list[Item] = []  # nothing, or one item
        self._due = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False
        _OPEN.add(self)

    def request(self, item: Item) -> None:
        """Does this next; an item that was requested before and has not begun is dropped."""
        with self._changed:
            if self._closed:
                return
            self._next = [item]
            self._due = time.monotonic() + self._settle_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def drop(self) -> None:
        """Drops an item that has not begun."""
        with self._changed:
            self._next = []
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until there is nothing to do; False where `timeout` seconds were not enough."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def close(self, timeout: float = LAST_WAIT_S) -> None:
        """Takes no more requests, asks running work to stop, and waits for it."""
        with self._changed:
            self._closed, self._next = True, []
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._closed

    def _stop(self) -> bool:
        return self._closed or bool(self._next)

    def _run(self) -> None:
        try:
            while item := self._take():
                self._work(item[0], self._stop)
        except BaseException:
            self._end()
            raise

    def _take(self) -> list[Item]:
        """The next item once it is due; without one the thread ends."""
        with self._changed:
            while self._next and (left := self._due - time.monotonic()) > 0:
                self._changed.wait(left)
            item, self._next = self._next, []
            if not item:
                self._end()
            return item

    def _end(self) -> None:
        with self._changed:
            self._thread = None
            self._changed.notify_all()


_OPEN: weakref.WeakSet[LatestWins] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # A thread inside jax crashes the process when the interpreter ends before it.
    for one in list(_OPEN):
        one.close()


def failure(error: Exception, stage: str, refused: str = "program") -> Failure:
    """Why work ended early: work in a thread must not end without a result.

    Args:
        error: what was raised.
        stage: the stage in which it was raised.
        refused: the stage for errors of shardviz, which are sentences already.

    >>> failure(ValueError("no"), "compile").message, failure(ShardvizError("No."), "compile").stage
    ('ValueError: no', 'program')
    """
    if isinstance(error, ShardvizError):
        return Failure(refused, str(error))
    return Failure(stage, f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class Progress:
    """The kind and the stage of a job, and when it started (seconds since the epoch)."""

    kind: str
    stage: str
    started: float


class Job:
    """One compile or run of one program in the background.

    Args:
        kind: `"compile"` or `"run"`.
        program: what is compiled or run.
        target: what it is compiled for; `""` lets shardviz choose.
        revision: the session's revision when it began.
        cache: of executables.
        changed: called from the thread whenever the stage changes, and once at the end.

    Attributes:
        report: the result; None until the job has ended.
        early: what is known while it still compiles.
        jax_events: the work that jax's own caches did not save, in words.
        engines: of several processes, by rank, the stage that each is in, and since when (epoch
            seconds).
    """

    def __init__(
        self,
        kind: str,
        program: Program,
        target: str,
        revision: int,
        cache: ExecutableCache,
        changed: Callable[[Job], None],
    ):
        self.kind, self.program, self.target, self.revision = kind, program, target, revision
        self.progress = Progress(kind, "starting", time.time())
        self.report: Report | None = None
        self.early: Report | None = None
        self.jax_events = ""
        self.engines: dict[int, tuple[str, float]] = {}
        self._cache, self._changed = cache, changed
        self._worker = LatestWins[None](f"shardviz-{kind}", self._run)

    @property
    def done(self) -> bool:
        """Whether there is a report."""
        return self.report is not None

    def start(self) -> None:
        """Begins."""
        self._worker.request(None)

    def cancel(self) -> None:
        """Ends the job with a report at once; a running compile is dropped when it ends."""
        self._worker.close(0)
        if self.report is None:
            words = f"The {self.kind} was cancelled in the stage {self.progress.stage!r}."
            self._finish(Report(self.program.name, "", error=Failure("cancelled", words)))

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the work has ended; for tests and scripts."""
        self._worker.wait(timeout)

    def _run(self, _: None, cancelled: Callable[[], bool]) -> None:
        try:
            report = self._made(cancelled)
        except Exception as error:  # noqa: BLE001  a compile or run may raise anything
            report = Report(self.program.name, "", error=failure(error, self.progress.stage))
        if not cancelled():
            self._finish(report)

    def _made(self, cancelled: Callable[[], bool]) -> Report:
        # Here, and not at the top: only Compile and Run need jax.
        from shardviz.core.backend.listening import jax_cache_events

        def enter(stage: str) -> None:
            if not cancelled():
                self.progress = Progress(self.kind, stage, self.progress.started)
                self._note_engines()
                self._changed(self)

        def preview(report: Report) -> None:
            if not cancelled():
                self.early = report
                self._changed(self)

        several = "hosts" if hosts_size(self.target) is not None else "worker"
        run = import_optional(f"shardviz.core.backend.{several}.run", "sv.run", "jax")
        make = run.compile_program if self.kind == "compile" else run.run_program
        with jax_cache_events() as seen:
            report = make(
                self.program,
                target=self.target or None,
                cache=self._cache,
                progress=enter,
                cancelled=cancelled,
                preview=preview,
            )
        words = [plural(seen.traces, "trace"), plural(seen.lowerings, "lowering")]
        self.jax_events = ", ".join([*words, plural(seen.compiles, "compile")])
        return report

    def _note_engines(self) -> None:
        """Notes when each of several processes entered its stage."""
        stages = getattr(hosts_of(self.target), "stages", {})
        for rank, stage in dict(stages).items():
            if self.engines.get(rank, ("", 0.0))[0] != stage:
                self.engines[rank] = (stage, time.time())

    def _finish(self, report: Report) -> None:
        self.report = report
        self._changed(self)


class Heartbeat:
    """Calls a function every second from a thread of its own, whatever the main thread does.

    Args:
        beat: what is called. Where it raises, the next one may still reach the page; a front end
            that takes no such messages has the page expect none.
    """

    def __init__(self, beat: Callable[[], None]):
        self._beat = beat
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins, unless it has."""
        if self._thread is None and not self._ended.is_set():
            self._thread = threading.Thread(target=self._run, name="shardviz-alive", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ends."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(Exception):  # of any front end
                self._beat()
            self._ended.wait(BEAT_S)


def keep_subshell(comm: Any) -> None:
    """What the page sends is handled in the subshell that it names.

    ipykernel 7.4 leads it to that of the request for which the kernel sent something last; for what
    a thread sends that is any request, often of a subshell that is deleted by then: after a page
    was loaded anew or its connection was lost, no edit would arrive. Other comms stay as they are.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, named: named


class EffectsReader:
    """Reads the effects of the latest program. That traces it, so no edit waits for it.

    Attributes:
        view: for the page; its `state` is `"none"`, `"reading"` or `"done"`.
    """

    def __init__(self, changed: Callable[[], None]):
        self.view: dict[str, Any] = {"state": "none", "revision": -1}
        self._changed = changed
        self._predictions = LatestWins[tuple[Program, int]]("shardviz-effects", self._predict)
        self._observations = LatestWins[tuple[Program, int, str]]("shardviz-observe", self._observe)

    def read(self, program: Program, revision: int) -> None:
        """Begins to read, unless this very revision was read or is being read."""
        if self.view["revision"] != revision:
            self.view = {"state": "reading", "revision": revision}
            self._predictions.request((program, revision))

    def observe(self, program: Program, revision: int, target: str) -> None:
        """Runs the program and records the order of its effects, once they have been read."""
        if self.view["state"] == "done" and self.view["revision"] == revision:
            self._show(revision, {**self.view, "watching": True})
            self._observations.request((program, revision, target))

    def _predict(self, request: tuple[Program, int], stop: Callable[[], bool]) -> None:
        program, revision = request
        try:
            found = effects_view(program)
        except Exception as error:  # noqa: BLE001  a user's function may raise anything when traced
            found = {"problem": failure(error, "").message}
        self._show(revision, {"state": "done", "revision": revision, **found})

    def _observe(self, request: tuple[Program, int, str], stop: Callable[[], bool]) -> None:
        program, revision, target = request
        try:
            from shardviz.core.backend.worker.effects import observed_order

            seen = observed_order(program, target=target or None)
            found = {"observed": seen.rows(), "failed": str(seen.report.error or "")}
        except Exception as error:  # noqa: BLE001  a user's callback may raise anything
            found = {"observed": [], "failed": failure(error, "").message}
        self._show(revision, {**self.view, "watching": False, **found})

    def _show(self, revision: int, view: dict[str, Any]) -> None:
        """Shows a view unless it is of a program that is no longer the latest."""
        if self.view["revision"] == revision:
            self.view = view
            self._changed()


def effects_view(program: Program) -> dict[str, Any]:
    """The Effects tab of one program, as plain data."""
    # Here, and not at the top: the Explorer opens and edits without jax.
    from shardviz.core.backend.worker.effects import predict

    found = predict(program)
    runs, sentence = found.runs_on(program.mesh.size)
    return {
        "runs": runs,
        "sentence": sentence,
        "devices": found.devices,
        "rows": found.rows(),
        "tokens": [str(token) for token in found.tokens or ()],
        "note": found.note,
    }


MakePlan = Callable[[Program], Plan]
Partition = Callable[[Program, str, Callable[[], bool], Callable[[Report], None]], Report]


@dataclass(frozen=True)
class PlanRequest:
    """The program of one revision, and its target.

    Attributes:
        only_plan: whether the partitioner does not run after it.
    """

    program: Program
    revision: int
    target: str
    only_plan: bool = False


@dataclass(frozen=True)
class PlannerState:
    """The results for the latest program so far.

    Attributes:
        plan: the last plan; `plan_revision` is the session's revision that it belongs to.
        report: of partitioner and compiler; None where they have not run.
        report_revision, report_target, program: what the report is of.
        stage: the running work: `"planning"`, `"partitioning"`, `"compiling"` or `""`.
        reason: why the partitioner does not run by itself; `""` where it does.

    >>> PlannerState().plan is None, PlannerState().stage
    (True, '')
    """

    plan: Plan | None = None
    plan_revision: int = -1
    report: Report | None = None
    report_revision: int = -1
    report_target: str = ""
    program: Program | None = None
    stage: str = ""
    reason: str = ""


class Planner:
    """Plans every program of a session that settles, then runs the partitioner.

    Args:
        changed: called from the thread whenever `state` changes.
        cache: of executables.
        make_plan, partition: for tests; else Shardy and the compiler.
        settle_s: seconds without an edit before a plan begins.

    Attributes:
        state: the results so far.
    """

    def __init__(
        self,
        changed: Callable[[], None],
        cache: ExecutableCache,
        make_plan: MakePlan | None = None,
        partition: Partition | None = None,
        settle_s: float = SETTLE_S,
    ):
        self.state = PlannerState()
        self._writing = threading.Lock()
        self._changed = changed
        self._make_plan = make_plan or plan_of
        self._partition = partition or partial(compiled, cache)
        self._plans = LatestWins[PlanRequest]("shardviz-plan", self._plan, settle_s)
        self._compiles = LatestWins[PlanRequest]("shardviz-partition", self._compile)
        self._requested: tuple[int, str] | None = None

    def request(self, program: Program, revision: int, target: str) -> None:
        """Plans this program next, unless it was the last one requested. Never blocks."""
        if self._requested != (revision, target):
            self._requested = (revision, target)
            self._compiles.drop()
            self._plans.request(PlanRequest(program, revision, target))

    def plan_now(self, program: Program, revision: int, target: str, timeout: float) -> bool:
        """Plans this program unless it is planned, and does not run the partitioner.

        Returns:
            Whether there is a plan of it within `timeout` seconds.
        """
        if self.state.plan_revision != revision and self._requested != (revision, target):
            self._plans.request(PlanRequest(program, revision, target, only_plan=True))
        self._plans.wait(timeout)
        return self.state.plan_revision == revision

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until no work is left; for scripts and tests."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not (self._plans.wait(left) and self._compiles.wait(left)):
                return False
            if self._plans.wait(0.0):
                return True

    def close(self) -> None:
        """Ends all work and its threads."""
        self._plans.close()
        self._compiles.close()

    def _plan(self, request: PlanRequest, stop: Callable[[], bool]) -> None:
        try:
            self._plan_and_compile(request, stop)
        except Exception as error:  # noqa: BLE001  a thread must not end without a result
            self._update(stage="", reason=f"not run: {failure(error, '').message}")

    def _plan_and_compile(self, request: PlanRequest, stop: Callable[[], bool]) -> None:
        program = request.program
        plan = self.state.plan
        if plan is None or self.state.plan_revision != request.revision:
            self._update(stage="planning")
            try:
                plan = self._make_plan(program)
            except Exception as error:  # noqa: BLE001  a thread must not end without a result
                plan = Plan(program.name, program.mesh, error=failure(error, "propagate"))
            if stop():
                return  # a later request is due
            self._update(plan=plan, plan_revision=request.revision)
        reason = why_not_automatic(program, request.target)
        # What cannot be traced cannot be compiled, for the same reason.
        if plan.error is not None and plan.error.stage in _UNTRACED:
            reason = "not run: there is no plan"
        compiles = not reason and not request.only_plan
        self._update(reason=reason, stage="partitioning" if compiles else "")
        if compiles:
            self._compiles.request(request)

    def _compile(self, request: PlanRequest, stop: Callable[[], bool]) -> None:
        begun = time.monotonic()
        program, revision, target = request.program, request.revision, request.target
        old = lambda: self._requested != (revision, target)  # noqa: E731

        def cancelled() -> bool:
            return self._compiles.closed or (
                (old() or stop()) and time.monotonic() - begun > PATIENCE_S
            )

        def show(report: Report, stage: str) -> None:
            if not old() and not self._compiles.closed:
                self._update(
                    report=report,
                    report_revision=revision,
                    report_target=target,
                    program=program,
                    stage=stage,
                )

        try:
            report = self._partition(program, target, cancelled, lambda r: show(r, "compiling"))
        except Exception as error:  # noqa: BLE001  a thread must not end without a result
            report = Report(program.name, "", error=failure(error, "compile", refused="target"))
        show(report, "")

    def _update(self, **known: Any) -> None:
        with self._writing:  # two threads write
            self.state = replace(self.state, **known)
        if not self._plans.closed:
            self._changed()


def plan_of(program: Program) -> Plan:
    """The plan of a program, by Shardy."""
    # Here, and not at the top: the Explorer opens and edits without jax.
    from shardviz.core.backend.shardy.build_plan import plan_program

    return plan_program(program)


def compiled(
    cache: ExecutableCache,
    program: Program,
    target: str,
    cancelled: Callable[[], bool],
    preview: Callable[[Report], None],
) -> Report:
    """The report of partitioner and compiler on a program."""
    from shardviz.core.backend.devices import give_back_freed
    from shardviz.core.backend.worker import run

    report = run.compile_program(
        program, target=target or None, cache=cache, cancelled=cancelled, preview=preview
    )
    give_back_freed()  # of the plan, too
    return report


def why_not_automatic(program: Program, target: str) -> str:
    """Why the partitioner runs only when somebody presses Compile; `""` where it does not wait.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> why_not_automatic(Program(abs, (), make_mesh(data=8)), "tpu:v5e:2x4")
    'press Compile: the compiler for TPU v5e 2×4 takes a while'
    >>> why_not_automatic(Program(abs, (), make_mesh(data=8)), "")
    ''
    """
    if hosts_size(target) is not None:
        return "press Compile to compile it in every process"
    if not is_simulated(target):
        if target == "attached":
            return "press Compile to run the compiler of the attached devices"
        return f"press Compile: the compiler for {target_title(target)} takes a while"
    if program.mesh.size > MOST_AUTOMATIC:
        return (
            f"an estimate only: {program.mesh.size:,} devices are many to simulate; choose"
            " described hardware, or press Compile"
        )
    return ""
