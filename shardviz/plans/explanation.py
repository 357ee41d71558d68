"""Explains how one value got its sharding, and replays the propagation step by step.

Each line of an explanation is a fact; `words/plan.py` has its sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from shardviz.base.axis_parts import group_size, parent_axis
from shardviz.base.collective import Collective
from shardviz.base.display import Displayed, Fact
from shardviz.plans.plan_notes import InsideShardMap
from shardviz.plans.plan_values import (
    Origin,
    PlannedOp,
    Record,
    ShardingRule,
    Step,
    arrival,
)

#: The maximum number of lines in the summary of an explanation.
MOST_SENTENCES = 12
#: Operations without a sharding rule that pass values into and out of their regions.
CARRIES = ("while", "case", "if", "optimization_barrier", "shard_map")


@dataclass(frozen=True)
class ValueLine(Fact):
    """The kind of a value, its sharding, and the sharding rule of its operation."""

    op: PlannedOp


@dataclass(frozen=True)
class SplitLine(Fact):
    """A dimension is split over an axis.

    Attributes:
        dim, size: the index and the size of the dimension.
        axis: the mesh axis.
        origin: the origin of the axis; None if not known.
        requested: whether the program requests the axis on this value.
    """

    dim: int
    size: int
    axis: str
    origin: Origin | None = None
    requested: bool = False


@dataclass(frozen=True)
class StepLine(Fact):
    """One step of the propagation towards the value.

    Attributes:
        number: the number of the step.
        axis: the mesh axis that propagated.
        origin, target: the names of the values that the axis came from and reached.
        code: what the axis crossed: a `"result"` of the program, one of `CARRIES`, an
            `"elementwise"` operation, or another `"op"`.
        op: the name of the crossed operation; `""` if it is the target.
        source: the line of the operation, or `""`.
        formula: the sharding rule of the operation; `""` if elementwise or unknown.

    >>> StepLine(1, "model", "w", "h").code
    'op'
    """

    number: int
    axis: str
    origin: str
    target: str
    code: str = "op"
    op: str = ""
    source: str = ""
    formula: str = ""


@dataclass(frozen=True)
class NotSplitLine(Fact):
    """No axis splits a dimension; each subclass is one reason.

    Attributes:
        dim, size: the index and the size of the dimension.
    """

    dim: int
    size: int


@dataclass(frozen=True)
class SizeOneLine(NotSplitLine):
    """The dimension has size 1."""


@dataclass(frozen=True)
class UnreachedLine(NotSplitLine):
    """No axis reached the dimension."""


@dataclass(frozen=True)
class RequestedLine(NotSplitLine):
    """The program requests that the dimension not be split.

    Attributes:
        source: the line of the request, or `""`.
    """

    source: str


@dataclass(frozen=True)
class NoRuleLine(NotSplitLine):
    """Shardy has no sharding rule for the operation.

    Attributes:
        op: the name of the value.
    """

    op: str


@dataclass(frozen=True)
class AxisInUseLine(NotSplitLine):
    """An axis splits this dimension in an operand, and another dimension in the value.

    Attributes:
        axis: the mesh axis.
        operand: the name of the operand.
        other_dim: the dimension of the value that the axis splits instead.
    """

    axis: str
    operand: str
    other_dim: int


@dataclass(frozen=True)
class StoppedLine(NotSplitLine):
    """Shardy let no axis cross the operation.

    Attributes:
        op: the name of the value.
        splits: pairs of an axis and the operand in which it splits the dimension.
        code: `"blocked"` (the operation's rule lets no axis cross in this dimension),
            `"conflict"` (several operands are split over different axes), or
            `"unknown"`.
    """

    op: str
    splits: tuple[tuple[str, str], ...]
    code: str


@dataclass(frozen=True)
class ReturnedLine(NotSplitLine):
    """The returned value is split in this dimension, and the result is not.

    Attributes:
        value: the name of the returned value.
        axes: the axes that split the dimension in that value.
        code: `"uneven"` (the axes do not divide the dimension), `"part"` (the value is
            split over a part of an axis), or `"unknown"`.
    """

    value: str
    axes: tuple[str, ...]
    code: str


@dataclass(frozen=True)
class UnreducedLine(Fact):
    """The value is unreduced over an axis: its sum, max or min is still pending."""

    axis: str
    kind: str


@dataclass(frozen=True)
class CostLine(Fact):
    """A collective that the plan estimates for the value."""

    collective: Collective


@dataclass(frozen=True)
class LeftOutLine(Fact):
    """Lines that a summary leaves out.

    Attributes:
        count: the number of lines.
        alike: whether all of them are steps through elementwise operations.
    """

    count: int
    alike: bool = False


@dataclass(frozen=True, repr=False)
class Explanation(Displayed):
    """Why a value of a plan has its sharding.

    Attributes:
        plan: the plan.
        op: the value.
        facts: the explanation, one fact per line.

    >>> import shardviz as sv
    >>> from shardviz.plans.explanation import explain_value
    >>> from shardviz.plans.plan_values import PlannedOp, Record
    >>> from shardviz.base.partition_spec import Spec
    >>> x = PlannedOp("x", "argument", shape=(8,), dtype="int8", spec=Spec.parse("None"))
    >>> print(explain_value(Record("f", sv.mesh(data=2), (x,)), x))
    x is an argument, int8[8]: P(None).
    Dimension 0 (8) is not split, as requested.
    """

    _omits = ("plan",)

    plan: Record
    op: PlannedOp
    facts: tuple[Fact, ...]

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The explanation, one sentence per line."""
        return tuple(map(str, self.facts))

    @property
    def summary(self) -> tuple[str, ...]:
        """The explanation in at most MOST_SENTENCES lines.

        Leaves out steps through elementwise operations if there are more lines.
        """
        facts = list(self.facts)
        if len(facts) > MOST_SENTENCES:
            facts = []
            for alike, group in groupby(self.facts, _is_alike):
                run = list(group)
                if alike and len(run) > 2:
                    # Keep the last step, which names the value that the axis reached.
                    run[:-1] = [LeftOutLine(len(run) - 1, alike=True)]
                facts += run
        surplus = len(facts) - MOST_SENTENCES
        if surplus > 0:
            facts[MOST_SENTENCES - 1 :] = [LeftOutLine(surplus + 1)]
        return tuple(map(str, facts))

    def __str__(self) -> str:
        return "\n".join(self.summary)

    def __repr__(self) -> str:
        return f"Explanation({self.op.name}: {len(self.facts)} lines)"


def _is_alike(fact: Fact) -> bool:
    return isinstance(fact, StepLine) and fact.code == "elementwise"


def explain_value(plan: Record, op: PlannedOp) -> Explanation:
    """Traces each axis of a value to its origin; explains its unsplit dimensions.

    Args:
        plan: the plan.
        op: a value of the plan.
    """
    facts: list[Fact] = [ValueLine(op)]
    for dim, size in enumerate(op.shape):
        axes = _axes(op, dim)
        if not axes:
            facts.append(_why_not_split(plan, op, dim))
        for axis in axes:
            origin, requested = op.origins.get(axis), False
            if origin is not None and origin.kind in ("argument", "result"):
                requested = origin.name == op.name
            facts.append(SplitLine(dim, size, axis, origin, requested))
            if origin is not None and not requested:
                for step, target in steps_to(plan, op, axis):
                    facts.append(_step_line(plan, step, target))
    kind = op.spec.unreduced_kind
    facts += [UnreducedLine(axis, kind) for axis in sorted(op.spec.unreduced)]
    facts += [CostLine(c) for c in plan.collectives if c.value == op.name]
    return Explanation(plan, op, (*facts, *op.notes, *op.uncertain))


def steps_to(plan: Record, op: PlannedOp, axis: str) -> list[tuple[Step, str]]:
    """The steps by which an axis reached a value, each with the value it reached."""
    reached = op.name
    if op.kind == "result" and arrival(plan.arrivals, reached, axis) is None:
        # If no step reached the result, the axis came with the returned value.
        reached = next(iter(op.operands), reached)
    steps: list[tuple[Step, str]] = []
    visited = {op.name}
    while True:
        step = arrival(plan.arrivals, reached, axis)
        # In a loop, the path may return to a visited value.
        if step is None or step.origin in visited:
            return steps[::-1]
        steps.append((step, reached))
        reached = step.origin
        visited.add(reached)


def _step_line(plan: Record, step: Step, target: str) -> StepLine:
    line = StepLine(step.number, step.axis, step.origin, target)
    op = plan.by_name.get(step.op)
    if op is None or op.kind == "result":
        return replace(line, code="result")
    if op.opcode in CARRIES:
        return replace(line, code=op.opcode)
    line = replace(line, source=op.source)
    # Name the operation only if it isn't the target, which the line already names.
    if step.op != target:
        line = replace(line, op=step.op)
    rule = op.factors
    if rule is None:
        return line
    if rule.is_elementwise:
        return replace(line, code="elementwise")
    return replace(line, formula=rule.formula)


def _why_not_split(plan: Record, op: PlannedOp, dim: int) -> NotSplitLine:
    """Finds the reason why no axis splits a dimension."""
    size = op.shape[dim]
    if size == 1:
        return SizeOneLine(dim, size)
    in_shard_map = op.opcode == "reshard" and op.op.endswith("/shard_map")
    asks = op.kind != "op" or op.opcode in ("sharding_constraint", "shard_map")
    if (asks or in_shard_map) and dim not in op.open_dims:
        return RequestedLine(dim, size, op.source)
    if op.kind == "result" and op.operands:
        value = plan.by_name[op.operands[0]]
        if axes := _axes(value, dim):
            code = "unknown"
            if any(parent_axis(axis) != axis for axis in axes):
                code = "part"
            elif size % group_size(axes, plan.mesh):
                code = "uneven"
            return ReturnedLine(dim, size, value.name, axes, code)
        # The function left this dimension as it is in the value that it returns.
        return _why_not_split(plan, value, dim)
    rule, index = op.factors, op.name.rpartition("[")[2].rstrip("]")
    if not op.covered and (rule is None or not rule.propagates):
        return NoRuleLine(dim, size, op.name)
    number = int(index) if index.isdecimal() else 0
    if rule is None or number >= len(rule.results) or dim >= len(rule.results[number]):
        return UnreachedLine(dim, size)
    operands = _operands_by_axis(plan, op, rule, rule.results[number][dim])
    if not operands:
        return UnreachedLine(dim, size)
    axis, operand = next(iter(operands.items()))
    for other_dim, axes in enumerate(op.spec.dims):
        if axis in axes and other_dim != dim:
            return AxisInUseLine(dim, size, axis, operand, other_dim)
    code = "unknown"
    restricted = (*rule.need_replication, *rule.permutation, *rule.blocked_propagation)
    if not {*rule.results[number][dim]}.isdisjoint(restricted):
        code = "blocked"
    elif len(set(operands.values())) > 1:
        code = "conflict"
    return StoppedLine(dim, size, op.name, tuple(operands.items()), code)


def _operands_by_axis(
    plan: Record, op: PlannedOp, rule: ShardingRule, factors: tuple[str, ...]
) -> dict[str, str]:
    """Mesh axis -> first operand in which the axis splits one of these factors."""
    operands: dict[str, str] = {}
    # In a shard_map, its axes split no value: each device has a block.
    manual = {
        axis for n in op.notes if isinstance(n, InsideShardMap) for axis in n.axes
    }
    for name, tensor in zip(op.operands, rule.operands, strict=False):
        value = plan.by_name.get(name)
        if value is None:
            continue
        for dim, factors_of_dim in enumerate(tensor):
            if not set(factors_of_dim).isdisjoint(factors):
                for axis in _axes(value, dim):
                    if axis not in manual:
                        operands.setdefault(axis, name)
    return operands


def _axes(op: PlannedOp, dim: int) -> tuple[str, ...]:
    # A spec may be shorter than the shape.
    if dim >= op.spec.rank:
        return ()
    return op.spec.dims[dim]


@dataclass(frozen=True)
class ReplayStep:
    """The axes that crossed one operation in one step of the propagation.

    Attributes:
        number: the number of the step, as in `PlannedOp.steps`.
        op: the name of the operation.
        moves: one line for each axis and each value that the axis reached.

    >>> ReplayStep(0, "dot_general", ()).words
    ''
    """

    number: int
    op: str
    moves: tuple[StepLine, ...]

    @property
    def words(self) -> str:
        """The sentences of all moves, joined into one text."""
        return " ".join(map(str, self.moves))


def replay_of(plan: Record) -> tuple[ReplayStep, ...]:
    """Returns every step of the propagation of a plan, in order."""
    distinct = {step for op in plan.ops for step in op.steps}
    in_order = sorted(distinct, key=lambda s: (s.number, s.op, s.axis))
    replay = []
    for (number, op), steps in groupby(in_order, key=lambda s: (s.number, s.op)):
        moves: list[StepLine] = []
        for step in steps:
            moves += [_step_line(plan, step, name) for name in step.to]
        replay.append(ReplayStep(number, op, tuple(moves)))
    return tuple(replay)


def values_after(plan: Record, number: int) -> tuple[PlannedOp, ...]:
    """Returns the values with the axes that they had after a step of the propagation.

    Args:
        plan: the plan.
        number: the number of the step; -1 for the requested shardings.
    """
    values = []
    for op in plan.ops:
        # Leave out axes that arrived in a later step.
        later_axes = set()
        for axis in op.spec.axes:
            steps = steps_to(plan, op, axis)
            if steps and steps[-1][0].number > number:
                later_axes.add(axis)
        if later_axes:
            dims = []
            for axes in op.spec.dims:
                dims.append(tuple(axis for axis in axes if axis not in later_axes))
            origins = {
                a: origin for a, origin in op.origins.items() if a not in later_axes
            }
            spec = replace(op.spec, dims=tuple(dims))
            op = op.changed(spec=spec, origins=origins)
        values.append(op)
    return tuple(values)
