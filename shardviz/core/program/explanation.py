"""How one value of a plan got its sharding, line by line; and the propagation, step by
step.

Each line is a fact; `wording/plan.py` says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from shardviz.core.display import Displayed, Fact
from shardviz.core.program.plan_values import (
    Origin,
    PlannedOp,
    Record,
    ShardingRule,
    Step,
    Tensor,
    parent_axis,
)
from shardviz.core.program.report import Collective

#: How many lines the summary of an explanation has at most.
MOST_SENTENCES = 12
_Arrivals = Mapping[tuple[str, str], Step]
#: What carries values across its border, without a rule of its own.
CARRIES = ("while", "case", "if", "optimization_barrier", "shard_map")
_SUMS = ("all-reduce", "reduce-scatter")


@dataclass(frozen=True)
class ValueLine(Fact):
    """What a value is: made by which operation, of which type, and how it is split."""

    op: PlannedOp


@dataclass(frozen=True)
class RuleLine(Fact):
    """The sharding rule of the operation that makes a value."""

    op: PlannedOp


@dataclass(frozen=True)
class SplitLine(Fact):
    """A dimension is split over an axis.

    Attributes:
        dim, size: the dimension.
        axis: the mesh axis.
        origin: where that came from; None where that is not known.
        requested: whether the value itself is requested so.
    """

    dim: int
    size: int
    axis: str
    origin: Origin | None = None
    requested: bool = False


@dataclass(frozen=True)
class NoStepLine(Fact):
    """No step brought the axis of the line before: it crossed a function or loop."""


@dataclass(frozen=True)
class StepLine(Fact):
    """One step of the propagation towards the value.

    Attributes:
        number: of the step.
        axis: the mesh axis that moved.
        origin, target: from which value to which.
        code: `"result"` (of the program), one of `CARRIES`, or `"op"`.
        op: the operation that it crossed, where that does not make the target.
        source: the line of the operation, or `""`.
        alike: whether the operation works element by element.
        formula: the sharding rule that was followed; `""` where it says nothing.
        factor: the factor of that rule that the axis splits.
        dims: the dimension of the factor at the origin, and at the target.

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
    alike: bool = False
    formula: str = ""
    factor: str = ""
    dims: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class WholeLine(Fact):
    """No axis splits a dimension.

    Attributes:
        dim, size: the dimension.
        code: why: `"size one"`, `"requested"`, `"no rule"`, `"constraint"`,
            `"shard_map"` (which ask for that), `"other result"` (what is returned is
            split, and the program requests otherwise), `"result"` (as what is
            returned), `"unreached"`, `"new"`, `"not in operands"`, `"body"` (of a
            shard_map), `"blocked"`, `"part"`, `"used"` (the axis splits another
            dimension), `"conflict"`, `"summed"` (the axis splits what is reduced), or
            `"held"` (Shardy did not let it cross).
        op: the name of the value.
        source: the line of what asks for that, or `""`.
        names: the values that it comes from.
        splits: axis and operand, where an axis splits the dimension in an operand.
        factor: the factor, or factors, that it is about.
        other: the other dimension that the axis splits.
    """

    dim: int
    size: int
    code: str
    op: str = ""
    source: str = ""
    names: tuple[str, ...] = ()
    splits: tuple[tuple[str, str], ...] = ()
    factor: str = ""
    other: int = 0


@dataclass(frozen=True)
class UnreducedLine(Fact):
    """A value is not summed over an axis yet."""

    axis: str


@dataclass(frozen=True)
class MovedLine(Fact):
    """Operands are moved, so that nothing is reduced over an axis.

    Attributes:
        op: the name of the value.
        axis: the mesh axis.
        factor, size: the factor that is reduced.
        operands: those in which the axis splits it.
        kind: of the collective that moves them.
    """

    op: str
    axis: str
    factor: str
    size: int
    operands: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class CostLine(Fact):
    """What the estimate plans for the value."""

    collective: Collective


@dataclass(frozen=True)
class LeftOutLine(Fact):
    """Steps that a summary leaves out.

    Attributes:
        count: how many.
        alike: whether all of them are element by element.
    """

    count: int
    alike: bool


@dataclass(frozen=True)
class MoreLine(Fact):
    """How many lines a summary leaves out at its end."""

    count: int


@dataclass(frozen=True, repr=False)
class Explanation(Displayed):
    """Why a value of a plan is sharded as it is.

    Attributes:
        plan: the plan.
        op: the value.
        facts: the explanation, one fact per line.
        steps: the steps that brought its axes, in the order in which they happened.
        paths: per axis, which of the lines are its steps: the first, and how many.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> x = PlannedOp("x", "argument", shape=(8,), dtype="int8", spec=Spec.parse("None"))
    >>> print(explain_value(Record("f", make_mesh(data=2), (x,)), x))
    x is an argument, int8[8]: P(None).
    Dimension 0 (8) is not split, as requested.
    """

    plan: Record
    op: PlannedOp
    facts: tuple[Fact, ...]
    steps: tuple[Step, ...] = ()
    paths: tuple[tuple[int, int], ...] = ()

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The explanation, one sentence per line."""
        return tuple(map(str, self.facts))

    @property
    def summary(self) -> tuple[str, ...]:
        """The explanation in at most MOST_SENTENCES lines.

        Of many steps it has those that change something: the axis goes to another
        dimension, or through an operation that does not work element by element; and
        the last one.
        """
        return tuple(map(str, self._summarised()))

    def _summarised(self) -> list[Fact]:
        if len(self.facts) <= MOST_SENTENCES:
            return list(self.facts)
        long = [path for path in self.paths if path[1] > 1]
        others = len(self.facts) - sum(count for _, count in long)
        # A path takes a line more, which counts the steps that are left out.
        each = max(1, (MOST_SENTENCES - others) // max(1, len(long)) - 1)
        hidden: set[int] = set()
        instead: dict[int, Fact] = {}
        for first, count in long:
            last = first + count - 1
            turns = [n for n in range(first, last) if not self._is_alike(n)]
            shown = turns if len(turns) < each else turns[: each - 1]
            left = [n for n in range(first, last) if n not in shown]
            if len(left) > 1:
                hidden.update(left)
                instead[last] = LeftOutLine(len(left), set(left).isdisjoint(turns))
        facts: list[Fact] = []
        for number, fact in enumerate(self.facts):
            if number in instead:
                facts.append(instead[number])
            if number not in hidden:
                facts.append(fact)
        more = len(facts) - MOST_SENTENCES
        if more > 0:
            facts[MOST_SENTENCES - 1 :] = [MoreLine(more + 1)]
        return facts

    def _is_alike(self, number: int) -> bool:
        fact = self.facts[number]
        return isinstance(fact, StepLine) and fact.alike

    def __str__(self) -> str:
        return "\n".join(self.summary)

    def __repr__(self) -> str:
        return f"Explanation({self.op.name}: {len(self.facts)} lines)"


def explain_value(plan: Record, op: PlannedOp) -> Explanation:
    """Explains one value: every axis back to its origin, and why the rest is not split.

    Args:
        plan: the plan.
        op: one of its values.
    """
    steps: dict[tuple[int, str], Step] = {}
    facts: list[Fact] = [ValueLine(op)]
    paths: list[tuple[int, int]] = []
    if op.rule and op.kind == "op":
        facts.append(RuleLine(op))
    for number in range(len(op.shape)):
        axes = _axes(op, number)
        if not axes:
            facts.append(_why_not_split(plan, op, number))
        for axis in axes:
            path = _AxisPath(plan, op, axis)
            lines = path.step_lines()
            facts += [path.opening(number), *path.without_step(), *lines]
            paths.append((len(facts) - len(lines), len(lines)))
            steps |= {(s.number, s.axis): s for s in path.steps}
    facts += [UnreducedLine(axis) for axis in sorted(op.spec.unreduced)]
    facts += _moved_first(plan, op)
    facts += [CostLine(c) for c in plan.collectives if c.value == op.name]
    facts += [*op.notes, *op.uncertain]
    in_order = tuple(steps[n] for n in sorted(steps))
    return Explanation(plan, op, tuple(facts), in_order, tuple(paths))


class _AxisPath:
    """The steps by which one axis reached a value."""

    def __init__(self, plan: Record, op: PlannedOp, axis: str) -> None:
        self.plan, self.op, self.axis = plan, op, axis
        self.steps: list[Step] = []
        self.end = self.start = op.name
        arrivals = plan.arrivals
        is_result = op.kind == "result" and bool(op.operands)
        if is_result and _arrival(arrivals, op.name, axis) is None:
            self.end = self.start = op.operands[0]
        seen = {op.name}
        while True:
            step = _arrival(arrivals, self.start, axis)
            if step is None or step.origin in seen:
                break
            self.steps.insert(0, step)
            self.start = step.origin
            seen.add(step.origin)
        origin = op.origins.get(axis)
        self.origin = origin
        own = origin is not None and origin.name == op.name
        self.requested = own and origin.kind in ("argument", "result")  # type: ignore[union-attr]

    def opening(self, number: int) -> SplitLine:
        """That the axis splits the dimension, and where it came from."""
        size = self.op.shape[number]
        return SplitLine(number, size, self.axis, self.origin, self.requested)

    def without_step(self) -> list[Fact]:
        """A line where no step brought the axis, although one should have."""
        if self.origin is None or self.requested or self.steps:
            return []
        op, origin = self.op, self.origin
        explained = (
            origin.name == self.start,
            op.opcode in ("sharding_constraint", "shard_map"),
            any(getattr(note, "code", "") == "alike" for note in op.notes),
            origin.kind == "manual" and op.opcode == "reshard",
        )
        return [] if any(explained) else [NoStepLine()]

    def step_lines(self) -> list[Fact]:
        """A line for every step."""
        if self.origin is None or self.requested:
            return []
        targets = [step.origin for step in self.steps[1:]] + [self.end]
        lines: list[Fact] = []
        for step, target in zip(self.steps, targets, strict=False):
            lines.append(_step_line(self.plan, step, target))
        return lines


def _arrival(arrivals: _Arrivals, name: str, axis: str) -> Step | None:
    return arrivals.get((name, axis)) or arrivals.get((name, parent_axis(axis)))


def _step_line(plan: Record, step: Step, target: str) -> StepLine:
    """One step: from where to where, by what rule."""
    line = StepLine(step.number, step.axis, step.origin, target)
    op = plan.by_name.get(step.op)
    if op is None or op.kind == "result":
        return replace(line, code="result")
    if op.opcode in CARRIES:
        return replace(line, code=op.opcode)
    across = "" if step.op == target else step.op
    line = replace(line, op=across, source=op.source)
    rule = op.factors
    first = _dimension_of(plan.by_name.get(step.origin), step.axis)
    last = _dimension_of(plan.by_name.get(target), step.axis)
    if rule is None or first is None or last is None:
        return line
    factor = _factor_at(rule, op, step.origin, first)
    if not factor or factor != _factor_at(rule, op, target, last):
        return line
    # All operands and results have the same dimensions.
    same = len({*rule.operands, *rule.results}) == 1
    if same and not rule.need_replication and not rule.blocked_propagation:
        return replace(line, alike=True)
    return replace(line, formula=rule.formula, factor=factor, dims=(first, last))


def _factor_at(rule: ShardingRule, op: PlannedOp, value: str, number: int) -> str:
    """The factor that a rule gives a dimension of one of its values."""
    base = op.name.partition("[")[0]
    named = [
        *zip(op.operands, rule.operands, strict=False),
        *zip((op.name, base), rule.results, strict=False),
    ]
    for name, tensor in named:
        if name == value and number < len(tensor):
            return "".join(tensor[number])
    return ""


def _moved_first(plan: Record, op: PlannedOp) -> list[MovedLine]:
    """Which axes split what is reduced, and are moved away before it is.

    Where they are not moved, the cause of the collective that reduces says so itself.
    """
    rule = op.factors
    if rule is None or op.kind != "op":
        return []
    own = [c for c in plan.collectives if c.value == op.name]
    summed = {axis for c in own if c.kind in _SUMS for axis in c.mesh_axes}
    summed |= op.spec.unreduced
    moves: dict[str, str] = {}
    for c in own:
        if c.kind not in _SUMS:
            for axis in c.mesh_axes:
                moves.setdefault(axis, c.kind)
    lines = []
    for factor in rule.reduction:
        for axis, names in _split(plan, op, rule, factor).items():
            if axis not in summed and axis in moves:
                size, kind = rule.sizes[factor], moves[axis]
                lines.append(MovedLine(op.name, axis, factor, size, names, kind))
    return lines


def _split(
    plan: Record, op: PlannedOp, rule: ShardingRule, factor: str
) -> dict[str, tuple[str, ...]]:
    """Mesh axis to the operands in which it splits a factor."""
    split: dict[str, dict[str, None]] = {}
    for name, tensor in zip(op.operands, rule.operands, strict=False):
        value = plan.by_name.get(name)
        for number, names in enumerate(tensor):
            if value is not None and factor in names:
                for axis in _axes(value, number):
                    split.setdefault(axis, {})[name] = None
    return {axis: tuple(names) for axis, names in split.items()}


def _dimension_of(op: PlannedOp | None, axis: str) -> int | None:
    """The dimension of a value that a mesh axis splits, or None."""
    if op is None:
        return None
    for number, axes in enumerate(op.spec.dims):
        if axis in axes:
            return number
    return None


def _why_not_split(plan: Record, op: PlannedOp, number: int) -> WholeLine:
    """Why no axis splits a dimension: none requested, none reached it, or two
    disagreed.
    """
    line = WholeLine(number, op.shape[number], "unreached", op.name)
    if op.shape[number] == 1:
        return replace(line, code="size one")
    if op.kind == "argument":
        return replace(line, code="requested")
    if not op.covered:
        return replace(line, code="no rule")
    if op.opcode == "sharding_constraint":
        return replace(line, code="constraint", source=op.source)
    if op.opcode == "reshard" and op.op.endswith("/shard_map"):
        return replace(line, code="shard_map", source=op.source)
    if op.kind == "result":
        returned = plan.by_name.get(op.operands[0]) if op.operands else None
        split = returned is not None and _axes(returned, number)
        return replace(
            line, code="other result" if split else "result", names=op.operands
        )
    rule = op.factors
    own = _result(rule, op)
    if rule is None or own is None or number >= len(own):
        return line
    return _why_none_crossed(plan, op, rule, own[number], line)


def _why_none_crossed(
    plan: Record,
    op: PlannedOp,
    rule: ShardingRule,
    names: tuple[str, ...],
    line: WholeLine,
) -> WholeLine:
    """Why no axis crossed an operation to a dimension, which its rule calls `names`."""
    holders = _holders(plan, op, rule, names)
    readers = [n for factor in names for n in rule.readers(factor)]
    if not readers:
        return replace(line, code="new")
    if not holders:
        sources = dict.fromkeys(op.operands[n] for n in readers if n < len(op.operands))
        return replace(line, code="not in operands", names=tuple(sources))
    axis, name = next(iter(holders.items()))
    line = replace(line, splits=tuple(holders.items()))
    if op.manual and not plan.by_name[name].manual:
        return replace(line, code="body")
    stopped = (*rule.blocked_propagation, *rule.need_replication)
    blocked = [factor for factor in names if factor in stopped]
    if blocked:
        return replace(line, code="blocked", factor=blocked[0])
    one = replace(line, splits=((axis, name),))
    if parts := _merged(op, rule, names, name):
        return replace(one, code="part", factor=parts)
    for other, axes in enumerate(op.spec.dims):
        if axis in axes and other != line.dim:
            return replace(one, code="used", other=other)
    if len(holders) > 1:
        return replace(line, code="conflict")
    for factor in rule.reduction:
        if axis in _holders(plan, op, rule, (factor,)):
            return replace(
                line, code="summed", factor=f"{factor} ({rule.sizes[factor]})"
            )
    return replace(line, code="held")


def _merged(
    op: PlannedOp, rule: ShardingRule, names: tuple[str, ...], name: str
) -> str:
    """The factors of the operand's dimension of which these are only a part, or `""`."""
    for operand, tensor in zip(op.operands, rule.operands, strict=False):
        for own in tensor:
            if operand == name and set(names) < set(own):
                return "".join(own)
    return ""


def _holders(
    plan: Record, op: PlannedOp, rule: ShardingRule, names: tuple[str, ...]
) -> dict[str, str]:
    """Mesh axis to the operand in which it splits one of these factors."""
    holders: dict[str, str] = {}
    for name, tensor in zip(op.operands, rule.operands, strict=False):
        value = plan.by_name.get(name)
        for number, own in enumerate(tensor):
            if value is not None and not set(own).isdisjoint(names):
                for axis in _axes(value, number):
                    holders.setdefault(axis, name)
    return holders


def _result(rule: ShardingRule | None, op: PlannedOp) -> Tensor | None:
    """What a rule says of the result that a value is."""
    if rule is None or not rule.results:
        return None
    _, bracket, index = op.name.rpartition("[")
    is_numbered = bracket and index[:-1].isdecimal()
    number = int(index[:-1]) if is_numbered else 0
    return rule.results[number] if number < len(rule.results) else None


def _axes(op: PlannedOp, number: int) -> tuple[str, ...]:
    # A spec may be shorter than the shape.
    return op.spec.dims[number] if number < op.spec.rank else ()


@dataclass(frozen=True)
class ReplayMove:
    """A mesh axis that reached a value in one step of a propagation.

    Attributes:
        value: the name of the value.
        dimension: that the axis splits; None where the axis moved on later.
        axis: the mesh axis.
        origin: the name of the value it came from.
        line: the same as a fact, with the rule that it followed.

    >>> line = StepLine(1, "data", "x", "y")
    >>> ReplayMove("y", 0, "data", "x", line).dimension
    0
    """

    value: str
    dimension: int | None
    axis: str
    origin: str
    line: StepLine

    @property
    def words(self) -> str:
        """The move in one sentence."""
        return str(self.line)


@dataclass(frozen=True)
class ReplayStep:
    """What happened at the same time in a propagation, across one operation.

    Attributes:
        number: of the step, as in `PlannedOp.steps`.
        op: the operation whose sharding rule was followed.
        moves: what reached which value.

    >>> ReplayStep(0, "dot_general", ()).words
    ''
    """

    number: int
    op: str
    moves: tuple[ReplayMove, ...]

    @property
    def words(self) -> str:
        """A sentence per move."""
        return " ".join(move.words for move in self.moves)


def replay_of(plan: Record) -> tuple[ReplayStep, ...]:
    """Every step of a propagation, in order."""
    distinct = {step for op in plan.ops for step in op.steps}
    in_order = sorted(distinct, key=lambda s: (s.number, s.op, s.axis))
    replay = []
    for (number, op), steps in groupby(in_order, key=lambda s: (s.number, s.op)):
        moves: list[ReplayMove] = []
        for step in steps:
            for name in step.to:
                dim = _dimension_of(plan.by_name.get(name), step.axis)
                line = _step_line(plan, step, name)
                moves.append(ReplayMove(name, dim, step.axis, step.origin, line))
        replay.append(ReplayStep(number, op, tuple(moves)))
    return tuple(replay)


def values_after(plan: Record, number: int) -> tuple[PlannedOp, ...]:
    """The values of a plan with the axes that they had after a step of the propagation.

    Args:
        plan: the plan.
        number: of the last step that counts; -1 for what was requested.
    """
    return tuple(_value_after(plan, op, number) for op in plan.ops)


def _value_after(plan: Record, op: PlannedOp, number: int) -> PlannedOp:
    late = {axis for axis in op.spec.axes if _came_by(plan, op, axis) > number}
    if not late:
        return op
    dims = []
    for axes in op.spec.dims:
        dims.append(tuple(axis for axis in axes if axis not in late))
    origins = {axis: origin for axis, origin in op.origins.items() if axis not in late}
    return replace(op, spec=replace(op.spec, dims=tuple(dims)), origins=origins)


def _came_by(plan: Record, op: PlannedOp, axis: str) -> int:
    """The step that brought an axis; -1 where none did."""
    step = _arrival(plan.arrivals, op.name, axis)
    if step is None and op.kind == "result" and op.operands:
        step = _arrival(plan.arrivals, op.operands[0], axis)
    return -1 if step is None else step.number
