"""Explanations agree with the estimate: they say which sums are reduced, and which are not."""

from __future__ import annotations

import pytest

from shardviz.core.program.explanation import CostLine, MovedLine
from shardviz.core.program.plan_causes import SumCause, WrittenCause
from tests.stages.programs import CASES

SUMS = ("all-reduce", "reduce-scatter")


def reductions(plan, op):
    own = [c for c in plan.collectives if c.value == op.name and c.kind in SUMS]
    return [c for c in own if not isinstance(c.cause, WrittenCause)]


def moved_lines(plan, op):
    return [fact for fact in plan.why(op).facts if isinstance(fact, MovedLine)]


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
def test_what_is_reduced_and_what_is_moved_before_is_said(case, dumped):
    for mesh in case.meshes:
        plan = dumped[case.name, mesh].plan
        for op in plan.ops:
            found = reductions(plan, op)
            assert all(isinstance(c.cause, SumCause) for c in found), (mesh, op.name)
            facts = plan.why(op).facts
            assert [f.collective for f in facts if isinstance(f, CostLine)] == [
                c for c in plan.collectives if c.value == op.name
            ]
            over = {axis for c in found for axis in c.mesh_axes}
            for line in moved_lines(plan, op):
                assert line.axis not in over
                assert any(c.value == op.name and c.kind == line.kind for c in plan.collectives)


def test_a_split_that_is_moved_away_before_the_sum_is_mentioned(dumped):
    name = "matmul, the split inner dimension moved to the result"
    plan = dumped[name, "data=4, model=4"].plan
    (line,) = moved_lines(plan, plan.op("dot_general"))
    expected = MovedLine("dot_general", "model", "k", 16, ("x",), "all-to-all")
    assert line == expected
    assert not reductions(plan, plan.op("dot_general"))


def test_every_split_of_a_sum_is_mentioned(dumped):
    mentioned = 0
    for entry in dumped.values():
        for op in entry.plan.ops:
            axes = summed_axes(entry.plan, op) if op.kind == "op" else set()
            over = {axis for c in reductions(entry.plan, op) for axis in c.mesh_axes}
            moved = {line.axis for line in moved_lines(entry.plan, op)}
            own = {c for c in entry.plan.collectives if c.value == op.name}
            silent = axes - over - moved - op.spec.unreduced
            if op.covered and not op.manual and op.opcode in ("dot_general", "reduce") and own:
                assert not silent, (op.name, silent)
                mentioned += bool(axes)
    assert mentioned > 50
