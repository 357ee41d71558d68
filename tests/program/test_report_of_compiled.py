"""sv.report of what jax compiled, compared with sv.compile of the same function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.base.collective import Collective
from shardviz.compiled.report import Memory, Report
from shardviz.programs.notes import CompiledByJax


class Case(NamedTuple):
    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[tuple[int, ...], P], ...]
    donate: tuple[int, ...] = ()


def _train(w: Any, x: Any) -> Any:
    return w - 0.1 * jax.grad(lambda w: jnp.square(jnp.tanh(x @ w)).mean())(w)


def _layers(w: Any, x: Any) -> Any:
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), x.sum()), x, w)


def _ring(x: Any) -> Any:
    def shift(x: Any) -> Any:
        return jax.lax.ppermute(x, "data", [(i, (i + 1) % 4) for i in range(4)])

    return jax.shard_map(shift, in_specs=P("data"), out_specs=P("data"))(x)


def _experts(x: Any, w: Any) -> Any:
    resharded = jax.lax.with_sharding_constraint(x, P(None, "data"))
    return jnp.einsum("bed,edf->bef", resharded, w)


def _unused(x: Any, y: Any, z: Any) -> Any:
    return {"sum": x.sum() + z.sum(), "same": z}


CASES = (
    Case("elementwise", lambda x: x * 2, (((64, 8), P("data")),)),
    Case("sum", lambda x: x.sum(), (((64, 8), P("data", "model")),)),
    Case("product", jnp.dot, (((64, 32), P("data", "model")), ((32, 16), P("model")))),
    Case("gather", jnp.dot, (((64, 32), P("data")), ((32, 16), P("data", "model")))),
    Case("train", _train, (((32, 16), P("model")), ((64, 32), P("data"))), donate=(0,)),
    Case("layers", _layers, (((4, 32, 32), P(None, "data")), ((64, 32), P("data")))),
    Case("ring", _ring, (((64, 8), P("data")),)),
    Case("experts", _experts, (((16, 8, 4), P("data")), ((8, 4, 4), P("data")))),
    Case("unused", _unused, (((8,), P("data")), ((8,), P("model")), ((8, 2), P("data")))),
    Case("tuple", lambda x: x.T, (((64, 8), P(("data", "model"))),)),
)


@pytest.fixture(scope="module")
def mesh(eight_devices: list[Any]) -> Mesh:
    types = (AxisType.Auto,) * 2
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=types, devices=eight_devices)


def facts(collective: Collective) -> tuple[object, ...]:
    return collective.kind, collective.mesh_axes, collective.bytes_per_device, collective.op


def sizes(memory: Memory) -> tuple[int | None, ...]:
    return memory.arguments, memory.outputs, memory.temporaries, memory.aliased


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_compiled_has_what_a_compile_reports(case: Case, mesh: Mesh):
    arrays = [
        jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, spec))
        for shape, spec in case.shapes
    ]
    step = jax.jit(case.function, donate_argnums=case.donate)
    with jax.set_mesh(mesh):
        read = sv.report(step.lower(*arrays).compile())
        compiled = sv.compile(step, *arrays)
    assert compiled.error is None
    assert isinstance(read, Report)
    assert read.mesh == compiled.mesh
    assert read.collectives is not None
    assert compiled.collectives is not None
    assert list(map(facts, read.collectives)) == list(map(facts, compiled.collectives))
    assert sizes(read.memory) == sizes(compiled.memory)
    assert read.cost == compiled.cost
    assert read.loops == compiled.loops
    used = [layout for name, layout in compiled.in_layouts.items() if name != "y"]
    assert [a.indices() for a in read.in_layouts.values()] == [a.indices() for a in used]
    assert {n: a.indices() for n, a in read.out_layouts.items()} == {
        n: a.indices() for n, a in compiled.out_layouts.items()
    }


def test_what_a_compiled_does_not_have_is_said(mesh: Mesh):
    array = jax.ShapeDtypeStruct((8,), "float32", sharding=NamedSharding(mesh, P("data")))
    compiled = jax.jit(jnp.sin).lower(array).compile()
    report = sv.report(compiled)
    assert report.partitioned is None
    assert report.memory.peak is None
    assert CompiledByJax() in report.notes
    assert "sv.compile" in sv.text(report)
    assert sv.text(compiled) == sv.text(report)
    sv.plot(compiled)


def test_a_program_for_one_device_has_one_axis():
    report = sv.report(jax.jit(jnp.sin).lower(jnp.ones((4,))).compile())
    assert report.mesh is not None
    assert report.mesh.size == 1
    assert report.collectives == ()


def test_what_jax_did_not_compile_is_refused():
    things: list[Any] = [jnp.sin, 3, jax.jit(jnp.sin), jax.jit(jnp.sin).lower(1.0)]
    for thing in things:
        with pytest.raises(sv.ShardvizError, match=r"sv\.report takes"):
            sv.report(thing)
