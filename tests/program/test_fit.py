"""Whether a program fits, and what is named where it does not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.axis_rules.fit import Fit, Uncounted
from shardviz.base.errors import OutOfMemory
from shardviz.base.layout import lay_out
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.compiled.report import Memory, Report
from shardviz.compiled.roofline import roofline
from shardviz.hardware.chips import find_chip
from shardviz.pictures import to_text
from shardviz.programs.backend.worker.exits import WorkerError
from shardviz.programs.failure import Exited, TookTooMuchMemory
from shardviz.programs.program import Program
from shardviz.runs.backend.runner import Job
from shardviz.runs.cache import ExecutableCache

MESH, GIB = make_mesh(data=4, model=2), 1 << 30
WIDE = lay_out((32768, 32768), Spec(), MESH)
SPLIT = lay_out((32768, 32768), Spec.parse("data, model"), MESH)
LAYOUTS = {"mu.0.w": WIDE, "mu.1.w": WIDE, "x": SPLIT}


def report(needed: int, capacity: int | None, chip: str = "", layouts=LAYOUTS) -> Report:
    found = Report("f", "t", memory=Memory(arguments=needed, capacity=capacity), in_layouts=layouts)
    return found.replace(roofline=roofline(found, find_chip(chip))) if chip else found


FITS = {
    "it fits": (report(9 * GIB, 16 * GIB), "fits", 16 * GIB, ""),
    "on a chip": (report(9 * GIB, 16 * GIB, "v5e"), "fits", 16 * GIB, "TPU v5e"),
    "of a chip's own": (report(9 * GIB, None, "v5e"), "fits", 16 * GIB, "TPU v5e"),
    "just": (report(GIB, GIB), "fits", GIB, ""),
    "too large": (report(21 * GIB, 16 * GIB, "v5e"), "too large", 16 * GIB, "TPU v5e"),
    "the capacity is not known": (report(GIB, None), "unknown", None, ""),
}


@pytest.mark.parametrize("case", FITS)
def test_one_value_says_whether_it_fits(case):
    found, code, capacity, device = FITS[case]
    fit = found.fit
    assert fit is not None
    assert (fit.code, fit.capacity, fit.device) == (code, capacity, device)
    assert (str(fit) in to_text(found)) == (code != "unknown")
    assert found.roofline is None or (found.roofline.fits, found.roofline.fit) == (fit.ok, fit)


def test_nothing_is_said_where_the_compiler_says_nothing():
    assert Report("f", "t", memory=Memory(capacity=GIB)).fit is None


@pytest.mark.parametrize(
    ("fit", "code"),
    [
        (Fit(GIB, 2 * GIB, uncounted=Uncounted(3, GIB)), "unknown"),
        (Fit(3 * GIB, 2 * GIB, uncounted=Uncounted(3, GIB)), "too large"),
        (Fit(GIB, 2 * GIB, free=GIB // 2), "not now"),
        (Fit(GIB, None, free=GIB), "unknown"),
        (Fit(GIB, None, free=GIB - 1), "not now"),
    ],
)
def test_what_is_not_counted_or_not_free_decides(fit, code):
    assert fit.code == code


def test_the_largest_arrays_are_named_with_their_split():
    arrays = report(21 * GIB, 16 * GIB).largest_arrays.arrays
    assert [(a.name, a.count, a.layout) for a in arrays] == [
        ("mu.{0..1}.w", 2, WIDE), ("x", 1, SPLIT),
    ]  # fmt: skip


ERRORS = {
    "the compiler": (RuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in hbm."), True),
    "a refused run": (OutOfMemory("It needs too much."), True),
    "Python": (MemoryError(), True),
    "a worker": (WorkerError(TookTooMuchMemory(used=GIB, limit=GIB)), True),
    "killed": (WorkerError(Exited(stage="run", code=-9)), False),
    "another error": (ValueError("The shapes do not fit."), False),
}


@pytest.mark.parametrize(("error", "lacks"), ERRORS.values(), ids=ERRORS)
def test_an_error_for_lack_of_memory_names_the_largest_arrays(error, lacks):
    job = Job(Program(abs, (), MESH), cache=ExecutableCache())
    job.note(in_layouts=LAYOUTS)
    largest = job.report.largest_arrays

    def fail() -> None:
        raise error

    job.follow(fail)
    found = job.report.error
    assert found is not None
    assert found.lacks_memory is lacks
    assert found.largest_arrays == (largest if lacks else None)
    assert (str(largest) in found.message) is lacks


def recomputed_step(weights, x):
    def layer(x, weights):
        up, down = weights
        return x + jnp.tanh(x @ up) @ down, None

    def loss(weights):
        return jnp.mean(jax.lax.scan(jax.checkpoint(layer), x, weights)[0] ** 2)

    return jax.tree.map(jnp.subtract, weights, jax.grad(loss)(weights))


@pytest.mark.long
@pytest.mark.parametrize(("rows", "accepted"), [(900_000, True), (930_000, False)])
def test_a_program_fits_a_tpu_if_its_compiler_accepts_it(rows, accepted):
    up, down = sv.array("up", (16, 1024, 4096)), sv.array("down", (16, 4096, 1024))
    x = sv.array("x", (rows, 1024), spec="data")
    program = sv.program(recomputed_step, (up, down), x, mesh="data=4")
    report = sv.compile(program, target="tpu:v5e:2x2")
    assert (report.error is None) is accepted
    memory, fit = report.without_error.memory, report.without_error.fit
    assert fit.ok is accepted
    parts = memory.arguments + memory.outputs + memory.temporaries - (memory.aliased or 0)
    assert parts == memory.peak.bytes
