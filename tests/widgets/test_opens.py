"""sv.explore opens where the answer is."""

from __future__ import annotations

import jax
import pytest

import shardviz as sv
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import roofline
from shardviz.explorer.session_view import session_view
from shardviz.hardware.targets import Target
from shardviz.hardware.topology import Topology
from shardviz.programs.failure import Failure

MESH = "data=4, model=2"
RULES = [("embed", "data"), ("mlp", "model")]
NORM = sv.array("norm", (512,), "norm")
W_IN, W_OUT = sv.array("w_in", (512, 2048), "embed mlp"), sv.array("w_out", (64, 64), "mlp embed")


def opened(thing, **given) -> str:
    made = sv.explore(thing, **given)
    view = made.view.get("opens", "Layout")
    made.close()
    return view


@pytest.mark.parametrize(
    ("thing", "view"),
    [
        (lambda: None, "Layout"),
        (lambda: sv.mesh(MESH), "Layout"),
        (lambda: [NORM, W_IN], "Layout"),
        (lambda: sv.layout((8, 8), "P('data')", MESH), "Layout"),
        (lambda: sv.program(lambda w: w * 2, W_IN, mesh=MESH, rules=RULES), "Program"),
        (lambda: sv.audit([NORM, W_IN], RULES, MESH), "Model"),
        (lambda: sv.resolve("embed mlp", RULES, mesh=MESH, shape=(8, 8)), "Rules"),
    ],
)
def test_it_opens_in_the_view_that_answers(thing, view):
    assert opened(thing()) == view


def test_arrays_and_models_take_a_mesh_and_rules():
    made = sv.explore([NORM, W_IN], mesh=MESH, rules=RULES)
    assert str(made.session.mesh) == MESH
    assert [str(r.spec) for r in made.session.program.requests] == ["P(None)", "P('data', 'model')"]
    shapes = {"w": jax.ShapeDtypeStruct((512, 2048), "float32")}
    assert opened(shapes, mesh=MESH, rules=RULES) == "Model"
    found = sv.audit([NORM, W_IN], RULES, MESH)
    made = sv.explore(found, mesh="data=2, model=8")
    assert str(made.session.mesh) == "data=2, model=8"
    assert made.session.rules == found.rules


def test_a_long_list_opens_as_an_audit_and_layout_says_how_many_it_leaves_out():
    layers = [sv.array(f"layers.{i}.w", (64, 64), "embed mlp") for i in range(300)]
    made = sv.explore([*layers, W_IN], mesh=MESH, rules=RULES)
    assert (made.view["opens"], made.view["count"], made.view["beside"]) == ("Model", 1, 300)
    made.session.edit("open", 7)
    assert session_view(made.session.now)["view"]["beside"] == 299
    assert "beside" not in sv.explore([NORM, W_IN], mesh=MESH, rules=RULES).view


def test_layers_that_are_alike_are_one_card_until_one_is_edited():
    layers = [sv.array(f"layers.{i}.w", (64, 64), "embed mlp") for i in range(4)]
    made = sv.explore([*layers, W_IN], mesh=MESH, rules=RULES)
    assert made.view["folds"] == [["w", "layers 0 to 3", [0, 1, 2, 3]]]
    made.session.edit("spec", "model", 1)
    folds = session_view(made.session.now)["view"]["folds"]
    assert folds == [["w", "layers 0, 2 to 3", [0, 2, 3]]]
    made.session.edit("shape", "64, x", 3)
    folds = session_view(made.session.now)["view"]["folds"]
    assert folds == [["w", "layers 0, 2", [0, 2]]]


@pytest.mark.parametrize("thing", [lambda a: a, lambda a: sv.audit(a, RULES, MESH)])
def test_the_largest_split_array_is_chosen_and_not_a_norm(thing):
    large_norm = sv.array("scale", (1 << 24,), "norm")
    made = sv.explore(thing([NORM, large_norm, W_OUT, W_IN]), mesh=MESH, rules=RULES)
    now = made.session.now
    assert now.arrays[now.selected].name == "w_in"


def of(program, target: str, **parts) -> Report:
    """A report of a program, as if it had been compiled for a target."""
    topology = Topology.parse(target)
    on = Target("described", topology.chip.platform, topology.size, str(topology))
    report = Report(program.name, str(on), mesh=program.mesh, of=program, on=on, **parts)
    return report.replace(roofline=roofline(report, topology, program.mesh))


def test_a_report_opens_with_what_was_compiled_and_nothing_is_compiled_again():
    x = sv.array("x", (64, 64), spec="data")
    program = sv.program(lambda x: (x @ x).sum(), x, mesh="data=4")
    report = sv.compile(program, target="cpu:4")
    before = sv.cache.misses
    made = sv.explore(report)
    made.follow()
    made.wait(60)
    assert sv.cache.misses == before
    assert (made.view["opens"], made.session.now.target) == ("Program", "cpu:4")
    assert made.report is report
    assert made.plan is not None
    assert made.plan.ok
    shown = [stage["state"] for stage in made.stages_data["stages"]]
    assert shown == ["estimate", "live", "live", "none"]
    assert len(made.stages_data["collectives"][2]) == len(report.collectives)
    assert made.stages_data["memory"]["parts"]
    # An edit plans and compiles as always.
    made.session.edit("mesh", "data=2")
    made.wait(60)
    assert sv.cache.misses > before
    made.close()


def test_a_report_for_described_chips_opens_with_its_roofline():
    program = sv.program(lambda x: x @ x, W_OUT, mesh=MESH, rules=RULES)
    cost = {"flops": 1e12, "bytes accessed": 1e9}
    made = sv.explore(of(program, "tpu:v5e:2x4", collectives=(), cost=cost))
    assert made.session.now.target == "tpu:v5e:2x4"
    assert made.stages_data["headline"]["seconds"]
    made.close()


def test_a_report_that_failed_opens_with_its_error():
    program = sv.program(lambda x: x @ x, W_OUT, mesh=MESH, rules=RULES)
    error = Failure("compile", "RESOURCE_EXHAUSTED", "step.py:3")
    made = sv.explore(of(program, "tpu:v5e:2x4", error=error))
    assert made.view["opens"] == "Program"
    assert made.report_data["error"]["message"] == error.message
    assert made.stages_data["error"]["source"] == error.source
    assert made.problems_data["counts"][0] == 1
    made.close()


def test_a_report_on_another_mesh_opens_its_program_there():
    program = sv.program(lambda x: x @ x, W_OUT, mesh=MESH, rules=RULES)
    made = sv.explore(of(program, "tpu:v5e:2x4", collectives=()), mesh="data=8, model=1")
    assert (made.report, made.session.mesh.size) == (None, 8)
    made.close()


@pytest.mark.parametrize("thing", ["tpu:v5e:4x4", Topology.parse("tpu:v5e:4x4")])
def test_a_slice_opens_with_a_mesh_that_fills_it(thing):
    made = sv.explore(thing)
    now = made.session.now
    assert (now.target, now.mesh.size, now.by) == ("tpu:v5e:4x4", 16, "position")
    made.close()
    fixed = sv.explore(thing, mesh=MESH).session.now
    assert (fixed.mesh.size, fixed.by) == (8, "mesh")
    with pytest.raises(sv.ShardvizError, match="v5q"):
        sv.explore("tpu:v5q:4x4")


def test_the_example_says_what_else_can_be_opened():
    made = sv.explore()
    codes = [code for _, code in made.view["hints"]]
    assert codes[0] == "sv.explore(params)"
    assert eval(codes[-1], {"sv": sv}).session.mesh.size == 16  # noqa: S307
    made.close()
    assert "hints" not in sv.explore([W_IN], mesh=MESH).view


@pytest.mark.parametrize("thing", [None, sv.mesh(MESH), "tpu:v5e:2x4"])
def test_an_example_prints_that_it_is_one(thing):
    explorer = sv.explore(thing)
    assert "MLP is an example." in sv.text(explorer)
    explorer.close()


def test_an_explorer_of_a_model_prints_all_its_arrays():
    params = {name: jax.ShapeDtypeStruct((8, 8), "float32") for name in ("w", "b")}
    explorer = sv.explore(params, mesh=MESH)
    assert str(explorer) == sv.text(explorer) == sv.text(sv.audit(params, mesh=MESH))
    assert "2 arrays" in repr(explorer)
    assert sv.plot(explorer).axes
    explorer.close()
    alone = sv.explore(params["w"], mesh=MESH)
    assert str(alone) == sv.text(alone.session.program)
    alone.close()


def test_an_explorer_prints_what_it_shows():
    program = sv.program(lambda w: w.sum(), W_IN, mesh=MESH, rules=RULES)
    explorer = sv.explore(program)
    assert str(explorer) == sv.text(program) == sv.text(explorer)
    assert repr(program) in repr(explorer)
    assert "\n" not in repr(explorer)
    assert sv.plot(explorer).axes
    explorer.follow()
    explorer.wait()
    stages = sv.Stages(program, explorer.plan)
    assert str(explorer).startswith(sv.text(program))
    assert sv.text(stages).splitlines()[1] in str(explorer)
    explorer.close()
