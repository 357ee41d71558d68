"""Programs that jax compiles itself, and the facts that sv.report and sv.compile must agree on.

`python -m tests.program.programs_jax_compiled TARGET NAME...` compiles for described hardware, and
prints the facts that differ, in JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.base.collective import Collective
from shardviz.compiled.report import Report


class Case(NamedTuple):
    """A function with its arguments, each a tree of shapes with their specs."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donate: tuple[int, ...] = ()
    dtype: str = "float32"


class Shape(NamedTuple):
    dims: tuple[int, ...]
    spec: P = P()


def _train(w: Any, x: Any) -> Any:
    return w - 0.1 * jax.grad(lambda w: jnp.square(jnp.tanh(x @ w)).mean())(w)


def _layers(w: Any, x: Any) -> Any:
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), x.sum()), x, w)


def _deep(params: Any, x: Any) -> Any:
    @jax.checkpoint
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        return x + jnp.tanh(x @ w["up"]) @ w["down"], None

    def loss(params: Any) -> Any:
        return jnp.square(jax.lax.scan(layer, x, params)[0]).mean()

    gradients = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def _many(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        h = x
        for w in params["layers"]:
            h = jnp.tanh(h @ w)
        return jnp.square(h @ params["head"]).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def _product(x: Any, w: Any) -> Any:
    return x @ w


def _ring(x: Any) -> Any:
    def shift(x: Any) -> Any:
        return jax.lax.ppermute(x, "data", [(i, (i + 1) % 4) for i in range(4)])

    return jax.shard_map(shift, in_specs=P("data"), out_specs=P("data"))(x)


def _by_hand(w: Any, x: Any) -> Any:
    def step(w: Any, x: Any) -> Any:
        gathered = jax.lax.all_gather(w, "model", axis=1, tiled=True)
        return jax.lax.psum(x @ gathered, "data")

    specs = (P(None, "model"), P("data"))
    return jax.shard_map(step, in_specs=specs, out_specs=P(), check_vma=False)(w, x)


def _gradient_in_a_shard_map(w: Any, x: Any) -> Any:
    def loss(w: Any, x: Any) -> Any:
        return jax.lax.pmean(jnp.square(x @ w).mean(), "data")

    mapped = jax.shard_map(loss, in_specs=(P(), P("data")), out_specs=P())
    return jax.grad(mapped)(w, x)


def _experts(x: Any, w: Any) -> Any:
    resharded = jax.lax.with_sharding_constraint(x, P(None, "data"))
    return jnp.einsum("bed,edf->bef", resharded, w)


def _unused(x: Any, y: Any, z: Any) -> Any:
    return {"sum": x.sum() + z.sum(), "same": z}


def _attention(x: Any, w: Any) -> Any:
    q, k, v = jnp.einsum("bsd,tdhk->tbhsk", x, w)
    scores = jax.nn.softmax(jnp.einsum("bhsk,bhtk->bhst", q, k))
    return jnp.einsum("bhst,bhtk->bshk", scores, v)


def _until(x: Any) -> Any:
    return jax.lax.while_loop(lambda x: x.sum() < 100.0, lambda x: x * 2 + x.mean(), x)


DATA, MODEL, BOTH = P("data"), P(None, "model"), P("data", "model")
LAYERS = {"up": Shape((4, 32, 64), P(None, "data", "model")),
          "down": Shape((4, 64, 32), P(None, "model", "data"))}  # fmt: skip
CASES: Mapping[str, Case] = {
    "elementwise": Case(lambda x: x * 2, (Shape((64, 8), DATA),)),
    "sum": Case(lambda x: x.sum(), (Shape((64, 8), BOTH),)),
    "product": Case(_product, (Shape((64, 32), BOTH), Shape((32, 16), P("model")))),
    "gather": Case(_product, (Shape((64, 32), DATA), Shape((32, 16), BOTH))),
    "donated": Case(_train, (Shape((32, 16), P("model")), Shape((64, 32), DATA)), (0,)),
    "scan": Case(_layers, (Shape((4, 32, 32), MODEL), Shape((64, 32), DATA))),
    "remat": Case(_deep, (LAYERS, Shape((64, 32), DATA)), (0,)),
    "combined": Case(
        _many,
        (
            {"layers": [Shape((32, 32), MODEL)] * 5, "head": Shape((32, 8), P("model"))},
            Shape((64, 32), DATA),
        ),
        donate=(0,),
        dtype="bfloat16",
    ),
    "ring": Case(_ring, (Shape((64, 8), DATA),)),
    "by hand": Case(_by_hand, (Shape((32, 16), MODEL), Shape((64, 32), DATA))),
    "shard_map": Case(_gradient_in_a_shard_map, (Shape((32, 16)), Shape((64, 32), DATA))),
    "experts": Case(_experts, (Shape((16, 8, 4), DATA), Shape((8, 4, 4), DATA))),
    "unused": Case(_unused, (Shape((8,), DATA), Shape((8,), P("model")), Shape((8, 2), DATA))),
    "two axes": Case(lambda x: x.T, (Shape((64, 8), P(("data", "model"))),)),
    "attention": Case(
        _attention,
        (Shape((8, 16, 32), DATA), Shape((3, 32, 4, 8), P(None, None, "model"))),
    ),
    "until": Case(_until, (Shape((64, 8), BOTH),)),
    "not split": Case(lambda x: x * 3, (Shape((16,)),)),
}  # fmt: skip
# The largest of each kind, for compilers that take seconds.
ON_HARDWARE = (
    "donated",
    "scan",
    "remat",
    "combined",
    "ring",
    "by hand",
    "experts",
    "attention",
    "until",
)


def arrays_of(case: Case, mesh: Mesh) -> list[Any]:
    def array(shape: Shape) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, shape.spec)
        return jax.ShapeDtypeStruct(shape.dims, case.dtype, sharding=sharding)

    return jax.tree.map(array, list(case.arguments), is_leaf=lambda x: isinstance(x, Shape))


def facts(report: Report) -> dict[str, Any]:
    """All that both reports have, in values that can be compared and written as JSON."""
    memory = report.memory.replace(timeline=None, free_now=None)
    if report.on is not None and report.on.platform == "cpu":
        memory = memory.replace(capacity=None)  # a share of this machine's memory
    return {
        "error": str(report.error),
        "mesh": str(report.mesh),
        "collectives": list(map(moved, report.collectives or ())),
        "sources": list(map(source, report.collectives or ())),
        "memory": dataclasses.asdict(memory),
        "cost": dict(report.cost),
        "loops": report.loops,
        "arguments": {name: str(layout) for name, layout in report.in_layouts.items()},
        "results": {name: str(layout) for name, layout in report.out_layouts.items()},
    }


def moved(collective: Collective) -> list[Any]:
    return [
        collective.kind, list(collective.mesh_axes), collective.bytes_per_device, collective.trips,
        collective.is_async, len(collective.groups),
    ]  # fmt: skip


def source(collective: Collective) -> list[Any]:
    members = [[m.op, m.bytes_per_device, m.source] for m in collective.members]
    return [collective.op, collective.source, members]


def differences(name: str, mesh: Mesh, target: str | None) -> dict[str, Any]:
    """Fact -> what sv.report and sv.compile have, for the facts that differ."""
    case, platform = CASES[name], mesh.devices.flat[0].platform
    arrays = arrays_of(case, mesh)
    step = jax.jit(case.function, donate_argnums=case.donate)
    with jax.set_mesh(mesh):
        lowered = step.trace(*arrays).lower(lowering_platforms=(platform.replace("gpu", "cuda"),))
        read = facts(sv.report(lowered.compile()))
        compiled = facts(sv.compile(step, *arrays, target=target))
    # The module has no parameter for an argument that the program does not use.
    compiled["arguments"] = {n: compiled["arguments"].get(n) for n in read["arguments"]}
    if platform == "gpu":
        # The final module names no source of a packed array; the partitioner's dump does.
        del read["sources"]
    return {key: [read[key], compiled[key]] for key in read if read[key] != compiled[key]}


def end_this_process(*_: object) -> None:
    """Called in a worker, in place of a parser that aborts."""
    os.abort()


def main(target: str, *names: str) -> None:
    from shardviz.hardware.topology import Topology
    from shardviz.runs.backend.targets import compile_only_devices

    devices = compile_only_devices(Topology.parse(target))
    types = (AxisType.Auto,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=types, devices=devices)
    print(json.dumps({name: differences(name, mesh, target) for name in names}))


if __name__ == "__main__":
    main(*sys.argv[1:])
