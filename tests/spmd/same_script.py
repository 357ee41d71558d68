"""The same calls in every process, and what each of them finds; run by `processes.py`.

Cases that are called `run NUMBER ORDER` run one of `tests/stages/programs.py` and leave the shards
of its results in the folder `SHARDS`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from tests.stages import programs

SHARDS = "SHARDVIZ_TEST_SHARDS"
ORDERS = ("major", "interleaved")
DEVICES = 8


def devices(order: str) -> np.ndarray:
    """All devices: those of a process after one another, or one of each process in turn."""
    found = np.array(jax.devices())
    return found if order == "major" else found.reshape(jax.process_count(), -1).T.ravel()


def grid(order: str = "major", shape: tuple[int, ...] = (4, 2)) -> Mesh:
    return Mesh(devices(order).reshape(shape), ("data", "model")[: len(shape)])


def placed(values: np.ndarray, spec: P, order: str = "major") -> jax.Array:
    sharding = NamedSharding(grid(order), spec)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def mlp(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w).sum(0)


X, W = jax.ShapeDtypeStruct((16, 32), "float32"), jax.ShapeDtypeStruct((32, 64), "float32")
SPECS = (P("data", None), P(None, "model"))


def program(order: str = "major", **options: Any) -> Any:
    options.setdefault("in_specs", SPECS)
    return sv.program(mlp, X, W, mesh=grid(order), **options)


def summary(report: Any) -> dict[str, Any]:
    """What a report found, without times."""
    done = report.without_error
    return {
        "ok": report.ok,
        "error": str(report.error or ""),
        "target": report.target,
        "checks": [[c.name, c.ok, c.detail] for c in done.checks],
        "collectives": [c.words for c in done.collectives or ()],
        "notes": [noted(note) for note in report.notes],
        "processes": np.unique(done.mesh.process_indices).tolist() if done.mesh else [],
    }


def noted(note: Any) -> list[Any]:
    """The class of a note and what is in it, as JSON holds it."""
    held = asdict(note) if is_dataclass(note) else note
    return json.loads(json.dumps([type(note).__name__, held]))


CASES: dict[str, Callable[[int], Any]] = {}


def case(function: Callable[[int], Any]) -> Callable[[int], Any]:
    CASES[function.__name__] = function
    return function


@case
def made_up(rank):
    return summary(sv.run(program()))


@case
def made_up_interleaved(rank):
    return summary(sv.run(program("interleaved")))


def _values() -> tuple[np.ndarray, np.ndarray]:
    return np.arange(512, dtype="float32").reshape(16, 32) / 512, np.ones((32, 64), "float32")


@case
def numpy_values(rank):
    return summary(sv.run(program(), *_values()))


@case
def spread_values(rank):
    x, w = _values()
    return summary(sv.run(program(), placed(x, P("data")), placed(w, P())))


@case
def replicated_values(rank):
    x, w = _values()
    return summary(sv.run(program(), placed(x, P()), placed(w, P())))


@case
def donated_values(rank):
    x, w = _values()
    spread = placed(x, P("data"))
    report = sv.run(program(donate=(0,)), spread, w, repeat=3)
    return {**summary(report), "deleted": spread.is_deleted(), "unchanged": bool((w == 1).all())}


@case
def random_keys(rank):
    def draw(key):
        return jax.vmap(lambda k: jax.random.normal(k, (4,)))(key)

    keys = jax.random.split(jax.random.key(3), 8)
    made = sv.program(draw, keys, mesh=grid(), in_specs=(P("data"),))
    return [summary(sv.run(made)), summary(sv.run(made, keys))]


@case
def host_callback(rank):
    def step(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def on_each(x):
        return jax.shard_map(step, mesh=grid(), in_specs=P("data"), out_specs=P("data"))(x)

    return summary(sv.run(sv.program(on_each, X, mesh=grid(), in_specs=(P("data"),))))


@case
def cached(rank):
    sv.cache.clear()
    first, second = sv.compile(program()), sv.compile(program())
    return [first.cache_hit, second.cache_hit]


@case
def stages(rank):
    found = sv.stages(program())
    return summary(found.report)


@case
def layout(rank):
    return sv.text(sv.layout(placed(_values()[0], P("data"))))


@case
def audit(rank):
    tree = {"x": placed(_values()[0], P("data")), "w": placed(_values()[1], P(None, "model"))}
    return sv.text(sv.audit(tree))


@case
def own_part_only(rank):
    """A mesh of the devices of process 0 alone."""
    first = [d for d in jax.devices() if d.process_index == 0]
    made = sv.program(lambda x: x * 2, X, mesh=Mesh(np.array(first), ("data",)))
    return summary(sv.run(made))


@case
def simulated(rank):
    return summary(sv.run(program(), target="cpu:8"))


@case
def values_without_a_run(rank):
    """Nothing of jax's is left as it was not: the user's own arrays and jit go on."""
    x, w = _values()
    return float(jax.jit(mlp)(placed(x, P("data")), placed(w, P())).sum())


def of_eight(case: programs.Case) -> str:
    """The first mesh of a program that has eight devices."""
    for text in case.meshes:
        if sv.mesh(text).size == DEVICES:
            return text
    raise AssertionError(f"{case.name} has no mesh of {DEVICES} devices")


def _run(number: int, order: str) -> Callable[[int], Any]:
    def run(rank: int) -> Any:
        found = programs.CASES[number]
        made = found.program(of_eight(found))
        some = devices(order)
        shape = made.mesh.axis_sizes
        mesh = made.mesh.replace(
            device_ids=np.array([d.id for d in some]).reshape(shape),
            process_indices=np.array([d.process_index for d in some]).reshape(shape),
        )
        report = sv.run(made.replace(mesh=mesh))
        if report.error is None:
            _save(f"{number} {order}", rank, jax.tree.leaves(report.outputs))
        return {**summary(report), "program": found.name}

    return run


def _save(name: str, rank: int, results: list[jax.Array]) -> None:
    """Writes the shards of this process, by result and indices."""
    shards = {}
    for number, array in enumerate(results):
        for shard in array.addressable_shards:
            index = [s.indices(n)[:2] for s, n in zip(shard.index, array.shape, strict=True)]
            shards[f"{number} {list(array.shape)} {index}"] = np.asarray(shard.data)
    np.savez(Path(os.environ[SHARDS], f"{name} {rank}.npz"), **shards)


CASES |= {
    f"run-{number}-{order}": _run(number, order)
    for number in range(len(programs.CASES))
    for order in ORDERS
}
