"""What jax refuses of a program for its types, and which edits it accepts."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.core.format import bytes_text, clause, joined, plural
from shardviz.core.program.refusals import TypeEdit, TypeRefusal

_MOST = 5  # refusals that are said beside the first
_PARTS = {
    "operand": "operand{} {}",
    "carry": "value{} {} of the carry, before the loop",
    "branches": "the results of branches that do not vary over these",
    "result": "the result",
}
_EDITS = {
    "reshard": "jax.sharding.reshard(..., {spec}) of {part}",
    "pcast": "jax.lax.pcast(..., {axes}, to='varying') of {part}",
    "out_sharding": "out_sharding={spec}",
    "auto_axes": "jax.sharding.auto_axes(..., out_sharding={spec})",
    "check_vma": "check_vma=False, where you know that its results are right",
}


def edit(fact: TypeEdit) -> str:
    """An edit, as people write it.

    >>> print(edit(TypeEdit("pcast", "carry", (0, 2), axes=("x",))))
    jax.lax.pcast(..., ('x',), to='varying') of values 0 and 2 of the carry, before the loop
    """
    many = "s" * (len(fact.numbers) > 1)
    part = _PARTS[fact.part].format(many, joined(fact.numbers))
    words = _EDITS[fact.code].format(spec=fact.spec, axes=fact.axes, part=part)
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
        return "No edit was found that jax accepts."
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
