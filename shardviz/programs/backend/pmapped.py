"""Reads the settings of `jax.pmap`, and lays out the arguments of a call.

`jax.pmap` returns a function that calls `jax.jit(jax.shard_map(...))` over a mesh with
one axis. Arguments and results get shardings on that mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from shardviz.axis_rules.libraries import spec_of
from shardviz.base.array_spec import ArraySpec
from shardviz.base.backend.jax_compat import is_pmapped, pmap_settings
from shardviz.base.errors import ProgramError
from shardviz.base.mesh import MeshSpec
from shardviz.programs.backend.arguments import is_array, spread
from shardviz.programs.backend.bridge import adopt_mesh


@dataclass(frozen=True)
class Pmapped:
    """The settings of `jax.pmap`.

    Attributes:
        axis_name: name of the mapped axis; jax chooses one if the user gave none.
        in_axes: mapped dimension of each argument, as a pytree prefix; None for
            arguments that aren't mapped.
        out_axes: mapped dimension of each result, in the same form.
        devices: the devices that the user passed, or None.
        static: positions of static arguments.
        donate: positions of donated arguments.
    """

    axis_name: str
    in_axes: Any
    out_axes: Any
    devices: Any
    static: tuple[int, ...]
    donate: tuple[int, ...]

    def specs(self, axes: Any) -> Any:
        """Converts `in_axes` or `out_axes`, a pytree prefix, to PartitionSpecs."""

        def spec(axis: int | None) -> PartitionSpec:
            if axis is None:
                return PartitionSpec()
            return PartitionSpec(*(None,) * axis, self.axis_name)

        return jax.tree.map(spec, axes, is_leaf=lambda axis: axis is None)

    def laid_out(
        self, arguments: Sequence[Any], positions: Sequence[int | None]
    ) -> tuple[tuple[Any, ...], MeshSpec]:
        """Returns the arguments with their shardings under pmap, and pmap's mesh.

        Args:
            arguments: pytrees of arrays.
            positions: position of each argument in the call; None for keyword
                arguments, which are mapped over their first dimension.

        Raises:
            ProgramError: if `in_axes` isn't a prefix of the arguments, or maps nothing.
        """
        axes = []
        for position in positions:
            if position is None:
                axes.append(0)
            elif isinstance(self.in_axes, (tuple, list)):
                axes.append(self.in_axes[position])
            else:
                axes.append(self.in_axes)
        # pmap moves every array to its mesh, so earlier shardings don't matter.
        leaves, tree = jax.tree.flatten(tuple(arguments))
        full = tree.unflatten(range(len(leaves)))
        specs = spread(self.specs(tuple(axes)), full, "in_axes of jax.pmap")
        pairs = list(zip(leaves, specs, strict=True))
        mesh = self._mesh(pairs)
        placed = [_placed(leaf, spec, mesh) for leaf, spec in pairs]
        return tree.unflatten(placed), adopt_mesh(mesh)

    def _mesh(self, pairs: Sequence[tuple[Any, PartitionSpec]]) -> Any:
        names, types = (self.axis_name,), (AxisType.Auto,)
        for leaf, spec in pairs:
            # The mapped dimension is the last one in the spec; P() maps no dimension.
            if len(spec) and is_array(leaf) and len(leaf.shape) >= len(spec):
                size = leaf.shape[len(spec) - 1]
                if self.devices is not None and len(self.devices) == size:
                    return Mesh(self.devices, names, axis_types=types)
                return AbstractMesh((size,), names, axis_types=types)
        raise ProgramError(
            "jax.pmap maps over a dimension of an array, and no argument has one."
        )


def _placed(leaf: Any, spec: PartitionSpec, mesh: Any) -> Any:
    if isinstance(leaf, ArraySpec):
        return leaf.replace(spec=spec_of(spec), logical=None)
    if not is_array(leaf):
        return leaf
    # jax may convert numpy's 64-bit types to 32 bits.
    converted = jax.eval_shape(lambda x: x, leaf)
    return converted.update(sharding=NamedSharding(mesh, spec))


def read_pmap(fn: Any) -> Pmapped | None:
    """Returns the settings of a function under `jax.pmap`; None if unknown.

    >>> read_pmap(jax.pmap(abs, axis_name="batch", in_axes=1)).in_axes
    1
    """
    inside = pmap_settings(fn)
    if inside is None:
        return None
    static = tuple(inside["static_broadcasted_tuple"])
    # Static arguments aren't counted in jax's positions of donated arguments.
    counted = len(static) + max(inside["donate_tuple"], default=-1) + 1
    dynamic = [i for i in range(counted) if i not in static]
    return Pmapped(
        axis_name=inside["axis_name"],
        in_axes=inside["in_axes"],
        out_axes=jax.tree.unflatten(inside["out_axes_tree"], inside["out_axes_flat"]),
        devices=inside["devices"],
        static=static,
        donate=tuple(dynamic[i] for i in inside["donate_tuple"]),
    )


def check_devices(fn: Any, mesh: MeshSpec) -> None:
    """Raises if a function under `jax.pmap` needs more devices than this process has.

    jax would shrink the mesh to the attached devices, and then the shapes don't fit.

    Raises:
        ProgramError: with both device counts and a remedy.
    """
    if is_pmapped(fn) and jax.local_device_count() < mesh.size:
        count = jax.local_device_count()
        raise ProgramError(
            f"jax.pmap maps over the devices of this process. It needs {mesh.size}, and"
            f" there {'is' if count == 1 else 'are'} {count}. To simulate them, call"
            f" jax.config.update('jax_num_cpu_devices', {mesh.size}) before anything"
            " else; or write it with jax.shard_map, which can be planned for any mesh."
        )
