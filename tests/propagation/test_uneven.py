"""Values that do not divide by the axes that split them have a note."""

from __future__ import annotations

import pytest

from shardviz.core.backend.shardy.uneven import note_uneven
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_values import PlannedOp


def noted(size, parts):
    op = PlannedOp("y", "op", shape=(size,), spec=Spec.parse("data"))
    return note_uneven((op,), MeshSpec(("data",), (parts,)))[0].notes


@pytest.mark.parametrize(("size", "parts"), [(10, 4), (5, 4), (1, 2), (6, 4), (1, 8)])
def test_what_does_not_divide_has_a_note(size, parts):
    (note,) = noted(size, parts)
    assert (note.code, note.dim, note.misfit.size, note.misfit.parts) == ("padded", 0, size, parts)
    assert str(note)


@pytest.mark.parametrize(("size", "parts"), [(8, 4), (0, 4), (4, 1)])
def test_what_divides_has_no_note(size, parts):
    assert noted(size, parts) == ()
