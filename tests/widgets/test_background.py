"""Work in the background: plans, compiles and runs, whatever is edited and cancelled meanwhile."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest
from comm import DummyComm

from shardviz.base.collective import Collective
from shardviz.base.errors import TargetError
from shardviz.base.mesh import make_mesh
from shardviz.compiled.panel.stages_view import StageViews
from shardviz.compiled.report import Report
from shardviz.explorer import planner as planner_module
from shardviz.explorer import target_panel
from shardviz.explorer.background import Beats, LatestWins, close_together, start_beats
from shardviz.explorer.explorer import Explorer, open_explorer
from shardviz.explorer.ipykernel_compat import keep_subshell
from shardviz.explorer.planner import MOST_OPERATIONS, Job, Planner, why_not_automatic
from shardviz.explorer.session import Session
from shardviz.gallery import programs
from shardviz.move.panel.movements_view import movement_view
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import PlannedOp
from shardviz.programs.failure import Failure
from shardviz.programs.program import Program
from shardviz.runs.cache import ExecutableCache
from tests.program.helpers import in_new_python

ONE = Collective("all-reduce", ("data",), 1024)


def until(stop) -> None:
    latest = time.monotonic() + 60
    while not stop():
        assert time.monotonic() < latest, "waited 60 s"
        time.sleep(0.005)


# --- the latest of many requests ----------------------------------------------------------


def test_one_at_a_time_and_a_later_request_stops_the_running_one():
    began, ended, failed = threading.Event(), [], []

    def work(item: int, stop) -> None:
        began.set()
        if item == 1:
            until(stop)
        ended.append(item)
        raise OSError(str(item))

    latest = LatestWins[int]("test", work, lambda item, error: failed.append((item, str(error))))
    latest.request(1)
    assert began.wait(60)
    for item in (2, 3):
        latest.request(item)
    assert latest.wait(60)
    assert ended == [1, 3]
    assert failed == [(1, "1"), (3, "3")]


def test_nobody_waits_for_abandoned_work_and_no_thread_is_left():
    hold, ended = threading.Event(), []

    def work(item: int, stop) -> None:
        if item == 1:
            hold.wait(60)
            assert stop()
        ended.append(item)

    latest = LatestWins[int]("test of threads", work, lambda item, error: ended.append(error))
    latest.request(1)
    time.sleep(0.02)
    latest.abandon()
    assert latest.wait(0)
    latest.request(2)
    assert latest.wait(60)
    assert ended == [2]
    hold.set()
    latest.close(60)
    latest.request(3)
    time.sleep(0.05)
    assert ended == [2, 1]
    assert [t for t in threading.enumerate() if t.name == "test of threads"] == []


# --- plans, compiles and runs -------------------------------------------------------------


def program(size: int = 8) -> Program:
    return Program(abs, (), make_mesh(data=size), name=f"on {size}")


class Pretended:
    """Shardy and the compiler, as a test wants them; and what they were asked for."""

    def __init__(self, monkeypatch) -> None:
        self.plans: list[str] = []
        self.jobs: list[tuple[str, str, str]] = []
        self.error: Failure | None = None
        self.raises: Exception | None = None
        self.operations = 1
        self.began, self.hold = threading.Event(), threading.Event()
        self.hold.set()
        monkeypatch.setattr(planner_module, "plan_of", self.plan_of)
        monkeypatch.setattr(planner_module, "do_job", self.do_job)
        monkeypatch.setattr(planner_module, "SETTLE_S", 0.02)
        self.seen: list[tuple[Any, ...]] = []
        self.planner = Planner(self.changed, ExecutableCache())

    def plan_of(self, wanted: Program, platform: str) -> Plan:
        self.plans.append(wanted.name)
        if self.raises is not None:
            raise self.raises
        ops = (PlannedOp("x", "argument"),) * self.operations
        return Plan(wanted.name, wanted.mesh, ops, (ONE,), error=self.error)

    def do_job(self, job: Job, cache, enter, cancelled, preview) -> Report:
        self.jobs.append((job.kind, job.program.name, job.target))
        enter("compile")
        self.began.set()
        preview(Report(job.program.name, job.target, partitioned=(ONE,)))
        while not (self.hold.is_set() or cancelled()):
            time.sleep(0.005)
        found = {"partitioned": (ONE,), "collectives": (ONE,), "compile_s": 0.1}
        return Report(job.program.name, job.target, **found)

    def changed(self) -> None:
        state = self.planner.state
        known = state.report is not None and state.report.collectives is not None
        self.seen.append((state.running, state.report is not None, known))

    def request(self, size: int = 8, revision: int = 1, target: str = "") -> None:
        self.planner.request(program(size), revision, target)


@pytest.fixture
def pretended(monkeypatch):
    made = Pretended(monkeypatch)
    yield made
    made.hold.set()
    made.planner.close()
    for thread in threading.enumerate():
        if thread.name in ("shardviz-plan", "shardviz-compile"):
            thread.join(60)
            assert not thread.is_alive()


def test_the_latest_program_is_planned_and_then_partitioned(pretended):
    for size in (2, 4, 8):
        pretended.request(size, size)
    assert pretended.planner.wait(60)
    state = pretended.planner.state
    assert state.plan.program == state.report.program == "on 8"
    assert (state.plan_revision, state.report_revision) == (8, 8)
    assert ("compiling", True, False) in pretended.seen, "early results are shown early"
    assert pretended.seen[-1] == ("", True, True)
    # Another target runs the partitioner again, and plans nothing.
    plans = list(pretended.plans)
    pretended.request(8, 8, "cpu:16")
    assert pretended.planner.wait(60)
    assert pretended.plans == plans
    assert pretended.plans[-1] == "on 8"
    assert pretended.jobs[-2:] == [("", "on 8", ""), ("", "on 8", "cpu:16")]


@pytest.mark.parametrize(
    ("size", "target", "by_itself"),
    [
        (512, "cpu", True),
        (1024, "", False),
        (8, "tpu:v5e:2x4", False),
        (8, "attached", False),
        (8, "2 hosts x 4, local", False),
    ],
)
def test_only_up_to_512_simulated_devices_are_partitioned_automatically(
    pretended, size, target, by_itself
):
    pretended.request(size, 1, target)
    assert pretended.planner.wait(60)
    assert bool(pretended.jobs) == by_itself
    found = why_not_automatic(program(size), target, 0)
    assert bool(found) != by_itself
    assert pretended.planner.state.not_run == found


def test_a_large_program_is_planned_and_not_compiled_unasked(pretended):
    pretended.operations = MOST_OPERATIONS + 1
    pretended.request()
    assert pretended.planner.wait(60)
    assert pretended.plans
    assert not pretended.jobs
    expected = "Press Compile: compiling 3,001 operations takes a while."
    assert pretended.planner.state.not_run == expected


def test_what_cannot_be_traced_is_not_compiled(pretended):
    pretended.error = Failure("trace", "The shapes do not fit.")
    pretended.request()
    assert pretended.planner.wait(60)
    assert pretended.planner.state.plan.error == pretended.error
    assert pretended.planner.state.not_run
    assert pretended.jobs == []


@pytest.mark.parametrize(
    ("error", "stage"),
    [(TargetError("There is none."), "program"), (ZeroDivisionError("oh"), "propagate")],
)
def test_whatever_planning_raises_becomes_the_plans_error(pretended, error, stage):
    pretended.raises = error
    pretended.request(8, 1, "tpu:v5e:2x4")
    assert pretended.planner.wait(60)
    assert pretended.planner.state.plan.error.stage == stage
    assert str(error) in pretended.planner.state.plan.error.message


def test_an_edit_while_the_partitioner_works_gets_its_plan_and_drops_the_old_report(pretended):
    pretended.hold.clear()
    pretended.request(2, 1)
    assert pretended.began.wait(60)
    pretended.request(4, 2)
    until(lambda: pretended.planner.state.plan_revision == 2)
    pretended.hold.set()
    assert pretended.planner.wait(60)
    assert pretended.planner.state.report.program == "on 4"


@pytest.mark.parametrize("ended", ["before the undo", "after it"])
def test_the_program_is_compiled_once_after_an_edit_and_its_undo(pretended, ended):
    planner = pretended.planner
    pretended.hold.clear()
    pretended.request(2, 1)
    until(lambda: planner.state.report is not None)
    planner._plans._settle_s = 3600  # the other program is never planned
    pretended.request(4, 2)
    if ended == "before the undo":
        pretended.hold.set()
        assert planner._compiles.wait(60)
    planner._plans._settle_s = 0.02
    pretended.request(2, 1)
    with planner._plans._changed:
        planner._plans._changed.notify_all()  # it waits for the other program's hour
    if ended == "after it":
        until(lambda: planner.state.running == "partitioning")
        pretended.hold.set()
    assert planner.wait(60)
    assert pretended.plans == ["on 2"]
    assert planner.state.report.collectives == (ONE,), "not only its preview"
    assert planner.state.running == ""
    compiles = 2 if ended == "before the undo" else 1
    assert pretended.jobs == [("", "on 2", "")] * compiles


def test_collectives_of_a_preview_can_be_played(pretended):
    pretended.hold.clear()
    pretended.request()
    until(lambda: pretended.planner.state.report is not None)
    stages = StageViews(pretended.planner)
    stages.views()
    assert pretended.planner.state.report.mesh is None
    shown = movement_view("1:0", stages, None)
    assert shown["error"] == ""
    assert shown["data"]["devices"] == list(range(8))


def test_a_run_goes_on_whatever_is_edited_and_what_was_edited_is_partitioned_after_it(pretended):
    pretended.hold.clear()
    pretended.planner.start(Job("run", program(2), 1, ""))
    assert pretended.began.wait(60)
    pretended.planner.start(Job("run", program(2), 1, ""))  # once is enough
    pretended.request(4, 2)
    until(lambda: pretended.planner.state.plan_revision == 2)
    assert pretended.planner.busy
    pretended.hold.set()
    assert pretended.planner.wait(60)
    assert pretended.planner.job.report.program == "on 2"
    assert pretended.jobs == [("run", "on 2", ""), ("", "on 4", "")]
    assert pretended.planner.state.report_revision == 2


def test_what_is_cancelled_ends_at_once_and_another_run_can_begin(pretended, monkeypatch):
    pretended.hold.clear()
    pretended.planner.start(Job("run", program(2), 1, ""))
    assert pretended.began.wait(60)
    compiles = pretended.planner._compiles
    abandon = compiles.abandon

    def slowly_abandon() -> None:
        abandon()
        time.sleep(0.05)  # the work sees that it should stop, and returns a report

    monkeypatch.setattr(compiles, "abandon", slowly_abandon)
    pretended.planner.cancel()
    assert not pretended.planner.busy
    assert pretended.planner.job.report.error.stage == "cancelled"
    pretended.hold.set()
    pretended.planner.start(Job("compile", program(4), 2, ""))
    assert pretended.planner.wait(60)
    assert pretended.planner.job.report.program == "on 4"
    assert pretended.planner.state.report.program == "on 4"


def test_what_was_run_is_not_compiled_again_by_itself(pretended):
    pretended.planner.start(Job("run", program(), 1, ""))
    assert pretended.planner.wait(60)
    pretended.request(8, 1)
    assert pretended.planner.wait(60)
    assert pretended.jobs == [("run", "on 8", "")]


def test_an_explorer_plans_once_a_page_shows_it_and_not_before():
    made = Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())
    made.session.edit("mesh", "data=2, model=2")
    assert made.wait(60) is None
    assert made.plan is None
    made._receive(made, {"client": "a", "seq": 1, "intents": [{"kind": "plan"}]}, [])
    made.wait(120)
    assert made.plan.ok
    assert made.stages_data["stages"][0]["state"] == "estimate"
    assert made.plan_data["count"] == len(made.plan.ops)
    made.close()


LOGS = """
import jax
import shardviz as sv
def log(x):
    jax.debug.print("sum {}", x.sum())
    return x * 2
explorer = sv.explore(sv.program(log, sv.array("x", (8, 8), spec="data"), mesh="data=4"))
explorer.follow()
explorer.wait(60)
explorer.run()
explorer.wait(60)
print([stage["text"] for stage in explorer.stages_data["stages"]], explorer.report.error)
explorer.close()
"""


def test_a_planned_program_with_callbacks_still_runs_in_its_kernel():
    # Planning starts jax, which must have enough simulated devices by then.
    stages = "['1 collective', '1', '1 · 6 B', '✓ 2 of 3'] None"
    assert in_new_python(LOGS).splitlines()[-1] == stages


# --- signs of life ------------------------------------------------------------------------


class Comm(DummyComm):
    """A comm of ipykernel 7.4 that sent something for a request of another subshell."""

    def _reply_subshell_for(self, data, default):
        return "another"


def test_what_the_page_sends_goes_to_the_subshell_that_it_names():
    other, comm = Comm(), Comm()
    explorer = open_explorer(None, ExecutableCache())
    explorer.comm = comm = Comm(target_name="jupyter.widget")
    assert comm._reply_subshell_for({"method": "custom"}, "the page's") == "the page's"
    assert other._reply_subshell_for({}, "the page's") == "another"
    keep_subshell(bare := object())  # as of other front ends
    assert not hasattr(bare, "_reply_subshell_for")
    explorer.close()


def test_a_beat_that_fails_is_not_the_last(monkeypatch):
    monkeypatch.setattr("shardviz.explorer.background.BEAT_S", 0.01)
    beats, again = [], threading.Event()

    def beat() -> None:
        beats.append(len(beats))
        if len(beats) in (1, 3):
            raise OSError("the connection is being made anew")
        if len(beats) > 4:
            again.set()

    ended = start_beats(beat)
    assert again.wait(60)
    ended.set()


def test_all_beats_come_from_one_thread_which_ends_with_the_last(monkeypatch):
    monkeypatch.setattr("shardviz.explorer.background.BEAT_S", 0.01)
    threads: list[threading.Thread] = []
    both = [threading.Event(), threading.Event()]

    def beat(number: int) -> None:
        threads.append(threading.current_thread())
        both[number].set()

    beats = Beats()  # Explorers of other tests may be open
    ends = [beats.start(partial(beat, number)) for number in (0, 1)]
    for beaten in both:
        assert beaten.wait(60)
    assert len(set(threads)) == 1
    for ended in ends:
        ended.set()
    threads[0].join(60)
    assert not threads[0].is_alive()


def test_threads_that_hang_are_waited_for_together(monkeypatch):
    monkeypatch.setattr("shardviz.explorer.background.LAST_WAIT_S", 0.2)
    hold, joined = threading.Event(), []
    works = []
    for _ in range(5):
        work = LatestWins[int]("hangs", lambda item, stop: hold.wait(20), lambda *_: None)
        work.request(1)
        works.append(work)
    join = threading.Thread.join

    def counted(thread: threading.Thread, timeout: float | None = None) -> None:
        joined.append(timeout)
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", counted)
    close_together(works)
    assert sum(joined) <= 2 * 0.2  # not 5 times
    hold.set()
    for work in works:
        work.close(60)


def test_the_kernel_is_alive_whatever_a_beat_cannot_find_out(monkeypatch):
    explorer = open_explorer(None, ExecutableCache())
    sent: list[dict] = []
    monkeypatch.setattr(explorer, "send", sent.append)
    explorer._beat()
    assert "line" in sent[0]
    monkeypatch.setattr(target_panel, "local_options", lambda: 1 / 0)
    explorer._beat()
    assert sent[1]["kind"] == "alive"
    assert set(explorer._failed) == {"menus"}
    assert explorer.lock.acquire(timeout=1)  # no edit waits for it
    explorer.lock.release()
    explorer.close()
