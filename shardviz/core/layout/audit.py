"""audit() -> Audit: many arrays under one rule table, and what every rule did.

How each array is split, how many bytes each device holds, which names no rule knows, and which
rules decide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from shardviz.core.display import Displayed
from shardviz.core.errors import LayoutError
from shardviz.core.format import Fold, bytes_text, fold, joined, plural, shown
from shardviz.core.layout.array_tree import ArrayTree, Children, Names, TreeLeaf, on_mesh, read_tree
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.libraries import mesh_of
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.optimizer_state import (
    GROUPS,
    OPTIMIZER,
    Difference,
    GroupBytes,
    difference_lines,
    differences,
    group_bytes,
    may_hold_state,
    not_counted,
    on_fullest_device,
    pair,
)
from shardviz.core.layout.path_remedies import PathArrays
from shardviz.core.layout.path_rules import path_requests, read_path_as
from shardviz.core.layout.remedy_edits import Arrays
from shardviz.core.layout.resolution import (
    Request,
    Requests,
    collector_paused,
    kinds_of,
    request,
)
from shardviz.core.layout.rule_tables import read_rules
from shardviz.core.layout.rule_uses import (
    AuditDiff,
    RuleUse,
    compare_rows,
    first_lines,
    pattern_uses,
    rule_summary,
    unmatched_text,
    uses_text,
)
from shardviz.core.layout.rules import Dialect, PathRules, Rules

BIG = 1 << 20  # bytes; smaller arrays may be replicated without mention
SHOWN = 5


class Unmatched(NamedTuple):
    """A logical name that no rule knows, the nearest name that one does, and its arrays.

    >>> Unmatched("embded", "embed", ("w_out",)).nearest
    'embed'
    """

    name: str
    nearest: str | None
    arrays: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Audit(Displayed):
    """Many arrays under one rule table; made by `shardviz.audit`.

    Attributes:
        rows: one Request per array, in the order of the tree. Where nothing says how an array is
            split over the mesh, its row has no spec; a live one that is not on the mesh has the
            layout that it has now.
        mesh: the mesh they are laid out on.
        rules: the table.
        dialect: the library whose reading of the table counts.
        elsewhere: the arrays with a sharding of their own on a mesh of other axes; their specs are
            read by the names of its axes.
        unnamed: the arrays without names beside others in a box of flax, which reads them as not
            split.
        capacity: the memory of one device of the target, in bytes, or None.
        target: the target as text, or `""`.

    >>> table = Rules.of(("mlp", "model"), ("embed", "data"), ("heads", "model"))
    >>> found = audit({"wi": ((512, 2048), "embed mlp"), "wo": ((2048, 510), "mlp embd")},
    ...               table, make_mesh(data=4, model=2))
    >>> found.bytes_per_device, [u.index for u in found.unused_rules], found.unmatched
    (2613248, [2], (Unmatched(name='embd', nearest='embed', arrays=('wo',)),))
    """

    rows: Sequence[Request]
    mesh: MeshSpec
    rules: Rules | PathRules
    dialect: Dialect
    elsewhere: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()
    capacity: int | None = None
    target: str = ""

    def __post_init__(self) -> None:
        # For remedies, which look at the other arrays; rows that are made later have it, too.
        for row, _ in kinds_of(self.rows):
            object.__setattr__(row, "audit", self)

    @cached_property
    def arrays(self) -> Arrays | PathArrays:
        """The arrays that the rules split, by their names or paths; for remedies."""
        return PathArrays(self.rows) if self.dialect.by_path else Arrays(self.rows)

    @cached_property
    def bytes_per_device(self) -> int:
        """What all arrays that lay out take on the device that holds most of them, in bytes."""
        return on_fullest_device(self.rows)

    @cached_property
    def off_device(self) -> tuple[Request, ...]:
        """The rows that lay out in another memory than the devices' own: mostly the host's."""
        return tuple(r for r in self._laid_out if r.array.memory_kind is not None)

    @cached_property
    def bytes_off_device(self) -> int:
        """What those rows take there for each device, in bytes."""
        return sum(map(_bytes_per_device, self.off_device))

    @cached_property
    def groups(self) -> tuple[GroupBytes, ...]:
        """What each group of arrays takes, those that there are: parameters first."""
        return tuple(
            group_bytes(name, rows)
            for name in GROUPS
            if (rows := [r for r in self.rows if r.group == name])
        )

    @cached_property
    def total(self) -> GroupBytes:
        """What all arrays take."""
        return group_bytes("total", self.rows)

    @cached_property
    def fits(self) -> bool | None:
        """Whether all arrays fit in the memory of the target; None where that is not known."""
        if self.capacity is not None and self.bytes_per_device > self.capacity:
            return False
        return None if self.capacity is None or self.problems or self.unknown else True

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """How arrays of the optimizer are held otherwise than their parameters."""
        return differences(self.rows)

    @cached_property
    def unpaired(self) -> tuple[Request, ...]:
        """The arrays of the optimizer that belong to no parameter; scalars are left out."""
        return tuple(r for r in self.rows if r.group == OPTIMIZER and r.partner is None and r.shape)

    @cached_property
    def folds(self) -> tuple[Fold[Request], ...]:
        """The rows, those that differ only in the number of their layer as one; in order."""
        return tuple(fold(self.rows, lambda r: r.path, _alike))

    @cached_property
    def largest_folds(self) -> tuple[Fold[Request], ...]:
        """Those of the rows that lay out, those that take most on each device first."""
        laid_out = [f for f in self.folds if f.items[0].layout is not None]
        return tuple(sorted(laid_out, key=_fold_bytes, reverse=True))

    @cached_property
    def unknown(self) -> tuple[Request, ...]:
        """The rows of which nothing says how they are split; no bytes are counted for them."""
        return tuple(r for r in self.rows if r.layout is None and not r.problem)

    @cached_property
    def off_mesh(self) -> tuple[Request, ...]:
        """The rows of live arrays whose sharding names no mesh axes: those of one device."""
        return tuple(r for r in self._laid_out if r.spec is None)

    @cached_property
    def bytes(self) -> int:
        """What all arrays take together, each counted once, in bytes."""
        return sum(r.array.bytes for r in self.rows)

    @cached_property
    def largest(self) -> tuple[Request, ...]:
        """The rows that lay out, those that take most on each device first."""
        return tuple(sorted(self._laid_out, key=_bytes_per_device, reverse=True))

    @cached_property
    def problems(self) -> Mapping[str, str]:
        """Array name to the sentence on why it cannot be laid out."""
        return MappingProxyType({r.array.name: r.problem for r in self.rows if r.problem})

    @cached_property
    def replicated(self) -> tuple[Request, ...]:
        """Arrays of 1 MiB or more that are replicated, the largest first."""
        if self.mesh.size == 1:
            return ()
        return tuple(
            r for r in self.largest if r.spec is not None and _is_whole(r) and r.array.bytes >= BIG
        )

    @cached_property
    def unmatched(self) -> tuple[Unmatched, ...]:
        """Logical names that no rule knows, in the order they come.

        In nnx such a name is a mesh axis; where the mesh has it, it is left out.
        """
        if isinstance(self.rules, PathRules):
            return ()
        arrays: dict[str, list[str]] = {}
        for row in self.rows:
            if row.resolution is not None and not row.spec_wins:
                for name in row.resolution.unknown:
                    arrays.setdefault(name, []).append(row.array.name)
        return tuple(
            Unmatched(name, self.rules.nearest(name), tuple(dict.fromkeys(found)))
            for name, found in arrays.items()
            if not (self.dialect is Dialect.NNX and name in self.mesh.shape)
        )

    @cached_property
    def rule_uses(self) -> tuple[RuleUse, ...]:
        """What every rule did, in table order."""
        if isinstance(self.rules, PathRules):
            return pattern_uses(self.rows, self.rules)
        return rule_summary(self.rows, self.rules)

    @property
    def unused_rules(self) -> tuple[RuleUse, ...]:
        """The rules that decide nothing anywhere, each with the reason in `.never`."""
        return tuple(u for u in self.rule_uses if u.never)

    @property
    def _laid_out(self) -> Iterable[Request]:
        return (r for r in self.rows if r.layout is not None)

    def under(self, dialect: Any) -> Audit:
        """The same arrays and table as another dialect reads them; nothing is raised for an array.

        Raises:
            ShardvizError: for a dialect that cannot read this kind of table.

        >>> found = audit([("w", (8, 8), "embed mlp")], [("mlp", "model")], "data=2, model=2")
        >>> found.under("nnx").rows[0].spec
        P('embed', 'model')
        """
        reader, rules = Dialect.of(dialect), self.rules
        read_rules(rules, reader)
        if isinstance(rules, PathRules):
            rows = tuple(read_path_as(row, self.mesh, reader) for row in self.rows)
        else:
            rows = tuple(_read_as(row, self.mesh, rules, reader) for row in self.rows)
        return replace(self, rows=rows, dialect=reader)

    def diff(self, other: Any) -> AuditDiff:
        """Which arrays another audit splits differently, each with the cause.

        Args:
            other: an Audit of the same arrays under another table or dialect, or the dialect.

        Raises:
            ShardvizError: for what is neither.

        >>> found = audit([("w", (8, 8), "embed mlp")], [("mlp", "model")], "data=2, model=2")
        >>> print(found.diff("nnx").rows[0].why)
        Dimension 0: linen has no rule for 'embed' and leaves it unsplit; nnx has no rule for
        'embed' and takes it for a mesh axis.
        """
        found = other if isinstance(other, Audit) else self.under(other)
        return compare_rows(self.rows, found.rows, (self.dialect, found.dialect))

    def explain(self) -> str:
        """All findings, one paragraph each."""
        parts = [
            _explain_sizes(self),
            _explain_capacity(self),
            _explain_unknown(self),
            _explain_problems(self),
            _explain_unmatched(self),
            _explain_differences(self),
            _explain_groups(self),
            _explain_replicated(self),
            uses_text(self.rule_uses),
        ]
        return "\n".join(p for p in parts if p)

    def __repr__(self) -> str:
        trouble = f", {len(self.unknown):,} unknown" if self.unknown else ""
        trouble += f", {plural(len(self.problems), 'problem')}" if self.problems else ""
        return (
            f"Audit({plural(len(self.rows), 'array')} on {_axes(self.mesh)},"
            f" {_lines(self.rules)}: {bytes_text(self.bytes_per_device)} on each"
            f" device{trouble})"
        )


def audit(
    tree_or_table: Any,
    rules: Any = (),
    mesh: Any = None,
    dialect: Any = Dialect.LINEN,
    names: Names | None = None,
    children: Children | None = None,
    capacity: int | None = None,
    target: str = "",
) -> Audit:
    """Resolves and lays out every array of a table, a tree or a model with one rule table.

    What fails for an array becomes its row's `problem` and is never raised.

    Args:
        tree_or_table: what `read_tree` takes: ArraySpecs, rows, mappings, trees, models; or an
            ArrayTree.
        rules: the table, or what `read_rules` takes.
        mesh: the mesh, or what `make_mesh` takes; that of the arrays where there is none.
        dialect: who reads the table.
        names: called as `names(path, array)` for arrays that say nothing themselves.
        children: the named children of a container that is registered with jax, or None.
        capacity: the memory of one device of the target, in bytes.
        target: the target as text.

    Raises:
        ShardvizError: for a tree, table, mesh or dialect that cannot be read.

    >>> audit([("w", (512, 2048), "embed mlp")], [("mlp", "model")], "data=4, model=2")
    Audit(1 array on data=4, model=2, 1 rule: 2 MiB on each device)
    """
    reader = Dialect.of(dialect)
    table = read_rules(rules, reader)
    if names is not None and not callable(names):
        raise LayoutError(f"names= is a function of a path and an array; got {shown(names)}.")
    with collector_paused():
        tree = tree_or_table
        if not isinstance(tree, ArrayTree):
            tree = read_tree(tree_or_table, names, children)
        return _audited(tree, table, mesh, reader, capacity, target)


def _audited(
    tree: ArrayTree,
    table: Rules | PathRules,
    mesh: Any,
    reader: Dialect,
    capacity: int | None,
    target: str,
) -> Audit:
    """The Audit of arrays that are read."""
    kinds = dict(zip(map(id, tree.kinds), tree.kinds, strict=True))  # some dozens, mostly
    found = kinds.values()
    own = {id(leaf.mesh): mesh_of(leaf.mesh) for leaf in found if leaf.mesh is not None}
    beside = table.mesh if isinstance(table, PathRules) else None
    grid = _mesh(mesh, (*own.values(), beside))
    moved = {key for key, other in own.items() if other is not None and other.shape != grid.shape}
    # flax's get_partition_spec leaves what is in no box unsplit, in a tree that has boxes.
    boxed = any(leaf.defaults for leaf in found) and not reader.by_path
    other = {k for k, f in kinds.items() if id(f.mesh) in moved and f.array.spec is not None}
    bare = {k for k, f in kinds.items() if boxed and not f.known and f.array.rank}
    if isinstance(table, PathRules):
        rows = list(path_requests(zip(tree.paths, tree.kinds, strict=True), grid, table, reader))
    else:
        memo: dict[Any, Request] = {}
        made = {k: _kind(leaf, grid, table, reader, boxed, memo) for k, leaf in kinds.items()}
        rows = [made[id(leaf)] for leaf in tree.kinds]
    return Audit(
        _paired(rows, tree),
        grid,
        table,
        reader,
        _named(tree, other),
        _named(tree, bare),
        capacity,
        target,
    )


def _paired(kinds: list[Request], tree: ArrayTree) -> Sequence[Request]:
    """The rows, each with its group and the parameter that it belongs to."""
    at = {path: n for n, path in enumerate(tree.paths)} if tree.known else {}
    known = {n: at[path] for n, path in tree.known.items() if path in at}
    if not may_hold_state(tree.paths) and not tree.states and not known:
        return Requests(tree.names, kinds)
    found = pair(tree.paths, [kind.shape for kind in kinds], tree.states, known)
    partners = [None if at is None else tree.names[at] for at in found.partners]
    return Requests(tree.names, kinds, found.groups, partners)


def _named(tree: ArrayTree, kinds: set[int]) -> tuple[str, ...]:
    """The names of the arrays of some kinds, by the ids of these."""
    if not kinds:
        return ()
    both = zip(tree.names, tree.kinds, strict=True)
    return tuple(name for name, leaf in both if id(leaf) in kinds)


def _mesh(given: Any, own: Iterable[MeshSpec | None]) -> MeshSpec:
    """The mesh that was given, or the first that an array brings."""
    if given is not None:
        return given if isinstance(given, MeshSpec) else make_mesh(given)
    found = next((mesh for mesh in own if mesh is not None), None)
    if found is None:
        raise LayoutError(
            "An audit needs a mesh; got none, and no array's sharding brings one. Give"
            " mesh=sv.mesh(data=4, model=2)."
        )
    return found


def _kind(
    leaf: TreeLeaf,
    mesh: MeshSpec,
    rules: Rules,
    dialect: Dialect,
    boxed: bool,
    memo: dict[Any, Request],
) -> Request:
    """The Request of an array, under any name; arrays of one signature share their Layout.

    Args:
        boxed: whether arrays that say nothing are read as not split.
    """
    if leaf.problem is not None:
        return Request(leaf.array, None, None, None, leaf.problem)
    array = on_mesh(leaf, mesh, rules, dialect)
    if not (leaf.known or boxed or mesh.size == 1):
        whole = leaf.layout is not None and _covers(leaf.layout, mesh)
        if not whole and (leaf.layout is not None or array.rank):
            return Request(array, None, None, leaf.layout, None)
    key = (array.shape, array.logical, array.dtype, array.spec)
    if key not in memo:
        memo[key] = request(array, mesh, rules, dialect)
    first = memo[key]
    return Request(array, first.resolution, first.spec, first.layout, first.problem)


def fold_bytes(one: Fold[Request]) -> str:
    """What alike arrays take on each device: `32 × 2 MiB`.

    >>> rows = [(f"layers/{n}/w", (512, 2048), "embed mlp") for n in range(32)]
    >>> one, = audit(rows, [("mlp", "model")], "data=4, model=2").folds
    >>> one.name, fold_bytes(one)
    ('layers/{0..31}/w', '32 × 2 MiB')
    """
    return f"{one.count}{bytes_text(_bytes_per_device(one.items[0]))}"


def _fold_bytes(one: Fold[Request]) -> int:
    return sum(_bytes_per_device(row) for row in one.items)


def _alike(row: Request) -> Hashable:
    kept = row.layout
    shared = None if kept is None else (kept.shard_shape, kept.num_blocks)
    partner = None if row.partner is None else re.sub(r"\d+", "#", row.partner)
    problem = None if row.problem is None else re.sub(r"\d+", "#", row.problem)
    kind = row.array.memory_kind
    return (row.shape, row.dtype, row.names, row.spec, shared, row.group, partner, problem, kind)


def _read_as(row: Request, mesh: MeshSpec, rules: Rules, dialect: Dialect) -> Request:
    """A row as another dialect reads the names of its array."""
    if row.spec_wins or row.array.logical is None:
        return row
    found = request(row.array, mesh, rules, dialect)
    return replace(
        row,
        resolution=found.resolution,
        spec=found.spec,
        layout=found.layout,
        problem=found.problem,
    )


def _covers(layout: Layout, mesh: MeshSpec) -> bool:
    """Whether a live array is replicated on all devices of the mesh."""
    return layout.num_blocks == 1 and set(layout.device_ids) >= set(mesh.device_ids.flat)


def _is_whole(row: Request) -> bool:
    return row.layout is not None and row.layout.num_blocks == 1


def _bytes_per_device(row: Request) -> int:
    return 0 if row.layout is None else row.layout.bytes_per_device


def _explain_sizes(found: Audit) -> str:
    head = (
        f"{plural(len(found.rows), 'array')} of {bytes_text(found.bytes)} on {_axes(found.mesh)}"
        f" ({plural(found.mesh.size, 'device')}) by {_lines(found.rules)}, read as"
        f" {found.dialect.value}: {bytes_text(found.bytes_per_device)} on each device"
        f"{not_counted(kinds_of(found.rows))}."
    )
    if found.off_device:
        kinds = dict.fromkeys(str(r.array.memory_kind) for r in found.off_device)
        head += (
            f" Beside that, {bytes_text(found.bytes_off_device)} for each device are in other"
            f" memory ({joined(kinds)})."
        )
    there = [f for f in found.largest_folds if f.items[0].array.memory_kind is None]
    top = [f"{f.name} {fold_bytes(f)}" for f in there[:SHOWN]]
    return f"{head} Largest there: {joined(top)}." if len(found.rows) > 1 and top else head


def _explain_groups(found: Audit) -> str:
    if len(found.groups) < 2:
        return ""
    lines = [f"  {group}" for group in (*found.groups, found.total)]
    return "\n".join(["On each device:", *lines])


def _explain_capacity(found: Audit) -> str:
    if found.capacity is None:
        return ""
    share = found.bytes_per_device / found.capacity
    left = plural(len(found.problems) + len(found.unknown), "array")
    unknown = f"whether all fit is not known, since {left} could not be counted"
    words = {True: "they fit, before activations", False: "they do not fit", None: unknown}
    memory = f"the {bytes_text(found.capacity)} of one device of {found.target}"
    return f"That is {share:.1%} of {memory}: {words[found.fits]}."


def _explain_differences(found: Audit) -> str:
    lines = [f"  {line}." for line in difference_lines(found.differences)]
    if found.unpaired:
        size = bytes_text(sum(r.array.bytes for r in found.unpaired))
        one = len(found.unpaired) == 1
        lines.append(
            f"  {plural(len(found.unpaired), 'array')} of the optimizer ({size}) belong"
            f"{'s' * one} to no parameter: {_few(r.path for r in found.unpaired)}."
        )
    return first_lines("The optimizer beside its parameters:", lines) if lines else ""


def _explain_unknown(found: Audit) -> str:
    lines = []
    if found.unknown:
        size = bytes_text(sum(r.array.bytes for r in found.unknown))
        one = len(found.unknown) == 1
        lines.append(
            f"How {plural(len(found.unknown), 'array')} {'is' if one else 'are'} split is unknown"
            f" ({_few(r.path for r in found.unknown)}; {size} in all), and no bytes are counted for"
            f" {'it' if one else 'them'}. Give a sharding, names beside the arrays, or names= to"
            " sv.audit."
        )
    if found.off_mesh:
        ids = sorted({int(i) for r in found.off_mesh if r.layout for i in r.layout.device_ids})
        names = [f"{r.array.name} ({bytes_text(_bytes_per_device(r))})" for r in found.off_mesh]
        lines.append(
            f"{plural(len(names), 'live array')} {'is' if len(names) == 1 else 'are'} on"
            f" {'device' if len(ids) == 1 else 'devices'} {joined(map(str, ids), limit=SHOWN)} and"
            f" not split over the mesh: {_few(names)}."
        )
    if found.elsewhere:
        lines.append(
            f"{plural(len(found.elsewhere), 'array')} of another mesh"
            f" {'is' if len(found.elsewhere) == 1 else 'are'} read here by the names of the axes:"
            f" {_few(found.elsewhere)}."
        )
    if found.unnamed:
        lines.append(
            f"{plural(len(found.unnamed), 'array')} without names beside others that have some:"
            f" flax reads that as not split ({_few(found.unnamed)})."
        )
    return "\n".join(lines)


def _explain_problems(found: Audit) -> str:
    if not found.problems:
        return ""
    # Arrays of one shape fail with one sentence, which is shown once.
    alike: dict[str, list[str]] = {}
    for name, sentence in found.problems.items():
        alike.setdefault(sentence, []).append(name)
    lines = [f"  {_few(names)}: {sentence}" for sentence, names in alike.items()]
    return first_lines(f"{plural(len(found.problems), 'array')} cannot be laid out:", lines)


def _explain_unmatched(found: Audit) -> str:
    if isinstance(found.rules, PathRules):
        return unmatched_text(found.rows)
    lines = []
    for name, close, arrays in found.unmatched:
        hint = f" Did you mean {shown(close)}?" if close else ""
        lines.append(f"No rule knows {shown(name)} (in {_few(arrays)}).{hint}")
    return first_lines("", lines)


def _explain_replicated(found: Audit) -> str:
    if not found.replicated:
        return ""
    count = len(found.replicated)
    folds = fold(found.replicated, lambda r: r.path, lambda r: r.array.bytes)
    names = [f"{f.name} ({f.count}{bytes_text(f.items[0].array.bytes)})" for f in folds]
    word = "is" if count == 1 else "are"
    return f"{plural(count, 'large array')} {word} replicated: {joined(names, limit=SHOWN)}."


def _axes(mesh: MeshSpec) -> str:
    """The mesh as text; axes of size 1, which large models have by the dozen, are only counted."""
    split = [f"{name}={size}" for name, size in mesh.shape.items() if size > 1]
    ones = len(mesh.shape) - len(split)
    if ones < 3:
        return str(mesh)
    return ", ".join([*split, f"{plural(ones, 'axis', 'axes')} of size 1"])


def _lines(rules: Rules | PathRules) -> str:
    return plural(len(rules), "pattern" if isinstance(rules, PathRules) else "rule")


def _few(names: Iterable[str]) -> str:
    """Some names, those that differ in the number of their layer as one; the others counted."""
    folds = fold(names, str)
    hidden = sum(len(f.items) for f in folds[SHOWN:])
    more = [f"{hidden:,} more"] if hidden else []
    return joined([*(f.name for f in folds[:SHOWN]), *more])
