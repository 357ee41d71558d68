"""What a project expects of a program and does not find, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardviz.advise.contracts import Broken, HeldArray
from shardviz.axis_rules.requests import Request
from shardviz.base.axis_parts import parent_axis
from shardviz.base.collective import Collective
from shardviz.base.format import by_count, bytes_text, clause, fold, joined, plural
from shardviz.compiled.comparison import total_bytes
from shardviz.compiled.words.too_large import largest_values, needed_by_kind
from shardviz.plans.plan_folds import fold_collectives, fold_line

SHOWN = 5  # collectives, arrays or axes that are named
_BYTES_OF = {
    "arrays": "its arrays alone take",
    "arguments": "its arguments alone take",
    "ends": "its arguments and results alone, as planned, take",
}


def broken(fact: Broken) -> str:
    """What is not so, in several lines, and what to do."""
    return "\n".join(_LINES[fact.code](fact))


def _collectives(fact: Broken) -> list[str]:
    collectives = fact.collectives
    what = f"no {fact.kind or 'collective'}"
    there = by_count(len(collectives), "is 1,", f"are {len(collectives):,},")
    if fact.code == "too much":
        which = "each collective"
        if fact.per != "collective":
            # The limit is for a step, or for the collectives of one kind in it.
            kind = fact.per if fact.per != "step" else "collective"
            which = f"all {kind}s of one step"
        what, there = f"at most {bytes_text(fact.limit)} for {which}", "are"
    by = f"as compiled for {fact.target}"
    if fact.of == "propagated":
        by = "as Shardy estimates"
    elif fact.of == "partitioned":
        by = f"as XLA's partitioner put in for {fact.target}"
    over = clause(" over {}", joined(fact.over, "or"))
    size = f"{bytes_text(total_bytes(collectives))} per device"
    head = f"Expected {what}{over} in {fact.name}, and there {there} {size}, {by}:"
    return [head, *_largest_collectives(collectives), *_advice(fact)]


def _largest_collectives(collectives: Sequence[Collective]) -> list[str]:
    """The largest collectives, folded by layer, each with its cause."""
    folds = fold_collectives(collectives)
    lines = []
    for one in folds[:SHOWN]:
        first = one.items[0]
        line = f"  {fold_line(one)}"
        if not first.mesh_axes:
            line += " (its groups are those of no mesh axes)"
        lines.append(line + clause(". {}", first.cause))
    return [*lines, *_more(len(folds), "kind")]


def _more(count: int, noun: str) -> list[str]:
    if count <= SHOWN:
        return []
    return [f"  … and {plural(count - SHOWN, f'more {noun}')}"]


def _advice(fact: Broken) -> list[str]:
    """Which rules and specs put the axes there, and where to read on."""
    axes = list(fact.over)
    # Nobody named an axis: those that the collectives run over are to blame.
    if not axes:
        for one in fact.collectives:
            # An axis that XLA has split is in rules and specs by its own name.
            axes += map(parent_axis, one.mesh_axes)
    lines = []
    for axis in list(dict.fromkeys(axes))[:SHOWN]:
        split = [_split_by(row, axis) for row in fact.requests]
        brought = list(filter(None, split))
        if brought:
            lines.append(f"{axis} splits {joined(brought, limit=SHOWN)}.")
    # An estimate that is wrong is no reason to change a program.
    if fact.of == "propagated":
        lines.append(
            "This is an estimate, and XLA's partitioner may choose otherwise: expect the"
            " program itself for what is compiled."
        )
    lines.append(
        "sv.plan(program).why(value) says how an axis got to a value. Change that rule"
        " or spec, or constrain the value; or, if it should be there, the expectation."
    )
    return lines


def _split_by(row: Request, axis: str) -> str:
    """`w (dimension 0: rule 2, embed → data)`; `""` where the axis does not split it."""
    if row.spec is None:
        return ""
    for dim, axes in enumerate(row.spec.dims):
        if axis not in axes:
            continue
        how = _pattern(row) or "its own spec"
        if row.resolution is not None and not row.spec_wins:
            verdict = row.resolution.decisions[dim].deciding
            how = "its name"
            if verdict is not None:
                rule = row.resolution.rules[verdict.rule]
                how = f"rule {verdict.rule + 1}, {rule}"
        return f"{row.path} (dimension {dim}: {how})"
    return ""


def _pattern(row: Request) -> str:
    """Of a table of paths the pattern that decides; `""` for all else."""
    matched = row.by_path
    if matched is None or row.spec_wins:
        return ""
    if matched.winner is None:
        return "no pattern"
    return f"pattern {matched.winner + 1}"


def _too_large(fact: Broken) -> list[str]:
    fit = fact.fit
    assert fit is not None
    takes = _BYTES_OF.get(
        fact.of, f"as compiled{clause(' for {}', fact.target)} it takes"
    )
    needed = f"{takes} {bytes_text(fit.needed)}"
    if fact.large is not None and fact.large.code != "arguments":
        # Values in between take the most, and not the arguments.
        what = f"to fit on {fit.device}"
        if not fit.device:
            what = f"to take at most {bytes_text(fit.capacity or 0)} of each device"
        head = f"Expected {fact.name} {what}; {needed} on each device:"
        return [f"{head} {needed_by_kind(fact.large)}", *largest_values(fact.large)]
    if fit.device:
        what = f"to fit on {fit.device}; {needed} on each device. {fit}"
        instead = "take a larger target"
    else:
        limit = bytes_text(fit.capacity or 0)
        what = f"to take at most {limit} of each device's memory, and {needed}"
        what += f"{fit.uncounted}."
        instead = "raise the limit"
    lines = [f"Expected {fact.name} {what}"]
    rows = sorted(fact.arrays, key=lambda row: -row.held)[:SHOWN]
    if rows:
        sizes = joined(f"{row.name} {bytes_text(row.held)}" for row in rows)
        lines.append(f"The largest arrays: {sizes}.")
    return [*lines, f"Split the largest arrays over more axes, or {instead}."]


def _not_split(fact: Broken) -> list[str]:
    lacking = sum(row.bytes for row in fact.arrays)
    # Layers whose arrays are alike are one line, and have the same size.
    folds = fold(
        fact.arrays, lambda row: row.name, lambda row: (row.bytes, why_not_split(row))
    )
    folds.sort(key=lambda one: -len(one.items) * one.items[0].bytes)
    lines = []
    for one in folds[:SHOWN]:
        first = one.items[0]
        size = bytes_text(first.bytes)
        lines.append(f"  {one.count}{one.name} ({size}): {why_not_split(first)}")
    return [
        f"Expected {_percent(fact.share)} of the bytes of {fact.name} to be split, and"
        f" {_percent(1 - lacking / fact.total)} are: {bytes_text(lacking)} of"
        f" {bytes_text(fact.total)} are not, in {plural(len(fact.arrays), 'array')}.",
        *lines,
        *_more(len(folds), "array"),
        "Give each of them an axis by a rule or a spec, or lower the share.",
    ]


def why_not_split(array: HeldArray) -> str:
    """Why an array is not split."""
    row = array.request
    if row is None:
        return f"its spec is {array.spec}."
    if row.problem:
        return str(row.problem)
    if row.spec is None:
        return "nothing says how it is split."
    if pattern := _pattern(row):
        return f"{pattern} gives it {row.spec}."
    if row.spec.axes and not row.spec_wins:
        return f"its spec is {row.spec}, over axes of size 1."
    reasons: list[str] = []
    if row.resolution is not None and not row.spec_wins:
        for decision in row.resolution.decisions:
            if decision.logical is not None:
                reasons.append(row.resolution.explain_dimension(decision.dimension))
    return " ".join(reasons) or f"its spec is {row.spec}."


def _percent(share: float) -> str:
    """Rounded down to a tenth, so that what is too little never reads as enough."""
    return f"{math.floor(share * 1000 + 1e-9) / 10:g} %"


def _differs(fact: Broken) -> list[str]:
    lines = [f"  {line}" for line in str(fact.differences).splitlines()]
    return [
        f"{fact.name} is no longer as locked in {fact.lock}:",
        *lines,
        "If this is as it should be, write the lock again: pytest --shardviz-update,"
        " python -m shardviz check ... --update, or sv.lock(program).write(path).",
    ]


def _nothing(fact: Broken) -> list[str]:
    return [f"There is nothing to check or lock of {fact.name}. {fact.error}"]


_LINES = {
    "collectives": _collectives,
    "too much": _collectives,
    "too large": _too_large,
    "not split": _not_split,
    "differs": _differs,
    "nothing": _nothing,
}
SENTENCES = {Broken: broken}
