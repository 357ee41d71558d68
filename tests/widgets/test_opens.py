"""sv.explore opens where the answer is."""

from __future__ import annotations

import jax
import pytest

import shardviz as sv

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


@pytest.mark.parametrize("thing", [lambda a: a, lambda a: sv.audit(a, RULES, MESH)])
def test_the_largest_split_array_is_chosen_and_not_a_norm(thing):
    large_norm = sv.array("scale", (1 << 24,), "norm")
    made = sv.explore(thing([NORM, large_norm, W_OUT, W_IN]), mesh=MESH, rules=RULES)
    now = made.session.now
    assert now.arrays[now.selected].name == "w_in"
