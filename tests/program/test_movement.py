"""The steps of collectives and reshards, applied to numbers, give what JAX gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.base.collective import Collective
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.compiled.read_collectives import read_collectives
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import roofline
from shardviz.hardware.interconnect import groups_over, route
from shardviz.hardware.topology import Topology
from shardviz.move.movement import (
    Movement,
    collective_movement,
    movement_of,
    shift,
)
from shardviz.move.movement_steps import REGULAR
from shardviz.runs.backend.compile import final_module
from tests.program import movement_oracle as oracle

CASES = oracle.cases()
BYTES = 16 * 16 * 9 * 4  # divides over every group, in halves too


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, np.ndarray]:
    path = tmp_path_factory.mktemp("oracle") / "results.npz"
    command = [sys.executable, "-m", "tests.program.movement_oracle", str(path)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    with np.load(path) as found:
        return dict(found)


def sent_by_device(m: Movement) -> np.ndarray:
    sent = np.zeros(m.size, np.int64)
    for step in m.steps:
        np.add.at(sent, step.source, m.chunks.bytes[step.chunk])
    return sent


def every_group(kind: str, mesh: MeshSpec, axes: tuple[str, ...], topology: Any) -> list[Movement]:
    groups = groups_over(mesh, axes)
    collective = Collective(kind, axes, BYTES)
    if kind == "collective-permute":
        collective = shift(groups, axes, BYTES)
    return [movement_of(collective, mesh, topology, g) for g in range(len(groups))]


def meshes_of(name: str) -> list[tuple[MeshSpec, Topology | None]]:
    """A mesh on one host, on two, on an open torus and on a closed one."""
    sizes, _ = oracle.MESHES[name]
    ids = oracle.ids_of(name)
    made = [(MeshSpec(tuple("abc"[: len(sizes)]), sizes, (), ids), None)]
    if ids.size % 2 == 0:
        hosts = np.sort(np.arange(ids.size) % 2).reshape(sizes)
        made.append((made[0][0].replace(process_indices=hosts), None))
    if ids.size == 16:
        made += [(made[0][0], Topology.parse(t)) for t in ("tpu:v5e:4x4", "tpu:v5p:4x4x4")]
    return made


def test_there_are_many_cases():
    assert len(CASES) >= 150
    assert {kind for *_, kind in CASES} == set(oracle.KINDS)


@pytest.mark.parametrize("name", oracle.MESHES)
def test_executed_steps_give_what_jax_gives_and_send_the_bytes_of_the_formula(name, results):
    values, tried = oracle.values_of(name), set()
    for mesh, topology in meshes_of(name):
        for mesh_name, axes, kind in CASES:
            if mesh_name != name:
                continue
            wanted = results[f"{name} {''.join(axes)} {kind}"]
            reached = []
            for m in every_group(kind, mesh, axes, topology):
                tried.add((m.method.name, len(m.method.directions)))
                at = [mesh.position(int(d)) for d in m.devices]
                got = m.execute(values[at])
                np.testing.assert_array_equal(np.stack(got), wanted[at], f"{axes} {m}")
                reached += at
                assert (sent_by_device(m) == m.sent_bytes).all(), m
                assert m.sent_bytes == Collective(kind, axes, BYTES, group_size=m.size).sent_bytes
                assert sum(step.bytes for step in m.steps) == m.sent_bytes
            assert sorted(reached) == list(range(mesh.size))
    assert {("ring", 1), ("direct", 1)} <= tried
    if values.shape[0] == 16:
        assert {("torus", 1), ("torus", 2), ("hosts", 1)} <= tried
    if name == "4x4":
        assert ("both directions", 2) in tried


def network_share(m: Movement, kind: str, topology: Topology) -> tuple[float, float]:
    """The bytes over the network that a device sends, and what `route` gives."""
    network = np.zeros(m.size)
    for step in m.steps:
        far = step.network
        np.add.at(network, step.source[far], m.chunks.bytes[step.chunk[far]])
    use = route(topology, [np.arange(m.size)], kind)
    return float(network.max()), float(use.network.max() * m.bytes_per_device)


@pytest.mark.parametrize("kind", [k for k in REGULAR if k != "all-to-all"])
@pytest.mark.parametrize("text", ["gpu:h100:2x8", "gpu:h100:4x4", "tpu:v5e:4x4*2"])
def test_two_levels_send_over_the_network_what_the_roofline_counts(kind, text):
    topology = Topology.parse(text)
    made = sv.movement(kind, size=BYTES, topology=text)
    assert made.method.name in ("hosts", "torus")
    ours, counted = network_share(made, kind, topology)
    assert ours == pytest.approx(counted)
    assert made.seconds == route(topology, [np.arange(made.size)], kind).seconds(BYTES)


@pytest.mark.parametrize("kind", REGULAR)
def test_a_movement_takes_as_long_as_the_roofline_says_in_any_device_order(kind):
    order = np.random.default_rng(20305).permutation(16)  # groups then share links
    mesh = MeshSpec(("data", "model"), (4, 4), device_ids=order.reshape(4, 4))
    topology = Topology.parse("tpu:v5e:4x4")
    for axis in mesh.axis_names:
        collective = Collective(kind, (axis,), BYTES)
        report = Report("f", "tpu:v5e:4x4", collectives=(collective,))
        [row] = roofline(report, topology, mesh).rows
        for group in range(4):
            assert movement_of(collective, mesh, topology, group).seconds == row.seconds


@pytest.mark.parametrize("kind", REGULAR)
def test_nothing_is_counted_or_sent_twice_and_all_is_complete(kind):
    for count, hosts in ((2, None), (3, None), (8, np.arange(8) % 2), (6, np.arange(6) // 3)):
        m = collective_movement(kind, count, BYTES, hosts)
        counts, before = list(m.counts()), m.holdings(0)
        for number, step in enumerate(m.steps, 1):
            after = m.holdings(number)
            if step.adds:  # what arrives is not there yet
                assert not (before[step.source, step.chunk] & before[step.target, step.chunk]).any()
            assert (after.sum(-1) == counts[number]).all()
            pairs = np.stack([step.target, step.chunk])
            assert len(np.unique(pairs, axis=1).T) == len(step.source)
            before = after
        assert (counts[0][m.start] == 1).all()
        assert (counts[-1][m.end] == m.contributors).all()


KERNELS = {
    "all-reduce": (lambda b: jax.lax.psum(b, "a"), 0),
    "all-gather": (lambda b: jax.lax.all_gather(b, "a", tiled=True), 0),
    "reduce-scatter": (lambda b: jax.lax.psum_scatter(b, "a", tiled=True), 0),
    "all-to-all": (lambda b: jax.lax.all_to_all(b, "a", 0, 0, tiled=True), 0),
    "collective-permute": (
        lambda b: jax.lax.ppermute(b, "a", [(0, 2), (2, 1), (1, 0)]), 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KERNELS)
def test_the_collective_of_a_compiled_program_has_its_movement(eight_devices, kind):
    mesh = Mesh(np.array(eight_devices).reshape(4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    fn = jax.shard_map(
        KERNELS[kind][0], mesh=mesh, in_specs=P(("a", "b")), out_specs=P(("a", "b")),
        check_vma=False,
    )  # fmt: skip
    values = np.random.default_rng(0).integers(0, 99, (8, 4, 3)).astype(np.int32)
    lowered = jax.jit(fn).lower(values.reshape(32, 3)).compile()
    ours = make_mesh(a=4, b=2)
    found = read_collectives(final_module(lowered), ("a", "b"), (4, 2))
    assert [c.kind for c in found] == [kind]
    wanted = np.stack(np.split(np.asarray(fn(values.reshape(32, 3))), 8))
    report = Report("f", "cpu × 8", collectives=found, mesh=ours)
    reached: list[int] = []
    for group in range(2):
        m = sv.movement(report, 0, group=group)
        at = m.devices.tolist()
        got = m.execute(values[at])
        np.testing.assert_array_equal(np.stack(got), wanted[at])
        assert m.bytes_per_device == found[0].bytes_per_device
        reached += at
    # Devices that neither send nor receive are in no chain of a permutation.
    assert sorted(reached) == ([*range(6)] if kind == "collective-permute" else [*range(8)])
