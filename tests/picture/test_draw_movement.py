"""The pictures and texts of movements: what is where, in words, and how much is shown."""

from __future__ import annotations

import json

import numpy as np
import pytest

import shardviz as sv
from shardviz.core.program.movement import Movement, collective_movement
from shardviz.core.program.movement_steps import REGULAR
from shardviz.core.wording.movement import title
from shardviz.picture.picture import Picture
from shardviz.picture.serialization import serialize
from shardviz.picture.show import draw, to_text


def ring(kind: str = "all-reduce", count: int = 4) -> Movement:
    return collective_movement(kind, count, count * 4096)


def inside(still: Picture) -> Picture:
    return still.panels[0][2]


MOVEMENTS = {
    **{f"{kind} {n}": lambda kind=kind, n=n: ring(kind, n) for kind in REGULAR for n in (2, 4, 8)},
    "sixteen": lambda: ring("reduce-scatter", 16),
    "sixty-four": lambda: sv.movement("all-gather", topology="tpu:v5p:4x4x4", size=1 << 20),
    "two hosts": lambda: sv.movement("all-reduce", topology="gpu:h100:2x4", size=1 << 20),
    "slices": lambda: sv.movement("all-gather", topology="tpu:v5e:2x2*2", size=1 << 20),
    "permutation": lambda: sv.movement("collective-permute", devices=5, size=64),
    "one device": lambda: ring("all-gather", 1),
    "large": lambda: sv.movement("all-reduce", devices=4096, size=1 << 20),
    "large exchange": lambda: ring("all-to-all", 32),
}


@pytest.mark.parametrize("make", MOVEMENTS.values(), ids=MOVEMENTS.keys())
def test_every_movement_has_a_strip_stills_and_a_text(make):
    m = make()
    last = len(m.steps)
    pictures = [draw(m), *(draw(m, step=n, title="mine") for n in {0, last // 2, last})]
    for picture in pictures:
        data, _ = serialize(picture)
        assert json.dumps(data)
        assert m.filled_in in picture.alt or "mine" in picture.alt
        for x, y, panel in picture.panels:
            assert x + panel.width <= picture.width + 1
            assert y + panel.height <= picture.height + 1
    text = to_text(m, 80)
    lines = text.split("\n")
    assert title(m).split(",")[0] in text.replace("\n  ", " ")
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("kind", REGULAR)
@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_cells_are_as_full_as_their_chunks(kind, done):
    m = ring(kind)
    still = draw(m, step=done)
    counts = list(m.counts())[done]
    cells = inside(still)
    assert len(still.tiles) == counts.size
    row, column = np.nonzero(counts)
    assert len(cells.tiles) == len(row)
    shares = cells.tiles.width / still.tiles.width[0]
    np.testing.assert_allclose(shares, counts[row, column] / m.contributors, atol=0.07)
    said = [label.text for label in cells.labels]
    if m.sums:
        assert said == [f"{n}/4" for n in counts[row, column].tolist()]
        assert "the sum of" in cells.tiles.tooltip(0)
    else:
        assert said == [m.chunks.labels[c] for c in column.tolist()]
    np.testing.assert_array_equal(cells.tiles.device, m.devices[row])


def test_an_arrow_goes_from_the_source_to_the_target():
    m = ring("all-gather")
    still = draw(m, step=0)
    edges, tiles = inside(still).edges, inside(still).tiles
    assert edges is not None
    step = m.steps[0]
    count, middle = len(step.source), tiles.y + tiles.height / 2
    assert len(edges) == 5 * count
    assert (np.abs(edges.y0[:count] - middle[step.source]) < 4).all()
    assert (np.abs(edges.y1[2 * count : 3 * count] - middle[step.target]) < 4).all()
    assert inside(draw(m, step=3)).edges is None  # nothing more is sent


def test_arrows_between_hosts_are_thick():
    m = sv.movement("all-gather", topology="gpu:h100:2x4", size=1 << 20)
    between, within = (inside(draw(m, step=n)).edges for n in (0, 1))
    assert between is not None
    assert within is not None
    assert between.width.min() > within.width.max()


def test_devices_of_a_host_have_a_frame():
    m = sv.movement("all-gather", topology="gpu:h100:2x4", size=1 << 20)
    assert [f.label for f in draw(m, step=0).frames] == ["host 0", "host 1"]
    assert not draw(ring(), step=0).frames


def test_a_strip_has_the_first_still_and_the_end():
    panels = draw(ring("all-reduce", 8)).panels
    names = [p.labels[0].text for _, _, p in panels]
    assert (names[0], names[-1], len(names)) == ("step 1", "end", 8)
    assert [p.labels[0].text for _, _, p in draw(ring("all-gather", 1)).panels] == [
        "nothing is sent"
    ]


def test_rows_are_in_the_order_of_the_torus():
    m = sv.movement("all-gather", topology="tpu:v5e:4x2", size=1 << 20)
    assert m.devices.tolist() != sorted(m.devices.tolist())
    names = [label.text for label in draw(m, step=0).labels if label.text.startswith("device")]
    assert names == [f"device {n}" for n in range(8)]


GATHERED = """\
all-gather of 16 KiB, 4 devices, ring
(n - 1) / n × bytes: 3 / 4 × 16 KiB = 12 KiB sent per device, in 3 steps.
Step 1: Every device sends 1 chunk to its right neighbour; each then holds 2 of
  4.
Step 2: Every device sends 1 chunk to its right neighbour; each then holds 3 of
  4.
Step 3: Every device sends 1 chunk to its right neighbour; each then holds 4 of
  4.

          start    step 1   step 2   end
device 0  ■ · · ·  ■ · · ■  ■ · ■ ■  ■ ■ ■ ■
device 1  · ■ · ·  ■ ■ · ·  ■ ■ · ■  ■ ■ ■ ■
device 2  · · ■ ·  · ■ ■ ·  ■ ■ ■ ·  ■ ■ ■ ■
device 3  · · · ■  · · ■ ■  · ■ ■ ■  ■ ■ ■ ■
■ there, · not there"""


def test_the_text_of_a_ring():
    assert to_text(ring("all-gather")) == GATHERED
