"""Where a plan says that its estimate misses: held against what XLA's partitioner put in."""

from __future__ import annotations

import re
from collections import Counter

import jax
import pytest

from shardviz.core.backend.shardy.estimate_limits import LIMITS

# Misses of which nothing is known by the kind of operation: layouts that conflict.
UNSAID = {
    "MLP under fsdp and tensor parallelism, gradient",
    "MLP, sequence parallel, gradient",
    "concatenate, split differently",
    "constraints on the way",
    "gallery: matmul, outer dimensions want one axis",
    "gated MLP under fsdp, gradient",
    "matmul, inner dimensions split differently",
    "reduce-scatter",
} | ({"Fourier transform"} if jax.__version_info__ < (0, 11) else set())
NOTE = re.compile(r"The estimate differs here.*?, split over (.*?);.*?: expect an? ([a-z-]+)\.")


def counted(collectives):
    return Counter((c.kind, c.mesh_axes, c.bytes_per_device) for c in collectives)


def misses(entry):
    return counted(entry.plan.collectives) != counted(entry.collectives)


def noted(entry):
    return [op for op in entry.plan.ops if "The estimate differs here" in op.note]


def test_a_value_says_that_the_estimate_misses_only_where_it_does(dumped):
    noted_entries = {key: entry for key, entry in dumped.items() if noted(entry)}
    assert [key for key, entry in noted_entries.items() if not misses(entry)] == []
    for key, entry in noted_entries.items():
        for op in noted(entry):
            said = NOTE.findall(op.note)
            assert said
            for axes, kind in said:
                found = [set(c.mesh_axes) for c in entry.collectives if c.kind == kind]
                assert any(set(axes.split(" × ")) <= over for over in found), (key, op.name)


def test_every_other_miss_is_known(dumped):
    missed = {name for (name, _), entry in dumped.items() if misses(entry)}
    said = {name for (name, _), entry in dumped.items() if noted(entry)}
    assert missed - said == UNSAID


@pytest.mark.parametrize("name", LIMITS)
def test_every_limit_was_seen(name, dumped):
    what = f" for {LIMITS[name].what} along "
    assert any(what in op.note for entry in dumped.values() for op in noted(entry))
