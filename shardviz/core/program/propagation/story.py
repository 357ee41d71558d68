"""tell() -> Story: how one value of a plan got its sharding, step by step. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.core.display import Displayed
from shardviz.core.program.propagation.plan import Plan, PlannedOp


@dataclass(frozen=True, repr=False)
class Story(Displayed):
    """Why a value is laid out as it is.

    Attributes:
        plan: the plan it is told from.
        op: the value.
        lines: the story, one sentence a step.

    """

    plan: Plan
    op: PlannedOp
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        return f"Story({self.op.name}: {len(self.lines)} lines)"


def tell(plan: Plan, op: PlannedOp) -> Story:
    """The story of one value of a plan."""
    return Story(plan, op, ())
