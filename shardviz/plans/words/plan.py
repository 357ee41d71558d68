"""A plan in words: its rules, explanations, notes and differences."""

from __future__ import annotations

from shardviz.base.format import by_count, bytes_text, clause, joined, plural, shown
from shardviz.plans.explanation import (
    CostLine,
    LeftOutLine,
    NotSplitLine,
    SplitLine,
    StepLine,
    UnreducedLine,
    ValueLine,
)
from shardviz.plans.plan_difference import (
    Counts,
    PlanChange,
    ValueChange,
)
from shardviz.plans.plan_notes import (
    PlanNote,
    UnevenNote,
)
from shardviz.plans.plan_values import OpRule, Record
from shardviz.plans.words.estimate import reduces


def difference_head(before: Record, after: Record) -> str:
    """Which two plans are compared, and on which meshes where these differ."""
    head = f"From {before.program} to {after.program}"
    if before.mesh != after.mesh:
        head += f": {before.mesh} to {after.mesh}"
    return head


def plan_head(plan: Record, split: int) -> str:
    """A plan in one line: how many values, how many of them split, and collectives."""
    head = f"{plan.program} on {plan.mesh}"
    if plan.error:
        return f"{head}: no plan"
    values = plural(len(plan.ops), "value")
    collectives = plural(len(plan.collectives), "collective")
    return f"{head}: {values}, {split:,} split, {collectives} estimated"


def rule_in_words(fact: OpRule) -> str:
    """A sharding rule, and what it does with the factors that are not passed on.

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
        (rule.need_replication, "needs {} not split"),
        (rule.permutation, "shards exchange data along {}"),
        (rule.blocked_propagation, "nothing crosses {}"),
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


# What brought an axis to a value, by the kind of its origin.
_CAME = {
    "argument": "which came from argument {}",
    "result": "which was requested for the result {}",
    "constraint": "which the constraint on {} asks for",
    "manual": "which {} asks for",
    "op": "which is in the type of {}",
}


def _split_line(line: SplitLine) -> str:
    split = f"{_dimension(line)} is split over {line.axis}"
    origin = line.origin
    if origin is None:
        return f"{split}."
    if line.requested:
        return f"{split}, as requested."
    source = clause(" ({})", origin.source)
    return f"{split}, {_CAME[origin.kind].format(origin.name + source)}."


# Why values that are carried across a border are split alike.
_CARRIED = {
    "while": "what a loop carries is split alike in every iteration",
    "case": "the result of a cond is split as its branches are",
    "if": "the result of a cond is split as its branches are",
    "optimization_barrier": "a barrier returns its operands",
    "shard_map": "a shard_map returns what its body returns",
    "result": "a result is split as what is returned",
}


def _step_line(line: StepLine) -> str:
    went = f"Step {line.number}: {line.axis} went from {line.origin} to {line.target}"
    # These steps follow no rule with factors.
    if line.code in _CARRIED:
        return f"{went}: {_CARRIED[line.code]}."
    went += clause(" across {}", line.op) + _at(line.source)
    if line.code == "elementwise":
        return f"{went}, which works element by element."
    if not line.formula:
        return f"{went}."
    return f"{went}: {line.formula}."


def _not_split(line: NotSplitLine) -> str:
    """Why no axis splits a dimension."""
    splits = " and ".join(f"{axis} splits it in {name}" for axis, name in line.splits)
    axis = next((axis for axis, _ in line.splits), "")
    why = {
        "size one": ": it has size 1",
        "requested": f", as requested{_at(line.source)}",
        "no rule": f": Shardy has no rule for {line.op}",
        "unreached": ": no axis reached it",
        "used": (
            f": {splits}, but {axis} splits dimension {line.other} here, and an array"
            " uses a mesh axis once"
        ),
        "stopped": f": {splits}, but Shardy lets nothing cross {line.op} there",
    }
    return f"{_dimension(line)} is not split{why[line.code]}."


def _unreduced(line: UnreducedLine) -> str:
    return f"It is not summed over {line.axis} yet: each device along it holds a part."


def _cost(line: CostLine) -> str:
    c = line.collective
    over = " and ".join(c.axes_in_words) or "all devices"
    # A cause is a sentence, with a full stop of its own.
    cause = clause(": {}", c.cause) or "."
    size = bytes_text(c.bytes_per_device)
    return f"It costs, as an estimate, one {c.kind} of {size} over {over}{cause}"


def _left_out(line: LeftOutLine) -> str:
    if line.alike:
        return f"{line.count:,} steps before the last are left out, element by element."
    return f"and {line.count:,} lines more, with full=True in sv.text"


def _dimension(line: SplitLine | NotSplitLine) -> str:
    return f"Dimension {line.dim} ({line.size})"


def _at(source: str) -> str:
    return clause(" at {}", source)


_NO_RULE = (
    "Shardy has no rule for it, so its result gets no sharding from what it reads."
)


def note(fact: PlanNote) -> str:
    """A remark on a value or a plan.

    >>> note(PlanNote("unused"))
    'The program does not use it.'
    """
    names = fact.names
    first = next(iter(names), "")
    values = plural(len(names), "value")
    axes = ", ".join(names) or "no axis"
    have, it, split = "have", "they", "split"
    if len(names) == 1:
        have, it, split = "has", "it", "splits"
    them = by_count(len(names), "it", "them")
    when = "it was requested"
    if fact.step >= 0:
        when = f"it stood after step {fact.step}"
    return {
        "unused": "The program does not use it.",
        "call": f"It calls {first}, which XLA does not look into.",
        "host": (
            "It calls Python on the host of one device, so its operands are gathered"
            " there."
        ),
        "no rule": _NO_RULE,
        "no body": "The function it calls has no body here.",
        "shard_map": f"A shard_map over {axes}: its body says itself what is sent.",
        "inside shard_map": (
            f"Inside of a shard_map over {axes}: the shape is that of one device's block."
        ),
        "size one": (
            f"{joined(names)} {have} size 1: {it} {split} nothing and no sharding names"
            f" {them}."
        ),
        "not covered": (
            f"{values} not covered: {joined(names, 'and', 3)}. A compile for the target"
            " shows what its partitioner does there."
        ),
        "uncertain": (
            f"The estimate is uncertain at {values}: {joined(names, 'and', 3)}."
            f" plan.why({shown(first)}) says why; a compile says what XLA's partitioner"
            " does."
        ),
        "for TPUs": "It is lowered for TPUs: a Pallas kernel has no form for CPUs.",
        "platform": (
            f"It is lowered for CPUs. Other platforms run {joined(names)} in another way,"
            " with other collectives perhaps: sv.stages(program, target) plans for the"
            " target's platform."
        ),
        "not lowered": (
            f"It is lowered for CPUs: jax cannot lower it for {first} here. {fact.words}"
        ),
        "no calls": f"Which constraints are called is unknown. {fact.words}",
        "after step": f"As {when}, without collectives: these are those of the end.",
    }[fact.code]


def _uneven(fact: UnevenNote) -> str:
    misfit = fact.misfit
    axes = " × ".join(misfit.axes)
    if fact.code == "lost":
        return (
            f"{fact.value} is split over {axes} along dimension {fact.dim}, but not as a"
            " result of the program: results must divide evenly, and"
            f" {misfit}"
        )
    # XLA pads every shard to the size of the largest.
    size = -(-misfit.size // misfit.parts)
    full, rest = divmod(misfit.size, size)
    empty = misfit.parts - full - bool(rest)
    shards = [f"{plural(full, 'shard')} of {size:,}"]
    if rest:
        shards.append(f"one of {rest:,}")
    if empty:
        shards.append(f"{plural(empty, 'shard')} of padding alone")
    return (
        f"Dimension {fact.dim} is uneven over {axes}: {', then '.join(shards)}; the"
        f" compiler pads. {misfit}"
    )


def value_change(change: ValueChange) -> str:
    """How a value is split before and after, or where an axis came from."""
    before, after = change.before, change.after
    if change.moved:
        return f"{after.name}: {before.spec} -> {after.spec}"
    came, comes = [], []
    for axis, origin in before.origins.items():
        now = after.origins.get(axis)
        if now != origin:
            came.append(f"{axis} came from {origin.kind} {origin.name}")
            if now is not None:
                comes.append(f"{axis} comes from {now.kind} {now.name}")
    return f"{after.name}: {after.spec} as before, but {', '.join(came)}; {', '.join(comes)} now"


def _plan_change(change: PlanChange) -> str:
    before, after, code = change.before, change.after, change.code
    # What is gone or lost has no side after.
    one = after
    if after is None:
        one = before
    title = code.capitalize()
    if code in ("new", "gone"):
        source = clause(" ({})", one.source)
        return f"{title}: {one.name}, {one.short}, {one.spec}{source}"
    if code == "resized":
        return f"{title}: {one.words}, {before.amount} before"
    if code in ("gained", "lost"):
        return f"{title}: {one.words}"
    if code == "bytes sent":
        return f"Each device sends {bytes_text(before)} before, {bytes_text(one)} now."
    if code == "mesh":
        return f"Mesh: {before} -> {after}"
    if code == "nothing":
        return "Nothing changes."
    return f"There is {code}: {after}"


def _counts(counts: Counts) -> str:
    sides = []
    for noun, parts in (("collective", counts.collectives), ("value", counts.values)):
        phrases = [f"{number:,} {word}" for word, number in parts.items()]
        if parts:
            # The first says of what: `2 collectives gained, 1 lost`.
            word, number = next(iter(parts.items()))
            phrases[0] = f"{plural(number, noun)} {word}"
            sides.append(", ".join(phrases))
    return "; ".join(sides) + "."


SENTENCES = {
    OpRule: rule_in_words,
    ValueLine: _value_line,
    SplitLine: _split_line,
    StepLine: _step_line,
    NotSplitLine: _not_split,
    UnreducedLine: _unreduced,
    CostLine: _cost,
    LeftOutLine: _left_out,
    PlanNote: note,
    UnevenNote: _uneven,
    ValueChange: value_change,
    PlanChange: _plan_change,
    Counts: _counts,
}
