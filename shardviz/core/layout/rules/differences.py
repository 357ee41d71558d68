"""Where two tables or dialects split the same arrays differently, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardviz.core.display import Displayed, Fact, explanation
from shardviz.core.format import plural
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.path_rules import PathResolution
from shardviz.core.layout.rules.requests import Request
from shardviz.core.layout.rules.resolution import Resolution
from shardviz.core.layout.rules.rules import Dialect, PathRule, Rule


@dataclass(frozen=True)
class Reading:
    """What decided about an array, or one dimension of it, in one of two audits.

    Attributes:
        code: of an array `"own spec"`, `"refused"`, `"no names"`, `"spec"`,
            `"one element"`, `"several match"`, `"no pattern"` or `"pattern"`; of a
            dimension `"no name"`, `"axes used"`, `"no rule"` or `"rule"`.
        dialect: who read the table.
        rule: the index of the rule or pattern that decided.
        line: that rule or pattern.
        name: the logical name of the dimension.
        repeated: whether other rules are for that name, too.
        shared: axes that also split another dimension (nnx).
        dropped: axes of size 1 that are dropped (maxtext).
        exact: whether the pattern is the path itself.
        several: the patterns that match.
        spec: the spec.
        problem: what was raised.

    >>> Reading("own spec", Dialect.LINEN).dialect.value
    'linen'
    """

    code: str
    dialect: Dialect
    rule: int = 0
    line: Rule | PathRule | None = None
    name: str = ""
    repeated: bool = False
    shared: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    exact: bool = False
    several: tuple[int, ...] = ()
    spec: Spec | None = None
    problem: str = ""


@dataclass(frozen=True)
class ReadingDifference(Fact):
    """Why two audits differ about an array, or about one dimension of it.

    >>> one, two = Reading("own spec", Dialect.LINEN), Reading("no names", Dialect.NNX)
    >>> print(ReadingDifference(("linen", "nnx"), (one, two)))
    linen keeps the array's own spec; nnx has no names for rules.
    """

    labels: tuple[str, str]
    readings: tuple[Reading, Reading]
    dimension: int | None = None


@dataclass(frozen=True)
class SpecDifference:
    """An array that two audits split differently, and why.

    Attributes:
        path: the array.
        first, second: the specs; None where there is none.
        causes: what decided in each of them, per dimension where that differs.

    >>> SpecDifference("w", Spec(), None).path
    'w'
    """

    path: str
    first: Spec | None
    second: Spec | None
    causes: tuple[ReadingDifference, ...] = ()

    @property
    def why(self) -> str:
        """The causes in a sentence or two."""
        return " ".join(map(str, self.causes))


@dataclass(frozen=True, repr=False)
class AuditDiff(Displayed):
    """Where two tables or dialects split the same arrays differently; by `Audit.diff`.

    Attributes:
        rows: one SpecDifference per array, in the order of the first audit.
        labels: what the two audits are called, such as `"linen"` and `"nnx"`.
        alike: how many arrays both split alike.
        missing: the arrays that one of the audits lacks.

    >>> print(AuditDiff((), ("linen", "nnx"), 3).explain())
    0 of 3 arrays differ between linen and nnx.
    """

    rows: tuple[SpecDifference, ...]
    labels: tuple[str, str]
    alike: int
    missing: tuple[str, ...] = ()

    def explain(self) -> str:
        """Each difference and its cause; arrays that differ alike share a line."""
        return explanation(self)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[SpecDifference]:
        return iter(self.rows)

    def __repr__(self) -> str:
        between = " and ".join(self.labels)
        return f"AuditDiff({plural(len(self.rows), 'array')} between {between})"


def compare_rows(
    first: Iterable[Request],
    second: Iterable[Request],
    dialects: tuple[Dialect, Dialect],
) -> AuditDiff:
    """The arrays that two audits split differently, paired by their paths.

    >>> from shardviz.core.layout.trees.audit import audit
    >>> found = audit([("w", (8, 8), "embed mlp")], "mlp->model; embed->None; embed->data",
    ...               "data=2, model=2")
    >>> print(found.diff("nnx").rows[0].why)
    Dimension 0: linen takes rule 2 (embed → None), the first of the name whose axes are free;
    nnx takes rule 3 (embed → data), the last of the name.
    """
    labels = (dialects[0].value, dialects[1].value)
    if labels[0] == labels[1]:
        labels = ("the first table", "the second table")
    others = {r.path: r for r in second}
    found, alike, missing = [], 0, []
    for row in first:
        other = others.pop(row.path, None)
        if other is None:
            missing.append(row.path)
        elif _same(row.spec, other.spec):
            alike += 1
        else:
            causes = tuple(_causes(row, other, labels, dialects))
            found.append(SpecDifference(row.path, row.spec, other.spec, causes))
    return AuditDiff(tuple(found), labels, alike, (*missing, *others))


def _same(one: Spec | None, two: Spec | None) -> bool:
    if one is None or two is None:
        return one is two
    return one.equivalent(two)


def _causes(
    one: Request,
    two: Request,
    labels: tuple[str, str],
    dialects: tuple[Dialect, Dialect],
) -> Iterator[ReadingDifference]:
    a, b = one.resolution, two.resolution
    if a is None or b is None or one.spec_wins or two.spec_wins:
        yield ReadingDifference(
            labels, (_of_array(one, dialects[0]), _of_array(two, dialects[1]))
        )
        return
    for d in range(len(a.names)):
        free = (d in a.spec.unconstrained) != (d in b.spec.unconstrained)
        if a.spec.dims[d] != b.spec.dims[d] or free:
            yield ReadingDifference(
                labels, (_of_dimension(a, d), _of_dimension(b, d)), d
            )


def _of_array(row: Request, dialect: Dialect) -> Reading:
    """What decided about an array, where not each dimension by itself."""
    if row.spec_wins:
        return Reading("own spec", dialect)
    if row.by_path is not None:
        return _of_path(row.by_path)
    if row.spec is not None:
        return Reading("spec", dialect, spec=row.spec)
    if row.problem:
        return Reading("refused", dialect, problem=row.problem)
    return Reading("no names", dialect)


def _of_path(found: PathResolution) -> Reading:
    dialect = found.dialect
    if found.one_element:
        return Reading("one element", dialect)
    if found.match.several:
        return Reading("several match", dialect, several=found.match.several)
    if found.winner is None:
        if found.problem is not None and dialect is Dialect.KERAS:
            return Reading("refused", dialect, problem=str(found.problem))
        return Reading("no pattern", dialect)
    rule = found.rules[found.winner]
    exact = rule.pattern == found.path
    return Reading("pattern", dialect, found.winner, rule, exact=exact)


def _of_dimension(found: Resolution, dim: int) -> Reading:
    name, winner = found.names[dim], found.winners[dim]
    if winner is None:
        if not isinstance(name, str):
            return Reading("no name", found.dialect)
        code = "axes used" if name in found.rules.by_name else "no rule"
        return Reading(code, found.dialect, name=name)
    rule = found.rules[winner]
    shared: tuple[str, ...] = ()
    if found.dialect is Dialect.NNX:
        shared = tuple(a for a in rule.axes if found.spec.axes.count(a) > 1)
    return Reading(
        "rule",
        found.dialect,
        winner,
        rule,
        rule.logical,
        len(found.rules.by_name[rule.logical]) > 1,
        shared,
        tuple(a for a in rule.axes if a not in found.spec.dims[dim]),
    )
