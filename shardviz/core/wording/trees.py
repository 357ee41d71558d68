"""What the audit of a model found: sizes, problems, the optimizer's arrays."""

from __future__ import annotations

from collections.abc import Iterable

from shardviz.core.format import (
    Fold,
    by_count,
    bytes_text,
    clause,
    first_lines,
    fold,
    joined,
    plural,
    shown,
)
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.rules.requests import Request
from shardviz.core.layout.rules.rule_uses import no_pattern
from shardviz.core.layout.rules.rules import PathRules
from shardviz.core.layout.trees.audit import Audit
from shardviz.core.layout.trees.differences import Difference
from shardviz.core.layout.trees.group_bytes import GroupBytes
from shardviz.core.wording.fit import fit, uncounted
from shardviz.core.wording.rule_uses import rule_uses

SHOWN = 5
# What was lost comes first; what costs nothing last.
_RANK = ("lost", "unknown", "otherwise", "dtype")


def summary(audit: Audit) -> str:
    """How many arrays take how much of each device."""
    trouble = clause(", {:,} unknown", len(audit.unknown))
    if audit.problems:
        trouble += f", {plural(len(audit.problems), 'problem')}"
    arrays = plural(len(audit.rows), "array")
    size = bytes_text(audit.bytes_per_device)
    on = f"{_axes(audit.mesh)}, {_lines(audit)}"
    return f"{arrays} on {on}: {size} on each device{trouble}"


def explain(audit: Audit) -> str:
    """All findings, one paragraph each."""
    fits = ""
    if audit.capacity is not None:
        fits = fit(audit.fit)
    parts = [
        _sizes(audit),
        fits,
        *_unknown(audit),
        _problems(audit),
        _unmatched(audit),
        _optimizer(audit),
        _groups(audit),
        _replicated(audit),
        rule_uses(audit.rule_uses),
    ]
    return "\n".join(part for part in parts if part)


def fold_bytes(one: Fold[Request]) -> str:
    """What alike arrays take on each device: `32 × 2 MiB`."""
    return f"{one.count}{bytes_text(one.items[0].bytes_per_device or 0)}"


def group(fact: GroupBytes) -> str:
    """What a group of arrays takes, in one line."""
    # Not a whole number where the arrays of a group are split differently.
    copies = "1 copy"
    if fact.copies != 1:
        copies = f"{fact.copies:,.3g} copies"
    parts = [f"{plural(fact.arrays, 'array')} of {bytes_text(fact.bytes)} in all"]
    if fact.uncounted:
        parts.append(f"{fact.uncounted:,} of them not counted")
    parts.append(copies)
    if fact.waste:
        parts.append(f"{bytes_text(fact.waste)} of it by replication")
    return f"{fact.name} {bytes_text(fact.bytes_per_device)} ({', '.join(parts)})"


def difference(fact: Difference) -> str:
    """How an array of the optimizer is held otherwise than its parameter.

    >>> from shardviz.core.layout.trees.differences import Held
    >>> held = Held((8,), "float32", None), Held((8,), "bfloat16", None)
    >>> print(difference(Difference("mu/w", "params/w", "mu", "dtype", *held, 2048)))
    mu of 'params/w' is float32 while the parameter is bfloat16: +2 KiB per device
    """
    whose = shown(fact.partner, 120)
    return f"{fact.role} of {whose} {_how(fact)}{_cost(fact.bytes_per_device)}"


def difference_lines(differences: Iterable[Difference]) -> list[str]:
    """One line for what differs alike in all layers: what was lost comes first."""
    alike: dict[tuple[str, str, str], list[Difference]] = {}
    for one in differences:
        alike.setdefault((one.kind, one.role, _how(one)), []).append(one)
    lines = []
    for (kind, role, how), members in alike.items():
        cost = sum(one.bytes_per_device for one in members)
        line = difference(members[0])
        if len(members) > 1:
            partners = fold(members, lambda one: one.partner)
            names = joined([one.name for one in partners], limit=SHOWN)
            count = plural(len(members), "parameter")
            line = f"{role} of {count} ({names}) {how}{_cost(cost)}"
        lines.append((_RANK.index(kind), -cost, line))
    return [line for _, _, line in sorted(lines)]


def _how(fact: Difference) -> str:
    """What differs, to be said after the name of the array."""
    mine, theirs = fact.held, fact.parameter
    there = f"while the parameter is split {theirs.spec}"
    if fact.kind == "unknown":
        return f"is split in a way that nothing says, {there}"
    if fact.kind == "dtype":
        return f"is {mine.dtype} while the parameter is {theirs.dtype}"
    how = f"is split {mine.spec}"
    if mine.replicated:
        how = "is replicated"
    if fact.kind == "otherwise":
        return f"{how} {there}: every step moves one of them"
    if mine.shape != theirs.shape:
        how = f"has shape {list(mine.shape)} beside {list(theirs.shape)} and {how}"
    return f"{how} {there}"


def _cost(size: int) -> str:
    if not size:
        return ""
    if size < 0:
        return f": −{bytes_text(-size)} per device"
    return f": +{bytes_text(size)} per device"


def _sizes(audit: Audit) -> str:
    devices = plural(audit.mesh.size, "device")
    head = (
        f"{plural(len(audit.rows), 'array')} of {bytes_text(audit.bytes)} on"
        f" {_axes(audit.mesh)} ({devices}) by {_lines(audit)}, read as"
        f" {audit.dialect.value}: {bytes_text(audit.bytes_per_device)} on each device"
        f"{uncounted(audit.uncounted)}."
    )
    if audit.off_device:
        kinds = dict.fromkeys(str(r.array.memory_kind) for r in audit.off_device)
        size = sum(row.bytes_per_device or 0 for row in audit.off_device)
        head += (
            f" Beside that, {bytes_text(size)} for each device are in"
            f" other memory ({joined(kinds)})."
        )
    largest = []
    for one in audit.largest_folds:
        # Only what the sum above counts.
        if one.items[0].array.memory_kind is None:
            largest.append(f"{one.name} {fold_bytes(one)}")
    if len(audit.rows) > 1 and largest:
        head += f" Largest there: {joined(largest[:SHOWN])}."
    return head


def _unknown(audit: Audit) -> list[str]:
    """The arrays that the rules say nothing of, or not all."""
    lines = []
    if audit.unknown:
        count, size = plural(len(audit.unknown), "array"), _size(audit.unknown)
        be, them = _verb(audit.unknown), by_count(len(audit.unknown), "it", "them")
        lines.append(
            f"How {count} {be} split is unknown ({_paths(audit.unknown)}; {size} in all), and"
            f" no bytes are counted for {them}. Give a sharding, names beside the arrays, or"
            " names= to sv.audit."
        )
    if audit.off_mesh:
        ids: set[int] = set()
        for row in audit.off_mesh:
            assert row.layout is not None
            ids.update(row.layout.device_ids.tolist())
        devices = by_count(len(ids), "device", "devices")
        where = f"{devices} {joined(map(str, sorted(ids)), limit=SHOWN)}"
        names = _few(
            f"{row.array.name} ({bytes_text(row.bytes_per_device or 0)})"
            for row in audit.off_mesh
        )
        count = plural(len(audit.off_mesh), "live array")
        be = _verb(audit.off_mesh)
        lines.append(f"{count} {be} on {where} and not split over the mesh: {names}.")
    if audit.elsewhere:
        count, be = plural(len(audit.elsewhere), "array"), _verb(audit.elsewhere)
        names = _few(audit.elsewhere)
        lines.append(
            f"{count} of another mesh {be} read here by the names of the axes: {names}."
        )
    return lines


def _problems(audit: Audit) -> str:
    if not audit.problems:
        return ""
    # Arrays of one shape fail for one reason, which is said once.
    alike: dict[str, list[str]] = {}
    for name, why in audit.problems.items():
        alike.setdefault(str(why), []).append(name)
    lines = [f"  {_few(names)}: {why}" for why, names in alike.items()]
    count = plural(len(audit.problems), "array")
    return first_lines(f"{count} cannot be laid out:", lines)


def _unmatched(audit: Audit) -> str:
    if isinstance(audit.rules, PathRules):
        paths = no_pattern(audit.rows)
        few = f"{plural(len(paths), 'array')}, {joined(paths, limit=SHOWN)}"
        return clause("Keras replicates what no pattern matches: {}.", paths and few)
    lines = []
    for name, near, arrays in audit.unmatched:
        line = f"No rule knows {shown(name)} (in {_few(arrays)})."
        if near:
            line += f" Did you mean {shown(near)}?"
        lines.append(line)
    return first_lines("", lines)


def _optimizer(audit: Audit) -> str:
    lines = [f"  {line}." for line in difference_lines(audit.differences)]
    if audit.unpaired:
        count, size = plural(len(audit.unpaired), "array"), _size(audit.unpaired)
        belong = by_count(len(audit.unpaired), "belongs", "belong")
        names = _paths(audit.unpaired)
        lines.append(
            f"  {count} of the optimizer ({size}) {belong} to no parameter: {names}."
        )
    if not lines:
        return ""
    return first_lines("The optimizer beside its parameters:", lines)


def _groups(audit: Audit) -> str:
    # One group is the total, which the first line says.
    if len(audit.groups) < 2:
        return ""
    lines = [f"  {group(one)}" for one in (*audit.groups, audit.total)]
    return "\n".join(["On each device:", *lines])


def _replicated(audit: Audit) -> str:
    if not audit.replicated:
        return ""
    names = []
    for one in fold(audit.replicated, lambda r: r.path, lambda r: r.array.bytes):
        size = bytes_text(one.items[0].array.bytes)
        names.append(f"{one.name} ({one.count}{size})")
    count = plural(len(audit.replicated), "large array")
    be = _verb(audit.replicated)
    return f"{count} {be} replicated: {joined(names, limit=SHOWN)}."


def _axes(mesh: MeshSpec) -> str:
    """The mesh; axes of size 1, which large models have by the dozen, are only counted."""
    split = [f"{name}={size}" for name, size in mesh.shape.items() if size > 1]
    ones = len(mesh.shape) - len(split)
    if ones < 3:
        return str(mesh)
    return ", ".join([*split, f"{plural(ones, 'axis', 'axes')} of size 1"])


def _lines(audit: Audit) -> str:
    if isinstance(audit.rules, PathRules):
        return plural(len(audit.rules), "pattern")
    return plural(len(audit.rules), "rule")


def _verb(arrays: tuple[object, ...]) -> str:
    return by_count(len(arrays), "is", "are")


def _size(rows: Iterable[Request]) -> str:
    return bytes_text(sum(row.array.bytes for row in rows))


def _paths(rows: Iterable[Request]) -> str:
    return _few(row.path for row in rows)


def _few(names: Iterable[str]) -> str:
    """Some names, those of all layers as one; the others are counted."""
    folds = fold(names, str)
    parts = [one.name for one in folds[:SHOWN]]
    # Counted by name: a reader does not know of the folds.
    hidden = sum(len(one.items) for one in folds[SHOWN:])
    if hidden:
        parts.append(f"{hidden:,} more")
    return joined(parts)


SENTENCES = {Audit: summary, GroupBytes: group, Difference: difference}
EXPLANATIONS = {Audit: explain}
