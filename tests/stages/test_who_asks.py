"""Who is said to ask for a move, which part of an axis it runs over, and what XLA moves for it.

Each program is compiled in this process, until XLA has partitioned it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from shardviz.base.cause import AxisPart
from tests.propagation.planning import program
from tests.stages.test_probes import asked, compared, counted

P = PartitionSpec
MATRIX = (64, 64)
MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def cast(x):
    return jnp.sin(x).astype("bfloat16")


def in_branch(x, i):
    return lax.cond(i[0] > 0, lambda x: asked(cast(x)) * 2, lambda x: x.astype("bfloat16"), x)


def for_branch(x, i):
    return lax.cond(i[0] > 0, lambda x: asked(x) * 2, lambda x: x, jnp.sin(x))


def for_shard_map(x):
    whole = jax.shard_map(lambda a: a * 2, mesh=MESH, in_specs=P(), out_specs=P())
    return whole(cast(x))


def grouped(x, k):
    return lax.conv_general_dilated(
        x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2
    )


# Until jax 0.11 the gather has the name of the transposition itself.
TRANSPOSED = "transpose" if jax.__version_info__ >= (0, 11) else None
# Name: function, shapes and specs of its arguments, code of the cause, who asks, and what reads
# the moved value.
ASKED = {
    "a cast": (lambda x: asked(cast(x)) * 2, [((64, 32), "data")],
               "gathered", "sharding_constraint", "convert_element_type"),
    "a comparison": (lambda x: asked(x > 0), [((64, 32), "data")],
                     "gathered", "sharding_constraint", "gt"),
    "an addition": (lambda x, y: asked(x + y) * 2, [((64, 32), "data")] * 2,
                    "gathered", "sharding_constraint", None),
    "a transposition": (lambda x: asked(jnp.sin(x).T), [((64, 32), "data")],
                        "gathered", "sharding_constraint", TRANSPOSED),
    "inside of a branch": (in_branch, [((64, 32), "data"), ((1,), "")],
                           "gathered", "sharding_constraint", "convert_element_type"),
    "before a branch": (for_branch, [((64, 32), "data"), ((1,), "")],
                        "gathered", "sharding_constraint", "sin"),
    "a shard_map": (for_shard_map, [((64, 32), "data")],
                    "gathered", "shard_map", "convert_element_type"),
    "along another dimension": (lambda x: asked(cast(x), None, "data"), [((64, 32), "data")],
                                "resplit", "sharding_constraint", "convert_element_type"),
    "a grouped convolution": (grouped, [((8, 16, 16, 8), "data"), ((3, 3, 4, 16), "")],
                              "unsplittable", "conv_general_dilated", None),
    "the largest along another dimension": (
        lambda x: lax.top_k(x, 4)[0], [((64, 32), "data")], "unsplittable", "top_k", None),
    "a factorization": (lambda x: jnp.linalg.qr(x)[0], [(MATRIX, "data")],
                        "unsplittable", "geqrf", None),
    "a product": (lambda x, w: x @ w, [((64, 32), "data"), ((32, 64), "data")],
                  "gathered", "dot_general", None),
    # In jax 0.12, these gathers have the name of the operation before.
    "the largest of a reshaped array": (
        lambda x: lax.top_k(x.reshape(8, 512), 4)[0], [((8, 4, 128), "data")],
        "unsplittable", "top_k", None),
    "a product with a transposed array": (
        lambda x, w: jnp.sin(x) @ jnp.cos(w).T, [((64, 32), "data")] * 2,
        "gathered", "dot_general", None),
    "rows of a product": (
        lambda x, w, i: (x @ w)[i],
        [((16, 8), "data"), ((8, 8), "None, model"), ((16,), "data", "int32")],
        "gathered", "gather", None),
}  # fmt: skip


def of(fn, arguments):
    return compared(program(fn, **dict(zip("abc", arguments, strict=False))))


@pytest.mark.parametrize("case", ASKED.values(), ids=ASKED)
def test_a_move_is_for_what_asks_for_it(case, eight_devices):
    fn, arguments, code, asker, reader = case
    plan, collectives = of(fn, arguments)
    moves = [c.cause for c in collectives if c.cause.code in (code, "within")]
    assert {cause.code for cause in moves} == {code}
    for cause in moves:
        assert cause.wanted_by.name == asker
        assert (cause.through and cause.through.name) == reader
    if any(cause.through for cause in moves):
        [moved] = [c for c in collectives if c.cause.code == code]
        assert (moved.cause.dtype, moved.dtype) == ("f32", "f32")
        # The estimate moves what XLA moves.
        assert counted(plan.collectives) == counted(collectives)
        assert not any(op.uncertain for op in plan.ops)


def swapped(x):
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([-second, jnp.tanh(first)], axis=-1)


def test_halves_that_are_joined_along_their_split_are_exchanged_for_that(eight_devices):
    _, collectives = of(swapped, [((8, 16, 4, 32), "data, None, None, model")])
    exchanges = [c.cause for c in collectives if c.cause.code == "resplit"]
    assert {cause.operand.name for cause in exchanges} == {"neg", "tanh"}
    assert {cause.wanted_by.name for cause in exchanges} == {"concatenate"}


LINALG = {
    "lu": lambda x: jax.scipy.linalg.lu(x)[1],
    "qr": lambda x: jnp.linalg.qr(x)[1],
    "svd": lambda x: jnp.linalg.svd(x, compute_uv=False),
    "eigh": lambda x: lax.linalg.eigh(x, symmetrize_input=False)[0],
    "inv": jnp.linalg.inv,
    "cholesky": lambda x: lax.linalg.cholesky(x, symmetrize_input=False),
}


@pytest.mark.parametrize("name", LINALG)
@pytest.mark.parametrize("spec", ["data", "None, model", "data, model"])
def test_a_matrix_is_gathered_for_a_call_that_xla_does_not_split(name, spec, eight_devices):
    plan, collectives = of(LINALG[name], [(MATRIX, spec)])
    assert counted(plan.collectives) == counted(collectives)
    assert {c.kind for c in collectives} == {"all-gather"}
    assert not any(op.uncertain for op in plan.ops)


@pytest.mark.parametrize("name", LINALG)
def test_a_batch_of_matrices_stays_split(name, eight_devices):
    plan, collectives = of(jax.vmap(LINALG[name]), [((8, 16, 16), "data")])
    assert plan.collectives == collectives == ()


def test_a_product_whose_result_is_asked_for_unsplit_is_uncertain(eight_devices):
    plan, collectives = of(lambda x, w: asked(x @ w), [((64, 32), "data"), ((32, 128), "")])
    assert counted(plan.collectives) != counted(collectives)
    assert [(u.code, u.axes) for u in plan.op("dot_general").uncertain] == [("result", ("data",))]


HALVES = {"data:(1)2": [[0, 2], [1, 3]], "data:(2)2": [[0, 1], [2, 3]]}


@pytest.mark.parametrize("name", HALVES)
def test_a_collective_over_a_part_of_an_axis_names_the_part(name, eight_devices):
    options = {"in_specs": P("data"), "out_specs": P("data"), "check_vma": False}

    def body(x):
        return lax.psum(x, "data", axis_index_groups=HALVES[name])

    plan, [total] = of(jax.shard_map(body, mesh=MESH, **options), [((64, 32), "data")])
    for collective in (total, *plan.collectives):
        assert collective.mesh_axes == (name,)
        assert collective.parts == (AxisPart("data", 2, 4),)
        assert collective.group_size == 2
    assert total.cause.parts == total.parts


def loss(params, x):
    def body(params, x):
        h = jnp.tanh(x @ params["w1"])
        gathered = lax.all_gather(params["w2"], "data", axis=0, tiled=True)
        return lax.pmean(jnp.mean((h @ gathered) ** 2), "data")

    specs = {"w1": P(), "w2": P("data")}, P("data")
    return jax.shard_map(body, mesh=MESH, in_specs=specs, out_specs=P())(params, x)


def test_the_sum_of_a_gradient_names_its_array(eight_devices):
    def fn(a, b, c):
        return jax.grad(loss)({"w1": a, "w2": b}, c)

    arguments = [((32, 64), ""), ((64, 48), "data"), ((64, 32), "data")]
    plan, collectives = of(fn, arguments)
    for found in (plan.collectives, collectives):
        sums = {c.kind: c.cause for c in found if c.kind in ("all-reduce", "reduce-scatter")}
        names = [getattr(c.gradient_of, "name", c.gradient_of) for c in sums.values()]
        assert dict(zip(sums, names, strict=True)) == {"all-reduce": "a", "reduce-scatter": "b"}


def test_the_sum_for_a_value_made_of_an_array_is_not_called_the_arrays_gradient(eight_devices):
    def body(w, x):
        doubled = w * 2
        return lax.pmean(jnp.mean(jnp.tanh(x @ doubled)), "data")

    def fn(w, x):
        return jax.shard_map(body, mesh=MESH, in_specs=(P(), P("data")), out_specs=P())(w, x)

    plan, collectives = of(jax.grad(fn), [((32, 48), ""), ((64, 32), "data")])
    for found in (plan.collectives, collectives):
        assert [c.cause.gradient_of for c in found if c.kind == "all-reduce"] in ([""], [None])


def test_an_operand_that_two_operations_need_moved_is_uncertain(eight_devices):
    def fn(x):
        split = asked(x, None, "data")
        return asked(split - 1, "data") + jnp.exp(-split)

    plan, collectives = of(fn, [((64, 32), "")])
    assert counted(plan.collectives) != counted(collectives)
    assert any(op.uncertain for op in plan.ops)
