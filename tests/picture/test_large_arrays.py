"""Arrays over many devices: a page in shape, and no words over other words."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from shardviz.base.layout import lay_out
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.draw.page import label_span
from shardviz.draw.picture import Picture
from shardviz.pictures import draw

# shape, spec, mesh
LARGE = {
    **{f"1-D, {n:,}": ((n,), "a", {"a": n}) for n in (8, 4096, 65536)},
    **{f"rows, {n:,}": ((n, 4), "a", {"a": n}) for n in (64, 4096, 65536)},
    **{f"columns, {n:,}": ((4, n), "None, a", {"a": n}) for n in (512, 65536)},
    "2-D, 4,096": ((4096, 4096), "a, b", {"a": 64, "b": 64}),
    "2-D, 65,536": ((4096, 4096), "a, b", {"a": 256, "b": 256}),
    "2-D, long": ((65536, 64), "a, b", {"a": 4096, "b": 16}),
    "3-D, 512": ((64, 64, 64), "a, b, c", {"a": 8, "b": 8, "c": 8}),
    "3-D, 4,096": ((64, 64, 64), "a, b, c", {"a": 16, "b": 16, "c": 16}),
    "4-D, 4,096": ((8, 8, 8, 8), "a, b, c, d", dict.fromkeys("abcd", 8)),
    "5-D, 65,536": ((16, 16, 16, 16, 4), "a, b, c, d", dict.fromkeys("abcd", 16)),
}


def picture(name: str) -> Picture:
    shape, spec, mesh = LARGE[name]
    return draw(lay_out(shape, Spec.parse(spec), make_mesh(mesh)))


@pytest.mark.parametrize("name", LARGE)
def test_a_page_in_shape_with_every_device_and_no_words_over_others(name):
    made = picture(name)
    assert (made.width <= 1250, made.height <= 1010) == (True, True)
    assert len(made.device_ids()) == make_mesh(LARGE[name][2]).size
    assert 0 <= made.tiles.x.min() <= made.tiles.x.max() <= made.width
    rows: dict[float, list] = {}
    for label in made.labels:
        rows.setdefault(round(label.y, 1), []).append((*label_span(label), label.text))
    for spans in rows.values():
        spans.sort()
        for (_, right, text), (left, _, other) in itertools.pairwise(spans):
            assert right <= left + 2, (text, other)


@pytest.mark.parametrize(
    ("shape", "mesh", "counts"),
    [
        ((32000, 4096), {"model": 16, "data": 256}, (16, 256)),
        ((512, 2048), {"model": 512, "data": 128}, (512, 128)),
    ],
)
def test_a_row_of_blocks_is_in_one_line_as_long_as_a_page_has_space(shape, mesh, counts):
    made = draw(lay_out(shape, Spec.parse("model, data"), make_mesh(mesh)))
    tiles = made.tiles
    assert (len(np.unique(tiles.y)), len(np.unique(tiles.x))) == counts
    assert np.ptp(tiles.x) > 250
    assert np.ptp(tiles.y) > 250
    ticks = [label for label in made.labels if label.role == "tick"]
    for anchor, size in (("end", shape[0]), ("end", shape[1])):
        assert any(label.text == str(size) and label.anchor == anchor for label in ticks)


@pytest.mark.parametrize("sizes", [(256, 16, 16), (64, 1024)])
def test_every_axis_of_a_large_mesh_is_named(sizes):
    mesh = make_mesh({f"axis{i}": size for i, size in enumerate(sizes)})
    words = {label.text.split()[0] for label in draw(mesh).labels if label.role == "axis"}
    assert {f"axis{i}" for i in range(len(sizes))} <= words
