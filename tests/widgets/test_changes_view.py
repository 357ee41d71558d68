"""What would remove a collective: the job, what the page is sent of it, and what it applies."""

from __future__ import annotations

import threading

import pytest

from shardviz.advise.candidates import Changes
from shardviz.base.errors import ShardvizError
from shardviz.explorer import planner
from shardviz.explorer.explorer import Explorer
from shardviz.explorer.session import Session
from shardviz.gallery import programs
from shardviz.runs.cache import ExecutableCache
from tests.widgets.changes_examples import found


@pytest.fixture
def made():
    explorer = Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())
    yield explorer
    explorer.close()


def send(explorer: Explorer, kind: str, value: str) -> None:
    intents = [{"kind": kind, "value": value}]
    explorer._receive(None, {"seq": 1, "client": "c", "intents": intents}, [])


def test_a_change_of_specs_is_applied_as_one_undo(made, monkeypatch):
    monkeypatch.setattr(planner, "changes_of", lambda job, *_: found(job.program))
    send(made, "changes", "memory")
    made.wait(60)
    view = made.changes_data
    assert (view["of"], view["running"], len(view["notes"])) == ("memory", False, 1)
    assert [row["takes"] for row in view["rows"]] == [True, False]
    assert "4 KiB → 1 KiB" in view["rows"][0]["facts"]
    assert view["rows"][0]["ok"] is None
    before = made.session.now
    send(made, "take", "0")
    assert str(made.session.arrays[0].spec) == "P(None, 'model')"
    assert made.session.now.revision != before.revision
    # It is of the program before: it cannot be applied again.
    made.session.undo()
    assert made.session.now is before
    send(made, "take", "0")
    send(made, "take", "1")
    assert made.session.arrays[0].spec != before.arrays[0].spec
    made.session.edit("mesh", "data=2, model=2")
    now = made.session.now
    send(made, "take", "0")
    assert made.session.now is now


def test_the_compile_of_the_trial_is_shown_once_its_change_is_applied(made, monkeypatch):
    monkeypatch.setattr(planner, "changes_of", lambda job, *_: found(job.program))
    made.compile()
    made.wait(60)
    old = made.planner.state.report
    send(made, "changes", "memory")
    made.wait(60)
    change = made.planner.job.changes[0]
    send(made, "take", "0")
    now, state = made.session.now, made.planner.state
    assert state.report is made.report is change.report is not old
    assert (state.report_revision, state.target) == (now.revision, now.target)
    assert ["arguments", "1 KiB"] in made.stages_data["memory"]["parts"]
    made.wait(60)
    # It is planned, and not compiled again.
    assert made.planner.state.plan_revision == now.revision
    assert made.planner.state.report.memory == change.report.memory


def test_the_compile_of_a_trial_for_another_target_is_not_shown(made, monkeypatch):
    monkeypatch.setattr(planner, "changes_of", lambda job, *_: found(job.program))
    send(made, "changes", "memory")
    made.wait(60)
    made.session.edit("target", "tpu:v5e:2x4")
    send(made, "take", "0")
    assert made.report is None
    assert made.planner.state.report_of(made.session.now.revision, "tpu:v5e:2x4") is None


def test_a_failure_is_said_and_the_report_stays(made, monkeypatch):
    def fails(*_):
        raise ShardvizError("There is no such collective.")

    monkeypatch.setattr(planner, "changes_of", fails)
    send(made, "changes", "memory")
    made.wait(60)
    assert made.changes_data["words"] == "There is no such collective."
    assert made.changes_data["rows"] == []
    assert made.report is None


def test_while_it_runs_the_page_says_so_and_it_can_be_cancelled(made, monkeypatch):
    begun, ended = threading.Event(), threading.Event()

    def waits(job, enter, cancelled):
        enter("partition")
        begun.set()
        assert ended.wait(60)
        return Changes()

    monkeypatch.setattr(planner, "changes_of", waits)
    send(made, "changes", "memory")
    assert begun.wait(60)
    assert made.changes_data["running"]
    assert made.report_data["state"] == "running"
    send(made, "cancel", "")
    assert not made.changes_data["running"]
    assert made.changes_data["words"]
    ended.set()


def test_a_collective_that_is_not_there_is_not_asked_for(made):
    send(made, "changes", "2:7")
    assert made.changes_data == {}
