"""Notes on values that do not divide by the mesh axes that split them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardviz.core.layout.layout import Misfit
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.plan_notes import UnevenNote
from shardviz.core.program.plan_values import PlannedOp


def note_uneven(ops: Sequence[PlannedOp], mesh: MeshSpec) -> tuple[PlannedOp, ...]:
    """The same values, with a note on each that is not divisible by its mesh axes.

    >>> from shardviz.core.layout.partition_spec import Spec
    >>> split = PlannedOp("y", "op", shape=(10,), spec=Spec.parse("data"))
    >>> result = PlannedOp("output", "result", shape=(10,), operands=("y",))
    >>> noted = note_uneven((split, result), MeshSpec(("data",), (4,)))
    >>> [op.notes[0].code for op in noted]
    ['padded', 'lost']
    """
    by_name = {op.name: op for op in ops}
    noted = []
    for op in ops:
        returned = by_name.get(op.operands[0]) if op.operands else None
        if op.kind == "result" and returned is not None:
            note = _lost(op, returned, mesh)
        else:
            note = _padded(op, mesh)
        noted.append(op.changed(notes=(*op.notes, note)) if note else op)
    return tuple(noted)


def _lost(result: PlannedOp, made: PlannedOp, mesh: MeshSpec) -> UnevenNote | None:
    """The note on a result that lost an axis because its dimension does not divide."""
    for dim, axes in enumerate(made.spec.dims[: len(made.shape)]):
        kept = result.spec.dims[dim] if dim < result.spec.rank else ()
        misfit = _misfit(made, dim, mesh) if kept != axes else None
        if misfit is not None:
            return UnevenNote("lost", made.name, dim, misfit)
    return None


def _padded(op: PlannedOp, mesh: MeshSpec) -> UnevenNote | None:
    """The note on a value whose last shards are smaller or empty."""
    for dim in range(min(len(op.shape), op.spec.rank)):
        misfit = _misfit(op, dim, mesh)
        if misfit is not None:
            return UnevenNote("padded", op.name, dim, misfit)
    return None


def _misfit(op: PlannedOp, dim: int, mesh: MeshSpec) -> Misfit | None:
    axes, sizes = op.spec.dims[dim], mesh.shape
    # Parts of an axis, `data:(1)2`, are the compiler's own choice, and it chose what
    # fits.
    if not axes or not all(axis in sizes for axis in axes):
        return None
    if op.shape[dim] % math.prod(sizes[axis] for axis in axes) == 0:
        return None
    free = tuple(axis for axis in mesh.axis_names if axis not in op.spec.axes)
    return Misfit.find(op.shape[dim], axes, mesh, free)
