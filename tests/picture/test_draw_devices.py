from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardviz.base.errors import ShardvizError
from shardviz.base.layout import Layout, lay_out, layout_from_indices
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.pictures import draw, to_text
from tests.picture.geometry import check_page
from tests.picture.ids_reader import read_ids
from tests.picture.strategies import layouts, meshes


@given(meshes(), st.sampled_from(["mesh", "host"]))
def test_every_device_has_one_tile_in_mesh_order(mesh: MeshSpec, by: str):
    picture = draw(mesh, by=by)
    check_page(picture)
    assert (picture.tiles.device == mesh.device_ids.reshape(-1)).all()


@given(layouts(), st.sampled_from(["mesh", "host"]))
def test_every_device_of_a_layout_has_the_colour_of_its_block(layout: Layout, by: str):
    picture = draw(layout, view="devices", by=by, name="w")
    check_page(picture)
    assert (picture.tiles.device == layout.device_ids).all()
    assert (picture.tiles.group == layout.groups).all()
    for tile, device in enumerate(layout.device_ids.tolist()):
        at = zip(layout.mesh.axis_names, layout.mesh.coordinates(device), strict=True)
        said = ", ".join(f"{n} {i}" for n, i in at)
        if by == "host":
            assert picture.tiles.label(tile) == f"{device}\n{said}"
        else:
            assert picture.tiles.label(tile).split("\n")[0] == str(device)


@given(meshes(), st.sampled_from(["mesh", "host"]))
def test_every_frame_holds_the_devices_of_one_host(mesh: MeshSpec, by: str):
    picture = draw(mesh, by=by)
    tiles, hosts = picture.tiles, mesh.process_indices.reshape(-1)
    if not picture.frames:
        assert by == "mesh" or len(mesh.processes) == 1
        return
    held = np.zeros(len(tiles), int)
    for frame in picture.frames:
        across = (tiles.x >= frame.x) & (tiles.x + tiles.width <= frame.x + frame.width)
        down = (tiles.y >= frame.y) & (tiles.y + tiles.height <= frame.y + frame.height)
        inside = across & down
        assert inside.any()
        assert {f"host {h}" for h in hosts[inside].tolist()} == {frame.label}
        held += inside
    assert (held == 1).all()


def _rows(mesh: MeshSpec) -> list[list[int]]:
    """The ids of each row of tiles on the page, from left to right, from top to bottom."""
    tiles = draw(mesh).tiles
    rows: dict[float, list[tuple[float, int]]] = {}
    for x, y, device in zip(tiles.x.tolist(), tiles.y.tolist(), tiles.device.tolist(), strict=True):
        rows.setdefault(round(y, 2), []).append((x, device))
    return [[d for _, d in sorted(rows[y])] for y in sorted(rows)]


PLACES = [
    ("one axis", make_mesh(data=4), [[0, 1, 2, 3]]),
    ("two axes", make_mesh(data=2, model=3), [[0, 1, 2], [3, 4, 5]]),
    ("a second axis of size 1", make_mesh(data=3, model=1), [[0], [1], [2]]),
    ("a first axis of size 1", make_mesh(data=1, model=3), [[0, 1, 2]]),
    (
        "three axes, the first in blocks down",
        make_mesh(pod=2, data=2, model=4),
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]],
    ),
    (
        "three axes, the first in blocks across",
        make_mesh(pod=2, data=4, model=2),
        [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]],
    ),
    ("one long axis, folded in order", make_mesh(data=64), np.arange(64).reshape(8, 8).tolist()),
    ("any order of ids", make_mesh(ring=4, device_ids=[0, 1, 3, 2]), [[0, 1, 3, 2]]),
]


@pytest.mark.parametrize(("mesh", "rows"), [p[1:] for p in PLACES], ids=[p[0] for p in PLACES])
def test_devices_stand_by_mesh_axes_true_to_order(mesh, rows):
    assert _rows(mesh) == rows


def _labels(picture) -> set[str]:
    return {v.text for v in picture.labels if v.role == "axis"}


def test_hosts_or_an_axis_say_the_colour():
    mesh = make_mesh(data=4, model=2, processes=2)
    assert draw(mesh).tiles.group.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [e.text for e in draw(mesh).legend] == ["host 0", "host 1"]
    by_axis = draw(mesh, colour="model")
    assert by_axis.tiles.group.tolist() == [0, 1] * 4
    assert [e.text for e in by_axis.legend] == ["model 0", "model 1"]
    assert draw(make_mesh(data=16), colour="data").colormap == "ramp"


@given(meshes())
def test_the_words_for_a_mesh_name_every_device(mesh: MeshSpec):
    words = draw(mesh).alt
    ids = words.partition("Device ids in mesh order: ")[2].rstrip(".")
    if not ids.endswith(" devices"):
        assert read_ids(ids) == mesh.device_ids.reshape(-1).tolist()
    assert str(mesh.size) in words


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"by": "rack"}, ShardvizError),
        ({"colour": "modle"}, ShardvizError),
        ({"bye": "host"}, TypeError),
    ],
    ids=["by", "colour", "option"],
)
def test_what_cannot_be_drawn_is_refused(options, error):
    with pytest.raises(error):
        draw(make_mesh(data=4, model=2), **options)


def test_an_unknown_option_is_named_with_the_kind_of_value():
    mesh = make_mesh(data=4, model=2)
    with pytest.raises(TypeError, match=r"picture of a MeshSpec has no option bye=.*'by'"):
        draw(mesh, bye="host")
    with pytest.raises(TypeError, match="picture of a Layout has no option save="):
        draw(lay_out((8,), Spec(), mesh), save="x.png")
    with pytest.raises(TypeError, match="text of a MeshSpec has no option full="):
        to_text(mesh, full=True)


def test_one_box_read_off_a_huge_array_is_refused_with_the_numbers():
    layout = layout_from_indices((1 << 40,), "int8", {0: (slice(0, 1),)})
    for options in ({"view": "devices"}, {}):
        with pytest.raises(ShardvizError, match="1,099,511,627,776 blocks, of which 1 device"):
            draw(layout, **options)
