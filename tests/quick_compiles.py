"""Compiler options for simulated CPUs that skip optimisations, to compile much faster.

For tests of the placement and the values of arrays, not of compiled modules.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import jax


@functools.cache
def quick_options() -> dict[str, Any]:
    """The options with which this jaxlib compiles for CPUs in the least time."""
    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    older = {"xla_cpu_use_fusion_emitters": False}  # jaxlib 0.12 has no other emitters
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.jit(lambda x: x).lower(1.0).compile(compiler_options=older)
        options |= older
    return options
