"""What changes from one plan to another."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from shardviz.base.mesh import make_mesh
from shardviz.plans.backend.build_plan import plan_program
from shardviz.plans.plan_difference import (
    BytesSent,
    Counts,
    NewValue,
    NoPlan,
    NothingChanges,
    OtherMesh,
)
from tests.propagation.planning import MESH, V, W, X, plan, program

REPLICATED = ((64, 32), "None")


def mlp(x, w, v):
    return jax.nn.relu(x @ w) @ v


def longer(x, w, v):
    return jnp.sin(jax.nn.relu(x @ w)) @ v


def of(fn=mlp, mesh=MESH, **changes):
    return plan(fn, mesh, **({"x": X, "w": W, "v": V} | changes))


@pytest.fixture(scope="module")
def before(eight_devices):
    return of()


def test_the_same_program_changes_nothing(before):
    found = before.diff(of())
    assert found.facts == (NothingChanges(),)


def test_another_sharding_changes_values_and_sizes(before):
    found = before.diff(of(x=REPLICATED))
    assert [c.after.name for c in found.changed if c.moved][:2] == ["x", "dot_general"]
    assert [(o.bytes_per_device, n.bytes_per_device) for o, n in found.resized] == [(2048, 8192)]
    assert BytesSent(2048, 8192) in found.facts
    assert found.facts == (*found.head, *found.moves, *found.values)
    assert len(found.moves) == 1
    assert not (found.added)
    assert not (found.removed)
    assert not (found.gained)
    assert not (found.lost)


def test_an_operation_more(eight_devices):
    def fn(x, more):
        return jnp.cos(jnp.sin(x) if more else x)

    one = plan(lambda x: fn(x, False), x=X)
    two = plan(lambda x: fn(x, True), x=X)
    found = one.diff(two)
    assert [op.name for op in found.added] == ["sin"]
    assert not found.removed
    assert found.facts == (Counts({}, {"new": 1}), NewValue(two.op("sin")))
    assert [op.name for op in two.diff(one).removed] == ["sin"]


def test_an_origin_that_changes(eight_devices):
    def fn(x, y):
        return jnp.sin(x) + y

    first = plan(fn, x=X, y=REPLICATED)
    second = plan(fn, x=REPLICATED, y=X)
    found = {c.after.name: c for c in first.diff(second).changed}
    change = found["add"]
    assert not change.moved
    origins = [op.origins["data"].name for op in (change.before, change.after)]
    assert origins == ["x", "y"]


def test_lines_that_move_change_nothing(eight_devices):
    source = "def fn(x):\n    return jnp.sin(x) * 2\n"
    plans = []
    for lead in ("", "\n\n\n"):
        names = {"jnp": jnp}
        exec(compile(lead + source, "/tmp/edited.py", "exec"), names)  # noqa: S102
        plans.append(plan(names["fn"], x=X))
    assert plans[0].op("sin").source != plans[1].op("sin").source
    assert plans[0].diff(plans[1]).facts == (NothingChanges(),)


def test_another_mesh(before):
    found = before.diff(of(mesh=make_mesh(data=2, model=4)))
    assert isinstance(found.facts[0], OtherMesh)
    assert not found.changed


def test_a_plan_that_failed(before):
    failed = plan_program(program(lambda x: x @ x, x=X))
    assert before.diff(failed).facts == (NoPlan("after", failed.error),)
    assert failed.diff(before).facts == (NoPlan("before", failed.error),)
