"""Arrays for which nobody chose devices are split as jax's compiler splits them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.programs.backend.trace import left_to_compiler


def a_mesh(kind: jax.sharding.AxisType = jax.sharding.AxisType.Auto) -> jax.sharding.Mesh:
    return jax.make_mesh((4, 2), ("x", "y"), (kind, kind))


def step_on(mesh):
    def step(x, w, b, unread):
        h = jax.lax.with_sharding_constraint(x @ w + b, NamedSharding(mesh, P("x", "y")))
        return jnp.sum(h**2, -1)

    return step


def arguments(mesh):
    x = jax.device_put(np.ones((32, 16), np.float32), NamedSharding(mesh, P("x")))
    return x, jnp.ones((16, 32)), np.ones(32, np.float32), jnp.ones(8)


def spec_of(report, name):
    return str(report.in_layouts[name].spec)


@pytest.mark.parametrize("target", ["attached", None], ids=["here", "worker"])
def test_memory_and_layouts_are_those_of_jax(target):
    mesh = a_mesh()
    args = arguments(mesh)
    theirs = jax.jit(step_on(mesh)).lower(*args).compile()
    report = sv.run(sv.program(step_on(mesh), *args), target=target)
    assert report.ok, report.error or report.checks
    analysis = theirs.memory_analysis()
    assert report.memory.arguments == analysis.argument_size_in_bytes
    assert report.memory.temporaries == analysis.temp_size_in_bytes
    found = [theirs.input_shardings[0][i].spec for i in (1, 2)]
    assert found == [P(None, "y"), P("y")]
    assert [spec_of(report, n) for n in ("w", "b")] == ["P(None, 'y')", "P('y')"]
    assert spec_of(report, "unread") == "P(None)"
    assert any(c.name.startswith("w: indices") for c in report.checks)


def test_the_plan_splits_them_too():
    mesh = a_mesh()
    plan = sv.plan(sv.program(step_on(mesh), *arguments(mesh)))
    assert str(plan.op("w").spec) == "P(None, 'y')"


def resharded(x, w):
    return jax.sharding.reshard(x, P("x", None)) @ w


@pytest.mark.parametrize("target", ["attached", None], ids=["here", "worker"])
@pytest.mark.parametrize("given", [False, True], ids=["mesh of arrays", "mesh given"])
def test_a_mesh_in_context_leaves_arrays_of_explicit_programs_to_the_compiler(given, target):
    mesh = a_mesh(jax.sharding.AxisType.Explicit)
    x = np.ones((32, 16), np.float32)
    with jax.set_mesh(mesh):
        w = jax.device_put(np.ones((16, 32), np.float32), P(None, "y"))
        theirs = jax.jit(resharded).lower(x, w).compile()
        report = sv.run(resharded, x, w, mesh=mesh if given else None, target=target)
        plan = sv.plan(resharded, x, w, mesh=mesh if given else None)
    assert report.ok, report.error or report.checks
    assert report.memory.arguments == theirs.memory_analysis().argument_size_in_bytes == 1536
    assert theirs.input_shardings[0][0].spec == P("x")
    assert spec_of(report, "x") == "P('x')"
    assert str(plan.op("x").spec) == "P('x', None)"
    assert "as requested" not in str(plan.why("x"))


STAYS = {
    "all of them": lambda: (step_on(a_mesh()), [np.ones((32, 16)), *arguments(a_mesh())[1:]], {}),
    "Explicit axes": lambda: (
        lambda x, w: x @ w,
        arguments(a_mesh(jax.sharding.AxisType.Explicit))[:2],
        {"mesh": a_mesh(jax.sharding.AxisType.Explicit)},
    ),
    "a spec that is asked for": lambda: (
        step_on(a_mesh()),
        arguments(a_mesh()),
        {"in_specs": ("x", "None, y", "None", "None")},
    ),
    "committed": lambda: (
        step_on(a_mesh()),
        jax.device_put(arguments(a_mesh()), NamedSharding(a_mesh(), P())),
        {},
    ),
}


@pytest.mark.parametrize("call", STAYS.values(), ids=STAYS)
def test_what_is_asked_for_is_not_left_to_the_compiler(call):
    step, args, own = call()
    program = sv.program(step, *args, **{"mesh": a_mesh(), **own})
    assert left_to_compiler(program) == frozenset()
