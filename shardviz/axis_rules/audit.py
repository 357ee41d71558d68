"""audit() -> Audit: many arrays under one rule table, and the effect of every rule.

An audit shows how each array is split, how many bytes each device holds, which names
have no rule, and which rules decide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from shardviz.axis_rules.array_tree import (
    ArrayTree,
    Children,
    Names,
    TreeLeaf,
    read_tree,
    short_name,
)
from shardviz.axis_rules.dialects import Dialect, NameDialect, PathDialect
from shardviz.axis_rules.differences import AuditDiff, compare_rows
from shardviz.axis_rules.fit import Fit, Uncounted
from shardviz.axis_rules.group_bytes import (
    AxisCopies,
    GroupBytes,
    copies_by_axis,
    group_bytes,
    on_fullest_device,
    uncounted,
)
from shardviz.axis_rules.libraries import mesh_of
from shardviz.axis_rules.optimizer_differences import Difference, differences
from shardviz.axis_rules.optimizer_state import GROUPS, may_hold_state, pair
from shardviz.axis_rules.remedy_search import Arrays
from shardviz.axis_rules.requests import (
    Request,
    Requests,
    kinds_of,
    of_audit,
    on_mesh,
    path_requests,
    read_path_as,
    request,
)
from shardviz.axis_rules.rule_tables import dialect_of, read_rules
from shardviz.axis_rules.rule_uses import RuleUse, pattern_uses, rule_summary
from shardviz.axis_rules.rules import PathRules, Rules
from shardviz.base.display import Displayed, Fact, explanation
from shardviz.base.errors import LayoutError
from shardviz.base.format import Fold, fold, listed, plural, shown, suggestion
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec, make_mesh

# Replicated arrays smaller than this many bytes are not listed.
BIG = 1 << 20


class Unmatched(NamedTuple):
    """A logical name without a rule.

    Attributes:
        name: the logical name.
        nearest: the name in the table with the closest spelling, or None.
        arrays: the names of the arrays with this logical name.

    >>> Unmatched("embded", "embed", ("w_out",)).nearest
    'embed'
    """

    name: str
    nearest: str | None
    arrays: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Audit(Displayed, Fact):
    """Many arrays under one rule table; returned by `shardviz.audit`.

    Attributes:
        rows: one Request per array, in tree order. If nothing determines how an array
            is split over the mesh, its row has no spec. A live array that is not on the
            mesh then keeps its current layout.
        mesh: the mesh on which the arrays are laid out.
        rules: the table.
        dialect: the library that reads the table.
        elsewhere: names of arrays whose own sharding is on a mesh with other axis names
            or sizes; their specs are applied to `mesh` by axis name.
        capacity: the memory of one device of the target, in bytes, or None.
        target: the title of the target, or `""`.
        unplaced: names of live arrays that have a spec for the mesh but are not on all
            its devices. Their rows show the layouts that these specs give.

    >>> import shardviz as sv
    >>> table = sv.Rules.of(("mlp", "model"), ("embed", "data"), ("heads", "model"))
    >>> found = sv.audit({"wi": ((512, 2048), "embed mlp"), "wo": ((2048, 510), "mlp embd")},
    ...               table, sv.mesh(data=4, model=2))
    >>> found.bytes_per_device, [u.index for u in found.unused_rules], found.unmatched
    (2613248, [2], (Unmatched(name='embd', nearest='embed', arrays=('wo',)),))
    """

    _adds = ("bytes_per_device", "fits", "problems")

    rows: Sequence[Request]
    mesh: MeshSpec
    rules: Rules | PathRules
    dialect: Dialect
    elsewhere: tuple[str, ...] = ()
    capacity: int | None = None
    target: str = ""
    unplaced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # A row's remedies need the audit's other arrays. The caller's rows are copied,
        # not changed.
        object.__setattr__(self, "rows", of_audit(self.rows, self))

    @cached_property
    def arrays(self) -> Arrays:
        """The arrays that the table can split; used to check remedies."""
        return Arrays(self.rows)

    @cached_property
    def bytes_per_device(self) -> int:
        """The bytes of all arrays on the device that holds the most.

        Arrays with unknown layout and arrays in host memory are not counted.
        """
        return on_fullest_device(self.rows)

    @cached_property
    def groups(self) -> tuple[GroupBytes, ...]:
        """The bytes of each nonempty group of arrays, parameters first."""
        by_name: dict[str, list[Request]] = {}
        for row in self.rows:
            by_name.setdefault(row.group, []).append(row)
        return tuple(group_bytes(n, by_name[n]) for n in GROUPS if n in by_name)

    @cached_property
    def total(self) -> GroupBytes:
        """The bytes of all arrays."""
        return group_bytes("total", self.rows)

    @property
    def fits(self) -> bool | None:
        """Whether all arrays fit in the target's memory; None if unknown."""
        return self.fit.ok

    @cached_property
    def fit(self) -> Fit:
        """Compares a device's memory with all arrays; activations are not included."""
        needed, without_layout = self.bytes_per_device, self.uncounted
        return Fit(
            needed,
            self.capacity,
            self.target,
            arrays_only=True,
            uncounted=without_layout,
        )

    @cached_property
    def uncounted(self) -> Uncounted:
        """The arrays with unknown layout, which `bytes_per_device` leaves out."""
        return uncounted(kinds_of(self.rows))

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """The differences between the optimizer's arrays and their parameters.

        A Difference is another layout, or a dtype that needs more memory.
        """
        return differences(self.rows)

    @cached_property
    def beside_table(self) -> AuditDiff:
        """Arrays whose own sharding differs from the table's spec."""
        table_rows, own_rows = [], []
        for row in self.rows:
            if row.spec_wins and row.table_spec is not None and len(self.rules):
                own_rows.append(row)
                table_spec = row.spec if row.follows_table else row.table_spec
                unsplit = row.array.replace(spec=None)
                table_rows.append(replace(row, array=unsplit, spec=table_spec))
        return compare_rows(table_rows, own_rows, ("the table", "the array"))

    @cached_property
    def folds(self) -> tuple[Fold[Request], ...]:
        """The rows; rows that differ only in their layer number are folded into one."""
        return tuple(fold(self.rows, lambda r: r.path, _alike))

    @cached_property
    def largest_folds(self) -> tuple[Fold[Request], ...]:
        """The folds that have a layout, by bytes per device, largest first."""
        sizes = []
        for layers in self.folds:
            # Rows in a fold are equal, so either all of them have a layout or none.
            if layers.items[0].layout is not None:
                size = sum(row.bytes_per_device or 0 for row in layers.items)
                sizes.append((size, layers))
        sizes.sort(key=lambda pair: -pair[0])
        return tuple(layers for _, layers in sizes)

    @cached_property
    def unknown(self) -> tuple[Request, ...]:
        """Rows for which nothing determines the layout; their bytes are not counted."""
        return tuple(r for r in self.rows if r.layout is None and not r.problem)

    @cached_property
    def bytes(self) -> int:
        """The bytes of all arrays, each array counted once."""
        return sum(r.array.bytes for r in self.rows)

    @cached_property
    def largest(self) -> tuple[Request, ...]:
        """The rows that have a layout, by bytes per device, largest first."""
        laid_out = [row for row in self.rows if row.layout is not None]
        return tuple(sorted(laid_out, key=lambda row: -(row.bytes_per_device or 0)))

    @cached_property
    def problems(self) -> Mapping[str, str]:
        """Array name -> a sentence on why the array cannot be laid out."""
        problems = {row.array.name: row.problem for row in self.rows if row.problem}
        return MappingProxyType(problems)

    @cached_property
    def replicated(self) -> tuple[Request, ...]:
        """Arrays of 1 MiB or more that are replicated, the largest first."""
        # On a single device, there are no copies.
        if self.mesh.size == 1:
            return ()
        replicated = []
        for row in self.largest:
            assert row.layout is not None
            if row.spec is not None and row.layout.num_blocks == 1:
                if row.array.bytes >= BIG:
                    replicated.append(row)
        return tuple(replicated)

    @cached_property
    def copies_by_axis(self) -> tuple[AxisCopies, ...]:
        """The arrays that each mesh axis leaves unsplit; the costliest axis first."""
        return copies_by_axis(self.rows, self.mesh)

    @cached_property
    def unnamed(self) -> tuple[Request, ...]:
        """Arrays that are replicated because they have no logical names, largest first.

        Empty if neither a rule nor another array has a logical name.
        """
        by_names = len(self.rules) or any(row.names for row in self.rows)
        if isinstance(self.rules, PathRules) or not by_names or self.mesh.size == 1:
            return ()
        return tuple(row for row in self.largest if row.lacks_names)

    @cached_property
    def few_names(self) -> tuple[Request, ...]:
        """Rows of abstract nnx Variables that have fewer names than dimensions."""
        return tuple(row for row in self.rows if row.few_names == "abstract")

    @cached_property
    def unmatched(self) -> tuple[Unmatched, ...]:
        """Logical names without a rule, in order of their first array.

        In nnx, a name without a rule is used as a mesh axis, so names that are mesh
        axes are left out.
        """
        if not isinstance(self.rules, Rules) or not isinstance(
            self.dialect, NameDialect
        ):
            return ()
        arrays: dict[str, list[str]] = {}
        for row in self.rows:
            if row.resolution is not None and not row.spec_wins:
                for name in row.resolution.unknown:
                    arrays.setdefault(name, []).append(row.array.name)
        unmatched = []
        for name, paths in arrays.items():
            if self.dialect.unknown_name_is_axis and name in self.mesh.shape:
                continue
            near = self.rules.nearest(name)
            # An array can have the same name in two dimensions.
            unmatched.append(Unmatched(name, near, tuple(dict.fromkeys(paths))))
        return tuple(unmatched)

    @cached_property
    def rule_uses(self) -> tuple[RuleUse, ...]:
        """The effect of every rule, in table order."""
        if isinstance(self.rules, PathRules):
            return pattern_uses(self.rows, self.rules)
        return rule_summary(self.rows, self.rules)

    @property
    def unused_rules(self) -> tuple[RuleUse, ...]:
        """The rules that decide no dimension of any array; `never` has the reason."""
        return tuple(u for u in self.rule_uses if u.never)

    def under(self, dialect: object) -> Audit:
        """Audits the same arrays and table in another dialect.

        An array that the dialect rejects becomes a row with a problem.

        Raises:
            ShardvizError: if the dialect cannot read this kind of table.

        >>> import shardviz as sv
        >>> found = sv.audit([("w", (8, 8), "embed mlp")], [("mlp", "model")], "data=2, model=2")
        >>> found.under("nnx").rows[0].spec
        P('embed', 'model')
        """
        reader, rules = Dialect.of(dialect), self.rules
        # Raises if the dialect reads the other kind of table.
        read_rules(rules, reader)
        if isinstance(rules, PathRules):
            assert isinstance(reader, PathDialect)
            rows = tuple(read_path_as(row, self.mesh, reader) for row in self.rows)
        else:
            assert isinstance(reader, NameDialect)
            rows = tuple(_read_as(row, self.mesh, rules, reader) for row in self.rows)
        return replace(self, rows=rows, dialect=reader)

    def diff(self, other: object) -> AuditDiff:
        """Finds arrays that another audit splits differently, each with the cause.

        Args:
            other: an Audit of the same arrays under another table or dialect, or the
                name of another dialect.

        Raises:
            ShardvizError: if `other` is neither an Audit nor a dialect.

        >>> import shardviz as sv
        >>> found = sv.audit([("w", (8, 8), "embed mlp")], [("mlp", "model")], "data=2, model=2")
        >>> print(found.diff("nnx").rows[0].why)
        Dimension 0: linen finds no rule that applies; nnx has no rule for the name and
        uses it as a mesh axis.
        """
        if not isinstance(other, Audit):
            other = self.under(other)
        labels = (self.dialect.name, other.dialect.name)
        # The dialect's name can't distinguish two audits in the same dialect.
        if labels[0] == labels[1]:
            labels = ("the first table", "the second table")
        return compare_rows(self.rows, other.rows, labels)

    def __getitem__(self, path: str) -> Request:
        """Returns the row of an array, by its path or a unique end of the path.

        Raises:
            LayoutError: if no path, or more than one path, ends with `path`.

        >>> import shardviz as sv
        >>> found = sv.audit({"mlp": {"wi": ((8,), "embed")}}, [("embed", "x")], "x=2")
        >>> found["wi"].path
        'mlp/wi'
        """
        # Rows have only the end of a long path, and a number if ends are equal.
        cut = re.compile(re.escape(short_name(str(path))) + r"( \(\d+\))?")
        ends = []
        for row in self.rows:
            if row.path == path:
                return row
            is_cut = row.path.startswith("…") and cut.fullmatch(row.path)
            if is_cut or f"/{row.path}".endswith(f"/{path}"):
                ends.append(row)
        if len(ends) == 1:
            return ends[0]
        paths = [row.path for row in ends]
        if paths:
            raise LayoutError(
                f"{plural(len(paths), 'path')} end with {shown(path)}:"
                f" {listed(paths, limit=8)}. Give more of the path."
            )
        paths = [row.path for row in self.rows]
        raise LayoutError(
            f"No array has the path {shown(path)}.{suggestion(str(path), paths)}"
        )

    def why(self, path: str) -> str:
        """Explains an array's spec, and suggests an edit if the array is not split.

        Args:
            path: the array's path, or an ending that no other path has.

        Raises:
            LayoutError: if no path, or more than one path, ends with `path`.

        >>> import shardviz as sv
        >>> found = sv.audit([("w", (8, 8), None)], [("mlp", "x")], "x=2")
        >>> print(found.why("w").splitlines()[1])
        Each device holds 256 B of it: 2 copies, along x.
        """
        return explanation(self[path])

    def explain(self) -> str:
        """Explains all findings, one paragraph each."""
        return explanation(self)

    def __repr__(self) -> str:
        return f"Audit({self})"


def audit(
    tree_or_table: Any,
    rules: Any = (),
    mesh: Any = None,
    dialect: object = None,
    names: Names | None = None,
    children: Children | None = None,
    capacity: int | None = None,
    target: str = "",
    mesh_in_context: MeshSpec | None = None,
) -> Audit:
    """Resolves and lays out every array of a table, a tree or a model.

    If an array cannot be laid out, its row has a `problem`. An error is raised only if
    the dialect raises it (Keras).

    Args:
        tree_or_table: anything `read_tree` accepts (ArraySpecs, rows, mappings, trees,
            models), or an ArrayTree.
        rules: the table, or anything `read_rules` accepts.
        mesh: the mesh, or anything `make_mesh` accepts; by default, the mesh of the
            arrays or of a `LayoutMap`.
        dialect: the library that reads the table, by default as in `dialect_of`.
        names: a function that is called as `names(path, array)` for arrays without a
            sharding or logical names.
        children: returns (name, child) pairs if a container is registered with jax,
            else None.
        capacity: the memory of one device of the target, in bytes.
        target: the title of the target.
        mesh_in_context: used if neither `mesh`, an array nor a `LayoutMap` has a mesh.

    >>> audit([("w", (512, 2048), "embed mlp")], [("mlp", "model")], "data=4, model=2")
    Audit(1 array on data=4, model=2, 1 rule: 2 MiB on each device)
    """
    reader = dialect_of(rules, dialect)
    table = read_rules(rules, reader)
    if names is not None and not callable(names):
        raise LayoutError(
            f"names= must be a function of a path and an array; got {shown(names)}."
        )
    tree = tree_or_table
    if not isinstance(tree, ArrayTree):
        tree = read_tree(tree_or_table, names, children)
    if mesh is not None and not isinstance(mesh, MeshSpec):
        mesh = make_mesh(mesh)
    return _audited(tree, table, mesh, mesh_in_context, reader, capacity, target)


def _audited(
    tree: ArrayTree,
    table: Rules | PathRules,
    mesh: MeshSpec | None,
    mesh_in_context: MeshSpec | None,
    dialect: Dialect,
    capacity: int | None,
    target: str,
) -> Audit:
    """Creates the Audit of arrays that are already read and parsed."""
    # A large model has thousands of arrays but usually a few dozen signatures.
    kinds = {id(leaf): leaf for leaf in tree.kinds}
    meshes: dict[int, MeshSpec | None] = {}
    for leaf in kinds.values():
        if leaf.mesh is not None:
            meshes[id(leaf.mesh)] = mesh_of(leaf.mesh)
    table_mesh = None
    # A LayoutMap can contain a mesh.
    if isinstance(table, PathRules):
        table_mesh = table.mesh
    live = [leaf.layout.mesh for leaf in kinds.values() if leaf.layout is not None]
    known_meshes = (*meshes.values(), table_mesh)
    has_dimensions = any(leaf.array.shape for leaf in kinds.values())
    grid = mesh or _mesh(known_meshes, mesh_in_context, live, has_dimensions)
    elsewhere: set[int] = set()
    for key, leaf in kinds.items():
        leaf_mesh = meshes.get(id(leaf.mesh))
        if leaf_mesh is not None and leaf.array.spec is not None:
            if leaf_mesh.shape != grid.shape:
                elsewhere.add(key)
    if isinstance(table, PathRules):
        assert isinstance(dialect, PathDialect)
        leaves = zip(tree.paths, tree.kinds, strict=True)
        rows = list(path_requests(leaves, grid, table, dialect))
    else:
        assert isinstance(dialect, NameDialect)
        # If a tree contains a flax wrapper, flax's get_partition_spec leaves arrays
        # without a wrapper unsplit.
        boxed = any(leaf.defaults for leaf in kinds.values())
        memo: dict[Any, Request] = {}
        requests_by_kind: dict[int, Request] = {}
        for key, leaf in kinds.items():
            requests_by_kind[key] = _kind(leaf, grid, table, dialect, boxed, memo)
            of_leaf = leaf.array.spec is not None and not leaf.described
            if leaf.few_names or of_leaf:
                flags = {"few_names": leaf.few_names, "of_leaf": of_leaf}
                requests_by_kind[key] = replace(requests_by_kind[key], **flags)
        rows = [requests_by_kind[id(leaf)] for leaf in tree.kinds]
    pairs = zip(tree.names, tree.kinds, strict=True)
    elsewhere_names = tuple(name for name, leaf in pairs if id(leaf) in elsewhere)
    unplaced = []
    for name, leaf, row in zip(tree.names, tree.kinds, rows, strict=True):
        if leaf.layout is not None and row.spec is not None:
            if not _covers(leaf.layout, grid):
                unplaced.append(name)
    rows = _paired(rows, tree)
    flags = elsewhere_names, capacity, target, tuple(unplaced)
    return Audit(rows, grid, table, dialect, *flags)


def _paired(kinds: list[Request], tree: ArrayTree) -> Sequence[Request]:
    """Adds each row's group and, for optimizer arrays and copies, its parameter."""
    positions = {}
    if tree.partners:
        positions = {path: n for n, path in enumerate(tree.paths)}
    partners_by_index = {}
    for number, path in tree.partners.items():
        if path in positions:
            partners_by_index[number] = positions[path]
    # Skip pairing, which is slow, for trees that contain only parameters.
    if not may_hold_state(tree.paths) and not tree.states and not partners_by_index:
        return Requests(tree.names, kinds)
    shapes = [kind.shape for kind in kinds]
    pairs = pair(tree.paths, shapes, tree.states, partners_by_index)
    partners: list[str | None] = [None] * len(kinds)
    for number, parameter in enumerate(pairs.partners):
        if parameter is not None:
            partners[number] = tree.names[parameter]
    return Requests(tree.names, kinds, pairs.groups, partners)


def _mesh(
    meshes: Iterable[MeshSpec | None],
    in_context: MeshSpec | None,
    live: Sequence[MeshSpec],
    has_dimensions: bool,
) -> MeshSpec:
    """Returns the first known mesh, otherwise the mesh in context, otherwise the devices
    of live arrays whose shardings have no mesh.

    Args:
        meshes: the meshes that are known.
        in_context: the mesh in context.
        live: the devices of live arrays.
        has_dimensions: whether any of the arrays has a dimension.

    Raises:
        LayoutError: if there is no mesh, or nothing to lay out on one.
    """
    for mesh in meshes:
        if mesh is None:
            continue
        # Abstract arrays have a mesh without devices; prefer the same mesh with devices.
        if in_context is not None and in_context.concrete and not mesh.concrete:
            if in_context.shape == mesh.shape:
                return in_context
        return mesh
    if in_context is not None:
        return in_context
    if live:
        return max(live, key=lambda mesh: mesh.size)
    if not has_dimensions:
        raise LayoutError(
            "There is no array to lay out: the value holds no arrays, or only numbers."
            " Give a tree of arrays, such as the parameters of a model."
        )
    raise LayoutError(
        "An audit needs a mesh; got none, no array's sharding brings one, and none is in"
        " context. Give one: sv.audit(tree, rules, mesh=sv.mesh(data=4, model=2)), or"
        " --mesh on the command line."
    )


def _kind(
    leaf: TreeLeaf,
    mesh: MeshSpec,
    rules: Rules,
    dialect: NameDialect,
    boxed: bool,
    memo: dict[Any, Request],
) -> Request:
    """Returns the Request of an array; arrays with equal signatures share a Layout.

    Args:
        leaf: the array.
        mesh: the mesh.
        rules: the table.
        dialect: the library that reads the table.
        boxed: True if arrays without a sharding or names are considered unsplit.
        memo: array signature -> Request; updated.
    """
    if leaf.problem is not None:
        return Request(leaf.array, None, None, None, leaf.problem)
    array = on_mesh(leaf, mesh, rules, dialect)
    if not (leaf.known or boxed or mesh.size == 1):
        live = leaf.layout
        # A live array replicated on the whole mesh is treated like one with spec P().
        if live is not None and not _covers(live, mesh):
            return Request(array, None, None, live, None)
        if live is None and array.rank:
            return Request(array, None, None, None, None)
    key = (array.shape, array.logical, array.dtype, array.spec)
    if key not in memo:
        memo[key] = request(array, mesh, rules, dialect)
    first = memo[key]
    return Request(array, first.resolution, first.spec, first.layout, first.problem)


def _alike(row: Request) -> Hashable:
    """Returns a key that is equal for corresponding arrays of different layers."""
    blocks = None
    if row.layout is not None:
        blocks = row.layout.shard_shape, row.layout.num_blocks
    array = row.array.renamed("array", checked=True)
    # Partners and problems also contain layer numbers.
    partner = re.sub(r"\d+", "#", row.partner or "")
    problem = re.sub(r"\d+", "#", row.problem or "")
    return array, row.spec, blocks, row.group, partner, problem


def _read_as(
    row: Request, mesh: MeshSpec, rules: Rules, dialect: NameDialect
) -> Request:
    """Resolves a row's names again in another dialect."""
    if row.spec_wins or row.array.logical is None:
        return row
    reading = request(row.array, mesh, rules, dialect)
    return replace(reading, partner=row.partner, group=row.group)


def _covers(layout: Layout, mesh: MeshSpec) -> bool:
    """Whether a live array is replicated on all devices of the mesh."""
    ids = mesh.device_ids.reshape(-1)
    return layout.num_blocks == 1 and set(layout.device_ids) >= set(ids)
