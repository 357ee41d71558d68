"""What is formatted reads back as the same value, whatever the names."""

from __future__ import annotations

import jax
from hypothesis import given
from hypothesis import strategies as st

from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import format_names, read_names, read_shape
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from tests.layout.strategies import names, specs, tables


@given(specs())
def test_specs_read_back_as_themselves(spec):
    assert Spec.parse(str(spec)) == spec


@given(specs(marks=False))
def test_specs_survive_jax(spec):
    theirs = spec.to_jax()
    assert Spec.of(*theirs) == spec
    assert theirs == jax.sharding.PartitionSpec(
        *(theirs.UNCONSTRAINED if d in spec.unconstrained else a for d, a in enumerate(spec.dims))
    )


@given(tables())
def test_tables_read_back_as_themselves(table):
    assert Rules.parse(table.text()) == table


@given(tables())
def test_tables_read_back_from_their_pairs(table):
    assert Rules.of(table.pairs()) == table
    assert Rules.of(list(table.pairs())) == table


@given(st.lists(st.none() | names, max_size=5))
def test_logical_names_read_back_as_themselves(logical):
    assert read_names(format_names(logical)) == tuple(logical)


@given(st.dictionaries(names, st.integers(1, 3), min_size=1, max_size=4))
def test_meshes_read_back_from_their_text(axes):
    mesh = MeshSpec(tuple(axes), tuple(axes.values()))
    assert make_mesh(str(mesh)) == mesh


@given(st.lists(st.integers(0, 1000), max_size=6))
def test_shapes_read_back_from_any_writing(sizes):
    shape = tuple(sizes)
    assert read_shape(str(shape)) == shape
    assert read_shape(str(sizes)) == shape
    assert read_shape(", ".join(map(str, sizes))) == shape
    assert read_shape("x".join(map(str, sizes))) == shape
    assert read_shape(" × ".join(map(str, sizes))) == shape
