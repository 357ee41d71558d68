from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import ShardvizError
from shardviz.base.layout import Layout, lay_out, layout_from_indices
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.draw.picture import index_text
from shardviz.pictures import draw
from tests.picture.geometry import check_page
from tests.picture.ids_reader import read_ids
from tests.picture.strategies import layouts


def _layout(shape, spec: str, **axes: int) -> Layout:
    return lay_out(shape, Spec.parse(spec), make_mesh(**axes), "bfloat16")


@given(layouts())
def test_every_block_has_one_tile_that_names_its_box_and_its_devices(layout: Layout):
    picture = draw(layout, name="w")
    tiles = picture.tiles
    check_page(picture)
    assert sorted(tiles.group.tolist()) == list(range(layout.num_blocks))
    assert (picture.device_ids() == np.sort(layout.device_ids)).all()
    for tile in range(len(tiles)):
        held = tiles.devices(tile).tolist()
        assert held == layout.holders(int(tiles.group[tile])).tolist()
        box = ", ".join(f"{s.start}:{s.stop}" for s in layout.box(held[0]))
        block = int(tiles.group[tile])
        assert index_text(layout.block_counts, layout.shard_shape, block) == f"[{box}]"


@given(layouts(), st.data())
def test_one_step_shows_its_blocks_and_says_who_holds_the_others(layout: Layout, data):
    dims = None
    if layout.rank >= 2 and data.draw(st.booleans()):
        dims = tuple(data.draw(st.permutations(range(layout.rank)))[:2])
    at = data.draw(st.lists(st.integers(0, 9), max_size=layout.rank))
    picture = draw(layout, dims=dims, at=at)
    check_page(picture)
    shown = picture.device_ids()
    away = np.setdiff1d(layout.device_ids, shown).tolist()
    lines = [v.text for v in picture.labels if v.role == "note"]
    first = [i for i, v in enumerate(lines) if v.startswith("devices of other blocks: ")]
    # What is longer than the page is wide goes on in lines that are set in.
    rest = itertools.takewhile(
        lambda v: v.startswith("    "), lines[first[0] + 1 :] if first else []
    )
    said = " ".join([lines[i].partition(": ")[2] for i in first] + [v.strip() for v in rest])
    assert (list(read_ids(said)) if said else []) == away
    for step in picture.facts["steps"]:
        dim, number = step["dim"], step["at"]
        assert 0 <= number < step["count"] == layout.block_counts[dim]
        first = number * layout.shard_shape[dim]
        assert all(layout.box(int(d))[dim].start == first for d in shown)


@given(layouts())
def test_edges_say_how_each_dimension_is_split_and_stand_where_its_blocks_do(layout: Layout):
    names = [f"n{dim}" for dim in range(layout.rank)]
    picture = draw(layout, logical=names)
    edges = [ruler for ruler in picture.rulers if ruler.is_edge and ruler.words]
    dims = picture.facts["dims"]
    assert sorted(ruler.words[-1] for ruler in edges) == sorted(names[dim] for dim in dims)
    for ruler in edges:
        dim = names.index(ruler.words[-1])
        assert ruler.down == (dim == dims[0] and len(dims) == 2)
        size, count, shard = (
            v[dim] for v in (layout.shape, layout.block_counts, layout.shard_shape)
        )
        said = f"n{dim} {size:,} = {count:,} × {shard:,} over"
        assert ruler.words[0] == (said if count > 1 else f"n{dim} {size:,}, not split")
        spec = layout.spec.dims[dim] if dim < len(layout.spec.dims) else ()
        assert [name for _, name, _ in ruler.axes] == list(spec)
        assert [layout.mesh.axis_names[number] for number, _, _ in ruler.axes] == list(spec)
        corners = picture.tiles.y if ruler.down else picture.tiles.x
        assert abs(float(corners.min()) - ruler.start) < 0.1
        if ruler.count and not ruler.repeats:
            for tile, corner in enumerate(corners.tolist()):
                at = int((corner - ruler.start + 0.1) // ruler.pitch)
                held = layout.box(int(picture.tiles.devices(tile)[0]))[dim]
                assert held.start == at * ruler.step


def test_two_blocks_with_four_replicas_each():
    picture = draw(
        _layout((512, 2048), "None, model", data=4, model=2),
        name="w_in",
        logical=("embed", "mlp"),
    )
    assert [picture.tiles.label(i) for i in (0, 1)] == [
        "0 · 2 · 4 · 6\n4 replicas",
        "1 · 3 · 5 · 7\n4 replicas",
    ]
    texts = {v.text for v in picture.labels}
    assert {"0", "1024", "2048", "512"} <= texts
    top, left = picture.rulers
    assert (top.words[0], top.axes) == ("mlp 2,048 = 2 × 1,024 over", ((1, "model", 2),))
    assert (left.words[0], left.axes, left.down) == ("embed 512, not split", (), True)
    assert "w_in bf16[512, 2048]  P(None, 'model')" in texts
    assert "not to scale" not in texts


def test_long_strips_are_folded_so_that_ids_can_be_read():
    picture = draw(_layout((4096,), "(data, model)", data=32, model=16))
    assert len({float(y) for y in picture.tiles.y}) > 8
    assert picture.tiles.width.min() >= 20
    assert picture.width < 1100
    assert [picture.tiles.label(i) for i in (0, 511)] == ["0", "511"]


def test_further_split_dimensions_stand_side_by_side_or_one_at_a_time():
    layout = _layout((8, 64, 512), "data, fsdp, model", data=2, fsdp=4, model=4)
    every = draw(layout)
    assert len(every.tiles) == 32
    assert {f"dimension 2 [{k * 128}:{k * 128 + 128}]" for k in range(4)} <= {
        v.text for v in every.labels
    }
    one = draw(layout, dims=(0, 1), at=(1,))
    assert one.tiles.holders.tolist() == [1, 5, 9, 13, 17, 21, 25, 29]
    assert "shown: dimension 2 [128:256], block 2 of 4" in {v.text for v in one.labels}
    last = draw(layout, dims=(0, 1), at=(99,))
    assert last.facts["steps"] == [{"dim": 2, "count": 4, "at": 3}]
    turned = draw(layout, dims=(2, 0), at=())
    assert turned.facts["dims"] == [2, 0]
    assert turned.tiles.holders.tolist() == [0, 16, 1, 17, 2, 18, 3, 19]


def test_boxes_of_another_sharding_are_drawn_as_they_are():
    indices = {5: (slice(0, 2),), 3: (slice(0, 2),), 9: (slice(2, 4),)}
    picture = draw(layout_from_indices((4,), "int8", indices))
    assert [picture.tiles.devices(i).tolist() for i in (0, 1)] == [[5, 3], [9]]
    lonely = draw(layout_from_indices((4,), "int8", {5: (slice(2, 4),)}))
    assert [lonely.tiles.label(i).split("\n")[0] for i in (0, 1)] == ["no device", "5"]


@pytest.mark.parametrize(
    "options",
    [{"dims": (0, 0)}, {"dims": (0, 2)}, {"dims": 1}, {"at": (-1,)}, {"view": "chips"}],
    ids=["repeat", "beyond", "number", "negative", "view"],
)
def test_what_cannot_be_shown_is_refused(options):
    with pytest.raises(ShardvizError):
        draw(_layout((4, 8), "data", data=2), **options)


@pytest.mark.parametrize("shape", [(), (7,), (512, 2048), (1, 1 << 30), (0, 4), (2, 3, 4)], ids=str)
def test_an_array_by_description_is_one_tile(shape):
    names = tuple(f"n{i}" for i in range(len(shape)))
    picture = draw(ArraySpec("w", shape, names, "bfloat16", Spec()))
    check_page(picture)
    assert len(picture.tiles) == 1
    assert picture.tiles.label(0).startswith("w\nbf16[")
    assert all(n in picture.alt for n in names)
