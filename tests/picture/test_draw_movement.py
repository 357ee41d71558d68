"""The pictures and texts of movements: what is where, in words, and how much is shown."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import shardviz as sv
from shardviz.draw.serialization import serialize
from shardviz.move.movement import Movement, collective_movement
from shardviz.move.movement_steps import REGULAR
from shardviz.move.words.movement import title
from shardviz.pictures import draw, to_text


def ring(kind: str = "all-reduce", count: int = 4) -> Movement:
    return collective_movement(kind, count, count * 4096)


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
def test_cells_are_as_full_as_their_chunks(kind):
    m = ring(kind)
    for done, counts in enumerate(m.counts()):
        still = draw(m, step=done)
        tiles = still.tiles
        row, column = np.nonzero(counts)
        np.testing.assert_array_equal(tiles.device, m.devices[row])
        shares = np.broadcast_to(tiles.width, len(row)) / np.max(tiles.width)
        held = counts[row, column]
        np.testing.assert_allclose(shares, held / held.max(), atol=0.07)
        if m.sums:
            # In partly filled cells, the number is too wide for the tile.
            texts = [label.text for label in still.labels if label.tone == "text"]
            if (held == 4).all():
                texts = [tiles.label(n) for n in range(len(row))]
            assert texts == [f"{n}/4" for n in held]


@pytest.mark.parametrize("kind", REGULAR)
def test_frames_in_a_strip_mark_what_was_received(kind):
    m = ring(kind)
    counts = list(m.counts())
    marked = [len(panel.frames) for _, _, panel in draw(m).panels]
    received = [(now > old).sum() for old, now in itertools.pairwise(counts)]
    assert marked == [0, *received]


def test_a_strip_has_the_first_still_and_the_end():
    panels = draw(ring("all-reduce", 8)).panels
    names = [p.labels[0].text for _, _, p in panels]
    assert (names[0], names[-1], len(names)) == ("start", "end", 8)
    assert [p.labels[0].text for _, _, p in draw(ring("all-gather", 1)).panels] == [
        "nothing is sent"
    ]


def test_rows_are_in_the_order_of_the_torus():
    m = sv.movement("all-gather", topology="tpu:v5e:4x2", size=1 << 20)
    assert m.devices.tolist() != sorted(m.devices.tolist())
    names = [label.text for label in draw(m, step=0).labels if label.text.startswith("device")]
    assert names == [f"device {n}" for n in range(8)]


GATHERED = """\
all-gather that sends 12 KiB, 4 devices, ring
(n - 1) / n × result: 3 / 4 × 16 KiB = 12 KiB sent per device, in 3 steps.
Step 1: Every device sends 1 chunk to the next device; each then holds 2 of 4.
Step 2: Every device sends 1 chunk to the next device; each then holds 3 of 4.
Step 3: Every device sends 1 chunk to the next device; each then holds 4 of 4.

          start    after 1  after 2  end
device 0  ■ · · ·  ■ · · ■  ■ · ■ ■  ■ ■ ■ ■
device 1  · ■ · ·  ■ ■ · ·  ■ ■ · ■  ■ ■ ■ ■
device 2  · · ■ ·  · ■ ■ ·  ■ ■ ■ ·  ■ ■ ■ ■
device 3  · · · ■  · · ■ ■  · ■ ■ ■  ■ ■ ■ ■
■ there, · not there"""


def test_the_text_of_a_ring():
    assert to_text(ring("all-gather")) == GATHERED
