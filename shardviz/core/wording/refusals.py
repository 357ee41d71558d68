"""What jax refuses of a program for its types, and which edits it accepts."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.core.format import bytes_text, clause, plural
from shardviz.core.program.refusals import TypeEdit, TypeRefusal

_MOST = 5  # refusals that are said beside the first
_PARTS = {
    "operand": "operand {}",
    "carry": "value {} of the carry, before the loop",
    "body": "value {} of the carry, at the end of the loop's body",
    "branch": "the result of branch {}",
}


def edit(fact: TypeEdit) -> str:
    """An edit, as people write it.

    >>> from shardviz.core.layout.partition_spec import Spec
    >>> edit(TypeEdit("reshard", ("operand", 1), Spec.parse("data")))
    "jax.sharding.reshard(..., P('data')) of operand 1"
    >>> edit(TypeEdit("pcast", ("carry", 0), axes=("x",)))
    "jax.lax.pcast(..., ('x',), to='varying') of value 0 of the carry, before the loop"
    """
    kind, number = fact.of
    part = _PARTS.get(kind, "").format(number)
    sent = ""
    if fact.bytes is not None:
        sent = f" ({bytes_text(fact.bytes)} sent per device in all)"
    match fact.code:
        case "reshard":
            return f"jax.sharding.reshard(..., {fact.spec}) of {part}{sent}"
        case "pcast":
            return f"jax.lax.pcast(..., {fact.axes}, to='varying') of {part}{sent}"
        case "out_sharding":
            return f"out_sharding={fact.spec}{sent}"
        case "auto_axes":
            return f"jax.sharding.auto_axes(..., out_sharding={fact.spec}){sent}"
    return f"check_vma=False, where you know that its results are right{sent}"


def refusal(fact: TypeRefusal) -> str:
    """An operation that is refused, and what jax accepts."""
    where = clause(" ({})", fact.source)
    gradient = ", in the gradient" * fact.backward
    said = " ".join(fact.said.split())
    return f"{fact.operation}{where}{gradient}. {said} {accepted(fact)}"


def accepted(fact: TypeRefusal) -> str:
    """The edits of a refusal, in a sentence.

    >>> accepted(TypeRefusal("add", "f.py:3", (), "no"))
    'No edit was found that jax accepts.'
    """
    if not fact.edits:
        return "No edit was found that jax accepts."
    return f"jax accepts it with {'; or '.join(map(edit, fact.edits))}."


def refusals(facts: Sequence[TypeRefusal]) -> str:
    """What follows the message of the first refusal."""
    if not facts:
        return ""
    first, *others = facts
    words = [accepted(first)]
    if others:
        words.append(f"After that it refuses {plural(len(others), 'more operation')}:")
        words += [refusal(fact) for fact in others[:_MOST]]
    return " ".join(["", *words])


SENTENCES = {TypeEdit: edit, TypeRefusal: refusal}
