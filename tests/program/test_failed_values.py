"""A failed plan, report or stage raises its error for what it does not have."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.compiled.report import Memory, Report
from shardviz.pictures import draw, to_text
from shardviz.plans.plan import Plan
from shardviz.programs.failure import Failure

X = sv.array("x", (64, 8), spec="data")


def program(fn):
    return sv.program(fn, X, mesh="data=4")


def _raises(x):
    raise RuntimeError("no way")


def _run_fails(x):
    import jax

    def fail(x):
        raise RuntimeError("no way")

    return jax.pure_callback(fail, x, x)


FAILED = program(_raises)
PLAN, REPORT = sv.plan(FAILED), sv.compile(FAILED, target="cpu:4")
STAGES = sv.stages(FAILED, target="cpu:4")
MISSING = {
    "plan": (PLAN, ("ops", "collectives", "by_name", "arrivals", "constraints", "lower_s",
                    "propagate_s", "replay", "after", "op", "why")),
    "report": (REPORT, ("key", "lower_s", "compile_s", "run_s", "out_layouts", "partitioned",
                        "collectives", "memory", "cost", "checks", "outputs", "roofline",
                        "fit", "cache_hit", "effects", "loops")),
    "stage": (STAGES.compiled, ("collectives", "seconds")),
    "stages": (STAGES, ("roofline",)),
}  # fmt: skip
CASES = [(value, name) for value, names in MISSING.values() for name in names]
ARGUMENTS = {"after": (0,), "op": ("x",), "why": ("x",), "replay": ()}


@pytest.mark.parametrize(
    ("value", "name"), CASES, ids=[f"{type(v).__name__}.{n}" for v, n in CASES]
)
def test_what_a_failure_left_without_a_value_raises_its_error(value, name):
    def ask():
        result = getattr(value, name)
        return result(*ARGUMENTS[name])

    with pytest.raises(sv.ShardvizError, match="no way"):
        ask()


def test_what_is_there_can_be_read():
    assert (PLAN.ok, PLAN.program, PLAN.error.stage) == (False, "_raises", "trace")
    assert (PLAN.mesh.size, PLAN.notes, PLAN.of) == (4, (), FAILED)
    assert PLAN.seconds >= 0
    assert (REPORT.ok, REPORT.too_large, REPORT.error.stage) == (False, None, "trace")
    assert list(REPORT.in_layouts) == ["x"]
    assert REPORT.largest_arrays is not None
    assert [stage.state for stage in STAGES.all] == ["known", *["failed"] * 3]


def test_the_stages_that_were_reached_are_known():
    report = sv.run(program(_run_fails), target="cpu:4")
    assert report.error.stage == "run"
    for name in ("lower_s", "key", "effects", "in_layouts"):
        getattr(report, name)
    with pytest.raises(sv.ShardvizError):
        _ = report.outputs
    # Defaults that are real answers of a stage that was reached.
    reached = Report("f", "cpu:4", lower_s=0.1, collectives=(), error=Failure("run", "It ended."))
    assert (reached.collectives, reached.roofline, reached.partitioned) == ((), None, None)
    assert (reached.effects, reached.memory, reached.loops) == ((), Memory(), 0)
    with pytest.raises(sv.ShardvizError):
        _ = reached.run_s


def test_a_target_that_is_not_available_raises_a_target_error():
    report = sv.compile(program(jnp.sin), target="gpu")
    with pytest.raises(sv.ShardvizError) as raised:
        _ = report.collectives
    assert type(raised.value).__name__ == "TargetError"


STAGE = STAGES.compiled


@pytest.mark.parametrize("value", [PLAN, REPORT, STAGE], ids=["plan", "report", "stage"])
def test_failed_values_can_be_copied_and_shown(value):
    copies = [copy.copy(value), pickle.loads(pickle.dumps(value)), dataclasses.replace(value)]
    assert all(other == value for other in copies)
    assert value != value.without_error
    assert "no way" in str(value.error)
    repr(value)
    assert "collectives" not in {f.name for f in dataclasses.fields(value)}
    assert "collectives" in {f.name for f in dataclasses.fields(type(value))}
    if value is not STAGE:
        assert "no way" in to_text(value)
        draw(value)
        draw(STAGES)
        assert "no way" in to_text(STAGES)


def test_a_value_without_an_error_lacks_nothing():
    assert Plan("f", sv.mesh("data=2")).ops == ()
    assert Report("f", "cpu:4").collectives is None
