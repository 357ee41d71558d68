"""Devices by position: true to coordinates, hosts framed, and the links in use where they are."""

from __future__ import annotations

import numpy as np
import pytest

from shardviz.base.collective import Collective
from shardviz.base.errors import MeshError, TargetError
from shardviz.base.mesh import make_mesh
from shardviz.draw.picture import MANY_GROUPS, NO_GROUP, Picture
from shardviz.hardware.draw.chip_grid import chip_grid
from shardviz.hardware.draw.topology import draw_position, draw_topology
from shardviz.hardware.interconnect import Torus, collective_link_use, device_rows
from shardviz.hardware.topology import Topology
from shardviz.hardware.words import links as wording
from shardviz.pictures import draw, to_text
from tests.picture.geometry import SLACK, check_page

TOPOLOGIES = [
    "tpu:v5e:1x1",
    "tpu:v5e:4x4",
    "tpu:v5e:4x4*2",
    "tpu:v4:2x2x2",
    "tpu:v5p:4x4x8",
    "tpu:7x:2x2x2*2",
    "tpu:v3:8x8",
    "tpu:v5p:8x8x16",
    "gpu:h100:2x8",
    "gpu:h200:3x4",
]


def _mesh(topology: Topology, model: int = 2):
    model = model if topology.devices % model == 0 else 1
    return make_mesh(data=topology.devices // model, model=model)


def _check_edges(picture: Picture) -> None:
    edges = picture.edges
    for x, y in ((edges.x0, edges.y0), (edges.x1, edges.y1)):
        if len(edges):
            assert x.min() >= -SLACK
            assert y.min() >= -SLACK
            assert x.max() <= picture.width + SLACK
            assert y.max() <= picture.height + SLACK
    assert (edges.width > 0).all()
    assert (edges.group >= MANY_GROUPS).all()
    assert (edges.group < picture.groups).all()


@pytest.mark.parametrize("text", TOPOLOGIES)
def test_every_device_has_its_place_and_its_words(text):
    topology = Topology.parse(text)
    mesh = _mesh(topology)
    picture = draw_position(mesh, topology)
    check_page(picture)
    _check_edges(picture)
    tiles = picture.tiles
    assert (tiles.device == mesh.device_ids.ravel()).all()
    rows = device_rows(mesh, topology)
    x, y = tiles.x.astype(float), tiles.y.astype(float)
    for axis, along in ((0, x), (1, y)):
        coords = topology.coords[rows, axis] if topology.chip.axes else None
        if coords is None or topology.slices > 1 or (axis == 1 and topology.coords[:, 2].any()):
            continue
        first = topology.cores[rows] == 0
        places = [np.unique(np.round(along[first & (coords == c)] % 1e9, 2)) for c in
                  range(topology.shape[axis])]  # fmt: skip
        if not topology.coords[:, 2].any():
            assert all(len(p) == 1 for p in places)
            assert (np.diff([p[0] for p in places]) > 0).all()


@pytest.mark.parametrize("text", TOPOLOGIES)
def test_every_host_has_one_frame_around_its_devices_and_no_other(text):
    topology = Topology.parse(text)
    picture = draw_topology(topology)
    check_page(picture)
    _check_edges(picture)
    hosts = {f.label: f for f in picture.frames if f.label.startswith("host")}
    # In parallel perspective a host is no rectangle: its chips stand closer together.
    framed = topology.hosts > 1 and not chip_grid(topology).solid
    assert len(hosts) == topology.hosts * framed
    tiles = picture.tiles
    for label, frame in hosts.items():
        inside = (
            (tiles.x >= frame.x - SLACK)
            & (tiles.x + tiles.width <= frame.x + frame.width + SLACK)
            & (tiles.y >= frame.y - SLACK)
            & (tiles.y + tiles.height <= frame.y + frame.height + SLACK)
        )
        assert {f"host {p}" for p in topology.process_indices[inside]} == {label}
        assert inside.sum() == topology.devices // topology.hosts
    slices = [f for f in picture.frames if f.label.startswith("slice")]
    assert len(slices) == (topology.slices if topology.slices > 1 else 0)


def _links_of(picture: Picture, topology: Topology) -> dict:
    """(chip, chip) to group and width of every stroke that joins two chips."""
    placed = chip_grid(topology)
    shift = picture.tiles.x[0] - placed.corners[0, 0], picture.tiles.y[0] - placed.corners[1, 0]
    middle = (placed.corners + np.array(shift)[:, None]).T + np.array(placed.cell) / 2
    edges, found = picture.edges, {}
    for i in range(len(edges)):
        ends = [(edges.x0[i], edges.y0[i]), (edges.x1[i], edges.y1[i])]
        near = [np.abs(middle - np.array(e)).sum(axis=1) for e in ends]
        if all(n.min() < 0.05 for n in near):
            pair = tuple(sorted(int(n.argmin()) for n in near))
            found[pair] = int(edges.group[i]), float(edges.width[i])
    return found


@pytest.mark.parametrize("kind", ["all-gather", "all-to-all", "all-reduce"])
@pytest.mark.parametrize("axes", [("data",), ("model",), ("data", "model")])
def test_strokes_are_the_links_that_the_route_uses(kind, axes):
    topology, mesh = Topology.parse("tpu:v5e:4x4"), make_mesh(data=4, model=4)
    collective = Collective(kind, axes, 1 << 20)
    drawn = _links_of(draw_position(mesh, topology, collective), topology)
    links = collective_link_use(collective, mesh, topology)
    assert len(drawn) == 24
    for (a, b), (group, _) in drawn.items():
        axis = 0 if b == a + 1 else 1
        one, other = links.chip_group[[a, b]]
        assert group in (NO_GROUP, one if one == other else MANY_GROUPS)
        assert (group != NO_GROUP) == bool(links.load(axis)[a] > 0)
    wide = {w for g, w in drawn.values() if g != NO_GROUP}
    assert min(wide) > max([w for g, w in drawn.values() if g == NO_GROUP], default=0)
    if kind == "all-to-all":  # the links in the middle of an open axis carry most
        assert len(wide) > 1


def test_ways_around_are_strokes_at_both_ends():
    open_axes = draw_topology(Topology.parse("tpu:v5e:4x4"))
    ring = draw_topology(Topology.parse("tpu:v5e:2x16"))
    assert len(open_axes.edges) == 4 * 3 * 2
    assert len(ring.edges) == 16 + 2 * 15 + 2 * 2
    assert any(v.text == wording.WRAPAROUND_LINES for v in ring.labels)
    assert not any(v.text == wording.WRAPAROUND_LINES for v in open_axes.labels)


@pytest.mark.parametrize(
    "text", ["tpu:v5p:2x2x2", "tpu:v5p:4x4x4", "tpu:v5p:4x4x8", "tpu:7x:2x2x4*2", "tpu:v5p:8x8x16"]
)
def test_three_axes_are_planes_with_every_chip_and_every_link_once(text):
    topology = Topology.parse(text)
    torus, picture = Torus(topology), draw_topology(topology)
    grid = chip_grid(topology)
    places = set(map(tuple, np.round(grid.corners.T, 3).tolist()))
    assert len(places) == topology.chips
    drawn, around = _links_of(picture, topology), 0
    expected = set()
    for axis in range(3):
        for chip, following in enumerate(torus.next_chip(axis).tolist()):
            wraps = following >= 0 and torus.coords[following, axis] < torus.coords[chip, axis]
            around += wraps
            if following >= 0 and not wraps:
                expected.add((chip, following))
    assert set(drawn) == expected
    # A link around the torus is a line at both of its ends.
    assert len(picture.edges) == len(expected) + 2 * around
    for axis, name in enumerate("xyz"):
        ring = " ring" * torus.wraps[axis]
        sizes = f"{name} {topology.shape[axis]}{ring}"
        assert sum(v.text[:-2] == sizes for v in picture.labels) == topology.slices


def test_chips_of_a_host_stand_closer_together():
    grid = chip_grid(Topology.parse("tpu:v5p:4x4x4"))
    x = grid.corners[0, :4]
    assert x[1] - x[0] == pytest.approx(x[3] - x[2])
    assert x[2] - x[1] > 1.1 * (x[1] - x[0])


def test_the_largest_torus_has_every_chip_and_links_of_planes_in_other_columns():
    topology = Topology.parse("tpu:v5p:16x20x28")
    grid = chip_grid(topology)
    assert sum(map(bool, grid.breaks)) == 1, "planes stand in several columns"
    edges = draw_position(
        make_mesh(data=28, fsdp=20, model=16), topology, Collective("all-gather", ("data",), 1)
    ).edges
    axis = next(a for a in range(3) if topology.shape[a] == 28)
    lines = 8960 + 8960 // 28  # those around at both ends
    if grid.breaks[axis]:
        lines += 8960 // 28 * ((28 - 1) // grid.breaks[axis])
    assert len(edges) == lines


def test_on_a_page_links_have_the_colours_of_the_mesh_axes_along_which_they_go():
    mesh = make_mesh(data=4, fsdp=4, model=4)
    edges = draw_position(mesh, "tpu:v5p:4x4x4", bare=True).edges
    assert np.unique(edges.group).tolist() == [0, 1, 2]
    used = draw_position(
        mesh, "tpu:v5p:4x4x4", Collective("all-gather", ("fsdp",), 1), bare=True
    ).edges
    assert np.unique(used.group).tolist() == [NO_GROUP, 1]
    assert used.width[used.group == 1].min() > used.width[used.group == NO_GROUP].max()
    # Of 2 chips along `model`, one step along x is one of `model`, and the next of `data`.
    mixed = draw_position(make_mesh(data=8, model=2), "tpu:v5e:4x4", bare=True).edges
    assert set(np.unique(mixed.group).tolist()) == {0, 1, MANY_GROUPS}
    # Bytes of `data` pass links along which chips differ by `model`.
    passing = draw_position(
        make_mesh(data=8, model=2), "tpu:v5e:4x4", Collective("all-gather", ("data",), 1), bare=True
    ).edges
    assert set(np.unique(passing.group).tolist()) <= {NO_GROUP, 0}
    assert (passing.group == 0).sum() > 12


def test_groups_are_coloured_and_named_and_links_have_their_colour():
    mesh = make_mesh(data=4, model=4)
    picture = draw_position(mesh, "tpu:v5e:4x4", Collective("all-gather", ("model",), 16 << 20))
    assert picture.tiles.group.tolist() == np.repeat(range(4), 4).tolist()
    assert [e.text for e in picture.legend] == ["group 0", "group 1", "group 2", "group 3"]
    assert (
        sorted(picture.edges.group[picture.edges.group >= 0].tolist())
        == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    )


def test_gpus_and_slices_are_joined_by_switches_and_no_lines():
    across = Collective("all-reduce", ("dcn",), 1 << 20)
    slices = draw_position(make_mesh(dcn=2, data=16), "tpu:v5e:4x4*2", across).edges
    assert (slices.group == NO_GROUP).all()
    assert len(slices) == 2 * 24
    assert not len(draw_position(make_mesh(data=16), "gpu:h100:2x8").edges)


def test_thousands_of_chips_stay_on_a_page():
    topology = Topology.parse("tpu:v5p:16x16x16")
    mesh = make_mesh(data=256, model=16)
    picture = draw_position(mesh, topology, Collective("all-gather", ("model",), 1))
    assert picture.width < 1500
    assert picture.height < 1100
    assert len(np.unique(picture.tiles.device)) == 4096
    assert (picture.edges.group != NO_GROUP).all(), "idle links would hide those in use"
    assert not picture.frames
    _check_edges(picture)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"topology": "tpu:v5e:2x2"}, TargetError),
        ({"topology": "tpu:v5e"}, TargetError),
        ({"topology": "tpu:v5e:4x4", "colour": "dta"}, MeshError),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, error):
    with pytest.raises(error):
        draw(make_mesh(data=16), by="position", **options)


def test_topologies_have_a_text_with_every_id_at_its_coordinates():
    lines = to_text(Topology.parse("tpu:7x:2x2x2")).split("\n")
    words = [line.split() for line in lines[2:5]]
    assert words == [["z", "0"], ["x", "0", "x", "1"], ["y", "0", "0/1", "2/3"]]
    slices = to_text(Topology.parse("tpu:v5e:2x2*2"))
    assert "slice 1" in slices
    assert "200003" in slices
    hosts = to_text(Topology.parse("gpu:h100:2x8")).split("\n")
    assert hosts[-1].split() == ["host", "1", *map(str, range(8, 16))]
    assert "ids 0–1023" in to_text(Topology.parse("tpu:v5p:8x8x16"))
