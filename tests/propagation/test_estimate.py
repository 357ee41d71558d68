"""The instant estimate of collectives, compared with XLA's own partitioner."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from shardviz.base.partition_spec import Spec
from shardviz.compiled.read_collectives import read_collectives
from shardviz.plans.backend import pipeline
from shardviz.plans.backend.attributes import AttributeCache
from shardviz.plans.backend.estimate import read_estimate
from shardviz.plans.backend.reader import PlanReader
from shardviz.plans.plan_causes import MoveCause, SumCause
from shardviz.programs.backend.bridge import adopt_mesh
from shardviz.runs.backend.partitioner import compile_with_dump
from tests.propagation.planning import plan

P = PartitionSpec
NAMES = ("data", "model")
AUTO = (AxisType.Auto,) * 2
ABSTRACT = AbstractMesh((4, 2), NAMES, axis_types=AUTO)
MESH = adopt_mesh(ABSTRACT)
RING = [(i, (i + 1) % 4) for i in range(4)]


class Case(NamedTuple):
    fn: Callable[[Any], Callable[..., Any]]
    """The mesh -> the function."""
    args: tuple[tuple[Any, ...], ...]
    """Shape, spec and perhaps dtype of each argument."""


def layer(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


def scanned(x: Any, w: Any) -> Any:
    return jax.lax.scan(lambda c, _: (layer(w, c), None), x, None, length=3)[0]


def normed(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def asking(spec: Any, of: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
    """`of` with a constraint on its result."""

    def build(mesh: Any) -> Callable[..., Any]:
        sharding = NamedSharding(mesh, spec)
        return lambda *args: jax.lax.with_sharding_constraint(of(*args), sharding)

    return build


def manual(body: Callable[..., Any], ins: Any, outs: Any) -> Callable[[Any], Callable[..., Any]]:
    return lambda mesh: jax.shard_map(body, mesh=mesh, in_specs=ins, out_specs=outs)


def plain(fn: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
    return lambda mesh: fn


def gathered_weights(mesh: Any) -> Callable[..., Any]:
    replicated = NamedSharding(mesh, P())
    return lambda x, w: x @ jax.lax.with_sharding_constraint(w, replicated)


matmul = plain(lambda x, w: x @ w)
doubled = lambda x: x * 2  # noqa: E731
ROWS, BOTH = ((64, 512), P("data")), ((64, 512), P("data", "model"))
SPLIT_INNER = ((64, 512), P(None, "model"))

# Programs on which Shardy's plan and XLA's partitioner agree.
AGREED = {
    "column parallel": Case(matmul, (ROWS, ((512, 2048), P(None, "model")))),
    "row parallel": Case(matmul, (SPLIT_INNER, ((512, 256), P("model")))),
    "inner and outer conflict": Case(matmul, (BOTH, ((512, 2048), P("model", "data")))),
    "fsdp gather by constraint": Case(gathered_weights, (ROWS, ((512, 256), P("data")))),
    "maximum": Case(plain(lambda x: jnp.max(x, 0)), (BOTH,)),
    "softmax over a split axis": Case(plain(jax.nn.softmax), (BOTH,)),
    "layer norm": Case(plain(normed), (BOTH,)),
    "data-parallel gradient": Case(
        plain(lambda x, w: jax.grad(lambda w: jnp.sum(layer(w, x)))(w)), (ROWS, ((512, 256), P()))
    ),
    "reduce then scatter by constraint": Case(
        asking(P("data", "model"), lambda x, w: x @ w), (BOTH, ((512, 256), P("model")))
    ),
    "to the other dimension": Case(asking(P(None, "data"), doubled), (ROWS,)),
    "two axes swap dimensions": Case(asking(P("model", "data"), doubled), (BOTH,)),
    "gather both dimensions": Case(asking(P(), doubled), (BOTH,)),
    "embedding": Case(
        plain(lambda t, i: jnp.take(t, i, axis=0)),
        (((1000, 64), P("model")), ((32,), P("data"), jnp.int32)),
    ),
    "sort along a split dimension": Case(plain(lambda x: jnp.sort(x, 0)), (ROWS,)),
    "convolution": Case(
        plain(lambda a, k: jax.lax.conv_general_dilated(a, k, (1, 1), "SAME")),
        (((8, 16, 32, 32), P("data", "model")), ((16, 16, 3, 3), P(None, "model"))),
    ),
    "scatter": Case(
        plain(lambda x, i, u: x.at[i].add(u)),
        (((64, 512), P()), ((8,), P("data"), jnp.int32), ((8, 512), P("data"))),
    ),
    "partly manual": Case(
        lambda mesh: jax.shard_map(
            lambda a, w: jax.lax.psum(a @ w, "data"),
            mesh=mesh,
            in_specs=(P(None, "data"), P("data")),
            out_specs=P(),
            axis_names={"data"},
        ),
        (((64, 512), P(None, "data")), ((512, 512), P("data", "model"))),
    ),
    "transpose": Case(plain(jnp.transpose), (BOTH,)),
    "scan, summed": Case(plain(scanned), (ROWS, ((512, 512), P("model")))),
    "ppermute": Case(
        manual(lambda x: jax.lax.ppermute(x, "data", RING), P("data"), P("data")), (ROWS,)
    ),
    "psum of a pair": Case(
        manual(lambda x, y: jax.lax.psum((x, y), "model"), P(*NAMES), P("data")), (BOTH, BOTH)
    ),
}


def lowered(case: Case, mesh: Any = ABSTRACT) -> Any:
    structs = [
        jax.ShapeDtypeStruct(shape, *(dtype or (jnp.float32,)), sharding=NamedSharding(mesh, spec))
        for shape, spec, *dtype in case.args
    ]
    return jax.jit(case.fn(mesh)).trace(*structs).lower(lowering_platforms=("cpu",))


def partitioned(case: Case, devices: list[Any]) -> list[Any]:
    """What XLA's partitioner makes of it, from its own dump."""
    mesh = Mesh(np.array(devices).reshape(4, 2), NAMES, axis_types=AUTO)
    with tempfile.TemporaryDirectory() as folder:
        dumped = compile_with_dump(lowered(case, mesh), folder=folder)
    assert dumped.partitioned is not None
    found = read_collectives(dumped.partitioned, MESH.axis_names, MESH.axis_sizes)
    return summary(found)


def estimated(case: Case, mesh: Any = ABSTRACT) -> tuple[Any, ...]:
    made = lowered(case, mesh)
    results = ["output"] * len(jax.tree.leaves(made.out_info))
    before = made.compiler_ir("stablehlo")
    module = pipeline.propagate(before)
    with module.context:
        reader = PlanReader(
            module, before, ["x", "w", "v"], results, adopt_mesh(mesh), AttributeCache()
        )
        ops = reader.read()
    return read_estimate(module, reader, ops)


def summary(collectives: Any) -> list[Any]:
    return sorted((c.kind, c.mesh_axes, c.bytes_per_device) for c in collectives)


@pytest.mark.parametrize("name", AGREED)
def test_estimate_equals_the_partitioner(name, eight_devices):
    case = AGREED[name]
    assert summary(estimated(case)) == partitioned(case, eight_devices)


@pytest.mark.parametrize("sizes", [(4, 2), (64, 8), (1024, 1024)], ids=str)
def test_groups_are_named_by_axes_at_any_size(sizes):
    mesh = AbstractMesh(sizes, NAMES, axis_types=AUTO)
    rows, inner = 16 * sizes[0], 256 * sizes[1]
    case = Case(matmul, (((rows, inner), P("data", "model")), ((inner, 128), P("model"))))
    (found,) = estimated(case, mesh)
    assert (found.kind, found.mesh_axes, found.group_size) == ("all-reduce", ("model",), sizes[1])
    assert found.bytes_per_device == 16 * 128 * 4
    assert found.groups == ()


def test_a_loop_counts_once_with_its_trips(eight_devices):
    (found,) = estimated(AGREED["scan, summed"])
    assert (found.in_loop, found.trips) == (True, 3)


def test_a_callback_moves_the_whole_once_at_most(eight_devices):
    def called(x):
        same = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(np.asarray, same, x)

    mesh = Mesh(np.array(eight_devices).reshape(4, 2), NAMES, axis_types=AUTO)
    found = estimated(Case(plain(called), (ROWS,)), mesh)
    assert summary(found) in ([], [("all-gather", ("data",), 131072)])  # jaxlib 0.10 plans nothing
    assert {(c.cause.code, c.cause.user) for c in found} <= {("op", "pure_callback")}


def test_a_function_called_twice_counts_twice():
    def twice(x, w):
        inner = jax.jit(layer)
        return inner(w, inner(w, x))

    case = Case(plain(twice), (ROWS, ((512, 512), P("model"))))
    found = estimated(case)
    assert summary(found) == [("all-reduce", ("model",), 32768)] * 2
    assert {c.op for c in found} == {"jit(twice)/jit(layer)/dot_general"}
    assert all(len(c.stack) >= 2 for c in found)
    assert found[0].source.startswith("test_estimate.py:")


DATA, MODEL = ("data",), ("model",)
ROWS_SPEC, COLUMNS_SPEC = Spec.parse("data, None"), Spec.parse("None, data")
CAUSES = {
    "sort along a split dimension": [
        MoveCause("x", DATA, "all-to-all", ROWS_SPEC, COLUMNS_SPEC, "op", "sort"),
        MoveCause("sort", DATA, "all-to-all", COLUMNS_SPEC, ROWS_SPEC, "own"),
    ],
    "row parallel": [SumCause("dot_general", MODEL, "inner")],
    "inner and outer conflict": [
        MoveCause(
            "x", DATA, "all-gather", Spec.parse("data, model"), Spec.parse("None, model"), "op",
            "dot_general",
        ),
        SumCause("dot_general", MODEL, "inner"),
    ],
    "maximum": [SumCause("reduce_max", DATA, "reduce", (0,), "maximum")],
    "embedding": [SumCause("gather", MODEL, "gather")],
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES)
def test_causes(name):
    assert [c.cause for c in estimated(AGREED[name])] == CAUSES[name]


def test_what_shard_map_wrote_says_where():
    (found,) = estimated(AGREED["ppermute"])
    assert (found.cause.value, found.cause.inside) == ("ppermute", "shard_map")
    assert found.cause.source.startswith("test_estimate.py:")


def constrained(value: Any, *axes: Any) -> Any:
    return jax.lax.with_sharding_constraint(value, NamedSharding(ABSTRACT, P(*axes)))


def test_what_a_constraint_splits_again_is_moved_for_the_constraint():
    def sorted_in_a_branch(x):
        whole = constrained(x * 2)
        return jnp.sort(constrained(whole, "data"), axis=0)

    def branches(x, y):
        return jax.lax.cond(y[0] > 0, sorted_in_a_branch, lambda x: x, x)

    made = plan(branches, x=((16, 32), ""), y=((8,), ""))
    (moved,) = (c for c in made.collectives if c.cause.user == "sort")
    assert not made.op("mul").spec.axes
    assert (moved.value, moved.cause.value) == ("sort", "sharding_constraint_1")


def test_a_constraint_behind_another_is_the_one_that_asks():
    def split_and_gathered(x):
        first = constrained(x * 2, "data")
        return constrained(first)

    made = plan(split_and_gathered, x=((16, 32), ""))
    (found,) = made.collectives
    asked = made.op("sharding_constraint_1")
    assert (found.value, found.source) == (asked.name, asked.source)
