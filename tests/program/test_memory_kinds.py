"""Arrays in the memory of the host: said by ArraySpecs, passed to the compiler, shown in Memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.axis_rules.libraries import foreign_memory
from shardviz.plans.backend.build_plan import plan_program
from shardviz.programs.backend.bridge import adopt_array, to_jax
from shardviz.runs.backend.targets import choose, device_mesh
from shardviz.runs.backend.worker.run import compile_program
from shardviz.runs.cache import ExecutableCache
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


def test_they_run_and_are_held_against_one_device():
    made = program(fetched, on(ABSTRACT, HOST))
    assert to_jax(made.requests[0]).sharding.memory_kind == HOST
    report = run(made, target="cpu:8")
    assert report.ok, report
    assert checks(report)["output: values"] is True


def test_host_bytes_are_counted_apart_on_a_tpu():
    pytest.importorskip("libtpu")
    made = program(fetched, on(ABSTRACT, HOST))
    memory = compile_program(made, "tpu:v5e:2x4", cache=ExecutableCache()).memory
    assert (memory.arguments, memory.host_arguments) == (0, 256 * 256 * 4 // 4)
    plain = program(fetched, on(ABSTRACT, None))
    memory = compile_program(plain, "tpu:v5e:2x4", cache=ExecutableCache()).memory
    assert (memory.arguments, memory.host_arguments) == (256 * 256 * 4 // 4, 0)


def offloaded(x):
    return x.sum(), x * 2


def asking_for_the_host():
    replicated = NamedSharding(ABSTRACT, P())
    host = NamedSharding(ABSTRACT, P("a", "b"), memory_kind=HOST)
    return jax.jit(offloaded, out_shardings=(replicated, host))


@pytest.mark.parametrize(("given", "target"), [("jax.jit", "attached"), ("out_specs", "cpu:8")])
def test_results_go_to_the_host_where_they_are_asked_to(target, given):
    fn, specs = asking_for_the_host(), {}
    if given == "out_specs":
        host = NamedSharding(ABSTRACT, P("a", "b"), memory_kind=HOST)
        fn, specs = offloaded, {"out_specs": (P(), host)}
    made = program(fn, on(ABSTRACT, None), **specs)
    assert plan_program(made).error is None
    report = run(made, target=target)
    assert report.ok, report
    assert checks(report)["output[1]: values"] is True
    assert str(report.out_layouts["output[1]"].spec) == "P('a', 'b')"
    if target == "attached":
        kinds = [output.sharding.memory_kind for output in report.outputs]
        assert kinds == [jax.devices()[0].default_memory().kind, HOST]


def test_a_result_in_another_memory_than_its_spec_is_refused_and_the_spec_of_that_memory_works():
    def put(x):
        return jax.device_put(x * 2, jax.memory.Space.Host)

    report = run(program(put, on(ABSTRACT, None), out_specs=P("a")), target="cpu:8")
    assert report.error.stage == "compile"
    host = NamedSharding(ABSTRACT, P("a"), memory_kind=HOST)
    assert run(program(put, on(ABSTRACT, None), out_specs=host), target="cpu:8").ok


def test_texts_name_the_memory_of_the_host():
    described = on(ABSTRACT, HOST)
    layout = sv.layout(described)
    row = sv.audit({"x": described}, mesh=MESH).rows[0]
    for value in (described, layout, row, sv.layout((256, 256), described.sharding)):
        assert "64 KiB per device in pinned_host," in sv.text(value)
    assert to_jax(layout).memory_kind == HOST
    assert "pinned_host" not in sv.text(on(ABSTRACT, "device"))
    assert "· in pinned_host\n" in sv.text(plan_program(program(fetched, described)))
    assert "pinned_host" not in sv.text(plan_program(program(fetched, on(ABSTRACT, "device"))))


LIVE = jax.device_put(np.ones((256, 256), np.float32), NamedSharding(CONCRETE, P("a")))


def test_an_audit_counts_them_apart():
    each = 256 * 256 * 4 // 4
    host = jax.device_put(LIVE, LIVE.sharding.with_memory_kind(HOST))
    rows = {"described": on(ABSTRACT, HOST), "live": host, "w": on(ABSTRACT, None), "v": LIVE}
    found = sv.audit(rows, mesh=MESH)
    assert found.bytes_per_device == found.total.bytes_per_device == 2 * each
    assert [row.path for row in found.rows if row.array.memory_kind] == ["described", "live"]
    assert [row.bytes_per_device for row in found.rows if row.array.memory_kind] == [each, each]
