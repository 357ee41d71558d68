"""Nothing of jax or flax is replaced: not while shardviz works, and not after an interrupt."""

from __future__ import annotations

import _thread
import random
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.plans.plan_notes import UnknownConstraints
from shardviz.programs.backend.bridge import abstract_mesh
from shardviz.programs.backend.mesh_context import mesh_context
from tests.program.untouched import State

SPLIT = jax.shard_map(lambda x: x * 2, in_specs=P("data"), out_specs=P("data"))


def constrained(x):
    return jax.lax.with_sharding_constraint(jnp.sin(x) @ x.T, P("data"))


def through_flax(x):
    spmd = pytest.importorskip("flax.linen.spmd")
    return spmd.with_logical_constraint(x, ("rows", None), rules=(("rows", "data"),))


def mapped(x):
    return jax.shard_map(lambda x: x + 1, in_specs=P("data"), out_specs=P("data"))(x)


def refused(x):
    return jnp.ones(3) + jnp.ones(4) + x


FUNCTIONS = {
    "a constraint": constrained,
    "flax": through_flax,
    "shard_map": mapped,
    "shard_map, directly": SPLIT,
    "an error": refused,
}


def hooks():
    tools = [sys.monitoring.get_tool(i) for i in range(6)] if hasattr(sys, "monitoring") else []
    return sys.getprofile(), sys.gettrace(), tools


@pytest.mark.parametrize("name", FUNCTIONS)
def test_everything_is_as_it_was(name, eight_devices):
    fn, before, inside = FUNCTIONS[name], None, []

    def step(x):
        inside.append(before and before.changed())
        return fn(x)

    kind = "Explicit" if name == "shard_map" else "Auto"
    mesh = sv.mesh("data=4", axis_types=kind)
    program = sv.program(step, np.ones((8, 4), np.float32), mesh=mesh, in_specs="data")
    sv.run(program, target="attached")  # what is imported later is imported now
    sv.plan(program)
    before, watching, options = State(), hooks(), dict(jax.config.values)
    inside.clear()
    sv.plan(program)
    assert inside
    sv.compile(program, target="attached")
    sv.run(program, target="attached")
    with jax.set_mesh(jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])):
        sv.plan(sv.program(step, np.ones((8, 4), np.float32)))
    assert len(inside) >= 4
    assert [changed for changed in inside if changed] == []
    assert before.changed() == []
    assert hooks() == watching
    assert dict(jax.config.values) == options


@pytest.fixture
def interrupts():
    """A process that was started in the background ignores interrupts otherwise."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# Python drops an interrupt that comes while it frees something, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_leave_jax_as_it_was(eight_devices, interrupts):
    program = sv.program(constrained, jnp.ones((8, 8)), mesh="data=4")
    assert sv.plan(program).error is None
    begun = time.perf_counter()
    sv.plan(program)
    longest = time.perf_counter() - begun
    before, watching, context = State(), hooks(), mesh_context()
    moments, interrupted = random.Random(0), 0
    for _ in range(60):
        timer = threading.Timer(moments.uniform(0, longest), _thread.interrupt_main)
        try:
            timer.start()
            sv.plan(program)
            timer.join()
        except KeyboardInterrupt:
            interrupted += 1
        assert hooks() == watching
        assert mesh_context() == context
    assert interrupted
    assert before.changed() == []
    assert len(sv.plan(program).constraints) == 1


SHAPE = jax.ShapeDtypeStruct((8, 4), np.float32)


def sum_over_data():
    return jax.shard_map(lambda x: jax.lax.psum(x, "data"), in_specs=P("data"), out_specs=P())


def test_a_shard_map_without_a_mesh_is_not_bound_to_another_mesh(eight_devices):
    body = sum_over_data()
    inner = jax.jit(body)
    step = lambda x: inner(x) + 1  # noqa: E731
    error = sv.plan(sv.program(step, SHAPE, mesh="data=8")).error
    assert error is not None
    assert "A shard_map without mesh= was made outside of the function" in error.message
    # By itself it is copied, and planned on any mesh.
    for mesh in ("data=8", "data=4"):
        assert sv.plan(sv.program(body, SHAPE, mesh=mesh)).error is None
        assert sv.plan(sv.program(inner, SHAPE, mesh=mesh)).error is None
    with pytest.raises(ValueError, match="context mesh cannot be empty"):
        body(jnp.ones((8, 4)))
    # One that is made inside meets a mesh only once.
    assert sv.plan(sv.program(lambda x: sum_over_data()(x), SHAPE, mesh="data=8")).error is None
    with jax.set_mesh(jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])):
        assert step(jax.device_put(jnp.ones((8, 4)), P("data")))[0, 0] == 3


def test_a_shard_map_without_a_mesh_is_planned_on_the_users_own(eight_devices):
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    for planned_within in (True, False):
        body = sum_over_data()
        step = lambda x, body=body: body(x) + 1  # noqa: E731
        with jax.set_mesh(mesh):
            value = jax.device_put(jnp.ones((8, 4)), P("data"))
            program = sv.program(step, value)
            if planned_within:
                assert sv.plan(program).error is None
        if not planned_within:
            assert sv.plan(program).error is None
        with jax.set_mesh(mesh):
            assert step(value)[0, 0] == 3
            assert jax.jit(step)(value)[0, 0] == 3


@pytest.mark.parametrize("around", [lambda fn: fn, lambda fn: jax.grad(lambda x: fn(x).sum())])
def test_what_jax_kept_of_a_function_keeps_its_calls(around, eight_devices):
    @jax.jit
    def inner(x):
        return constrained(x)

    forward, other = (lambda x: inner(x)), around(lambda x: inner(x))
    for fn in (forward, other, other):
        plan = sv.plan(sv.program(fn, jnp.ones((8, 8)), mesh="data=4"))
        assert plan.error is None
        assert [one.effect for one in plan.constraints] == ["constrained"]


def test_what_jax_kept_before_the_first_plan_is_unknown(eight_devices):
    @jax.jit
    def inner(x):
        return constrained(x)

    x = jax.ShapeDtypeStruct((8, 8), np.float32)
    with jax.sharding.use_abstract_mesh(abstract_mesh(sv.mesh(data=4, axis_types="Auto"))):
        jax.jit(lambda x: inner(x * 2)).trace(x)
        program = sv.program(lambda x: inner(x * 2), x)
    plan = sv.plan(program)
    assert plan.error is None
    unknown = [note for note in plan.notes if isinstance(note, UnknownConstraints)]
    assert len(unknown) + len(plan.constraints) == 1
