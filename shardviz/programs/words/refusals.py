"""Describes operations that jax refuses for their types, and edits that it accepts."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.base.format import bytes_text, clause, joined, plural
from shardviz.programs.refusals import (
    AtGet,
    AtSet,
    AutoAxes,
    CastBranches,
    CastCarry,
    CastOperands,
    CombineBeforeRead,
    CombineResults,
    NameInOutSpecs,
    OperandEdit,
    OutSharding,
    ReshardCarry,
    ReshardOperands,
    ResultEdit,
    SkipCheck,
    TypeEdit,
    TypeRefusal,
)

# How many refusals to describe in addition to the first.
_MOST = 5
# Conditions under which an edit is right, for edits whose results are often wrong.
_CONDITIONS = {
    "psum": "if each device holds a partial sum",
    "pmean": "if each device holds the mean of its own part",
}
_OUT_SPECS_CONDITION = "if each device holds a block of the result"
_NO_CHECK_CONDITION = (
    "which only turns the check off: the result is wrong unless all devices hold the same"
    " value"
)


def edit(fact: TypeEdit) -> str:
    """Describes an edit: the code, and where to put it.

    >>> print(edit(CastCarry((0, 2), ("x",))))
    jax.lax.pcast(..., ('x',), to='varying') on values 0 and 2 of the carry, before the loop
    """
    if isinstance(fact, CombineBeforeRead):
        reader = fact.reader + clause(" ({})", fact.line)
        return (
            f"jax.lax.{fact.collective}(..., {fact.axes[0]!r}) on the value that {reader}"
            " reads, before it is read"
        )
    words, condition = _call(fact)
    if fact.is_right is None:
        words += clause(", {}", condition)
    if fact.bytes is not None:
        words += f" ({bytes_text(fact.bytes)} sent per device in total)"
    return words


def _call(fact: TypeEdit) -> tuple[str, str]:
    """Returns an edit's code, and when the edit is right (`""` means always)."""
    match fact:
        case ReshardOperands(spec=spec):
            return f"jax.sharding.reshard(..., {spec}) on {_operands(fact)}", ""
        case CastOperands(axes=axes):
            return f"jax.lax.pcast(..., {axes}, to='varying') on {_operands(fact)}", ""
        case CastBranches(axes=axes):
            part = "the branch results that do not vary over these axes"
            return f"jax.lax.pcast(..., {axes}, to='varying') on {part}", ""
        case OutSharding(spec=spec):
            return f"out_sharding={spec}", ""
        case AtGet(spec=spec):
            return f".at[...].get(out_sharding={spec})", ""
        case AtSet(spec=spec):
            return (
                f"out_sharding={spec} in the call of .at[...].set, .add or similar"
            ), ""
        case AutoAxes(spec=spec):
            return f"jax.sharding.auto_axes(..., out_sharding={spec})", ""
        case CombineResults(collective=collective, axes=axes):
            of = repr(axes[0]) if len(axes) == 1 else axes
            call = f"jax.lax.{collective}(..., {of}) on {_results(fact)}"
            return f"{call} before the return", _CONDITIONS.get(collective, "")
        case NameInOutSpecs(spec=spec):
            return f"{spec} in the out_specs for {_results(fact)}", _OUT_SPECS_CONDITION
        case SkipCheck():
            return "check_vma=False", _NO_CHECK_CONDITION
    raise TypeError(type(fact))


def _operands(fact: OperandEdit) -> str:
    plural_s = "s" if len(fact.numbers) > 1 else ""
    numbers = joined(fact.numbers)
    if isinstance(fact, (ReshardCarry, CastCarry)):
        return f"value{plural_s} {numbers} of the carry, before the loop"
    return f"operand{plural_s} {numbers}"


def _results(fact: ResultEdit) -> str:
    plural_s = "s" if len(fact.numbers) > 1 else ""
    return f"result{plural_s} {joined(fact.numbers)}"


def refusal(fact: TypeRefusal) -> str:
    """Describes a refused operation and the edits that jax accepts."""
    where = clause(" ({})", fact.source) + ", in the gradient" * fact.backward
    said = " ".join(fact.said.split()).rstrip(".")
    return f"{fact.operation}{where}. {said}. {_accepted(fact)}"


def _accepted(fact: TypeRefusal) -> str:
    if not fact.edits:
        if fact.operation == "shard_map":
            return "No edit of its results gives the values of the unsharded function."
        return "No edit was found that jax accepts."
    if isinstance(fact.edits[0], CombineBeforeRead):
        return f"It needs {edit(fact.edits[0])}."
    return f"jax accepts it with {'; or '.join(map(edit, fact.edits))}."


def refusals(facts: Sequence[TypeRefusal]) -> str:
    """Continues the message of the first refusal: its edits, then further refusals."""
    words = [_accepted(fact) for fact in facts[:1]]
    if facts[1:]:
        words.append(f"jax also refuses {plural(len(facts) - 1, 'more operation')}:")
    return "".join(f" {one}" for one in (*words, *map(refusal, facts[1 : _MOST + 1])))


SENTENCES = {TypeEdit: edit, TypeRefusal: refusal}
