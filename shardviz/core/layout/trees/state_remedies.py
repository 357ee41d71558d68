"""The remedy for arrays of an optimizer that lost the names of their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardviz.core.layout.rules.remedies import NamesFromParameter, Remedies, Remedy
from shardviz.core.layout.rules.requests import Request
from shardviz.core.layout.rules.wishes import Wish


def with_names_of_parameter(row: Request, want: Any) -> Remedies | None:
    """The remedy for an array of an optimizer that lost its names; None where it is no
    such array.

    Names are lost where an optimizer is given bare arrays in place of flax's boxes.

    Args:
        row: of an audit.
        want: what is wanted, as `shardviz.remedies` reads it.

    >>> from shardviz.core.layout.trees.audit import audit
    >>> w, moment = ((512, 8), "embed mlp"), ((512, 8), None)
    >>> tree = {"params": {"w": w}, "opt_state": {"mu": {"w": moment}}}
    >>> rows = audit(tree, [("embed", "data")], "data=4").rows
    >>> print(with_names_of_parameter(rows[1], "split")[0].spec)
    P('data', None)
    """
    audit = row.audit
    if audit is None or row.partner is None or row.by_path is not None:
        return None
    by_path = {r.path: r for r in audit.rows}
    mine = _unnamed_beside(row, by_path)
    if mine is None:
        return None
    wish = Wish.of(want, mine.names, audit.mesh, audit.dialect, row.path)
    if not wish.met(mine.spec, mine.layout, audit.mesh):
        return None
    others, saved = [], _saved(row, mine)
    for other in audit.rows:
        parameter = None if other is row else _unnamed_beside(other, by_path)
        if parameter is not None and not parameter.spec.equivalent(other.spec):
            others.append(other.path)
            saved += _saved(other, parameter)
    remedy = Remedy(
        NamesFromParameter(row.path, mine.names),
        audit.rules,
        mine.names,
        row.shape,
        mine.spec,
        _saved(row, mine),
        saved,
        tuple(others),
    )
    return Remedies((remedy,), wish, row.path)


def _unnamed_beside(row: Request, by_path: Mapping[str, Request]) -> Any:
    """The row of the parameter of an array without names, where its names would do for
    both.
    """
    if (
        row.partner is None
        or row.names is not None
        or row.spec_wins
        or row.layout is None
    ):
        return None
    found = by_path.get(row.partner)
    if (
        found is None
        or found.names is None
        or found.spec_wins
        or found.shape != row.shape
    ):
        return None
    return None if found.layout is None else found


def _saved(row: Request, parameter: Request) -> int:
    """What an array takes less per device that is split as its parameter."""
    assert row.layout is not None
    assert parameter.layout is not None
    each = row.array.bytes // parameter.layout.num_blocks
    return row.layout.bytes_per_device - each
