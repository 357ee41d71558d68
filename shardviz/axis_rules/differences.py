"""Finds arrays that two tables or dialects split differently, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardviz.axis_rules.requests import Request
from shardviz.base.display import Displayed, Fact, explanation, sentence
from shardviz.base.format import plural
from shardviz.base.pairing import pair
from shardviz.base.partition_spec import Spec


@dataclass(frozen=True)
class SpecDifference(Fact):
    """An array that two audits split differently; `str()` gives the cause.

    Attributes:
        labels: the names of the two audits.
        rows: the array's row in each audit.
        dimensions: the dimensions that differ; `(None,)` if the array's spec was
            decided as a whole, not per dimension.

    >>> import shardviz as sv
    >>> found = sv.audit([("w", (8,), "mlp")], [("mlp", "x")], "x=2")
    >>> [one.dimensions for one in found.diff(sv.audit([("w", (8,), "mlp")], [], "x=2"))]
    [(0,)]
    """

    labels: tuple[str, str]
    rows: tuple[Request, Request]
    dimensions: tuple[int | None, ...]

    @property
    def path(self) -> str:
        """The path of the array."""
        return self.rows[0].path

    @property
    def first(self) -> Spec | None:
        """The array's spec in the first audit; None if unknown."""
        return self.rows[0].spec

    @property
    def second(self) -> Spec | None:
        """The array's spec in the second audit; None if unknown."""
        return self.rows[1].spec

    @property
    def why(self) -> str:
        """The causes in one or two sentences."""
        return sentence(self)


@dataclass(frozen=True, repr=False)
class AuditDiff(Displayed):
    """The arrays that two audits split differently; returned by `Audit.diff`.

    Attributes:
        rows: one SpecDifference per array, in the order of the first audit.
        labels: the names of the two audits, such as `"linen"` and `"nnx"`.
        alike: number of arrays that both audits split in the same way.
        missing: paths of arrays that are in only one of the audits.

    >>> from shardviz.types import AuditDiff
    >>> print(AuditDiff((), ("linen", "nnx"), 3).explain())
    0 of 3 arrays differ between linen and nnx.
    """

    rows: tuple[SpecDifference, ...]
    labels: tuple[str, str]
    alike: int
    missing: tuple[str, ...] = ()

    def explain(self) -> str:
        """Explains each difference; arrays with the same difference share a line."""
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
    labels: tuple[str, str],
) -> AuditDiff:
    """Compares the specs in two audits, pairing arrays by path.

    >>> import shardviz as sv
    >>> found = sv.audit([("w", (8, 8), "embed mlp")], "mlp->model; embed->None; embed->data",
    ...               "data=2, model=2")
    >>> print(found.diff("nnx").rows[0].why)
    Dimension 0: linen takes rule 2 (embed → None); nnx takes rule 3 (embed → data).
    """
    rows = pair(first, second, lambda row: row.path, lambda row: row.path)
    differing = []
    for row, second_row in rows.paired:
        if not _same(row.spec, second_row.spec):
            dimensions = tuple(_dimensions(row, second_row))
            differing.append(SpecDifference(labels, (row, second_row), dimensions))
    alike = len(rows.paired) - len(differing)
    missing = tuple(row.path for row in (*rows.gone, *rows.new))
    return AuditDiff(tuple(differing), labels, alike, missing)


def _same(first: Spec | None, second: Spec | None) -> bool:
    if first is None or second is None:
        return first is second
    return first.equivalent(second)


def _dimensions(first: Request, second: Request) -> Iterator[int | None]:
    """Yields the dimensions that differ, or None for the whole array."""
    first_names, second_names = first.resolution, second.resolution
    if (
        first_names is None
        or second_names is None
        or first.spec_wins
        or second.spec_wins
    ):
        yield None
        return
    for d in range(len(first_names.names)):
        # Dimensions with equal axes differ if only one of them is unconstrained.
        free = (d in first_names.spec.unconstrained) != (
            d in second_names.spec.unconstrained
        )
        if first_names.spec.dims[d] != second_names.spec.dims[d] or free:
            yield d
