"""Where a plan says that its estimate misses: held against what XLA's partitioner put in."""

from __future__ import annotations

import re
from collections import Counter

import jax
import pytest

from shardviz.core.backend.shardy.estimate_limits import LIMITS

# Until jax 0.11 XLA gathers the rows of a Fourier transform.
NEWER = {"rows of fft"} if jax.__version_info__ >= (0, 11) else set()
NOTE = re.compile(r"The estimate differs here.*? split over ([^;]*);.*?: expect an? ([a-z-]+)\.")


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


def test_every_miss_has_a_note(dumped):
    missed = {key for key, entry in dumped.items() if misses(entry)}
    said = {key for key, entry in dumped.items() if noted(entry)}
    assert missed - said == set()


# Where XLA does otherwise than Shardy, and the estimate knows what.
KNOWN = (
    "matmul, weights split alone", "matmul, large weights alone", "matmul, the left side alone",
    "matmul, large weights alone, an axis to spare", "matmul, a large left side alone",
    "matmul, a sum over two axes, the result in parts", "segment sum over the only axis",
)  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_a_product_and_zeros_are_estimated_as_xla_moves_them(name, dumped):
    entries = [entry for (case, _), entry in dumped.items() if case == name]
    assert len(entries) == 3
    assert [entry for entry in entries if misses(entry)] == []
    assert any(entry.collectives for entry in entries)


@pytest.mark.parametrize("name", sorted({*LIMITS} - NEWER))
def test_every_limit_was_seen(name, dumped):
    what = f" for {LIMITS[name].what} along "
    assert any(what in op.note for entry in dumped.values() for op in noted(entry))


CONFLICTS = {
    "MLP under fsdp and tensor parallelism, gradient": (
        "data=2, fsdp=2, model=4",
        "Shardy plans an all-to-all and an all-reduce for dot_general, since the inner dimension of"
        " w_in is split over fsdp; XLA's partitioner gathers w_in instead: expect an all-gather.",
    ),
    "gallery: matmul, outer dimensions want one axis": (
        "data=4, model=4",
        "Shardy plans to move an operand of dot_general, which has two dimensions that are split"
        " over data; XLA's partitioner splits one of them over model instead, as many ways: expect"
        " a collective-permute.",
    ),
    "reduce-scatter": (
        "data=4, model=2",
        "Shardy plans an all-reduce of dot_general, whose result is split over model; XLA's"
        " partitioner splits it over data while it is summed: expect a collective-permute.",
    ),
    "matmul, inner dimensions split differently": (
        "data=4, model=2",
        "Shardy plans to take a part of x and to gather that for dot_general, split over data;"
        " XLA's partitioner gathers all of x: expect an all-gather.",
    ),
    "MLP, sequence parallel, gradient": (
        "data=4, model=2",
        "Shardy plans an all-gather for dot_general_4 that it has planned before, of a value split"
        " over model; XLA's partitioner gathers it once for both: expect an all-gather.",
    ),
    "concatenate, split differently": (
        "data=4, model=2",
        "Shardy plans to move the values of a concatenation that are not split alike, split over"
        " data × model; XLA's partitioner moves them in another order of steps: expect a"
        " collective-permute.",
    ),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_where_a_product_wants_one_axis_twice_the_note_says_what_xla_does(name, dumped):
    mesh, words = CONFLICTS[name]
    notes = [op.note for op in noted(dumped[name, mesh])]
    assert any(f"The estimate differs here: {words}" in note for note in notes), notes
