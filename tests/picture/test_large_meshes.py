"""Meshes of up to 16,777,216 devices: true pictures of few tiles, with nothing for each device."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

from shardviz.base.format import MOST_IRREGULAR, ids_text
from shardviz.base.layout import lay_out
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.draw.blocks import (
    MOST_TILES,
    DeviceTiles,
    first_holders,
    holders_of,
    large_ids_text,
    tile_counts,
)
from shardviz.pictures import draw, to_text

N = 1 << 24
MESHES = {
    "one axis": {"a": N},
    "two": {"a": N // 2, "b": 2},
    "two, long last": {"a": 2, "b": N // 2},
    "five": {"a": 64, "b": 32, "c": 32, "d": 16, "e": 16},
    "a prime": {"a": 16_777_213},
    "one too many": {"a": MOST_TILES + 2},
}


@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
def test_nothing_is_made_for_each_device(axes):
    mesh = make_mesh(axes)
    names = ", ".join(axes)
    layouts = [lay_out((mesh.size, 2), Spec.parse(s), mesh) for s in (f"({names})", "a", "")]
    tracemalloc.start()
    try:
        assert f"{mesh.size - 1}" in to_text(mesh) or f"{mesh.size:,}" in to_text(mesh)
        for value in (mesh, *layouts):
            assert 1 <= len(draw(value).tiles) <= MOST_TILES
        for layout in layouts:
            draw(layout, view="devices")
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert "device_ids" not in vars(mesh)


def test_hosts_that_share_evenly_have_no_number_for_each_device():
    mesh = make_mesh({"a": N // 8, "b": 8}, processes=np.arange(N) // 8)
    picture, text = draw(mesh), to_text(mesh)
    assert draw(mesh, by="host").tiles.device.tolist() == picture.tiles.device.tolist()
    assert "hosts in mesh order: 0–2097151; 8 devices each" in " ".join(text.split())
    assert not {"device_ids", "process_indices"} & set(vars(mesh))


def test_a_tile_says_how_many_devices_it_is_and_which():
    mesh = make_mesh(data=N // 2, model=2)
    tiles = draw(mesh).tiles
    assert (tiles.label(1), tiles.device[1]) == ("256 devices", 1)
    layout = lay_out((N // 2, 4), Spec.parse("data"), mesh)
    tiles = draw(layout).tiles
    assert (tiles.label(1), tiles.group[1]) == ("256 devices", 128)
    assert draw(layout, view="devices").tiles.group[1] == 0
    assert any(v.text.startswith("Each tile is 128 blocks") for v in draw(layout).labels)


def test_given_ids_and_hosts_are_those_of_the_devices():
    ids = np.random.default_rng(0).permutation(1 << 18)
    mesh = make_mesh({"a": 1 << 17, "b": 2}, device_ids=ids, processes=1 << 15)
    tiles = draw(mesh).tiles
    assert tiles.device.tolist() == ids.reshape(-1, 2)[::4].ravel().tolist()
    assert tiles.device[3] == ids[9]
    assert f"{ids[0]}, {ids[1]}" in to_text(mesh)
    layout = lay_out((1 << 17,), Spec.parse("a"), mesh)
    assert f"{ids[0]}, {ids[1]}" in " ".join(to_text(layout).split())


@pytest.mark.parametrize("sizes", [(4, 2), (8,), (2, 3, 4), (3, 1, 5)])
def test_holders_by_formula_are_those_of_the_layout(sizes):
    mesh = MeshSpec(tuple("abcd"[: len(sizes)]), sizes)
    for axes in itertools.permutations(mesh.axis_names):
        layout = lay_out((mesh.size, mesh.size), Spec.of(axes[:1], axes[1:2]), mesh)
        groups = np.arange(layout.num_blocks)
        first = first_holders(layout, groups).tolist()
        assert first == [layout.holders(int(g))[0] for g in groups]
        assert large_ids_text(layout) == ids_text(holders_of(layout, groups)[1])
        for group in groups.tolist():
            assert large_ids_text(layout, group) == ids_text(layout.holders(group))


@pytest.mark.parametrize("most", [1, 4, 8, 16, 1000])
@pytest.mark.parametrize("spec", ["(a, b)", "(b, a)", "b", ""])
def test_the_block_of_a_tile_is_that_of_its_first_device(most, spec):
    mesh = make_mesh(a=8, b=6)
    layout = lay_out((48,), Spec.parse(spec), mesh)
    tiles = DeviceTiles(mesh, tile_counts(mesh.axis_sizes, most))
    counts, spans = tiles.counts, tiles.spans
    assert tuple(c * s for c, s in zip(counts, spans, strict=True)) == mesh.axis_sizes
    assert np.prod(counts) <= most
    assert tiles.ids.tolist() == mesh.device_ids[:: spans[0], :: spans[1]].ravel().tolist()
    assert tiles.blocks(layout).tolist() == layout.groups[tiles.first].tolist()


def test_irregular_ids_beyond_counting_are_not_all_written():
    ids = np.random.default_rng(0).permutation(MOST_IRREGULAR + 1)
    assert ids_text(ids).endswith(f" and {MOST_IRREGULAR - 7:,} more")
    assert ids_text(range(N)) == f"0–{N - 1}"
