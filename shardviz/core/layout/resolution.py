"""resolve() -> Resolution: which rule decided which dimension, and why every other did not.

The search follows `flax.linen.spmd.logical_to_mesh_axes` step by step (`tests/layout` holds it
against flax over random tables). Finding the winners is the fast path; verdicts are made when
somebody asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from shardviz.core.display import Displayed
from shardviz.core.errors import RuleError, listed, nearest, plural, shown
from shardviz.core.layout import verdicts as words
from shardviz.core.layout.array import read_names, read_shape
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.rules import Dialect, Rules
from shardviz.core.layout.spec import Spec, is_unconstrained
from shardviz.core.layout.verdicts import Outcome, Verdict

MEMO_SIZE = 4096


class Found(NamedTuple):
    """What the search found: per dimension the winning rule, and the spec of the winners."""

    winners: tuple[int | None, ...]
    spec: Spec


@dataclass(frozen=True)
class Decision:
    """What became of one dimension.

    Attributes:
        dimension: its position in the array.
        logical: its logical name, or None.
        axes: the mesh axes that split it in the end; `()` where it stays whole.
        rule: the index of the rule that decided, or None.
        verdicts: one Verdict a rule, in table order.
        passed_through: whether an unmatched name was taken for a mesh axis (nnx only).
    """

    dimension: int
    logical: str | None
    axes: tuple[str, ...]
    rule: int | None
    verdicts: tuple[Verdict, ...]
    passed_through: bool = False

    @property
    def deciding(self) -> Verdict | None:
        """The verdict on the rule that decided, or None."""
        return None if self.rule is None else self.verdicts[self.rule]


@dataclass(frozen=True, repr=False)
class Resolution(Displayed):
    """How one array's logical names became a spec; made by `shardviz.resolve`.

    Attributes:
        names: the logical names, one a dimension.
        rules: the table.
        dialect: who read it.
        mesh: the mesh that verdicts are checked against, or None.
        shape: the shape that verdicts are checked against, or None.
        spec: the Spec that came out.

    >>> rules = Rules.of(("mlp", "model"), ("embed", "model"), ("embed", None))
    >>> found = resolve(("embed", "mlp"), rules)
    >>> str(found.spec)
    "P(None, 'model')"
    >>> print(found.decisions[0].verdicts[1].reason)
    lost: 'model' is taken by dimension 1 through rule 1.
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
        """One Decision a dimension, with a Verdict for every rule."""
        return tuple(self._decide(d) for d in range(len(self.names)))

    def _decide(self, dim: int) -> Decision:
        name, winner = self.names[dim], self.winners[dim]
        judge = self._judge_nnx if self.dialect is Dialect.NNX else self._judge
        found = tuple(judge(i, dim, winner) for i in range(len(self.rules)))
        passed = self.dialect is Dialect.NNX and winner is None and isinstance(name, str)
        return Decision(dim, name, self.spec.dims[dim], winner, found, passed)

    def _judge(self, index: int, dim: int, winner: int | None) -> Verdict:
        rule, name = self.rules[index], self.names[dim]
        if rule.logical != name:
            return words.other_name(index, rule.logical, rule.axes, name)
        if index == winner:
            return self._won(index, dim)
        if winner is not None and winner < index:
            return words.decided(index, rule.logical, rule.axes, winner)
        # It came before the winner and lost: its axes belonged to dimensions decided earlier.
        holders = tuple(
            (axis, d, w)
            for axis in rule.axes
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
        size = None if self.shape is None else self.shape[dim]
        drops = self.dialect is Dialect.MAXTEXT
        return words.deciding(index, rule.logical, rule.axes, self.mesh, size, drops)

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """What keeps this spec from working on the mesh, one sentence each."""
        found = []
        for decision in self.decisions:
            verdict = decision.deciding
            if verdict and verdict.outcome in (Outcome.MISSING_AXIS, Outcome.INDIVISIBLE):
                found.append(f"Dimension {decision.dimension}: {verdict}")
            if decision.passed_through and self.mesh and decision.logical not in self.mesh.shape:
                found.append(
                    f"Dimension {decision.dimension}: no rule speaks of {shown(decision.logical)},"
                    " and nnx takes it for a mesh axis, which the mesh lacks."
                )
        return tuple(found)

    def unmatched(self) -> tuple[tuple[int, str, str | None], ...]:
        """Dimensions whose name no rule speaks of: (dimension, name, nearest known name)."""
        known = self.rules.by_name
        return tuple(
            (d, n, nearest(n, known))
            for d, n in enumerate(self.names)
            if isinstance(n, str) and n not in known
        )

    def explain(self) -> str:
        """The whole story, a dimension a paragraph, as a colleague would tell it."""
        lines = [f"{self.spec}  ({self.dialect.value} rules, {plural(len(self.rules), 'rule')})"]
        lines += [explain_decision(self, d) for d in self.decisions]
        return "\n".join(lines)

    def __repr__(self) -> str:
        names = ", ".join("_" if n is None else str(n) for n in self.names)
        return f"Resolution({names} → {self.spec}, {self.dialect.value})"


def explain_decision(resolution: Resolution, decision: Decision) -> str:
    """One paragraph on one dimension: who decided, and who would have liked to."""
    name = decision.logical
    head = f"dim {decision.dimension} {'(no name)' if name is None else f'“{name}”'}"
    if is_unconstrained(name):
        return f"dim {decision.dimension} is left to the compiler."
    if name is None:
        return f"{head} stays whole: no rule can match a dimension without a name."
    near = dict((d, n) for d, _, n in resolution.unmatched())
    if decision.passed_through:
        return f"{head} → {name}: no rule speaks of it, so nnx takes the name for a mesh axis."
    if decision.dimension in near:
        close = near[decision.dimension]
        hint = f" Did you mean “{close}”?" if close else ""
        return f"{head} stays whole: no rule knows “{name}”.{hint}"
    lost = [v for v in decision.verdicts if v.logical == name and not v.decides]
    before = [v for v in lost if v.outcome in (Outcome.TAKEN, Outcome.PART_TAKEN)]
    if decision.deciding is None:
        return f"{head} stays whole: " + " ".join(f"{v}" for v in before)
    whole = decision.deciding.outcome is Outcome.WHOLE
    lead = f"{head} stays whole" if whole else f"{head} → {', '.join(decision.axes) or 'whole'}"
    text = f"{lead}: {decision.deciding}"
    return " ".join([text, *(f"Before it, {v}" for v in before)])


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
        RuleError: for a name that stands twice in `names` (not in nnx), for names, rules or a
            dialect that cannot be read, and for a number of names other than the shape's rank.
    """
    dialect = Dialect.of(dialect)
    table = rules if isinstance(rules, Rules) else Rules.of(rules)
    if not isinstance(names, tuple) or (names, dialect) not in table.memo:
        names = read_names(names)
    found = search(names, table, dialect)
    sizes = None if shape is None else read_shape(shape)
    if sizes is not None and len(sizes) != len(names):
        raise RuleError(
            f"The array has {plural(len(sizes), 'dimension')} and {plural(len(names), 'name')}."
            " Give one logical name a dimension; write None for a dimension without one."
        )
    spec = found.spec
    if dialect is Dialect.MAXTEXT and mesh is not None:
        spec = without_size_one(spec, mesh)
    return Resolution(names, table, dialect, mesh, sizes, found.winners, spec)


def search(names: tuple[str | None, ...], rules: Rules, dialect: Dialect) -> Found:
    """The winners, remembered by signature: large models have many arrays and few signatures."""
    key = (names, dialect)
    found = rules.memo.get(key)
    if found is None:
        winners = _nnx(names, rules) if dialect is Dialect.NNX else _linen(names, rules)
        found = Found(winners, _spec_of(names, rules, winners, dialect))
        if len(rules.memo) >= MEMO_SIZE:
            rules.memo.clear()
        rules.memo[key] = found
    return found


def _linen(names: tuple[str | None, ...], rules: Rules) -> tuple[int | None, ...]:
    position: dict[str, int] = {}
    for dim, name in enumerate(names):
        if isinstance(name, str):
            if name in position:
                raise RuleError(
                    f"Logical name {shown(name)} stands at dimensions {position[name]} and {dim};"
                    " an array can use each name once. Give one of them a name of its own."
                )
            position[name] = dim
    by_name, entries = rules.by_name, rules.entries
    candidates = [i for name in position for i in by_name.get(name, ())]
    if len(position) > 1:
        candidates.sort()  # rule order alone is priority
    winners: list[int | None] = [None] * len(names)
    used: set[str] = set()
    for index in candidates:
        rule = entries[index]
        dim = position[rule.logical]
        if winners[dim] is None and used.isdisjoint(rule.axes):
            winners[dim] = index
            used.update(rule.axes)
    return tuple(winners)


def _nnx(names: tuple[str | None, ...], rules: Rules) -> tuple[int | None, ...]:
    by_name = rules.by_name
    return tuple(by_name[n][-1] if isinstance(n, str) and n in by_name else None for n in names)


def _spec_of(
    names: tuple[str | None, ...], rules: Rules, winners: tuple[int | None, ...], dialect: Dialect
) -> Spec:
    dims: list[tuple[str, ...]] = []
    for name, winner in zip(names, winners, strict=True):
        if winner is not None:
            rule = rules.entries[winner]
            if rule.nested:
                raise RuleError(
                    f"Rule {winner + 1} ({rule.logical} → {listed(rule.axes)}) leads to a tuple in"
                    " a tuple, which no PartitionSpec can hold. Write the axes side by side."
                )
            dims.append(rule.axes)
        elif dialect is Dialect.NNX and isinstance(name, str):
            dims.append((name,))
        else:
            dims.append(())
    free = frozenset(i for i, n in enumerate(names) if is_unconstrained(n))
    return Spec(tuple(dims), free)


def without_size_one(spec: Spec, mesh: MeshSpec) -> Spec:
    """The spec without mesh axes of size 1, as MaxText leaves it."""
    dims = tuple(tuple(a for a in dim if mesh.shape.get(a) != 1) for dim in spec.dims)
    return Spec(dims, spec.unconstrained, spec.unreduced, spec.reduced)
