"""Plan: the propagated sharding of every value of a program, and estimated costs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shardviz.base.display import Displayed
from shardviz.base.errors import ProgramError
from shardviz.base.format import plural
from shardviz.base.parse import check_size
from shardviz.plans.explanation import (
    Explanation,
    ReplayStep,
    explain_value,
    replay_of,
    values_after,
)
from shardviz.plans.plan_difference import PlanDiff, plan_difference
from shardviz.plans.plan_notes import AfterStep
from shardviz.plans.plan_values import Record
from shardviz.programs.constraints import Constraint
from shardviz.programs.failed import lacking_after_errors

#: Fields of a Plan that are known only after propagation.
AFTER_LOWERING = ("ops", "collectives", "error", "propagate_s", "notes")


@lacking_after_errors(
    trace_s=("constraints",), lower_s=(), propagate_s=(), ops=("collectives",)
)
@dataclass(frozen=True, repr=False, eq=False)
class Plan(Record, Displayed):
    """The propagated stage of a program: the sharding of every value, and its origin.

    A plan from `sv.plan` is already traced and lowered. Its shardings are propagated
    when a field that depends on them is first read, from any thread.

    Attributes:
        program: the name of the program.
        mesh: the mesh that the program was planned on.
        ops: arguments first, then operations in program order, then results.
        collectives: the collectives that Shardy plans. They are an estimate, because
            XLA's partitioner may choose others. The `value` of a collective is the name
            of the PlannedOp that needs it.
        error: why planning failed, or None.
        trace_s, lower_s, propagate_s: the seconds that each stage took.
        notes: facts about the whole plan, such as values that the plan does not cover;
            `str()` of each fact is a sentence.
        constraints: one Constraint for each array passed to a call that may constrain
            it, such as `with_sharding_constraint`.
        of: the `Program` that was planned.

    >>> import shardviz as sv
    >>> from shardviz.plans.plan_values import PlannedOp
    >>> plan = sv.Plan("f", sv.mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> plan.op("x").shape
    (8,)
    """

    _adds = ("ok",)

    trace_s: float | None = None
    lower_s: float | None = None
    propagate_s: float | None = None
    notes: tuple[object, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    of: Any = field(default=None, compare=False)

    @staticmethod
    def completed_when_read(
        plan: Plan, complete: Callable[[], Mapping[str, object]]
    ) -> Plan:
        """Returns a copy of a plan that computes AFTER_LOWERING fields when first read.

        Args:
            plan: a plan that has the other fields.
            complete: a function that returns these fields. It is called once, when one
                of them is first read.
        """
        fields = dict(vars(plan))
        for name in AFTER_LOWERING:
            fields.pop(name, None)
        lowered = object.__new__(Plan)
        lowered.__dict__.update(fields, _completion=_Completion(complete))
        return lowered

    def __getstate__(self) -> dict[str, Any]:
        _complete(self)
        # A program holds the user's function, which may not be picklable.
        return {**vars(self), "of": None}

    @property
    def seconds(self) -> float:
        """Total seconds for tracing, lowering and propagation."""
        stages = ("trace_s", "lower_s", "propagate_s")
        return sum(getattr(self, stage) or 0.0 for stage in stages if self.has(stage))

    def why(self, value: Any) -> Explanation:
        """Explains a value's sharding: requested axes, and how other axes reached it.

        Args:
            value: the value's name or number, a PlannedOp, or a collective that the
                value needs.

        Raises:
            ProgramError: if the plan has no such value.
        """
        return explain_value(self, self.op(value))

    def replay(self) -> tuple[ReplayStep, ...]:
        """Returns the propagation steps: which axis reached which value, and why."""
        return replay_of(self)

    def after(self, step: int) -> Plan:
        """Returns the plan as it was after a step of the propagation.

        The returned plan has no collectives: they are known only after the last step.

        Args:
            step: the `number` of a ReplayStep; -1 for the requested shardings, before
                the first step.

        Raises:
            ProgramError: if `step` isn't a whole number, or if planning failed.
        """
        number = check_size(step, "A propagation step", ProgramError)
        return replace(
            self,
            ops=values_after(self, number),
            collectives=(),
            notes=(AfterStep(number), *self.notes),
        )

    def diff(self, other: Plan) -> PlanDiff:
        """Returns the changes from this plan to another, such as one after an edit.

        Raises:
            ProgramError: if `other` is not a Plan.
        """
        return plan_difference(self, other)

    def __repr__(self) -> str:
        if self.error:
            return f"Plan({self.program}: {self.error})"
        collectives = plural(len(self.collectives), "collective")
        values = plural(len(self.ops), "value")
        counts = f"{values}, {collectives} estimated"
        return f"Plan({self.program} on {self.mesh}: {counts})"


@dataclass(eq=False)
class _Completion:
    """Computes the fields of a plan that depend on propagation.

    Attributes:
        run: returns the fields.
        lock: held while the fields are computed, because several threads may read the
            plan.
    """

    run: Callable[[], Mapping[str, object]]
    lock: threading.Lock = field(default_factory=threading.Lock)


def _complete(plan: Plan) -> None:
    """Computes the plan's fields that depend on propagation, if not yet known."""
    completion: _Completion | None = vars(plan).get("_completion")
    if completion is None:
        return
    with completion.lock:
        # Another thread may have computed them meanwhile.
        if "_completion" in vars(plan):
            vars(plan).update(completion.run())
            del vars(plan)["_completion"]


class _AfterLowering:
    """Completes a plan when code reads a field that the plan lacks.

    Python asks the class for an attribute only if the instance doesn't have it.
    """

    def __init__(self, name: str) -> None:
        self.name, self.default = name, getattr(Plan, name)

    def __get__(self, plan: Plan | None, owner: type) -> Any:
        if plan is None:
            return self.default
        _complete(plan)
        return vars(plan)[self.name]


# The others are fields that may lack a value, and these read the error first.
for _name in ("error", "notes"):
    setattr(Plan, _name, _AfterLowering(_name))
