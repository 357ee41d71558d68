"""A program in the worker says and does what it says and does here."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from shardviz.base.mesh import make_mesh
from shardviz.runs.backend.worker.run import compile_program, run_program
from shardviz.runs.cache import ExecutableCache
from tests.program.helpers import array, each_in_new_jax, in_new_python, program

X, W = array("x", (16, 8), "a"), array("w", (8, 4), "None, b")
EIGHT = {"target": "cpu:8"}


def matmul(x, w):
    return jnp.tanh(x @ w)


def loss(x, w):
    return jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)


def scanned(x, w):
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w @ w.T), c.sum()), x, None, length=3)


TABLE = np.arange(8 * 4, dtype=np.float32).reshape(8, 4)


def closed_over(x):
    return x @ TABLE


def manual(x):
    return jax.shard_map(lambda b: jax.lax.psum(b, "a"), in_specs=P("a"), out_specs=P())(x)


def of_tree(x, w):
    return {"out": x @ w, "both": (x.sum(), [w])}


def of_keys(k):
    return jax.vmap(lambda key: jax.random.uniform(key, (4,)))(k)


def factor(x):
    return jnp.linalg.cholesky(x @ x.T + 16 * jnp.eye(16))


def integers(x):
    return x * 2 + 1


EXPLICIT = make_mesh({"a": 4, "b": 2}, axis_types="Explicit")
PROGRAMS = {
    "gradient": program(loss, X, W),
    "scan": program(scanned, X, W),
    "closed-over numbers": program(closed_over, X),
    "shard_map": program(manual, X),
    "explicit axes": program(matmul, X, W, mesh=EXPLICIT),
    "out_specs": program(matmul, X, W, out_specs="b, a"),
    "donated": program(integers, X, donate=0),
    "trees": program(of_tree, X, W),
    "random keys": program(of_keys, array("k", (8,), "a", "key<fry>")),
    "LAPACK": program(factor, X),
    "named devices": program(matmul, X, W, mesh=make_mesh(a=4, b=2, device_ids=range(7, -1, -1))),
}


@pytest.mark.parametrize("tested", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.usefixtures("eight_devices")
def test_a_run_in_the_worker_is_a_run_here(tested):
    in_worker = run_program(tested, cache=ExecutableCache(), **EIGHT)
    here = run_program(tested, cache=ExecutableCache())
    assert in_worker.error is None, in_worker.error
    assert (in_worker.ok, in_worker.target) == (here.ok, here.target)
    assert [(c.name, c.ok) for c in in_worker.checks] == [(c.name, c.ok) for c in here.checks]
    for stage in ("partitioned", "collectives"):
        collectives = [
            [(c.kind, c.mesh_axes, c.bytes_per_device, c.op, c.source) for c in getattr(r, stage)]
            for r in (in_worker, here)
        ]
        assert sorted(collectives[0]) == sorted(collectives[1]), stage
    assert in_worker.memory.replace(free_now=0) == here.memory.replace(free_now=0)
    assert in_worker.cost == pytest.approx(here.cost)
    assert list(in_worker.in_layouts) == list(here.in_layouts)
    assert jax.tree.structure(in_worker.outputs) == jax.tree.structure(here.outputs)
    for name, layout in here.out_layouts.items():
        assert in_worker.out_layouts[name].indices() == layout.indices()
    for one, other in zip(*map(jax.tree.leaves, (in_worker.outputs, here.outputs)), strict=True):
        assert one.dtype == other.dtype
        assert one.sharding.is_equivalent_to(other.sharding, one.ndim)
        np.testing.assert_allclose(
            np.asarray(one, np.float32), np.asarray(other, np.float32), rtol=1e-6
        )


@pytest.mark.usefixtures("eight_devices")
def test_values_that_are_given_are_those_that_are_used():
    x = np.arange(128, dtype=np.float32).reshape(16, 8)
    report = run_program(program(integers, X), x, cache=ExecutableCache(), repeat=3, **EIGHT)
    np.testing.assert_array_equal(report.outputs, x * 2 + 1)
    assert len(report.runs_s) == 3


@pytest.mark.usefixtures("eight_devices")
def test_the_cache_finds_what_the_worker_compiled():
    cache, made = ExecutableCache(), program(matmul, X, W)
    reports = [compile_program(made, cache=cache, **EIGHT) for _ in range(2)]
    reports.append(run_program(made, cache=cache, **EIGHT))
    reports.append(run_program(made.replace(options={"donate": (0,)}), cache=cache, **EIGHT))
    assert [r.cache_hit for r in reports[:2]] == [False, True]
    assert [r.cache_hit for r in reports[2:]] == [True, False]
    assert reports[0].compile_s > 0 == reports[1].compile_s
    assert len({r.key for r in reports[:3]}) == 1 < len({r.key for r in reports})
    sources = [{c.source for c in r.collectives} for r in reports]
    assert sources[0] == sources[1] == sources[2] != {""}
    cache.clear()
    assert not run_program(made, cache=cache, **EIGHT).cache_hit


@pytest.mark.usefixtures("eight_devices")
def test_closed_over_numbers_are_in_the_key():
    made, keys = program(lambda x: x @ jnp.asarray(TABLE), X), set()
    for change in (0, 1):
        TABLE[3, 3] += change
        keys.add(compile_program(made, cache=ExecutableCache(), **EIGHT).key)
    assert len(keys) == 2


@pytest.mark.usefixtures("eight_devices")
def test_a_fault_in_the_function_is_reported_with_its_line():
    report = compile_program(program(lambda x: x @ x, X), cache=ExecutableCache(), **EIGHT)
    assert report.error is not None
    assert (report.error.stage, "dot_general" in report.error.message) == ("trace", True)
    assert report.error.source.startswith("test_worker.py:")


@pytest.mark.parametrize("target", ["cpu:8", "attached"])
@pytest.mark.usefixtures("eight_devices")
def test_an_option_that_is_no_text_and_no_number_is_refused(target):
    report = compile_program(program(integers, X, xla_o=[1]), target, cache=ExecutableCache())
    assert report.error is not None
    assert report.error.cause is None  # our own words, and not the compiler's


# It prints the worker's process id last.
FRESH = """
import jax, jax.numpy as jnp, os
import shardviz as sv
from shardviz.programs.backend.worker.process import workers
{begin}
def f(x):
    {noise}
    return x * 2
p = sv.program(f, sv.array("x", (64, 4), spec="a"), mesh="a={size}")
r = sv.run(p)
print(r.error or r.ok, jax.device_count(), len(r.checks), *workers.pids)
"""
KERNELS = {
    "enough were asked for": ("jax.config.update('jax_num_cpu_devices', 8)", "pass", 8, "8 3"),
    "it calls Python": ("", "jax.debug.callback(lambda v: None, x)", 8, "1 3"),
}


@pytest.fixture(scope="module")
def kernels() -> dict[str, tuple[int, str]]:
    codes = {
        name: FRESH.format(begin=begin, noise=noise, size=size)
        for name, (begin, noise, size, _) in KERNELS.items()
    }
    return each_in_new_jax(codes)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_keeps_the_devices_it_has(name, kernels):
    status, printed = kernels[name]
    assert status == 0, printed
    assert printed.splitlines()[-1].startswith(f"True {KERNELS[name][-1]} ")


def test_a_fresh_kernel_keeps_its_one_device_and_no_worker_outlives_it():
    said = in_new_python(FRESH.format(begin="", noise="pass", size=64))
    *printed, pid = said.splitlines()[-1].split()
    assert printed == ["True", "1", "3"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
