"""Programs with Explicit axes: what their types say is what the plan says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from shardviz.core.backend.bridge import to_jax
from shardviz.core.backend.shardy.build_plan import plan_program
from shardviz.core.backend.shardy.explicit_axes import note_types, typed_specs
from shardviz.core.backend.tracing.build_program import build_program
from shardviz.core.backend.tracing.trace import trace
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.rules import Dialect
from shardviz.core.program.plan_notes import TypeNote
from shardviz.core.program.program import Program

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


def program(fn: Fn, arrays: Any) -> Program:
    specs = [
        ArraySpec(f"arg{n}", shape, None, dtype[0] if dtype else "float32", Spec.parse(spec))
        for n, (shape, spec, *dtype) in enumerate(arrays)
    ]
    return build_program(fn, specs, EXPLICIT, None, Dialect.LINEN, None, None, (), "")


def jaxpr_of(made: Program) -> Any:
    return trace(made, to_jax(EXPLICIT)).stage.jaxpr


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_plan_says_what_the_types_say(name):
    made = program(*PROGRAMS[name])
    plan, jaxpr = plan_program(made), jaxpr_of(made)
    assert plan.error is None
    types = typed_specs(jaxpr)
    compared = [op for op in plan.ops if (op.op.rpartition("/")[2], op.shape) in types]
    assert compared
    assert note_types(plan.ops, jaxpr) == plan.ops


def test_a_difference_is_named():
    made = program(*PROGRAMS["sum"])
    plan, jaxpr = plan_program(made), jaxpr_of(made)
    wrong = [replace(op, spec=Spec.parse("x")) if op.name == "sin" else op for op in plan.ops]
    noted = {op.name: op.notes for op in note_types(wrong, jaxpr)}
    assert noted["sin"] == (TypeNote((Spec.parse("y"),), Spec.parse("x")),)
    assert noted["reduce_sum"] == ()


def test_auto_axes_have_no_types():
    auto = make_mesh(x=4, y=2)
    made = program(*PROGRAMS["sum"]).replace(mesh=auto)
    assert typed_specs(trace(made, to_jax(auto)).stage.jaxpr) == {}
