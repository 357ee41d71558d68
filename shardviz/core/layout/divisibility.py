"""Dimensions that do not divide into equal blocks: what is wrong, and what would work."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardviz.core.format import joined, listed
from shardviz.core.layout.mesh import MeshSpec


def sizes_that_divide(size: int, parts: int) -> str:
    """What is left over of `size` elements in `parts` equal blocks, and which sizes would do.

    >>> sizes_that_divide(510, 4)
    '2 left over. Sizes that do: 508 and 512; or pad by 2.'
    """
    below, padding = size - size % parts, -size % parts
    fits = joined(f"{n:,}" for n in (below, size + padding) if n)  # 0 elements are not offered
    return f"{size % parts:,} left over. Sizes that do: {fits}; or pad by {padding:,}."


@dataclass(frozen=True)
class Misfit:
    """A dimension of `size` elements that does not divide into `parts` equal blocks.

    >>> mesh = MeshSpec(("data", "model"), (4, 2))
    >>> misfit = Misfit.find(510, ("data",), mesh)
    >>> misfit.parts, misfit.other_axes
    (4, ('model',))
    >>> Misfit.find(512, ("data",), mesh) is None
    True
    """

    size: int
    axes: tuple[str, ...]
    parts: int
    other_axes: tuple[str, ...]

    @staticmethod
    def find(
        size: int, axes: tuple[str, ...], mesh: MeshSpec, free: tuple[str, ...] | None = None
    ) -> Misfit | None:
        """The misfit of `size` over `axes`, or None where it divides.

        `free` limits the other axes that are offered; every axis of the mesh where not given.
        """
        parts = math.prod(mesh.shape.get(a, 1) for a in axes)
        if size % parts == 0:
            return None
        offered = mesh.axis_names if free is None else free
        fits = tuple(
            a for a in offered if a not in axes and mesh.shape[a] > 1 and size % mesh.shape[a] == 0
        )
        return Misfit(size, axes, parts, fits)

    def sentence(self) -> str:
        """One sentence on what is wrong, one on what would work."""
        over = " × ".join(self.axes)
        hint = f" It would divide over {listed(self.other_axes, 'or')}." if self.other_axes else ""
        return (
            f"{self.size:,} does not divide by {self.parts:,} ({over}):"
            f" {sizes_that_divide(self.size, self.parts)}{hint}"
        )
