"""What to say, and what would work, when a dimension does not divide over its mesh axes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardviz.core.format import listed
from shardviz.core.layout.mesh import MeshSpec


@dataclass(frozen=True)
class Misfit:
    """A dimension of `size` elements that cannot be cut into `parts` equal blocks.

    >>> mesh = MeshSpec(("data", "model"), (4, 2))
    >>> misfit = Misfit.find(510, ("data",), mesh)
    >>> misfit.remainder, misfit.sizes, misfit.padding, misfit.other_axes
    (2, (508, 512), 2, ('model',))
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

    @property
    def remainder(self) -> int:
        """What is left over after equal blocks."""
        return self.size % self.parts

    @property
    def sizes(self) -> tuple[int, ...]:
        """The nearest sizes that divide: below (where it is not 0) and above."""
        below = self.size - self.remainder
        return tuple(s for s in (below, below + self.parts) if s)

    @property
    def padding(self) -> int:
        """How many elements of padding make it divide."""
        return -self.size % self.parts

    def sentence(self) -> str:
        """One sentence on what is wrong, one on what would work."""
        sizes = " and ".join(f"{size:,}" for size in self.sizes)
        over = " × ".join(self.axes)
        hint = f" It would divide over {listed(self.other_axes, 'or')}." if self.other_axes else ""
        return (
            f"{self.size:,} does not divide by {self.parts:,} ({over}): {self.remainder:,} left"
            f" over. Sizes that do: {sizes}; or pad by {self.padding:,}.{hint}"
        )
