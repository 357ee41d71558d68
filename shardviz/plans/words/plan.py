"""Sentences about plans: sharding rules, explanations, notes and differences."""

from __future__ import annotations

from collections.abc import Callable

from shardviz.base.collective import trips_text
from shardviz.base.format import (
    by_count,
    clause,
    joined,
    plural,
    shown,
    told_apart,
)
from shardviz.plans.explanation import (
    AxisInUseLine,
    CostLine,
    LeftOutLine,
    NoRuleLine,
    NotSplitLine,
    RequestedLine,
    ReturnedLine,
    SizeOneLine,
    SplitLine,
    StepLine,
    StoppedLine,
    UnreachedLine,
    UnreducedLine,
    ValueLine,
)
from shardviz.plans.plan_difference import (
    BytesSent,
    Counts,
    GainedCollective,
    GoneValue,
    LostCollective,
    NewValue,
    NoPlan,
    NothingChanges,
    OtherMesh,
    ResizedCollective,
    ValueChange,
)
from shardviz.plans.plan_notes import (
    AfterStep,
    EstimateFailed,
    FromStableHlo,
    InsideShardMap,
    IsShardMap,
    LoweredForTpus,
    NoBody,
    NoEstimate,
    NoShardingRule,
    NotCovered,
    NotLowered,
    OpaqueCall,
    PaddedDimension,
    PlanNote,
    PlatformDependent,
    PythonCall,
    ReplacedCall,
    SizeOneAxes,
    UncertainValues,
    UnevenResult,
    UnknownConstraints,
    UntriedPasses,
    Unused,
)
from shardviz.plans.plan_values import OpRule, Origin, PlannedOp, Record
from shardviz.plans.words.estimate import reduces


def difference_head(before: Record, after: Record) -> str:
    """The names of two compared programs, and their meshes if these differ."""
    head = f"From {before.program} to {after.program}"
    if before.mesh != after.mesh:
        head += f": {before.mesh} to {after.mesh}"
    return head


def plan_head(plan: Record, split: int) -> str:
    """A plan in one line: the number of values, of split values and of collectives."""
    head = f"{plan.program} on {plan.mesh}"
    if plan.error:
        return f"{head}: no plan"
    values = plural(len(plan.ops), "value")
    collectives = plural(len(plan.collectives), "collective")
    return f"{head}: {values}, {split:,} split, {collectives} estimated"


def rule_in_words(fact: OpRule) -> str:
    """Formats a sharding rule, and names the factors that don't propagate freely.

    >>> from shardviz.plans.plan_values import ShardingRule
    >>> x, y = (("i",), ("j",)), (("j",), ("i",))
    >>> rule_in_words(OpRule(ShardingRule((x,), (y,), {"i": 4, "j": 8})))
    '[i, j] -> [j, i]'
    >>> rule = ShardingRule((x,), (x[:1],), {"i": 4, "j": 8}, ("j",))
    >>> rule_in_words(OpRule(rule, "add"))
    '[i, j] -> [i]: sums over j (8)'
    """
    rule, phrases = fact.rule, []
    for factors, phrase in (
        (rule.reduction, f"{reduces(fact.reducer)} over {{}}"),
        (rule.need_replication, "needs {} unsplit"),
        (rule.permutation, "shards exchange data along {}"),
        (rule.blocked_propagation, "no mesh axis propagates along {}"),
    ):
        # A factor of size 1 cannot be split.
        large = [f"{f} ({rule.sizes[f]})" for f in factors if rule.sizes[f] > 1]
        if large:
            phrases.append(phrase.format(joined(large)))
    return rule.formula + clause(": {}", "; ".join(phrases))


def _value_line(line: ValueLine) -> str:
    op = line.op
    kinds = {"argument": "an argument", "result": "a result"}
    kind = kinds.get(op.kind) or f"made by {op.opcode}{_at(op.source)}"
    text = f"{op.name} is {kind}, {op.short}: {op.spec}."
    if op.kind == "op":
        text += clause(" Its rule: {}.", op.rule)
    return text


# Kind of origin -> phrase.
_CAME = {
    "argument": "which came from argument {}",
    "result": "which was requested for the result {}",
    "constraint": "which the constraint on {} asks for",
    "manual": "which {} asks for",
    "op": "which is in the type of {}",
}


def axis_from(axis: str, origin: Origin) -> str:
    """Names the origin of an axis: `data from x`."""
    if origin.kind == "constraint":
        return f"{axis} from the constraint on {origin.name}"
    return f"{axis} from {origin.name or origin.kind}"


def _split_line(line: SplitLine) -> str:
    split = f"{_dimension(line)} is split over {line.axis}"
    origin = line.origin
    if origin is None:
        return f"{split}."
    if line.requested:
        return f"{split}, as requested."
    source = clause(" ({})", origin.source)
    return f"{split}, {_CAME[origin.kind].format(origin.name + source)}."


# Operation of a step -> why its values are split alike.
_CARRIED = {
    "while": "the carry of a loop is split in the same way in every iteration",
    "case": "the result of a cond is split like the results of its branches",
    "if": "the result of a cond is split like the results of its branches",
    "optimization_barrier": "a barrier returns its operands",
    "shard_map": "a shard_map returns what its body returns",
    "result": "the function returns this value",
}


def _step_line(line: StepLine) -> str:
    went = f"Step {line.number}: {line.axis} went from {line.origin} to {line.target}"
    # These operations have no sharding rule, so a sentence explains the step.
    if line.code in _CARRIED:
        return f"{went}: {_CARRIED[line.code]}."
    went += clause(" across {}", line.op) + _at(line.source)
    if line.code == "elementwise":
        return f"{went}, which works element by element."
    if not line.formula:
        return f"{went}."
    return f"{went}: {line.formula}."


def _not_split(why: str) -> Callable[[NotSplitLine], str]:
    """Returns a function that formats a NotSplitLine with the given reason."""
    return lambda line: f"{_dimension(line)} is not split{why}."


def _requested(line: RequestedLine) -> str:
    return f"{_dimension(line)} is not split, as requested{_at(line.source)}."


def _no_rule(line: NoRuleLine) -> str:
    return f"{_dimension(line)} is not split: Shardy has no rule for {line.op}."


def _axis_in_use(line: AxisInUseLine) -> str:
    return (
        f"{_dimension(line)} is not split: {line.axis} splits it in {line.operand}, but here"
        f" {line.axis} already splits dimension {line.other_dim}, and a mesh axis can split"
        " only one dimension of an array."
    )


def _stopped(line: StoppedLine) -> str:
    splits = [f"{axis} splits it in {operand}" for axis, operand in line.splits]
    why = {
        "blocked": f"but Shardy does not propagate axes across {line.op} in this dimension",
        "conflict": "and Shardy chose neither of these conflicting axes",
        "unknown": f"but did not reach {line.op}",
    }
    return f"{_dimension(line)} is not split: {' and '.join(splits)}, {why[line.code]}."


def _returned(line: ReturnedLine) -> str:
    why = {
        "uneven": ": a result must divide evenly",
        "part": ": a result can be split only over whole axes",
        "unknown": "",
    }
    return (
        f"{_dimension(line)} is not split, although {joined(line.axes)} splits it in"
        f" {line.value}{why[line.code]}."
    )


def _unreduced(line: UnreducedLine) -> str:
    return f"Each device along {line.axis} holds a partial {line.kind} of the value."


def _cost(line: CostLine) -> str:
    c = line.collective
    over = " and ".join(c.axes_in_words) or "all devices"
    # The sentence of a cause already ends with a full stop.
    cause = clause(": {}", c.cause) or "."
    how = f"with a {c.amount}" if c.sent_bytes is None else f"that sends {c.amount}"
    return f"Estimated cost: one {c.kind} {how} over {over}{cause}"


def _left_out(line: LeftOutLine) -> str:
    if line.alike:
        return (
            f"{line.count:,} steps before the last are left out; they cross operations that"
            " work element by element."
        )
    return f"and {line.count:,} more lines, shown by sv.text(..., full=True)"


def _dimension(line: SplitLine | NotSplitLine) -> str:
    return f"Dimension {line.dim} ({line.size})"


def _at(source: str) -> str:
    return clause(" at {}", source)


def _sentence(text: str) -> Callable[[PlanNote], str]:
    """Returns a function that returns one fixed sentence for a note."""
    return lambda note: text


def _size_one(note: SizeOneAxes) -> str:
    verb, pronoun, splits = "have", "they", "split"
    if len(note.axes) == 1:
        verb, pronoun, splits = "has", "it", "splits"
    object_pronoun = by_count(len(note.axes), "it", "them")
    return (
        f"{joined(note.axes)} {verb} size 1: {pronoun} {splits} nothing and no sharding names"
        f" {object_pronoun}."
    )


def _not_covered(note: NotCovered) -> str:
    values = plural(len(note.values), "value")
    return (
        f"The plan does not cover {values}: {joined(note.values, 'and', 3)}. A compile for"
        " the target shows what XLA's partitioner does."
    )


def _uncertain_values(note: UncertainValues) -> str:
    values = plural(len(note.values), "value")
    return (
        f"The estimate is uncertain at {values}: {joined(note.values, 'and', 3)}."
        f" plan.why({shown(note.values[0])}) explains why; a compile shows what XLA's"
        " partitioner does."
    )


def _platform_dependent(note: PlatformDependent) -> str:
    return (
        f"The program is lowered for CPUs. Other platforms run {joined(note.operations)}"
        " differently, perhaps with other collectives: sv.stages(program, target) plans for"
        " the target's platform."
    )


def _not_lowered(note: NotLowered) -> str:
    return (
        "The program is lowered for CPUs, because jax on this machine cannot lower it for"
        f" {note.platform}: {note.reason}"
    )


def _after_step(note: AfterStep) -> str:
    when = "before the first step"
    if note.step >= 0:
        when = f"after step {note.step}"
    return (
        f"These are the shardings {when}. Collectives are not shown, because they are known"
        " only for the final shardings."
    )


def _untried_passes(note: UntriedPasses) -> str:
    plan = []
    if note.run:
        plan.append(f"ran {joined(note.run)}")
    if note.left_out:
        plan.append(f"left out {joined(note.left_out)}")
    return (
        "shardviz has not been tested with all passes of this jaxlib's Shardy. It"
        f" {' and '.join(plan)}, so the plan may differ from what XLA does."
    )


def _no_estimate(note: NoEstimate) -> str:
    return (
        "There is no estimate of collectives: this jaxlib's Shardy has no pass"
        f" {joined(note.missing, 'or')}. A compile shows the collectives."
    )


def _uneven_result(note: UnevenResult) -> str:
    axes = " × ".join(note.misfit.axes)
    return (
        f"Inside the program, {note.value} is split over {axes} along dimension {note.dim};"
        f" the returned array is not, because results must divide evenly: {note.misfit}"
    )


def _padded(note: PaddedDimension) -> str:
    misfit = note.misfit
    axes = " × ".join(misfit.axes)
    # XLA pads every shard to the size of the largest.
    size = -(-misfit.size // misfit.parts)
    full, remainder = divmod(misfit.size, size)
    empty = misfit.parts - full - bool(remainder)
    shards = [f"{plural(full, 'shard')} of {plural(size, 'element')}"]
    if remainder:
        shards.append(f"1 shard of {remainder:,}")
    if empty:
        shards.append(f"{plural(empty, 'shard')} of padding only")
    return (
        f"Dimension {note.dim} does not divide evenly over {axes}, so the compiler pads"
        f" it: {', then '.join(shards)}. {misfit}"
    )


def value_change(change: ValueChange) -> str:
    """Describes a value's new sharding, or the new origins of its axes."""
    before, after = change.before, change.after
    if change.moved:
        return f"{after.name}: {before.spec} -> {after.spec}"
    changes = []
    for axis, origin in before.origins.items():
        now, old = after.origins.get(axis), f"{origin.kind} {origin.name}"
        if now is None:
            changes.append(f"{axis} no longer comes from {old}")
        elif now != origin:
            changes.append(f"{axis} comes from {now.kind} {now.name} instead of {old}")
    return f"{after.name}: {after.spec} as before, but {joined(changes)}"


def _value(title: str, op: PlannedOp) -> str:
    return f"{title}: {op.name}, {op.short}, {op.spec}{clause(' ({})', op.source)}"


def _no_plan(fact: NoPlan) -> str:
    return f"There is no plan {fact.side}: {fact.error}"


def _resized(change: ResizedCollective) -> str:
    before, after = change.before, change.after
    old, new = before.amount, after.amount
    if old == new and before.sent_bytes is not None and after.sent_bytes is not None:
        sizes = told_apart([before.sent_bytes, after.sent_bytes])
        old, new = (f"{size}{trips_text(after.trips)}" for size in sizes)
    return f"Resized: {after.words_with(new)}, {old} before"


def _bytes_sent(fact: BytesSent) -> str:
    before, after = told_apart([fact.before, fact.after])
    return f"Each device sent {before} before, and sends {after} now."


def _counts(counts: Counts) -> str:
    sides = []
    for noun, parts in (("collective", counts.collectives), ("value", counts.values)):
        phrases = [f"{number:,} {word}" for word, number in parts.items()]
        if parts:
            # Only the first number gets the noun: `2 collectives gained, 1 lost`.
            word, number = next(iter(parts.items()))
            phrases[0] = f"{plural(number, noun)} {word}"
            sides.append(", ".join(phrases))
    return "; ".join(sides) + "."


SENTENCES = {
    OpRule: rule_in_words,
    ValueLine: _value_line,
    SplitLine: _split_line,
    StepLine: _step_line,
    SizeOneLine: _not_split(": it has size 1"),
    UnreachedLine: _not_split(": no axis reached it"),
    RequestedLine: _requested,
    NoRuleLine: _no_rule,
    AxisInUseLine: _axis_in_use,
    StoppedLine: _stopped,
    ReturnedLine: _returned,
    UnreducedLine: _unreduced,
    CostLine: _cost,
    LeftOutLine: _left_out,
    Unused: _sentence("The program does not use it."),
    OpaqueCall: lambda note: f"It calls {note.target}, whose code XLA cannot see.",
    ReplacedCall: lambda note: (
        f"XLA replaces {note.target} by other operations before it propagates shardings, and"
        " the plan does not."
    ),
    PythonCall: _sentence(
        "It calls Python on the host of one device, so its operands are gathered on that device."
    ),
    NoShardingRule: _sentence(
        "Shardy has no rule for it, so no sharding propagates from its operands to its result."
    ),
    NoBody: _sentence("The body of the function that it calls is not in the program."),
    IsShardMap: lambda note: (
        f"A shard_map over {', '.join(note.axes) or 'no axis'}: the only collectives"
        f"{clause(' over {}', ', '.join(note.axes))} are those that its body calls."
    ),
    InsideShardMap: lambda note: (
        f"Inside a shard_map over {', '.join(note.axes) or 'no axis'}: the shape is"
        " that of one device's block."
    ),
    PaddedDimension: _padded,
    UnevenResult: _uneven_result,
    SizeOneAxes: _size_one,
    NotCovered: _not_covered,
    UncertainValues: _uncertain_values,
    LoweredForTpus: _sentence(
        "The program is lowered for TPUs: its Pallas kernels cannot be lowered for CPUs."
    ),
    PlatformDependent: _platform_dependent,
    NotLowered: _not_lowered,
    UnknownConstraints: lambda note: (
        f"Some constraint calls may be missing here. {note.reason}"
    ),
    AfterStep: _after_step,
    UntriedPasses: _untried_passes,
    FromStableHlo: lambda note: (
        "Planned from StableHLO, which does not contain axis types, unused arguments or the"
        " names of logical constraints; sv.plan(fn, *args) shows them."
    ),
    NoEstimate: _no_estimate,
    EstimateFailed: lambda note: (
        "There is no estimate of collectives: Shardy's output could not be read with this"
        " version of jax."
        f" {note.reason}"
    ),
    ValueChange: value_change,
    NewValue: lambda change: _value("New", change.op),
    GoneValue: lambda change: _value("Gone", change.op),
    GainedCollective: lambda change: f"Gained: {change.collective.words}",
    LostCollective: lambda change: f"Lost: {change.collective.words}",
    ResizedCollective: _resized,
    OtherMesh: lambda change: f"Mesh: {change.before} -> {change.after}",
    BytesSent: _bytes_sent,
    NoPlan: _no_plan,
    NothingChanges: lambda fact: "Nothing changes.",
    Counts: _counts,
}
