"""Edits of a program, what they do, and why some that were tried are not proposed."""

from __future__ import annotations

from collections.abc import Callable

from shardviz.core.format import bytes_text, joined, plural
from shardviz.core.program.candidates import (
    CONSTRAINTS,
    Candidate,
    Changes,
    Edit,
    Refusal,
)
from shardviz.core.program.report import needed_bytes
from shardviz.core.wording.remedies import decapitalised
from shardviz.core.wording.roofline import time_text

_EDITS = {
    "argument": "Split argument {array} as {spec}",
    "result": "Return {result} as {spec}",
    "rule": "Change the rules: {steps}",
    "constraint": "Constrain {value} ({source}) to {spec}",
    "mesh": "Use the mesh {mesh}",
    "device order": "Lay the mesh over the devices in another order",
    "types": "Edit what jax refuses",
    "explicit": "Make all mesh axes Explicit, and edit what jax then refuses",
    "pmap": "Write it with jax.shard_map, where rows is the function for shards without"
    " the dimension that jax.pmap maps. Without the check each device has gradients of its"
    " own, as with jax.pmap; with it, grad sums them, so that a mean changes nothing",
    "donate": "Donate the arguments at {arguments}",
    "microbatches": "Take the batch ({arrays}) in {count} parts, in a jax.lax.scan that"
    " adds up their gradients",
    "remat": "Compute again in the backward pass what {sources} saves for it, with"
    " jax.checkpoint and the policy {policy}",
    "shard_map": "Put a jax.shard_map over {axes} around {operation} ({source})",
    "option": "Set an option of jax: {code}",
}
#: Further edits: code to a function of the edit that returns a sentence. Files of
#: wording that say others add theirs.
MORE_EDITS: dict[str, Callable[[Edit], str]] = {}

_REFUSALS = {
    "not made": "it does not fit the program. {said}",
    "does not compile": "it does not compile. {said}",
    "values differ": "its values differ. {said}",
    "same collective": "the collective is still there",
    "moved elsewhere": ("each device then sends {bytes} in all, and {before} before"),
    "more work": "each device then computes much more than before",
    "not compared": "it is only right if its values are equal. {said}",
    "no less memory": "it needs {bytes} per device, and {before} before",
    "no memory": "it has no room. {said}",
}


_FOR_MEMORY = ("donate", "remat", "microbatches")


def _bytes(count: int | None) -> str:
    return "?" if count is None else bytes_text(count)


def edit(fact: Edit) -> str:
    """What is changed.

    >>> edit(Edit("result", {"result": "output", "spec": "P('data')"}))
    "Return output as P('data')"
    """
    if fact.fields.get("value") in CONSTRAINTS:
        return "Change the constraint in {source} to {spec}".format(**fact.fields)
    if fact.code in MORE_EDITS:
        return MORE_EDITS[fact.code](fact)
    fields = dict(fact.fields)
    for name, value in fields.items():
        if isinstance(value, (tuple, list)):
            fields[name] = ", ".join(map(str, value))
    if fact.code == "rule":
        steps = [decapitalised(str(step)) for step in fact.fields["steps"]]
        fields["steps"] = ", then ".join(steps)
    words = _EDITS.get(fact.code)
    if words is None:
        return str(fields.get("title") or fact.code)
    return words.format(**fields)


def edits_in_words(edits: tuple[Edit, ...]) -> str:
    """Several edits in one sentence, which has no full stop."""
    if not edits:
        return "As it is now"
    first, *others = map(edit, edits)
    return joined([first, *(decapitalised(one) for one in others)])


def candidate(fact: Candidate) -> str:
    """What is changed, and what each device sends then."""
    before = sum(one.sent_in_all for one in fact.before.collectives or ())
    known = fact.report.roofline, fact.before.roofline
    peaks = fact.peak_bytes, needed_bytes(fact.before.memory)
    # What sends no less is there for the memory alone.
    if any(one.code in _FOR_MEMORY for one in fact.edits) or (
        fact.bytes > before and None not in peaks
    ):
        after, now = map(_bytes, peaks)
        words = f"{edits_in_words(fact.edits)}: peak {now} -> {after}"
        if None not in known and known[0].seconds is not None:
            after, now = (time_text(one.seconds or 0.0) for one in known)
            words += f", least time {now} -> {after}"
        return f"{words}."
    if fact.bytes == before and None not in known:
        least, now = (time_text(one.collective_s or 0.0) for one in known)
        return (
            f"{edits_in_words(fact.edits)}: the same bytes take {least} at least, and"
            f" {now} before."
        )
    return (
        f"{edits_in_words(fact.edits)}: each device sends {bytes_text(fact.bytes)},"
        f" and {bytes_text(before)} before."
    )


def refusal(fact: Refusal) -> str:
    """What was tried, and why it is not proposed."""
    sizes = {}
    for name in ("bytes", "before"):
        sizes[name] = _bytes(getattr(fact, name))
    why = _REFUSALS[fact.code].format(said=fact.said, **sizes).rstrip(". ")
    return f"{edits_in_words(fact.edits)}: {why}."


def changes(value: Changes) -> str:
    """How many there are, and for which collective."""
    about = ""
    if value.collective is not None:
        about = f" for the {value.collective.words}"
    if not value:
        return f"No change was found{about}."
    return f"{plural(len(value), 'change')}{about}:"


SENTENCES = {
    Edit: edit,
    Refusal: refusal,
    Candidate: candidate,
    Changes: changes,
}
