"""Programs with Explicit axes: the plan says what types say, and which operation jax refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shardviz.axis_rules.dialects import Dialect
from shardviz.axis_rules.libraries import spec_of
from shardviz.base.array_spec import ArraySpec
from shardviz.base.mesh import make_mesh
from shardviz.base.mesh_context import MeshContext
from shardviz.base.partition_spec import Spec
from shardviz.plans.backend.build_plan import plan_program
from shardviz.programs.backend.bridge import to_jax
from shardviz.programs.backend.build_program import build_program
from shardviz.programs.backend.failures import in_words
from shardviz.programs.backend.jaxprs import operations
from shardviz.programs.backend.trace import trace
from shardviz.programs.failure import Raised
from shardviz.programs.program import Program

EXPLICIT = make_mesh(x=4, y=2, axis_types="Explicit")
INNER = (((8, 16), "None, x"), ((16, 4), "x, None"))
BOTH = (((8, 16), "x, y"),)
ROWS = (((8, 16), "x, None"),)

Fn = Callable[..., Any]
PROGRAMS: dict[str, tuple[Fn, tuple[Any, ...]]] = {
    "summed dimension": (lambda a, b: jnp.tanh(jnp.dot(a, b, out_sharding=P("x", None))), INNER),
    "reshape": (lambda a: jnp.sin(lax.reshape(a, (2, 4, 16), out_sharding=P(None, "x"))), ROWS),
    "indexing": (
        lambda a, i: jnp.sin(a.at[i].get(out_sharding=P(None, "x"))),
        (*ROWS, ((4,), "None", "int32")),
    ),
    "sum": (lambda a: jnp.sin(a.sum(0)), BOTH),
    "cumulative sum": (lambda a: jnp.cumsum(a, 1) * 2, ROWS),
    "reshard": (lambda a: jax.sharding.reshard(a, P(None, "x")) * 2, ROWS),
    "iota": (lambda a: a + jnp.arange(16.0), BOTH),
    "scan": (
        lambda a, b: lax.scan(lambda c, _: (jnp.tanh(c @ b), None), a, None, length=3)[0],
        (*ROWS, ((16, 16), "None, None")),
    ),
    "gradient": (
        lambda a, b: jax.grad(lambda b: jnp.sum(jnp.tanh(a @ b)))(b),
        (*ROWS, ((16, 4), "None, y")),
    ),
    "auto inside": (
        lambda a: jax.sharding.auto_axes(lambda a: jnp.sort(a, 0), out_sharding=P("x", None))(a),
        ROWS,
    ),
    "slice": (lambda a: a[:4] * 2, ROWS),
    "concatenate": (lambda a, b: jnp.concatenate([a, b]) * 2, (*ROWS, *ROWS)),
    "softmax": (lambda a: jax.nn.softmax(a, -1), BOTH),
}


def program(fn: Fn, arrays: Any, mesh: Any = EXPLICIT) -> Program:
    specs = [
        ArraySpec(f"arg{n}", shape, None, dtype[0] if dtype else "float32", Spec.parse(spec))
        for n, (shape, spec, *dtype) in enumerate(arrays)
    ]
    made = build_program(fn, specs, mesh, None, Dialect.LINEN, None, None, (), "")
    return made.replace(context=MeshContext(abstract=mesh))  # as under jax.set_mesh


def typed_specs(made: Program) -> dict[tuple[str, tuple[int, ...]], set[Spec]]:
    """The shardings in the types of jax's own jaxpr, by operation and shape."""
    specs: dict[tuple[str, tuple[int, ...]], set[Spec]] = {}
    for operation in operations(trace(made, to_jax(made.mesh)).stage.jaxpr):
        for variable in operation.equation.outvars:
            sharding = getattr(variable.aval, "sharding", None)
            if sharding is None or set(sharding.mesh.axis_types) != {AxisType.Explicit}:
                continue
            shape = tuple(variable.aval.shape)
            spec = Spec(spec_of(sharding.spec).padded(len(shape)))
            specs.setdefault((operation.name, shape), set()).add(spec)
    return specs


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_plan_says_what_the_types_say(name):
    made = program(*PROGRAMS[name])
    plan, types, compared = plan_program(made), typed_specs(made), 0
    assert plan.error is None
    for op in plan.ops:
        called = op.op.rpartition("/")[2]
        # Beside the operation that was called, jax adds others under the same name.
        if (called, op.shape) in types and op.name.startswith(called):
            compared += 1
            assert any(op.spec.equivalent(spec) for spec in types[called, op.shape]), op
    assert compared


OTHER, COLUMNS = ((8, 16), "y, None"), ((8, 16), "None, x")
FEW = ((4,), "None", "int32")


# name: function, arrays, the operation; "" where jax raises no error of types and says all itself
REFUSED: dict[str, tuple[Fn, tuple[Any, ...], str]] = {
    "contracting dimensions alike": (lambda a, b: a @ b, INNER, "dot_general"),
    "contracting dimensions apart": (
        lambda a, b: a @ b, (COLUMNS, ((16, 4), "y, None")), "dot_general",
    ),
    "one axis on both outer dimensions": (
        lambda a, b: a @ b, (*ROWS, ((16, 4), "None, x")), "dot_general",
    ),
    "in a function called inside": (
        lambda a, b: jax.jit(lambda a: a @ b)(a), INNER, "dot_general",
    ),
    "in a gradient": (
        lambda a, b: jax.grad(lambda a: jnp.sum(jnp.dot(a, b)))(a), INNER, "dot_general",
    ),
    "elementwise": (lambda a, b: a + b, (*ROWS, OTHER), "add"),
    "where": (lambda a, b: jnp.where(a > 0, a, b), (*ROWS, COLUMNS), "select_n"),
    "reshape": (lambda a: a.reshape(2, 4, 16), ROWS, "reshape"),
    "concatenate": (lambda a, b: jnp.concatenate([a, b]), (*ROWS, OTHER), "concatenate"),
    "gather": (lambda a, i: a[i], (*ROWS, FEW), "gather"),
    "scatter": (
        lambda a, i, u: a.at[i].add(u), (*ROWS, FEW, ((4, 16), "None, None")), "scatter-add",
    ),
    "slice": (lambda a: a[:3], ROWS, "slice"),
    "convolution": (
        lambda a, k: lax.conv_general_dilated(a, k, (1, 1), "SAME"),
        (((4, 8, 16, 16), "None, x"), ((8, 8, 3, 3), "None, x")), "conv_general_dilated",
    ),
    "sort": (lambda a: jnp.sort(a, 0), ROWS, "sort"),
    "cumsum": (lambda a: jnp.cumsum(a, 0), ROWS, "cumsum"),
    "repeat": (lambda a: jnp.repeat(a, 2, 0), ROWS, ""),
    "ragged dot": (
        lax.ragged_dot, (COLUMNS, ((2, 16, 4), "None, x"), ((2,), "None", "int32")), "",
    ),
    "scan": (
        lambda a, b: lax.scan(lambda c, _: (c @ b, None), a, None, length=2)[0],
        (*ROWS, ((16, 16), "None, y")), "",
    ),
    "cond": (
        lambda a, b: lax.cond(True, lambda: (a, a), lambda: (a, b)), (*ROWS, OTHER), "",
    ),
    "constraint": (
        lambda a: lax.with_sharding_constraint(a, Spec.parse("y").to_jax()), ROWS, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_the_plan_says_which_operation_is_refused_and_what_jax_says(name):
    fn, arrays, operation = REFUSED[name]
    made = program(fn, arrays)
    with pytest.raises(Exception) as raised:
        trace(made, to_jax(EXPLICIT))
    error = plan_program(made).error
    assert error is not None
    assert error.stage == "trace"
    assert in_words(raised.value) in error.said
    assert getattr(error.cause, "operation", "") == operation
    assert operation in str(error)
    assert error.source.startswith("test_explicit_types.py:") or name == "ragged dot"


def test_other_errors_are_not_about_shardings():
    def broken(a):
        raise KeyError("no such layer")

    auto = make_mesh(x=4, y=2)
    for made in (
        program(broken, ROWS),
        program(lambda a, b: a @ b, (*ROWS, *ROWS)),
        program(lambda a, b: a @ b, (*ROWS, *ROWS), auto),
    ):
        assert plan_program(made).error.cause == Raised()


def test_a_function_that_is_not_the_same_twice_is_still_refused():
    calls = []

    def fickle(a, b):
        calls.append(1)
        return a @ b if len(calls) == 1 else a

    error = plan_program(program(fickle, INNER)).error
    assert (error.cause, error.stage) == (Raised(), "trace")


def test_tracebacks_are_filtered_again_afterwards():
    before = jax.config.values["jax_traceback_filtering"]
    plan_program(program(*REFUSED["sort"][:2]))
    assert jax.config.values["jax_traceback_filtering"] == before


ONE = make_mesh(data=1, tensor=4, x=2, axis_types="Explicit")


@pytest.mark.parametrize(
    "fn",
    [
        lambda a: jnp.tanh(a) + 1,
        lambda a: (a.sum(2), a.sum(0)),
        lambda a: jnp.swapaxes(a, 0, 1) * 2,
        lambda a: jax.grad(lambda a: (jnp.sin(a) ** 2).sum())(a),
        lambda a: jax.sharding.reshard(a, P(None, ("data", "x"), None)) * 2,
        lambda a: lax.scan(lambda c, _: (jnp.sin(c), None), a, None, length=2)[0],
    ],
)
def test_types_name_axes_of_size_one(fn):
    array = ArraySpec("a", (8, 8, 4), spec=Spec.parse("data, tensor, None"))
    program = Program(fn, (array,), ONE)
    plan = plan_program(program)
    assert plan.error is None
    # jax's own types, operation by operation.
    mesh = to_jax(ONE)
    struct = jax.ShapeDtypeStruct(
        array.shape, "float32", sharding=to_jax(program.requests[0]).sharding
    )
    with jax.sharding.use_abstract_mesh(mesh):
        jaxpr = jax.make_jaxpr(fn)(struct)
    types = [spec_of(aval.sharding.spec) for aval in jaxpr.out_avals]
    results = [op.spec for op in plan.ops if op.kind == "result"]
    assert [spec.dims for spec in results] == [spec.dims for spec in types]
    assert plan.op("a").spec.dims == (("data",), ("tensor",), ())
    by_name = {op.op.rpartition("/")[2]: op for op in plan.ops if op.kind != "argument"}
    for operation in operations(jaxpr):
        op = by_name.get(operation.name)
        (aval, *_) = [v.aval for v in operation.equation.outvars]
        if op is not None and op.shape == tuple(aval.shape):
            assert op.spec.equivalent(spec_of(aval.sharding.spec)), operation.name
