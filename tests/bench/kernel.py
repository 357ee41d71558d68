"""Random programs, planned and then run: does the kernel live, and is each as plain jit has it?

    python -m tests.bench.kernel 2000         the first 2,000
    python -m tests.bench.kernel 500 600      those from 500 on

Every program is planned and run with `sv.run`, which is in the worker. Values are compared with
the same function under plain `jax.jit` on the devices of this process, and so are the collectives,
which are counted in the text that jax compiled by a regular expression of its own. A kernel that
ends, ends this script.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

import shardviz as sv
from tests.stages.programs import Case
from tests.stages.random_programs import program

_DEVICES = 8
# An instruction that moves data; of an asynchronous pair the start.
_COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|ragged-all-to-all)"
    r"(?:-start)?\("
)


def plain(case: Case, values: list[np.ndarray]) -> tuple[Any, Counter[str]]:
    """The results under plain `jax.jit`, and the collectives in the text that it compiled."""
    made = case.program(case.meshes[0])
    mesh = Mesh(
        np.array(jax.devices()[: made.mesh.size]).reshape(made.mesh.axis_sizes),
        made.mesh.axis_names,
    )
    with jax.set_mesh(mesh):
        placed = [
            jax.device_put(value, NamedSharding(mesh, request.spec.to_jax()))
            for value, request in zip(values, made.requests, strict=True)
        ]
        out = None
        if case.out is not None:
            out = NamedSharding(mesh, made.out_specs.to_jax())
        compiled = jax.jit(case.fn, out_shardings=out).lower(*placed).compile()
        found = Counter(_COLLECTIVE.findall(compiled.as_text()))
        return jax.device_get(compiled(*placed)), found


def compare(case: Case) -> list[str]:
    """What differs between a program in shardviz and under plain jit, in words."""
    made = case.program(case.meshes[0])
    rng = np.random.default_rng(0)
    values = [rng.uniform(0.1, 1, a.shape).astype(a.dtype) for a in made.arrays]
    plan = sv.plan(made)
    report = sv.run(made, *values)
    try:
        expected, collectives = plain(case, values)
    except jax.errors.JaxRuntimeError:
        return [] if report.error is not None else ["plain jit refuses what sv.run runs"]
    if plan.error or report.error:
        return [f"plan: {plan.error}; run: {report.error}"]
    differences = [f"{c.name}: {c.detail}" for c in report.checks if c.ok is False]
    for ours, theirs in zip(
        jax.tree.leaves(report.outputs), jax.tree.leaves(expected), strict=True
    ):
        if not np.allclose(ours, theirs, rtol=1e-4, atol=1e-4, equal_nan=True):
            differences.append(f"values differ by {np.max(np.abs(np.asarray(ours) - theirs))}")
    counted = Counter(c.kind for c in report.collectives or ())
    if counted != collectives:
        differences.append(f"collectives {dict(counted)}, plain jit has {dict(collectives)}")
    return differences


def run(start: int, stop: int) -> int:
    """Compares the programs from `start` to `stop`; how many differ."""
    jax.config.update("jax_num_cpu_devices", _DEVICES)
    wrong = 0
    for seed in range(start, stop):
        differences = compare(program(seed))
        wrong += bool(differences)
        for words in differences:
            print(f"random {seed}: {words[:300]}", flush=True)
    print(f"{stop - start:,} programs, {wrong} that differ, and the kernel lives")
    return wrong


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]] or [2000]
    sys.exit(bool(run(*numbers) if len(numbers) == 2 else run(0, numbers[0])))
