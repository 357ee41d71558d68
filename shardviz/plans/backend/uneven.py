"""Notes on values whose mesh axes do not divide them evenly."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardviz.base.layout import Misfit
from shardviz.base.mesh import MeshSpec
from shardviz.plans.plan_notes import PaddedDimension, UnevenResult
from shardviz.plans.plan_values import PlannedOp


def note_uneven(ops: Sequence[PlannedOp], mesh: MeshSpec) -> tuple[PlannedOp, ...]:
    """Adds a note to each value that its mesh axes do not divide evenly.

    >>> from shardviz.base.partition_spec import Spec
    >>> split = PlannedOp("y", "op", shape=(10,), spec=Spec.parse("data"))
    >>> result = PlannedOp("output", "result", shape=(10,), operands=("y",))
    >>> noted = note_uneven((split, result), MeshSpec(("data",), (4,)))
    >>> [type(op.notes[0]).__name__ for op in noted]
    ['PaddedDimension', 'UnevenResult']
    """
    by_name = {op.name: op for op in ops}
    noted = []
    # Types and specs that divide evenly, because many values share them.
    even = set()
    for op in ops:
        value, split = op, (op.shape, op.spec.dims)
        if op.kind != "result":
            if split in even:
                noted.append(op)
                continue
            even.add(split)
        if op.kind == "result" and op.operands and op.operands[0] in by_name:
            value = by_name[op.operands[0]]
        for dim in range(min(len(value.shape), value.spec.rank)):
            # A result gets a note only if it isn't split like the value it returns.
            is_kept = op.spec.dims[dim : dim + 1] == (value.spec.dims[dim],)
            if value is not op and is_kept:
                continue
            misfit = _misfit(value, dim, mesh)
            if misfit is not None:
                if value is op:
                    note = PaddedDimension(value.name, dim, misfit)
                else:
                    note = UnevenResult(value.name, dim, misfit)
                op = op.changed(notes=(*op.notes, note))
                even.discard(split)
                break
        noted.append(op)
    return tuple(noted)


def _misfit(op: PlannedOp, dim: int, mesh: MeshSpec) -> Misfit | None:
    axes, sizes = op.spec.dims[dim], mesh.shape
    # The compiler itself chooses sub-axes such as `data:(1)2`, and chooses ones that
    # divide evenly.
    if not axes or not set(axes) <= sizes.keys():
        return None
    if op.shape[dim] % math.prod(sizes[axis] for axis in axes) == 0:
        return None
    free = tuple(axis for axis in mesh.axis_names if axis not in op.spec.axes)
    return Misfit.find(op.shape[dim], axes, mesh, free)
