"""Programs that do not fit: what fills the memory, compared with jax's own compile."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="the TPU compiler is not installed"
)
GIB, TARGET, HERE = 1 << 30, "tpu:v5e:2x2", Path(__file__).name


def layer(h, w):
    return h + jax.nn.gelu(h @ w[0]) @ w[1], None


def scanned(ws, x):
    return jax.grad(lambda ws: jnp.mean(jax.lax.scan(layer, x, ws)[0] ** 2))(ws)


def unrolled(ws, x):
    def loss(ws):
        h = x
        for i in range(4):
            h, _ = layer(h, (ws[0][i], ws[1][i]))
        return jnp.mean(h**2)

    return jax.grad(loss)(ws)


def scores(q, k):
    return jax.nn.softmax(q @ k.T) @ k


def sharded(fn, *arrays):
    return sv.program(fn, *arrays, mesh="data=4")


def x_of(rows, width=1024):
    return sv.array("x", (rows, width), spec="data")


def weights(layers):
    up, down = (layers, 1024, 4096), (layers, 4096, 1024)
    return sv.array("up", up), sv.array("down", down)


# name: a program, what fills the memory, and the GiB of one of the largest values
CASES = {
    "a scan": (
        sharded(scanned, weights(16), x_of(1 << 17)), "loops", 8.0,
    ),
    "forward only": (
        sharded(scores, x_of(1 << 18, 128), sv.array("k", (1 << 18, 128))), "value", 64.0,
    ),
    "arguments": (
        sharded(jnp.dot, sv.array("a", (1 << 16, 1 << 16)), sv.array("b", (1 << 16, 128))),
        "arguments", 16.0,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def case(request):
    program, code, size = CASES[request.param]
    return program, sv.compile(program, target=TARGET), code, size


def test_what_fills_the_memory(case):
    _, report, code, size = case
    large = report.too_large
    assert report.error.lacks_memory
    assert not report.ok
    assert (large.code, large.fit.ok) == (code, False)
    # What the compiler leaves of 16 GiB.
    assert (large.fit.capacity, large.fit.reserved) == (15.75 * GIB, 0.25 * GIB)
    assert "TPU v5e has 16 GiB, 15.8 GiB of it usable." in str(large.fit)
    assert large.values[0].bytes == pytest.approx(size * GIB, rel=0.3)
    # Every byte that is needed is of some kind.
    assert sum(large.kinds.values()) == pytest.approx(report.memory.peak.bytes, rel=1e-6)
    if code == "loops":
        line = scanned.__code__.co_firstlineno + 1
        assert large.loops == (f"{HERE}:{line}",)
    first = sv.text(report).splitlines()[0]
    assert "does not fit" in first


def test_a_failed_report_says_so_in_place_of_its_collectives(case):
    _, report, _, _ = case
    with pytest.raises(sv.ShardvizError, match="does not fit"):
        sv.changes(report)


def test_it_is_a_broken_expectation(case):
    program, report, _, _ = case
    for subject in (program, report):
        with pytest.raises(sv.ContractError) as broken:
            sv.expect(subject).fits(TARGET)
        fact = broken.value.args[0]
        assert fact.code == "too large"
        assert fact.fit.needed > fact.fit.capacity
    sv.expect(report).at_most("1 TiB", per="device")
    with pytest.raises(sv.ContractError):
        sv.expect(report).at_most("1 GiB", per="device")


OF_JAX = """
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(topologies.get_topology_desc("v5e:2x2", "tpu").devices), ("data",))
def struct(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))
q, k = struct((1 << 18, 128), "data"), struct((1 << 18, 128))
try:
    jax.jit(lambda q, k: jax.nn.softmax(q @ k.T) @ k).lower(q, k).compile()
except Exception as error:
    print(error)
"""


def test_the_bytes_are_those_of_jaxs_own_error():
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }  # fmt: skip
    said = subprocess.run(
        [sys.executable, "-c", OF_JAX], capture_output=True, text=True, env=environment
    ).stdout
    needed, available = re.findall(r"\(([\d.]+)G\)", said)
    report = sv.compile(CASES["forward only"][0], target=TARGET)
    assert report.fit.needed / GIB == pytest.approx(float(needed), abs=0.01)
    assert report.fit.capacity / GIB == pytest.approx(float(available), abs=0.01)


@pytest.mark.parametrize(
    ("fn", "code"),
    [(scanned, "loops"), pytest.param(unrolled, "layers", marks=pytest.mark.long)],
)
def test_a_gpu_compiles_what_it_has_no_room_for(fn, code):
    program = sharded(fn, weights(4), x_of(1 << 22))
    report = sv.compile(program, target="gpu:h100:1x4")
    if report.error is not None and report.error.stage == "target":
        pytest.skip("the GPU compiler is not installed")
    assert report.error is None
    assert not report.ok
    assert report.too_large.code == code
    assert report.too_large.values[0].is_saved
    assert "does not fit" in sv.text(report).splitlines()[0]
    with pytest.raises(sv.ContractError):
        sv.expect(report).fits()


def test_simulated_cpus_are_not_judged_by_the_memory_of_this_machine():
    report = sv.compile(CASES["a scan"][0], target="cpu:4")
    assert report.ok
    assert report.memory.temporaries > 30 * GIB
    assert (report.fit.ok, report.too_large) == (None, None)


def test_what_fits_has_nothing_to_say():
    report = sv.compile(sharded(scores, x_of(256, 128), sv.array("k", (256, 128))), target=TARGET)
    assert report.ok
    assert report.too_large is None
    sv.expect(report).fits()
