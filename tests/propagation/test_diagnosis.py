"""What Explicit axes refuse: why, and choices that jax really accepts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shardviz.core.backend.bridge import to_jax
from shardviz.core.backend.shardy.explicit_axes import diagnose
from shardviz.core.backend.tracing.build_program import build_program
from shardviz.core.backend.tracing.trace import trace
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.layout.mesh_context import MeshContext
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.rules import Dialect
from shardviz.core.program.plan_causes import MoveCause
from shardviz.core.program.plan_values import Diagnosis
from shardviz.core.program.program import Program

EXPLICIT = make_mesh(x=4, y=2, axis_types="Explicit")


def convolved(a: Any, k: Any) -> Any:
    return lax.conv_general_dilated(a, k, (1, 1), "SAME")


def updated(a: Any, i: Any, u: Any) -> Any:
    return a.at[i].add(u)


ROWS, COLUMNS, OTHER = ((8, 16), "x, None"), ((8, 16), "None, x"), ((8, 16), "y, None")
FEW, INNER = ((4,), "None", "int32"), ((16, 4), "x, None")
SUM, GATHER, EXCHANGE, PERMUTE = (
    "all-reduce", "all-gather", "all-to-all", "collective-permute",
)  # fmt: skip
MOVED = ("operands", "None, x", [(EXCHANGE, 128)])


class Case(NamedTuple):
    fn: Callable[..., Any]
    arrays: tuple[tuple[Any, ...], ...]
    """Shape, spec and perhaps dtype of each."""
    op: str
    problem: tuple[Any, ...]
    """Code of the refusal, and mesh axes of the left and of the right."""
    first: tuple[str, str, Any]
    """Code and sharding of the first choice, and its collectives with their bytes."""


INNER_ALIKE = ("inner alike", "x", "")
REFUSED = {
    "contracting dimensions alike": Case(
        lambda a, b: a @ b, (COLUMNS, INNER), "dot_general", INNER_ALIKE,
        ("out_sharding", "x, None", [(SUM, 128)]),
    ),
    "contracting dimensions apart": Case(
        lambda a, b: a @ b, (COLUMNS, ((16, 4), "y, None")), "dot_general", ("inner", "x", "y"),
        ("out_sharding", "x, y", [(PERMUTE, 32), (SUM, 64)]),
    ),
    "batch dimensions apart": Case(
        lambda a, b: jnp.einsum("bij,bjk->bik", a, b),
        (((4, 8, 16), "x, None, None"), ((4, 16, 8), "y, None, None")),
        "dot_general", ("batch", "x", "y"), ("out_sharding", "x, None, y", [(PERMUTE, 256)]),
    ),
    "one axis on both outer dimensions": Case(
        lambda a, b: a @ b, (ROWS, ((16, 4), "None, x")), "dot_general", ("twice", "x", ""),
        ("out_sharding", "x, None", [(GATHER, 256)]),
    ),
    "in a function called inside": Case(
        lambda a, b: jax.jit(lambda a: a @ b)(a), (COLUMNS, INNER), "dot_general", INNER_ALIKE,
        ("out_sharding", "x, None", [(SUM, 128)]),
    ),
    "in a gradient": Case(
        lambda a, b: jax.grad(lambda a: jnp.sum(jnp.dot(a, b)))(a),
        (COLUMNS, ((16, 16), "x, None")), "dot_general", INNER_ALIKE,
        ("out_sharding", "None, x", [(SUM, 512)]),
    ),
    "elementwise": Case(
        lambda a, b: a + b, (ROWS, OTHER), "add", ("operands", "", ""),
        ("operands", "y, x", [(EXCHANGE, 128)]),
    ),
    "elementwise with broadcasting": Case(
        lambda a, b: a * b, (ROWS, ((16,), "x")), "mul", ("twice", "x", ""),
        ("operands", "x, None", [(GATHER, 64)]),
    ),
    "where": Case(
        lambda a, b: jnp.where(a > 0, a, b), (ROWS, COLUMNS), "select_n", ("operands", "", ""),
        ("operands", "x, None", [(EXCHANGE, 128)]),
    ),
    "reshape that merges": Case(
        lambda a: a.reshape(-1), (((8, 16), "None, y"),), "reshape", ("reshape", "", ""),
        ("out_sharding", "y", [(EXCHANGE, 256)]),
    ),
    "reshape that splits": Case(
        lambda a: a.reshape(2, 4, 16), (ROWS,), "reshape", ("reshape", "", ""),
        ("out_sharding", "None, None, x", [(EXCHANGE, 128)]),
    ),
    "concatenate": Case(
        lambda a, b: jnp.concatenate([a, b]), (ROWS, OTHER), "concatenate", ("operands", "", ""),
        ("operands", "x, None", None),
    ),
    "gather": Case(
        lambda a, i: a[i], (ROWS, FEW), "gather", ("indexing", "", ""),
        ("out_sharding", "x, None", None),
    ),
    "scatter": Case(
        updated, (ROWS, FEW, ((4, 16), "None, None")), "scatter-add", ("indexing", "", ""),
        ("out_sharding", "x, None", None),
    ),
    "slice": Case(lambda a: a[:3], (ROWS,), "slice", ("uneven", "x", ""), MOVED),
    "pad": Case(
        lambda a: jnp.pad(a, ((1, 1), (0, 0))), (ROWS,), "pad", ("uneven", "x", ""), MOVED
    ),
    "window": Case(
        lambda a: lax.reduce_window(a, 0.0, lax.add, (2, 1), (1, 1), "VALID"), (ROWS,),
        "reduce_window_sum", ("uneven", "x", ""), MOVED,
    ),
    "convolution": Case(
        convolved, (((4, 8, 16, 16), "None, x"), ((8, 8, 3, 3), "None, x")),
        "conv_general_dilated", ("convolution", "", ""),
        ("out_sharding", "None, x, None, None", [(SUM, 32768)]),
    ),
    "sort": Case(lambda a: jnp.sort(a, 0), (ROWS,), "sort", ("along", "x", ""), MOVED),
    "cumsum": Case(lambda a: jnp.cumsum(a, 0), (ROWS,), "cumsum", ("along", "x", ""), MOVED),
    "tile": Case(lambda a: jnp.tile(a, (2, 1)), (ROWS,), "tile", ("along", "x", ""), MOVED),
    "top_k": Case(
        lambda a: lax.top_k(a, 2), (COLUMNS,), "top_k", ("along", "x", ""),
        ("operands", "x, None", [(EXCHANGE, 128)]),
    ),
    "repeat": Case(
        lambda a: jnp.repeat(a, 2, 0), (ROWS,), "repeat", ("no type", "", ""),
        ("out_sharding", "x, None", []),
    ),
    "ragged dot": Case(
        lax.ragged_dot, (COLUMNS, ((2, 16, 4), "None, x"), ((2,), "None", "int32")),
        "ragged_dot_general", ("no type", "", ""), ("auto_axes", "x, None", None),
    ),
    "scan": Case(
        lambda a, b: lax.scan(lambda c, _: (c @ b, None), a, None, length=2)[0],
        (ROWS, ((16, 16), "None, y")), "scan", ("carry", "", ""),
        ("body", "x, None", [(GATHER, 128)]),
    ),
    "while": Case(
        lambda a, b: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] @ b), (0, a)),
        (ROWS, ((16, 16), "None, y")), "while_loop", ("carry", "", ""),
        ("body", "x, None", [(GATHER, 128)]),
    ),
    "cond": Case(
        lambda a, b: lax.cond(True, lambda: (a, a), lambda: (a, b)), (ROWS, OTHER), "cond",
        ("branch", "", ""), ("second branch", "x, None", [(PERMUTE, 128)]),
    ),
    "constraint": Case(
        lambda a: lax.with_sharding_constraint(a, Spec.parse("y").to_jax()), (ROWS,),
        "with_sharding_constraint", ("constraint", "", ""),
        ("constraint", "y, None", [(PERMUTE, 128), (GATHER, 256)]),
    ),
}  # fmt: skip


def program(fn: Callable[..., Any], *arrays: Any, mesh: Any = EXPLICIT) -> Program:
    names = inspect.signature(fn).parameters
    specs = [
        ArraySpec(name, shape, None, dtype[0] if dtype else "float32", Spec.parse(spec))
        for name, (shape, spec, *dtype) in zip(names, arrays, strict=False)
    ]
    made = build_program(fn, specs, mesh, None, Dialect.LINEN, None, None, (), "")
    return made.replace(context=MeshContext(abstract=mesh))  # as under jax.set_mesh


def diagnosed(made: Program) -> Diagnosis | None:
    mesh = to_jax(made.mesh)
    try:
        trace(made, mesh)
    except Exception as error:  # noqa: BLE001  whatever it is, it is diagnosed
        return diagnose(error, made, mesh)
    raise AssertionError("jax took it")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    case = REFUSED[name]
    found = diagnosed(program(case.fn, *case.arrays))
    assert found is not None
    why, first = found.problem, found.choices[0]
    assert found.op == case.op
    assert (why.code, ",".join(why.axes), ",".join(why.right)) == case.problem
    code, spec, costs = case.first
    assert (first.code, first.out_sharding) == (code, Spec.parse(spec))
    if costs is not None:
        assert [(c.kind, c.bytes_per_device) for c in first.collectives] == costs
    assert str(why)
    assert str(first)
    assert found.source.startswith("test_diagnosis.py:") or name == "ragged dot"


# One of each way to answer, written as a person would write it.
ANSWERS = {
    "contracting dimensions alike": lambda spec: lambda a, b: jnp.dot(a, b, out_sharding=spec),
    "reshape that splits": lambda spec: lambda a: lax.reshape(a, (2, 4, 16), out_sharding=spec),
    "gather": lambda spec: lambda a, i: a.at[i].get(out_sharding=spec),
    "scatter": lambda spec: lambda a, i, u: a.at[i].add(u, out_sharding=spec),
    "repeat": lambda spec: lambda a: jnp.repeat(a, 2, 0, out_sharding=spec),
    "convolution": lambda spec: (
        lambda a, k: lax.conv_general_dilated(a, k, (1, 1), "SAME", out_sharding=spec)
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_choice_is_accepted_as_a_person_writes_it(name):
    case = REFUSED[name]
    found = diagnosed(program(case.fn, *case.arrays))
    assert found is not None
    assert len(found.choices) >= 3
    for choice in found.choices:
        answered = program(ANSWERS[name](choice.out_sharding.to_jax()), *case.arrays)
        (aval,) = trace(answered, to_jax(EXPLICIT)).stage.jaxpr.out_avals
        assert aval.sharding.spec == choice.out_sharding.to_jax()


@pytest.mark.parametrize("name", REFUSED)
def test_the_cheapest_comes_first_and_sums_put_off_last(name):
    case = REFUSED[name]
    found = diagnosed(program(case.fn, *case.arrays))
    assert found is not None
    assert found.choices
    now = [c for c in found.choices if not c.out_sharding.unreduced]
    sent = [sum(k.sent_bytes or 0 for k in c.collectives or ()) for c in now]
    assert sent == sorted(sent)
    assert list(found.choices[: len(now)]) == now
    specs = [c.out_sharding for c in found.choices]
    assert len(set(specs)) == len(specs)


@pytest.mark.parametrize("name", ["gather", "scatter", "ragged dot"])
def test_no_price_is_given_where_the_compiler_decides_inside(name):
    found = diagnosed(program(REFUSED[name].fn, *REFUSED[name].arrays))
    assert found is not None
    assert found.choices
    assert {(c.collectives, c.bytes_per_device) for c in found.choices} == {(None, None)}


def test_a_sum_may_be_put_off():
    case = REFUSED["contracting dimensions alike"]
    found = diagnosed(program(case.fn, *case.arrays))
    assert found is not None
    assert found.choices[-1].out_sharding == Spec.parse("None, None, unreduced={x}")


def test_a_cost_names_the_operand_that_causes_it():
    case = REFUSED["contracting dimensions apart"]
    found = diagnosed(program(case.fn, *case.arrays))
    assert found is not None
    causes = [c.cause for choice in found.choices for c in choice.collectives or ()]
    moved = {cause.value for cause in causes if isinstance(cause, MoveCause)}
    assert moved <= {"the left operand", "the right operand", "dot_general"}
    assert moved & {"the left operand", "the right operand"}


def test_operands_as_jax_writes_them():
    case = REFUSED["contracting dimensions alike"]
    found = diagnosed(program(case.fn, *case.arrays))
    assert found is not None
    assert found.operands == ("float32[8,16@x]", "float32[16@x,4]")


def test_costs_the_same_on_a_million_devices():
    big = make_mesh(x=1024, y=1024, axis_types="Explicit")
    arrays = (((8192, 4096), "None, x"), ((4096, 2048), "x, None"))
    found = diagnosed(program(lambda a, b: a @ b, *arrays, mesh=big))
    assert found is not None
    (collective,) = found.choices[0].collectives
    assert (collective.kind, collective.group_size) == ("all-reduce", 1024)


def test_other_errors_are_not_about_shardings():
    def broken(a):
        raise KeyError("no such layer")

    assert diagnosed(program(broken, ROWS)) is None
    assert diagnosed(program(lambda a, b: a @ b, ROWS, ROWS)) is None
    assert diagnosed(program(lambda a: lax.scan(lambda c, _: (c[:4], 0), a, None, 2), ROWS)) is None


def test_auto_axes_are_never_diagnosed():
    auto = make_mesh(x=4, y=2)
    made = program(lambda a, b: a @ b, ROWS, ROWS, mesh=auto)
    assert diagnosed(made) is None


def test_a_function_that_changes_its_mind_is_still_diagnosed():
    calls = []

    def fickle(a, b):
        calls.append(1)
        return a @ b if len(calls) == 1 else a

    found = diagnosed(program(fickle, COLUMNS, ((16, 4), "x, None")))
    assert found is not None
    assert found.choices == ()
    assert found.problem.code == "other"


def test_tracebacks_are_filtered_again_afterwards():
    before = jax.config.values["jax_traceback_filtering"]
    diagnosed(program(REFUSED["sort"].fn, ROWS))
    assert jax.config.values["jax_traceback_filtering"] == before
