"""Two states side by side: their numbers, which is better, and what is not known."""

from __future__ import annotations

import pytest

from shardviz.advise.panel.findings_panel import FindingsPanel
from shardviz.base.collective import Collective
from shardviz.compiled.report import Memory, Report
from shardviz.compiled.roofline import Bound, Roofline
from shardviz.explorer.compare_view import State, compare_view
from shardviz.explorer.document import Document
from shardviz.explorer.explorer import Explorer
from shardviz.explorer.planner import StageResults
from shardviz.explorer.protocol import Intent
from shardviz.explorer.session import Session
from shardviz.gallery import programs
from shardviz.hardware.chips import find_chip
from shardviz.plans.plan import Plan
from shardviz.runs.cache import ExecutableCache


@pytest.fixture
def documents() -> tuple[Document, Document]:
    """The MLP on 4 x 2 and on 2 x 2 devices."""
    session = Session(programs.get(), programs.DEFAULT)
    before = session.now
    session.edit("mesh", "data=2, model=2")
    return before, session.now


def numbers(before: State, now: State) -> dict[str, tuple[str, str]]:
    view = compare_view(before, now)
    return {row["name"]: (row["text"], row["tone"]) for row in view["rows"]}


def report(sizes: tuple[int, ...], needed: int, seconds: float) -> Report:
    some = tuple(Collective("all-reduce", ("data",), size, group_size=2) for size in sizes)
    rows = (Bound("compute", "compute", seconds, "FLOP/s", 1.0),)
    line = Roofline("v5e", find_chip("v5e"), rows)
    return Report("f", "t", collectives=some, memory=Memory(arguments=needed), roofline=line)


def test_bytes_are_those_of_each_state(documents):
    before, now = documents
    on_device = [
        sum(request.bytes_per_device for request in one.program.requests) for one in documents
    ]
    assert on_device == [4210688, 4227072]
    text, tone = numbers(State(before, StageResults()), State(now, StageResults()))[
        "bytes per device"
    ]
    assert (text, tone) == ("4.02 → 4.03 MiB", "worse")


def test_the_last_stage_that_both_have_is_compared(documents):
    before, now = documents
    one = StageResults(report=report((1024, 2048), 4096, 2e-3), report_revision=before.revision)
    two = StageResults(report=report((1024,), 8192, 1e-3), report_revision=now.revision)
    assert numbers(State(before, one), State(now, two)) == {
        "bytes per device": ("4.02 → 4.03 MiB", "worse"),
        "collectives": ("2 → 1", "better"),
        "sent per step": ("3 → 1 KiB", "better"),
        "least time": ("2 → 1 ms", "better"),
        "memory": ("4 → 8 KiB", "worse"),
    }


def test_what_one_of_them_lacks_is_unknown_and_what_both_lack_is_left_out(documents):
    before, now = documents
    one = StageResults(report=report((1024,), 4096, 2e-3), report_revision=before.revision)
    two = StageResults(Plan("f", now.mesh), now.revision)
    found = numbers(State(before, one), State(now, two))
    assert found["memory"] == ("4 KiB → –", "unknown")
    assert found["collectives"] == ("– → 0", "unknown")
    assert set(numbers(State(before, StageResults()), State(now, StageResults()))) == {
        "bytes per device"
    }


def test_results_of_another_revision_or_target_are_not_taken(documents):
    before, now = documents
    old = StageResults(report=report((1,), 1, 1.0), report_revision=before.revision)
    assert "memory" not in numbers(State(now, old), State(now, old))
    elsewhere = before.replace(target="cpu:8")
    assert "memory" not in numbers(State(elsewhere, old), State(elsewhere, old))


def test_back_to_a_is_one_edit_and_what_is_planned_later_counts():
    explorer = Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())
    pinned = explorer.session.now
    explorer._handle(Intent("pin"))
    assert explorer.compare_data["same"] is True
    explorer.planner.state = StageResults(Plan("f", pinned.mesh), pinned.revision)
    explorer.panel(FindingsPanel).refresh()
    for size in ("data=2, model=2", "data=8, model=2"):
        explorer.session.edit("mesh", size)
    explorer.panel(FindingsPanel).refresh()
    rows = {row["name"]: row["text"] for row in explorer.compare_data["rows"]}
    assert rows["collectives"] == "0 → –", "the plan came after it was pinned"
    explorer._handle(Intent("back"))
    assert explorer.session.mesh == pinned.mesh
    assert explorer.compare_data["same"] is True
    explorer.session.undo()
    assert explorer.session.mesh.size == 16
    explorer._handle(Intent("unpin"))
    assert explorer.compare_data == {}
    explorer.close()
