"""Requests: the requested spec and layout of one array of a program or a tree.

The spec comes from the array's own sharding, its logical names (by rules) or its path
(by patterns). A failure becomes the Request's `problem` instead of an error, so that
one bad array doesn't hide the others.
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
from shardviz.base.plain import columns


@columns(
    *("path", "short", "sharding", "bytes_per_device", "replicas", "wasted_bytes"),
    *("group", "partner", "problem"),
)
@dataclass(frozen=True)
class Request(Displayed):
    """The requested spec of one array, and the resulting layout.

    Attributes:
        array: the array.
        resolution: how rules resolve the array's logical names; None without names or
            rules.
        spec: the array's own spec, else the rules' spec, else a spec that splits no
            dimension. None if the names cannot be resolved, or if nothing determines
            how the array is split.
        layout: the Layout; None if the array cannot be laid out, or if nothing
            determines how it is split.
        problem: a sentence on why the array cannot be laid out, or None.
        partner: if the array is a moment, gradient or copy of a parameter, the
            parameter's path; else None.
        group: the array's group in a train state: `"parameters"`, `"gradients"`,
            `"optimizer state"` or `"other"`.
        audit: the Audit that contains this row, or None.
        by_path: how PathRules match the array's path; None for Rules. `resolution` is
            then None.
        few_names: see `LeafMetadata.few_names`.
        of_leaf: True if the array's own spec is a sharding found in a tree; False if
            the user wrote it.

    >>> from shardviz.base.mesh import make_mesh
    >>> found = request(ArraySpec("x", (8,), None, spec="data"), make_mesh(data=4), None)
    >>> found.spec_wins, str(found.spec), found.problem
    (True, "P('data')", None)
    """

    _adds = (
        *(
            "path",
            "shape",
            "dtype",
            "names",
            "bytes_per_device",
            "replicas",
            "wasted_bytes",
        ),
    )
    _omits = ("array", "resolution", "layout", "by_path")

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
        """Whether the array has its own spec, which overrides the rules."""
        return self.array.spec is not None

    @property
    def lacks_names(self) -> bool:
        """Whether the array is replicated because it has no logical names."""
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
        """The spec from the rule table, ignoring the array's own spec; or None."""
        if self.by_path is not None:
            return self.by_path.spec
        if self.resolution is not None:
            return self.resolution.spec
        return None

    @property
    def follows_table(self) -> bool:
        """Whether the array is split as in the table.

        False if the array's own sharding differs from the table's spec. Mesh axes of
        size 1 are ignored.
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
        """Copies the Request for an array that differs only in name, group and partner.

        The name is not checked again.
        """
        # Audits create thousands of these, and a frozen dataclass' constructor calls a
        # Python function per field.
        copy = object.__new__(Request)
        fields = self.__dict__.copy()
        fields["array"] = self.array.renamed(name, checked=True)
        fields["group"], fields["partner"] = group, partner
        object.__setattr__(copy, "__dict__", fields)
        return copy

    @property
    def sharding(self) -> str | None:
        """The spec as text: `P('data', None)`; None if it is unknown."""
        return None if self.spec is None else str(self.spec)

    @property
    def short(self) -> str:
        """Type and shape: `float32[64, 2048]`."""
        return self.array.short

    @property
    def path(self) -> str:
        """The array's name, which in a tree is its path."""
        return self.array.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's global shape, in elements."""
        return self.array.shape

    @property
    def dtype(self) -> str:
        """The name of the array's dtype."""
        return self.array.dtype

    @property
    def names(self) -> tuple[str | None, ...] | None:
        """The array's logical names, one per dimension, or None."""
        return self.array.logical

    @property
    def bytes_per_device(self) -> int | None:
        """The bytes on each device that holds a shard; None if unknown."""
        return None if self.layout is None else self.layout.bytes_per_device

    @property
    def wasted_bytes(self) -> int:
        """The bytes per device beyond an even split over all devices; 0 if unknown.

        Also 0 for an array outside the device's default memory.
        """
        layout = self.layout
        if layout is None or self.spec is None or self.array.memory_kind is not None:
            return 0
        return max(0, layout.bytes_per_device - self.array.bytes // layout.mesh.size)

    @property
    def denied_axes(self) -> tuple[str, ...]:
        """Mesh axes that rules name for the array, but that don't split the array.

        >>> from shardviz.base.mesh import make_mesh
        >>> rules = Rules.of(("mlp", "model"), ("embed", None), ("embed", "data"))
        >>> array = ArraySpec("w", (512, 2048), "embed mlp")
        >>> request(array, make_mesh(data=4, model=2), rules).denied_axes
        ('data',)
        """
        resolution, spec = self.resolution, self.spec
        if resolution is None or spec is None or resolution.mesh is None:
            return ()
        wanted = set()
        if self.spec_wins:
            wanted.update(resolution.spec.axes)
        else:
            rules = resolution.rules
            for name, axes in zip(resolution.names, spec.dims, strict=False):
                for index in () if axes else rules.by_name.get(name or "", ()):
                    wanted.update(rules[index].axes)
        sizes = resolution.mesh.shape.items()
        return tuple(a for a, n in sizes if n > 1 and a in wanted - set(spec.axes))

    @property
    def replicas(self) -> int | None:
        """How many devices hold each shard; None if unknown."""
        return None if self.layout is None else self.layout.replicas

    def remedies(self, want: object) -> Remedies:
        """Finds the smallest edits that split the array as requested.

        Raises:
            ShardvizError: if `want` cannot be parsed.
        """
        array, source = self.array, self.audit or self.resolution
        arrays = Arrays()
        if self.audit is not None:
            arrays = self.audit.arrays
        # If the row has no spec although the table has one for the path, no edit of the
        # table helps.
        if self.by_path is not None and not self.spec_wins:
            if self.spec is not None or self.by_path.spec is None:
                return self.by_path.remedies(want, array.dtype, arrays)
        names = array.logical or (None,) * array.rank
        # An edit can also give an unnamed dimension a name that has a rule.
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
    """The Requests of many arrays, created lazily from one Request per signature.

    Arrays with equal signatures differ only in name, group and partner. A large model
    has thousands of arrays but only a few dozen signatures.

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
        """One (Request, number of arrays) pair per signature."""
        # Compare by identity, because comparing two Requests is slow.
        times = Counter(map(id, self._kinds))
        by_id = {id(kind): kind for kind in self._kinds}
        return tuple((kind, times[key]) for key, kind in by_id.items())

    def of_audit(self, audit: Any) -> Requests:
        """Returns a copy whose rows refer to `audit`, as their remedies need."""
        kinds_by_id = {id(kind): replace(kind, audit=audit) for kind, _ in self.kinds}
        kinds = [kinds_by_id[id(kind)] for kind in self._kinds]
        return Requests(self._names, kinds, self._groups, self._partners)

    @cached_property
    def _made(self) -> tuple[Request, ...]:
        # Groups and partners are given together or not at all.
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
    """Returns copies of the rows that refer to `audit`."""
    if isinstance(rows, Requests):
        return rows.of_audit(audit)
    return tuple(replace(row, audit=audit) for row in rows)


def kinds_of(rows: Iterable[Request]) -> Sequence[tuple[Request, int]]:
    """Returns (Request, number of arrays) pairs, one per signature if known."""
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

    An error becomes the Request's `problem`.

    >>> from shardviz.base.mesh import make_mesh
    >>> mesh, rules = make_mesh(data=4, model=2), Rules.of(("mlp", "model"))
    >>> request(ArraySpec("w", (512, 2048), "embed mlp"), mesh, rules).layout.shard_shape
    (512, 1024)
    >>> print(request(ArraySpec("w", (512, 2047), "embed mlp"), mesh, rules).problem[:42])
    Dimension 1: 2,047 is not divisible by 2 (
    """
    resolution, problem = None, None
    if array.logical is not None and rules is not None:
        try:
            resolution = resolve(
                array.logical, rules, mesh=mesh, shape=array.shape, dialect=dialect
            )
        except ShardvizError as error:
            problem = str(error)
    # The array's own spec is used even if its names cannot be resolved.
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
    """Creates one Request per array, in order."""
    return tuple(request(a, mesh, rules, dialect) for a in arrays)


def on_mesh(
    leaf: TreeLeaf,
    mesh: MeshSpec | None,
    rules: Rules | None,
    dialect: NameDialect = Dialect.LINEN,
) -> ArraySpec:
    """Returns a leaf's array; if its names are mesh axes, they become its spec.

    As in flax's `get_partition_spec`, names are mesh axes if none of them has a rule
    and the mesh has all of them. The nnx dialect decides this for each name instead.
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
    """Yields one Request per array, from its own sharding or else its path.

    Raises:
        RuleError: if the dialect raises an error for an array; the message has its
            path.
    """
    # Large models have many arrays but few different shapes and specs.
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
        key = (array.shape, array.dtype, spec, array.memory_kind)
        if key not in layouts:
            layouts[key] = _lay_out(array, spec, mesh)
        layout, problem = layouts[key]
        if spec is None and match.problem is not None:
            problem = str(match.problem)
        yield Request(array, None, spec, layout, problem, by_path=match)


def read_path_as(row: Request, mesh: MeshSpec, dialect: PathDialect) -> Request:
    """Matches a row's path again in another dialect; errors become its `problem`."""
    if row.by_path is None or row.spec_wins:
        return row
    # The new PathResolution matches the path when it is first read.
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
        layout = lay_out_parsed(array.shape, spec, mesh, array.dtype)
    except ShardvizError as error:
        return None, str(error)
    if array.memory_kind is not None:
        layout = replace(layout, memory_kind=array.memory_kind)
    return layout, None
