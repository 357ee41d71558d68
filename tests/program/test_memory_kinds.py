"""Arrays in the memory of the host: said by ArraySpecs, passed to the compiler, shown in Memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardviz.core.backend.bridge import adopt_array, foreign_memory, to_jax
from shardviz.core.backend.shardy.build_plan import plan_program
from shardviz.core.backend.targets import choose, device_mesh
from shardviz.core.backend.worker.run import compile_program
from shardviz.core.errors import LayoutError
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.program.cache import ExecutableCache
from tests.program.helpers import MESH, checks, program, run

ABSTRACT = AbstractMesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
CONCRETE = device_mesh(MESH, choose("cpu", 8))
HOST = "pinned_host"


def on(mesh, kind):
    sharding = NamedSharding(mesh, P("a"), memory_kind=kind)
    return jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=sharding)


def fetched(x):
    return jax.device_put(x, jax.memory.Space.Device) * 2


KINDS = {
    "the host's": (ABSTRACT, HOST, HOST),
    "the device's": (ABSTRACT, "device", None),
    "not said": (ABSTRACT, None, None),
    "the host's, of devices": (CONCRETE, HOST, HOST),
    "the default of devices": (CONCRETE, None, None),
}


@pytest.mark.parametrize(("mesh", "kind", "expected"), KINDS.values(), ids=KINDS)
def test_memory_kinds_are_adopted(mesh, kind, expected):
    assert adopt_array("x", on(mesh, kind)).memory_kind == expected
    assert foreign_memory(on(mesh, kind).sharding) == expected
    (array,) = program(fetched, on(mesh, kind)).arrays
    assert array.memory_kind == expected


@pytest.mark.parametrize("target", [None, "cpu:8"])
def test_they_run_and_are_held_against_one_device(target):
    report = run(program(fetched, on(ABSTRACT, HOST)), target=target)
    assert report.ok, report
    assert checks(report)["output: values"] is True


def test_they_plan_and_go_back_to_jax():
    made = program(fetched, on(ABSTRACT, HOST))
    assert plan_program(made).error is None
    assert to_jax(made.requests[0]).sharding.memory_kind == HOST
    assert "memory_kind='pinned_host'" in repr(made.arrays[0])


def test_host_bytes_are_counted_apart_on_a_tpu():
    pytest.importorskip("libtpu")
    made = program(fetched, on(ABSTRACT, HOST))
    memory = compile_program(made, "tpu:v5e:2x4", cache=ExecutableCache()).memory
    assert (memory.arguments, memory.host_arguments) == (0, 256 * 256 * 4 // 4)
    plain = program(fetched, on(ABSTRACT, None))
    memory = compile_program(plain, "tpu:v5e:2x4", cache=ExecutableCache()).memory
    assert (memory.arguments, memory.host_arguments) == (256 * 256 * 4 // 4, 0)


def test_keys_differ_by_memory():
    reports = [
        compile_program(program(fetched, on(ABSTRACT, kind)), cache=ExecutableCache())
        for kind in (HOST, None)
    ]
    assert reports[0].key != reports[1].key


def test_a_memory_kind_is_text():
    with pytest.raises(LayoutError, match="The name of a memory kind must be text; got 3"):
        ArraySpec("x", (8,), memory_kind=3)  # type: ignore[arg-type]
