"""The best order of devices, against brute force with the roofline's own times."""

import itertools
import math
from functools import cache

import numpy as np
import pytest

import shardviz as sv
from shardviz.advise.backend.proposals import order_edit
from shardviz.base.collective import Collective
from shardviz.compiled.orders import best_order
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import collective_bound, roofline
from shardviz.hardware.interconnect import groups_over
from shardviz.hardware.topology import Topology
from shardviz.move.movement import shift

LONG = pytest.mark.long
SETS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")
SMALL = ("tpu:v5e:2x2", "tpu:v5e:2x4", "tpu:v5p:2x2x2", "gpu:h100:2x4", "tpu:7x:2x2x1")
LARGE = (
    *SMALL, "tpu:v5e:4x4", "tpu:v6e:2x8", "tpu:v5p:4x4x2", "tpu:v5e:4x8", "gpu:h100:8x4",
    "tpu:v5e:4x6", "tpu:v5e:2x4*2", "tpu:v5p:2x4x4", "tpu:v5e:2x16", "tpu:v5p:4x4x4",
)  # fmt: skip


def seconds(topology, mesh, collectives):
    total = 0.0
    for one in collectives:
        total += collective_bound(one, topology.chip, topology, mesh).seconds
    return total


def divisions(number, parts):
    """Every way to write a number as a product of so many sizes above 1."""
    if parts == 1:
        return [(number,)] if number > 1 else []
    found = []
    for first in range(2, number):
        if number % first == 0:
            found += [(first, *rest) for rest in divisions(number // first, parts - 1)]
    return found


def primes(number):
    for factor in range(2, number + 1):
        if number % factor == 0:
            return [factor, *primes(number // factor)]
    return []


@cache
def all_orders(text, sizes):
    """Device ids of every assignment: each prime factor of a dimension to any axis."""
    topology = Topology.parse(text)
    where = np.stack([topology.slice_indices, *topology.coords.T[::-1], topology.cores])
    if topology.chip.platform == "gpu":
        where = np.stack([topology.process_indices, topology.coords[:, 0]])
    natural = topology.device_ids[np.lexsort(where[::-1])]
    splits = []
    for row in where:
        splits.append(sorted(set(itertools.permutations(primes(len(set(row.tolist())))))))
    found = {}
    for split in itertools.product(*splits):
        factors = [factor for part in split for factor in part]
        for owners in itertools.product(range(len(sizes)), repeat=len(factors)):
            lengths = [1] * len(sizes)
            for factor, owner in zip(factors, owners, strict=True):
                lengths[owner] *= factor
            if tuple(lengths) == sizes:
                order = sorted(range(len(factors)), key=lambda n: owners[n])
                ids = natural.reshape(factors).transpose(order).reshape(sizes)
                found[ids.tobytes()] = ids
    return list(found.values())


def random_case(rng, texts, permutes):
    """A topology, a mesh over it in a random order, and up to three collectives."""
    text = texts[rng.integers(len(texts))]
    topology = Topology.parse(text)
    choices = []
    for parts in (1, 2, 3):
        choices += divisions(topology.devices, parts)
    sizes = choices[rng.integers(len(choices))]
    names = tuple("abc"[: len(sizes)])
    ids = topology.device_ids
    if rng.random() < 0.5:
        ids = rng.permutation(ids)
    mesh = sv.mesh(dict(zip(names, sizes, strict=True)), device_ids=ids)
    collectives = []
    for _ in range(rng.integers(1, 4)):
        axes = tuple(rng.permutation(names)[: rng.integers(1, len(names) + 1)].tolist())
        size, kind = int(rng.integers(1, 1 << 24)), SETS[rng.integers(len(SETS))]
        trips = int(rng.integers(1, 5))
        collectives.append(Collective(kind, axes, size, trips=trips))
    if permutes:
        axis = (names[rng.integers(len(names))],)
        collectives.append(shift(groups_over(mesh, axis), axis, 1 << 22))
    return text, topology, mesh, collectives


@pytest.mark.parametrize(
    "seed", [*range(60), *(pytest.param(s, marks=LONG) for s in range(60, 200))]
)
def test_equals_brute_force_over_all_assignments(seed):
    rng = np.random.default_rng(seed)
    text, topology, mesh, collectives = random_case(rng, LARGE, permutes=False)
    now = seconds(topology, mesh, collectives)
    least = now
    costs = {}
    for ids in all_orders(text, mesh.axis_sizes):
        other, total = mesh.replace(device_ids=ids), 0.0
        for one in collectives:
            groups = np.sort(ids.reshape(-1)[groups_over(other, one.mesh_axes)], axis=1)
            key = (one, groups[np.argsort(groups[:, 0])].tobytes())
            if key not in costs:
                costs[key] = seconds(topology, other, [one])
            total += costs[key]
        least = min(least, total)
    found = best_order(mesh, topology, collectives)
    if found is None:
        assert least == pytest.approx(now)
        return
    assert found.least == pytest.approx(least)
    assert found.seconds == pytest.approx(now)
    assert seconds(topology, found.mesh, collectives) == pytest.approx(found.least)
    assert sorted(found.mesh.device_ids.flat) == sorted(topology.device_ids)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(s, marks=LONG) for s in range(3, 12))])
def test_no_permutation_of_a_few_chips_is_better(seed):
    rng = np.random.default_rng(seed)
    _, topology, mesh, collectives = random_case(rng, SMALL, permutes=seed % 2)
    groups = []
    for one in collectives:
        groups.append(np.array(one.groups or groups_over(mesh, one.mesh_axes)))
    costs, least = {}, math.inf
    for order in itertools.permutations(range(topology.devices)):
        rows, total = np.array(order), 0.0
        for number, one in enumerate(collectives):
            physical = rows[groups[number]]
            if one.kind != "collective-permute":
                physical.sort(axis=1)
            physical = physical[np.argsort(physical[:, 0])]
            key = number, physical.tobytes()
            if key not in costs:
                ids = topology.device_ids[rows]
                costs[key] = seconds(topology, mesh.replace(device_ids=ids), [one])
            total += costs[key]
        least = min(least, total)
    found = best_order(mesh, topology, collectives)
    present = seconds(topology, mesh, collectives)
    assert (found.least if found else present) == pytest.approx(least)


@pytest.mark.parametrize("seed", range(20))
def test_a_permutation_goes_no_slower_than_in_any_assignment(seed):
    rng = np.random.default_rng(1000 + seed)
    text, topology, mesh, collectives = random_case(rng, LARGE, permutes=True)
    found = best_order(mesh, topology, collectives)
    least = seconds(topology, found.mesh if found else mesh, collectives)
    for ids in all_orders(text, mesh.axis_sizes)[:200]:
        other = mesh.replace(device_ids=ids)
        assert least <= seconds(topology, other, collectives) * (1 + 1e-6)


class FakeDevice:
    def __init__(self, topology, row):
        kinds = {"v5e": "TPU v5 lite", "v5p": "TPU v5p", "v4": "TPU v4", "v6e": "TPU v6 lite"}
        self.id, self.platform = int(topology.device_ids[row]), "tpu"
        self.coords = tuple(topology.coords[row].tolist())
        self.core_on_chip, self.slice_index = 0, 0
        self.process_index = int(topology.process_indices[row])
        self.device_kind = kinds[topology.chip.name]


def jax_order(topology, sizes):
    from jax.experimental import mesh_utils

    devices = [FakeDevice(topology, row) for row in range(topology.devices)]
    grid = mesh_utils.create_device_mesh(sizes, devices)
    return np.vectorize(lambda device: device.id)(grid)


# jax lays each of these axes over whole dimensions, in rings, and there is no better way.
USUAL = [
    ("tpu:v5p:4x4x4", (4, 16), ("all-gather", 1)),
    ("tpu:v5p:4x4x4", (16, 4), ("all-reduce", 0)),
    ("tpu:v4:4x4x8", (8, 16), ("all-gather", 1)),
    ("tpu:v5e:16x16", (16, 16), ("all-reduce", 0)),
    ("tpu:v5e:16x16", (256,), ("all-reduce", 0)),
    ("tpu:v5e:4x4", (16,), ("reduce-scatter", 0)),
]


@pytest.mark.parametrize(("text", "sizes", "sent"), USUAL)
def test_where_jax_uses_whole_rings_nothing_is_better(text, sizes, sent):
    topology, names = Topology.parse(text), "ab"[: len(sizes)]
    ids = jax_order(topology, sizes)
    mesh = sv.mesh(dict(zip(names, sizes, strict=True)), device_ids=ids)
    kind, axis = sent
    collectives = [Collective(kind, (names[axis],), 1 << 26)]
    found = best_order(mesh, topology, collectives)
    # A square has shorter ways than a ring, which saves a little latency.
    assert found is None or found.least == pytest.approx(found.seconds, rel=0.01)


# jax lays an axis of 4 over an open line, where a square of neighbours has a ring.
@pytest.mark.parametrize("text", ["tpu:v5e:4x4", "tpu:v6e:4x4"])
def test_an_open_line_is_no_ring(text):
    topology = Topology.parse(text)
    mesh = sv.mesh(data=4, model=4, device_ids=jax_order(topology, (4, 4)))
    found = best_order(mesh, topology, [Collective("all-reduce", ("data",), 1 << 26)])
    assert found is not None
    assert (found.axes, found.hops, found.possible) == (("data",), 3, 1)
    assert found.seconds / found.least == pytest.approx(2.0, rel=0.01)


def test_a_square_in_rows_is_no_ring_for_a_permutation():
    # jax#20305: 4 devices as 0, 2, 1, 3 of a square.
    topology = Topology.parse("tpu:v5e:2x2")
    mesh = sv.mesh(data=4, device_ids=[0, 2, 1, 3])
    around = shift(groups_over(mesh, ("data",)), ("data",), 1 << 20)
    found = best_order(mesh, topology, [around])
    assert found is not None
    # Each hop crosses other links, so it costs only its latency.
    assert (found.hops, found.possible) == (2, 1)
    assert found.seconds - found.least == pytest.approx(1e-6)
    moved = sv.movement(around, mesh=mesh, topology=topology)
    assert moved.hops == 2
    assert sv.movement(around, mesh=found.mesh, topology=topology).hops == 1
    assert [note.code for note in moved.notes] == ["hops"]


@pytest.mark.parametrize(
    ("kind", "topology", "mesh", "hops"),
    [
        ("all-reduce", "tpu:v5e:4x4", {"a": 4, "b": 4}, 3),  # from the last to the first
        ("all-reduce", "tpu:v5p:4x4x4", {"a": 4, "b": 16}, 1),
        ("all-gather", "tpu:v5e:16x16", {"a": 4, "b": 4, "c": 16}, 4),  # every fourth
        ("all-to-all", "tpu:v5e:4x4", {"a": 16}, 6),  # between opposite corners
        ("all-gather", "tpu:7x:2x2x1", {"a": 4, "b": 2}, 1),
        ("all-gather", "gpu:h100:2x8", {"a": 16}, None),
    ],
)
def test_a_movement_says_how_many_links_it_crosses(kind, topology, mesh, hops):
    moved = sv.movement(kind, mesh=mesh, axes="a", size="1 MiB", topology=topology)
    assert moved.hops == hops


def test_of_some_devices_or_without_rates_nothing_is_said():
    gather = [Collective("all-gather", ("data",), 1 << 20)]
    topology = Topology.parse("tpu:v5e:4x4")
    assert best_order(sv.mesh(data=8), topology, gather) is None
    assert best_order(sv.mesh(data=4, model=4), topology, []) is None
    unknown = Topology.parse("tpu:v2:4x4")
    assert best_order(sv.mesh(data=4, model=8), unknown, gather) is None


def test_the_edit_compiles_to_what_was_promised():
    arrays = sv.array("x", (256, 64), spec="data"), sv.array("w", (64, 64), spec="None, model")
    program = sv.program(lambda x, w: x.T @ (x @ w), *arrays, mesh=sv.mesh(data=4, model=4))
    before = sv.compile(program, "tpu:v5e:4x4")
    assert before.ok, before.error
    order = before.roofline.order
    assert (order.code, order.hops, order.possible) == ("hops", 3, 1)
    assert str(order) in sv.text(before).replace("\n  ", " ")
    assert str(order) in sv.text(before.roofline).replace("\n  ", " ")
    assert sv.movement(before).order == order
    edit = order_edit(program, before)
    assert edit is not None
    found = sv.changes(before)[-1]
    assert found.edits[0] == edit
    assert found.values.ok
    sent = [(one.kind, one.mesh_axes, one.bytes_per_device) for one in found.collectives]
    assert sent == [(o.kind, o.mesh_axes, o.bytes_per_device) for o in before.collectives]
    assert found.report.mesh.device_ids.tolist() == edit.mesh.device_ids.tolist()
    assert found.report.roofline.collective_s == pytest.approx(order.least)
    assert found.report.roofline.order is None
    pasted = eval(found.code().removeprefix("mesh = "), {"sv": sv})  # noqa: S307
    assert pasted == found.program.mesh


def test_a_roofline_with_operations_looks_for_no_order_again():
    gather = Collective("all-gather", ("data",), 1 << 20)
    mesh = sv.mesh(data=4, model=4)
    bare = Report("f", "", collectives=(gather,), mesh=mesh)
    first = roofline(bare, "tpu:v5e:4x4", mesh)
    assert first.order is not None
    again = roofline(bare.replace(roofline=first), "tpu:v5e:4x4", mesh)
    assert again.order is first.order
    # Another topology has another order, or none.
    assert roofline(bare.replace(roofline=first), "tpu:v5e:2x8", mesh).order != first.order


def test_a_search_over_the_order_of_devices_takes_the_best():
    arrays = sv.array("x", (256, 64), spec="data"), sv.array("w", (64, 64), spec="None, model")
    program = sv.program(lambda x, w: x.T @ (x @ w), *arrays, mesh=sv.mesh(data=4, model=4))
    found = sv.search(program, over="device order", target="tpu:v5e:4x4")
    assert found.best is not None
    assert [edit.code for edit in found.best.edits] == ["device order"]
    order = found.before.roofline.order
    assert found.best.report.roofline.collective_s == pytest.approx(order.least)
    assert found.best.values.ok
    assert len(found) == 2
