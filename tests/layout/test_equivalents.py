"""One layout in every dialect: each text is read back and must give the same boxes."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest

from shardviz.core.errors import LayoutError, ShardvizError, SpecError
from shardviz.core.layout.layout import lay_out
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.layout.partition_spec import Spec
from shardviz.legacy.equivalents import equivalents, from_mesh, layout_parts
from shardviz.legacy.partitions import Parts, parts_layout
from shardviz.legacy.sharding_spec import (
    Chunked,
    ShardedAxis,
    ShardingSpec,
    sharding_spec_layout,
)
from shardviz.legacy.typed import parse_sharding_spec
from tests.layout.cases import random_case

DIALECTS = {"PartitionSpec", "ShardingSpec", "Parts"}
WRITERS = {
    "ShardingSpec": lambda layout: from_mesh(layout.mesh, layout.spec, layout.rank),
    "Parts": layout_parts,
}


def test_every_text_read_back_gives_the_same_boxes() -> None:
    rng, said = random.Random("equivalents"), dict.fromkeys(DIALECTS, 0)
    for _ in range(1_500):
        mesh, spec, shape = random_case(rng)
        layout = lay_out(shape, spec, mesh)
        found = equivalents(layout)
        assert set(found) <= DIALECTS
        for dialect, write in WRITERS.items():
            if dialect not in found:
                with pytest.raises(ShardvizError):
                    write(layout)
        for dialect in found:
            said[dialect] += 1
        assert Spec.parse(found["PartitionSpec"]) == spec
        if "ShardingSpec" in found:
            read = parse_sharding_spec(found["ShardingSpec"])
            again = sharding_spec_layout(read, shape, device_ids=mesh.device_ids)
            assert again.indices() == layout.indices()
        if "Parts" in found:
            parts = layout_parts(layout)
            assert found["Parts"].startswith(str(parts))
            assert parts_layout(shape, parts, layout.device_ids).indices() == layout.indices()
        else:
            counts = layout.block_counts
            in_order = np.array_equal(layout.groups, np.arange(mesh.size))
            assert spec.unconstrained or not (in_order or layout.num_blocks == 1), counts
    assert min(said.values()) > 100, said


def test_the_order_of_devices_is_given_where_ids_do_not_ascend() -> None:
    mesh = make_mesh("x=2, y=2", device_ids=[3, 1, 2, 0])
    found = equivalents(lay_out((4, 4), Spec.parse("x, y"), mesh))
    assert found["Parts"] == "Parts(2, 2)  # device order: 3, 1, 2, 0"
    ascending = make_mesh("x=2, y=2", device_ids=[0, 1, 2048, 2049])
    assert equivalents(lay_out((4, 4), Spec.parse("x, y"), ascending))["Parts"] == "Parts(2, 2)"


@pytest.mark.parametrize("typed", ["x", "y, x", "(y, x)", "P.UNCONSTRAINED"])
def test_layouts_without_integer_parts(typed: str) -> None:
    layout = lay_out((4, 4), Spec.parse(typed), make_mesh(x=2, y=2))
    with pytest.raises(SpecError):
        layout_parts(layout)
    assert "Parts" not in equivalents(layout)


def test_parts_lay_out_as_their_sharding_spec() -> None:
    rng = random.Random("parts")
    for _ in range(300):
        parts = Parts(*[rng.choice((1, 1, 2, 3, 4)) for _ in range(rng.randint(0, 4))])
        shape = tuple(p * rng.randint(0, 3) for p in parts)
        layout = parts_layout(shape, parts)
        axes = tuple(ShardedAxis(i) for i in range(parts.rank))
        spec = ShardingSpec(tuple(Chunked([p]) for p in parts), axes)
        assert list(layout.indices().values()) == spec.indices(shape)
        assert layout.mesh.size == parts.product


def test_parts_none_is_whole_on_every_device() -> None:
    layout = parts_layout((4, 2), None, range(4))
    assert layout.replicas == 4
    assert equivalents(layout)["Parts"] == "None"
    assert parts_layout((4, 2), None, [3, 5]).device_ids.tolist() == [3, 5]


def test_parts_are_a_tuple_and_a_leaf() -> None:
    import jax

    parts = Parts(2, 1)
    assert parts == (2, 1)
    assert hash(parts) == hash((2, 1))
    assert jax.tree.leaves((parts, [parts])) == [parts, parts]
    assert pickle.loads(pickle.dumps(parts)) == copy.deepcopy(parts) == parts
    assert type(copy.copy(parts)) is Parts
    assert repr(Parts()) == "Parts()"


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: Parts(0), SpecError),
        (lambda: Parts(2.0), SpecError),
        (lambda: Parts(10**5000), SpecError),
        (lambda: Parts(*[1] * 65), SpecError),
        (lambda: Parts(2).check((4, 4)), LayoutError),
        (lambda: Parts(4).check((6,)), LayoutError),
        (lambda: parts_layout((4,), Parts(2), [0, 1, 2]), SpecError),
        (lambda: parts_layout((4,), None), SpecError),
    ],
)
def test_parts_that_are_none(make: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        make()
