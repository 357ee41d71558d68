"""The least times against those that the TPU compiler's own cost model expects.

libtpu's `optimal_seconds` comes from Google's figures of each chip, with some losses taken off. A
least time may never be longer, and should not be much shorter.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from shardviz.compiled.report import Report
from shardviz.compiled.roofline import roofline
from shardviz.hardware.topology import Topology

# Each compile takes seconds; v2 has no published rates, and the others were compared by hand.
CHIPS = ("tpu:v3:2x2", "tpu:v4:2x2x1", "tpu:v5e:2x2")

# No query to a cloud that is not there, and no lock against other processes with libtpu.
ALONE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
}

ASK_LIBTPU = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
programs = {
    "memory": (lambda a, b: a + b, (1 << 26,)),
    "compute": (lambda a, b: a @ b, (8192, 8192)),
}
for line in sys.stdin:
    devices = topologies.get_topology_desc(**json.loads(line)).devices
    one = NamedSharding(Mesh(np.array(devices[:1]), ("x",)), PartitionSpec())
    found = {}
    for name, (function, shape) in programs.items():
        given = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=one)
        cost = jax.jit(function).lower(given, given).compile().cost_analysis()
        found[name] = {k: cost[k] for k in ("flops", "bytes accessed", "optimal_seconds")}
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def expected():
    """Text of a topology to the costs of two programs, as libtpu reckons them."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu to compare with: pip install libtpu")
    options = [json.dumps(dict(Topology.parse(text).jax_options)) for text in CHIPS]
    done = subprocess.run(
        [sys.executable, "-c", ASK_LIBTPU],
        input="\n".join(options),
        env={**os.environ, **ALONE},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(zip(CHIPS, map(json.loads, lines), strict=True))


@pytest.mark.parametrize("part", ["memory", "compute"])
@pytest.mark.parametrize("text", CHIPS)
def test_least_times_are_a_little_below_those_of_the_compiler(expected, text, part):
    cost = expected[text][part]
    found = roofline(Report("f", text, cost=cost), text)
    assert found.bound == part
    assert 0.7 * cost["optimal_seconds"] < found.seconds <= 1.001 * cost["optimal_seconds"]
