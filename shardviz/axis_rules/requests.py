"""Requests: the spec and the layout that one array of a program or a tree asks for.

They come from its own sharding, from its names by rules, or from its path by patterns.
A failure becomes a `problem` and is never raised: one bad array must not hide the
others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from shardviz.axis_rules.array_tree import TreeLeaf
from shardviz.axis_rules.dialects import Dialect, NameDialect, PathDialect
from shardviz.axis_rules.matching import without_size_one
from shardviz.axis_rules.path_rules import PathResolution
from shardviz.axis_rules.remedies import NoNames, NoRemedy, OwnSpec, Remedies, Wish
from shardviz.axis_rules.remedy_search import Arrays, Leaf
from shardviz.axis_rules.resolution import Resolution, resolve
from shardviz.axis_rules.rule_remedies import RuleSearch
from shardviz.axis_rules.rules import PathRules, Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.display import Displayed
from shardviz.base.errors import RuleError, ShardvizError
from shardviz.base.format import shown
from shardviz.base.layout import Layout, lay_out_parsed
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec


@dataclass(frozen=True)
class Request(Displayed):
    """The spec that one array asks for, and the resulting layout.

    Attributes:
        array: the array.
        resolution: the resolved rules, if the array has logical names and there are
            rules.
        spec: the spec that counts: the array's own, else that of the rules, else one
            that splits no dimension. None if the names cannot be resolved, and if
            nothing determines how the array is split.
        layout: the Layout, or None if the array cannot be laid out, or nothing
            determines how.
        problem: the sentence on why not, or None.
        partner: the path of the parameter that the array is a moment, a gradient or a
            copy of, or None.
        group: its group in a train state: `"parameters"`, `"gradients"`, `"optimizer
            state"` or `"other"`.
        audit: the Audit with this row, or None.
        by_path: the matched patterns, if the table is one of paths; then `resolution`
            is None.
        few_names: `"live"` or `"abstract"` if an nnx Variable of such an array has
            fewer names than dimensions, else `""`.
        of_leaf: True if its own spec is the sharding of an array of a tree; False if a
            user wrote it.

    >>> from shardviz.base.mesh import make_mesh
    >>> found = request(ArraySpec("x", (8,), None, spec="data"), make_mesh(data=4), None)
    >>> found.spec_wins, str(found.spec), found.problem
    (True, "P('data')", None)
    """

    array: ArraySpec
    resolution: Resolution | None
    spec: Spec | None
    layout: Layout | None
    problem: str | None
    partner: str | None = None
    group: str = "other"
    audit: Any = field(default=None, compare=False, repr=False)
    by_path: PathResolution | None = None
    few_names: str = ""
    of_leaf: bool = False

    @property
    def spec_wins(self) -> bool:
        """True if the array has its own spec, which overrides the rules."""
        return self.array.spec is not None

    @property
    def lacks_names(self) -> bool:
        """True if the array is replicated because it has no names that rules could map."""
        if self.spec is None or self.by_path is not None:
            return False
        if (
            self.spec.axes
            or self.spec.unreduced
            or (self.spec_wins and not self.of_leaf)
        ):
            return False
        return self.array.rank > 0 and not any(self.array.logical or ())

    @property
    def table_spec(self) -> Spec | None:
        """The spec that the table alone gives the array, or None."""
        if self.by_path is not None:
            return self.by_path.spec
        if self.resolution is not None:
            return self.resolution.spec
        return None

    @property
    def follows_table(self) -> bool:
        """True if the array is split as in the table.

        An array with its own sharding may be split differently. Axes of size 1 split
        nothing.
        """
        if not self.spec_wins:
            return True
        table_spec, source = self.table_spec, self.by_path or self.resolution
        if table_spec is None or self.spec is None or source is None:
            return False
        if source.mesh is None:
            return table_spec.equivalent(self.spec)
        own_spec = without_size_one(self.spec, source.mesh)
        return own_spec.equivalent(without_size_one(table_spec, source.mesh))

    def placed(
        self, name: str, group: str = "other", partner: str | None = None
    ) -> Request:
        """A copy for an array of the same kind under another name, already checked."""
        # The constructor of a frozen dataclass makes a Python call for each field, and
        # audits make thousands of these.
        copy = object.__new__(Request)
        fields = self.__dict__.copy()
        fields["array"] = self.array.renamed(name, checked=True)
        fields["group"], fields["partner"] = group, partner
        object.__setattr__(copy, "__dict__", fields)
        return copy

    @property
    def path(self) -> str:
        """The name of the array; in a tree, its path."""
        return self.array.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape of the array, in elements."""
        return self.array.shape

    @property
    def dtype(self) -> str:
        """The name of its element type."""
        return self.array.dtype

    @property
    def names(self) -> tuple[str | None, ...] | None:
        """Its names, one per dimension, or None."""
        return self.array.logical

    @property
    def bytes_per_device(self) -> int | None:
        """The bytes on each device that holds it; None if unknown."""
        return None if self.layout is None else self.layout.bytes_per_device

    @property
    def wasted_bytes(self) -> int:
        """The bytes on each device beyond an even share; 0 if unknown.

        Arrays in another memory than the device's own use none of it.
        """
        layout = self.layout
        if layout is None or self.spec is None or self.array.memory_kind is not None:
            return 0
        return max(0, layout.bytes_per_device - self.array.bytes // layout.mesh.size)

    @property
    def replicas(self) -> int | None:
        """How many devices hold each of its shards; None if unknown."""
        return None if self.layout is None else self.layout.replicas

    def remedies(self, want: object) -> Remedies:
        """The smallest edits that split the array as requested, for `sv.remedies`.

        Raises:
            ShardvizError: for a wish that cannot be read.
        """
        array, source = self.array, self.audit or self.resolution
        arrays = Arrays()
        if self.audit is not None:
            arrays = self.audit.arrays
        # If the table gives the path a spec and the row has none, no edit of the table
        # helps.
        if self.by_path is not None and not self.spec_wins:
            if self.spec is not None or self.by_path.spec is None:
                return self.by_path.remedies(want, array.dtype, arrays)
        names = array.logical or (None,) * array.rank
        # A dimension without a name can get one that has a rule.
        by_rules = self.by_path is None and array.rank > 0
        by_rules = by_rules and (self.lacks_names or not self.spec_wins)
        if by_rules and source is not None and (array.logical or len(source.rules)):
            leaf = Leaf(self.path, names, array.shape, array.dtype)
            search = RuleSearch(leaf, source.rules, source.mesh, source.dialect, arrays)
            return search.find(want)
        wish = Wish.of(want, names, None, Dialect.LINEN, self.path)
        why: NoRemedy = NoNames(wish, self.problem or "")
        if self.spec_wins:
            why = OwnSpec(wish, self.spec)
        return Remedies((), wish, why)


class Requests(Sequence[Request]):
    """The Requests of many arrays, created when they are first read.

    Arrays of one signature differ only in their names, and a large model has thousands
    of arrays and a few dozen signatures.

    >>> from shardviz.base.mesh import make_mesh
    >>> kind = request(ArraySpec("x", (8,)), make_mesh(data=4), None)
    >>> some = Requests(["a", "b"], [kind, kind])
    >>> [row.path for row in some], some.kinds[0][1]
    (['a', 'b'], 2)
    """

    def __init__(
        self,
        names: Sequence[str],
        kinds: Sequence[Request],
        groups: Sequence[str] | None = None,
        partners: Sequence[str | None] | None = None,
    ) -> None:
        self._names, self._kinds = names, kinds
        self._groups, self._partners = groups, partners

    @cached_property
    def kinds(self) -> tuple[tuple[Request, int], ...]:
        """One Request of each signature, and how many arrays have it."""
        # By identity, since comparing two Requests is slow.
        times = Counter(map(id, self._kinds))
        by_id = {id(kind): kind for kind in self._kinds}
        return tuple((kind, times[key]) for key, kind in by_id.items())

    def of_audit(self, audit: Any) -> Requests:
        """The same rows as rows of an audit, so that their remedies see its other rows."""
        kinds_by_id = {id(kind): replace(kind, audit=audit) for kind, _ in self.kinds}
        kinds = [kinds_by_id[id(kind)] for kind in self._kinds]
        return Requests(self._names, kinds, self._groups, self._partners)

    @cached_property
    def _made(self) -> tuple[Request, ...]:
        # Every array has a group and a partner, or none has.
        placed = [self._groups, self._partners] if self._partners else []
        return tuple(map(Request.placed, self._kinds, self._names, *placed))

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: Any) -> Any:
        return self._made[index]

    def __iter__(self) -> Iterator[Request]:
        return iter(self._made)

    def __repr__(self) -> str:
        return repr(self._made)


def of_audit(rows: Sequence[Request], audit: Any) -> Sequence[Request]:
    """The rows as those of an audit; the given rows do not change."""
    if isinstance(rows, Requests):
        return rows.of_audit(audit)
    return tuple(replace(row, audit=audit) for row in rows)


def kinds_of(rows: Iterable[Request]) -> Sequence[tuple[Request, int]]:
    """One Request of each signature with the number of its arrays, if known."""
    if isinstance(rows, Requests):
        return rows.kinds
    return [(row, 1) for row in rows]


def request(
    array: ArraySpec,
    mesh: MeshSpec,
    rules: Rules | None,
    dialect: NameDialect = Dialect.LINEN,
) -> Request:
    """Resolves the names of one array and lays it out.

    An error is kept in the `problem` of the Request.

    >>> from shardviz.base.mesh import make_mesh
    >>> mesh, rules = make_mesh(data=4, model=2), Rules.of(("mlp", "model"))
    >>> request(ArraySpec("w", (512, 2048), "embed mlp"), mesh, rules).layout.shard_shape
    (512, 1024)
    >>> print(request(ArraySpec("w", (512, 2047), "embed mlp"), mesh, rules).problem[:41])
    Dimension 1: 2,047 does not divide by 2 (
    """
    resolution, problem = None, None
    if array.logical is not None and rules is not None:
        try:
            resolution = resolve(
                array.logical, rules, mesh=mesh, shape=array.shape, dialect=dialect
            )
        except ShardvizError as error:
            problem = str(error)
    # Its own spec counts even if its names cannot be resolved.
    spec = array.spec
    if spec is None:
        if problem is not None:
            return Request(array, None, None, None, problem)
        spec = Spec(((),) * array.rank)
        if resolution is not None:
            spec = resolution.spec
    layout, problem = _lay_out(array, spec, mesh)
    return Request(array, resolution, spec, layout, problem)


def requests(
    arrays: Iterable[ArraySpec],
    mesh: MeshSpec,
    rules: Rules | None,
    dialect: NameDialect = Dialect.LINEN,
) -> tuple[Request, ...]:
    """One Request per array, in order."""
    return tuple(request(a, mesh, rules, dialect) for a in arrays)


def on_mesh(
    leaf: TreeLeaf,
    mesh: MeshSpec | None,
    rules: Rules | None,
    dialect: NameDialect = Dialect.LINEN,
) -> ArraySpec:
    """The array of a leaf; if its names are mesh axes, with the spec that they form.

    Names beside an array are for the rules. They are mesh axes if none of them has a
    rule and the mesh has them all, as in flax's `get_partition_spec`. nnx decides that
    itself, name by name.
    """
    array = leaf.array
    named = [n for n in array.logical or () if isinstance(n, str)]
    if array.spec is not None or leaf.problem or leaf.described or not named:
        return array
    if rules is not None and any(n in rules.by_name for n in named):
        return array
    if leaf.rules:
        reader = Dialect.NNX
        if leaf.logical:
            reader = Dialect.LINEN
        resolution = resolve(array.logical, leaf.rules, dialect=reader)
        return array.replace(spec=resolution.spec)
    if (
        leaf.logical
        or mesh is None
        or (dialect.unknown_name_is_axis and rules is not None)
    ):
        return array
    if all(n in mesh.axis_names for n in named):
        return array.replace(spec=Spec.of(*(array.logical or ())))
    return array


def path_requests(
    leaves: Iterable[tuple[str, TreeLeaf]],
    mesh: MeshSpec,
    rules: PathRules,
    dialect: PathDialect,
) -> Iterator[Request]:
    """One Request per array of a tree, from its path; its own sharding wins.

    Raises:
        RuleError: the dialect raises an error for an array; the message has its path.
    """
    # A large model has many arrays and few shapes and specs.
    layouts: dict[Any, tuple[Layout | None, str | None]] = {}
    for path, leaf in leaves:
        array = leaf.array
        match = PathResolution(path, rules, dialect, mesh, array.shape)
        if leaf.problem is not None:
            yield Request(array, None, None, None, leaf.problem, by_path=match)
            continue
        if dialect.raises and match.problem and array.spec is None:
            raise RuleError(f"{shown(path)}: {match.problem}")
        spec = array.spec or match.spec
        key = (array.shape, array.dtype, spec)
        if key not in layouts:
            layouts[key] = _lay_out(array, spec, mesh)
        layout, problem = layouts[key]
        if spec is None and match.problem is not None:
            problem = str(match.problem)
        yield Request(array, None, spec, layout, problem, by_path=match)


def read_path_as(row: Request, mesh: MeshSpec, dialect: PathDialect) -> Request:
    """The row as another dialect of paths reads the table; nothing is raised."""
    if row.by_path is None or row.spec_wins:
        return row
    # The new dialect matches the path again, and its spec gives the layout.
    match = replace(row.by_path, dialect=dialect)
    layout, problem = _lay_out(row.array, match.spec, mesh)
    if match.problem is not None:
        problem = str(match.problem)
    return replace(row, spec=match.spec, layout=layout, problem=problem, by_path=match)


def _lay_out(
    array: ArraySpec, spec: Spec | None, mesh: MeshSpec
) -> tuple[Layout | None, str | None]:
    if spec is None:
        return None, None
    try:
        return lay_out_parsed(array.shape, spec, mesh, array.dtype), None
    except ShardvizError as error:
        return None, str(error)
