"""Topology: places as libtpu gives them, every way to write one, and the words of refusals."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from shardviz.base.errors import TargetError
from shardviz.hardware.chips import chip_of_kind
from shardviz.hardware.topology import EXAMPLES, Topology, is_described

#: every generation, small and large, flat and deep, one slice and several
SHAPES = [
    "tpu:v2:4x4",
    "tpu:v3:32x32",
    "tpu:v4:2x2x1",
    "tpu:v4:4x4x4",
    "tpu:v4:4x4x4*2",
    "tpu:v5e:1x1",
    "tpu:v5e:4x2",
    "tpu:v5e:16x16",
    "tpu:v5e:4x4*2",
    "tpu:v5p:1x1x1",
    "tpu:v5p:8x8x16",
    "tpu:v5p:4x4x4*3",
    "tpu:v6e:16x16",
    "tpu:v6e:16x16*4",
    "tpu:7x:1x1x1",
    "tpu:7x:4x4x4*2",
    "tpu:7x:8x8x16",
]

# No query to a cloud that is not there, and no lock against other processes with libtpu.
ALONE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
}

ASK_LIBTPU = """
import json, sys
from jax.experimental import topologies
for line in sys.stdin:
    options = json.loads(line)
    devices = topologies.get_topology_desc(**options).devices
    rows = [
        (d.id, d.process_index, getattr(d, "slice_index", 0), d.core_on_chip, *d.coords)
        for d in devices
    ]
    print(json.dumps([devices[0].device_kind, rows]))
"""


@pytest.fixture(scope="module")
def libtpu():
    """Text of a topology to the rows that libtpu gives for it; one subprocess for all of them."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu to compare with: pip install libtpu")
    options = [json.dumps(dict(Topology.parse(text).jax_options)) for text in SHAPES]
    done = subprocess.run(
        [sys.executable, "-c", ASK_LIBTPU],
        input="\n".join(options),
        env={**os.environ, **ALONE},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [line for line in done.stdout.splitlines() if line.startswith("[")]
    return dict(zip(SHAPES, map(json.loads, answers), strict=True))


@pytest.mark.parametrize("text", SHAPES)
def test_every_device_sits_where_libtpu_puts_it(libtpu, text):
    topology = Topology.parse(text)
    kind, rows = libtpu[text]
    assert chip_of_kind(kind) is topology.chip
    ours = np.column_stack(
        [
            topology.device_ids,
            topology.process_indices,
            topology.slice_indices,
            topology.cores,
            topology.coords,
        ]
    )
    assert topology.devices == len(rows)
    np.testing.assert_array_equal(ours, rows)
    assert topology.hosts == topology.process_indices.max() + 1


def counted(topology: Topology) -> list[tuple]:
    """Id, host, slice, core and coordinates of every device, host by host, chip by chip."""
    a, b = (1, 1) if topology.chips == topology.slices == 1 else (2, 2)
    x, y, z = (*topology.shape, 1)[:3]
    rows, host = [], 0
    for number in range(topology.slices):
        first = 100_000 * (number + 1) if topology.slices > 1 else 0
        for hz, hy, hx in itertools.product(range(z), range(0, y, b), range(0, x, a)):
            for cy, cx in itertools.product(range(hy, hy + b), range(hx, hx + a)):
                for core in range(topology.chip.devices):
                    chip = cx + x * (cy + y * hz)
                    device = first + chip * topology.chip.devices + core
                    rows.append((device, host, number, core, cx, cy, hz))
            host += 1
    assert host == topology.hosts
    return rows


@pytest.mark.parametrize("text", SHAPES)
def test_devices_are_numbered_host_by_host(text):
    topology = Topology.parse(text)
    rows = zip(
        topology.device_ids.tolist(),
        topology.process_indices.tolist(),
        topology.slice_indices.tolist(),
        topology.cores.tolist(),
        *topology.coords.T.tolist(),
        strict=True,
    )
    assert list(rows) == counted(topology)


OPTIONS = {
    "tpu:v5e:4x2": {"platform": "tpu", "topology_name": "v5e:4x2"},
    "tpu:v4:4x4x4*2": {
        "platform": "tpu", "topology_name": "v4:4x4x4", "num_slices": 2,
        "chip_config_name": "megacore",
    },
    "tpu:7x:1x1x1": {
        "platform": "tpu", "topology_name": "tpu7x:1x1x1", "chips_per_host_bounds": (1, 1, 1),
    },
    "gpu:h100:2x8": {"platform": "cuda", "topology": "1x2x8"},
}  # fmt: skip


@pytest.mark.parametrize("text", OPTIONS)
def test_jax_is_asked_for_the_topology(text):
    assert Topology.parse(text).jax_options == OPTIONS[text]


def test_gpus_are_numbered_host_by_host():
    topology = Topology.parse("gpu:h100:3x4")
    assert topology.device_ids.tolist() == list(range(12))
    assert topology.process_indices.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert topology.coords.tolist() == [[gpu, host, 0] for host in range(3) for gpu in range(4)]
    assert (topology.cores == 0).all()
    assert (topology.slice_indices == 0).all()
    assert (topology.chips, topology.hosts, topology.host_shape) == (12, 3, (1, 4))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (" TPU : V5E : 4 x 4 ", "tpu:v5e:4x4"),
        ("tpu:v5e:4×4 * 2", "tpu:v5e:4x4*2"),
        ("tpu:v5e:4x4x1", "tpu:v5e:4x4"),
        ("tpu:v5e:4x4*1", "tpu:v5e:4x4"),
        ("tpu:v5p:2x2", "tpu:v5p:2x2x1"),
        ("tpu:tpu7x:4x4x4", "tpu:7x:4x4x4"),
        ("tpu:ironwood:4x4x4", "tpu:7x:4x4x4"),
        ("tpu:trillium:16x16", "tpu:v6e:16x16"),
        ("gpu:H100:2x8", "gpu:h100:2x8"),
    ],
)
def test_what_people_write_is_read(written, read):
    topology = Topology.parse(written)
    assert str(topology) == read
    assert Topology.parse(str(topology)) == topology
    assert hash(Topology.parse(read)) == hash(topology)


def test_examples_are_topologies_as_they_are_written():
    assert [str(Topology.parse(text)) for text in EXAMPLES] == list(EXAMPLES)


# What is typed, and what the error proposes.
REFUSED = {
    "v5e:4x4": "tpu:v5e:4x4",
    "tup:v5e:4x4": "'tpu'",
    "tpu:v5:4x4": "'v5",
    "tpu:h100:4x4": "'v2', 'v3'",
    "gpu:v5e:2x8": "'a100', 'h100'",
    "tpu:v5e:4x": "",
    "tpu:v5e:4x4*two": "",
    "tpu:v5e:0x4": "",
    "tpu:v5e:4x4x4": "tpu:v5e:4x4.",
    "tpu:v5p:8": "tpu:v5p:4x4x4.",
    "tpu:v5e:3x4": "tpu:v5e:4x4.",
    "tpu:v5e:4x3": "tpu:v5e:4x4.",
    "tpu:v5e:1x2": "tpu:v5e:2x2.",
    "tpu:v5p:1x1x2": "tpu:v5p:2x2x2.",
    "tpu:v5e:16x32": "*2",
    # A pod has 16 x 16 chips: an axis of 32 is too long even in a slice of 256.
    "tpu:v5e:8x32": "*2",
    "tpu:v5e:32x8": "*2",
    "tpu:v5e:32x4": "*2",
    "tpu:v5e:4x4*0": "start at 1",
    # The limit is 262,144 chips: 1,024 slices of 256.
    "tpu:v5e:16x16*1025": "A topology can have at most 262,144 chips; got 262400.",
    "tpu:7x:32x32x32": "*2",
    "tpu:v5p:16x20x28*99": "",
    "gpu:h100:16": "gpu:h100:2x8.",
    "gpu:h100:2x2x8": "gpu:h100:2x8.",
    "gpu:h100:2x8*2": "gpu:h100:2x8",
    "gpu:h100:1x16": "gpu:h100:2x8",
    "__import__('os').system('true')": "",
    "tpu" * 100: "",
    None: "",
    16: "",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_is_refused_with_what_can(text):
    with pytest.raises(TargetError) as refused:
        Topology.parse(text)
    assert REFUSED[text] in str(refused.value)


@pytest.mark.parametrize(
    ("text", "wraps"),
    [
        ("tpu:v5e:4x4", (False, False)),
        ("tpu:v5e:8x16", (False, True)),
        ("tpu:v6e:16x16", (True, True)),
        ("tpu:v3:32x32", (True, True)),
        ("tpu:v4:2x2x4", (False, False, False)),
        ("tpu:v4:4x4x4", (True, True, True)),
        ("tpu:v5p:8x8x16", (True, True, True)),
        ("tpu:v5p:4x4x6", (False, False, False)),
        ("tpu:7x:4x4x8", (True, True, True)),
        ("gpu:h100:2x8", (False, False)),
    ],
)
def test_axes_close_to_rings_as_the_scaling_book_says(text, wraps):
    assert Topology.parse(text).wraps == wraps


def test_limits_are_262144_chips_and_100_letters():
    assert Topology.parse("tpu:v5e:16x16*1024").chips == 262_144
    padded = "tpu:v5e:4x4" + " " * 89
    assert len(padded) == 100
    assert str(Topology.parse(padded)) == "tpu:v5e:4x4"
    with pytest.raises(TargetError, match="short text"):
        Topology.parse(padded + " ")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("tpu:v5e:4x4", "TPU v5e 4×4"),
        ("tpu:v5p:4x4x8*2", "TPU v5p 4×4×8 × 2 slices"),
        ("tpu:v6e:16x16*3", "TPU v6e (Trillium) 16×16 × 3 slices"),
        ("gpu:h100:2x8", "NVIDIA H100 SXM 2×8"),
    ],
)
def test_titles_count_slices(text, title):
    assert Topology.parse(text).title == title


@pytest.mark.parametrize(
    ("text", "described"),
    [
        ("tpu:v5e:4x4", True),
        ("GPU : h100 : 2x8", True),
        ("tpu:nothing:at all", True),
        ("tpu:v5e", False),
        ("gpu:2", False),
        ("cpu:v5e:4x4", False),
        ("mesh:a:b", False),
    ],
)
def test_described_hardware_has_a_platform_and_two_colons(text, described):
    assert is_described(text) is described


# Cloud TPU's pages on each generation give these topologies for these types; of TPU7x, xpk's table.
CLOUD_NAMES = {
    "v3-32": "tpu:v3:4x4",
    "v4-8": "tpu:v4:2x2x1",
    "v5p-8": "tpu:v5p:2x2x1",
    "v5p-64": "tpu:v5p:2x4x4",
    "v5e-8": "tpu:v5e:2x4",
    "v5litepod-16": "tpu:v5e:4x4",
    " TPU-V6E-256 ": "tpu:v6e:16x16",
    "tpu7x-128": "tpu:7x:4x4x4",
    "8xH100": "gpu:h100:1x8",
    "12xB200": "gpu:b200:2x6",
    "11xH100": "gpu:h100:11x1",
    "16 × h200": "gpu:h200:2x8",
}


@pytest.mark.parametrize(("name", "topology"), CLOUD_NAMES.items())
def test_clouds_names_are_read(name, topology):
    assert str(Topology.parse(name)) == topology
    assert is_described(name)


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("v5e-3", "3 chips of TPU v5e"),
        ("v5p-7", "7 cores of TPU v5p"),
        ("v5p-9", "9 cores of TPU v5p"),
        ("0xh100", "0 GPUs of NVIDIA H100"),
        ("v5e-0", "0 chips"),
        ("v6e-999999999", "999,999,999 chips"),
    ],
)
def test_a_clouds_name_of_no_slice_says_so(name, counted):
    assert is_described(name)
    with pytest.raises(TargetError, match="tpu:v5e") as refused:
        Topology.parse(name)
    assert counted in str(refused.value)


@pytest.mark.parametrize("word", ["cpu-8", "x-1", "data=4", "8x8", "gpu", "tpu", "v5e", ""])
def test_other_words_are_no_clouds_names(word):
    assert not is_described(word)
