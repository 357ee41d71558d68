"""Edits of a program, what they do, and why some that were tried are not proposed."""

from __future__ import annotations

from typing import Any

from shardviz.advise.advice import Advice
from shardviz.advise.candidates import (
    ARGUMENT,
    CONSTRAINTS,
    Candidate,
    Changes,
    Edit,
    Refusal,
    sent_bytes,
    value_of,
)
from shardviz.axis_rules.words.remedies import decapitalised
from shardviz.base.collective import Collective
from shardviz.base.format import by_count, bytes_text, joined, plural
from shardviz.compiled.op_costs import StepCost
from shardviz.compiled.report import peak_bytes
from shardviz.compiled.words.roofline import time_text

_EDITS = {
    "argument": "Split argument{plural} {array} as {spec}",
    "argument replicated": "Replicate {array}",
    "result": "Return {result} as {spec}",
    "result replicated": "Return {result} replicated",
    "rule": "Change the rules: {steps}",
    "constraint": "Constrain {value} ({source}) to {spec}",
    "constraint replicated": "Constrain {value} ({source}) to be replicated",
    "constraint of an argument": "Constrain argument {value} to {spec} where the function"
    " begins",
    "constraint that stands there": "Change the constraint in {source} to {spec}",
    "mesh": "Use the mesh {mesh}",
    "device order": "Lay the mesh over the devices in another order",
    "types": "Edit what jax refuses",
    "explicit": "Make all mesh axes Explicit, and edit what jax then refuses",
    "donate": "Donate {arguments}",
    "remat": "Compute again in the backward pass what {sources} saves for it, with"
    " jax.checkpoint and the policy {policy}",
    "pcast": "Cast {value} to varying over {axes} before the loop around {source}, so that"
    " its gradient is summed once, after the loop",
    "unreduced": "Leave the product in {source} unreduced over {axes} in the loop, and sum"
    " it once after the loop",
    "late sum": "Sum over {axes} once after the loop, and not in {source} in each"
    " iteration",
}
_SHARD_MAP = "Put a jax.shard_map over {axes} around it: each device then {does}."
_WHOLE = "XLA gathers the whole batch for {operation} ({source}). "
# Kind to the operation, and to what each device does with its part of the batch.
_UNSPLIT = {
    "convolution": ("a grouped convolution", "convolves its own rows"),
    "fft": ("an FFT", "transforms its own rows"),
    "top_k": ("top_k", "searches its own rows"),
    "linear algebra": ("a matrix decomposition", "decomposes its own matrices"),
    "kernel": ("a kernel that it can't look into", "calls it with its own rows"),
}
_ADVICE = {
    "loop": "In a loop under jax.vmap ({source}) all devices ask each other in every"
    " iteration whether any of them still works. "
    + _SHARD_MAP.format(
        axes="{axes}", does="loops over its own rows until these are done"
    ),
    "map": "All devices take each step of jax.lax.map ({source}) together. "
    + _SHARD_MAP.format(axes="{axes}", does="takes the steps of its own rows"),
    "random": "The same random numbers are computed and moved on all devices ({source})."
    " Set the option below, and each device computes its own; the numbers are different.",
    "parts": "Each part of the batch ({source}) is on a few devices only. Take the rows in"
    " another order, so that each part has rows of every device; a sum over all parts stays"
    " the same.",
    "accumulation": "Take the batch ({arrays}) in parts, in a jax.lax.scan that adds up"
    " their gradients: only one part's values are saved for the backward pass at a time. A"
    " Python loop over the parts is unrolled, and the values of several may be in memory"
    " together.",
}
_MOST_CHIPS = 4
#: Stands above those that are refused.
DROPPED = "Tried, and not proposed:"
#: Marks advice, beside changes that were compiled.
NOT_TRIED = "Not tried"
_REFUSALS = {
    "not made": "it does not fit the program. {said}",
    "does not compile": "it does not compile. {said}",
    "values differ": "its values differ. {said}",
    "same collective": "the collective is still there",
    "moved elsewhere": "each device then sends {after} in all, and {before} before",
    "more work": "it undoes the parallelism, as each device then computes much more",
    "hardly less": "each device then sends {after} in all, which is hardly less than"
    " {before}",
    "more time": "the program then takes at least {seconds}, and {seconds_before} before",
    "no less memory": "it needs {after} per device, and {before} before",
    "no less planned": "it needs hardly less memory by its plan",
    "no memory": "it has no room. {said}",
}


def edit(fact: Edit) -> str:
    """What is changed.

    >>> edit(Edit("result", {"result": "output", "spec": "P('data')"}))
    "Return output as P('data')"
    """
    code, fields = fact.code, dict(fact.fields)
    fields["plural"] = "s" if len(fields.get("names", ())) > 1 else ""
    if code == "constraint":
        if fields["value"] in CONSTRAINTS:
            code = "constraint that stands there"
        elif fields["value"] == ARGUMENT:
            code = "constraint of an argument"
        elif not fields["spec"].axes:
            code = "constraint replicated"
        fields["value"] = value_of(fact)
    elif code in ("argument", "result") and not _axes(fields["spec"]):
        code += " replicated"
    if code == "pcast":
        fields["value"] = fields["value"] or "the value used there"
    for name, value in fields.items():
        if name == "steps":
            fields[name] = ", then ".join(decapitalised(str(step)) for step in value)
        elif name == "arguments":
            numbered = by_count(len(value), "argument", "arguments")
            fields[name] = f"{numbered} {joined(map(str, value))}"
        elif isinstance(value, (tuple, list)):
            fields[name] = ", ".join(map(str, value))
    return _EDITS[code].format(**fields)


def edits_in_words(edits: tuple[Edit, ...]) -> str:
    """Several edits in one sentence, which has no full stop."""
    if not edits:
        return "As it is now"
    first, *others = map(edit, _merged(edits))
    return joined([first, *(decapitalised(one) for one in others)])


def _merged(edits: tuple[Edit, ...]) -> list[Edit]:
    """The edits, with one for all arguments that are split alike."""
    merged: dict[object, Edit] = {}
    for number, one in enumerate(edits):
        key: object = number
        if one.code == "argument":
            key = str(one.fields["spec"])
        before = merged.get(key)
        if before is not None:
            names = [*before.fields["names"], one.fields["array"]]
            array = f"{', '.join(names[:-1])} and {names[-1]}"
            one = Edit(one.code, {**one.fields, "names": names, "array": array})
        elif one.code == "argument":
            one = Edit(one.code, {**one.fields, "names": [one.fields["array"]]})
        merged[key] = one
    return [*merged.values()]


def _axes(spec: Any) -> Any:
    return getattr(spec, "axes", spec)


def costs(fact: Candidate, about: Collective | None = None) -> str:
    """What each device sends, needs and takes at least, before and after; first what
    it sends in collectives of the kind of one, over its mesh axes.
    """
    before, after = fact.before.memory, fact.peak_bytes
    sides = fact.before.collectives, fact.report.collectives
    # The collectives of a program that does not fit are unknown.
    known = [side for side in sides if side is not None]
    parts = []
    if about is not None:
        name, alike = about.name_with_axes, []
        for some in known:
            same = [one for one in some if one.name_with_axes == name]
            alike.append(bytes_text(sent_bytes(same)))
        parts.append(_pair(name, *alike))
    if any(map(sent_bytes, known)):
        parts.append(_pair("sends", *(bytes_text(sent_bytes(side)) for side in known)))
    if (needed := peak_bytes(before)) is not None and after is not None:
        parts.append(_pair("memory", bytes_text(needed), bytes_text(after)))
    least, seconds = fact.before.roofline, fact.least_seconds
    if seconds is not None and least is not None and least.seconds is not None:
        parts.append(_pair("time ≥", time_text(least.seconds), time_text(seconds)))
    return " · ".join(parts)


def _pair(name: str, *texts: str) -> str:
    # Once where nothing changes.
    return f"{name} {' → '.join(dict.fromkeys(texts))}"


def candidate(fact: Candidate) -> str:
    """What is changed, what that costs, and whether it then fits."""
    words = f"{edits_in_words(fact.edits)}: {costs(fact)}."
    if fact.fits is False:
        words += " It still does not fit."
    if chips := fact.chips:
        names = joined([chip.title for chip in chips], limit=_MOST_CHIPS)
        words += f" As compiled for CPUs, it fits {names}."
    return words


def refusal(fact: Refusal) -> str:
    """What was tried, and why it is not proposed."""
    after, before = bytes_text(fact.bytes or 0), bytes_text(fact.before or 0)
    times = [time_text(seconds or 0.0) for seconds in (*fact.seconds, None, None)]
    fields = {"said": fact.said, "after": after, "before": before}
    fields |= {"seconds": times[0], "seconds_before": times[1]}
    why = _REFUSALS[fact.code].format(**fields)
    return f"{edits_in_words(fact.edits)}: {why.rstrip('. ')}."


def changes(value: Changes) -> str:
    """How many there are, and for which collective."""
    about = ""
    if value.collective is not None:
        about = f" for the {value.collective.words}"
    if not value:
        return f"No change was found{about}."
    return f"{plural(len(value), 'change')}{about}:"


def advice(fact: Advice) -> str:
    """What to write by hand, and why, marked as not tried."""
    return f"{NOT_TRIED}: {to_write(fact)}"


def to_write(fact: Advice) -> str:
    """What to write by hand, and why.

    >>> to_write(Advice("fft", "f.py:3", ("data",)))[:44]
    'XLA gathers the whole batch for an FFT (f.py'
    """
    words = {"source": fact.source, "axes": joined(fact.axes)}
    words["arrays"] = joined(fact.arrays)
    template = _ADVICE.get(fact.kind, _WHOLE + _SHARD_MAP)
    words["operation"], words["does"] = _UNSPLIT.get(fact.kind, ("", ""))
    return template.format(**words)


def untried(value: Changes) -> str:
    """How many more were not tried; `""` for none."""
    count = value.untried
    verb = by_count(count, "was", "were")
    return f"{plural(count, 'more change')} {verb} not tried." if count else ""


def remedy_step(before: StepCost, after: StepCost) -> str:
    """What the program communicates and keeps with a remedy, by its plan.

    >>> remedy_step(StepCost(19, 1 << 20, 3 << 30), StepCost(93, 2 << 20, 3 << 30))
    'The step by its plan: 19 → 93 collectives of 1 MiB → 2 MiB, up to 3 GiB alive at once.'
    """
    calls = _from_to(f"{before.collectives:,}", f"{after.collectives:,}")
    moved = _from_to(bytes_text(before.moved), bytes_text(after.moved))
    alive = _from_to(bytes_text(before.alive), bytes_text(after.alive))
    noun = by_count(after.collectives, "collective", "collectives")
    return (
        f"The step by its plan: {calls} {noun} of {moved}, up to {alive} alive at once."
    )


def _from_to(before: str, after: str) -> str:
    return after if before == after else f"{before} → {after}"


SENTENCES = {
    Advice: advice,
    Edit: edit,
    Refusal: refusal,
    Candidate: candidate,
    Changes: changes,
}
