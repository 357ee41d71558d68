"""Notes on operands: block-scaled products and Pallas kernels, compared with jax's own runs."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.advise.problems import FAILS, LOSES, Results, Target, result_problems
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.programs.notes import KernelNotMapped, OperandNote, ScalesApart, StraddledBlocks

MESH = {"data": 4, "model": 2}
ROWS, COLUMNS, BLOCK = 8, 16, 32
MOVES = r"= [^=]*? (all-gather|all-to-all|collective-permute)(?:-start)?\("
DIMENSIONS = (((2,), (2,)), ((0,), (0,)))


def matmul(a, b, a_scales, b_scales):
    return jax.nn.scaled_matmul(a, b, a_scales, b_scales, preferred_element_type=jnp.float32)


def dot(a, b, a_scales, b_scales):
    return jax.lax.scaled_dot(
        a, b, lhs_scale=a_scales, rhs_scale=b_scales, dimension_numbers=DIMENSIONS
    )


# Function, size of the summed dimension, specs of the blocks and of the scales, kind of note.
PRODUCTS = {
    "alike": (matmul, 1024, "_, _, data", "_, _, data", None),
    "copies of scales": (matmul, 1024, "_, _, data", "", None),
    "nothing split": (matmul, 1024, "", "", None),
    "alike over both axes": (matmul, 256, "_, _, (data, model)", "_, _, (data, model)", None),
    "scales alone": (matmul, 1024, "", "_, _, data", ScalesApart),
    "scales over another axis": (matmul, 1024, "_, _, data", "_, _, model", ScalesApart),
    "fewer blocks than shards": (matmul, 64, "_, _, data", "", StraddledBlocks),
    "blocks cut": (matmul, 192, "_, _, data", "", StraddledBlocks),
    "a block for each shard": (matmul, 64, "_, _, model", "_, _, model", None),
    "scaled_dot, alike": (dot, 1024, "_, _, data", "_, _, data", None),
    "scaled_dot, copies of blocks": (dot, 1024, "", "_, _, data", None),
    "scaled_dot, blocks cut": (dot, 64, "_, _, data", "", None),
    "scaled_dot, another axis": (dot, 1024, "_, _, data", "_, _, model", ScalesApart),
}


def product_arrays(summed, spec, scale_spec):
    blocks, scales = "float8_e4m3fn", "float8_e8m0fnu"
    spec, scale_spec = spec.replace("_", "None"), scale_spec.replace("_", "None")
    return [
        sv.array("a", (1, ROWS, summed), dtype=blocks, spec=spec),
        sv.array("b", (1, COLUMNS, summed), dtype=blocks, spec=spec),
        sv.array("a_scales", (1, ROWS, summed // BLOCK), dtype=scales, spec=scale_spec),
        sv.array("b_scales", (1, COLUMNS, summed // BLOCK), dtype=scales, spec=scale_spec),
    ]


def operand_notes(plan):
    assert plan.error is None, plan.error
    return [note for note in plan.notes if isinstance(note, OperandNote)]


@pytest.mark.parametrize("name", PRODUCTS)
def test_block_scaled_products(name, eight_devices):
    fn, summed, spec, scale_spec, kind = PRODUCTS[name]
    arrays = product_arrays(summed, spec, scale_spec)
    notes = operand_notes(sv.plan(fn, *arrays, mesh=MESH))
    assert {type(note) for note in notes} == ({kind} if kind else set())
    for note in notes:
        assert note.line.startswith("test_operand_specs.py:")
        assert note.dim == 2
    if kind:
        assert [note.operand for note in notes] == [0, 1]
    if fn is matmul and jax.__version_info__ < (0, 12):
        return  # jax lowers it only for GPUs

    mesh = jax.make_mesh((4, 2), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    random = np.random.default_rng(0)
    values, wide = [], []
    for array_ in arrays:
        value = random.standard_normal(array_.shape)
        if "scales" in array_.name:
            value = 2.0 ** random.integers(-3, 4, array_.shape)
        values.append(jnp.asarray(value).astype(array_.dtype))
        wide.append(np.asarray(values[-1].astype(jnp.float32)))
    placed = [
        jax.device_put(value, NamedSharding(mesh, array_.spec.to_jax()))
        for value, array_ in zip(values, arrays, strict=True)
    ]
    compiled = jax.jit(fn).lower(*placed).compile()
    scales = [np.repeat(scale, BLOCK, axis=-1) for scale in wide[2:]]
    expected = np.einsum("bmk,bnk->bmn", wide[0] * scales[0], wide[1] * scales[1])
    result = np.asarray(compiled(*placed)).astype(np.float32)
    is_right = bool(np.abs(result - expected).max() < 0.02 * np.abs(expected).max())
    assert is_right == (kind is not StraddledBlocks)
    assert bool(re.findall(MOVES, compiled.as_text())) == (kind is ScalesApart)


@pytest.mark.parametrize(("devices", "kind"), [(8, None), (64, StraddledBlocks)])
@pytest.mark.parametrize("gradient", [False, True])
def test_quantized_inside_the_program(devices, kind, gradient):
    configs = [jax.nn.get_scaled_dot_general_config("mxfp8")] * 3

    def layer(x, w):
        y = jax.nn.scaled_dot_general(jnp.tanh(x), w, DIMENSIONS, configs=configs)
        return y.sum()

    x = sv.array("x", (1, 64, 1024), spec="None, None, data")
    w = sv.array("w", (1, 128, 1024), spec="None, None, data")
    step = jax.grad(layer) if gradient else layer
    notes = operand_notes(sv.plan(step, x, w, mesh={"data": devices}))
    assert {type(note) for note in notes} == ({kind} if kind else set())


def test_in_a_scan_over_layers():
    def layers(a, b, a_scales, b_scales):
        def layer(total, slices):
            return total + matmul(*slices).sum(), None

        return jax.lax.scan(layer, jnp.float32(0), (a, b, a_scales, b_scales))[0]

    arrays = product_arrays(64, "None, None, data", "")
    stacked = [
        one.replace(shape=(3, *one.shape), spec=Spec(((), *one.spec.padded(3)))) for one in arrays
    ]
    notes = operand_notes(sv.plan(layers, *stacked, mesh=MESH))
    assert [(type(note), note.dim) for note in notes] == [(StraddledBlocks, 2)] * 2


def added(x_ref, y_ref, out_ref):
    out_ref[...] = x_ref[...] * 2 + y_ref[...]


def kernel(x, y, interpret=False):
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(added, out_shape=out, interpret=interpret)(x, y)


ARRAYS = (
    sv.array("x", (64, 256), spec="data, None"),
    sv.array("y", (64, 256), spec="data, model"),
)
SPLIT = (Spec.parse("data, None"), Spec.parse("data, model"))


@pytest.mark.parametrize("interpret", [False, True])
def test_a_kernel_outside_a_shard_map(interpret):
    plan = sv.plan(lambda x, y: kernel(jnp.sin(x), y, interpret).sum(), *ARRAYS, mesh=MESH)
    (note,) = [note for note in plan.notes if isinstance(note, KernelNotMapped)]
    assert note.line.startswith("test_operand_specs.py:")
    assert (note.in_specs, note.out_specs) == (SPLIT, SPLIT[:1])
    if interpret:
        assert plan.error is None
    else:  # jax refuses it for TPUs
        assert (plan.error.stage, plan.error.source) == ("lower", note.line)
        assert str(note) in plan.error.message


def test_a_spec_that_needs_propagation_is_unknown():
    plan = sv.plan(lambda x, y: kernel(x @ x.T, y @ y.T, True), *ARRAYS, mesh=MESH)
    (note,) = operand_notes(plan)
    assert note.in_specs == (None, None)


def test_a_kernel_in_a_shard_map_or_on_one_device_has_no_note():
    specs = (P("data"), P("data"))
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    mapped = jax.shard_map(kernel, mesh=mesh, in_specs=specs, out_specs=P("data"), check_vma=False)
    assert operand_notes(sv.plan(mapped, *ARRAYS, mesh=MESH)) == []
    assert operand_notes(sv.plan(kernel, *ARRAYS, mesh={"data": 1, "model": 1})) == []


def test_explicit_axes_give_every_spec():
    mesh = make_mesh(MESH, axis_types="Explicit")
    plan = sv.plan(lambda x: kernel(x @ x.T, x @ x.T, True), ARRAYS[1], mesh=mesh)
    assert plan.error is not None or operand_notes(plan)[0].in_specs[0] is not None


@pytest.mark.parametrize(
    ("name", "severity"), [("blocks cut", FAILS), ("scales alone", LOSES), ("alike", None)]
)
def test_problems(name, severity):
    fn, summed, spec, scale_spec, _ = PRODUCTS[name]
    program = sv.program(fn, *product_arrays(summed, spec, scale_spec), mesh=MESH)
    results = Results(plan=sv.plan(program))
    problems = result_problems(sv.audit(program), program, Target("", ""), results)
    found = [problem.severity for problem in problems if problem.code == "operands"]
    assert set(found) == ({severity} if severity else set())


def test_specs_are_followed_through_reshapes_and_constraints():
    def product(a, b, a_scales, b_scales):
        a = a.reshape(ROWS, 64).reshape(1, ROWS, 64)
        b = jax.lax.with_sharding_constraint(b, P(None, None, P.UNCONSTRAINED))
        return matmul(a, b, a_scales, b_scales)

    arrays = product_arrays(64, "single, _, data", "")
    mesh = sv.mesh({"data": 4, "single": 1})
    (note,) = operand_notes(sv.plan(product, *arrays, mesh=mesh))
    assert (type(note), note.operand, note.dim) == (StraddledBlocks, 0, 2)


def test_a_constraint_without_a_spec_is_unknown(eight_devices):
    device = jax.sharding.SingleDeviceSharding(eight_devices[0])

    def step(x, y):
        return kernel(jax.lax.with_sharding_constraint(x, device), y, interpret=True)

    plan = sv.plan(step, *ARRAYS, mesh=MESH)
    (note,) = [note for note in plan.notes if isinstance(note, KernelNotMapped)]
    assert note.in_specs == (None, SPLIT[1])
