"""What ended a kernel, or could: after a plan, in a Python that has asked for nothing."""

from __future__ import annotations

import pytest

from tests.program.helpers import in_new_python

BEGIN = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
import shardviz as sv

def of(fn, shape, spec, mesh):
    made = sv.program(fn, sv.array("x", shape, spec=spec), mesh=mesh)
    plan = sv.plan(made)
    report = sv.run(made)
    print(plan.error, "|", report.error or report.ok, "|", report.target)
"""
PROGRAMS = {
    # XLA for CPUs checks the layout of an FFT, and aborts where it is split.
    "fft over a split axis": (
        'of(lambda x: jnp.abs(jnp.fft.fft(x, axis=2)), (8, 8, 8), "None, None, data", "data=4")',
        None,
    ),
    # jaxlib 0.12 aborts in SplitShardingDimension.
    "another tiling of six devices": (
        "other = lambda x: jax.lax.with_sharding_constraint(x, P('b', 'a'))\n"
        "of(other, (12, 12), 'a, b', 'a=2, b=3')",
        None,
    ),
    "a callback that raises": (
        """
def boom(v):
    raise ValueError("boom")
of(lambda x: jax.pure_callback(boom, x, x) * 2, (8, 4), "data", "data=4")""",
        "boom",
    ),
}


_MARK = "\0"  # before the name of each
NAMES = {"not ASCII": "é", "a backslash": "a\\\\b"}
NAMED = """
mesh = sv.mesh({{"{name}": 4, "model": 2}})
print(sv.layout((8, 4), P("{name}"), mesh).shard_shape)
made = sv.program(jnp.sin, sv.array("x", (8, 4), "batch _"), mesh=mesh, rules=[("batch", "{name}")])
report = sv.run(made)
print(report.error is None or "cannot compile for a mesh axis named" in report.error.message)
"""
FOLLOWING = """
of(jnp.sin, (8, 4), "data", "data=4")
print(jax.device_count())
"""


@pytest.fixture(scope="module")
def printed() -> dict[str, list[str]]:
    """What each prints, one after the other: the kernel has to live until the last."""
    codes = {name: code for name, (code, _) in PROGRAMS.items()}
    codes |= {name: NAMED.format(name=axis) for name, axis in NAMES.items()}
    parts = [f"print({_MARK + name!r})\n{code}{FOLLOWING}" for name, code in codes.items()]
    _, *said = in_new_python(f"print()\n{BEGIN}{''.join(parts)}").split(_MARK)
    return {name: lines for name, *lines in map(str.splitlines, said)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_kernel_goes_on(name, printed):
    first, second, devices = printed[name]
    assert second == "None | True | CPU × 4, simulated"
    assert devices == "1"
    assert first.startswith("None | "), first
    if words := PROGRAMS[name][1]:
        assert words in first


@pytest.mark.parametrize("name", NAMES)
def test_names_that_a_compiler_cannot_carry_end_nothing(name, printed):
    shape, said, following, devices = printed[name]
    assert shape == "(2, 4)"
    assert said.startswith("True"), said
    assert following == "None | True | CPU × 4, simulated"
    assert devices == "1"
