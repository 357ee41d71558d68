"""Integer parts: what they lay out, and what they refuse."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import pytest

from shardviz.base.errors import LayoutError, SpecError
from shardviz.legacy.partitions import Parts, parts_layout
from shardviz.legacy.sharding_spec import (
    Chunked,
    ShardedAxis,
    ShardingSpec,
)


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
