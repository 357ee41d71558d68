"""Whose the buffers at a peak are, held against XLA's shardings and the devices' bytes."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.base.axis_parts import local_shape
from shardviz.base.partition_spec import Spec
from shardviz.compiled.memory import Buffer
from shardviz.compiled.memory_in_plan import name_buffers, with_values
from shardviz.runs.backend.worker.run import compile_program
from shardviz.runs.cache import ExecutableCache
from tests.program import memory_foreign

FOREIGN = {name: sv.program(fn, *arrays) for name, fn, arrays in memory_foreign.programs()}
MESH = AbstractMesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def struct(shape, *spec, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, P(*spec)))


def compiled(program):
    report = compile_program(program, "attached", cache=ExecutableCache())
    assert report.error is None, report.error
    plan = sv.plan(program)
    assert plan.error is None, plan.error
    return plan, with_values(report, plan)


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_most_of_a_peak_has_a_value_and_a_spec_that_gives_its_shape(name):
    plan, report = compiled(FOREIGN[name])
    owned = 0
    for buffer in report.memory.peak.buffers:
        if not buffer.value or buffer.spec is None:
            continue
        owned += buffer.bytes
        value = plan.by_name.get(buffer.value)
        if value is None:
            assert {*buffer.group} <= plan.by_name.keys()
            continue
        shape = value.shape
        if buffer.stacked and len(buffer.spec.dims) == len(shape) + 1:
            shape = (buffer.count, *shape)
        if not value.manual:
            shape = local_shape(shape, buffer.spec, plan.mesh)
        dims = [int(n) for n in buffer.shape.partition("[")[2].strip("]").split(",") if n]
        assert math.prod(shape) == math.prod(dims), buffer
    # A tenth of the convolutions' peak is zeros that XLA made, without a source.
    assert owned >= 0.88 * report.memory.peak.bytes


def saved_by_a_scan(w, x):
    def layer(x, w):
        x = x + jax.nn.silu(x @ w["up"]) @ w["down"]
        return lax.with_sharding_constraint(x, NamedSharding(MESH, P("a"))), None

    def loss(w):
        return jnp.mean(lax.scan(jax.checkpoint(layer), x, w)[0] ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))


def test_what_a_scan_saves_is_the_carry_split_as_it_is_in_the_body():
    w = {
        "up": struct((6, 64, 128), None, "a", "b"),
        "down": struct((6, 128, 64), None, "b", "a"),
    }
    plan, report = compiled(sv.program(saved_by_a_scan, w, struct((16, 32, 64), "a")))
    (saved,) = (b for b in report.memory.peak.buffers if b.stacked and b.shape == "f32[6,4,32,64]")
    assert plan.op(saved.value).shape == (16, 32, 64)
    assert saved.spec.dims == ((), ("a",), (), ())
    assert saved.replicated == ("b",)


def test_results_of_one_line_are_told_apart():
    def step(params, gradients):
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)

    params = {
        "first": struct((64, 32), "a"),
        "last": struct((64, 32), "a"),
        "other": struct((64, 32), None, "b"),
    }
    _, report = compiled(sv.program(step, params, params))
    outputs = {b.value: str(b.spec) for b in report.memory.peak.buffers if b.kind == "outputs"}
    assert outputs["output.first"] == outputs["output.last"] == "P('a', None)"
    assert outputs["output.other"] == "P(None, 'b')"


def updated_in_place(w, cache, x):
    def layer(x, pair):
        w, cache = pair
        cache = lax.dynamic_update_slice(cache, (x @ w)[:, None], (0, 5, 0))
        weights = jax.nn.softmax(jnp.einsum("bd,btd->bt", x, cache))
        return x + jnp.einsum("bt,btd->bd", weights, cache), cache

    return lax.scan(layer, x, (w, cache))


def test_an_array_that_is_updated_is_not_called_the_slice_that_is_written():
    arguments = (
        struct((6, 128, 128), None, None, "b"),
        struct((6, 16, 32, 128), None, "a", None, "b"),
    )
    plan, report = compiled(sv.program(updated_in_place, *arguments, struct((16, 128), "a")))
    (cache,) = (
        b for b in report.memory.timeline.buffers if b.stacked and b.shape == "f32[4,32,64]"
    )
    assert plan.op(cache.value).opcode == "dynamic_update_slice"
    assert cache.spec == plan.op(cache.value).spec


@functools.partial(
    jax.shard_map, mesh=MESH, in_specs=(P("a"), P()), out_specs=P("a"), axis_names={"a"}
)
def manual_over_one_axis(x, w):
    def body(carry, _):
        carry = jnp.tanh(carry @ w)
        return carry, carry

    carry, every = lax.scan(body, x, length=4)
    return every.sum(0) * carry


def test_axes_that_are_not_manual_split_a_shard_maps_values():
    def gradient(x, w):
        return jax.grad(lambda w: manual_over_one_axis(x, w).sum())(w)

    program = sv.program(gradient, struct((64, 256), "a"), struct((256, 256), None, "b"))
    plan, report = compiled(program)
    saved = [b for b in report.memory.peak.buffers if b.stacked and b.shape == "f32[4,16,128]"]
    assert saved
    for buffer in saved:
        assert all(plan.op(name).manual for name in buffer.group or (buffer.value,))
        assert (buffer.spec, buffer.replicated) == (Spec.parse("None, None, b"), ())
    (output,) = (b for b in report.memory.peak.buffers if b.kind == "outputs")
    assert (output.value, output.spec) == ("output", Spec.parse("None, b"))


def layers_of_gathered_weights(w, x):
    for name in ("first", "last"):
        x = jnp.tanh(x.reshape(-1, x.shape[-1]) @ w[name].T).reshape(x.shape)
    return (x**2).mean()


def test_devices_hold_different_bytes_along_the_axes_that_split_a_buffers_value():
    # As many elements in a device's part of a product as in a weight that was gathered.
    w = {"first": struct((64, 64), "b"), "last": struct((64, 64), "b")}
    x = struct((64, 8, 64), ("a", "b"))
    plan, report = compiled(sv.program(jax.grad(layers_of_gathered_weights), w, x))
    gathered = 0
    for buffer in report.memory.timeline.buffers:
        if buffer.spec is None or buffer.differs is None:
            continue
        for name in buffer.group or (buffer.value,):
            if plan.op(name).opcode != "broadcast_in_dim":
                assert {*buffer.spec.axes} <= {*buffer.differs}, buffer
        weight = buffer.value in ("w.first", "w.last")
        gathered += weight and buffer.kind == "temporaries"
    assert gathered


def test_a_failed_compiles_buffers_can_be_named_by_operation_line_and_shape():
    program = sv.program(lambda x, w: jnp.tanh(x @ w), struct((64, 64), "a"), struct((64, 64)))
    plan = sv.plan(program)
    op = next(op for op in plan.ops if op.opcode == "tanh")
    (buffer,) = name_buffers(
        [Buffer("f", 4096, "f32[16,64]", "temporaries", op.op, op.source)], plan
    )
    assert (buffer.value, buffer.spec, buffer.replicated) == (op.name, op.spec, ("b",))
    (buffer,) = name_buffers(
        [Buffer("f", 4096, "f32[16,32]", "temporaries", op.op, op.source)], plan
    )
    assert (buffer.value, buffer.spec) == ("", None)


# --- whether devices hold the same bytes ------------------------------------------------


def in_blocks(out_specs, **options):
    specs = {"mesh": MESH, "in_specs": P("a", "b"), "out_specs": out_specs}
    return functools.partial(jax.shard_map, **specs, **options)


@in_blocks((P("a", "b"), P("a"), P(None, "b")))
def sums(x):
    return jnp.sin(x), lax.psum(x, "b"), lax.pmax(x, "a") * 2


# Nothing checks these out_specs, and the devices differ.
@in_blocks((P(), P(), P("a")), check_vma=False)
def unchecked(x):
    y = jnp.cos(x)
    return y * lax.axis_index("a"), lax.ppermute(y, "b", [(0, 1), (1, 0)]), lax.psum(y, ("a", "b"))


@in_blocks((P(), P("a"), P("a", "b")), check_vma=False)
def in_a_loop(x):
    def body(carry, _):
        total, moved = carry
        return (total + lax.psum(x, ("a", "b")), lax.all_gather(moved, "b")[0]), moved

    (total, moved), every = lax.scan(body, (jnp.zeros_like(x), x), length=3)
    return total, moved, every[-1]


# Groups over a part of an axis.
@in_blocks((P(), P()), check_vma=False)
def in_parts(x):
    halves = [[0, 1], [2, 3]]
    strided = [[0, 2], [1, 3]]
    return (
        lax.psum(x, "a", axis_index_groups=halves),
        lax.psum(lax.psum(x, "a", axis_index_groups=halves), "a", axis_index_groups=strided),
    )


@in_blocks((P(), P()), check_vma=False)
def as_often_as_a_device_says(x):
    times, total = lax.axis_index("a") + 1, lax.psum(x, ("a", "b"))
    looped = lax.fori_loop(0, times, lambda _, y: y + 1, total)
    return looped, lax.cond(times > 2, lambda y: y * 2, jnp.sin, total)


def partitioned(x):
    y = x @ x.T
    return y, y.sum(0), jnp.sort(x, axis=0), jnp.cumsum(x, axis=1), x[::2] * 2


BODIES = (sums, unchecked, in_a_loop, in_parts, as_often_as_a_device_says, partitioned)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: getattr(body, "__name__", "body"))
def test_what_is_called_replicated_has_the_same_bytes_on_every_device(body):
    x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    program = sv.program(body, struct((8, 8), "a", "b"))
    _, report = compiled(program)
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    placed = jax.device_put(x, NamedSharding(mesh, P("a", "b")))
    outputs = jax.tree.leaves(jax.jit(body)(placed))
    buffers = {b.result: b for b in report.memory.timeline.buffers if b.result is not None}
    assert {*buffers} == {*range(len(outputs))}
    for number, output in enumerate(outputs):
        shards = {s.device: np.asarray(s.data) for s in output.addressable_shards}
        blocks = [[shards[device] for device in row] for row in mesh.devices]
        same = {
            "a": all(np.array_equal(blocks[0][j], row[j]) for row in blocks for j in (0, 1)),
            "b": all(np.array_equal(row[0], row[1]) for row in blocks),
        }
        for axis in buffers[number].replicated:
            assert same[axis], (number, axis)
        assert {*buffers[number].replicated}.isdisjoint(buffers[number].differs)


def test_what_is_replicated_is_called_so():
    _, report = compiled(sv.program(in_parts, struct((8, 8), "a", "b")))
    replicated = [b.replicated for b in report.memory.timeline.buffers if b.result is not None]
    assert sorted(replicated) == [(), ("a",)]


def test_no_shard_maps_value_is_called_replicated_where_its_type_varies():
    plan, report = compiled(FOREIGN["pipeline"])
    manual = []
    for buffer in report.memory.timeline.buffers:
        names = buffer.group or (buffer.value,)
        if plan.by_name.keys() >= {*names} and all(plan.op(name).manual for name in names):
            manual.append(buffer)
    saved = [b for b in manual if b.stacked and "f32" in b.shape]
    assert len(saved) > 2
    assert all(buffer.replicated == () for buffer in saved)
    # Each is one device's block, which no mesh axis can split again.
    assert all(buffer.split_bytes is None for buffer in manual)
