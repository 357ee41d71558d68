from __future__ import annotations

import dataclasses
import time

import pytest

from shardviz.base.collective import Collective
from shardviz.base.format import bytes_text
from shardviz.base.mesh import make_mesh
from shardviz.compiled.op_costs import most_alive
from shardviz.compiled.panel.report_view import planned_headline
from shardviz.compiled.panel.stages_view import stages_view
from shardviz.compiled.panel.timeline_view import NOT_YET, TimelineRequest, timeline_view
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import planned_roofline, roofline
from shardviz.explorer.explorer import Explorer
from shardviz.explorer.planner import StageResults
from shardviz.explorer.session import Session
from shardviz.explorer.targets import device_placement, suggested_placement
from shardviz.hardware.chips import find_chip
from shardviz.hardware.topology import Topology
from shardviz.runs.cache import ExecutableCache
from tests.widgets.plans import REFUSED, layers

V5E = "tpu:v5e:4x4"
MESH = make_mesh(data=8, model=2)


def view(plan=None, chosen: str = V5E, mesh=MESH, **results):
    placement = device_placement(mesh, chosen)
    return timeline_view(TimelineRequest(StageResults(plan, **results), mesh, chosen, placement))


@pytest.mark.parametrize("target", ["", "cpu:16", "attached"])
def test_a_target_without_rates_has_the_headline_and_timeline_of_a_suggested_chip(target):
    found = view(layers(2, MESH), target)
    there = view(layers(2, MESH), V5E)
    head, chosen = found["headline"], there["headline"]
    assert (head["suggested"], chosen["suggested"]) == (V5E, "")
    assert head["where"] == "TPU v5e 4×4, from the plan"
    assert {**head, "suggested": ""} == chosen
    assert head["memory"] == f"needs about {bytes_text(most_alive(layers(2, MESH)))} of 16 GiB"
    assert found["spans"] == there["spans"]


@pytest.mark.parametrize(
    ("devices", "needed", "target"),
    [
        (8, 0, "tpu:v5e:2x4"),
        (8, 20 << 30, "tpu:v5p:2x2x2"),
        (8, 400 << 30, "gpu:b200:1x8"),  # no chip has enough, so the one with the most
        (512, 0, "tpu:v5p:8x8x8"),
        (7, 0, "gpu:h100:1x7"),
        (17, 0, None),
    ],
)
def test_the_suggested_chip_is_the_smallest_with_room_in_the_size_of_the_mesh(
    devices, needed, target
):
    placement = suggested_placement(make_mesh(data=devices), needed)
    assert (placement and str(placement.topology)) == target


def test_without_a_chip_of_this_size_it_says_where_to_choose_one():
    mesh = make_mesh(data=17)
    found = view(layers(2, mesh, ("data", "data")), "", mesh)
    assert found["words"] == "Least times need a chip: choose one under Target."


def test_red_is_for_the_chosen_chip_alone():
    plan = layers(2, MESH)
    least = planned_roofline(plan, Topology.parse(V5E), device_placement(MESH, V5E).mesh)
    over = dataclasses.replace(least, needed=20 << 30)
    assert planned_headline(plan, over)["over"]
    assert not planned_headline(plan, over, V5E)["over"]


def test_least_times_of_attached_devices_are_not_shown_beside_those_of_a_suggestion():
    report = Report("f", "attached", collectives=(), cost={"flops": 1e9}, mesh=MESH)
    report = report.replace(roofline=roofline(report, find_chip("h100")))
    found = view(layers(2, MESH), "attached", report=report, target="attached")
    assert not found["headline"]["parts"]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (view(None), "There is no plan yet"),
        (view(REFUSED), "There is no plan, so least times and memory are not known."),
        (view(layers(2), mesh=make_mesh(data=4)), "16"),
        (view(layers(2)), "There is no plan yet"),  # of the mesh before the last edit
    ],
)
def test_without_a_timeline_it_says_why(found, words):
    assert words in found["words"]
    assert "lanes" not in found
    assert (found["headline"]["note"], found["headline"]["memory"]) == (found["words"], "")


def test_every_axis_that_communicates_has_a_lane_in_the_order_of_the_mesh():
    found = view(layers(2, MESH))
    # Arithmetic and memory have the first two.
    assert found["lanes"] == [[], [], [["model", 1]]]
    text = found["text"]
    rows = [(text[row[6]], *row[3:6], text[row[10]]) for row in found["spans"]]
    assert ("all-reduce", 2, 1, 12, "reduce_1") in rows
    # What costs nothing is counted, and not drawn.
    assert any("not drawn" in note for note in found["notes"])
    assert all(row[0] != 0 for row in found["spans"])


def test_a_collective_over_a_part_of_an_axis_is_in_the_lane_of_the_axis():
    gathers = Collective("all-gather", ("data:(1)4",), 1 << 24, group_size=4)
    both = Collective("all-gather", ("data:(1)4", "model"), 1 << 24, group_size=8)
    report = Report("f", V5E, collectives=(gathers, both), mesh=MESH)
    report = report.replace(roofline=roofline(report, V5E, MESH))
    results = {"report": report, "target": V5E}
    found = view(layers(2, MESH), **results)
    assert found["lanes"][2:] == [[["data", 0]], [["data", 0], ["model", 1]]]
    headline = stages_view(StageResults(layers(2, MESH), **results))["headline"]
    used = {axis for part in headline["parts"] for axes, _ in part["over"] for axis in axes}
    assert used <= {"data", "model"}


@pytest.mark.parametrize("loops", [0, 1])
def test_the_headline_and_the_timeline_of_a_compiled_program_have_one_least_time(loops):
    """Also if the compiler counted the body of a loop once, or moved other bytes."""
    gather = Collective("all-gather", ("model",), 1 << 24, trips=12)
    cost = {"flops": 1e9, "bytes accessed": 1e8}
    report = Report("f", V5E, collectives=(gather,), cost=cost, loops=loops, mesh=MESH)
    report = report.replace(roofline=roofline(report, V5E, MESH))
    results = {"report": report, "target": V5E}
    headline = stages_view(StageResults(layers(2, MESH), **results))["headline"]
    found = view(layers(2, MESH), **results)
    assert found["overlapped"]["time"] == f"≥ {headline['seconds']}"
    assert [row[4] for row in found["spans"] if row[4] >= 0] == [0]
    assert found["stage"] == 2


def test_a_report_of_another_program_or_target_leaves_the_plan_alone():
    report = Report("f", V5E, collectives=(), mesh=MESH)
    report = report.replace(roofline=roofline(report, "tpu:v5p:2x2x4", MESH))
    planned = view(layers(2, MESH))
    assert view(layers(2, MESH), report=report) == planned
    report = report.replace(roofline=roofline(report, V5E, MESH))
    assert view(layers(2, MESH), report=report, report_revision=3) == planned


@pytest.mark.parametrize("count", [1, 2, 12])
def test_the_most_live_bytes_are_the_memory_of_the_headline(count):
    plan = layers(count, MESH)
    found = view(plan)
    most = max(row[-1] for row in found["spans"])
    assert most == most_alive(plan)
    assert found["peak"].removeprefix("peak ") in found["headline"]["memory"]
    # A compiled program has the compiler's own figure in the headline, so the lane has none.
    report = Report("f", V5E, collectives=(), mesh=MESH)
    report = report.replace(roofline=roofline(report, V5E, MESH, plan))
    assert view(plan, report=report, target=V5E)["peak"] == ""


def test_ten_thousand_operations_stay_small_and_quick():
    began = time.process_time()
    found = view(layers(2500, MESH))
    assert time.process_time() - began < 5
    assert len(found["spans"]) > 2500


def test_the_explorer_makes_it_only_while_a_page_shows_the_program():
    explorer = Explorer(_session(), ExecutableCache())
    explorer.session.edit("mesh", "data=4, model=4")
    explorer.session.edit("target", V5E)
    explorer.follow()
    explorer.wait(60)
    assert explorer.timeline == NOT_YET
    explorer._receive(None, {"seq": 1, "client": "a", "intents": [_show("Program")]}, [])
    explorer.wait(60)
    assert explorer.timeline["lanes"]
    explorer.close()


def test_a_measured_run_has_a_lane_until_the_program_is_edited():
    explorer = Explorer(_session(), ExecutableCache())
    receive = explorer._receive
    receive(None, {"seq": 1, "client": "a", "intents": [_show("Program")]}, [])
    explorer.wait(60)
    assert explorer.timeline["measured"] is None
    receive(None, {"seq": 2, "client": "a", "intents": [{"kind": "measure"}]}, [])
    report = explorer.wait(120)
    assert report is not None
    measured, rows = explorer.timeline["measured"], report.measured.rows
    assert len(measured["spans"]) == len(rows)
    order = [row.at for row in sorted(rows, key=lambda row: row.at)]
    times = {f"{row.seconds * 1e6:.4g}": row for row in rows}
    shown = [times[f"{span[0]:.4g}"] for span in measured["spans"]]
    assert [row.at for row in shown] == order
    for span, row in zip(measured["spans"], shown, strict=True):
        assert (span[4], span[3] >= 2) == (row.collective, row.part == "collective")
        axes = [name for name, _ in explorer.timeline["lanes"][span[3]]]
        if row.collective >= 0:
            assert tuple(axes) == report.collectives[row.collective].mesh_axes
    explorer.session.edit("mesh", "data=2, model=4")
    explorer.wait(60)
    assert explorer.timeline["measured"] is None
    explorer.close()


def _session() -> Session:
    from shardviz.gallery import programs

    return Session(programs.get(), programs.DEFAULT)


def _show(view: str) -> dict:
    return {"kind": "show", "value": view}
