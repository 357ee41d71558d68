"""How one value of a plan got its sharding, in words; and the whole propagation, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from shardviz.core.display import Displayed
from shardviz.core.format import bytes_text, joined
from shardviz.core.program.plan_values import (
    TIED,
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
_ALIKE = ", which works element by element."
_Arrivals = Mapping[tuple[str, str], Step]
_CAME = {
    "argument": "which came from argument {}",
    "result": "which was requested for the result {}",
    "constraint": "which the constraint on {} asks for",
    "manual": "which {} asks for",
    "op": "which is in the type of {}",
}
_SUMS = ("all-reduce", "reduce-scatter")
_CARRIED = {
    "while": "what a loop carries is split alike in every iteration",
    "case": "the result of a cond is split as its branches are",
    "if": "the result of a cond is split as its branches are",
    "optimization_barrier": "a barrier returns its operands",
    "shard_map": "a shard_map returns what its body returns",
}


@dataclass(frozen=True, repr=False)
class Explanation(Displayed):
    """Why a value of a plan is sharded as it is.

    Attributes:
        plan: the plan.
        op: the value.
        lines: the explanation, one sentence per step.
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
    lines: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    paths: tuple[tuple[int, int], ...] = ()

    @property
    def summary(self) -> tuple[str, ...]:
        """The explanation in at most MOST_SENTENCES lines.

        Of many steps it has those that change something: the axis goes to another dimension, or
        through an operation that does not work element by element; and the last one.
        """
        if len(self.lines) <= MOST_SENTENCES:
            return self.lines
        long = [path for path in self.paths if path[1] > 1]
        others = len(self.lines) - sum(count for _, count in long)
        # A path takes a line more, which counts the steps that are left out.
        each = max(1, (MOST_SENTENCES - others) // max(1, len(long)) - 1)
        kept = set(range(len(self.lines)))
        counts: dict[int, str] = {}
        for first, count in long:
            left = list(range(first, first + count - 1))
            turns = [n for n in left if not self.lines[n].endswith(_ALIKE)]
            shown = turns if len(turns) < each else turns[: each - 1]
            left = [n for n in left if n not in shown]
            if len(left) > 1:
                kept -= set(left)
                counts[first + count - 1] = _left_out(left, turns)
        lines = [
            line
            for n in sorted(kept)
            for line in ([counts[n]] if n in counts else []) + [self.lines[n]]
        ]
        if (more := len(lines) - MOST_SENTENCES) > 0:
            lines[MOST_SENTENCES - 1 :] = [
                f"and {more + 1:,} lines more, with full=True in sv.text"
            ]
        return tuple(lines)

    def __str__(self) -> str:
        return "\n".join(self.summary)

    def __repr__(self) -> str:
        return f"Explanation({self.op.name}: {len(self.lines)} lines)"


def _left_out(left: list[int], turns: list[int]) -> str:
    """What is said of the steps that are not shown."""
    how = "" if set(left) & set(turns) else ", element by element"
    return f"{len(left):,} steps before the last are left out{how}."


def explain_value(plan: Record, op: PlannedOp) -> Explanation:
    """Explains one value: every axis back to its origin, and why other dimensions are not split.

    Args:
        plan: the plan.
        op: one of its values.
    """
    steps: dict[tuple[int, str], Step] = {}
    arrivals = plan.arrivals
    lines = [_first_sentence(op)]
    paths: list[tuple[int, int]] = []
    if op.rule and op.kind == "op":
        lines.append(f"The rule of {op.name}: {op.rule}.")
    for number in range(len(op.shape)):
        axes = op.spec.dims[number] if number < op.spec.rank else ()
        if not axes:
            lines.append(_why_not_split(plan, op, number))
        for axis in axes:
            path = _AxisPath(plan, op, axis, arrivals)
            lines += path.lines(f"{_dimension(op, number)} is split over {axis}")
            paths.append((len(lines) - path.sentences, path.sentences))
            steps |= {(s.number, s.axis): s for s in path.steps}
    for axis in sorted(op.spec.unreduced):
        lines.append(f"It is not summed over {axis} yet: each device along it holds a part.")
    lines += _moved_first(plan, op)
    lines += [_cost(c) for c in plan.collectives if c.value == op.name]
    lines += filter(None, [op.remarks])
    return Explanation(plan, op, tuple(lines), tuple(steps[n] for n in sorted(steps)), tuple(paths))


class _AxisPath:
    """The steps by which one axis reached a value."""

    def __init__(self, plan: Record, op: PlannedOp, axis: str, arrivals: _Arrivals) -> None:
        self.plan, self.op, self.axis = plan, op, axis
        self.steps: list[Step] = []
        self.sentences = 0  # of the lines, how many are steps
        self.end = self.start = op.name
        if op.kind == "result" and op.operands and _arrival(arrivals, op.name, axis) is None:
            self.end = self.start = op.operands[0]
        seen = {op.name}
        while (step := _arrival(arrivals, self.start, axis)) and step.origin not in seen:
            self.steps.insert(0, step)
            self.start = step.origin
            seen.add(step.origin)

    def lines(self, opening: str) -> list[str]:
        """The sentences: where the axis comes from, then every step."""
        origin = self.op.origins.get(self.axis)
        if origin is None:
            return [f"{opening}."]
        if origin.name == self.op.name and origin.kind in ("argument", "result"):
            return [f"{opening}, as requested."]
        source = f" ({origin.source})" if origin.source else ""
        came = _CAME[origin.kind].format(f"{origin.name}{source}")
        lines = [f"{opening}, {came}."]
        without_step = (
            origin.name == self.start,
            self.op.opcode in ("sharding_constraint", "shard_map"),
            TIED in self.op.note,
            origin.kind == "manual" and self.op.opcode == "reshard",
        )
        if not self.steps and not any(without_step):
            lines.append(
                "No step of the propagation brought it: it crossed the border of a function or"
                " loop."
            )
        targets = [step.origin for step in self.steps[1:]] + [self.end]
        steps = [_sentence(self.plan, s, t) for s, t in zip(self.steps, targets, strict=False)]
        self.sentences = len(steps)
        return lines + steps


def _arrival(arrivals: _Arrivals, name: str, axis: str) -> Step | None:
    return arrivals.get((name, axis)) or arrivals.get((name, parent_axis(axis)))


def _first_sentence(op: PlannedOp) -> str:
    kind = {"argument": "an argument", "result": "a result"}.get(op.kind)
    kind = kind or f"made by {op.opcode}{_at(op)}"
    return f"{op.name} is {kind}, {op.short}: {op.spec}."


def _sentence(plan: Record, step: Step, target: str) -> str:
    """One step in words: from where to where, by what rule."""
    went = f"Step {step.number}: {step.axis} went from {step.origin} to {target}"
    op = plan.by_name.get(step.op)
    if op is None or op.kind == "result":
        return f"{went}: a result is split as what is returned."
    if op.opcode in _CARRIED:
        return f"{went}: {_CARRIED[op.opcode]}."
    across = "" if step.op == target else f" across {step.op}"
    factor = _factor(plan, op, step, target)
    return f"{went}{across}{_at(op)}{factor}."


def _factor(plan: Record, op: PlannedOp, step: Step, target: str) -> str:
    rule = op.factors
    if rule is None:
        return ""
    first = _dimension_of(plan.by_name.get(step.origin), step.axis)
    last = _dimension_of(plan.by_name.get(target), step.axis)
    if first is None or last is None:
        return ""
    name = _name_of(rule, op, step.origin, first)
    if name == "" or name != _name_of(rule, op, target, last):
        return ""
    if len({*rule.operands, *rule.results}) == 1 and not (
        rule.need_replication or rule.blocked_propagation
    ):
        return _ALIKE.rstrip(".")
    same = f"dimension {first}" if first == last else f"dimension {first} there and {last} here"
    return f": {rule.formula}, where {name} is {same}"


def _name_of(rule: ShardingRule, op: PlannedOp, value: str, number: int) -> str:
    """The factor that a rule gives a dimension of one of its values."""
    base = op.name.partition("[")[0]
    for names, tensors in ((op.operands, rule.operands), ((op.name, base), rule.results)):
        for name, tensor in zip(names, tensors, strict=False):
            if name == value and number < len(tensor):
                return "".join(tensor[number])
    return ""


def _moved_first(plan: Record, op: PlannedOp) -> list[str]:
    """Which axes split what an operation reduces over, and are moved away before it does.

    Where they are not moved, the cause of the collective that reduces says so itself.
    """
    rule = op.factors
    if rule is None or op.kind != "op":
        return []
    own = [c for c in plan.collectives if c.value == op.name]
    summed = {axis for c in own if c.kind in _SUMS for axis in c.mesh_axes} | set(op.spec.unreduced)
    lines = []
    for factor in rule.reduction:
        for axis, names in _split(plan, op, rule, factor).items():
            moves = [c.kind for c in own if c.kind not in _SUMS and axis in c.mesh_axes]
            if axis not in summed and moves:
                verb = "is" if len(names) == 1 else "are"
                lines.append(
                    f"{axis} splits {factor} ({rule.sizes[factor]}) in {joined(names)}, which"
                    f" {verb} moved first ({moves[0]} over {axis}): so {op.name} reduces over all"
                    f" of {factor} on each device, and needs no reduction over {axis}."
                )
    return lines


def _split(plan: Record, op: PlannedOp, rule: ShardingRule, factor: str) -> dict[str, list[str]]:
    """Mesh axis to the operands in which it splits a factor."""
    found: dict[str, list[str]] = {}
    for name, tensor in zip(op.operands, rule.operands, strict=False):
        value = plan.by_name.get(name)
        for number, names in enumerate(tensor):
            if value is not None and factor in names and number < value.spec.rank:
                for axis in value.spec.dims[number]:
                    if name not in found.setdefault(axis, []):
                        found[axis].append(name)
    return found


def _cost(c: Collective) -> str:
    over = " and ".join(c.mesh_axes) or "all devices"
    cause = f": {c.cause}" if c.cause else "."
    size = bytes_text(c.bytes_per_device)
    return f"It costs, as an estimate, one {c.kind} of {size} over {over}{cause}"


def _dimension(op: PlannedOp, number: int) -> str:
    """A dimension by number and size: `Dimension 1 (512)`."""
    return f"Dimension {number} ({op.shape[number]})"


def _dimension_of(op: PlannedOp | None, axis: str) -> int | None:
    """The dimension of a value that a mesh axis splits, or None."""
    if op is None:
        return None
    return next((n for n, axes in enumerate(op.spec.dims) if axis in axes), None)


def _why_not_split(plan: Record, op: PlannedOp, number: int) -> str:
    """Why no axis splits a dimension: none requested, none reached it, or two axes disagreed."""
    opening = f"{_dimension(op, number)} is not split"
    if op.shape[number] == 1:
        return f"{opening}: it has size 1."
    if op.kind == "argument":
        return f"{opening}, as requested."
    if not op.covered:
        return f"{opening}: Shardy has no rule for {op.name}."
    if op.opcode == "sharding_constraint":
        return f"{opening}: the constraint{_at(op)} asks for that."
    if op.opcode == "reshard" and op.op.endswith("/shard_map"):
        return f"{opening}: the shard_map{_at(op)} asks for that."
    if op.kind == "result":
        source = plan.by_name.get(op.operands[0]) if op.operands else None
        if source is not None and _axes(source, number):
            return f"{opening}: {source.name} is, but the program requests otherwise."
        return f"{opening}, as in {op.operands[0] if op.operands else 'what is returned'}."
    rule = op.factors
    own = _result(rule, op)
    if rule is None or own is None or number >= len(own):
        return f"{opening}: no axis reached it."
    return f"{opening}: {_reason(plan, op, rule, own[number], number)}"


def _reason(
    plan: Record,
    op: PlannedOp,
    rule: ShardingRule,
    names: tuple[str, ...],
    number: int,
) -> str:
    holders = _holders(plan, op, rule, names)
    readers = [n for f in names for n in rule.readers(f)]
    if not readers:
        return f"it is new in {op.name}, and nothing that reads it is split there."
    if not holders:
        sources = dict.fromkeys(op.operands[n] for n in readers if n < len(op.operands))
        verb = "is" if len(sources) == 1 else "are"
        return (
            f"no axis reached it; {joined(sources)}, where it comes from, {verb} not split there."
        )
    axis, name = next(iter(holders.items()))
    if op.manual and not plan.by_name[name].manual:
        return f"{_splits(holders)}, but the body of a shard_map sees one shard."
    if blocked := [f for f in names if f in (*rule.blocked_propagation, *rule.need_replication)]:
        return f"{_splits(holders)}, but {op.name} lets nothing cross {blocked[0]}."
    if parts := _parts(op, rule, names, name):
        return f"in {name} it is one part of {parts}, and {axis} splits another part."
    if (other := _elsewhere(op, axis, number)) is not None:
        return (
            f"{_splits({axis: name})}, but {axis} splits dimension {other} here, and an array uses"
            " a mesh axis once."
        )
    if len(holders) > 1:
        return f"{_splits(holders)}: they disagree, so neither crosses {op.name}."
    if summed := _reduced(plan, op, rule, axis):
        return f"{_splits(holders)}, but {axis} also splits {summed}, over which {op.name} reduces."
    return f"{_splits(holders)}, but Shardy did not let it cross {op.name}."


def _parts(op: PlannedOp, rule: ShardingRule, names: tuple[str, ...], name: str) -> str:
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
            if value is not None and set(own) & set(names):
                holders |= {axis: name for axis in _axes(value, number) if axis not in holders}
    return holders


def _reduced(plan: Record, op: PlannedOp, rule: ShardingRule, axis: str) -> str:
    """The factor that an operation reduces over and that an axis splits in an operand, or `""`."""
    for factor in rule.reduction:
        if axis in _holders(plan, op, rule, (factor,)):
            return f"{factor} ({rule.sizes[factor]})"
    return ""


def _elsewhere(op: PlannedOp, axis: str, number: int) -> int | None:
    return next((n for n, a in enumerate(op.spec.dims) if axis in a and n != number), None)


def _result(rule: ShardingRule | None, op: PlannedOp) -> Tensor | None:
    if rule is None or not rule.results:
        return None
    _, bracket, index = op.name.rpartition("[")
    number = int(index[:-1]) if bracket and index[:-1].isdecimal() else 0
    return rule.results[number] if number < len(rule.results) else None


def _axes(op: PlannedOp, number: int) -> tuple[str, ...]:
    return op.spec.dims[number] if number < op.spec.rank else ()


def _splits(holders: dict[str, str]) -> str:
    return " and ".join(f"{axis} splits it in {name}" for axis, name in holders.items())


def _at(op: PlannedOp) -> str:
    return f" at {op.source}" if op.source else ""


@dataclass(frozen=True)
class ReplayMove:
    """A mesh axis that reached a value in one step of a propagation.

    Attributes:
        value: the name of the value.
        dimension: the dimension that the axis splits; None where the axis moved on later.
        axis: the mesh axis.
        origin: the name of the value it came from.
        words: the same in one sentence, with the rule that it followed.

    >>> ReplayMove("y", 0, "data", "x", "Step 1: data went from x to y.").dimension
    0
    """

    value: str
    dimension: int | None
    axis: str
    origin: str
    words: str


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
    """Every step of a propagation, in order.

    Args:
        plan: the plan.
    """
    found = sorted(
        {step for op in plan.ops for step in op.steps}, key=lambda s: (s.number, s.op, s.axis)
    )
    return tuple(
        ReplayStep(number, op, tuple(m for step in some for m in _replay_moves(plan, step)))
        for (number, op), some in groupby(found, key=lambda s: (s.number, s.op))
    )


def _replay_moves(plan: Record, step: Step) -> list[ReplayMove]:
    return [
        ReplayMove(
            name, _dimension_of(plan.by_name.get(name), step.axis), step.axis, step.origin,
            _sentence(plan, step, name),
        )
        for name in step.to
    ]  # fmt: skip


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
    dims = tuple(tuple(axis for axis in axes if axis not in late) for axes in op.spec.dims)
    origins = {axis: origin for axis, origin in op.origins.items() if axis not in late}
    return replace(op, spec=replace(op.spec, dims=dims), origins=origins)


def _came_by(plan: Record, op: PlannedOp, axis: str) -> int:
    """The step that brought an axis; -1 where none did."""
    step = _arrival(plan.arrivals, op.name, axis)
    if step is None and op.kind == "result" and op.operands:
        step = _arrival(plan.arrivals, op.operands[0], axis)
    return -1 if step is None else step.number
