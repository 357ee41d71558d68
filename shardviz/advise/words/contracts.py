"""Sentences about violated expectations, with the program's state and what to do."""

from __future__ import annotations

import math

from shardviz.advise.violations import (
    CollectiveViolation,
    DiffersFromLock,
    HeldArray,
    NotEnoughMemory,
    NothingToCheck,
    NotSplit,
    TooManyBytes,
    UnexpectedCollectives,
    UnknownBytes,
)
from shardviz.axis_rules.requests import Request
from shardviz.base.axis_parts import parent_axis
from shardviz.base.collective import sent_in_all_text, trips_text
from shardviz.base.format import (
    bytes_text,
    clause,
    fold,
    joined,
    plural,
    told_apart,
)
from shardviz.compiled.comparison import total_bytes
from shardviz.compiled.words.too_large import largest_values, needed_by_kind
from shardviz.plans.plan_folds import fold_collectives, fold_line

# The most collectives, arrays or axes to list.
SHOWN = 5
_BYTES_OF = {
    "arrays": "its arrays alone take",
    "arguments": "its arguments alone take",
    "ends": "its arguments and results alone, as planned, take",
}


def unexpected_collectives(fact: UnexpectedCollectives) -> str:
    """Lists unexpected collectives."""
    count = len(fact.collectives)
    there = (
        f"found {count:,}, with {sent_in_all_text(fact.collectives)} sent per device"
    )
    return _collectives(fact, f"no {fact.kind or 'collective'}", there)


def too_many_bytes(fact: TooManyBytes) -> str:
    """Lists collectives with more bytes than a limit."""
    # A limit counts the bytes of results; see `Expectation.at_most`.
    if fact.per == "collective":
        largest = max(collective.bytes_per_device for collective in fact.collectives)
        limit, size = told_apart([fact.limit, largest])
        count = plural(len(fact.collectives), "larger result")
        expected = f"results of at most {limit} for each collective"
        there = f"found {count}, of up to {size} per device"
        return _collectives(fact, expected, there)
    # The limit is for all collectives of a step, or for those of one kind.
    kind = fact.per if fact.per != "step" else "collective"
    limit, size = told_apart([fact.limit, total_bytes(fact.collectives)])
    expected = f"results of at most {limit} in total for the {kind}s"
    if isinstance(fact, UnknownBytes):
        there = (
            "their total is unknown, because loops run these an unknown number of times"
        )
        advice = 'Use per="collective" to limit each collective instead of the total.'
        return f"{_collectives(fact, expected, there)}\n{advice}"
    return _collectives(fact, expected, f"found results of {size} per device")


def _collectives(fact: CollectiveViolation, expected: str, there: str) -> str:
    compiled = f"in the program compiled for {fact.target}"
    if fact.stage == "propagated":
        compiled = "in Shardy's estimate"
    elif fact.stage == "partitioned":
        compiled = f"in the program that XLA's partitioner made for {fact.target}"
    over = clause(" over {}", joined(fact.over, "or"))
    head = f"Expected {expected}{over} in {fact.name}, but {there},"
    largest = _largest_collectives(fact)
    return "\n".join([f"{head} {compiled}:", *largest, *_advice(fact)])


def _largest_collectives(fact: CollectiveViolation) -> list[str]:
    """Lists the largest collectives, folded by layer, each with its cause."""
    folds = fold_collectives(fact.collectives)
    lines = []
    for row in folds[:SHOWN]:
        first = row.items[0]
        line = f"  {fold_line(row)}"
        if isinstance(fact, TooManyBytes):
            size = bytes_text(first.bytes_per_device)
            line += f", result {row.count}{size}{trips_text(first.trips)}"
        if not first.mesh_axes:
            line += " (its groups of devices follow no mesh axes)"
        lines.append(line + clause(". {}", first.cause))
    return [*lines, *_more(len(folds), "kind")]


def _more(count: int, noun: str) -> list[str]:
    if count <= SHOWN:
        return []
    return [f"  … and {plural(count - SHOWN, f'more {noun}')}"]


def _advice(fact: CollectiveViolation) -> list[str]:
    """Lists the rules and specs that introduce the axes, and what to do."""
    axes = list(fact.over)
    # If the expectation names no axis, list the axes that the collectives run over.
    if not axes:
        for collective in fact.collectives:
            # XLA may split an axis into sub-axes; rules and specs name the full axis.
            axes += map(parent_axis, collective.mesh_axes)
    lines = []
    for axis in list(dict.fromkeys(axes))[:SHOWN]:
        split = [_split_by(row, axis) for row in fact.requests]
        arrays = list(filter(None, split))
        if arrays:
            lines.append(f"{axis} splits {joined(arrays, limit=SHOWN)}.")
    # An estimate may be wrong, so it is no reason to change a program.
    if fact.stage == "propagated":
        lines.append(
            "This is an estimate, and XLA's partitioner may choose other collectives. Give"
            " sv.expect the program instead of its plan to check the compiled ones."
        )
    lines.append(
        "sv.plan(program).why(value) shows where the axes of a value come from. Change"
        " the rule or spec they come from, or constrain the value. If the collective should be there,"
        " change the expectation."
    )
    return lines


def _split_by(row: Request, axis: str) -> str:
    """Formats how an axis splits an array: `w (dimension 0: rule 2, embed → data)`.

    `""` if the axis does not split the array.
    """
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
    """Names the path pattern that decides the spec; `""` if there is none."""
    matched = row.by_path
    if matched is None or row.spec_wins:
        return ""
    if matched.winner is None:
        return "no pattern"
    return f"pattern {matched.winner + 1}"


def not_enough_memory(fact: NotEnoughMemory) -> str:
    """Describes the memory needed and available, and the largest arrays."""
    fit = fact.fit
    takes = _BYTES_OF.get(
        fact.counted, f"as compiled{clause(' for {}', fact.target)} it takes"
    )
    size, limit = told_apart([fit.needed, fit.capacity or 0])
    needed = f"{takes} {size}"
    if fact.large is not None and fact.large.code != "arguments":
        # Most of the memory is for intermediate values, not for arguments.
        expected = f"to fit on {fit.device}"
        if not fit.device:
            expected = f"to take at most {limit} of each device"
        head = f"Expected {fact.name} {expected}, but {needed} on each device:"
        kinds = needed_by_kind(fact.large)
        return "\n".join([f"{head} {kinds}", *largest_values(fact.large)])
    if fit.device:
        expected = f"to fit on {fit.device}, but {needed} on each device. {fit}"
        instead = "choose a larger target"
    else:
        expected = f"to take at most {limit} of each device's memory, but {needed}"
        expected += f"{fit.uncounted}."
        instead = "raise the limit"
    lines = [f"Expected {fact.name} {expected}"]
    if fit.uncounted and fit.needed <= (fit.capacity or 0):
        lines.append(
            "So whether it has enough memory is unknown. Give the other arrays shardings"
            " or names."
        )
        return "\n".join(lines)
    counted = [array for array in fact.arrays if array.held]
    arrays = sorted(counted, key=lambda array: -array.held)[:SHOWN]
    if arrays:
        sizes = joined(f"{array.name} {bytes_text(array.held)}" for array in arrays)
        lines.append(f"The largest arrays: {sizes}.")
    lines.append(f"Split the largest arrays over more axes, or {instead}.")
    return "\n".join(lines)


def not_split(fact: NotSplit) -> str:
    """Lists the largest arrays that are not split, each with the reason."""
    lacking = sum(array.bytes for array in fact.arrays)
    unsplit, total = told_apart([lacking, fact.total])
    # Arrays of equal size and reason in several layers share a line.
    folds = fold(
        fact.arrays,
        lambda array: array.name,
        lambda array: (array.bytes, why_not_split(array)),
    )
    folds.sort(key=lambda row: -len(row.items) * row.items[0].bytes)
    lines = []
    for row in folds[:SHOWN]:
        first = row.items[0]
        size = bytes_text(first.bytes)
        lines.append(f"  {row.count}{row.name} ({size}): {why_not_split(first)}")
    return "\n".join(
        [
            f"Expected {_percent(fact.share)} of the bytes of {fact.name} to be split, but"
            f" only {_percent(1 - lacking / fact.total)} are: {unsplit} of"
            f" {total}, in {plural(len(fact.arrays), 'array')}, are not split.",
            *lines,
            *_more(len(folds), "array"),
            "Split each of these arrays with a rule or a spec, or lower the share.",
        ]
    )


def why_not_split(array: HeldArray) -> str:
    """Explains why an array is not split."""
    row = array.request
    if row is None:
        return f"its spec is {array.spec}."
    if row.problem:
        return str(row.problem)
    if row.spec is None:
        return "its sharding is unknown."
    if pattern := _pattern(row):
        return f"{pattern} gives it {row.spec}."
    if row.spec.axes and not row.spec_wins:
        return f"its spec is {row.spec}, but all its axes have size 1."
    reasons: list[str] = []
    if row.resolution is not None and not row.spec_wins:
        for decision in row.resolution.decisions:
            if decision.logical is not None:
                reasons.append(row.resolution.explain_dimension(decision.dimension))
    return " ".join(reasons) or f"its spec is {row.spec}."


def _percent(share: float) -> str:
    """Formats a share, rounded down so that it never looks larger than it is."""
    return f"{math.floor(share * 1000 + 1e-9) / 10:g} %"


def differs_from_lock(fact: DiffersFromLock) -> str:
    """Lists the differences from a lock, and how to update the lock."""
    lines = [f"  {line}" for line in str(fact.differences).splitlines()]
    return "\n".join(
        [
            f"{fact.name} differs from its lock {fact.lock}:",
            *lines,
            "If these changes are intended, write the lock again: pytest --shardviz-update,"
            " python -m shardviz check ... --update, or sv.lock(program).write(path).",
        ]
    )


def nothing_to_check(fact: NothingToCheck) -> str:
    """Describes the error that prevents the check."""
    return f"{fact.name} cannot be checked or locked. {fact.error}"


SENTENCES = {
    UnexpectedCollectives: unexpected_collectives,
    TooManyBytes: too_many_bytes,
    UnknownBytes: too_many_bytes,
    NotEnoughMemory: not_enough_memory,
    NotSplit: not_split,
    DiffersFromLock: differs_from_lock,
    NothingToCheck: nothing_to_check,
}
