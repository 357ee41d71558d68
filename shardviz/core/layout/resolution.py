"""resolve() -> Resolution: which rule decided each dimension, and why every other did not.

Follows `flax.linen.spmd.logical_to_mesh_axes` and `flax.core.spmd.from_sharding_rules` step by
step; `tests/layout` compares it with both over random tables.

`match_rules` finds the winners, which is fast; verdicts are made when they are first read.

The first stage of a program, computed without jax after every edit.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from shardviz.core.display import Displayed
from shardviz.core.errors import RuleError, ShardvizError, SpecError
from shardviz.core.format import plural, shown
from shardviz.core.layout import verdicts as words
from shardviz.core.layout.array_spec import ArraySpec, read_names, read_shape
from shardviz.core.layout.layout import Layout, lay_out_parsed
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import MAX_RANK, Spec, is_unconstrained
from shardviz.core.layout.remedies import Arrays, Leaf, Remedies, Search
from shardviz.core.layout.rules import Dialect, Rule, Rules
from shardviz.core.layout.verdicts import BROKEN, Decision, Outcome, Verdict

if TYPE_CHECKING:
    from shardviz.core.layout.path_rules import PathResolution

MEMO_SIZE = 4096


class RuleMatches(NamedTuple):
    """The winning rule of each dimension, by index, and the spec of the winners."""

    winners: tuple[int | None, ...]
    spec: Spec


def match_rules(names: tuple[str | None, ...], rules: Rules, dialect: Dialect) -> RuleMatches:
    """The winners, stored by signature: large models have many arrays and few signatures.

    Raises:
        RuleError: for entries that are no names, and for a name that occurs twice.
    """
    if len(names) > MAX_RANK:
        read_names(names)  # raises
    found = _nnx(names, rules) if dialect is Dialect.NNX else _linen(names, rules)
    if len(rules.memo) >= MEMO_SIZE:
        rules.memo.clear()
    rules.memo[names, dialect] = found
    return found


def stored_matches(names: tuple, rules: Rules, dialect: Dialect) -> RuleMatches | None:
    """What `match_rules` found before for these names, or None."""
    try:
        return rules.memo.get((names, dialect))
    except Exception:  # noqa: BLE001  a foreign __hash__ may raise anything; `match_rules` reports it
        return None


def _linen(names: tuple[str | None, ...], rules: Rules) -> RuleMatches:
    by_name, entries = rules.by_name, rules.entries
    position: dict[str, int] = {}
    candidates: list[int] = []
    free: list[int] = []
    for dim, name in enumerate(names):
        if isinstance(name, str):
            if name in position:
                raise _twice(name, position[name], dim)
            position[name] = dim
            if name in by_name:  # then it was checked when the rules were made
                candidates += by_name[name]
            else:
                read_names((name,))
        elif name is not None:
            read_names((name,))
            free.append(dim)  # the one other entry that is accepted is UNCONSTRAINED
    candidates.sort()  # rule order alone is priority
    winners: list[int | None] = [None] * len(names)
    dims: list[tuple[str, ...]] = [()] * len(names)
    used: set[str] = set()
    for index in candidates:
        rule = entries[index]
        dim, axes = position[rule.logical], rule.axes
        if winners[dim] is None and used.isdisjoint(axes):
            winners[dim], dims[dim] = index, axes
            used.update(axes)
            if rule.nested:
                raise _nested(index, rule)
            if rule.free:
                free.append(dim)
    return RuleMatches(tuple(winners), Spec.trusted(tuple(dims), frozenset(free)))


def _nnx(names: tuple[str | None, ...], rules: Rules) -> RuleMatches:
    winners: list[int | None] = []
    dims: list[tuple[str, ...]] = []
    free: list[int] = []
    for dim, name in enumerate(read_names(names)):
        known = rules.by_name.get(name) if isinstance(name, str) else None
        winner = None if known is None else known[-1]
        winners.append(winner)
        if winner is not None:
            rule = rules.entries[winner]
            if rule.nested:
                raise _nested(winner, rule)
            dims.append(rule.axes)
        else:
            dims.append((name,) if isinstance(name, str) else ())
        if rules.entries[winner].free if winner is not None else is_unconstrained(name):
            free.append(dim)
    return RuleMatches(tuple(winners), Spec.trusted(tuple(dims), frozenset(free)))


def _twice(name: str, first: int, second: int) -> RuleError:
    return RuleError(
        f"Logical name {shown(name)} is at dimensions {first} and {second}; an array can use each"
        " name once. Give one of them a name of its own."
    )


def _nested(index: int, rule: Rule) -> RuleError:
    return RuleError(
        f"Rule {index + 1} ({rule}) leads to a tuple in a tuple, which no PartitionSpec can hold."
        " Write the axes in one tuple."
    )


@dataclass(frozen=True, repr=False)
class Resolution(Displayed):
    """How one array's logical names became a spec; made by `shardviz.resolve`.

    Attributes:
        names: the logical names, one per dimension.
        rules: the table.
        dialect: the library whose reading of the table counts.
        mesh: the mesh that verdicts are checked against, or None.
        shape: the shape that verdicts are checked against, or None.
        spec: the Spec that they became.

    >>> rules = Rules.of(("mlp", "model"), ("embed", "model"), ("embed", None))
    >>> found = resolve(("embed", "mlp"), rules)
    >>> str(found.spec)
    "P(None, 'model')"
    >>> print(found.decisions[0].verdicts[1].reason)
    does not apply: rule 1 already uses 'model' for dimension 1.
    """

    names: tuple[str | None, ...]
    rules: Rules
    dialect: Dialect
    mesh: MeshSpec | None
    shape: tuple[int, ...] | None
    winners: tuple[int | None, ...]
    spec: Spec

    @property
    def partition_spec(self) -> Any:
        """The spec as a `jax.sharding.PartitionSpec`."""
        return self.spec.to_jax()

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """One Decision per dimension, with a Verdict for every rule."""
        return tuple(self._decide(d) for d in range(len(self.names)))

    def _decide(self, dim: int) -> Decision:
        name, winner = self.names[dim], self.winners[dim]
        found = tuple(self.verdict(dim, i) for i in range(len(self.rules)))
        passed = self.dialect is Dialect.NNX and winner is None and isinstance(name, str)
        return Decision(dim, name, self.spec.dims[dim], winner, found, passed)

    def verdict(self, dimension: int, rule: int) -> Verdict:
        """The verdict on one rule for one dimension, without making all the others."""
        judge = self._judge_nnx if self.dialect is Dialect.NNX else self._judge
        found = judge(rule, dimension, self.winners[dimension])
        return replace(found, free=True) if self.rules[rule].free else found

    def _judge(self, index: int, dim: int, winner: int | None) -> Verdict:
        rule, name = self.rules[index], self.names[dim]
        if rule.logical != name:
            return words.other_name(index, rule.logical, rule.axes, name)
        if index == winner:
            return self._won(index, dim)
        if winner is not None and winner < index:
            return words.decided(index, rule.logical, rule.axes, winner)
        # It comes before the winner, so other dimensions already used its axes.
        holders = tuple(
            (axis, d, w)
            for axis in dict.fromkeys(rule.axes)
            for d, w in enumerate(self.winners)
            if w is not None and w < index and axis in self.rules[w].axes
        )
        return words.taken(index, rule.logical, rule.axes, holders)

    def _judge_nnx(self, index: int, dim: int, winner: int | None) -> Verdict:
        rule, name = self.rules[index], self.names[dim]
        if rule.logical != name:
            return words.other_name(index, rule.logical, rule.axes, name)
        if index == winner:
            return self._won(index, dim)
        assert winner is not None
        return words.overridden(index, rule.logical, rule.axes, winner)

    def _won(self, index: int, dim: int) -> Verdict:
        rule = self.rules[index]
        if rule.free:
            return words.left_free(index, rule.logical)
        size = None if self.shape is None else self.shape[dim]
        drops = self.dialect is Dialect.MAXTEXT
        used = self.spec.axes
        found = words.deciding(index, rule.logical, rule.axes, self.mesh, size, drops, used)
        others = [(a, d) for d, axes in enumerate(self.spec.dims) for a in axes if d != dim]
        both = [(a, d) for a, d in others if a in rule.axes]
        if both and found.outcome in (Outcome.APPLIED, Outcome.SIZE_ONE):
            return words.shared(index, rule.logical, rule.axes, both)  # nnx looks at no others
        return found

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """Why the mesh cannot have this spec, one sentence each."""
        found, shared = [], False
        for decision in self.decisions:
            verdict = decision.deciding
            if verdict and verdict.outcome is Outcome.REPEATED and verdict.taken:
                shared = True
            elif verdict and verdict.outcome in BROKEN:
                found.append(f"Dimension {decision.dimension}: {verdict}")
            if decision.passed_through and self.mesh and decision.logical not in self.mesh.shape:
                found.append(
                    f"Dimension {decision.dimension}: no rule is for {shown(decision.logical)},"
                    " and nnx takes it for a mesh axis, which the mesh lacks."
                )
        if (shared or not found) and self.mesh is not None:
            try:  # nnx lets one mesh axis split two dimensions
                self.spec.check(self.mesh)
            except SpecError as error:
                found.append(str(error))
        return tuple(found)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The logical names here that no rule is for."""
        known = self.rules.by_name
        return tuple(n for n in self.names if isinstance(n, str) and n not in known)

    def unmatched(self) -> tuple[tuple[int, str, str | None], ...]:
        """Dimensions whose name no rule is for: (dimension, name, nearest known name)."""
        known = self.rules.by_name
        return tuple(
            (d, n, self.rules.nearest(n))
            for d, n in enumerate(self.names)
            if isinstance(n, str) and n not in known
        )

    def remedies(self, want: Any, dtype: str = "float32") -> Remedies:
        """The smallest edits with which the array is split as wanted; see `shardviz.remedies`.

        Raises:
            ShardvizError: for a wish that cannot be read.

        >>> resolve("embed mlp", [("mlp", "model"), ("embed", "model")]).remedies("split 0")[0].edit
        'Move rule 2 (embed → model) before rule 1'
        """
        return self._search(dtype).find(want)

    def _search(self, dtype: str = "float32") -> Search:
        leaf = Leaf(None, self.names, self.shape, dtype)
        return Search(leaf, self.rules, self.mesh, self.dialect, resolved_spec, Arrays())

    def explain(self) -> str:
        """The explanation of every dimension, one line each; last, what would split another."""
        said = self.findings
        found = first_remedy(self)
        return said if found is None else f"{said}\n{found}"

    @property
    def findings(self) -> str:
        """`explain` without what to change, which takes longer."""
        lines = [f"{self.spec}  ({self.dialect.value} rules, {plural(len(self.rules), 'rule')})"]
        lines += [self.explain_dimension(d) for d in range(len(self.names))]
        said = "\n".join(lines)
        lines += [p for p in self.problems if p.split(": ", 1)[-1] not in said]
        return "\n".join(lines)

    def explain_dimension(self, dimension: int) -> str:
        """The explanation of one dimension, in one line."""
        return words.explain_decision(self.decisions[dimension], self._near)

    @property
    def _near(self) -> dict[int, str | None]:
        return {d: close for d, _, close in self.unmatched()}

    def __repr__(self) -> str:
        names = ", ".join("_" if n is None else str(n) for n in self.names)
        return f"Resolution({names} → {self.spec}, {self.dialect.value})"


def first_remedy(resolution: Resolution) -> str | None:
    """One sentence on what to change, where a dimension fails or lost the axes it asked for."""
    search, near = resolution._search(), resolution._near
    for dim in words.disliked(resolution.decisions, near, resolution.mesh):
        found = search.find(f"split {dim}", most=1, pairs=False)
        # A rule for a name that looks misspelt would make the mistake permanent.
        if found and not (near.get(dim) and found[0].names == resolution.names):
            edit = found[0].edit
            return f"To split dimension {dim}: {edit[0].lower()}{edit[1:]}."
    return None


def resolved_spec(
    names: tuple[str | None, ...], rules: Rules, mesh: MeshSpec | None, dialect: Dialect
) -> Spec:
    """The spec that names become, without any verdict.

    Raises:
        RuleError: as `match_rules`.
    """
    found = stored_matches(names, rules, dialect) or match_rules(names, rules, dialect)
    if dialect is Dialect.MAXTEXT and mesh is not None:
        return without_size_one(found.spec, mesh)
    return found.spec


def resolve(
    names: Any,
    rules: Any,
    *,
    mesh: MeshSpec | None = None,
    shape: Any = None,
    dialect: Any = Dialect.LINEN,
) -> Resolution:
    """Turns logical names into a spec, as `dialect` does, with a verdict for every rule.

    Raises:
        RuleError: for a name that occurs twice in `names` (not in nnx), for names, rules or a
            dialect that cannot be read, and for a number of names other than the shape's rank.
    """
    dialect = dialect if isinstance(dialect, Dialect) else Dialect.of(dialect, paths=False)
    table = rules if isinstance(rules, Rules) else Rules.of(rules)
    if type(names) is not tuple:
        names = read_names(names)
    return _resolve(names, table, mesh, None if shape is None else read_shape(shape), dialect)


def _resolve(
    names: Any, table: Rules, mesh: MeshSpec | None, sizes: tuple[int, ...] | None, dialect: Dialect
) -> Resolution:
    """`resolve` of what was parsed."""
    found = stored_matches(names, table, dialect)
    if found is None:
        found = match_rules(names, table, dialect)
    if sizes is not None and len(sizes) != len(names):
        raise RuleError(
            f"The array has {plural(len(sizes), 'dimension')} and {plural(len(names), 'name')}."
            " Give one logical name for each dimension; write None for a dimension without one."
        )
    spec = found.spec
    if dialect is Dialect.MAXTEXT and mesh is not None:
        spec = without_size_one(spec, mesh)
    # A frozen dataclass makes a Python call for each field: half the time of resolve().
    made = object.__new__(Resolution)
    parts = made.__dict__
    parts["names"], parts["rules"], parts["dialect"] = names, table, dialect
    parts["mesh"], parts["shape"] = mesh, sizes
    parts["winners"], parts["spec"] = found.winners, spec
    return made


def without_size_one(spec: Spec, mesh: MeshSpec) -> Spec:
    """The spec without mesh axes of size 1, as MaxText leaves it."""
    dims = tuple(tuple(a for a in dim if mesh.shape.get(a) != 1) for dim in spec.dims)
    return Spec(dims, spec.unconstrained, spec.unreduced, spec.reduced)


@dataclass(frozen=True)
class Request(Displayed):
    """The spec that one array asks for, and the layout this makes.

    Attributes:
        array: the array.
        resolution: the resolved rules, where the array has logical names and there are rules.
        spec: the spec that counts: the array's own where it has one, else that of the rules, else
            one that splits no dimension. None where the names cannot be resolved, and where
            nothing says how the array is split.
        layout: the Layout, or None where the array cannot be laid out so, or nothing says how.
        problem: the sentence on why not, or None.
        partner: the path of the parameter that the array is a moment, a gradient or a copy of, or
            None.
        group: what it is in a train state: `"parameters"`, `"gradients"`, `"optimizer state"` or
            `"other"`.
        audit: the Audit whose row it is, or None.
        by_path: the matched patterns, where the table is one of paths; then `resolution` is None.

    >>> from shardviz.core.layout.mesh import make_mesh
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

    @property
    def spec_wins(self) -> bool:
        """Whether the array has a spec of its own, which overrides the rules."""
        return self.array.spec is not None

    def placed(self, name: str, group: str = "other", partner: str | None = None) -> Request:
        """A copy for an array of the same kind under another name, already checked."""
        # A frozen dataclass makes a Python call for each field; audits make thousands of these.
        made = object.__new__(Request)
        parts = self.__dict__.copy()
        parts["array"] = self.array.renamed(name, checked=True)
        parts["group"], parts["partner"] = group, partner
        object.__setattr__(made, "__dict__", parts)
        return made

    @property
    def path(self) -> str:
        """The name of the array; in a tree, the path to it."""
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
        """What it takes on each device that holds it, in bytes; None where that is not known."""
        return None if self.layout is None else self.layout.bytes_per_device

    @property
    def replicas(self) -> int | None:
        """How many devices hold each of its shards; None where that is not known."""
        return None if self.layout is None else self.layout.replicas

    def remedies(self, want: Any) -> Remedies:
        """The smallest edits with which the array is split as wanted; see `shardviz.remedies`.

        Raises:
            ShardvizError: for a wish that cannot be read.
        """
        array, source = self.array, self.audit or self.resolution
        if self.spec_wins:
            reason = (
                f"{self.path} has a PartitionSpec of its own, {self.spec}, which no rule changes."
            )
            return Remedies((), str(want), self.path, f"{reason} Change that.")
        if self.by_path is not None and (self.spec is not None or self.by_path.spec is None):
            arrays = None if self.audit is None else self.audit.arrays
            return self.by_path.remedies(want, array.dtype, arrays)
        if array.logical is None or source is None:
            reason = (
                self.problem if array.logical else "It has no logical names that rules are for."
            )
            return Remedies((), str(want), self.path, f"No rule splits {self.path}. {reason}")
        arrays = Arrays() if self.audit is None else self.audit.arrays
        leaf = Leaf(self.path, array.logical, array.shape, array.dtype)
        search = Search(leaf, source.rules, source.mesh, source.dialect, resolved_spec, arrays)
        return search.find(want)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Without Python's collector of cycles, which takes a third of the time of a large result.

    Plans and audits make thousands of values that stay and hardly any cycle, so every pass of the
    collector looks through all of them, and through jax's, for nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Requests(Sequence[Request]):
    """The Requests of many arrays, made when they are first looked at.

    Arrays of one signature differ in their names alone, and a large model has thousands of arrays
    and some dozens of signatures.

    >>> from shardviz.core.layout.mesh import make_mesh
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
        self._placed = () if groups is None or partners is None else (groups, partners)

    @cached_property
    def kinds(self) -> tuple[tuple[Request, int], ...]:
        """One Request of each signature, and how many arrays have it."""
        found = {id(kind): kind for kind in self._kinds}
        times = Counter(map(id, self._kinds))
        return tuple((kind, times[key]) for key, kind in found.items())

    @cached_property
    def _made(self) -> tuple[Request, ...]:
        with collector_paused():
            return tuple(map(Request.placed, self._kinds, self._names, *self._placed))

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: Any) -> Any:
        return self._made[index]

    def __iter__(self) -> Iterator[Request]:
        return iter(self._made)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._made == tuple(other)

    def __hash__(self) -> int:
        return hash(self._made)

    def __repr__(self) -> str:
        return repr(self._made)


def kinds_of(rows: Iterable[Request]) -> Sequence[tuple[Request, int]]:
    """One Request of each signature and how many there are, where the rows know; else all rows."""
    return rows.kinds if isinstance(rows, Requests) else tuple((row, 1) for row in rows)


def request(
    array: ArraySpec, mesh: MeshSpec, rules: Rules | None, dialect: Dialect = Dialect.LINEN
) -> Request:
    """Resolves and lays out one array; what fails becomes `problem` and is never raised.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> mesh, rules = make_mesh(data=4, model=2), Rules.of(("mlp", "model"))
    >>> request(ArraySpec("w", (512, 2048), "embed mlp"), mesh, rules).layout.shard_shape
    (512, 1024)
    >>> print(request(ArraySpec("w", (512, 2047), "embed mlp"), mesh, rules).problem[:41])
    Dimension 1: 2,047 does not divide by 2 (
    """
    resolution, problem = None, None
    if array.logical is not None and rules is not None:
        try:
            resolution = _resolve(array.logical, rules, mesh, array.shape, dialect)
        except ShardvizError as error:
            problem = str(error)
    spec = array.spec
    if spec is None:
        if problem is not None:
            return Request(array, None, None, None, problem)
        spec = resolution.spec if resolution is not None else Spec(((),) * array.rank)
    try:
        layout = lay_out_parsed(array.shape, spec, mesh, array.dtype)
    except ShardvizError as error:
        return Request(array, resolution, spec, None, str(error))
    return Request(array, resolution, spec, layout, None)


def requests(
    arrays: Iterable[ArraySpec],
    mesh: MeshSpec,
    rules: Rules | None,
    dialect: Dialect = Dialect.LINEN,
) -> tuple[Request, ...]:
    """One Request per array, in order."""
    return tuple(request(a, mesh, rules, dialect) for a in arrays)
