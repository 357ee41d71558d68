"""What a call becomes in a program: states, static arguments, donation and values."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

import shardviz as sv
from shardviz.programs.backend.bridge import abstract_mesh
from shardviz.programs.backend.trace import donated_leaves, trace
from shardviz.programs.notes import ChangedInPlace, StaticNumbers
from tests.program.helpers import sentences
from tests.program.ways import x


def test_a_ref_is_refused():
    with pytest.raises(sv.ShardvizError, match=r"total is a jax\.Ref"):
        sv.program(lambda total, x: x, jax.new_ref(jnp.zeros(4)), x(), mesh="data=2")


def test_the_state_of_nnx_jit_is_part_of_the_program():
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")
    model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    opt = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def step(model, opt, x):
        loss, gradient = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
        opt.update(model, gradient)
        return loss

    jitted = nnx.jit(step)
    specs = (None, None, "data")
    program = sv.program(jitted, model, opt, x(), mesh="data=2", in_specs=specs)
    before = jax.tree.map(np.asarray, nnx.state(model))
    plan, report = sv.plan(program), sv.compile(program, "attached")
    assert plan.error is report.error is None
    assert (
        {c.kind for c in plan.collectives} == {c.kind for c in report.collectives} == {"all-reduce"}
    )
    assert "model.kernel (changed)" in report.out_layouts
    assert jax.tree.all(jax.tree.map(np.array_equal, before, nnx.state(model)))
    plain = sv.program(step, model, opt, x(), mesh="data=2", in_specs=specs)
    assert sv.plan(plain).notes == sentences(ChangedInPlace("step", ("model", "opt")))
    lost = sv.program(jax.jit(step), model, opt, x(), mesh="data=2", in_specs=specs)
    assert len(sv.plan(lost).collectives) < len(plan.collectives)  # as under jax.jit
    mesh = jax.make_mesh((2,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    theirs = jitted.lower(*_replicated((model, opt), mesh), _split(x(), mesh)).compile()
    memory = theirs.memory_analysis()
    assert report.memory.arguments == memory.argument_size_in_bytes
    assert report.memory.outputs == memory.output_size_in_bytes
    assert report.memory.temporaries == memory.temp_size_in_bytes


def _replicated(tree: Any, mesh: Any) -> Any:
    sharding = jax.sharding.NamedSharding(mesh, jax.P())
    return jax.tree.map(lambda leaf: jax.device_put(leaf, sharding), tree)


def _split(value: Any, mesh: Any) -> Any:
    return jax.device_put(value, jax.sharding.NamedSharding(mesh, jax.P("data")))


DONATED = {
    "by position": (jax.jit(lambda a, b: a + b, donate_argnums=1), (x(), x()), {}, (1,)),
    "by name": (jax.jit(lambda a, b: a + b, donate_argnames="b"), (x(),), {"b": x()}, (1,)),
    "behind a static one": (
        jax.jit(lambda n, a: a * n, static_argnums=0, donate_argnums=1), (3, x()), {}, (0,),
    ),
    "of a partial": (
        functools.partial(jax.jit(lambda a, b: a + b, donate_argnums=(0, 1)), x()), (x(),), {},
        (0, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("fn", "args", "kwargs", "expected"), DONATED.values(), ids=DONATED)
def test_donation_of_jax_jit_is_kept(fn, args, kwargs, expected):
    program = sv.program(fn, *args, mesh="data=2", **kwargs)
    assert program.options["donate"] == expected
    assert donated_leaves(program) == expected


def test_sv_donates_the_arguments_as_the_user_counts_them():
    program = sv.program(lambda mode, a: a * 2, "train", x(), mesh="data=2", donate=1)
    assert donated_leaves(program) == (0,)


SPECS = {
    "one each": ("data", None, "data"),
    "one each, statics too": ("data", None, None, "data"),
}


@pytest.mark.parametrize("specs", SPECS.values(), ids=SPECS)
def test_specs_count_arguments_with_or_without_static_ones(specs):
    fn = lambda a, b, mode, c: a + b + c  # noqa: E731
    program = sv.program(fn, x(), x(), "train", x(), mesh="data=2", in_specs=specs)
    assert [str(a.spec) for a in program.arrays] == ["P('data')", "None", "P('data')"]


def test_values_are_given_as_in_the_call_or_without_what_is_static():
    def step(x, mode, w):
        return x @ w if mode == "train" else x

    program = sv.program(step, x(), "train", w=x(4, 4), mesh="data=2")
    expected = x() @ x(4, 4)
    for args, kwargs in (((x(), "train"), {"w": x(4, 4)}), ((x(), x(4, 4)), {})):
        report = sv.run(program, *args, target="attached", **kwargs)
        assert np.allclose(report.outputs, expected)
    with pytest.raises(sv.ShardvizError, match="mode is static: the program was made with 'train'"):
        sv.run(program, x(), "test", w=x(4, 4), target="attached")
    with pytest.raises(sv.ShardvizError, match="'mode', 'w' and 'x', and the values are 'v' and"):
        sv.run(program, x(), v=x(4, 4), target="attached")


def powers(x, n, train=True, scale=1.0):
    for _ in range(n):
        x = x * x
    return x * scale if train else x


def test_numbers_that_python_reads_are_static_and_it_is_said():
    program = sv.program(powers, x(), 3, scale=2.0, mesh="data=2")
    traced = trace(program, abstract_mesh(program.mesh))
    primitives = [e.primitive for e in traced.stage.jaxpr.eqns if e.primitive.name == "mul"]
    assert len(primitives) == 4
    assert traced.notes == sentences(StaticNumbers(("n",)))
    branches = sv.program(lambda x, limit: x if limit > 1 else -x, x(), 0.5, mesh="data=2")
    assert sv.plan(branches).notes == sentences(StaticNumbers(("limit",)))
    assert sv.run(program, target="attached").error is None
    jitted = sv.program(jax.jit(powers), x(), 3, mesh="data=2")
    assert "TracerIntegerConversionError" in str(sv.plan(jitted).error)


AXES = {
    "the same axes": ("data=4", ("Explicit",)),
    "another axis": ("data=4, model=2", ("Explicit", "Explicit")),
    "types that are said": (sv.mesh("data=4", axis_types="Auto"), ("Auto",)),
}


@pytest.mark.parametrize(("mesh", "types"), AXES.values(), ids=AXES)
def test_another_mesh_keeps_explicit_axes(mesh, types):
    explicit = sv.mesh("data=2", axis_types="Explicit")
    program = sv.program(lambda x: x.sum(), x(), mesh=explicit, in_specs="data")
    assert program.replace(mesh=mesh).mesh.axis_types == types


def test_equal_meshes_give_equal_programs():
    program = sv.program(lambda x: x.sum(), x(), mesh=sv.mesh("data=2", axis_types="Explicit"))
    plain = sv.mesh("data=4")
    for equal in (plain.replace(), sv.mesh("data=4", axis_types="Auto"), plain.local(0)):
        assert equal == plain
        assert program.replace(mesh=equal).mesh == program.replace(mesh=plain).mesh == plain
    jax_mesh = AbstractMesh((4,), ("data",), axis_types=(AxisType.Explicit,))
    assert program.replace(mesh=jax_mesh).mesh.axis_types == ("Explicit",)


def test_requests_of_a_program_know_the_moments_of_a_parameter():
    optax = pytest.importorskip("optax")
    table = [("embed", "data"), ("mlp", "model")]
    w = {str(i): sv.array("w", (512, 512), "embd mlp") for i in range(2)}
    state = optax.ScaleByAdamState(sv.array("n", ()), w, w)

    def step(weights, kept, x):
        return weights

    program = sv.program(step, w, (state,), x(), mesh="data=4, model=2", rules=table)
    names = [array.name for array in program.arrays]
    audit = sv.audit(program)
    partners = [
        names[p] if (p := audit_position(audit, row)) is not None else None for row in audit.rows
    ]
    assert [row.partner for row in program.requests] == partners
    assert [row.group for row in program.requests] == [row.group for row in audit.rows]
    by_program, by_audit = (
        sv.remedies(rows[0], "split 0") for rows in (program.requests, audit.rows)
    )
    assert len(by_program[0].others) == 5
    assert [(r.bytes_saved, len(r.alike)) for r in by_program] == [
        (r.bytes_saved, len(r.alike)) for r in by_audit
    ]


def audit_position(audit, row):
    """The position of the parameter of a row, or None."""
    paths = [other.path for other in audit.rows]
    return None if row.partner is None else paths.index(row.partner)
