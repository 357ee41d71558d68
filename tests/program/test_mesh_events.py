"""Counted events of JAX for one function on two meshes."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shardviz.base.errors import ShardvizError
from shardviz.base.mesh import make_mesh
from shardviz.runs.backend.listening import compare_meshes

X = jax.ShapeDtypeStruct((8,), "float32")
ALL = ("trace", "lower", "compile")


@pytest.fixture
def halves(eight_devices) -> tuple[Mesh, Mesh]:
    devices = np.array(eight_devices)
    return Mesh(devices[:4], ("x",)), Mesh(devices[4:8], ("x",))


def test_other_devices_are_compiled_for_and_not_traced(halves: tuple[Mesh, Mesh]):
    found = compare_meshes(*halves, lambda x: x * 2, X, specs="x")
    assert (found.first.misses, found.again.misses) == (ALL, ())
    assert found.second.misses == ("compile",)
    assert "compiled again, but not traced and lowered" in found.explain()


def test_what_other_threads_compile_is_not_counted(halves: tuple[Mesh, Mesh]):
    def busy(x):
        # Called while it is traced: another thread traces, lowers and compiles meanwhile.
        other = threading.Thread(target=lambda: jax.jit(lambda y: y * 3)(np.ones(5)))
        other.start()
        other.join()
        return x * 2

    found = compare_meshes(*halves, busy, X, specs="x")
    assert found.first.counts == dict.fromkeys(ALL, 1)


def test_devices_inside_are_refused_on_others(halves: tuple[Mesh, Mesh]):
    whole = NamedSharding(halves[0], P())
    found = compare_meshes(*halves, lambda x: jax.lax.with_sharding_constraint(x, whole), X)
    assert found.second.error
    assert found.second.error in found.explain()


def test_another_shape_is_traced_anew(halves: tuple[Mesh, Mesh]):
    grid = Mesh(halves[1].devices.reshape(2, 2), ("x", "y"))
    jitted = jax.jit(lambda x: jnp.sin(x) + 1)
    found = compare_meshes(halves[0], grid, jitted, X, specs="x")
    assert {"compile", "lower"} <= {*found.second.misses}


def test_meshes_of_ours_with_ids(halves: tuple[Mesh, Mesh]):
    one, two = (make_mesh("x=2", device_ids=ids) for ids in ([0, 1], [2, 3]))
    assert compare_meshes(one, two, jnp.cos, np.zeros(8, np.float32)).second.misses == ("compile",)


@pytest.mark.parametrize(
    "call",
    [
        lambda a: compare_meshes(a, a, 3, X),
        lambda a: compare_meshes("x=2", a, jnp.sin, X),
        lambda a: compare_meshes(make_mesh(x=2), a, jnp.sin, X),
        lambda a: compare_meshes(a, a, jnp.sin, np.zeros(7, np.float32), specs="x"),
    ],
)
def test_what_cannot_be_compared(halves: tuple[Mesh, Mesh], call: Any):
    with pytest.raises(ShardvizError):
        call(halves[0])
