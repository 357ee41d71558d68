"""Values that do not divide over the axes they were given: what the compiler makes of them.

Inside a program an uneven value is padded; a result of the program must divide, or it ends whole
on every device, and nobody says so (jax#26946). Pure: values of a plan in, the same with notes out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from shardviz.core.errors import plural
from shardviz.core.layout.divide import Misfit
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.propagation.planned import PlannedOp


def note_uneven(ops: Sequence[PlannedOp], mesh: MeshSpec) -> tuple[PlannedOp, ...]:
    """The same values, with a note on each that does not divide.

    >>> from shardviz.core.layout.spec import Spec
    >>> split = PlannedOp("y", "op", shape=(10,), spec=Spec.parse("data"))
    >>> result = PlannedOp("output", "result", shape=(10,), operands=("y",))
    >>> noted = note_uneven((split, result), MeshSpec(("data",), (4,)))
    >>> print(noted[1].note)
    y is split over data along dimension 0, and as a result it is whole on every device: ...
    """
    by_name = {op.name: op for op in ops}
    return tuple(_noted(op, by_name, mesh) for op in ops)


def _noted(op: PlannedOp, by_name: dict[str, PlannedOp], mesh: MeshSpec) -> PlannedOp:
    if op.kind == "result" and op.operands and op.operands[0] in by_name:
        words = _lost(op, by_name[op.operands[0]], mesh)
    else:
        words = _padded(op, mesh)
    return replace(op, note=" ".join(filter(None, (op.note, words)))) if words else op


def _lost(result: PlannedOp, made: PlannedOp, mesh: MeshSpec) -> str:
    """What is said of a result that lost an axis because it did not divide."""
    for dim, axes in enumerate(made.spec.dims[: len(made.shape)]):
        kept = result.spec.dims[dim] if dim < result.spec.rank else ()
        misfit = _misfit(made, dim, mesh) if kept != axes else None
        if misfit is not None:
            return (
                f"{made.name} is split over {' × '.join(axes)} along dimension {dim}, and as a"
                " result it is whole on every device: results must divide evenly, and"
                f" {misfit.sentence()}"
            )
    return ""


def _padded(op: PlannedOp, mesh: MeshSpec) -> str:
    for dim, axes in enumerate(op.spec.dims[: len(op.shape)]):
        misfit = _misfit(op, dim, mesh) if axes else None
        if misfit is not None:
            block = -(-misfit.size // misfit.parts)
            full, rest = divmod(misfit.size, block)
            empty = misfit.parts - full - bool(rest)
            told = [f"{plural(full, 'block')} of {block:,}"]
            told += [f"one of {rest:,}"] if rest else []
            told += [f"{plural(empty, 'block')} of padding alone"] if empty else []
            return (
                f"Dimension {dim} is uneven over {' × '.join(misfit.axes)}:"
                f" {', then '.join(told)}; the compiler pads. {misfit.sentence()}"
            )
    return ""


def _misfit(op: PlannedOp, dim: int, mesh: MeshSpec) -> Misfit | None:
    axes = op.spec.dims[dim]
    # Parts of an axis, `data:(1)2`, are the compiler's own choice, and it chose what fits.
    sizes = mesh.shape
    if not axes or any(a not in sizes for a in axes):
        return None
    if op.shape[dim] % math.prod(sizes[a] for a in axes) == 0:
        return None
    used = {a for other in op.spec.dims for a in other}
    free = tuple(a for a in mesh.axis_names if a not in used)
    return Misfit.find(op.shape[dim], axes, mesh, free)
