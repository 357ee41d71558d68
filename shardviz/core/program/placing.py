"""Placing the arguments of a program on its devices."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from shardviz.core.layout.spec import Spec
from shardviz.core.program.program import Program
from shardviz.core.program.tracing import donated_leaves, placed_spec
from shardviz.core.program.values import example


class Inputs:
    """The arguments of one run: values that a person gave, or examples.

    Args:
        program: what takes them.
        mesh: the jax mesh they go to.
        leaves: the values that were given, checked; None for examples.
    """

    def __init__(self, program: Program, mesh: Mesh, leaves: list[Any] | None) -> None:
        self.program, self.mesh, self.leaves = program, mesh, leaves
        self.donated = donated_leaves(program)

    @property
    def bytes_in_place(self) -> int:
        """Bytes on each device of given values that lie where they should, and stay there."""
        there = 0
        for position, leaf in enumerate(self.leaves or ()):
            layout = self.program.requests[position].layout
            if layout is not None and self._lies(leaf, position):
                there += layout.bytes_per_device
        return there

    def place_all(self) -> list[jax.Array]:
        """Every argument on its devices."""
        return jax.block_until_ready([self._place(i) for i in range(len(self.program.arrays))])

    def replace_donated(self, placed: list[jax.Array]) -> None:
        """Puts new arrays in place of those that the last run used up."""
        for position in self.donated:
            placed[position] = jax.block_until_ready(self._place(position))

    def _place(self, position: int) -> jax.Array:
        sharding = self._sharding(position)
        if self.leaves is None:
            return example(self.program.arrays[position], sharding, position)
        # What is donated is used up, and must not be the array of the person who gave it.
        alias = False if position in self.donated else None
        return jax.device_put(self.leaves[position], sharding, may_alias=alias)

    def _sharding(self, position: int) -> NamedSharding:
        spec = placed_spec(self.program.requests[position].spec or Spec())
        return NamedSharding(self.mesh, spec.to_jax())

    def _lies(self, leaf: Any, position: int) -> bool:
        if not isinstance(leaf, jax.Array) or position in self.donated:
            return False
        return leaf.sharding.is_equivalent_to(self._sharding(position), leaf.ndim)
