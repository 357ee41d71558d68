"""What a reshard sends, against brute force and JAX's own device_put."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import LayoutError, ShardvizError
from shardviz.base.layout import Layout, lay_out
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.move.reshard import Reshard, reshard_layouts

SHAPE = (24, 48)
GRIDS = [(1,), (2,), (4,), (8,), (2, 2), (4, 2), (2, 4), (2, 2, 2), (3, 2), (6,), (3,)]
HOSTS = np.arange(8) // 4


def random_layout(rng: np.random.Generator, dtype: str = "int32") -> Layout:
    """On some of eight devices, in any order, split in any way."""
    sizes = GRIDS[rng.integers(len(GRIDS))]
    ids = rng.permutation(8)[: math.prod(sizes)].reshape(sizes)
    mesh = MeshSpec(tuple("xyz"[: len(sizes)]), sizes, (), ids, HOSTS[ids], True)
    axes = rng.permutation(list(mesh.axis_names))
    at = rng.integers(0, 3, len(axes))
    dims = (tuple(str(a) for a, d in zip(axes, at, strict=True) if d == n) for n in range(2))
    return lay_out(SHAPE, Spec.of(*dims), mesh, dtype)


def cases() -> list[tuple[Layout, Layout]]:
    rng = np.random.default_rng(15)
    return [(random_layout(rng), random_layout(rng)) for _ in range(200)]


def moved(before: Layout, after: Layout) -> Reshard:
    return reshard_layouts([ArraySpec("w", before.shape, None, before.dtype)], [before], [after])


def owners(layout: Layout) -> dict[int, np.ndarray]:
    """For each device the elements that it holds, one by one."""
    found = {}
    for device in layout.device_ids.tolist():
        found[device] = np.zeros(layout.shape, bool)
        found[device][layout.box(device)] = True
    return found


def applied(result: Reshard, before: Layout, after: Layout, shards: dict[int, np.ndarray]):
    """The shards that the moves make: each receiver gets what its new block shares with a
    sender's old one. Every element has to come exactly once."""
    ids = result.device_ids.tolist()
    senders = {n: [] for n in ids}
    for source, target, amount in result.sends.tolist():
        assert amount > 0
        assert source != target
        senders[ids[target]].append(ids[source])
    made = {}
    for device in after.device_ids.tolist():
        box = after.box(device)
        value = np.zeros(after.shape, np.int64)
        times = np.zeros(after.shape, int)
        had = [device] if device in before.device_ids else []
        for source in [*had, *senders[device]]:
            old = before.box(source)
            both = tuple(
                slice(max(a.start, b.start), max(a.start, b.start, min(a.stop, b.stop)))
                for a, b in zip(old, box, strict=True)
            )
            inside = tuple(
                slice(s.start - o.start, s.stop - o.start) for s, o in zip(both, old, strict=True)
            )
            value[both] = shards[source][inside]
            times[both] += 1
            amount = result.moves[ids.index(source), ids.index(device)]
            if source != device:
                assert amount == 4 * times[both].size
        assert (times[box] == 1).all()
        made[device] = value[box]
    return made


def test_200_random_reshards_give_what_device_put_gives(eight_devices):
    value = np.arange(math.prod(SHAPE), dtype=np.int32).reshape(SHAPE)
    sizes = Counter()
    for before, after in cases():
        meshes = [
            Mesh(
                np.array(eight_devices)[v.mesh.device_ids], v.mesh.axis_names,
                axis_types=(AxisType.Auto,) * len(v.mesh.axis_names),
            )
            for v in (before, after)
        ]  # fmt: skip
        first, last = (
            NamedSharding(mesh, P(*v.spec.dims))
            for mesh, v in zip(meshes, (before, after), strict=True)
        )
        array = jax.device_put(value, first)
        wanted = {
            s.device.id: np.asarray(s.data) for s in jax.device_put(array, last).addressable_shards
        }
        shards = {s.device.id: np.asarray(s.data) for s in array.addressable_shards}
        # Of jax's own shardings it is the same as of ours.
        result = sv.reshard({"w": array}, None, last)
        near = moved(before, after)
        np.testing.assert_array_equal(result.moves.sum(axis=0), near.moves.sum(axis=0))
        for moves in (result, near):  # of one host, and of two
            got = applied(moves, before, after, shards)
            assert sorted(got) == sorted(wanted)
            for device in wanted:
                np.testing.assert_array_equal(got[device], wanted[device])
        sizes[set(before.device_ids) == set(after.device_ids)] += 1
    assert min(sizes.values()) > 10


def test_200_random_reshards_have_the_bytes_of_brute_force():
    for before, after in cases():
        result = moved(before, after)
        old, new = owners(before), owners(after)
        within = between = 0
        for device, needs in new.items():
            missing = needs & ~old.get(device, np.zeros(SHAPE, bool))
            near = [old[d] for d in old if HOSTS[d] == HOSTS[device]]
            here = np.logical_or.reduce(near) if near else np.zeros(SHAPE, bool)
            within += 4 * int((missing & here).sum())
            between += 4 * int((missing & ~here).sum())
            at = result.device_ids.tolist().index(device)
            assert result.moves[:, at].sum() == 4 * missing.sum()
        assert (result.bytes_within_hosts, result.bytes_between_hosts) == (within, between)
        assert result.bytes_moved == result.moves.sum() == result.rows[0].bytes_moved


def test_arrays_of_all_sizes_and_types_add_up():
    """Arrays that are split alike are computed once: as if each were alone."""
    rng = np.random.default_rng(3)
    arrays, before, after = [], [], []
    for number, (one, other) in enumerate(cases()[:40]):
        for dtype in ("int8", "float64", "int32"):
            scale = rng.integers(1, 4, 2)
            shape = tuple(int(s * n) for s, n in zip(SHAPE, scale, strict=True))
            arrays.append(ArraySpec(f"w{number}/{dtype}", shape, None, dtype))
            before.append(lay_out(shape, one.spec, one.mesh, dtype))
            after.append(lay_out(shape, other.spec, other.mesh, dtype))
    result = reshard_layouts(arrays, before, after)
    assert len(result.rows) == 120
    total = np.zeros((8, 8), np.int64)
    taken = np.zeros((2, 8), np.int64)
    for array, one, other in zip(arrays, before, after, strict=True):
        alone = reshard_layouts([array], [one], [other])
        at = np.ix_(alone.device_ids, alone.device_ids)
        total[at] += alone.moves
        taken[:, alone.device_ids] += [alone.bytes_before, alone.bytes_after]
        found = next(row for row in result.rows if row.path == array.name)
        assert found.bytes_moved == alone.bytes_moved
    np.testing.assert_array_equal(result.moves, total)
    np.testing.assert_array_equal([result.bytes_before, result.bytes_after], taken)
    amounts = [row.bytes_moved for row in result.rows]
    assert amounts == sorted(amounts, reverse=True)


def test_peaks_are_those_of_a_count_array_by_array():
    some = cases()[:25]
    same = [(one, one) for one, _ in some[:5]]
    arrays = [ArraySpec(f"w{n}", SHAPE, None, "int32") for n in range(30)]
    sides = [*some, *same]
    result = reshard_layouts(arrays, *zip(*sides, strict=True))
    now = np.zeros(8, np.int64)
    for one, _ in sides:
        now[one.device_ids] += one.bytes_per_device
    kept, donated = now.copy(), now.max()
    for number, (one, other) in enumerate(sides):
        if number >= 25:
            continue
        kept[other.device_ids] += other.bytes_per_device
        now[other.device_ids] += other.bytes_per_device
        donated = max(donated, now.max())
        now[one.device_ids] -= one.bytes_per_device
    assert (result.peak_bytes_per_device, result.peak_bytes_donated) == (kept.max(), donated)


def test_arrays_that_keep_their_layout_are_not_copied_by_jax(eight_devices):
    mesh = Mesh(np.array(eight_devices), ("x",), axis_types=(AxisType.Auto,))
    array = jax.device_put(np.zeros((8, 4), np.float32), NamedSharding(mesh, P("x")))
    again = jax.device_put(array, NamedSharding(mesh, P("x", None)))

    def pointers(value: jax.Array) -> list[int]:
        return [s.data.unsafe_buffer_pointer() for s in value.addressable_shards]

    assert pointers(array) == pointers(again)
    result = sv.reshard({"w": array}, None, NamedSharding(mesh, P("x", None)))
    assert result.peak_bytes_per_device == result.peak_bytes_donated == 16
    assert result.sends.shape == (0, 3)
    assert result.rows[0].kind == ""


@pytest.mark.parametrize(
    ("sizes", "before", "after", "kind"),
    [
        ("x=4", "x", "None", "all-gather"),
        ("x=4", "x", "None, x", "all-to-all"),
        ("x=4", "None", "x", ""),
        ("x=2, y=2", "(x, y)", "x", "all-gather"),
        ("x=2, y=2", "x", "(x, y)", ""),
        ("x=2, y=2", "(x, y)", "(y, x)", "collective-permute"),
        ("x=2, y=2", "x, y", "y, x", "collective-permute"),
        ("x=2, y=2", "x, y", "None, (y, x)", "all-to-all"),
        ("x=4", "x", "x", ""),
    ],
)
def test_what_the_sends_of_one_mesh_amount_to(sizes, before, after, kind):
    mesh = make_mesh(sizes)
    layouts = (lay_out((8, 8), Spec.parse(spec), mesh) for spec in (before, after))
    assert moved(*layouts).rows[0].kind == kind


MESH = make_mesh(data=4, model=2)
NARROW = make_mesh(data=2, model=2)
STATE = {
    "mlp": {"wi": ((16, 32), "embed mlp"), "wo": ((32, 16), "mlp embed")},
    "scale": ((16,), "norm"),
}
RULES = [("mlp", "model"), ("embed", "data")]


def specs(result: Reshard) -> dict[str, str]:
    return {row.path: f"{row.before.spec} → {row.after.spec}" for row in result.rows}


def jax_mesh(names: str, *sizes: int, kind: AxisType = AxisType.Auto) -> Any:
    return AbstractMesh(sizes, tuple(names.split()), axis_types=(kind,) * len(sizes))


DATA_MODEL = jax_mesh("data model", 4, 2)
TYPED = jax_mesh("data model", 4, 2, kind=AxisType.Explicit)


SIDES = {
    "mesh and rules": (MESH, RULES),
    "text of a mesh": ("data=4, model=2", sv.rules(*RULES)),
    "mesh and texts": (MESH, {"mlp": {"wi": "data, model", "wo": "model, data"}, "scale": "None"}),
    "mesh and tuples": (MESH, {"mlp": {"wi": ("data", "model"), "wo": ("model", "data")},
                               "scale": (None,)}),
    "mesh and jax's specs": (DATA_MODEL, {
        "mlp": {"wi": P("data", "model"), "wo": P("model", "data")}, "scale": P(None)}),
    "jax's shardings": {
        "mlp": {"wi": NamedSharding(DATA_MODEL, P("data", "model")),
                "wo": NamedSharding(DATA_MODEL, P("model", "data"))},
        "scale": NamedSharding(DATA_MODEL, P(None))},
    "layouts": {
        "mlp": {"wi": lay_out((16, 32), Spec.parse("data, model"), MESH),
                "wo": lay_out((32, 16), Spec.parse("model, data"), MESH)},
        "scale": lay_out((16,), Spec.parse("None"), MESH)},
    "arrays with shardings": {
        "mlp": {"wi": jax.ShapeDtypeStruct(
                    (16, 32), "float32", sharding=NamedSharding(TYPED, P("data", "model"))),
                "wo": jax.ShapeDtypeStruct(
                    (32, 16), "float32", sharding=NamedSharding(TYPED, P("model", "data")))},
        "scale": jax.ShapeDtypeStruct(
            (16,), "float32", sharding=NamedSharding(TYPED, P(None)))},
    "audit": sv.audit(STATE, RULES, MESH),
    "a prefix": (MESH, {"mlp": {"wi": "data, model", "wo": "model, data"}, "scale": ""}),
}  # fmt: skip


@pytest.mark.parametrize("name", SIDES)
def test_a_side_is_said_in_many_ways(name):
    wanted = sv.reshard(STATE, SIDES["mesh and rules"], (NARROW, RULES))
    assert wanted.bytes_moved > 0
    assert not wanted.left_behind
    result = sv.reshard(STATE, SIDES[name], (NARROW, RULES))
    assert not result.left_behind
    np.testing.assert_array_equal(result.moves, wanted.moves)
    back = sv.reshard(STATE, (NARROW, RULES), SIDES[name])
    np.testing.assert_array_equal(
        back.moves, sv.reshard(STATE, (NARROW, RULES), SIDES["mesh and rules"]).moves
    )


def test_a_mesh_alone_reads_the_shardings_and_names_of_the_arrays(eight_devices):
    mesh = Mesh(np.reshape(eight_devices, (4, 2)), ("data", "model"),
                axis_types=(AxisType.Auto,) * 2)  # fmt: skip
    tree = {
        "w": jax.device_put(np.zeros((8, 8), np.float32), NamedSharding(mesh, P("data", "model"))),
        "step": jax.device_put(np.float32(0), eight_devices[5]),
    }
    found = sv.reshard(tree, None, "data=2, model=2")
    assert specs(found) == {"w": "P('data', 'model') → P('data', 'model')", "step": "None → P()"}
    assert found.moves.sum(axis=0).tolist()[:4] == [36, 36, 68, 68]


EXPLICIT = make_mesh("x=2", axis_types="Explicit")
LEFT = {
    "no target": (("x=2", {"w": "x", "b": "x"}), ("x=2", {"w": "x"}), "b"),
    "no source": (("x=2", {"w": "x"}), ("x=2", ""), "b"),
    "does not divide": (("x=2", "x"), ("x=3", "x"), "w"),
    "another shape": (("x=2", "x"), {"w": lay_out((4,), Spec(), make_mesh(x=2)),
                                     "b": lay_out((8,), Spec(), make_mesh(x=2))}, "w"),
    "a partial sum": ((EXPLICIT, P(unreduced={"x"})), ("x=2", "x"), "w"),
    "memory of the host": (("x=2", "x"), NamedSharding(
        jax_mesh("x", 2), P("x"), memory_kind="pinned_host"), "w"),
    "no names": (("x=2", "x"), "x=2", "w"),
    "too long a spec": (("x=2", "x"), ("x=2", "None, x"), "w"),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_moved_is_left_behind_with_the_reason(name):
    from_, to, path = LEFT[name]
    tree = {n: jax.ShapeDtypeStruct((8,), "float32") for n in ("w", "b")}
    found = sv.reshard(tree, from_, to)
    assert found.left_behind[path].endswith(".")
    assert len(found.rows) + len(found.left_behind) == 2
    assert path not in [row.path for row in found.rows]


def test_a_tree_of_specs_names_the_arrays_that_it_lacks_and_its_unused_entries():
    tree = {n: jax.ShapeDtypeStruct((8,), "float32") for n in ("w", "b")}
    result = sv.reshard(tree, (MESH, "data"), (MESH, {"w": "data", "bias": "", "c": ""}))
    assert result.left_behind == {"b": "to= has no entry for it."}
    assert (result.unused_before, result.unused_after) == ((), ("bias", "c"))
    assert "No array matches 'bias' and 'c' in to=." in sv.text(result)
    assert sv.reshard(tree, (MESH, {"c": ""}), MESH).unused_before == ("c",)
    # The audit of a larger tree is a valid side.
    larger = sv.audit({**tree, "c": ((8,), "mlp")}, RULES, MESH)
    assert sv.reshard(tree, larger, (MESH, "data")).unused_before == ()


@pytest.mark.parametrize("side", ["from_", "to", "arrays"])
def test_arrays_in_the_memory_of_the_host_are_not_counted(side):
    mesh = jax_mesh("x", 2)
    device = NamedSharding(mesh, P("x"))
    host = NamedSharding(mesh, P("x"), memory_kind="pinned_host")
    tree = {"w": jax.ShapeDtypeStruct((8,), "float32", sharding=host)}
    sides = {"from_": (host, device), "to": (device, host), "arrays": (None, device)}
    result = sv.reshard(tree, *sides[side])
    assert "'pinned_host'" in result.left_behind["w"]
    text = sv.text(result)
    assert text.startswith("No array is counted.\n1 array is not counted above:")


def test_hosts_of_two_meshes_agree_or_are_refused():
    two = make_mesh("x=4", processes=2)
    other = make_mesh("x=4", device_ids=[4, 5, 6, 7])
    same = sv.reshard({"w": ((8,), None)}, (two, "x"), ("x=4", ""))
    assert (same.hosts.tolist(), same.assumed_hosts) == ([0, 0, 1, 1], ())
    assert (same.bytes_between_hosts, same.bytes_within_hosts) == (64, 32)
    unsaid = sv.reshard({"w": ((8,), None)}, (two, "x"), (other, "x"))
    assert unsaid.assumed_hosts == (4, 5, 6, 7)
    with pytest.raises(LayoutError, match="Device 1 is of process 0 in one mesh and of 1 in"):
        sv.reshard({"w": ((8,), None)}, (two, "x"), (make_mesh("x=4", processes=4), "x"))


def test_a_topology_says_hosts_and_the_least_time():
    found = sv.reshard({"w": ((1 << 20,), None)}, ("x=16", "x"), ("x=16", ""),
                       topology="tpu:v5e:4x4")  # fmt: skip
    assert len(set(found.hosts.tolist())) == 4
    assert found.link_seconds == {"ICI": found.seconds}
    # A chip has at most four links in, of 50 GB/s each.
    assert found.seconds >= found.moves.sum(axis=0).max() / (4 * 50e9)
    slices = sv.topology("tpu:v5e:4x4*2").device_ids
    halves = [make_mesh("x=16", device_ids=some) for some in (slices[:16], slices[16:])]
    between = sv.reshard({"w": ((1 << 20,), None)}, (halves[0], "x"), (halves[1], "x"),
                         topology="tpu:v5e:4x4*2")  # fmt: skip
    assert between.bytes_between_hosts == between.bytes_moved == 4 << 20
    assert list(between.link_seconds) == ["network"]
    with pytest.raises(ShardvizError, match="Not all 32 devices of the mesh"):
        sv.reshard({"w": ((64,), None)}, ("x=32", "x"), ("x=16", ""), topology="tpu:v5e:4x4")


def test_types_of_less_than_a_byte_are_packed():
    array = ArraySpec("w", (6,), None, "int4")
    layouts = [lay_out((6,), Spec.parse(s), make_mesh(x=2), "int4") for s in ("x", "")]
    found = reshard_layouts([array], layouts[:1], layouts[1:])
    assert found.moves.tolist() == [[0, 2], [2, 0]]  # 12 bits each
