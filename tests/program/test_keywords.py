"""The functions for programs name what they do not know."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import shardviz as sv


@pytest.mark.parametrize("keyword", ["rule", "in_sharding", "foo"])
def test_unknown_keywords_are_refused(keyword):
    with pytest.raises(sv.ShardvizError):
        sv.program(lambda x: x, sv.array("x", (8,)), mesh="data=1", **{keyword: 1})  # type: ignore[arg-type]


def sharded(x, mesh):
    rows = jax.sharding.NamedSharding(mesh, P("data"))
    return jax.lax.with_sharding_constraint(x * 2, rows)


def with_default(x, mesh=None):
    return x if mesh is None else sharded(x, mesh)


def table(x, rules):
    return x * len(rules)


def the_args(args):
    return args * 2


X = sv.array("x", (8, 4))
CPUS = AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))


@pytest.mark.parametrize(
    ("program", "spec"),
    [
        (lambda: sv.program(sharded, X, mesh=CPUS), "P('data', None)"),
        (lambda: sv.program(sharded, X, CPUS), "P('data', None)"),
        (lambda: sv.program(with_default, X, mesh="data=4"), "P(None, None)"),
        (lambda: sv.program(sharded, args=(X, CPUS), mesh="data=4"), "P('data', None)"),
        (
            lambda: sv.program(sharded, X, kwargs={"mesh": CPUS}, mesh=sv.mesh(data=4)),
            "P('data', None)",
        ),
    ],
)
def test_a_function_may_have_a_parameter_called_mesh(program, spec):
    made = program()
    assert str(made.mesh) == "data=4"
    plan = sv.plan(made)
    assert plan.error is None
    assert str(plan.ops[-1].spec) == spec


def test_a_mesh_that_a_function_cannot_use_is_refused():
    with pytest.raises(sv.ShardvizError, match="sharded has its own parameter mesh"):
        sv.program(sharded, X, mesh="data=4")


def test_rules_of_the_function_and_of_the_program():
    array = sv.array("x", (8, 4), "batch embed")
    rules = [("batch", "data")]
    theirs = sv.program(table, array, mesh="data=4", rules=rules)
    assert theirs.rules is None
    assert any("rules= was given to table" in note for note in theirs.notes)
    both = sv.program(table, array, kwargs={"rules": [1, 2]}, mesh="data=4", rules=rules)
    assert both.rules == sv.rules(*rules)
    assert not both.notes


def test_args_that_are_no_call_are_refused():
    assert [a.name for a in sv.program(the_args, args=X, mesh="data=4").arrays] == ["x"]
    for keywords in ({"args": X}, {"kwargs": [1]}):
        with pytest.raises(sv.ShardvizError, match=r"args= is a|kwargs= is a"):
            sv.program(lambda x: x, mesh="data=4", **keywords)
    with pytest.raises(sv.ShardvizError, match="both one by one and as args="):
        sv.program(lambda x: x, X, args=(X,), mesh="data=4")
