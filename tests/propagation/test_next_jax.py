"""A later jaxlib, with passes that shardviz does not know: plans survive, with a note."""

from __future__ import annotations

import jax
import pytest

from shardviz.base.errors import ProgramError
from shardviz.plans.backend import lowering, shardy_passes
from shardviz.plans.backend.build_plan import plan_program
from shardviz.plans.plan_notes import NoEstimate, UntriedPasses
from tests.propagation.planning import V, W, X, program


def mlp(x, w, v):
    return jax.nn.relu(x @ w) @ v


def plan():
    return plan_program(program(mlp, x=X, w=W, v=V))


def values(plan):
    return [(op.name, op.spec, op.origins, op.steps) for op in plan.ops]


def moves(plan):
    return [(c.kind, c.mesh_axes, c.bytes_per_device, c.value) for c in plan.collectives]


def without(name):
    return {key: use for key, use in shardy_passes.PASSES.items() if key != name}


RUN = [name for name, use in shardy_passes.PASSES.items() if use is shardy_passes.Use.RUN]
IN_PIPELINE = sorted({*map(shardy_passes.pass_name, shardy_passes.pipeline_passes())} & {*RUN})


@pytest.mark.parametrize("name", IN_PIPELINE)
def test_a_pass_that_the_table_lacks_is_run(eight_devices, monkeypatch, name):
    known = plan()
    monkeypatch.setattr(shardy_passes, "PASSES", without(name))
    monkeypatch.setattr(lowering, "_try_in_worker", lambda module, with_untried: None)
    found = plan()
    assert UntriedPasses((name,), ()) in found.notes
    assert values(found) == values(known)
    assert moves(found) == moves(known) != []


def renamed(old, new):
    return tuple(text.replace(old, new) for text in shardy_passes.pipeline_passes())


@pytest.mark.parametrize("old", ["sdy-remove-size-one-axes", "sdy-remove-sharding-groups"])
def test_a_pass_that_mlir_does_not_know_is_left_out(eight_devices, monkeypatch, old):
    known, passes = plan(), renamed(old, "sdy-of-tomorrow")
    monkeypatch.setattr(shardy_passes, "pipeline_passes", lambda: passes)
    found = plan()
    assert UntriedPasses((), ("sdy-of-tomorrow",)) in found.notes
    assert values(found) == values(known)
    assert str(found.notes[-1]) == (
        "shardviz has not been tried with all passes of this jaxlib's Shardy. The plan left out"
        " sdy-of-tomorrow, and may differ from what XLA does."
    )


def test_a_new_pass_after_the_settled_shardings_is_left_out(eight_devices, monkeypatch):
    known, passes = plan(), renamed("sdy-drop-sharding-rules", "sdy-sink-data-flow-edges")
    monkeypatch.setattr(shardy_passes, "pipeline_passes", lambda: passes)
    monkeypatch.setattr(shardy_passes, "PASSES", without("sdy-drop-sharding-rules"))
    assert values(plan()) == values(known)


def test_a_new_pass_that_ends_the_worker_is_left_out(eight_devices, monkeypatch):
    name, tried = "sdy-remove-sharding-groups", []

    def end(module, with_untried):
        tried.append(with_untried)
        raise ProgramError("The worker ended.")

    known = plan()
    monkeypatch.setattr(shardy_passes, "PASSES", without(name))
    monkeypatch.setattr(lowering, "_try_in_worker", end)
    found = plan()
    assert UntriedPasses((), (name,)) in found.notes
    assert values(found) == values(known)
    assert tried == [True]


def test_a_new_pass_is_tried_in_the_worker(eight_devices, monkeypatch):
    monkeypatch.setattr(shardy_passes, "PASSES", without("symbol-dce"))
    assert UntriedPasses(("symbol-dce",), ()) in plan().notes


def test_without_the_passes_for_collectives_there_is_no_estimate(eight_devices, monkeypatch):
    known = plan()
    monkeypatch.setattr(shardy_passes, "TO_COLLECTIVES", "func.func(sdy-of-tomorrow)")
    found = plan()
    assert found.collectives == ()
    assert NoEstimate(("sdy-of-tomorrow",)) in found.notes
    assert values(found) == values(known)
