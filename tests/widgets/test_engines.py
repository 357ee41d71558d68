"""Processes on several hosts as a target of the Explorer: menu, a line per engine, restart.

The processes here are pretended; `tests/hosts` has real ones.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from shardviz.core.errors import TargetError
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.report import Check, Failure
from shardviz.gallery import programs
from shardviz.widgets.explorer import Explorer
from shardviz.widgets.session import Session
from shardviz.widgets.targets import checked_target, local_options, target_view
from tests.widgets.pretended_hosts import (
    MODULES,
    NAME,
    WAIT_S,
    PretendedHosts,
    PretendedRun,
    ReportOfHosts,
    did,
)


@pytest.fixture
def several(monkeypatch) -> PretendedRun:
    module = PretendedRun(PretendedHosts())
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, module)
    return module


@pytest.fixture
def explorer():
    made = Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())
    yield made
    made.close()


def lines(made: Explorer) -> list[tuple[int, str, str]]:
    return [(e["rank"], e["state"], e["words"]) for e in made.report_data["engines"]["lines"]]


def test_running_hosts_are_in_the_menu_and_go_when_they_end(explorer, several):
    values = lambda: [option["value"] for option in explorer.menus["here"]]  # noqa: E731
    assert NAME not in values()
    explorer._beat()
    assert values()[-1] == NAME
    assert explorer.menus["here"][-1]["title"] == "2 processes on here, 8 devices in all."
    several.group.problem = "process 1 ended"
    explorer._beat()
    assert NAME not in values()
    assert local_options() == explorer.menus["here"]


@pytest.mark.parametrize("text", ["0 hosts x 4", "2 hosts x 4, moon"])
def test_what_names_no_hosts_is_refused(text):
    with pytest.raises(TargetError, match="'2 hosts x 4'"):
        checked_target(text)


def test_a_mesh_with_other_hosts_is_offered_theirs(several):
    view = target_view(make_mesh(data=4, model=2, processes=4), NAME)
    assert view == {
        "value": NAME,
        "note": f"The mesh has 4 hosts, and {NAME} runs.",
        "offer": "Take 2 hosts",
    }
    assert target_view(make_mesh(data=4, model=2, processes=2), NAME) == {"value": NAME}
    larger = target_view(make_mesh(data=8, model=2, processes=2), NAME)
    assert larger["note"] == f"{NAME} has 8 devices and the mesh has 16."
    assert larger["offer"] == "Take data=4, model=2"
    session = Session(programs.get(), programs.DEFAULT)
    session.edit("hosts", "4")
    session.edit("target", NAME)
    session.edit("fit", None)
    assert session.now.text["hosts"] == "2"
    assert session.now.errors == {}


def test_every_engine_has_a_line_while_it_runs_and_after(explorer, several):
    explorer.session.edit("target", NAME)
    assert lines(explorer) == [(0, "ready", ""), (1, "ready", "")]
    several.report = ReportOfHosts("f", NAME, processes=(
        did(0, {"compile": 0.5, "run": 0.002}),
        did(1, {"compile": 0.25}, checks=(Check("x", False, "Seen."), Check("y", True, ""))),
    ))  # fmt: skip
    explorer.run()
    seen = []
    for _ in range(3):
        assert several.entered.acquire(timeout=WAIT_S)
        seen.append(lines(explorer))
        assert not explorer.report_data["engines"]["restart"], "not while they run"
        several.goes_on.release()
    assert seen == [
        [(0, "running", "lower"), (1, "running", "waits")],
        [(0, "running", "compile"), (1, "running", "lower")],
        [(0, "running", "run"), (1, "running", "run")],
    ]
    explorer.wait(WAIT_S)
    assert several.targets == [NAME]
    assert lines(explorer) == [
        (0, "done", "compile 500 ms, run 2 ms"),
        (1, "failed", "compile 250 ms, 1 of 2 checks failed"),
    ]
    assert explorer.report_data["engines"]["restart"]


def test_broken_engines_start_again_at_a_click(explorer, several):
    explorer.session.edit("target", NAME)
    lost = (did(0, {}), did(1, {}, error=Failure("run", "It ended.")))
    several.report = replace(several.report, processes=lost, error=Failure("run", "It ended."))
    explorer.run()
    for _ in range(3):
        assert several.entered.acquire(timeout=WAIT_S)
        several.group.problem = "process 1 ended: hosts.restart() starts them anew."
        several.goes_on.release()
    explorer.wait(WAIT_S)
    assert lines(explorer) == [(0, "lost", ""), (1, "failed", "run: It ended.")]
    assert explorer.report_data["engines"]["problem"] == several.group.problem
    several.group.refuses = "no memory"
    explorer._receive(None, {"seq": 1, "client": "a", "intents": [{"kind": "restart"}]}, None)
    explorer.wait(WAIT_S)
    assert explorer.report_data["engines"]["problem"].endswith("no memory")
    several.group.refuses = ""
    explorer.restart()
    explorer.wait(WAIT_S)
    assert several.group.restarts == 2
    assert explorer.report_data["engines"]["problem"] == ""
    assert lines(explorer) == [(0, "ready", ""), (1, "ready", "")]


def test_engines_of_another_target_are_not_shown(explorer, several):
    explorer.session.edit("target", NAME)
    assert lines(explorer)
    explorer.session.edit("target", "cpu")
    assert "engines" not in explorer.report_data
    several.group.problem = "closed"
    explorer.session.edit("target", "2 hosts x 4")
    assert [state for _, state, _ in lines(explorer)] == ["lost", "lost"]
