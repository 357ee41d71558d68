"""Where the estimate is known to miss, and where it is not; and the functions around a value."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.plans.plan_notes import ReplacedCall, UncertainValues
from shardviz.plans.uncertain import Uncertain
from tests.propagation.planning import plan
from tests.stages.functions import convolution, convolution_gradient

X = ((32, 64), "data, model")


def test_what_is_uncertain_names_dimension_and_axes(eight_devices):
    made = plan(lambda x: jnp.flip(x, 1), x=X)
    (found,) = uncertain(made)
    assert found == Uncertain("along", ("model",), "reverse")
    assert found in made.why("rev").facts
    assert UncertainValues(("rev",)) in made.notes


def uncertain(made):
    return [found for op in made.ops for found in op.uncertain]


def picked(total, i):
    return total + jax.lax.dynamic_slice_in_dim(total, i, 1, axis=0), None


def picked_of(x):
    return lambda total, i: (total + jax.lax.dynamic_slice_in_dim(x, i, 1, axis=0), None)


LOOPS = {
    "of a value from outside": lambda x: jax.lax.scan(picked_of(x), x * 2, jnp.arange(3))[0],
    "in a branch in a loop": lambda x: jax.lax.fori_loop(
        0, 3, lambda i, t: jax.lax.cond(i > 1, lambda t: picked(t, i)[0], jnp.sin, t), x
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_in_a_shard_map_moves_nothing_by_itself(name, eight_devices):
    from jax.sharding import PartitionSpec as P

    split = P("data", "model")
    inside = plan(jax.shard_map(LOOPS[name], in_specs=split, out_specs=split), x=X)
    assert not uncertain(inside)
    sliced = [op for op in inside.ops if op.opcode == "dynamic_slice"]
    assert sliced
    assert all(op.manual for op in sliced)
    assert not any(op.manual for op in inside.ops if op.kind != "op" or op.name == "shard_map")
    outside = plan(LOOPS[name], x=X)
    assert uncertain(outside)
    assert not any(op.manual for op in outside.ops)


PARTLY_MANUAL = {
    "reversed": (lambda x: x[:, ::-1], Uncertain("along", ("model",), "reverse")),
    "a cumulative sum in a loop": (
        lambda x: jax.lax.fori_loop(0, 3, lambda _, t: jnp.cumsum(t, 1), x),
        Uncertain("along", ("model",), "reduce_window"),
    ),
    "gathered along another axis": (
        lambda x: jax.lax.all_gather(x, "data", axis=0, tiled=True)[:8],
        Uncertain("call", ("model",), "all_gather"),
    ),
    "scattered": (
        lambda x: jax.lax.psum_scatter(x, "data", tiled=True),
        Uncertain("call", ("model",), "reduce_scatter"),
    ),
    "exchanged": (
        lambda x: jax.lax.all_to_all(x, "data", 0, 0, tiled=True),
        Uncertain("call", ("model",), "all_to_all"),
    ),
}


@pytest.mark.parametrize("name", PARTLY_MANUAL)
def test_the_auto_axes_of_a_shard_map_are_uncertain_too(name, eight_devices):
    from jax.sharding import PartitionSpec as P

    body, expected = PARTLY_MANUAL[name]
    split = P("data")
    arguments = {"in_specs": split, "out_specs": split}
    partly = plan(jax.shard_map(body, axis_names={"data"}, **arguments), x=((64, 64), X[1]))
    assert expected in uncertain(partly)
    fully = plan(jax.shard_map(body, **arguments), x=((64, 64), X[1]))
    assert not uncertain(fully)


def test_the_values_in_nested_shard_maps_are_blocks_along_the_axes_of_all(eight_devices):
    from jax.sharding import PartitionSpec as P

    def outer(x):
        inner = jax.shard_map(
            lambda x: x[:, ::-1], in_specs=P(None, "model"), out_specs=P(None, "model"),
            axis_names={"model"},
        )  # fmt: skip
        return inner(x)

    made = plan(
        jax.shard_map(outer, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}), x=X
    )
    (note,) = made.op("rev").notes
    assert note.axes == ("data", "model")
    assert not uncertain(made)


IMAGE, KERNEL = (8, 16, 16, 8), (3, 3, 8, 8)
CONVOLUTIONS = {
    "batch": (convolution_gradient, "data", "", set()),
    "channels": (convolution, "None, None, None, model", "None, None, model", set()),
    # The gradient's windows are as large as the image.
    "height": (convolution_gradient, "data, model", "", {"model"}),
    "height of the kernel": (convolution, "data", "model", {"model"}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_uncertain_along_its_windows(name, eight_devices):
    fn, image, kernel, expected = CONVOLUTIONS[name]
    made = plan(fn, x=(IMAGE, image), k=((4, *KERNEL[1:]), kernel))
    (last, *_) = [op for op in reversed(made.ops) if op.opcode == "convolution"]
    assert {axis for found in last.uncertain for axis in found.axes} == expected


def test_a_convolution_that_needs_an_axis_twice_is_uncertain(eight_devices):
    made = plan(
        convolution, x=(IMAGE, "None, None, None, model"), k=(KERNEL, "None, None, None, model")
    )
    assert Uncertain("product", ("model",), "convolution") in uncertain(made)


def test_a_shift_by_padding_is_uncertain(eight_devices):
    made = plan(lambda x: jax.lax.pad(x, 0.0, [(-1, 1, 0), (0, 0, 0)]), x=((32, 64), "data"))
    assert uncertain(made) == [Uncertain("along", ("data",), "pad")]


def test_arrays_that_are_sorted_together_may_be_moved_otherwise(eight_devices):
    def sort(x, y):
        return jax.lax.sort((x, y), dimension=1, num_keys=1)

    differing = uncertain(plan(sort, x=((16, 16), "None, data"), y=((16, 16), "model")))
    assert {found.code for found in differing} == {"move"}
    assert not uncertain(plan(sort, x=((16, 16), "data"), y=((16, 16), "data")))


def test_the_plan_does_not_cover_a_call_that_xla_replaces(eight_devices):
    made = plan(lambda x: jax.lax.approx_max_k(x, 4)[0], x=X)
    value = made.op("approx_top_k[0]")
    assert not value.covered
    assert value.notes == (ReplacedCall("ApproxTopK"),)
    assert made.collectives == ()
    assert Uncertain("along", ("data", "model"), "approx_top_k") in value.uncertain


def test_decompositions_that_xla_replaces_on_tpus_are_not_covered(eight_devices):
    matrices = jax.ShapeDtypeStruct((8, 16, 16), "float32")
    traced = jax.jit(lambda m: jnp.linalg.eigh(m)[0], in_shardings=split_rows()).trace(matrices)
    on_tpu = sv.report(traced.lower(lowering_platforms=("tpu",))).plan.op("eigh[0]")
    assert (on_tpu.covered, on_tpu.notes) == (False, (ReplacedCall("Eigh"),))
    assert on_tpu.uncertain
    on_cpu = sv.report(traced.lower()).plan.op("eigh[0]")
    assert on_cpu.covered
    assert not on_cpu.uncertain


def split_rows():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    return NamedSharding(mesh, P("data"))


def test_a_product_is_uncertain_if_a_summed_dimension_is_moved_too(eight_devices):
    def product(v, w):
        return jnp.einsum("bnj,bnm->bjm", v, w)

    made = plan(product, v=((8, 16, 8), "None, (model, data)"), w=((8, 16, 16), "data, model"))
    assert {c.kind for c in made.collectives} == {"all-to-all", "all-reduce"}
    assert uncertain(made) == [Uncertain("product", ("model", "data"), "dot_general")]
