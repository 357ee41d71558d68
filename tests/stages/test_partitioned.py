"""What the package reads after XLA's partitioner, compared with the text of the same module."""

from __future__ import annotations

from collections import Counter

import pytest

from shardviz.base.axis_parts import parent_axis
from tests.stages import hlo_text
from tests.stages.programs import CASES

PAIRS = [(case.name, mesh) for case in CASES for mesh in case.meshes]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_collectives_equal_those_of_the_text(case, dumped):
    for mesh in case.meshes:
        entry = dumped[case.name, mesh]
        assert entry.reason is None
        ours = []
        for c in entry.collectives:
            # The text has groups, and no names for parts of axes.
            axes = tuple(map(parent_axis, c.mesh_axes))
            about = (axes, c.bytes_per_device, c.in_loop, c.groups)
            ours.append(hlo_text.Printed(c.name, c.kind, *about))
        theirs = hlo_text.collectives(entry.printed, entry.axis_names, entry.axis_sizes)
        assert sorted(ours) == theirs, mesh


def test_there_are_enough_programs_and_collectives(dumped):
    assert len(CASES) >= 40
    assert len({c.name for c in CASES}) == len(CASES)
    assert all(len(c.meshes) == 2 for c in CASES)
    assert sorted(dumped) == sorted(PAIRS)
    kinds = Counter(c.kind for e in dumped.values() for c in e.collectives)
    # XLA has more kinds, for programs that ask for them by name.
    assert set(kinds) == {"all-gather", "all-reduce", "all-to-all", "collective-permute"} | {
        "reduce-scatter"
    }
    assert kinds.total() > 190
    assert sum(c.in_loop for e in dumped.values() for c in e.collectives) >= 8


def test_the_partitioner_is_done_early(dumped):
    shares = sorted(e.partition_s / e.compile_s for e in dumped.values())
    assert shares[len(shares) // 2] < 0.8
