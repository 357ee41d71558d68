"""The best order of devices, against brute force with the roofline's own times."""

import itertools
import math
from functools import cache

import numpy as np
import pytest

import shardviz as sv
from shardviz.core.hardware.interconnect import groups_over
from shardviz.core.hardware.topology import Topology
from shardviz.core.program.movement import shift
from shardviz.core.program.orders import best_order
from shardviz.core.program.report import Collective
from shardviz.core.program.roofline import collective_bound

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


@pytest.mark.parametrize("seed", range(200))
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


@pytest.mark.parametrize("seed", range(12))
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
