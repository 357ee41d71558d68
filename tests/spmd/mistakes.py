"""Mistakes that people make with several processes, planted in process 1; run by `processes.py`.

Each case returns the error of the report, or of the fetch, in every process.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.base.backend.jax_compat import key_value_store
from shardviz.runs.backend.rendezvous import WAIT

CASES: dict[str, Callable[[int], Any]] = {}


def case(function: Callable[[int], Any]) -> Callable[[int], Any]:
    """Adds a function to the cases, which returns a Report."""

    @functools.wraps(function)
    def error(rank: int) -> str:
        report = function(rank)
        return "" if report is None or report.error is None else str(report.error)

    CASES[function.__name__] = error
    return error


def mesh(axes: tuple[int, ...] = (8,), order: Any = None) -> Mesh:
    devices = np.array(jax.devices())[slice(None) if order is None else order]
    return Mesh(devices.reshape(axes), ("data", "model")[: len(axes)])


X = jax.ShapeDtypeStruct((16, 8), "float32")


def program(fn: Callable[..., Any], *arrays: Any, on: Mesh | None = None, **options: Any) -> Any:
    arrays = arrays or (X,)
    options.setdefault("in_specs", (P("data"),) * len(arrays))
    return sv.program(fn, *arrays, mesh=on or mesh(), **options)


def total(x: Any) -> Any:
    return x.sum()


def largest(x: Any) -> Any:
    return x.max()


def spread(values: np.ndarray, on: Mesh | None = None, spec: Any = None) -> jax.Array:
    sharding = NamedSharding(on or mesh(), P("data") if spec is None else spec)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


# Another branch.


@case
def branch_function(rank):
    return sv.run(program(largest if rank == 1 else total))


@case
def branch_kind(rank):
    return (sv.compile if rank == 1 else sv.run)(program(total))


@case
def branch_same_name(rank):
    def step(x):
        if jax.process_index() == 1:
            return (x * 2).sum()
        return x.sum()

    return sv.run(program(step))


@case
def branch_order(rank):
    first, second = (total, largest)[:: -1 if rank == 1 else 1]
    report = sv.run(program(first))
    sv.run(program(second))
    return report


@case
def branch_repeat(rank):
    return sv.run(program(total), repeat=2 if rank == 1 else 1)


# A collective that one process skips.


@case
def skip_sum(rank):
    return sv.run(program(lambda x: x * 2 if rank == 1 else x * x.sum(), name="step"))


def _in_shards(rank: int, collective: Callable[[Any], Any]) -> Any:
    grid = mesh()

    def local(x):
        return x * 2 if rank == 1 else collective(x)

    step = jax.shard_map(local, mesh=grid, in_specs=P("data"), out_specs=P("data"))
    return sv.run(program(step, on=grid, name="step"))


@case
def skip_psum(rank):
    return _in_shards(rank, lambda x: x * jax.lax.psum(x, "data"))


# Values that a process cannot fetch.


def _fetch(name: str, fetch: Callable[[jax.Array], Any]) -> None:
    def run(rank: int) -> Any:
        there = spread(np.ones((16, 8), np.float32))

        def step(x):
            fetch(there)
            return x

        return sv.run(program(step))

    run.__name__ = f"fetch_{name}"
    case(run)


_fetch("asarray", np.asarray)


@case
def fetch_closure(rank):
    there = spread(np.ones((16, 8), np.float32))
    return sv.run(program(lambda x: x + there))


# Local batches.


def _batch(local: np.ndarray, on: Mesh | None = None, spec: Any = None) -> Any:
    sharding = NamedSharding(on or mesh(), P("data") if spec is None else spec)
    x = jax.make_array_from_process_local_data(sharding, local)
    return sv.run(program(total, x, on=on, in_specs=None), x)


@case
def batch_size(rank):
    return _batch(np.ones((4 if rank == 1 else 8, 8), np.float32))


@case
def batch_dtype(rank):
    return _batch(np.ones((8, 8), np.int32 if rank == 1 else np.float32))


@case
def batch_replicas(rank):
    on = mesh((2, 4), np.arange(8).reshape(2, 4).T.ravel())  # both processes have every row
    return _batch(np.full((16, 8), rank, np.float32), on, P("data"))


@case
def batch_own_rows(rank):
    return sv.run(program(total), np.full((16, 8), rank, np.float32))


@case
def batch_kinds(rank):
    values = np.ones((16, 8), np.float32)
    return sv.run(program(total), values if rank == 1 else spread(values))


@case
def batch_refused(rank):
    return sv.run(program(total), np.ones((12 if rank == 1 else 16, 8), np.float32))


# Programs, meshes and options that differ.


@case
def differ_mesh(rank):
    axes = (2, 4) if rank == 1 else (4, 2)
    return sv.run(program(total, on=mesh(axes)))


@case
def differ_order(rank):
    return sv.run(program(total, on=mesh((8,), slice(None, None, -1) if rank == 1 else None)))


@case
def differ_spec(rank):
    on = mesh((4, 2))
    spec = P(None, "model") if rank == 1 else P("data")
    return sv.run(program(total, on=on, in_specs=(spec,)))


@case
def differ_constant(rank):
    noise = np.random.default_rng(rank).standard_normal(8).astype(np.float32)
    return sv.run(program(lambda x: x + noise, name="step"))


@case
def differ_donation(rank):
    return sv.run(program(lambda x: x * 2, donate=(0,) if rank == 1 else (), name="step"))


@case
def differ_option(rank):
    flags = {"xla_cpu_enable_fast_math": rank == 1}
    return sv.compile(program(total), options=flags)


# A process that fails by itself, or does not come.


@case
def fails_in_trace(rank):
    def step(x):
        if rank == 1:
            raise KeyError("no such file on this machine")
        return x

    return sv.run(program(step))


@case
def interrupted(rank):
    def step(x):
        if rank == 1:
            raise KeyboardInterrupt
        return x

    try:
        return sv.run(program(step))
    except KeyboardInterrupt:
        return None


@case
def never_comes(rank):
    os.environ[WAIT] = "2"
    try:
        return None if rank == 1 else sv.run(program(total))
    finally:
        del os.environ[WAIT]
        _wait_for_all("never_comes")


@case
def comes_late(rank):
    """Process 1 makes the call of the case before, which the others gave up."""
    return sv.run(program(total)) if rank == 1 else None


def _wait_for_all(name: str) -> None:
    shared = key_value_store()
    assert shared is not None
    shared.wait_at_barrier(name, 60_000)


@case
def right_again(rank):
    return sv.run(program(jnp.sin))
