"""resolve() -> Resolution: which rule decided each dimension, and why others did not.

`matching.py` finds the winning rules quickly; verdicts are created when first read. A
resolution is the first stage of a program. It doesn't need jax, and the Explorer
computes it after every edit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardviz.axis_rules.dialects import Dialect, NameDialect
from shardviz.axis_rules.matching import match_rules
from shardviz.axis_rules.remedies import Remedies, Remedy
from shardviz.axis_rules.remedy_search import Leaf
from shardviz.axis_rules.rule_remedies import RuleSearch
from shardviz.axis_rules.rules import Rules
from shardviz.axis_rules.verdicts import (
    BROKEN,
    AxisNameProblem,
    AxisShared,
    DecidedBefore,
    Decision,
    Holder,
    OtherName,
    Overridden,
    PartTaken,
    Problem,
    SpecProblem,
    Taken,
    Verdict,
    VerdictProblem,
    deciding,
)
from shardviz.base.array_spec import read_names, read_shape
from shardviz.base.display import Displayed, explanation, sentence
from shardviz.base.errors import RuleError, SpecError
from shardviz.base.format import plural
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import MAX_RANK, Spec


@dataclass(frozen=True, repr=False)
class Resolution(Displayed):
    """How one array's logical names became a spec; returned by `shardviz.resolve`.

    Attributes:
        names: the logical names, one per dimension.
        rules: the table.
        dialect: the library that reads the table.
        mesh: the mesh that verdicts are checked against, or None.
        shape: the shape that verdicts are checked against, or None.
        winners: for each dimension, the index of the rule that decided, or None.
        spec: the resulting Spec.

    >>> import shardviz as sv
    >>> rules = sv.Rules.of(("mlp", "model"), ("embed", "model"), ("embed", None))
    >>> found = sv.resolve(("embed", "mlp"), rules)
    >>> str(found.spec)
    "P(None, 'model')"
    >>> print(found.decisions[0].verdicts[1].reason)
    does not apply: rule 1 already uses 'model' for dimension 1.
    """

    _adds = ("decisions", "problems")

    names: tuple[str | None, ...]
    rules: Rules
    dialect: NameDialect
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
        verdicts = tuple(self.verdict(dim, i) for i in range(len(self.rules)))
        passed = isinstance(name, str) and winner is None
        passed = passed and self.dialect.unknown_name_is_axis
        # A name with rules is never used as a mesh axis, even if no rule applies.
        passed = passed and name not in self.rules.by_name
        axes = self.spec.dims[dim]
        return Decision(
            dim, name, axes, winner, verdicts, passed, self.rules, self.dialect
        )

    def verdict(self, dimension: int, rule: int) -> Verdict:
        """Returns one rule's verdict for one dimension, without creating the others."""
        entry, name = self.rules.entries[rule], self.names[dimension]
        winner = self.winners[dimension]
        if rule == winner:
            return self._won(rule, dimension)
        # The reasons are checked in flax's order: the name, repeats, then the axes.
        if entry.logical != name:
            return OtherName(rule, entry, name)
        last = self.rules.by_name[entry.logical][-1]
        if self.dialect.last_repeat_wins and rule != last:
            return Overridden(rule, entry, last, self.dialect.library)
        if winner is not None and winner < rule:
            return DecidedBefore(rule, entry, winner)
        # The rule comes before the winner, so other dimensions already used its axes.
        taken = self._holders(rule)
        if {axis for axis, _, _ in taken} != set(entry.axes):
            return PartTaken(rule, entry, taken)
        return Taken(rule, entry, taken)

    def _holders(self, rule: int) -> tuple[Holder, ...]:
        """Returns the rule's axes that earlier rules assigned to other dimensions."""
        holders = []
        for axis in dict.fromkeys(self.rules[rule].axes):
            for dim, by in enumerate(self.winners):
                if by is not None and by < rule and axis in self.rules[by].axes:
                    holders.append((axis, dim, by))
        return tuple(holders)

    def _won(self, index: int, dim: int) -> Verdict:
        rule, sizes = self.rules[index], None
        if self.shape is not None:
            sizes = (self.shape[dim],)
        verdict = deciding(
            index, rule, (rule.axes,), sizes, self.mesh, self.dialect, self.spec.axes
        )
        # If dimensions are resolved independently, several may use the same axes.
        shared: list[Holder] = []
        for other_dim, axes in enumerate(self.spec.dims):
            if other_dim != dim and self.dialect.dimensions_apart:
                shared += [
                    (axis, other_dim, None) for axis in axes if axis in rule.axes
                ]
        if not shared or verdict.outcome in BROKEN:
            return verdict
        return AxisShared(index, rule, tuple(shared))

    @cached_property
    def failures(self) -> tuple[Problem, ...]:
        """The reasons why this spec is invalid on the mesh."""
        problems: list[Problem] = []
        shared = False
        for decision in self.decisions:
            verdict = decision.deciding
            if verdict is not None and verdict.outcome in BROKEN:
                # Axes that several dimensions share are reported once, for the spec.
                if isinstance(verdict, AxisShared):
                    shared = True
                else:
                    problems.append(VerdictProblem(decision))
            if self._is_no_axis(decision):
                problems.append(AxisNameProblem(decision))
        if (shared or not problems) and self.mesh is not None:
            try:
                self.spec.check(self.mesh)
            except SpecError as error:
                problems.append(SpecProblem(str(error)))
        return tuple(problems)

    def _is_no_axis(self, decision: Decision) -> bool:
        """Whether the name was used as a mesh axis that the mesh doesn't have."""
        if not decision.passed_through or self.mesh is None:
            return False
        return decision.logical not in self.mesh.shape

    @property
    def problems(self) -> tuple[str, ...]:
        """The reasons in `failures`, one sentence each."""
        return tuple(map(str, self.failures))

    @property
    def unknown(self) -> tuple[str, ...]:
        """The array's logical names that have no rule."""
        rules_by_name = self.rules.by_name
        return tuple(
            n for n in self.names if isinstance(n, str) and n not in rules_by_name
        )

    def unmatched(self) -> tuple[tuple[int, str, str | None], ...]:
        """Returns (dimension, name, nearest name in rules) for names without a rule."""
        unmatched = []
        for dim, name in enumerate(self.names):
            if name in self.unknown and name is not None:
                unmatched.append((dim, name, self.rules.nearest(name)))
        return tuple(unmatched)

    def remedies(self, want: object, dtype: str = "float32") -> Remedies:
        """Finds the smallest edits that split the array as requested.

        Raises:
            ShardvizError: if the request cannot be parsed.

        >>> import shardviz as sv
        >>> found = sv.resolve("embed mlp", [("mlp", "model"), ("embed", "model")])
        >>> found.remedies("split 0")[0].edit
        'Move rule 2 (embed → model) before rule 1'
        """
        return self._search(dtype).find(want)

    def _search(self, dtype: str = "float32") -> RuleSearch:
        leaf = Leaf(None, self.names, self.shape, dtype)
        return RuleSearch(leaf, self.rules, self.mesh, self.dialect)

    def first_remedy(self) -> tuple[int, Remedy] | None:
        """Returns an invalid or unsplit dimension, and an edit that splits it.

        Invalid dimensions come first. Skips dimensions that a rule leaves unsplit on
        purpose; also skips dimensions without a name, unless none has a name.
        """
        fails, asks = [], []
        for decision in self.decisions:
            verdict = decision.deciding
            if self._is_no_axis(decision) or (verdict and verdict.outcome in BROKEN):
                fails.append(decision)
            elif verdict is None and not decision.passed_through:
                unnamed = not any(self.names)
                rules_for_it = self.rules.by_name.get(decision.logical or "")
                if unnamed or decision.near or rules_for_it:
                    asks.append(decision)
        # Share one search between all dimensions, because it caches layouts.
        search = self._search()
        for decision in fails + asks:
            dim = decision.dimension
            remedy = search.find(f"split {dim}").suggested
            # If a name looks misspelt, don't suggest adding a rule for it.
            if remedy and not (decision.near and remedy.names == self.names):
                return dim, remedy
        return None

    def explain(self) -> str:
        """Explains each dimension, and suggests an edit that would split another."""
        return explanation(self)

    def explain_dimension(self, dimension: int) -> str:
        """Explains one dimension in one line."""
        return sentence(self.decisions[dimension])

    def __repr__(self) -> str:
        names = ", ".join("_" if n is None else str(n) for n in self.names)
        return f"Resolution({names} → {self.spec}, {self.dialect.name})"


def resolve(
    names: Any,
    rules: Any,
    *,
    mesh: MeshSpec | None = None,
    shape: Any = None,
    dialect: object = Dialect.LINEN,
) -> Resolution:
    """Resolves logical names to a spec, with a verdict for every rule.

    Raises:
        RuleError: if a name occurs twice in `names` (except in nnx), if `names`,
            `rules` or `dialect` cannot be parsed, or if the number of names differs
            from the rank.
    """
    dialect = Dialect.of(dialect, paths=False)
    if not isinstance(rules, Rules):
        rules = Rules.of(rules)
    # Audits resolve thousands of arrays, so values are not parsed twice.
    if type(names) is not tuple or len(names) > MAX_RANK:
        names = read_names(names)
    if shape is not None:
        shape = read_shape(shape)
        if len(shape) != len(names):
            raise RuleError(
                f"The array has {plural(len(shape), 'dimension')} and"
                f" {plural(len(names), 'name')}. Give one logical name for each"
                " dimension; write None for a dimension without one."
            )
    winners, spec = match_rules(names, rules, mesh, dialect)
    # A frozen dataclass' constructor calls a Python function per field, which would
    # double the time of resolve().
    resolution = object.__new__(Resolution)
    fields = resolution.__dict__
    fields["names"], fields["rules"], fields["dialect"] = names, rules, dialect
    fields["mesh"], fields["shape"] = mesh, shape
    fields["winners"], fields["spec"] = winners, spec
    return resolution
