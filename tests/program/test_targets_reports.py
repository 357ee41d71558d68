"""What a report says of the devices it was compiled for, and of the lines it was compiled from."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from shardviz.base.mesh import make_mesh
from shardviz.compiled import read_collectives as collectives
from shardviz.runs.backend import compile
from shardviz.runs.backend.compile import source_lines
from shardviz.runs.backend.worker.run import compile_program, run_program
from shardviz.runs.cache import ExecutableCache
from tests.program.helpers import array, program

X, W = array("x", (16, 8), "None, b"), array("w", (8, 4), "b")
WORKER, KERNEL = "cpu:8", None


def matmul(x, w):
    return jnp.tanh(x @ w)


@pytest.mark.parametrize("target", [KERNEL, WORKER], ids=["kernel", "worker"])
@pytest.mark.usefixtures("eight_devices")
def test_compiled_and_then_run_from_another_line_keeps_its_sources(target):
    cache, made = ExecutableCache(), program(matmul, X, W)
    compiled = compile_program(made, target, cache=cache)
    ran = run_program(made, target=target, cache=cache)
    assert (compiled.cache_hit, ran.cache_hit) == (False, True)
    assert ran.error is None, ran.error
    for stage in ("partitioned", "collectives"):
        places = [[c.source for c in getattr(r, stage)] for r in (compiled, ran)]
        assert places[0] == places[1]
        assert places[0][0].startswith("test_targets_reports.py:")


def lines_of(fn):
    fresh = functools.partial(fn)  # jax remembers a function that it has traced, lines and all
    return source_lines(jax.jit(fresh).lower(jnp.ones(8)).as_text(debug_info=True))


def test_lines_are_those_of_people_and_not_of_who_asks():
    here = sys._getframe().f_lineno
    made = lambda x: x * jnp.tanh(x)  # noqa: E731
    inline = lines_of(lambda x: x * jnp.tanh(x))
    assert lines_of(made) == lines_of(made)
    tracing = (__file__, str(lines_of.__code__.co_firstlineno + 2))  # no call that still runs
    assert set(lines_of(made)) == {tracing, (__file__, str(here + 1))}
    assert set(inline) == {tracing, (__file__, str(here + 2))}


@pytest.mark.usefixtures("eight_devices")
def test_a_report_names_the_devices_it_is_for_in_mesh_order():
    ids = [7, 6, 5, 4, 3, 2, 1, 0]
    mesh = make_mesh(a=4, b=2, device_ids=ids)
    for target in (KERNEL, WORKER):
        report = compile_program(program(matmul, X, W, mesh=mesh), target, cache=ExecutableCache())
        assert report.mesh.device_ids.ravel().tolist() == ids
        assert report.mesh.shape == mesh.shape
        assert report.roofline is None  # nobody publishes what a simulated device can do


@pytest.mark.usefixtures("eight_devices")
def test_what_only_the_partitioner_knows_is_said_of_the_compiled_collectives_too(monkeypatch):
    read, stages = collectives.read_collectives, iter(["", "Found by the partitioner."])

    def telling(*given):
        cause = next(stages)
        return tuple(replace(c, cause=cause) for c in read(*given))

    monkeypatch.setattr(compile, "read_collectives", telling)
    report = compile_program(program(matmul, X, W), "attached", cache=ExecutableCache())
    assert [c.cause for c in report.collectives] == ["Found by the partitioner."]
