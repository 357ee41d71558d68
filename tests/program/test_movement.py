"""The steps of collectives and reshards, applied to numbers, give what JAX gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.api.movements import shift_over
from shardviz.core.backend.run.compile import final_module
from shardviz.core.errors import ProgramError
from shardviz.core.hardware.interconnect import route
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.layout import Layout, lay_out
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.transfer.reshard_moves import step_numbers
from shardviz.core.program.movement import (
    Movement,
    collective_movement,
    movement_of,
    reshard_movement,
)
from shardviz.core.program.movement_steps import ALGORITHMS, REGULAR
from shardviz.core.program.report import Collective, Report
from shardviz.core.program.roofline import roofline
from shardviz.core.xla.collectives import read_collectives
from tests.program import movement_oracle as oracle

CASES = oracle.cases()
BYTES = 16 * 16 * 9 * 4  # divides over every group, in halves too
CONCAT = {"all-gather": 1, "all-to-all": 1}


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, np.ndarray]:
    path = tmp_path_factory.mktemp("oracle") / "results.npz"
    command = [sys.executable, "-m", "tests.program.movement_oracle", str(path)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    with np.load(path) as found:
        return dict(found)


def sent_by_device(m: Movement) -> np.ndarray:
    sent = np.zeros(m.size, np.int64)
    for step in m.every_step():
        np.add.at(sent, step.source, m.chunks.bytes_of(step.chunk))
    return sent


def possible(kind: str, mesh: MeshSpec, axes: tuple[str, ...], topology: Topology | None):
    """Each algorithm that a group has, with its movements: in every group for
    the default one, in the last for the others, since all groups do the same.
    """
    groups = mesh.size // int(np.prod([mesh.shape[a] for a in axes]))
    collective = Collective(kind, axes, BYTES)
    if kind == "collective-permute":
        collective = shift_over(mesh, axes, BYTES)
    names = (None, *ALGORITHMS) if kind in REGULAR else (None,)
    for name in names:
        some = range(groups) if name is None else (groups - 1,)
        made = [_made(collective, mesh, topology=topology, group=g, algorithm=name) for g in some]
        if None not in made:
            yield name, made


def _made(*args: Any, **options: Any) -> Movement | None:
    """The movement, or None where the group has not what the algorithm needs."""
    try:
        return movement_of(*args, **options)
    except ProgramError as error:
        if "does not fit this group" not in str(error):
            raise
        return None


def mesh_of(name: str) -> tuple[MeshSpec, Topology | None]:
    sizes, _ = oracle.MESHES[name]
    ids = oracle.ids_of(name)
    hosts = np.sort(np.arange(ids.size) % 2).reshape(sizes) if ids.size % 2 == 0 else None
    mesh = MeshSpec(tuple("abc"[: len(sizes)]), sizes, (), ids, hosts)
    return mesh, Topology.parse("tpu:v5e:4x4") if ids.size == 16 else None


def test_there_are_many_cases():
    assert len(CASES) >= 150
    assert {kind for *_, kind in CASES} == set(oracle.KINDS)


@pytest.mark.parametrize("name", oracle.MESHES)
def test_executed_steps_give_what_jax_gives(name, results):
    mesh, topology = mesh_of(name)
    values = oracle.values_of(name)
    tried = set()
    for mesh_name, axes, kind in CASES:
        if mesh_name != name:
            continue
        wanted = results[f"{name} {''.join(axes)} {kind}"]
        for algorithm, movements in possible(kind, mesh, axes, topology):
            tried.add((kind, algorithm))
            reached = []
            for m in movements:
                at = [mesh.position(int(d)) for d in m.devices]
                got = m.execute(values[at], concat=CONCAT.get(kind, 0))
                np.testing.assert_array_equal(np.stack(got), wanted[at], f"{axes} {m}")
                reached += at
            if algorithm is None:
                assert sorted(reached) == list(range(mesh.size))
    always = (None, "ring", "both directions")
    rings = REGULAR[:3]
    assert {(kind, a) for kind in rings for a in always} <= tried
    assert ("all-to-all", "direct") in tried
    if topology is not None:
        assert {(kind, "torus") for kind in rings} <= tried
    if len(mesh.processes) > 1 and mesh.size > 4:
        assert {(kind, "hosts") for kind in rings} <= tried


@pytest.mark.parametrize("name", oracle.MESHES)
def test_bytes_are_those_of_the_formula(name):
    mesh, topology = mesh_of(name)
    for mesh_name, axes, kind in CASES:
        if mesh_name != name:
            continue
        for _, movements in possible(kind, mesh, axes, topology):
            for m in movements[:1]:
                sent, n = sent_by_device(m), m.size
                assert (sent == m.sent_bytes).all(), m
                same = Collective(kind, axes, BYTES, group_size=n)
                assert m.sent_bytes == same.sent_bytes
                most = [step.bytes for step in m.steps]
                assert sum(most) == m.sent_bytes


def network_share(m: Movement, kind: str, topology: Topology) -> tuple[float, float]:
    """The bytes between hosts that a device sends, and what `route` gives."""
    network = np.zeros(m.size)
    for step in m.steps:
        far = np.array(["between" in link for link in m.link_names])[step.link]
        np.add.at(network, step.source[far], m.chunks.bytes_of(step.chunk[far]))
    use = route(topology, [np.arange(m.size)], kind)
    return float(network.max()), float(use.network.max() * m.bytes_per_device)


@pytest.mark.parametrize("kind", [k for k in REGULAR if k != "all-to-all"])
@pytest.mark.parametrize("text", ["gpu:h100:2x8", "gpu:h100:4x4", "tpu:v5e:4x4*2"])
def test_two_levels_send_between_hosts_what_the_roofline_counts(kind, text):
    topology = Topology.parse(text)
    made = sv.movement(kind, size=BYTES, topology=text)
    assert made.method.name in ("hosts", "torus")
    ours, counted = network_share(made, kind, topology)
    assert ours == pytest.approx(counted)
    assert made.seconds == route(topology, [np.arange(made.size)], kind).seconds(BYTES)
    assert text in made.rate_source


@pytest.mark.parametrize("kind", REGULAR)
@pytest.mark.parametrize("axis", ["data", "model"])
def test_a_movement_takes_as_long_as_the_roofline_says_in_any_device_order(kind, axis):
    order = np.random.default_rng(20305).permutation(16)  # groups then share links
    mesh = MeshSpec(("data", "model"), (4, 4), device_ids=order.reshape(4, 4))
    topology, collective = Topology.parse("tpu:v5e:4x4"), Collective(kind, (axis,), BYTES)
    report = Report("f", "tpu:v5e:4x4", collectives=(collective,))
    [row] = roofline(report, topology, mesh).rows
    for group in range(4):
        made = movement_of(collective, mesh, topology=topology, group=group)
        assert made.seconds == row.seconds


@pytest.mark.parametrize("kind", REGULAR)
@pytest.mark.parametrize("algorithm", [None, "ring", "both directions", "hosts"])
def test_nothing_is_counted_twice_and_all_is_complete(kind, algorithm):
    if kind == "all-to-all":
        algorithm = "direct"
    for count in (2, 3, 6, 8):
        if algorithm == "hosts" and count < 6:
            continue
        m = collective_movement(kind, count, BYTES, hosts=np.arange(count) % 2, algorithm=algorithm)
        counts = list(m.counts())
        before = m.holdings(0)
        for number, step in enumerate(m.steps, 1):
            after = m.holdings(number)
            if step.adds:  # what arrives is not there yet
                assert not (before[step.source, step.chunk] & before[step.target, step.chunk]).any()
            assert (after.sum(-1) == counts[number]).all()
            before = after
        for device in range(count):
            assert (counts[0][device, m.at_start(device)] == 1).all()
            assert (counts[-1][device, m.at_end(device)] == m.contributors).all()


def test_a_step_sends_each_chunk_to_a_device_once():
    for kind in REGULAR:
        ways = ("direct",) if kind == "all-to-all" else ("ring", "both directions")
        for algorithm in ways:
            for step in collective_movement(kind, 7, 7 * 14, algorithm=algorithm).steps:
                pairs = np.stack([step.target, step.chunk])
                assert len(np.unique(pairs, axis=1).T) == len(step)


SPECS = [None, "x", "y", "z", "x,y", "y,x", "z,x", "x,y,z"]


@st.composite
def reshards(draw) -> tuple[Layout, Layout]:
    sizes = draw(st.sampled_from([(2, 2, 2), (4, 2, 1), (1, 4, 2), (3, 2, 1)]))
    hosts = draw(st.sampled_from([1, 2])) if sizes != (3, 2, 1) else 1
    mesh = make_mesh(x=sizes[0], y=sizes[1], z=sizes[2], processes=hosts)
    found = []
    for _ in range(2):
        axes = list(draw(st.permutations("xyz")))
        dims = [draw(st.integers(0, 3)) for _ in axes]
        parts = (tuple(a for a, d in zip(axes, dims, strict=True) if d == n) for n in range(2))
        found.append(lay_out((24, 24), Spec.of(*parts), mesh, "int32"))
    return found[0], found[1]


def moved_elements(before: Layout, after: Layout) -> list[int]:
    """By brute force: for each device how many elements it needs and has not."""
    counts = []
    for device in before.device_ids.tolist():
        had = np.zeros(before.shape, bool)
        needs = np.zeros(before.shape, bool)
        had[before.box(device)] = True
        needs[after.box(device)] = True
        counts.append(int((needs & ~had).sum()))
    return counts


@settings(max_examples=100)
@given(reshards())
def test_a_reshard_gives_what_device_put_gives(eight_devices, layouts):
    before, after = layouts
    m = reshard_movement(before, after)
    sizes = before.mesh.axis_sizes
    mesh = Mesh(
        np.array(eight_devices[: before.mesh.size]).reshape(sizes), tuple("xyz"),
        axis_types=(AxisType.Auto,) * 3,
    )  # fmt: skip
    value = np.arange(24 * 24, dtype=np.int32).reshape(24, 24)
    first, last = (NamedSharding(mesh, P(*v.spec.dims)) for v in (before, after))
    array = jax.device_put(value, first)
    moved = jax.device_put(array, last)
    shards = {s.device.id: np.asarray(s.data) for s in array.addressable_shards}
    wanted = {s.device.id: np.asarray(s.data) for s in moved.addressable_shards}
    ids = m.devices.tolist()
    got = m.execute([shards[eight_devices[d].id] for d in ids])
    for device, result in zip(ids, got, strict=True):
        np.testing.assert_array_equal(result, wanted[eight_devices[device].id])
    received = np.zeros(m.size, np.int64)
    for step in m.steps:
        np.add.at(received, step.target, m.chunks.bytes_of(step.chunk))
        assert len(set(step.source.tolist())) == len(set(step.target.tolist())) == len(step)
    assert (received == np.array(moved_elements(before, after)) * 4).all()
    sent = sent_by_device(m)
    assert m.sent_bytes == sent.max(initial=0)
    for step in m.steps:
        for source, target, chunk in zip(step.source, step.target, step.chunk, strict=True):
            if m.hosts[source] != m.hosts[target]:  # nobody on the host has it
                near = np.flatnonzero(m.hosts == m.hosts[target])
                assert not any(chunk in m.at_start(int(d)) for d in near)


@settings(max_examples=60)
@given(st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1))
def test_no_device_sends_or_receives_twice_in_a_step(pairs):
    source, target = np.array(sorted(pairs)).T
    steps = step_numbers(source, target, 9)
    for number in range(int(steps.max()) + 1):
        some = steps == number
        assert len(set(source[some])) == len(set(target[some])) == some.sum() > 0


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
