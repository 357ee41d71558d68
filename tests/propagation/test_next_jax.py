"""A later jaxlib, with passes that shardviz does not know: plans survive, with a note."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import pytest

import shardviz
from shardviz.base.errors import ProgramError
from shardviz.plans.backend import build_plan, lowering, mlir_checks, mlir_names, shardy_passes
from shardviz.plans.backend.build_plan import plan_program
from shardviz.plans.plan_notes import EstimateFailed, NoEstimate, UntriedPasses
from tests.propagation.planning import V, W, X, program


def mlp(x, w, v):
    return jax.nn.relu(x @ w) @ v


def plan():
    planned = plan_program(program(mlp, x=X, w=W, v=V))
    # Asking for success propagates with the passes that there are now.
    assert planned.ok or planned.error
    return planned


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
        "shardviz has not been tested with all passes of this jaxlib's Shardy. It left out"
        " sdy-of-tomorrow, so the plan may differ from what XLA does."
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


def test_an_estimate_that_fails_costs_a_newer_jax_the_estimate_alone(eight_devices, monkeypatch):
    def broken(*_):
        raise KeyError("reduction_axes")

    known = plan()
    monkeypatch.setattr(build_plan, "read_estimate", broken)
    assert not plan().ok
    monkeypatch.setattr(build_plan, "is_untested", lambda: True)
    found = plan()
    assert any(isinstance(note, EstimateFailed) for note in found.notes)
    assert values(found) == values(known)


PLANTED = {
    "MLIR: Shardy passes": (shardy_passes, "PASSES", without("symbol-dce"), "symbol-dce"),
    "MLIR: operations": (mlir_names, "OPERATIONS", ("sdy.of_tomorrow",), "sdy.of_tomorrow"),
    "MLIR: simplified operations": (mlir_checks, "SIMPLIFIED", {"ad"}, "stablehlo.ad"),
    "MLIR: program attributes": (mlir_names, "ATTRIBUTES", {"stablehlo.slice": ("end",)}, "end"),
    "MLIR: Shardy attributes": (
        mlir_names, "ATTRIBUTES", {"stablehlo.sine": ("sdy.sharding_rule",), "a": ("params",)},
        "a: params",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", mlir_checks.MLIR_NAMES)
def test_the_doctor_names_what_is_missing(eight_devices, monkeypatch, name):
    module, attribute, value, missing = PLANTED[name]
    monkeypatch.setattr(module, attribute, value)
    with pytest.raises(LookupError, match=re.escape(missing)):
        mlir_checks.MLIR_NAMES[name]()


def test_operations_are_named_in_one_file():
    backend = Path(shardviz.__file__).parent / "plans" / "backend"
    literal = re.compile(
        r'^(?! *(?:>>>|\.\.\.)).*"(?:stablehlo|sdy|chlo|func)\.[a-z_]+"', re.MULTILINE
    )
    files = [path.name for path in backend.glob("*.py") if literal.search(path.read_text())]
    assert files == ["mlir_names.py"]
