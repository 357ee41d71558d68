"""What changes from one plan to another."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from shardviz.core.backend.shardy.build_plan import plan_program
from shardviz.core.errors import ProgramError
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.program.plan import plan_difference
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
    assert found.lines == ("Nothing changes.",)
    assert str(found) == "Nothing changes."


def test_another_sharding_changes_values_and_sizes(before):
    found = before.diff(of(x=REPLICATED))
    assert [c.after.name for c in found.changed if c.moved][:2] == ["x", "dot_general"]
    assert "dot_general: P('data', 'model') -> P(None, 'model')" in found.lines
    assert [(o.bytes_per_device, n.bytes_per_device) for o, n in found.resized] == [(2048, 8192)]
    assert found.head[-1] == "Each device sends 2 KiB before, 8 KiB now."
    assert found.lines == (*found.head, *found.moves, *found.values)
    assert [line.partition(":")[0] for line in found.moves] == ["Resized"]
    assert not (found.added)
    assert not (found.removed)
    assert not (found.gained)
    assert not (found.lost)


def test_a_collective_gained_and_lost(before):
    column = of(v=((128, 32), "None"), w=((32, 128), "None"))
    found = before.diff(column)
    assert [c.kind for c in found.lost] == ["all-reduce"]
    assert not found.gained
    assert any(line.startswith("Lost: all-reduce of 2 KiB over model") for line in found.lines)
    back = column.diff(before)
    assert [c.kind for c in back.gained] == ["all-reduce"]
    assert not back.lost


def test_an_operation_more(eight_devices):
    def fn(x, more):
        return jnp.cos(jnp.sin(x) if more else x)

    one = plan(lambda x: fn(x, False), x=X)
    two = plan(lambda x: fn(x, True), x=X)
    found = one.diff(two)
    assert [op.name for op in found.added] == ["sin"]
    assert not found.removed
    assert found.lines[0] == "1 value new."
    assert found.lines[1].startswith("New: sin, float32[64, 32], P('data', None) (test_diff")
    assert [op.name for op in two.diff(one).removed] == ["sin"]


def test_an_origin_that_changes(eight_devices):
    def fn(x, y):
        return jnp.sin(x) + y

    first = plan(fn, x=X, y=REPLICATED)
    second = plan(fn, x=REPLICATED, y=X)
    found = {c.after.name: c for c in first.diff(second).changed}
    assert str(found["add"]) == (
        "add: P('data', None) as before, but data came from argument x;"
        " data comes from argument y now"
    )


def test_lines_that_move_change_nothing(eight_devices):
    source = "def fn(x):\n    return jnp.sin(x) * 2\n"
    plans = []
    for lead in ("", "\n\n\n"):
        names = {"jnp": jnp}
        exec(compile(lead + source, "/tmp/edited.py", "exec"), names)  # noqa: S102
        plans.append(plan(names["fn"], x=X))
    assert plans[0].op("sin").source != plans[1].op("sin").source
    assert str(plans[0].diff(plans[1])) == "Nothing changes."


def test_another_mesh(before):
    found = before.diff(of(mesh=make_mesh(data=2, model=4)))
    assert found.lines[0] == "Mesh: data=4, model=2 -> data=2, model=4"
    assert not found.changed


def test_a_plan_that_failed(before):
    failed = plan_program(program(lambda x: x @ x, x=X))
    assert before.diff(failed).lines[0].startswith("There is no plan after: trace: ")
    assert failed.diff(before).lines[0].startswith("There is no plan before: trace: ")


def test_what_is_no_plan_is_refused(before):
    with pytest.raises(ProgramError, match="A plan is compared with a plan"):
        plan_difference(before, "plan")


def test_repr(before):
    assert repr(before.diff(of(x=REPLICATED))).startswith("PlanDiff(mlp: ")
