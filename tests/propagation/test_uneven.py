"""What is said of values that do not divide: shards in words, one and many."""

from __future__ import annotations

import pytest

from shardviz.core.backend.shardy.build_plan import note_uneven
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_values import PlannedOp

WORDS = {
    (10, 4): "3 shards of 3, then one of 1",
    (5, 4): "2 shards of 2, then one of 1, then 1 shard of padding alone",
    (1, 2): "1 shard of 1, then 1 shard of padding alone",
    (3, 2): "1 shard of 2, then one of 1",
    (6, 4): "3 shards of 2, then 1 shard of padding alone",
    (1, 8): "1 shard of 1, then 7 shards of padding alone",
}


@pytest.mark.parametrize(("size", "parts"), WORDS)
def test_blocks_are_counted_in_words(size, parts):
    op = PlannedOp("y", "op", shape=(size,), spec=Spec.parse("data"))
    (noted,) = note_uneven((op,), MeshSpec(("data",), (parts,)))
    words = WORDS[size, parts]
    assert noted.note.startswith(f"Dimension 0 is uneven over data: {words}; the compiler pads. ")


@pytest.mark.parametrize(("size", "parts"), [(8, 4), (0, 4), (4, 1)])
def test_what_divides_has_no_note(size, parts):
    op = PlannedOp("y", "op", shape=(size,), spec=Spec.parse("data"))
    assert note_uneven((op,), MeshSpec(("data",), (parts,)))[0].note == ""
