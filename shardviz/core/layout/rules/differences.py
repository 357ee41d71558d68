"""Where two tables or dialects split the same arrays differently, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardviz.core.display import Displayed, Fact, explanation
from shardviz.core.format import plural
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.requests import Request
from shardviz.core.layout.rules.rules import Dialect, PathRule, Rule


@dataclass(frozen=True)
class Reading:
    """What decided about an array, or one dimension of it, in one of two audits.

    Attributes:
        code: `"rule"`, `"pattern"`, `"none"` (no rule or pattern decides), `"own spec"`,
            `"refused"`, or `"spec"` (all that is known is the spec).
        dialect: who read the table.
        rule: the index of the rule or pattern that decided.
        line: that rule or pattern.
        axes: how the dimension is split then.
        spec: how the array is split, or None.
        problem: what was raised.

    >>> Reading("own spec", Dialect.LINEN).dialect.value
    'linen'
    """

    code: str
    dialect: Dialect
    rule: int = 0
    line: Rule | PathRule | None = None
    axes: tuple[str, ...] = ()
    spec: Spec | None = None
    problem: str = ""


@dataclass(frozen=True)
class ReadingDifference(Fact):
    """Why two audits differ about an array, or about one dimension of it.

    >>> one, two = Reading("own spec", Dialect.LINEN), Reading("spec", Dialect.NNX)
    >>> print(ReadingDifference(("linen", "nnx"), (one, two)))
    linen keeps the array's own spec; nnx does not know how it is split.
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
    Dimension 0: linen takes rule 2 (embed → None); nnx takes rule 3 (embed → data).
    """
    labels = (dialects[0].value, dialects[1].value)
    if labels[0] == labels[1]:
        labels = ("the first table", "the second table")
    others = {r.path: r for r in second}
    differing, alike, missing = [], 0, []
    for row in first:
        other = others.pop(row.path, None)
        if other is None:
            missing.append(row.path)
        elif _same(row.spec, other.spec):
            alike += 1
        else:
            causes = []
            for dim in _dimensions(row, other):
                readings = _read(row, dialects[0], dim), _read(other, dialects[1], dim)
                causes.append(ReadingDifference(labels, readings, dim))
            what = (row.path, row.spec, other.spec, tuple(causes))
            differing.append(SpecDifference(*what))
    return AuditDiff(tuple(differing), labels, alike, (*missing, *others))


def _same(one: Spec | None, two: Spec | None) -> bool:
    if one is None or two is None:
        return one is two
    return one.equivalent(two)


def _dimensions(one: Request, two: Request) -> Iterator[int | None]:
    """The dimensions that differ; None where rules did not decide them one by one."""
    a, b = one.resolution, two.resolution
    if a is None or b is None or one.spec_wins or two.spec_wins:
        yield None
        return
    for d in range(len(a.names)):
        free = (d in a.spec.unconstrained) != (d in b.spec.unconstrained)
        if a.spec.dims[d] != b.spec.dims[d] or free:
            yield d


def _read(row: Request, dialect: Dialect, dim: int | None) -> Reading:
    """What decided about an array or one of its dimensions."""
    names, paths = row.resolution, row.by_path
    if dim is not None and names is not None:
        axes, winner = names.spec.dims[dim], names.winners[dim]
        if winner is None:
            return Reading("none", dialect, axes=axes)
        return Reading("rule", dialect, winner, names.rules[winner], axes)
    if row.spec_wins:
        return Reading("own spec", dialect)
    if paths is not None and paths.winner is not None and not paths.one_element:
        return Reading("pattern", dialect, paths.winner, paths.rules[paths.winner])
    if row.problem and row.spec is None:
        return Reading("refused", dialect, problem=row.problem)
    return Reading("spec", dialect, spec=row.spec)
