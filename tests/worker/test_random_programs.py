"""A few random programs: no kernel ends, and none is refused that jax compiles."""

from __future__ import annotations

from tests.worker.random_programs import compare

COUNT, FIRST = 8, 14  # among them one at which XLA and a plan's passes abort


def test_no_kernel_ends_and_what_jax_compiles_is_compiled():
    found = compare(COUNT, FIRST)
    assert found["programs"] == COUNT
    assert found["jax compiles"] > 2
    assert found["kernels ended"] == []
    assert found["refused"] == {}
