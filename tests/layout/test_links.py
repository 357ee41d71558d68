"""route: the loads of every collective against sends that are walked one by one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from shardviz.base.collective import Collective
from shardviz.base.errors import MeshError, TargetError
from shardviz.base.mesh import make_mesh
from shardviz.hardware import interconnect
from shardviz.hardware.interconnect import (
    Torus,
    collective_link_use,
    device_rows,
    groups_over,
    least_send_seconds,
    route,
)
from shardviz.hardware.topology import Topology


def _walked(topology: Topology, sends) -> dict:
    """(from coords, to coords) of a link to its load: every send on its own, hop by hop."""
    loads: dict = {}
    shape, wraps = topology.shape, topology.wraps
    for source, target, share in sends:
        here = list(source)
        for axis, size in enumerate(shape):
            forward = (target[axis] - here[axis]) % size
            back = size - forward if forward else 0
            if not wraps[axis]:
                turns = [1] if target[axis] > here[axis] else [-1]
                steps = abs(target[axis] - here[axis])
            elif forward == back:
                turns, steps = [1, -1], forward
            else:
                turns, steps = ([1], forward) if forward < back else ([-1], back)
            for turn in turns if steps else ():
                at = list(here)
                for _ in range(steps):
                    to = list(at)
                    to[axis] = (to[axis] + turn) % size
                    link = (tuple(at), tuple(to), axis, turn)
                    loads[link] = loads.get(link, 0) + share / len(turns)
                    at = to
            here[axis] = target[axis]
    return loads


def _loads(links) -> dict:
    torus, found = links.torus, {}
    for axis in range(len(torus.shape)):
        for chip, to in enumerate(torus.next_chip(axis)):
            here = tuple(torus.coords[chip].tolist())
            if to >= 0 and links.ici[chip, axis, 0]:
                there = tuple(torus.coords[to].tolist())
                found[here, there, axis, 1] = links.ici[chip, axis, 0]
            if to >= 0 and links.ici[to, axis, 1]:
                there = tuple(torus.coords[to].tolist())
                found[there, here, axis, -1] = links.ici[to, axis, 1]
    return found


def _same(found: dict, wanted: dict) -> None:
    assert found.keys() == wanted.keys()
    for link, load in wanted.items():
        assert found[link] == pytest.approx(load), link


SLICES = ("tpu:v5e:4x4", "tpu:v5e:2x16", "tpu:v5p:4x4x4", "tpu:v4:2x2x4", "tpu:v4:4x8x4")


@pytest.mark.parametrize("text", SLICES)
@pytest.mark.parametrize("seed", range(3))
def test_an_exchange_of_any_group_is_every_pair_walked_by_itself(text, seed):
    topology = Topology.parse(text)
    dice = np.random.default_rng(seed)
    count = 1 + seed
    groups = dice.permutation(topology.devices)[: topology.devices // count * count]
    groups = groups.reshape(count, -1)[:, :20]
    share = 1 / groups.shape[1]
    coords = topology.coords[:, : len(topology.shape)].tolist()
    sends = [(coords[a], coords[b], share) for g in groups for a, b in itertools.permutations(g, 2)]
    _same(_loads(route(topology, groups, "all-to-all")), _walked(topology, sends))


@pytest.mark.parametrize("text", SLICES)
def test_an_exchange_over_a_box_is_counted_by_lines_and_equals_its_pairs(text):
    topology = Topology.parse(text)
    coords = topology.coords[:, : len(topology.shape)].tolist()
    every = range(topology.devices)
    share = 1 / topology.devices
    sends = [(coords[a], coords[b], share) for a, b in itertools.permutations(every, 2)]
    _same(_loads(route(topology, [every], "all-to-all")), _walked(topology, sends))


@pytest.mark.parametrize("text", SLICES)
def test_a_permutation_is_each_send_walked_by_itself(text):
    topology = Topology.parse(text)
    targets = np.random.default_rng(5).permutation(topology.devices)
    coords = topology.coords[:, : len(topology.shape)].tolist()
    pairs = list(enumerate(targets.tolist()))
    sends = [
        (coords[a], coords[b], 1.0) for a, b in pairs if topology.coords[a].tolist() != coords[b]
    ]
    _same(_loads(route(topology, pairs, "collective-permute")), _walked(topology, sends))


def _ring(members, share):
    """Each member to the next and to the one before, half of the share each."""
    following = [*members[1:], members[0]]
    there = [(a, b, share / 2) for a, b in zip(members, following, strict=True)]
    return there + [(b, a, half) for a, b, half in there]


def _rows_of_block(block, axis):
    """The members of a block, one list for each line along an axis."""
    others = [block[:axis], block[axis + 1 :]]
    for before in itertools.product(*others[0]):
        for after in itertools.product(*others[1]):
            yield [(*before, at, *after) for at in block[axis]]


# Coordinates along each axis, and 2 for an axis that forms a ring of even steps, 1 if open.
BLOCKS = {
    "an open line": ("tpu:v5e:4x4", ([0, 1, 2, 3], [1]), (1, 0)),
    "a closed line": ("tpu:v5e:2x16", ([1], [*range(16)]), (0, 2)),
    "a line with gaps": ("tpu:v5e:4x4", ([0, 2], [0, 3]), (1, 1)),
    "an open and a closed axis": ("tpu:v5e:2x16", ([0, 1], [*range(16)]), (1, 2)),
    "every second chip of a ring": ("tpu:v5p:4x4x4", ([0, 2], [1], [3]), (2, 0, 0)),
    "two neighbours in a ring": ("tpu:v5p:4x4x4", ([0, 1], [1], [3]), (1, 0, 0)),
    "a part and a whole axis": ("tpu:v5p:4x4x4", ([1, 2], [0, 1, 2, 3], [0]), (1, 2, 0)),
    "uneven steps": ("tpu:v4:4x8x4", ([0], [0, 1, 3, 4], [0, 2]), (0, 1, 2)),
    "a layer of open axes": ("tpu:v4:2x2x4", ([0, 1], [0, 1], [0, 1, 2, 3]), (1, 1, 1)),
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize(("kind", "rounds"), [("all-gather", 1), ("all-reduce", 2)])
def test_a_block_is_gathered_in_rings_along_its_axes(name, kind, rounds):
    text, block, weights = BLOCKS[name]
    topology = Topology.parse(text)
    devices = {tuple(at): i for i, at in enumerate(topology.coords[:, : len(block)].tolist())}
    members = [devices[at] for at in itertools.product(*block)]
    share = rounds * (len(members) - 1) / len(members)
    sends = []
    for axis, weight in enumerate(weights):
        for line in _rows_of_block(block, axis) if weight else ():
            sends += _ring(line, share * weight / sum(weights))
    links = route(topology, [members], kind)
    _same(_loads(links), _walked(topology, sends))
    assert links.hops.tolist() == [_most_hops(topology, sends)]


def _most_hops(topology: Topology, sends) -> int:
    most = 0
    for source, target, _ in sends:
        hops = 0
        for a, b, size, wrap in zip(source, target, topology.shape, topology.wraps, strict=True):
            hops += min(abs(a - b), size - abs(a - b)) if wrap else abs(a - b)
        most = max(most, hops)
    return most


@pytest.mark.parametrize("text", ["tpu:v5e:4x4", "tpu:v5p:4x4x4"])
def test_any_other_group_is_one_ring_in_its_own_order(text):
    topology = Topology.parse(text)
    coords = list(map(tuple, topology.coords[:, : len(topology.shape)].tolist()))
    members = [0, 5, 3, 10, 9]
    sends = _ring([coords[m] for m in members], 4 / 5)
    links = route(topology, [members], "reduce-scatter")
    _same(_loads(links), _walked(topology, sends))
    assert links.hops.tolist() == [_most_hops(topology, sends)]


@pytest.mark.parametrize("members", [range(32), [0, 1, 2, 5, 9, 12], [*range(0, 32, 2)]])
def test_devices_of_one_chip_exchange_over_its_links(members):
    topology = Topology.parse("tpu:7x:2x2x4")
    coords = topology.coords.tolist()
    share = 1 / len(members)
    pairs = [(coords[a], coords[b], share) for a, b in itertools.permutations(members, 2)]
    sends = [pair for pair in pairs if pair[0] != pair[1]]
    links = route(topology, [members], "all-to-all")
    _same(_loads(links), _walked(topology, sends))
    assert links.hops.tolist() == [_most_hops(topology, sends)]


def test_the_busiest_link_decides_how_long_sends_take():
    topology = Topology.parse("tpu:v5e:4x4*2")
    dice = np.random.default_rng(3)
    sends = np.stack([*dice.integers(0, 32, (2, 40)), dice.integers(1, 1 << 20, 40)], axis=1)
    coords = topology.coords[:, :2].tolist()
    inside, network = [], dict.fromkeys(range(32), 0)
    for source, target, size in sends.tolist():
        if topology.slice_indices[source] != topology.slice_indices[target]:
            network[source] += size
        elif coords[source] != coords[target]:
            first = topology.slice_indices[source]
            inside.append((int(first), coords[source], coords[target], size))
    loads = [
        _walked(topology, [send[1:] for send in inside if send[0] == number]) for number in (0, 1)
    ]
    busiest = max(load for slice_loads in loads for load in slice_loads.values())
    assert least_send_seconds(topology, sends) == {
        "ICI": pytest.approx(busiest / topology.chip.link_bandwidth),
        "network": pytest.approx(max(network.values()) / topology.chip.network_bandwidth),
    }


@pytest.mark.parametrize(
    ("text", "members", "used"),
    [
        # A ring of n chips has n links, an open line one less.
        ("tpu:v5e:2x16", [2 * y for y in range(16)], 16),
        ("tpu:v5e:2x8", [0, 2, 4, 6], 3),
        ("tpu:v5p:4x4x4", range(64), 3 * 64),
        ("tpu:v5e:4x4", range(16), 4 * 3 + 3 * 4),
        ("gpu:h100:2x8", range(16), 0),
    ],
)
def test_links_of_rings_and_lines_are_counted(text, members, used):
    topology = Topology.parse(text)
    at = Torus(topology).chip_of.tolist()
    devices = [at.index(chip) for chip in members]
    assert route(topology, [devices], "all-reduce").used == used


def test_a_send_of_a_device_to_itself_uses_nothing():
    gpus = Topology.parse("gpu:h100:2x8")
    itself = route(gpus, [(0, 0), (1, 2), (3, 8)], "collective-permute")
    assert itself.nvlink.tolist() == [0, 1] + [0] * 14
    assert itself.network.tolist() == [0, 0, 0, 1] + [0] * 12
    tpus = Topology.parse("tpu:v5e:4x4")
    assert route(tpus, [(0, 0)], "collective-permute").times(1e9) == {}


def test_pairs_are_walked_in_batches_that_add_up(monkeypatch):
    # Groups of five of 16 chips in no block: 20 pairs each.
    topology = Topology.parse("tpu:v5e:4x4")
    groups = [[0, 5, 3, 10, 9], [1, 2, 4, 7, 15], [6, 8, 11, 12, 14]]
    coords = topology.coords[:, :2].tolist()
    pairs = [(a, b) for group in groups for a, b in itertools.permutations(group, 2)]
    sends = [(coords[a], coords[b], 1 / 5) for a, b in pairs]
    add, sizes = interconnect._add, []

    def counted(links, source, target, share):
        sizes.append(len(source))
        return add(links, source, target, share)

    monkeypatch.setattr(interconnect, "_add", counted)
    for most, batches in ((1, [20, 20, 20]), (40, [40, 20]), (59, [40, 20]), (60, [60])):
        monkeypatch.setattr(interconnect, "MOST_PAIRS", most)
        sizes.clear()
        links = route(topology, groups, "all-to-all")
        assert sizes == batches
        _same(_loads(links), _walked(topology, sends))
        assert links.hops.tolist() == [_most_hops(topology, sends)]


def test_at_most_a_million_pairs_are_in_memory(monkeypatch):
    # 255 of 256 chips are no block: 255 * 254 = 64,770 pairs. A million have room for 16 slices.
    topology = Topology.parse("tpu:v5e:16x16*17")
    groups = np.arange(17 * 256).reshape(17, 256)[:, :255]
    sizes = []

    def counted(links, source, target, share):
        sizes.append(len(source))
        return 0

    monkeypatch.setattr(interconnect, "_add", counted)
    route(topology, groups, "all-to-all")
    assert sizes == [16 * 64_770, 64_770]


def test_a_box_is_exchanged_along_its_lines_only(monkeypatch):
    # 16 chips along each axis: 16 * 15 pairs for each of 16 lines, twice.
    sizes = []

    def counted(links, source, target, share):
        sizes.append(len(source))
        return 0

    monkeypatch.setattr(interconnect, "_add", counted)
    route(Topology.parse("tpu:v5e:16x16"), [range(256)], "all-to-all")
    assert sizes == [16 * 15 * 16] * 2


KNOWN = Collective("all-gather", ("x",), 1 << 20)
UNROUTED = {
    "no groups and no axes": Collective("all-gather", (), 1 << 20),
    "the axes of a permutation": Collective("collective-permute", ("x",), 1 << 20),
    "an axis of another mesh": Collective("all-gather", ("z",), 1 << 20),
    "smaller groups than its axes": Collective("all-gather", ("x",), 1 << 20, group_size=2),
}


@pytest.mark.parametrize("name", UNROUTED)
def test_a_collective_whose_groups_are_unknown_has_no_links(name):
    mesh, topology = make_mesh(y=4, x=4), Topology.parse("tpu:v5e:4x4")
    assert collective_link_use(KNOWN, mesh, topology) is not None
    assert collective_link_use(UNROUTED[name], mesh, topology) is None


def test_groups_and_axes_of_a_collective_are_the_same_links():
    mesh, topology = make_mesh(y=4, x=4), Topology.parse("tpu:v5e:4x4")
    groups = tuple(map(tuple, groups_over(mesh, ["x"]).tolist()))
    grouped = Collective("all-gather", (), 1 << 20, groups=groups)
    by_axes = collective_link_use(KNOWN, mesh, topology)
    _same(_loads(collective_link_use(grouped, mesh, topology)), _loads(by_axes))


def _bidirectional(topology: Topology) -> float:
    return 2 * (topology.chip.link_bandwidth or math.nan)


# Formulas and worked answers of the scaling book, parts 3 and 12; V bytes, n members.
BOOK = [
    ("one closed axis", "tpu:v5e:16x16", "y=16, x=16", "x", "all-gather", 15 / 16, 1, 8),
    ("one open axis takes twice", "tpu:v5e:8x4", "y=4, x=8", "y", "all-gather", 2 * 3 / 4, 1, 3),
    ("two closed axes", "tpu:v5e:16x16", "y=16, x=16", "xy", "all-gather", 255 / 256, 2, 16),
    ("three closed axes", "tpu:v5p:4x4x4", "z=4, y=4, x=4", "xyz", "all-gather", 63 / 64, 3, 6),
    ("a scatter", "tpu:v5p:4x4x4", "z=4, y=4, x=4", "z", "reduce-scatter", 3 / 4, 1, 2),
    ("a reduction is two", "tpu:v5p:4x4x4", "z=4, y=4, x=4", "z", "all-reduce", 2 * 3 / 4, 1, 2),
    ("an exchange is a quarter of the whole array", "tpu:v5e:16x16", "y=16, x=16", "x",
     "all-to-all", 16 / 4, 1, 8),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "axes", "over", "kind", "factor", "rings", "hops"),
    [b[1:] for b in BOOK],
    ids=[b[0] for b in BOOK],
)
def test_times_are_those_of_the_scaling_book(text, axes, over, kind, factor, rings, hops):
    topology, mesh = Topology.parse(text), make_mesh(axes)
    rows = device_rows(mesh, topology)
    links = route(topology, rows[groups_over(mesh, list(over))], kind)
    size = 3 << 20
    wanted = factor * size / (_bidirectional(topology) * rings)
    assert links.times(size) == {"ICI": pytest.approx(wanted)}
    # Part 3: "Each hop over an ICI link has some intrinsic overhead ... around 1us."
    assert links.steps == {"ICI": hops}
    assert links.seconds(size) == pytest.approx(wanted + hops * 1e-6)


def test_gpus_take_the_longer_of_nvlink_and_network():
    # Part 12: B (8-1)/(8 * 450e9) inside a node, B (2-1)/(2 * 400e9) between two.
    topology = Topology.parse("gpu:h100:2x8")
    size = 1 << 30
    inside = route(topology, [range(8)], "all-gather").times(size)
    assert inside == {"NVLink": pytest.approx(size * 7 / 8 / 450e9)}
    both = route(topology, [range(16)], "all-gather").times(size)
    assert both["network"] == pytest.approx(size / 2 / 400e9)
    assert both["NVLink"] == pytest.approx(size * 7 / 8 / 450e9)
    # An all-to-all of V bytes over M nodes: V (M-1) / (M^2 * 400e9); V = 16 shares of `size`.
    exchange = route(topology, [range(16)], "all-to-all").times(size)
    assert exchange["network"] == pytest.approx(16 * size * (2 - 1) / (2**2 * 400e9))


# NCCL, src/graph/tuning.cc and src/sym_kernels.cc: seconds of each, however few bytes.
NCCL = [
    ("a gather in one host", "gpu:h100:1x8", 8, "all-gather", 4.5e-6),
    ("a sum in one host", "gpu:b200:1x8", 8, "all-reduce", 6.6e-6),
    ("an exchange in one host", "gpu:h100:1x8", 8, "all-to-all", 0.6e-6),
    ("an exchange of hosts", "gpu:h100:4x8", 32, "all-to-all", 2.7e-6),
    ("16 hosts double their data four times", "gpu:h100:16x8", 128, "all-gather", 4 * 2.7e-6),
    ("two hosts", "gpu:a100:2x8", 16, "reduce-scatter", 4.5e-6),
]


@pytest.mark.parametrize(
    ("text", "count", "kind", "latency"), [n[1:] for n in NCCL], ids=[n[0] for n in NCCL]
)
def test_latencies_of_gpus_are_those_of_nccl(text, count, kind, latency):
    links = route(Topology.parse(text), [range(count)], kind)
    assert links.seconds(1) == pytest.approx(latency, rel=1e-3)


def test_the_latency_of_a_permutation_is_that_of_its_longest_way():
    topology = Topology.parse("tpu:v5e:8x8")  # open axes
    row = [(n, (n + 1) % 64) for n in range(64)]
    links = route(topology, row, "collective-permute")
    assert links.latency("ICI") == pytest.approx(links.hops[0] * 1e-6)


def test_a_latency_that_is_not_published_is_left_out():
    links = route(Topology.parse("tpu:v5e:4x4*2"), [range(32)], "all-gather")
    assert links.latency("network") is None
    assert links.seconds(1 << 30) == links.times(1 << 30)["network"]


def test_many_small_collectives_take_longer_than_a_large_one():
    topology = Topology.parse("tpu:v5e:16x16")
    links = route(topology, [range(n, n + 16) for n in range(0, 256, 16)], "all-gather")
    many, large = 583 * links.seconds(1 << 20), links.seconds(583 << 20)
    assert many - large == pytest.approx(582 * links.latency("ICI"))
    assert many > 1.3 * large


def test_slices_are_joined_by_the_network():
    topology = Topology.parse("tpu:v5e:4x4*2")
    rows = np.arange(32)
    links = route(topology, [rows], "all-reduce")
    assert links.network == pytest.approx(np.full(32, 2 * (1 / 2) / 16))
    assert links.times(1e9)["network"] == pytest.approx(1e9 / 16 / 3.125e9)
    across = route(topology, rows.reshape(2, 16).T, "all-reduce")
    assert across.used == 0
    assert across.times(1e9) == {"network": 1e9 / 3.125e9}
    pairs = [(0, 16), (16, 0), (1, 2)]
    moved = route(topology, pairs, "collective-permute")
    assert moved.network[[0, 16, 1]].tolist() == [1, 1, 0]


def test_two_devices_of_a_chip_need_no_link_and_share_those_of_the_chip():
    topology = Topology.parse("tpu:7x:4x4x4")
    same = np.arange(topology.devices).reshape(-1, 2)
    assert (topology.coords[same[:, 0]] == topology.coords[same[:, 1]]).all()
    assert route(topology, same, "all-gather").used == 0
    one = route(topology, [range(128)], "all-gather")
    assert one.ici.max() == pytest.approx(63 / 64 / 6)
    halves = route(topology, same.T, "all-gather")
    assert halves.ici.max() == pytest.approx(2 * 63 / 64 / 6)
    assert (halves.chip_group == -2).all()


def test_chips_say_whose_they_are():
    topology, mesh = Topology.parse("tpu:v5e:4x4"), make_mesh(y=4, x=4)
    rows = device_rows(mesh, topology)
    links = route(topology, rows[groups_over(mesh, ["x"])], "all-gather")
    assert links.used == 12
    torus = Torus(topology)
    assert (links.chip_group == torus.coords[:, 1]).all()
    assert (route(topology, [range(4)], "all-gather").chip_group == -1).sum() == 12


def test_rates_that_are_not_published_give_no_time():
    links = route(Topology.parse("tpu:v2:4x4"), [range(32)], "all-gather")
    assert links.times(1e9) == {"ICI": None}
    assert links.seconds(1e9) is None


def test_devices_are_found_by_their_ids_in_any_order():
    topology = Topology.parse("tpu:v5e:4x4*2")
    ids = np.random.default_rng(1).permutation(topology.device_ids)
    mesh = make_mesh(data=4, model=8, device_ids=ids)
    assert (topology.device_ids[device_rows(mesh, topology)] == ids).all()
    plain = device_rows(make_mesh(data=32), topology)
    assert (topology.device_ids[plain] == np.sort(topology.device_ids)).all()
    part = make_mesh(data=4, device_ids=topology.device_ids[:4])
    assert device_rows(part, topology).tolist() == [0, 1, 2, 3]


WRONG = {
    "a device too many": lambda t: route(t, [[0, 99]], "all-gather"),
    "the number after the last device": lambda t: route(t, [[0, 16]], "all-gather"),
    "a device below 0": lambda t: route(t, [[-1]], "all-gather"),
    "a kind": lambda t: route(t, [[0]], "gossip"),
    "a mesh too small": lambda t: device_rows(make_mesh(data=8), Topology.parse("tpu:v5e:4x4*2")),
    "a mesh of other devices": lambda t: device_rows(
        make_mesh(data=16, device_ids=range(100, 116)), t
    ),
    "a part of other devices": lambda t: device_rows(
        make_mesh(data=4, device_ids=[13, 14, 15, 16]), t
    ),
    "a mesh too large": lambda t: device_rows(make_mesh(data=64), t),
    "an axis": lambda t: groups_over(make_mesh(data=8), ["dta"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_routed_is_refused(name):
    with pytest.raises((TargetError, MeshError)):
        WRONG[name](Topology.parse("tpu:v5e:4x4"))
