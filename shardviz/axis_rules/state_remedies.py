"""The remedy for optimizer arrays that lost their parameters' logical names."""

from __future__ import annotations

from shardviz.axis_rules.remedies import KeepParameterNames, Remedies, Remedy, Wish
from shardviz.axis_rules.requests import Request


def with_names_of_parameter(row: Request, want: object) -> Remedies | None:
    """Returns the remedy if `row` is an optimizer array that lost its names, or None.

    An optimizer loses the names if it is initialised with bare arrays instead of flax's
    metadata wrappers.

    Args:
        row: a row of an audit.
        want: the request, in any form that `shardviz.remedies` accepts.

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
    row_parameter, row_saved, total, others = None, 0, 0, []
    for moment in audit.rows:
        parameter = by_path.get(moment.partner or "")
        if parameter is None or parameter.names is None or parameter.layout is None:
            continue
        # Skip moments that still have names or have their own spec.
        if moment.names is not None or moment.spec_wins or moment.layout is None:
            continue
        if parameter.shape != moment.shape or parameter.spec_wins:
            continue
        bytes_after = moment.array.bytes // parameter.layout.num_blocks
        saved = moment.layout.bytes_per_device - bytes_after
        if moment.path == row.path:
            row_parameter, row_saved = parameter, saved
        elif not parameter.spec.equivalent(moment.spec):
            others.append(moment.path)
        else:
            continue
        total += saved
    if row_parameter is None:
        return None
    names = row_parameter.names
    wish = Wish.of(want, names, audit.mesh, audit.dialect, row.path)
    if not wish.met(row_parameter.spec, row_parameter.layout, audit.mesh):
        return None
    remedy = Remedy(
        KeepParameterNames(names, row.path),
        audit.rules,
        names,
        row_parameter.spec,
        leaf_bytes_saved=row_saved,
        bytes_saved=total,
        others=tuple(others),
    )
    return Remedies((remedy,), wish)
