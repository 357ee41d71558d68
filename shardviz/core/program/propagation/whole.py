"""Why a dimension of a value stayed whole, in one sentence. Pure data."""

from __future__ import annotations

from shardviz.core.program.propagation import factors
from shardviz.core.program.propagation.planned import PlannedOp
from shardviz.core.program.propagation.record import Record


def dimension(op: PlannedOp, number: int) -> str:
    """A dimension by number and size: `Dimension 1 (512)`."""
    return f"Dimension {number} ({op.shape[number]})"


def dimension_of(op: PlannedOp | None, axis: str) -> int | None:
    """The dimension of a value that a mesh axis splits, or None."""
    if op is None:
        return None
    return next((n for n, axes in enumerate(op.spec.dims) if axis in axes), None)


def why_whole(plan: Record, op: PlannedOp, number: int) -> str:
    """Why no axis splits a dimension: nothing asked, nothing reached it, or two axes disagreed.

    Args:
        plan: the plan.
        op: one of its values.
        number: the dimension.
    """
    opening = f"{dimension(op, number)} is whole"
    if op.shape[number] == 1:
        return f"{opening}: there is nothing to split."
    if op.kind == "argument":
        return f"{opening}: it was asked for so."
    if not op.covered:
        return f"{opening}: no sharding crosses {op.name}."
    if op.opcode == "sharding_constraint":
        return f"{opening}: the constraint{_at(op)} asks for it so."
    if op.opcode == "reshard" and op.op.endswith("/shard_map"):
        return f"{opening}: the shard_map{_at(op)} asks for it so."
    if op.kind == "result":
        source = plan.by_name.get(op.operands[0]) if op.operands else None
        if source is not None and _axes(source, number):
            return f"{opening}: {source.name} is split there, but the result is asked for whole."
        return f"{opening}, as in {op.operands[0] if op.operands else 'what is returned'}."
    rule = factors.parse(op.factors)
    own = _result(rule, op)
    if rule is None or own is None or number >= len(own):
        return f"{opening}: no axis reached it."
    return f"{opening}: {_reason(plan, op, rule, own[number], number)}"


def _reason(
    plan: Record, op: PlannedOp, rule: factors.Rule, names: tuple[str, ...], number: int
) -> str:
    held = _holders(plan, op, rule, names)
    readers = [n for f in names for n in rule.readers(f)]
    if not readers:
        return f"it is new in {op.name}, and nothing that reads it is split there."
    if not held:
        sources = dict.fromkeys(op.operands[n] for n in readers if n < len(op.operands))
        places = "where it comes from, is" if len(sources) == 1 else "where it comes from, are"
        return f"no axis reached it; {' and '.join(sources)}, {places} whole there."
    axis, name = next(iter(held.items()))
    if op.manual and not plan.by_name[name].manual:
        return f"{_held(held)}, but the body of a shard_map sees one block."
    if blocked := [f for f in names if f in (*rule.blocked, *rule.whole)]:
        return f"{_held(held)}, but {op.name} lets nothing cross {blocked[0]}."
    if parts := _parts(op, rule, names, name):
        return f"in {name} it is one part of {parts}, and {axis} splits another part."
    if (other := _elsewhere(op, axis, number)) is not None:
        return (
            f"{_held({axis: name})}, but {axis} splits dimension {other} here, and an array uses a"
            " mesh axis once."
        )
    if len(held) > 1:
        return f"{_held(held)}: they disagree, so neither crosses {op.name}."
    if summed := _reduced(plan, op, rule, axis):
        return f"{_held(held)}, but {axis} also splits {summed}, over which {op.name} reduces."
    return f"{_held(held)}, but Shardy did not let it cross {op.name}."


def _parts(op: PlannedOp, rule: factors.Rule, names: tuple[str, ...], name: str) -> str:
    """The factors of the operand's dimension of which these are only a part, or `""`."""
    for operand, tensor in zip(op.operands, rule.operands, strict=False):
        for own in tensor:
            if operand == name and set(names) < set(own):
                return "".join(own)
    return ""


def _holders(
    plan: Record, op: PlannedOp, rule: factors.Rule, names: tuple[str, ...]
) -> dict[str, str]:
    """Mesh axis to the operand in which it splits one of these factors."""
    held: dict[str, str] = {}
    for name, tensor in zip(op.operands, rule.operands, strict=False):
        value = plan.by_name.get(name)
        for number, own in enumerate(tensor):
            if value is not None and set(own) & set(names):
                held |= {axis: name for axis in _axes(value, number) if axis not in held}
    return held


def _reduced(plan: Record, op: PlannedOp, rule: factors.Rule, axis: str) -> str:
    """The factor that an operation reduces over and that an axis splits in an operand, or `""`."""
    for factor in rule.reduction:
        if axis in _holders(plan, op, rule, (factor,)):
            return f"{factor} ({rule.sizes[factor]})"
    return ""


def _elsewhere(op: PlannedOp, axis: str, number: int) -> int | None:
    return next((n for n, a in enumerate(op.spec.dims) if axis in a and n != number), None)


def _result(rule: factors.Rule | None, op: PlannedOp) -> factors.Tensor | None:
    if rule is None or not rule.results:
        return None
    _, bracket, index = op.name.rpartition("[")
    number = int(index[:-1]) if bracket and index[:-1].isdecimal() else 0
    return rule.results[number] if number < len(rule.results) else None


def _axes(op: PlannedOp, number: int) -> tuple[str, ...]:
    return op.spec.dims[number] if number < op.spec.rank else ()


def _held(held: dict[str, str]) -> str:
    return " and ".join(f"{axis} splits it in {name}" for axis, name in held.items())


def _at(op: PlannedOp) -> str:
    return f" at {op.source}" if op.source else ""
