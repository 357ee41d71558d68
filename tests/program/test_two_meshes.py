"""Programs over two meshes of the same devices compile and run as under jax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.axis_rules.libraries import spec_of
from shardviz.runs.backend.targets import missing

VALUES = np.arange(256, dtype=np.float32).reshape(16, 16) % 7


def a_mesh(**sizes: int) -> Mesh:
    devices = np.array(jax.devices("cpu")[:8]).reshape(tuple(sizes.values()))
    return Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def inner(*spec):
    return NamedSharding(a_mesh(fsdp=2, ep=4), P(*spec))


def constrained(x):
    return lax.with_sharding_constraint(x @ x.T, inner("fsdp", "ep"))


def constrained_first(x):
    return constrained(x) + 1


def there_and_back(x):
    return lax.with_sharding_constraint(
        constrained(x) + 1, NamedSharding(a_mesh(data=8), P("data"))
    )


def several(x):
    return constrained(x), x * 2, jnp.sum(x)


def mapped(x):
    split = P("fsdp", "ep")
    mesh = a_mesh(fsdp=2, ep=4)
    return jax.shard_map(lambda v: v * 2, mesh=mesh, in_specs=split, out_specs=split)(x).sum(0)


def looped(x):
    return lax.scan(lambda c, _: (constrained(c) / 100, None), x, None, length=2)[0]


gradient = jax.grad(lambda x: (constrained(x) ** 2).sum())
PROGRAMS = [
    constrained,
    constrained_first,
    there_and_back,
    several,
    mapped,
    looped,
    gradient,
]


@pytest.mark.parametrize("target", ["attached", None], ids=["here", "worker"])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_runs_give_what_jax_gives(fn, target, eight_devices):
    x = jax.device_put(VALUES, NamedSharding(a_mesh(data=8), P("data")))
    expected = jax.tree.leaves(jax.jit(fn)(x))
    report = sv.run(fn, x, target=target)
    assert report.ok, report.error or report.checks
    for made, theirs in zip(jax.tree.leaves(report.outputs), expected, strict=True):
        np.testing.assert_allclose(np.asarray(made), np.asarray(theirs), rtol=1e-6)
    specs = [str(spec_of(array.sharding.spec)) for array in expected]
    assert [str(layout.spec) for layout in report.out_layouts.values()] == specs
    # Shardy propagates nothing from one mesh to another: no plan, and no fault of jax's.
    plan = sv.plan(fn, x)
    assert plan.error is not None
    assert plan.error.stage == "propagate"


def test_they_compile_for_described_hardware(eight_devices):
    if error := missing("tpu"):
        pytest.skip(str(error))
    x = jax.device_put(VALUES, NamedSharding(a_mesh(data=8), P("data")))
    report = sv.compile(constrained, x, target="tpu:v5e:2x4")
    assert report.error is None
    assert str(report.out_layouts["output"].spec) == "P('fsdp', 'ep')"


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "float4_e2m1fn"])
@pytest.mark.parametrize("target", ["attached", None], ids=["here", "worker"])
def test_arguments_of_fewer_than_8_bits_run_as_under_jit(dtype, target, eight_devices):
    sharding = NamedSharding(a_mesh(data=8), P("data"))
    x = jax.device_put((VALUES % 2).astype(dtype), sharding)

    def fn(x):
        return x.astype("float32") * 2, x

    expected = jax.jit(fn)(x)
    report = sv.run(fn, x, target=target)
    assert report.ok, report.error or report.checks
    for made, theirs in zip(report.outputs, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(made), np.asarray(theirs))
