"""Placing the arguments of a program on its devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardviz.core.errors import ProgramError, bytes_text
from shardviz.core.layout.spec import Spec
from shardviz.core.program.compiling.tracing import donated_leaves, placed_spec
from shardviz.core.program.program import Program
from shardviz.core.program.running.values import example

_REMEDY = "Give it a smaller shape, or take sv.compile, which needs no values."


class Inputs:
    """The arguments of one run: values that a person gave, or examples.

    Args:
        program: what takes them.
        mesh: the jax mesh they go to.
        leaves: the values that were given, checked; None for examples.
        positive: the positions of arguments whose examples are above 0.
    """

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        leaves: list[Any] | None,
        positive: Sequence[int] = (),
    ) -> None:
        self.program, self.mesh, self.leaves = program, mesh, leaves
        self.donated = donated_leaves(program)
        self.positive = positive

    @property
    def bytes_in_place(self) -> int:
        """Bytes on each device of given values that lie where they should, and stay there."""
        there = 0
        for position, leaf in enumerate(self.leaves or ()):
            layout = self.program.requests[position].layout
            if layout is not None and self._lies(leaf, position):
                there += layout.bytes_per_device
        return there

    def no_room(self, here: bool, free: int | None) -> str | None:
        """The sentence for values that cannot be made up on this host; None where they can.

        Each array is made on the host, block by block, and then copied to its devices.

        Args:
            here: whether the devices are simulated: their memory is that of the host.
            free: bytes that the host has free; None where it does not say.
        """
        if self.leaves is not None or free is None or not self.program.arrays:
            return None
        largest = max(self.program.arrays, key=lambda array: array.bytes)
        layouts = [request.layout for request in self.program.requests if request.layout]
        placed = sum(layout.bytes_per_device for layout in layouts) * self.program.mesh.size
        needed = largest.bytes + (placed if here else 0)
        if needed <= free:
            return None
        return (
            f"Making up values takes {bytes_text(needed)} on this machine, which has"
            f" {bytes_text(free)} free; the largest array is {largest.name}, {largest.short}, with"
            f" {bytes_text(largest.bytes)}. Nothing was made. {_REMEDY}"
        )

    def place_all(self) -> list[jax.Array]:
        """Every argument on its devices."""
        return jax.block_until_ready([self._place(i) for i in range(len(self.program.arrays))])

    def replace_donated(self, placed: list[jax.Array]) -> None:
        """Puts new arrays in place of those that the last run used up."""
        for position in self.donated:
            placed[position] = jax.block_until_ready(self._place(position))

    def whole(self, mesh: Mesh) -> list[jax.Array]:
        """Every argument as a whole, on the one device of a mesh of size 1."""
        placed = []
        for position, array in enumerate(self.program.arrays):
            spec = PartitionSpec()
            sharding = NamedSharding(mesh, spec, memory_kind=array.memory_kind)
            if self.leaves is None:
                placed.append(self._example(position, sharding))
            else:
                placed.append(jax.device_put(self.leaves[position], sharding))
        return placed

    def _example(self, position: int, sharding: NamedSharding) -> jax.Array:
        array = self.program.arrays[position]
        try:
            return example(array, sharding, position, position in self.positive)
        except MemoryError:
            raise ProgramError(
                f"{array.name}, {array.short}, takes {bytes_text(array.bytes)} in all, and this"
                f" machine has no room to make it up. {_REMEDY}"
            ) from None

    def _place(self, position: int) -> jax.Array:
        sharding = self._sharding(position)
        if self.leaves is None:
            return self._example(position, sharding)
        # What is donated is used up, and must not be the array of the person who gave it.
        alias = False if position in self.donated else None
        return jax.device_put(self.leaves[position], sharding, may_alias=alias)

    def _sharding(self, position: int) -> NamedSharding:
        spec = placed_spec(self.program.requests[position].spec or Spec())
        kind = self.program.arrays[position].memory_kind
        return NamedSharding(self.mesh, spec.to_jax(), memory_kind=kind)

    def _lies(self, leaf: Any, position: int) -> bool:
        if not isinstance(leaf, jax.Array) or position in self.donated:
            return False
        return leaf.sharding.is_equivalent_to(self._sharding(position), leaf.ndim)
