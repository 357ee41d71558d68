"""What jax refuses of a program for its types, and which edits it accepts."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.base.format import bytes_text, clause, joined, plural
from shardviz.programs.refusals import TypeEdit, TypeRefusal

_MOST = 5  # refusals that are said beside the first
_PARTS = {
    "operand": "operand{} {}",
    "carry": "value{} {} of the carry, before the loop",
    "branches": "the results of branches that do not vary over these",
    "result": "the result",
    "read": "the value that {} reads",
}
_EDITS = {
    "reshard": "jax.sharding.reshard(..., {spec}) of {part}",
    "pcast": "jax.lax.pcast(..., {axes}, to='varying') of {part}",
    "out_sharding": "out_sharding={spec}",
    "get": ".at[...].get(out_sharding={spec})",
    "set": "out_sharding={spec} in .at[...].set, .add or the method that is there",
    "auto_axes": "jax.sharding.auto_axes(..., out_sharding={spec})",
    "psum": "jax.lax.psum(..., {axes}) of {part} before the return",
    "pmean": "jax.lax.pmean(..., {axes}) of {part} before the return",
    "pmax": "jax.lax.pmax(..., {axes}) of {part} before the return",
    "pmin": "jax.lax.pmin(..., {axes}) of {part} before the return",
    "read": "jax.lax.{collective}(..., {axes}) of {part}, before it is read",
    "out_specs": "{spec} in the out_specs for {part}",
    "check_vma": "check_vma=False",
}
# When an edit is right, for those of which it isn't known.
_CONDITIONS = {
    "psum": "if each device holds a part of a sum",
    "pmean": "if each device holds the mean of its own part",
    "out_specs": "if each device holds a block of the result",
    "check_vma": "which only turns the check off: the result is wrong unless all devices"
    " hold the same value",
}


def edit(fact: TypeEdit) -> str:
    """An edit, as people write it.

    >>> print(edit(TypeEdit("pcast", "carry", (0, 2), axes=("x",))))
    jax.lax.pcast(..., ('x',), to='varying') of values 0 and 2 of the carry, before the loop
    """
    many = "s" if len(fact.numbers) > 1 else ""
    part = (
        _PARTS[fact.part].format(many, joined(fact.numbers))
        if fact.part != "read"
        else ""
    )
    axes: object = fact.axes
    if fact.part == "result" and fact.numbers:
        part = f"result{many} {joined(fact.numbers)}"
        axes = repr(fact.axes[0]) if len(fact.axes) == 1 else fact.axes
    if fact.part == "read":
        operation, line = fact.reader
        part = _PARTS[fact.part].format(operation + clause(" ({})", line))
        return _EDITS["read"].format(
            collective=fact.code, axes=repr(fact.axes[0]), part=part
        )
    words = _EDITS[fact.code].format(spec=fact.spec, axes=axes, part=part)
    if fact.is_right is None:
        words += clause(", {}", _CONDITIONS.get(fact.code, ""))
    if fact.bytes is not None:
        words += f" ({bytes_text(fact.bytes)} sent per device in all)"
    return words


def refusal(fact: TypeRefusal) -> str:
    """An operation that is refused, and what jax accepts."""
    where = clause(" ({})", fact.source) + ", in the gradient" * fact.backward
    said = " ".join(fact.said.split()).rstrip(".")
    return f"{fact.operation}{where}. {said}. {_accepted(fact)}"


def _accepted(fact: TypeRefusal) -> str:
    if not fact.edits:
        if fact.operation == "shard_map":
            return "No edit of its results gives the values of whole arrays."
        return "No edit was found that jax accepts."
    if fact.edits[0].part == "read":
        return f"It needs {edit(fact.edits[0])}."
    return f"jax accepts it with {'; or '.join(map(edit, fact.edits))}."


def refusals(facts: Sequence[TypeRefusal]) -> str:
    """What follows the message of the first refusal."""
    words = [_accepted(fact) for fact in facts[:1]]
    if facts[1:]:
        words.append(
            f"After that it refuses {plural(len(facts) - 1, 'more operation')}:"
        )
    return "".join(f" {one}" for one in (*words, *map(refusal, facts[1 : _MOST + 1])))


SENTENCES = {TypeEdit: edit, TypeRefusal: refusal}
