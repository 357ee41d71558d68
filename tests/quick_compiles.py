"""Compiles for simulated CPUs that take a fraction of the time, since nothing in them is optimised.

For tests of where values are and whether they are right, not of what the compiler makes of them.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import jax


@functools.cache
def quick_options() -> dict[str, Any]:
    """Options of the compiler for CPUs: the quickest that this jaxlib has."""
    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    older = {"xla_cpu_use_fusion_emitters": False}  # jaxlib 0.12 has no other emitters
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.jit(lambda x: x).lower(1.0).compile(compiler_options=older)
        options |= older
    return options
