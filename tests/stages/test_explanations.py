"""Explanations agree with the estimate: they have every collective, and its cause."""

from __future__ import annotations

import pytest

from shardviz.plans.explanation import CostLine
from shardviz.plans.plan_causes import SumCause, WrittenCause
from tests.stages.programs import CASES

SUMS = ("all-reduce", "reduce-scatter")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_collective_of_a_value_is_in_its_explanation(case, dumped):
    for mesh in case.meshes:
        plan = dumped[case.name, mesh].plan
        for op in plan.ops:
            own = [c for c in plan.collectives if c.value == op.name]
            for c in own:
                if c.kind in SUMS:
                    assert isinstance(c.cause, (SumCause, WrittenCause)), (mesh, op.name)
            facts = plan.why(op).facts
            assert [f.collective for f in facts if isinstance(f, CostLine)] == own
