"""Plan: what the propagated stage of a program decided about every value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardviz.core.display import Displayed
from shardviz.core.format import plural
from shardviz.core.program.explanation import Explanation, explain_value
from shardviz.core.program.plan_difference import PlanDiff, plan_difference
from shardviz.core.program.plan_values import Diagnosis, Record


@dataclass(frozen=True, repr=False)
class Plan(Record, Displayed):
    """The propagated stage of a program: every value's sharding, its origin, and an estimate.

    Attributes:
        program, mesh, ops, collectives, error: what a Record holds.
        trace_s, lower_s, propagate_s: seconds of each stage.
        notes: what is not covered, and what was left out.
        diagnosis: for a program that jax refuses on Explicit axes, what it would accept.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.plan_values import PlannedOp
    >>> plan = Plan("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> plan.op("x").shape
    (8,)
    """

    trace_s: float | None = None
    lower_s: float | None = None
    propagate_s: float | None = None
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None

    @property
    def seconds(self) -> float:
        """Seconds in all: trace, lower, propagate."""
        return sum(s or 0.0 for s in (self.trace_s, self.lower_s, self.propagate_s))

    def why(self, value: Any) -> Explanation:
        """Explains one value, step by step: what it requested, and what reached it from where.

        Args:
            value: its name, number, a PlannedOp, or a collective that it causes.

        Raises:
            ProgramError: where the plan has no such value.
        """
        return explain_value(self, self.op(value))

    def diff(self, other: Plan) -> PlanDiff:
        """What changes from this plan to another, such as the one after an edit.

        Raises:
            ProgramError: if `other` is no Plan.
        """
        return plan_difference(self, other)

    def __repr__(self) -> str:
        if self.error:
            return f"Plan({self.program}: {self.error})"
        found = plural(len(self.collectives), "collective")
        values = plural(len(self.ops), "value")
        return f"Plan({self.program} on {self.mesh}: {values}, {found} estimated)"
