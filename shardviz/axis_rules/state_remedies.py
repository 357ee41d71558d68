"""The remedy for arrays of an optimizer that lost the names of their parameters."""

from __future__ import annotations

from typing import Any

from shardviz.axis_rules.remedies import Kind, Remedies, Remedy, Step, Wish
from shardviz.axis_rules.requests import Request


def with_names_of_parameter(row: Request, want: Any) -> Remedies | None:
    """The remedy for an array of an optimizer that lost its names, or None.

    Names are lost where an optimizer is given bare arrays in place of flax's boxes.

    Args:
        row: of an audit.
        want: what is wanted, as `shardviz.remedies` reads it.

    >>> from shardviz.axis_rules.audit import audit
    >>> w, moment = ((512, 8), "embed mlp"), ((512, 8), None)
    >>> tree = {"params": {"w": w}, "opt_state": {"mu": {"w": moment}}}
    >>> rows = audit(tree, [("embed", "data")], "data=4").rows
    >>> print(with_names_of_parameter(rows[1], "split")[0].spec)
    P('data', None)
    """
    audit = row.audit
    if audit is None or row.by_path is not None:
        return None
    by_path = {r.path: r for r in audit.rows}
    mine, others, saved, total = None, [], 0, 0
    for other in audit.rows:
        parameter = by_path.get(other.partner or "")
        if parameter is None or parameter.names is None or parameter.layout is None:
            continue
        # Its names must do for both.
        if other.names is not None or other.spec_wins or other.layout is None:
            continue
        if parameter.shape != other.shape or parameter.spec_wins:
            continue
        each = other.array.bytes // parameter.layout.num_blocks
        less = other.layout.bytes_per_device - each
        if other.path == row.path:
            mine, saved = parameter, less
        elif not parameter.spec.equivalent(other.spec):
            others.append(other.path)
        else:
            continue
        total += less
    if mine is None:
        return None
    wish = Wish.of(want, mine.names, audit.mesh, audit.dialect, row.path)
    if not wish.met(mine.spec, mine.layout, audit.mesh):
        return None
    edit = Step(Kind.NAMES, new=mine.names, path=row.path)
    now = (mine.names, row.shape, mine.spec)
    remedy = Remedy((edit,), audit.rules, *now, saved, total, tuple(others))
    return Remedies((remedy,), wish)
