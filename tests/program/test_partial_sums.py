"""Programs that leave or take partial sums (unreduced axes), compared with jax's own compile.

This process has the devices, so that whatever is compiled here could end it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.axis_rules.libraries import spec_of
from shardviz.compiled.read_collectives import read_collectives
from shardviz.runs.backend.compile import final_module

UNREDUCED = {"X"}


def einsum(equation, out):
    return lambda *arrays: jnp.einsum(equation, *arrays, out_sharding=out)


def summed_later(a, b):
    partial = jnp.einsum("ij,jk->ik", a, b, out_sharding=P(None, None, unreduced=UNREDUCED))
    return jax.sharding.reshard(partial, P("X", None))


#: A function, and shape and spec of each argument.
PROGRAMS = {
    "a sum": (einsum("ab->b", P(None, unreduced=UNREDUCED)), [((8, 12), P("X"))]),
    "a product": (
        einsum("ab,a->b", P(None, unreduced=UNREDUCED)), [((8, 12), P("X")), ((8,), P("X"))],
    ),
    "added up later": (summed_later, [((8, 4), P(None, "X")), ((4, 8), P("X"))]),
    "an argument, added up": (
        lambda x: jax.sharding.reshard(x, P()), [((8, 4), P(unreduced=UNREDUCED))],
    ),
    "beside another split": (
        einsum("fh,fd,f->hd", P(None, "Y", unreduced=UNREDUCED)),
        [((8, 12), P("X")), ((8, 16), P("X", "Y")), ((8,), P("X"))],
    ),
}  # fmt: skip
LEFT_PARTIAL = {"a sum", "a max", "a min beside another split"}
EXTREMES = {}
if hasattr(jax.sharding, "UnreducedKind"):  # since jax 0.12
    LARGEST = P(None, unreduced=UNREDUCED, unreduced_kind=jax.sharding.UnreducedKind.max)
    SMALLEST = P("Y", unreduced=UNREDUCED, unreduced_kind=jax.sharding.UnreducedKind.min)
    EXTREMES = {
        "a max": (lambda x: jax.lax.reduce_max(x, (0,), out_sharding=LARGEST), [((8, 12), P("X"))]),
        "a min beside another split": (
            lambda x: jax.lax.reduce_min(x, (0,), out_sharding=SMALLEST), [((8, 12), P("X", "Y"))],
        ),
        "a max, completed later": (
            lambda x: jax.sharding.reshard(jax.lax.reduce_max(x, (0,), out_sharding=LARGEST), P()),
            [((8, 12), P("X"))],
        ),
        "an argument's min": (lambda x: jax.sharding.reshard(x, P("Y")), [((8,), SMALLEST)]),
    }  # fmt: skip
PROGRAMS |= EXTREMES
ENDS_XLA = (
    einsum("fh,fd,f->hd", P(None, "Y", unreduced=UNREDUCED)),
    [((6, 12), P()), ((6, 16), P("X", "Y")), ((6,), P())],
)


@pytest.fixture(scope="module")
def mesh(eight_devices):
    return jax.make_mesh((2, 2), ("X", "Y"), (AxisType.Explicit,) * 2, devices=eight_devices[:4])


def program_of(made, mesh):
    function, arguments = made
    shapes = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in arguments
    ]
    return sv.program(function, *shapes, mesh=sv.mesh("X=2, Y=2", axis_types="Explicit")), shapes


def split(spec):
    """The axes of each dimension, without trailing ones that are not split; and the sums."""
    dims = list(spec.dims)
    while dims and not dims[-1]:
        dims.pop()
    return dims, spec.unreduced, spec.unreduced_kind


def kinds(collectives):
    return sorted((c.kind, c.mesh_axes) for c in collectives)


@pytest.mark.parametrize("name", PROGRAMS)
def test_plan_and_compile_say_what_jax_compiles(name, mesh):
    program, shapes = program_of(PROGRAMS[name], mesh)
    with jax.set_mesh(mesh):
        compiled = jax.jit(program.fn).lower(*shapes).compile()
    wanted = spec_of(compiled.output_shardings.spec)
    theirs = kinds(read_collectives(final_module(compiled), ("X", "Y"), (2, 2)))

    plan = sv.plan(program)
    assert plan.error is None, plan.error
    result = next(op for op in plan.ops if op.kind == "result")
    assert split(result.spec) == split(wanted)
    assert kinds(plan.collectives) == theirs

    report = sv.compile(program, "cpu:4")
    assert report.error is None, report.error
    assert "simulated" in report.target
    assert split(report.out_layouts["output"].spec) == split(wanted)
    assert kinds(report.collectives) == theirs


RUNS = [("a sum", "cpu:4"), ("added up later", "attached"), ("an argument, added up", "cpu:4")]
RUNS += [(name, target) for name in EXTREMES for target in ("cpu:4", "attached")]


@pytest.mark.parametrize(("name", "target"), RUNS)
def test_they_run_and_are_compared_with_the_unsharded_function(name, target, mesh):
    report = sv.run(program_of(PROGRAMS[name], mesh)[0], target=target)
    assert report.ok, report
    checks = {check.name: check.ok for check in report.checks}
    assert "unsharded function" not in checks
    assert checks["output: values"] is (None if name in LEFT_PARTIAL else True)


@pytest.mark.parametrize("target", ["attached"])
def test_values_that_are_partial_sums_are_taken(target, mesh):
    program, (shape,) = program_of(PROGRAMS["an argument, added up"], mesh)
    values = np.arange(32, dtype=np.float32).reshape(8, 4)
    split = jax.device_put(values, NamedSharding(mesh, P()))
    report = sv.run(program, jax.device_put(split, shape.sharding), target=target)
    assert report.ok, report
    np.testing.assert_array_equal(report.outputs, values)
    assert {check.name: check.ok for check in report.checks}["output: values"] is True


@pytest.mark.parametrize("target", ["cpu:4", "attached"])
def test_what_ends_xla_ends_no_kernel(target, mesh):
    program, _ = program_of(ENDS_XLA, mesh)
    assert sv.plan(program).error is None
    report = sv.compile(program, target)
    assert report.error.stage == "compile"
    assert "SIGABRT" in report.error.message


def test_what_ends_a_plan_ends_no_kernel(mesh):
    def from_the_host(x):
        y = jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return jax.sharding.reshard(y, P(None, None, unreduced=UNREDUCED))

    program, _ = program_of((from_the_host, [((8, 16), P("X"))]), mesh)
    plan, report = sv.plan(program), sv.compile(program, "cpu:4")
    if jax.__version_info__ >= (0, 12):  # which takes it
        assert plan.error is None
        assert report.error is None
        return
    assert plan.error.stage == "propagate"
    for error in (plan.error, report.error):
        assert "SIGABRT" in error.message
