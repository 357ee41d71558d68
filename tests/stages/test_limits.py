"""Where a plan says that its estimate is uncertain: compared with what XLA's partitioner put in."""

from __future__ import annotations

from collections import Counter

import pytest


def counted(collectives):
    return Counter((c.kind, c.mesh_axes, c.bytes_per_device) for c in collectives)


def misses(entry):
    return counted(entry.plan.collectives) != counted(entry.collectives)


def uncertain(entry):
    return [(op.name, found) for op in entry.plan.ops for found in op.uncertain]


# The estimate is right here, and yet there is a mark, since the kind of value has one.
RIGHT_ALL_THE_SAME = {
    "MLP under fsdp and tensor parallelism", "matmul, a large left side alone",
    "matmul, large weights alone", "matmul, the split inner dimension moved to the result",
    "every other of a split axis", "gather rows of a split array",
    "matmul, a sum over two axes, the result in parts",
    "matmul, inner dimensions split differently", "numbers written at positions, gradient",
    "one number a window", "patches", "pooling", "split a split dimension", "swap two axes",
    "concatenate on a split axis", "concatenate three, one of them empty",
    "segment sum over the only axis", "shard_map over one of two axes",
}  # fmt: skip


def test_a_value_is_uncertain_only_where_the_estimate_misses(dumped):
    right = {key for key, entry in dumped.items() if uncertain(entry) and not misses(entry)}
    assert {name for name, _ in right} <= RIGHT_ALL_THE_SAME


def test_what_is_uncertain_names_axes_that_something_is_sent_over(dumped):
    for entry in dumped.values():
        for _, found in uncertain(entry):
            both = (*entry.collectives, *entry.plan.collectives)
            over = {axis for c in both for axis in c.mesh_axes}
            assert {*found.axes} & over or not misses(entry)


def test_every_miss_has_a_note(dumped):
    missed = {key for key, entry in dumped.items() if misses(entry)}
    said = {key for key, entry in dumped.items() if uncertain(entry)}
    assert missed - said == set()


CONFLICTS = {
    "MLP under fsdp and tensor parallelism, gradient": (
        "data=2, fsdp=2, model=4", ("dot_general", "product", ("fsdp", "data")),
    ),
    "gallery: matmul, outer dimensions want one axis": (
        "data=4, model=4", ("dot_general", "product", ("data",)),
    ),
    "reduce-scatter": ("data=4, model=2", ("dot_general", "product", ("model",))),
    "matmul, inner dimensions split differently": (
        "data=4, model=2", ("dot_general", "product", ("model",)),
    ),
    "MLP, sequence parallel, gradient": (
        "data=4, model=2", ("dot_general_3", "move", ("model",)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFLICTS)
def test_where_a_product_wants_one_axis_twice_it_has_a_code(name, dumped):
    mesh, expected = CONFLICTS[name]
    found = uncertain(dumped[name, mesh])
    assert expected in [(value, one.code, one.axes) for value, one in found]
