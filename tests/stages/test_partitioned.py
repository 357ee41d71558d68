"""What the package reads after XLA's partitioner, compared with the text of the same module."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.stages import hlo_text
from tests.stages.hlo_text import axes_by_search, axes_of_moves
from tests.stages.programs import CASES

PAIRS = [(case.name, mesh) for case in CASES for mesh in case.meshes]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_collectives_equal_those_of_the_text(case, dumped):
    for mesh in case.meshes:
        entry = dumped[case.name, mesh]
        assert entry.reason is None
        ours = [
            hlo_text.Printed(c.name, c.kind, c.mesh_axes, c.bytes_per_device, c.in_loop, c.groups)
            for c in entry.collectives
        ]
        theirs = hlo_text.collectives(entry.printed, entry.axis_names, entry.axis_sizes)
        assert sorted(ours) == theirs, mesh


def test_there_are_enough_programs_and_collectives(dumped):
    assert len(CASES) >= 40
    assert len({c.name for c in CASES}) == len(CASES)
    assert all(len(c.meshes) == 3 for c in CASES)
    assert sorted(dumped) == sorted(PAIRS)
    kinds = Counter(c.kind for e in dumped.values() for c in e.collectives)
    # XLA has more kinds, for programs that ask for them by name.
    assert set(kinds) == {"all-gather", "all-reduce", "all-to-all", "collective-permute"} | {
        "reduce-scatter"
    }
    assert kinds.total() > 400
    assert sum(c.in_loop for e in dumped.values() for c in e.collectives) >= 10


def test_the_partitioner_is_done_early(dumped):
    shares = sorted(e.partition_s / e.compile_s for e in dumped.values())
    assert shares[len(shares) // 2] < 0.8


GROUPS = {
    "rows": (((0, 1), (2, 3), (4, 5), (6, 7)), ("b",)),
    "columns": (((0, 2, 4, 6), (1, 3, 5, 7)), ("a",)),
    "all": (((0, 1, 2, 3, 4, 5, 6, 7),), ("a", "b")),
    "half an axis": (((0, 2), (4, 6), (1, 3), (5, 7)), ("a",)),
    "no block": (((0, 3), (1, 2), (4, 7), (5, 6)), ()),
    "two shapes": (((0, 1), (2, 4), (3, 5), (6, 7)), ()),
    "not all": (((0, 1), (2, 3)), ()),
}


@pytest.mark.parametrize("name", GROUPS)
def test_the_search_for_axes(name):
    groups, axes = GROUPS[name]
    assert axes_by_search(groups, ("a", "b"), (4, 2)) == axes


def test_axes_of_moves():
    assert axes_of_moves(((0, 2), (2, 0)), ("a", "b"), (4, 2)) == ("a",)
    assert axes_of_moves(((0, 3), (3, 0)), ("a", "b"), (4, 2)) == ("a", "b")
