"""Layout, Misfit and Request: named cases, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from shardviz.axis_rules.dialects import Dialect
from shardviz.axis_rules.requests import request
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import LayoutError, MeshError
from shardviz.base.layout import Misfit, lay_out, layout_from_indices
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec

MESH = make_mesh(x=4, y=2)


def blocks_of(text: str, shape: tuple[int, ...]) -> list[int]:
    return lay_out(shape, Spec.parse(text), MESH).groups.tolist()


def test_tuples_are_major_to_minor():
    assert blocks_of("(x, y)", (8,)) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert blocks_of("(y, x)", (8,)) == [0, 4, 1, 5, 2, 6, 3, 7]


def test_groups_number_blocks_row_by_row():
    assert blocks_of("x, y", (8, 8)) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert blocks_of("y, x", (8, 8)) == [0, 4, 1, 5, 2, 6, 3, 7]
    assert blocks_of("None, y", (8, 8)) == [0, 1] * 4
    assert blocks_of("", (8, 8)) == [0] * 8


def test_strides_say_as_much_as_groups():
    for text, shape in [("x, y", (8, 8)), ("(y, x)", (8,)), ("None, y", (8, 8)), ("", ())]:
        layout = lay_out(shape, Spec.parse(text), MESH)
        cells = np.indices(MESH.axis_sizes)
        expected = sum(s * c for s, c in zip(layout.group_strides, cells, strict=True))
        assert layout.groups.tolist() == np.broadcast_to(expected, MESH.axis_sizes).ravel().tolist()


def test_a_layout_counts_blocks_replicas_and_bytes():
    layout = lay_out((8, 6), Spec.parse("None, y"), MESH, "bfloat16")
    assert layout.shard_shape == (8, 3)
    assert (layout.num_blocks, layout.replicas, layout.bytes_per_device) == (2, 4, 48)
    assert layout.holders(1).tolist() == [1, 3, 5, 7]
    assert layout.replica_indices.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_ids_are_names_and_never_positions():
    mesh = make_mesh(x=2, device_ids=[2048, 5])
    layout = lay_out((4,), Spec.parse("x"), mesh)
    assert layout.box(2048) == (slice(0, 2),)
    assert layout.box(5) == (slice(2, 4),)
    assert list(layout.indices()) == [2048, 5]
    with pytest.raises(MeshError):
        layout.box(0)


def test_arrays_of_a_layout_are_read_only():
    layout = lay_out((8,), Spec.parse("x"), MESH)
    for array in (layout.starts, layout.stops, layout.groups, layout.device_ids):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: layout_from_indices((4,), "int8", {0: (slice(0, 1),), 1: (slice(1, 4),)}),
        lambda: lay_out((8,), Spec(), MESH, "float33"),
    ],
)
def test_what_is_no_layout(make):
    with pytest.raises(LayoutError):
        make()


@pytest.mark.parametrize(
    ("size", "axes", "remainder", "sizes", "padding", "other_axes"),
    [
        (510, ("x",), 2, (508, 512), 2, ("y",)),
        (3, ("x",), 3, (4,), 1, ()),
        (1, ("x", "y"), 1, (8,), 7, ()),
        (9, ("y",), 1, (8, 10), 1, ()),
    ],
)
def test_misfits_know_what_would_fit(size, axes, remainder, sizes, padding, other_axes):
    misfit = Misfit.find(size, axes, MESH)
    assert (misfit.remainder, misfit.sizes, misfit.padding) == (remainder, sizes, padding)
    assert misfit.other_axes == other_axes


RULES = Rules.of(("rows", "x"), ("cols", "y"))


@pytest.mark.parametrize(
    ("array", "rules", "spec", "fails"),
    [
        (ArraySpec("w", (8, 8), "rows cols"), RULES, "P('x', 'y')", False),
        (ArraySpec("w", (8, 8), "rows cols"), None, "P(None, None)", False),
        (ArraySpec("w", (8, 8)), RULES, "P(None, None)", False),
        (ArraySpec("w", (8, 8), "rows cols", spec=Spec.parse("y")), RULES, "P('y')", False),
        (
            ArraySpec("w", (7, 8), "rows cols"), RULES, "P('x', 'y')", True,
        ),
        (
            ArraySpec("w", (8, 8), "rows rows"), RULES, None, True,
        ),
        (ArraySpec("w", (8, 8), "rows rows", spec=Spec.parse("y")), RULES, "P('y')", False),
    ],
)  # fmt: skip
def test_a_request_says_what_counts(array, rules, spec, fails):
    asked = request(array, MESH, rules)
    assert (None if asked.spec is None else str(asked.spec)) == spec
    assert (asked.problem is not None) == fails
    assert (asked.layout is None) == fails
    assert asked.spec_wins == (array.spec is not None)


def test_a_request_reads_the_rules_in_its_dialect():
    array = ArraySpec("w", (8, 8), "rows y")
    assert request(array, MESH, RULES, Dialect.NNX).layout.shard_shape == (2, 4)
    assert request(array, MESH, RULES).layout.shard_shape == (2, 8)


def by_indices(layout):
    return layout_from_indices(layout.shape, layout.dtype, layout.indices())


LAYOUT = lay_out((8, 8), Spec.parse("x, y"), MESH)


@pytest.mark.parametrize(
    ("other", "equal"),
    [
        (lay_out((8, 8), Spec.parse("x, y"), make_mesh(x=4, y=2)), True),
        (lay_out((8, 8), Spec.parse("a, b"), make_mesh(a=4, b=2)), True),
        (by_indices(LAYOUT), True),
        (layout_from_indices((8, 8), "float32", dict(reversed(LAYOUT.indices().items()))), True),
        (lay_out((8, 8), Spec.parse("x, y"), MESH, "int32"), False),
        (lay_out((8, 8), Spec.parse("y, x"), MESH), False),
        (lay_out((8, 8), Spec.parse("x"), MESH), False),
        (lay_out((8, 16), Spec.parse("x, y"), MESH), False),
        (lay_out((8, 8), Spec.parse("x, y"), MESH.replace(device_ids=np.arange(8)[::-1])), False),
        (lay_out((8, 8), Spec.parse("x, y"), MESH.replace(device_ids=np.arange(8) + 8)), False),
    ],
)  # fmt: skip
def test_layouts_are_equal_if_every_device_holds_the_same_block(other, equal):
    assert (other == LAYOUT) is equal
    assert (other != LAYOUT) is not equal
    assert len({LAYOUT, other}) == 2 - equal


def test_equal_layouts_with_other_specs():
    short, long = (lay_out((8, 8), Spec.parse(s), MESH) for s in ("x", "x, None"))
    assert short == long
    assert hash(short) == hash(long)
    explicit = MESH.replace(axis_types=("Explicit", "Explicit"))
    summed, partial = (lay_out((8, 8), Spec.parse(s), explicit) for s in ("x", "x, unreduced={y}"))
    assert summed != partial
    assert lay_out((0, 4), Spec.parse("x"), MESH) == by_indices(
        lay_out((0, 4), Spec.parse("x"), MESH)
    )


def test_equal_layouts_of_a_million_devices_create_no_arrays():
    mesh = make_mesh(x=1024, y=1024)
    first, second = (lay_out((1024, 1024), Spec.parse("x, y"), mesh) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert not {"groups", "starts", "blocks"} & (vars(first).keys() | vars(second).keys())
