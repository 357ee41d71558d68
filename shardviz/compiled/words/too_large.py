"""Sentences for programs that do not fit: the largest values, and advice."""

from __future__ import annotations

from shardviz.base.format import bytes_text, joined, plural, told_apart
from shardviz.compiled.too_large import LargeValue, MemoryAdvice, TooLarge

# Maximum number of values to list.
_MOST = 6
_MOST_TITLES = 4
_TRIES = {
    "arguments": "Arguments and results alone are too large, so no change inside the"
    " function helps. Use more devices, split the arrays over more axes, donate arguments"
    " that the function returns updated, or store fewer bytes per number.",
    "loops": "Try jax.checkpoint around the body of the scan ({loops})",
    "layers": "The backward pass needs values of every layer. Try jax.checkpoint around"
    " each layer: layer = jax.checkpoint(layer) before the Python loop that calls it",
    "value": "Try to split {value} over more axes, or to compute it in parts, as with"
    " jax.lax.map over a dimension",
    "unknown": "",
}
_CHANGES = (
    'sv.changes(report, goal="memory") compiles possible changes for this target.'
)
_CARRY = "the scan's carry"  # XLA names the carry after the loop
_COMPILES = 'sv.changes(report, goal="memory") compiles this change for this target.'


def too_large(fact: TooLarge) -> str:
    """Describes the bytes that a program needs by kind, and the memory of the chip.

    >>> from shardviz.axis_rules.fit import Fit
    >>> print(too_large(TooLarge("f", "TPU v5e 2×2", Fit(9, 8), {"temporaries": 9})))
    f does not fit TPU v5e 2×2: 9 B of temporaries; the chip has 8 B.
    """
    target = f" {fact.target}" if fact.target else ""
    return f"{fact.program} does not fit{target}: {needed_by_kind(fact)}"


def needed_by_kind(fact: TooLarge) -> str:
    """Lists the bytes needed on each device by kind, and the memory of a device."""
    capacity, sizes = fact.fit.capacity or 0, list(fact.kinds.values())
    *texts, limit = told_apart([*(sizes or [fact.fit.needed]), capacity])
    needed = texts[0]
    if sizes:
        pairs = zip(texts, fact.kinds, strict=True)
        needed = " + ".join(f"{size} of {kind}" for size, kind in pairs)
    limit = max(limit, _capacity(capacity), key=len)
    # Without a target, the user set the limit.
    owner = "the chip has" if fact.target else "the limit is"
    return f"{needed}; {owner} {limit}."


def _capacity(size: int) -> str:
    """Formats bytes with as many digits as compilers print: 15.75 GiB, not 15.8 GiB."""
    return f"{size / 2**30:.4g} GiB" if size >= 2**30 else bytes_text(size)


def details(fact: TooLarge) -> str:
    """Lists the largest values, one per line, and then advice."""
    return "\n".join([*largest_values(fact), advice(fact)])


def largest_values(fact: TooLarge) -> list[str]:
    """Lists the largest values, one per line."""
    lines, loop = [], ""
    if fact.values:
        lines.append("Largest values per device:")
    sizes = [_amount(value) for value in fact.values[:_MOST]]
    width = max(map(len, sizes), default=0)
    for value, size in zip(fact.values, sizes, strict=False):
        lines.append(f"  {size:>{width}}  {value.shape}  {_about(value, loop)}")
        loop = value.loop if value.is_saved else loop
    if omitted := fact.values[_MOST:]:
        total = bytes_text(sum(value.total for value in omitted))
        count = plural(sum(value.count for value in omitted), "more value")
        lines.append(f"  … and {count}, {total}")
    return lines


def _amount(value: LargeValue) -> str:
    count = f"{value.count:,} × " if value.count > 1 else ""
    return f"{count}{bytes_text(value.bytes)}"


def _about(value: LargeValue, loop: str) -> str:
    """Names values and their source line, and explains why they are kept.

    Args:
        value: the values.
        loop: the loop's source line in the row above.
    """
    titles = [_CARRY if title == "while" else title for title in value.titles]
    words = joined(titles, limit=_MOST_TITLES)
    if value.source:
        words += f" ({value.source})"
    if value.kind != "temporaries":
        words += f", {value.kind}"
    if value.spec is not None:
        words += f", {value.spec}"
    if not value.is_saved:
        return words
    if not value.loop:
        return f"{words}, saved for the backward pass"
    if value.loop == loop:
        return f"{words}, saved by the same scan"
    return f"{words}, saved by the scan at {value.loop} for the backward pass"


def advice(fact: TooLarge) -> str:
    """Suggests what to try first, and how to compile it.

    >>> from shardviz.axis_rules.fit import Fit
    >>> advice(TooLarge("f", "TPU v5e 2×2", Fit(9, 8)))[:32]
    'sv.changes(report, goal="memory"'
    """
    words = _try(fact)
    if fact.code == "arguments":
        return words
    compiled = _COMPILES if fact.code == "loops" else _CHANGES
    return f"{words}; {compiled}" if words else compiled


def _try(fact: TooLarge) -> str:
    first = next((v for v in fact.values if v.kind == "temporaries"), None)
    name = first and f"{first.titles[0]} ({first.source})"
    return _TRIES[fact.code].format(loops=joined(fact.loops), value=name)


def memory_advice(fact: MemoryAdvice) -> str:
    """Describes the code to write in the program."""
    return f"{_try(fact.large).rstrip('.')}."


SENTENCES = {TooLarge: too_large, MemoryAdvice: memory_advice}
EXPLANATIONS = {TooLarge: details}
