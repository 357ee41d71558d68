"""Pictures of reshards: no byte is lost in them, however many devices there are."""

from __future__ import annotations

import numpy as np
import pytest

import shardviz as sv
from shardviz.base.format import bytes_text
from shardviz.move.draw.reshard import MOST_SIDE, draw_reshard
from shardviz.move.reshard import Reshard

TREE = [("w", (2048, 2048), "a b"), ("v", (2048, 512), "a b"), ("step", (), "")]


def reshard(devices: int, hosts: int, to: str = "b") -> Reshard:
    mesh = sv.mesh(x=devices, processes=hosts)
    return sv.reshard(TREE, (mesh, [("a", "x")]), (mesh, [(to, "x")]))


def matrix(result: Reshard):
    """The tiles of the matrix, and the words of each."""
    inside = draw_reshard(result).panels[0][2]
    return inside, [inside.tiles.label(n) for n in range(len(inside.tiles))]


@pytest.mark.parametrize(
    ("devices", "hosts", "rows", "first"),
    [
        (8, 2, 8, "device 0"),
        (64, 8, 64, "device 0"),
        (1024, 128, 64, "hosts 0–1"),
        (256, 32, 32, "host 0"),
        (128, 1, 64, "devices 0–1"),
    ],
)
def test_of_many_devices_those_of_a_host_are_one_row(devices, hosts, rows, first):
    result = reshard(devices, hosts)
    inside, _ = matrix(result)
    assert rows <= MOST_SIDE
    names = [v.text for v in inside.labels if v.anchor == "end" and v.role == "tick"]
    assert names[0] == first
    # An all-to-all: everybody sends to everybody, and as much.
    among_themselves = first.startswith("device ")
    assert len(inside.tiles) == rows * (rows - among_themselves)
    each = result.bytes_moved // (devices * (devices - 1)) * (devices // rows) ** 2
    # In a larger matrix the squares have no space for it.
    assert inside.tiles.label(0) == bytes_text(each) * (rows == 8)


def test_squares_are_the_moves():
    result = sv.reshard([("w", (64, 64), None)], ("x=2, y=4", "(x, y)"), ("x=4, y=2", "y, x"))
    inside, amounts = matrix(result)
    source, target = np.nonzero(result.moves)
    assert amounts == [f"{n} B" for n in result.moves[source, target]]
    assert inside.tiles.device.tolist() == result.device_ids[source].tolist()


def test_amounts_of_many_sizes_have_few_shades():
    rows = [(f"w{n}", (8 << n,), None) for n in range(12)]
    # Each array from one device to another one.
    devices = [sv.mesh("x=1", device_ids=[n]) for n in range(13)]
    layouts = [
        {f"w{n}": sv.layout((8 << n,), "", devices[n + side]) for n in range(12)} for side in (0, 1)
    ]
    result = sv.reshard(rows, *layouts)
    inside, amounts = matrix(result)
    most = {entry.group: entry.text for entry in inside.legend}
    assert len(most) <= 5
    assert min(most) == 1  # the palest is for nothing
    assert set(inside.tiles.group.tolist()) <= set(most)
    assert len(amounts) == len(result.sends)
    sizes = result.sends[:, 2]
    for group, text in most.items():
        here = sizes[inside.tiles.group == group]
        assert not len(here) or text == f"up to {bytes_text(int(here.max()))}"


MANY_LAYERS = """\
33 arrays from x=8 to x=8: 3.5 MiB sent.
1.5 MiB within hosts, 2 MiB between 2 hosts.
All of it is for layers/{0..31}/w, from P('x', None) to P(None, 'x'), as
  all-to-alls.
The fullest device holds 512 KiB before and 512 KiB after. While both layouts
  are in memory, a device holds at most 1 MiB, or 528 KiB if each array is
  donated and moved separately.
Bytes moved, the largest first:
  32 × 112 KiB  layers/{0..31}/w · bf16[256, 256] · P('x', None) → P(None, 'x')
    · all-to-all
  1 array is not sent"""


def test_the_text_of_a_reshard_of_many_layers():
    tree = [(f"layers/{n}/w", (256, 256), "a b", "bfloat16") for n in range(32)]
    mesh = sv.mesh(x=8, processes=2)
    found = sv.reshard([*tree, ("scale", (8,), "c")], (mesh, [("a", "x")]), (mesh, [("b", "x")]))
    assert sv.text(found) == MANY_LAYERS
    full = sv.text(found, full=True)
    assert full.count("layers/") == 32 + 1
    assert "scale · f32[8] · P(None) · stays" in full
