"""Explanations agree with the estimate: they mention partial sums where some are reduced."""

from __future__ import annotations

import re

import pytest

from tests.stages.programs import CASES

SUMS = ("all-reduce", "reduce-scatter")
PART = re.compile(r"each device has a part|each device has written|each device finds")
MOVED = re.compile(
    r"(\w+) splits \w+ \(\d+\) in (.*), which (?:is|are) moved first \(([a-z-]+) over"
)


def reductions(plan, op):
    return [
        c for c in plan.collectives
        if c.value == op.name and c.kind in SUMS and not c.cause.startswith("It is written")
    ]  # fmt: skip


def summed_axes(plan, op):
    """The axes that split, in an operand, what an operation reduces over."""
    rule = op.factors
    found = set()
    for name, tensor in zip(op.operands, rule.operands if rule else (), strict=False):
        spec = plan.by_name[name].spec if name in plan.by_name else None
        for number, names in enumerate(tensor if spec else ()):
            if set(names) & set(rule.reduction) and number < spec.rank:
                found |= set(spec.dims[number])
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_partial_sums_are_mentioned_where_they_are_reduced(case, dumped):
    for mesh in case.meshes:
        plan = dumped[case.name, mesh].plan
        for op in plan.ops:
            explanation, found = str(plan.why(op)), reductions(plan, op)
            assert bool(PART.search(explanation)) == bool(found), (mesh, op.name, explanation)
            over = {axis for c in found for axis in c.mesh_axes}
            for axis, _, kind in MOVED.findall(explanation):
                assert axis not in over
                assert f"needs no reduction over {axis}." in explanation
                assert any(c.value == op.name and c.kind == kind for c in plan.collectives)


def test_a_split_that_is_moved_away_before_the_sum_is_mentioned(dumped):
    name = "matmul, the split inner dimension moved to the result"
    plan = dumped[name, "data=4, model=4"].plan
    explanation = str(plan.why("dot_general"))
    assert (
        "model splits k (16) in x, which is moved first (all-to-all over model): so dot_general"
        " reduces over all of k on each device, and needs no reduction over model."
    ) in explanation
    assert "each device has a part" not in explanation


def test_every_split_of_a_sum_is_mentioned(dumped):
    mentioned = 0
    for entry in dumped.values():
        for op in entry.plan.ops:
            axes = summed_axes(entry.plan, op) if op.kind == "op" else set()
            over = {axis for c in reductions(entry.plan, op) for axis in c.mesh_axes}
            moved = {axis for axis, *_ in MOVED.findall(str(entry.plan.why(op)))}
            own = {c for c in entry.plan.collectives if c.value == op.name}
            silent = axes - over - moved - op.spec.unreduced
            if op.covered and not op.manual and op.opcode in ("dot_general", "reduce") and own:
                assert not silent, (op.name, silent)
                mentioned += bool(axes)
    assert mentioned > 50
