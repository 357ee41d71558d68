"""Where the estimate is known to miss, and where it is not; and the functions around a value."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from shardviz.core.program.plan_notes import PlanNote
from shardviz.core.program.uncertain import Uncertain
from tests.propagation.planning import plan

X = ((32, 64), "data, model")
IMAGE = ((8, 32, 16, 8), "data, model")


def convolved(stride, padding="SAME"):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lambda x, k: jax.lax.conv_general_dilated(
        x, k, (stride, stride), padding, dimension_numbers=numbers
    )


def pooled(size, stride):
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    return lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, "SAME")


def gradient(fn):
    return lambda *a: jax.grad(lambda *a: jnp.sum(fn(*a) ** 2))(*a)


def dilated(x, k):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, k, (8, 4), "VALID", rhs_dilation=(3, 3), dimension_numbers=numbers
    )


def kernel(size):
    return ((size, size, 8, 16), "")


EDGES, GATHERS, SUM = "collective-permute", "all-gather", "all-reduce"
# Before jax 0.11 XLA makes the Fourier transform of a matrix on every device.
ROWS = GATHERS if jax.__version_info__ < (0, 11) else None
CASES = {
    "windows that overlap": (convolved(1), {"x": IMAGE, "k": kernel(3)}, EDGES),
    "windows of one": (convolved(1), {"x": IMAGE, "k": kernel(1)}, None),
    "windows side by side": (convolved(4, "VALID"), {"x": IMAGE, "k": kernel(4)}, None),
    "not split in space": (convolved(1), {"x": (IMAGE[0], "data"), "k": kernel(3)}, None),
    "pools that overlap": (pooled(3, 1), {"x": IMAGE}, EDGES),
    "pools side by side": (pooled(2, 2), {"x": IMAGE}, None),
    "a cumulative sum": (lambda x: jnp.cumsum(x, 1), {"x": X}, GATHERS),
    "a cumulative sum along columns": (lambda x: jnp.cumsum(x, 1), {"x": (X[0], "data")}, None),
    "a slice": (lambda x: x[:, 8:40] + 1, {"x": X}, EDGES),
    "a slice of another dimension": (lambda x: x[8:16] + 1, {"x": (X[0], "None, model")}, None),
    "a slice of nearly all": (lambda x: x[:, :63] + 1, {"x": X}, None),
    "an index": (lambda x: x[:, 40] + 1, {"x": X}, SUM),
    "a rotation by one": (lambda x: jnp.roll(x, -1, 1) + 1, {"x": X}, EDGES),
    "a padding of zeros": (lambda x: jnp.pad(x, ((0, 0), (3, 5))) + 1, {"x": X}, EDGES),
    "top_k of one dimension": (lambda x: jax.lax.top_k(x, 4), {"x": ((64,), "model")}, None),
    "top_k": (lambda x: jax.lax.top_k(x, 4), {"x": X}, GATHERS),
    "argmax": (lambda x: jnp.argmax(x, 1), {"x": X}, GATHERS),
    "argmax of rows that are not split": (lambda x: jnp.argmax(x, 1), {"x": (X[0], "data")}, None),
    "a Fourier transform": (lambda x: jnp.fft.fft(x), {"x": X}, GATHERS),
    "a Fourier transform of rows": (lambda x: jnp.fft.fft(x), {"x": (X[0], "data")}, ROWS),
    "a concatenation with nothing": (
        lambda x, y: jnp.concatenate([y, x], 1) + 1, {"x": X, "y": ((32, 0), "data")}, None,
    ),
    "a maximum": (lambda x: jnp.max(x, 1), {"x": X}, None),
}  # fmt: skip


# XLA does as Shardy plans, and yet the value is marked, since its kind is.
NEEDLESS = (
    "windows of one", "windows side by side", "pools side by side", "a slice of nearly all",
    "top_k of one dimension",
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_value_says_what_the_estimate_misses(name, eight_devices):
    fn, arguments, kind = CASES[name]
    marked = bool(uncertain(plan(fn, **arguments)))
    assert marked == (kind is not None or name in NEEDLESS)


def test_what_is_uncertain_names_dimension_and_axes(eight_devices):
    made = plan(lambda x: jnp.flip(x, 1), x=X)
    (found,) = uncertain(made)
    assert found == Uncertain("along", ("model",), "reverse")
    assert found in made.why("rev").facts
    assert PlanNote("uncertain", ("rev",)) in made.notes


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
