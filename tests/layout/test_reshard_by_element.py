"""What a reshard sends and needs, against a count of every element."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import LayoutError
from shardviz.base.layout import Layout, lay_out, layout_from_indices
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.move import reshard
from shardviz.move.reshard import Reshard, reshard_layouts
from tests.layout.reshard_oracle import Side, check_sends, peaks, same_blocks

SIZES = ((1,), (2,), (4,), (6,), (8,), (2, 2), (4, 2), (2, 4), (2, 3), (2, 2, 2))
SHAPES = ((24,), (12, 8), (24, 48), (4, 6, 8))
WIDTHS = {"int8": 1, "float16": 2, "int32": 4, "float64": 8}
HOSTS = ([0] * 8, [0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 2, 2, 3, 3], [2, 2, 2, 0, 0, 1, 1, 1])


def random_side(
    rng: np.random.Generator, shape: tuple[int, ...], hosts: np.ndarray
) -> tuple[Side, Layout]:
    """A random spec on some of eight devices, in any order."""
    sizes = SIZES[rng.integers(len(SIZES))]
    names = tuple("xyz"[: len(sizes)])
    ids = rng.permutation(8)[: math.prod(sizes)].reshape(sizes)
    dims: list[tuple[str, ...]] = [()] * len(shape)
    for name, size in rng.permutation([*zip(names, map(str, sizes), strict=True)]).tolist():
        dim = int(rng.integers(-1, len(shape)))
        parts = int(size) * math.prod(dict(zip(names, sizes, strict=True))[n] for n in dims[dim])
        if dim >= 0 and shape[dim] % parts == 0:
            dims[dim] = (*dims[dim], name)
    mesh = MeshSpec(names, sizes, (), ids, hosts[ids], True)
    side = Side(shape, dict(zip(names, sizes, strict=True)), ids, tuple(dims))
    return side, lay_out(shape, Spec(tuple(dims)), mesh, "int8")


def cases(count: int, seed: int):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        hosts = np.array(HOSTS[rng.integers(len(HOSTS))])
        shape = SHAPES[rng.integers(len(SHAPES))]
        yield hosts, shape, *random_side(rng, shape, hosts), *random_side(rng, shape, hosts)


def resharded(hosts: np.ndarray, *arrays: tuple[ArraySpec, Layout, Layout]) -> Reshard:
    specs, before, after = zip(*arrays, strict=True)
    return reshard_layouts(specs, before, after, lambda ids: hosts[ids])


def test_every_send_follows_the_rule_and_the_kind_is_what_they_amount_to():
    kinds = Counter[str]()
    for hosts, shape, old, before, new, after in cases(400, 7):
        result = resharded(hosts, (ArraySpec("w", shape, None, "int8"), before, after))
        ids = result.device_ids
        sends = np.stack([ids[result.sends[:, 0]], ids[result.sends[:, 1]], result.sends[:, 2]], 1)
        kind = check_sends(old, new, dict(enumerate(hosts.tolist())), sends)
        assert result.rows[0].kind == kind
        assert result.bytes_moved == result.rows[0].bytes_moved == int(sends[:, 2].sum())
        between = [n for s, t, n in sends.tolist() if hosts[s] != hosts[t]]
        assert result.bytes_between_hosts == sum(between)
        assert result.bytes_within_hosts == int(sends[:, 2].sum()) - sum(between)
        kinds[kind] += 1
    assert min(kinds[kind] for kind in ("", "copy", "collective-permute", "all-gather")) > 3
    assert kinds["all-to-all"] > 3


def test_memory_of_several_arrays_is_that_of_a_simulation():
    rng = np.random.default_rng(5)
    unchanged = 0
    for _ in range(120):
        hosts = np.array(HOSTS[rng.integers(len(HOSTS))])
        arrays, sides = [], []
        for number in range(int(rng.integers(1, 5))):
            shape = SHAPES[rng.integers(len(SHAPES))]
            dtype = [*WIDTHS][rng.integers(4)]
            (old, before), (new, after) = (random_side(rng, shape, hosts) for _ in range(2))
            if rng.integers(3) == 0:
                new, after = old, before
            arrays.append((ArraySpec(f"w{number}", shape, None, dtype), before, after))
            sides.append((old, new, WIDTHS[dtype]))
            unchanged += same_blocks(old, new)
        arrays = [
            (spec, *(lay_out(spec.shape, side.spec, side.mesh, spec.dtype) for side in pair))
            for spec, *pair in arrays
        ]
        result = resharded(hosts, *arrays)
        before, after, kept, donated = peaks(sides)
        ids = result.device_ids.tolist()
        assert result.bytes_before.tolist() == [before.get(device, 0) for device in ids]
        assert result.bytes_after.tolist() == [after.get(device, 0) for device in ids]
        assert (result.peak_bytes_per_device, result.peak_bytes_donated) == (kept, donated)
    assert unchanged > 20


def test_sends_of_several_arrays_add_up_and_come_in_order():
    rng = np.random.default_rng(11)
    for _ in range(60):
        hosts = np.array(HOSTS[rng.integers(len(HOSTS))])
        arrays, total = [], Counter[tuple[int, int]]()
        for number in range(4):
            (_, before), (_, after) = (random_side(rng, (12, 8), hosts) for _ in range(2))
            one = (ArraySpec(f"w{number}", (12, 8), None, "int8"), before, after)
            alone = resharded(hosts, one)
            # The same array three times, under other names.
            for copy in range(3):
                arrays.append((one[0].replace(name=f"w{number}.{copy}"), *one[1:]))
            for source, target, amount in alone.sends.tolist():
                pair = int(alone.device_ids[source]), int(alone.device_ids[target])
                total[pair] += 3 * amount
        result = resharded(hosts, *arrays)
        ids = result.device_ids.tolist()
        pairs = [(ids[source], ids[target]) for source, target, _ in result.sends.tolist()]
        assert pairs == sorted(total)
        assert result.sends[:, 2].tolist() == [total[pair] for pair in pairs]
        moves = np.zeros((len(ids), len(ids)), np.int64)
        for (source, target), amount in total.items():
            moves[ids.index(source), ids.index(target)] = amount
        np.testing.assert_array_equal(result.moves, moves)
        moved = [row.bytes_moved for row in result.rows]
        assert moved == sorted(moved, reverse=True)
        assert sum(moved) == result.bytes_moved == moves.sum()


def test_of_an_empty_array_nothing_is_sent():
    mesh = make_mesh(x=4)
    sides = [[lay_out((0, 4), Spec.parse(s), mesh)] for s in ("x", "None")]
    result = reshard_layouts([ArraySpec("empty", (0, 4))], *sides)
    assert (result.bytes_moved, result.rows[0].kind, len(result.sends)) == (0, "", 0)


def test_types_of_less_than_a_byte_are_packed_by_send():
    mesh = make_mesh(x=2)
    before, after = (lay_out((6,), Spec.parse(s), mesh, "int4") for s in ("x", "None"))
    result = reshard_layouts([ArraySpec("w", (6,), None, "int4")], [before], [after])
    # Three elements of four bits take two bytes.
    assert result.sends.tolist() == [[0, 1, 2], [1, 0, 2]]


# --- limits and errors ----------------------------------------------------------------


def layouts(before: str, after: str, mesh: MeshSpec) -> tuple[Layout, Layout]:
    return tuple(lay_out((16,), Spec.parse(s), mesh, "int8") for s in (before, after))


def test_limits_hold_what_they_name_and_no_more(monkeypatch):
    mesh = make_mesh(x=4)
    pair = layouts("x", "None", mesh)
    arrays = [ArraySpec("w", (16,), None, "int8")]
    monkeypatch.setattr(reshard, "MOST_DENSE", 4)
    assert reshard_layouts(arrays, *([side] for side in pair)).moves.sum() == 48
    monkeypatch.setattr(reshard, "MOST_DENSE", 3)
    with pytest.raises(LayoutError, match="4 × 4 devices"):
        _ = reshard_layouts(arrays, *([side] for side in pair)).moves
    # Four blocks, of which each of four devices needs all.
    monkeypatch.setattr(reshard, "MOST_SENT", 16)
    assert reshard_layouts(arrays, *([side] for side in pair)).bytes_moved == 48
    monkeypatch.setattr(reshard, "MOST_SENT", 15)
    with pytest.raises(LayoutError, match="16 chunks"):
        reshard_layouts(arrays, *([side] for side in pair))
    # The chunks themselves are counted before the sends.
    monkeypatch.setattr(reshard, "MOST_SENT", 3)
    with pytest.raises(LayoutError, match="4 chunks"):
        reshard_layouts(arrays, *([side] for side in pair))


def test_limits_are_4096_devices_and_four_million_chunks():
    wide = make_mesh(x=4097)
    pair = [lay_out((4097,), Spec.parse(s), wide, "int8") for s in ("x", "x")]
    result = reshard_layouts([ArraySpec("w", (4097,), None, "int8")], pair[:1], pair[1:])
    assert len(result.device_ids) == 4097
    with pytest.raises(LayoutError, match="limit is 4,096"):
        _ = result.moves
    # 4,096 rows by 1,025 columns are 4,198,400 chunks, and 2^22 are 4,194,304.
    old = lay_out((4096, 1025), Spec.parse("x"), make_mesh(x=4096), "int8")
    new = lay_out((4096, 1025), Spec.parse("None, z"), make_mesh(z=1025), "int8")
    with pytest.raises(LayoutError, match=r"4,198,400 chunks.*at most 4,194,304"):
        reshard_layouts([ArraySpec("w", (4096, 1025), None, "int8")], [old], [new])


def test_equal_layouts_are_computed_once_and_others_are_not_confused(monkeypatch):
    mesh, computed = make_mesh(x=2), []
    exchange = reshard._exchange

    def counted(before: Layout, after: Layout, *rest: np.ndarray):
        computed.append((before, after))
        return exchange(before, after, *rest)

    monkeypatch.setattr(reshard, "_exchange", counted)
    halves = [lay_out((4,), Spec.parse("x"), mesh, "int8") for _ in range(3)]
    whole = lay_out((4,), Spec(), mesh, "int8")
    arrays = [ArraySpec(f"w{n}", (4,), None, "int8") for n in range(3)]
    assert reshard_layouts(arrays, halves, [whole] * 3).bytes_moved == 3 * 4
    assert len(computed) == 1
    # Layouts of slices by device have no spec: here both devices swap their halves.
    first, last = slice(0, 2), slice(2, 4)
    one = layout_from_indices((4,), "int8", {0: (first,), 1: (last,)}, mesh)
    other = layout_from_indices((4,), "int8", {0: (last,), 1: (first,)}, mesh)
    result = reshard_layouts(arrays, [one, one, other], [one, other, one])
    assert [row.bytes_moved for row in result.rows] == [4, 4, 0]
    assert result.sends.tolist() == [[0, 1, 4], [1, 0, 4]]


def test_a_part_that_no_device_holds_is_refused():
    mesh = make_mesh(x=2)
    twice = layout_from_indices((4,), "int8", {0: (slice(0, 2),), 1: (slice(0, 2),)}, mesh)
    whole = lay_out((4,), Spec(), mesh, "int8")
    arrays = [ArraySpec("w", (4,), None, "int8")]
    with pytest.raises(LayoutError, match="No device holds a part of the array"):
        reshard_layouts(arrays, [twice], [whole])
    # The part that both hold can be sent.
    kept = reshard_layouts(arrays, [whole], [twice])
    assert (kept.bytes_moved, kept.rows[0].kind) == (0, "")


def test_hosts_are_those_of_the_mesh_that_names_them():
    named = make_mesh("x=4", device_ids=[0, 1, 2, 3], processes=[0, 0, 1, 1])
    silent = make_mesh("x=4", device_ids=[2, 3, 4, 5])
    arrays = [ArraySpec("w", (16,), None, "int8")]
    first, last = layouts("x", "x", named)[0], layouts("x", "x", silent)[1]
    result = reshard_layouts(arrays, [first], [last])
    assert result.hosts.tolist() == [0, 0, 1, 1, 0, 0]
    assert result.assumed_hosts == (4, 5)
    alone = reshard_layouts(arrays, [last], [last])
    assert (alone.hosts.tolist(), alone.assumed_hosts) == ([0, 0, 0, 0], ())
    other = make_mesh("x=4", device_ids=[3, 4, 5, 6], processes=[1, 1, 0, 0])
    agreeing = reshard_layouts(arrays, [first], [layouts("x", "x", other)[1]])
    assert agreeing.hosts.tolist() == [0, 0, 1, 1, 1, 0, 0]
    assert agreeing.assumed_hosts == ()
    clash = make_mesh("x=4", device_ids=[2, 3, 4, 5], processes=[0, 1, 1, 0])
    with pytest.raises(LayoutError, match="Device 2 is of process 1 in one mesh and of 0"):
        reshard_layouts(arrays, [first], [layouts("x", "x", clash)[1]])


def test_what_has_no_layout_is_left_behind_with_the_reason_of_its_side():
    mesh = make_mesh(x=4)
    side = layouts("x", "None", mesh)[0]
    arrays = [ArraySpec(name, (16,), None, "int8") for name in ("a", "b", "c")]
    result = reshard_layouts(arrays, [side, "no spec", side], [side, side, "nowhere"])
    assert dict(result.left_behind) == {"b": "no spec", "c": "nowhere"}
    assert [row.path for row in result.rows] == ["a"]
    assert result.bytes_before.tolist() == [side.bytes_per_device] * 4
    nothing = reshard_layouts([], [], [])
    assert (nothing.bytes_moved, nothing.rows) == (0, ())
    assert (nothing.peak_bytes_per_device, nothing.peak_bytes_donated) == (0, 0)
    for numbers in (result.device_ids, result.hosts, result.sends, result.bytes_after):
        assert not numbers.flags.writeable
    assert not result.bytes_before.flags.writeable


def test_seconds_are_those_of_the_slowest_link_and_unknown_if_one_is():
    mesh = make_mesh(x=4)
    pair = layouts("x", "None", mesh)
    result = reshard_layouts([ArraySpec("w", (16,), None, "int8")], *([side] for side in pair))
    from dataclasses import replace

    assert result.seconds is None
    assert replace(result, link_seconds={"ICI": 2.0, "network": 3.0}).seconds == 3.0
    assert replace(result, link_seconds={"ICI": 4.0, "network": 3.0}).seconds == 4.0
    assert replace(result, link_seconds={"ICI": 4.0, "network": None}).seconds is None
