"""Sentences on a model's audit: sizes, problems, and optimizer arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.dialects import PathDialect
from shardviz.axis_rules.group_bytes import (
    AxisCopies,
    GroupBytes,
    copy_cost,
    off_mesh_bytes,
)
from shardviz.axis_rules.optimizer_differences import Difference
from shardviz.axis_rules.requests import Request, kinds_of
from shardviz.axis_rules.rule_uses import no_pattern
from shardviz.axis_rules.rules import PathRules, Rules
from shardviz.axis_rules.words.fit import fit, uncounted
from shardviz.axis_rules.words.remedies import remedy
from shardviz.axis_rules.words.rule_uses import beside_table, few, rule_uses
from shardviz.axis_rules.words.rules import path_resolution, resolution_findings
from shardviz.base.format import (
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
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec

SHOWN = 5
# Copies along an axis are listed if they cost this share of the bytes per device.
LEAST_SHARE = 0.01
GIVE = "Give the arrays shardings or names, or pass names= to sv.audit."
ADD_NAMES = (
    "Name the dimensions where the array is created: in flax with"
    " nn.with_logical_partitioning(init, names), or with nnx's out_sharding=names."
)
# The order in which kinds of differences are listed.
_RANK = ("lost", "unknown", "otherwise", "few names", "dtype")


def summary(audit: Audit) -> str:
    """Summarises an audit: number of arrays, mesh, table, bytes per device."""
    trouble = clause(", {:,} unknown", len(audit.unknown))
    if audit.problems:
        trouble += f", {plural(len(audit.problems), 'problem')}"
    arrays = plural(len(audit.rows), "array")
    on = f"{_axes(audit.mesh)}, {_lines(audit)}"
    return f"{arrays} on {on}: {bytes_on_device(audit)}{trouble}"


def bytes_on_device(audit: Audit, each: str = "on each device") -> str:
    """Formats the bytes of all arrays on a device: `2 MiB on each device`.

    If other devices hold less, names the devices that hold the most instead.
    """
    size, ids = bytes_text(audit.bytes_per_device), _fullest(audit)
    return f"up to {size} on a device ({_devices(ids)})" if ids else f"{size} {each}"


def _fullest(audit: Audit) -> list[int]:
    """Returns the devices that hold the most; empty if all devices hold as much."""
    sizes = off_mesh_bytes(kinds_of(audit.rows))
    most = max(sizes.values(), default=0)
    ids = [number for number, size in sizes.items() if size == most]
    # A difference of a few bytes, such as that of a step counter, isn't visible.
    without = bytes_text(audit.bytes_per_device - most)
    if len(ids) >= audit.mesh.size or without == bytes_text(audit.bytes_per_device):
        return []
    return ids


def _devices(ids: Iterable[int]) -> str:
    """Formats device ids: `device 0`, `devices 0 and 1`."""
    numbers = sorted(ids)
    devices = by_count(len(numbers), "device", "devices")
    return f"{devices} {joined(map(str, numbers), limit=SHOWN)}"


def explain(audit: Audit) -> str:
    """Explains all findings, one paragraph each."""
    fits = ""
    if audit.capacity is not None:
        fits = fit(audit.fit)
    parts = [
        _sizes(audit),
        fits,
        *_unknown(audit),
        _problems(audit),
        _unmatched(audit),
        beside_table(audit.beside_table),
        _optimizer(audit),
        _few_names(audit),
        _groups(audit),
        _copies(audit),
        _unnamed(audit),
        _replicated(audit),
        rule_uses(audit.rule_uses),
    ]
    return "\n".join(part for part in parts if part)


def fold_bytes(layers: Fold[Request]) -> str:
    """Formats the bytes per device of folded arrays: `32 × 2 MiB`."""
    return f"{layers.count}{bytes_text(layers.items[0].bytes_per_device or 0)}"


def group(fact: GroupBytes) -> str:
    """Formats the bytes of a group of arrays in one line."""
    # The average number of copies can be a fraction.
    copies = f"{fact.copies:,.3g} copies"
    if copies == "1 copies":
        copies = "1 copy"
    parts = [f"{plural(fact.arrays, 'array')} of {bytes_text(fact.bytes)} in total"]
    if fact.uncounted:
        parts.append(f"{fact.uncounted:,} of them not counted")
    parts.append(copies)
    if fact.waste:
        parts.append(f"{bytes_text(fact.waste)} due to replication")
    return f"{fact.name} {bytes_text(fact.bytes_per_device)} ({', '.join(parts)})"


def difference(fact: Difference) -> str:
    """Explains how an optimizer array is stored differently from its parameter.

    >>> from shardviz.axis_rules.audit import audit
    >>> tree = {"params": {"w": ((8,), "x", "bfloat16")}, "opt": {"mu": {"w": ((8,), "x")}}}
    >>> print(audit(tree, [("x", "d")], "d=2").differences[0])
    mu of 'params/w' is float32 while the parameter is bfloat16: +8 B per device
    """
    parameter = shown(fact.parameter.path, 120)
    return (
        f"{fact.role} of {parameter} {_how(fact)}{_cost(fact, fact.bytes_per_device)}"
    )


def difference_lines(differences: Iterable[Difference]) -> list[str]:
    """Returns a line per difference, with layers folded, in the order of `_RANK`."""
    alike: dict[tuple[str, str, str], list[Difference]] = {}
    for fact in differences:
        alike.setdefault((fact.kind, fact.role, _how(fact)), []).append(fact)
    lines = []
    for (kind, role, how), members in alike.items():
        cost = sum(fact.bytes_per_device for fact in members)
        line = difference(members[0])
        if len(members) > 1:
            partners = fold(members, lambda fact: fact.parameter.path)
            names = joined([fact.name for fact in partners], limit=SHOWN)
            count = plural(len(members), "parameter")
            line = f"{role} of {count} ({names}) {how}{_cost(members[0], cost)}"
        lines.append((_RANK.index(kind), -cost, line))
    return [line for _, _, line in sorted(lines)]


def _how(fact: Difference) -> str:
    """Formats the difference as text that follows the array's name."""
    row, parameter = fact.row, fact.parameter
    comparison = f"while the parameter is split as {parameter.spec}"
    if fact.kind == "unknown":
        return f"has an unknown sharding, {comparison}"
    if fact.kind == "dtype":
        return f"is {row.dtype} while the parameter is {parameter.dtype}"
    how = f"is split as {row.spec}"
    if off_mesh := _off_mesh(row):
        how = f"is on {off_mesh}"
    elif row.layout is not None and row.layout.num_blocks == 1:
        how = "is replicated"
    if fact.kind == "few names":
        return (
            f"is split as {row.spec} like the parameter, unless the array stacks layers"
        )
    if fact.kind == "otherwise":
        how = f"{how} {comparison}: every step must move one of the two"
        return f"{how}. {few_names(row)}" if row.few_names else how
    if row.shape != parameter.shape:
        how = (
            f"has shape {list(row.shape)} instead of {list(parameter.shape)}, and {how}"
        )
    return f"{how} {comparison}"


def _cost(fact: Difference, size: int) -> str:
    if not size:
        return ""
    where = _off_mesh(fact.row)
    where = f"on {where}" if where else "per device"
    if size < 0:
        return f": −{bytes_text(-size)} {where}"
    return f": +{bytes_text(size)} {where}"


def _off_mesh(row: Request) -> str:
    """Formats the devices of a live array that has no spec for the mesh, else `""`."""
    if row.spec is not None or row.layout is None:
        return ""
    return _devices(row.layout.device_ids.tolist())


def _sizes(audit: Audit) -> str:
    devices = plural(audit.mesh.size, "device")
    by = ""
    if len(audit.rules):
        by = f", split by {_lines(audit)} ({audit.dialect.name})"
    head = (
        f"{plural(len(audit.rows), 'array')}, {bytes_text(audit.bytes)} in total, on"
        f" {_axes(audit.mesh)} ({devices}){by}:"
        f" {bytes_on_device(audit)}"
        f"{uncounted(audit.uncounted)}."
    )
    largest, beside = [], {}
    for layers in audit.largest_folds:
        kind = layers.items[0].array.memory_kind
        if kind is None:
            largest.append(f"{layers.name} {fold_bytes(layers)}")
            continue
        size = sum(row.bytes_per_device or 0 for row in layers.items)
        beside[kind] = beside.get(kind, 0) + size
    for kind, size in beside.items():
        head += f" In addition, each device has {bytes_text(size)} in {kind}."
    if len(audit.rows) > 1 and largest:
        head += f" The largest arrays: {joined(largest[:SHOWN])}."
    return head


def _unknown(audit: Audit) -> list[str]:
    """Lists arrays whose split is unknown, and arrays that are not on this mesh."""
    lines = []
    if audit.unknown:
        no_rule = ""
        if isinstance(audit.rules, Rules) and len(audit.rules):
            no_rule = "Rules do not apply without logical names. "
        count, size = plural(len(audit.unknown), "array"), _size(audit.unknown)
        names = few(row.path for row in audit.unknown)
        lines.append(
            f"The sharding of {count} is unknown ({names}; {size} in total), so the bytes"
            f" above leave {by_count(len(audit.unknown), 'it', 'them')} out. {no_rule}{GIVE}"
        )
    off_mesh, ids = [], set()
    for row in audit.largest:
        if row.spec is None and row.layout is not None:
            off_mesh.append(row)
            ids.update(row.layout.device_ids.tolist())
    if off_mesh:
        names = few(
            f"{row.array.name} ({bytes_text(row.bytes_per_device or 0)})"
            for row in off_mesh
        )
        count = _count(off_mesh, "live array")
        lines.append(
            f"{count} on {_devices(ids)} and not split over the mesh: {names}."
        )
    if audit.unplaced and audit.mesh.size > 1:
        count = _count(audit.unplaced, "live array")
        names = few(audit.unplaced)
        assumed = "that they are on all of them"
        if len(audit.rules):
            assumed = "the split that the table gives"
        lines.append(
            f"{count} not on all devices of the mesh now: {names}. The bytes above assume"
            f" {assumed}."
        )
    if audit.elsewhere:
        count = _count(audit.elsewhere, "array")
        names = few(audit.elsewhere)
        lines.append(
            f"{count} on another mesh, whose axes are matched here by name: {names}."
        )
    return lines


def _problems(audit: Audit) -> str:
    if not audit.problems:
        return ""
    # Arrays with the same problem share a line.
    alike: dict[str, list[str]] = {}
    for name, why in audit.problems.items():
        alike.setdefault(str(why), []).append(name)
    lines = [f"  {few(names)}: {why}" for why, names in alike.items()]
    count = plural(len(audit.problems), "array")
    return first_lines(f"{count} cannot be laid out:", lines)


def _unmatched(audit: Audit) -> str:
    if isinstance(audit.rules, PathRules):
        paths = no_pattern(audit.rows)
        if not paths:
            return ""
        listing = f"{plural(len(paths), 'array')} ({few(paths)})"
        dialect = audit.dialect
        if isinstance(dialect, PathDialect) and dialect.replicates_unmatched:
            return f"{dialect.library} replicates arrays that no pattern matches: {listing}."
        return f"No pattern matches {listing}; only their own shardings apply."
    lines = []
    if audit.unmatched and not len(audit.rules):
        names = joined([shown(fact.name) for fact in audit.unmatched], limit=SHOWN)
        arrays = dict.fromkeys(n for fact in audit.unmatched for n in fact.arrays)
        count = by_count(len(audit.unmatched), "name", "names")
        return (
            f"No rules were given, so the logical {count} {names} (in {few(arrays)})"
            f" {by_count(len(audit.unmatched), 'splits', 'split')} no array."
        )
    for name, near, arrays in audit.unmatched:
        line = f"No rule names {shown(name)} (in {few(arrays)})."
        if near and any(near in (row.names or ()) for row in audit.rows):
            line += f" Did you mean {shown(near)}?"
        elif near:
            line += (
                f" A rule names {shown(near)}, which no array has: one of the two names is"
                " probably misspelt."
            )
        lines.append(line)
    return first_lines("", lines)


def _optimizer(audit: Audit) -> str:
    lines = [f"  {line}." for line in difference_lines(audit.differences)]
    if not lines:
        return ""
    return first_lines("Optimizer arrays that differ from their parameters:", lines)


def few_names(row: Request) -> str:
    """Explains the effect of fewer names than dimensions, and what to do."""
    names = [name for name in row.names or () if name is not None]
    count, rank = plural(len(names), "name"), row.array.rank
    return (
        f"The array has {count} for {rank} dimensions, and flax assigns names from the first"
        " dimension on. If nnx.vmap or nnx.scan stacks layers, pass"
        " transform_metadata={nnx.PARTITION_NAME: None} to name the new dimension"
    )


def _few_names(audit: Audit) -> str:
    lines = {}
    for row in audit.few_names:
        sentence = (
            f"If the live array is a stack of layers, {row.spec} is wrong: its last dimensions"
            " are split instead."
        )
        lines.setdefault(f"{few_names(row)}. {sentence}", []).append(row.path)
    return "\n".join(f"{few(paths)}: {words}" for words, paths in lines.items())


def _groups(audit: Audit) -> str:
    # With a single group, its bytes are already in the first line.
    if len(audit.groups) < 2:
        return ""
    lines = [f"  {group(one)}" for one in (*audit.groups, audit.total)]
    device = "the device that holds the most" if _fullest(audit) else "each device"
    return "\n".join([f"On {device}:", *lines])


def axis_copies(fact: AxisCopies) -> str:
    """Lists the arrays that a mesh axis does not split, and what splitting saves."""

    def saved(row: Request) -> int:
        return copy_cost(row, fact.copies)

    arrays, pronoun, parts = plural(len(fact.rows), "array"), "them", ""
    if len(fact.rows) == 1:
        arrays, pronoun = fact.rows[0].path, "it"
    else:
        costs = []
        for layers in fold(fact.rows, lambda row: row.path, saved):
            size = bytes_text(saved(layers.items[0]))
            costs.append(f"{layers.count}{size} for {layers.name}")
        parts = f": {joined(costs, limit=SHOWN)}"
    return (
        f"{fact.axis} does not split {arrays}, so there are {fact.copies} copies;"
        f" splitting {pronoun} would save {bytes_text(fact.bytes_per_device)} per device"
        f"{parts}"
    )


def _with_sizes(
    rows: Iterable[Request], size_of: Callable[[Request], int]
) -> list[str]:
    """Returns array names, each with a size; layers are folded."""
    names = []
    for layers in fold(rows, lambda row: row.path, size_of):
        size = bytes_text(size_of(layers.items[0]))
        names.append(f"{layers.name} ({layers.count}{size})")
    return names


def _copies(audit: Audit) -> str:
    least = LEAST_SHARE * audit.bytes_per_device
    lines = []
    for fact in audit.copies_by_axis:
        if fact.bytes_per_device >= least:
            lines.append(f"  {axis_copies(fact)}.")
    return first_lines("Copies, by axis:", lines) if lines else ""


def _unnamed(audit: Audit) -> str:
    if not audit.unnamed:
        return ""
    paths = {row.path for row in audit.unnamed}
    # Moments without names are listed with their parameters.
    rows = [row for row in audit.unnamed if row.partner not in paths]
    names = _with_sizes(rows, lambda row: row.array.bytes)
    has, object_pronoun = (
        by_count(len(rows), "has", "have"),
        by_count(len(rows), "it", "them"),
    )
    moments = plural(len(paths) - len(rows), "moment")
    also = f" or their {moments}" if len(paths) > len(rows) else ""
    no_rule = ""
    if len(audit.rules):
        no_rule = f", so no rule splits {object_pronoun}{also}"
    lines = [
        f"{plural(len(rows), 'array')} {has} no logical names{no_rule}:"
        f" {joined(names, limit=SHOWN)}. {ADD_NAMES}"
    ]
    remedies = rows[0].remedies("split")
    if remedies:
        lines.append(f"  {remedy(remedies[0])}")
    return "\n".join(lines)


def _replicated(audit: Audit) -> str:
    unnamed = {row.path for row in audit.unnamed}
    rows = [row for row in audit.replicated if row.path not in unnamed]
    if not rows:
        return ""
    names = _with_sizes(rows, lambda row: row.array.bytes)
    return f"{_count(rows, 'large array')} replicated: {joined(names, limit=SHOWN)}."


def why(row: Request) -> str:
    """Explains how an array is split, and suggests an edit if it is not split."""
    lines = [_why(row)]
    if row.resolution is not None:
        lines += resolution_findings(row.resolution)
    elif row.by_path is not None:
        lines.append(path_resolution(row.by_path))
    if row.layout is not None:
        lines.append(_takes(row, row.layout))
    if row.partner is not None and row.audit is not None:
        for fact in row.audit.differences:
            if fact.path == row.path:
                lines.append(f"{difference(fact)}.")
    if row.layout is None or row.layout.num_blocks == 1:
        suggested = row.remedies("split").suggested
        if suggested is not None:
            lines.append(remedy(suggested))
    return "\n".join(lines)


def _why(row: Request) -> str:
    """Explains an array's split in one sentence."""
    if row.problem:
        return f"{row.path} cannot be laid out. {row.problem}"
    if row.spec is None and row.layout is not None:
        return f"{row.path} is a live array that is not split over the mesh."
    if row.spec is None:
        return f"The sharding of {row.path} is unknown. {GIVE}"
    if row.lacks_names:
        no_rule = ""
        if row.audit is None or len(row.audit.rules):
            no_rule = ", so no rule splits it"
        return (
            f"{row.path} is replicated: it has no logical names{no_rule}. {ADD_NAMES}"
        )
    how = f"split as {row.spec}"
    if row.layout is not None and row.layout.num_blocks == 1:
        how = "replicated"
    if not row.spec_wins:
        return f"{row.path} is {how} by the table."
    if row.table_spec is None or row.follows_table:
        return f"{row.path} is {how} by its own sharding."
    return f"{row.path} is {how} by its own sharding; the table gives {row.table_spec}."


def _takes(row: Request, layout: Layout) -> str:
    """Formats an array's bytes per device, and the mesh axes it is copied along."""
    head = f"Each device holds {bytes_text(layout.bytes_per_device)} of it"
    if row.spec is None or layout.replicas == 1:
        return f"{head}."
    unsplit = []
    for axis, size in layout.mesh.shape.items():
        if size > 1 and axis not in {*row.spec.axes, *row.spec.unreduced}:
            unsplit.append(axis)
    return f"{head}: {layout.replicas} copies, along {joined(unsplit)}."


def _axes(mesh: MeshSpec) -> str:
    """Formats the mesh; if it has many axes of size 1, these are only counted."""
    split = [f"{name}={size}" for name, size in mesh.shape.items() if size > 1]
    unsplitting = len(mesh.shape) - len(split)
    if unsplitting < 3:
        return str(mesh)
    return ", ".join([*split, f"{plural(unsplitting, 'axis', 'axes')} of size 1"])


def _lines(audit: Audit) -> str:
    if isinstance(audit.rules, PathRules):
        return plural(len(audit.rules), "pattern")
    return plural(len(audit.rules), "rule")


def _count(arrays: Sequence[object], noun: str, form: str | None = None) -> str:
    """Formats a count with a verb: `1 array is`, `2 arrays are`."""
    return f"{plural(len(arrays), noun, form)} {by_count(len(arrays), 'is', 'are')}"


def _size(rows: Iterable[Request]) -> str:
    return bytes_text(sum(row.array.bytes for row in rows))


SENTENCES = {
    Audit: summary,
    AxisCopies: axis_copies,
    GroupBytes: group,
    Difference: difference,
}
EXPLANATIONS = {Audit: explain, Request: why}
