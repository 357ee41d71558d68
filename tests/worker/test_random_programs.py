"""A few random programs: no kernel ends, and none is refused that jax compiles."""

from __future__ import annotations

import jax
import pytest

import shardviz as sv
from tests.worker.random_programs import compare, random_program

COUNT, FIRST = 14, 8  # among them two at which XLA and the passes of a plan abort


@pytest.mark.long
def test_no_kernel_ends_and_what_jax_compiles_is_compiled():
    found = compare(COUNT, FIRST)
    assert found["programs"] == COUNT
    assert found["jax compiles"] > 3
    assert found["kernels ended"] == []
    assert found["refused"] == {}


@pytest.mark.parametrize("number", [144, 179, 225])
def test_a_plan_takes_what_python_returned_to_one_device(number, eight_devices):
    made = random_program(number)
    with jax.set_mesh(made.mesh):
        plan = sv.plan(sv.program(made.fn, *made.arrays))
    assert plan.error is None, plan.error
