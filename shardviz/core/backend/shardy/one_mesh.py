"""Writes the shardings of a module over one mesh, where the program names several.

`jax.lax.with_sharding_constraint` and `jax.shard_map` may name a mesh of their own that
holds the same devices in another shape. Shardy propagates nothing from one mesh to
another, so XLA writes the axes of one as axes of the other before it propagates, and
the plan does the same on its copy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardviz.core.backend.shardy.attributes import parse_axes
from shardviz.core.backend.shardy.before_propagation import operations_in

#: A mesh axis, the product of the sizes before the part, and its size.
AxisPart = tuple[str, int, int]


def axis_parts(
    axes: Sequence[tuple[str, int]], of: Sequence[tuple[str, int]]
) -> dict[str, list[AxisPart]] | None:
    """The axes of one mesh as axes, or parts of axes, of another mesh of the same
    devices.

    Both are factors of the same number, so they are matched from the major axis on, as
    XLA does (its pass `xla-sdy-round-trip-dedup-meshes`).

    Args:
        axes: name and size of each axis.
        of: name and size of each axis of the other mesh.

    Returns:
        Axis to name, size before and size of each part; None where the sizes do not
        divide each other, as in 2 × 3 and 3 × 2.

    >>> axis_parts([("all", 8)], [("data", 4), ("model", 2)])
    {'all': [('data', 1, 4), ('model', 1, 2)]}
    >>> axis_parts([("x", 2), ("y", 4)], [("data", 4), ("model", 2)])
    {'x': [('data', 1, 2)], 'y': [('data', 2, 2), ('model', 1, 2)]}
    """
    parts: dict[str, list[AxisPart]] = {name: [] for name, _ in axes}
    # An axis of size 1 splits nothing, and would hold up the matching.
    own = [axis for axis in of if axis[1] > 1]
    before = 1  # what was taken of the first of `own`
    for name, left in axes:
        while left > 1:
            if not own:
                return None
            axis, size = own[0]
            taken = min(left, size // before)
            if left % taken or size // before % taken:
                return None
            parts[name].append((axis, before, taken))
            left, before = left // taken, before * taken
            if before == size:
                own, before = own[1:], 1
    if own:
        return None
    return parts


def merged_parts(
    names: Sequence[str], parts: Mapping[str, list[AxisPart]]
) -> list[AxisPart]:
    """The parts of several axes, in order; those that follow each other are one part.

    Args:
        names: the axes.
        parts: what `axis_parts` gave.

    >>> merged_parts(["x", "y"], {"x": [("data", 1, 2)], "y": [("data", 2, 2), ("model", 1, 2)]})
    [('data', 1, 4), ('model', 1, 2)]
    """
    merged: list[AxisPart] = []
    for axis in names:
        for name, before, size in parts[axis]:
            if merged:
                last, start, first = merged[-1]
                if last == name and start * first == before:
                    merged[-1] = (name, start, first * size)
                    continue
            merged.append((name, before, size))
    return merged


def use_one_mesh(module: Any, axes: Sequence[tuple[str, int]]) -> None:
    """Writes every sharding of a module over the axes of one mesh, in place, where it
    can be.

    Args:
        module: the module.
        axes: name and size of each axis of the mesh.
    """
    meshes = {}
    for item in module.regions[0].blocks[0].operations:
        op = item.operation
        if op.name == "sdy.mesh":
            meshes[op.attributes["sym_name"].value] = op
    parts, main = {}, ""
    for name, mesh in meshes.items():
        own = _axes_of(mesh)
        if own == list(axes):
            main = name
        elif own and (in_parts := axis_parts(own, axes)) is not None:
            parts[name] = in_parts
    if not parts:
        return
    with module.context:
        if not main:
            # The program places no argument, so jax wrote no mesh of its own.
            main = next(iter(parts))
            made = [sdy.MeshAxisAttr.get(name, size) for name, size in axes]
            meshes[main].attributes["mesh"] = sdy.MeshAttr.get(made)
        renamed = _Renamed(main, dict(axes), parts)
        for op in operations_in(module):
            if op.name != "sdy.mesh":
                renamed.rename(op)


def _axes_of(mesh: Any) -> list[tuple[str, int]]:
    axes = sdy.MeshAttr(mesh.attributes["mesh"]).axes
    return [(axis.name, axis.size) for axis in map(sdy.MeshAxisAttr, axes)]


_GROUPS = re.compile(r"mesh = @(\w+)")
_AXIS_REF = re.compile(r'axis_ref<name = "((?:[^"\\]|\\.)*)"')


class _Renamed:
    """Writes shardings over other meshes as shardings over one.

    Args:
        main: the name of that mesh.
        sizes: the size of each of its axes.
        parts: by the name of another mesh, what `axis_parts` gave.
    """

    def __init__(
        self,
        main: str,
        sizes: Mapping[str, int],
        parts: Mapping[str, dict[str, list[AxisPart]]],
    ) -> None:
        self.main, self.sizes, self.parts = main, sizes, parts

    def rename(self, op: Any) -> None:
        """Renames the axes in the attributes of one operation."""
        if "manual_axes" in op.attributes:
            self._rename_manual(op)
        # A copy: what is renamed is set on the same operation.
        for item in [op.attributes[number] for number in range(len(op.attributes))]:
            renamed = self._attribute(item.attr)
            if renamed is not item.attr:
                op.attributes[item.name] = renamed

    def _rename_manual(self, op: Any) -> None:
        meshes = set[str]()
        for name in ("in_shardings", "out_shardings"):
            per_value = sdy.TensorShardingPerValueAttr(op.attributes[name])
            for sharding in per_value.shardings:
                mesh: Any = sdy.TensorShardingAttr(sharding).mesh_or_ref
                meshes.add(mesh.value)
        for mesh in meshes & {*self.parts}:
            manual = parse_axes(str(op.attributes["manual_axes"]))
            parts = merged_parts(manual, self.parts[mesh])
            axes = [ir.StringAttr.get(name) for name, _, _ in parts]
            op.attributes["manual_axes"] = sdy.ManualAxesAttr.get(axes)

    def _attribute(self, attribute: Any) -> Any:
        """An attribute with the axes of the one mesh; the same object where nothing
        changes.
        """
        if sdy.TensorShardingAttr.isinstance(attribute):
            return self._sharding(sdy.TensorShardingAttr(attribute))
        if sdy.TensorShardingPerValueAttr.isinstance(attribute):
            inner = list(sdy.TensorShardingPerValueAttr(attribute).shardings)
            renamed = [self._attribute(sharding) for sharding in inner]
            return sdy.TensorShardingPerValueAttr.get(renamed)
        # A function keeps the shardings of its arguments in an array of dictionaries.
        if isinstance(attribute, ir.ArrayAttr):
            return ir.ArrayAttr.get([self._attribute(inner) for inner in attribute])
        if isinstance(attribute, ir.DictAttr):
            changed = {}
            for number in range(len(attribute)):
                item = attribute[number]
                changed[item.name] = self._attribute(item.attr)
            return ir.DictAttr.get(changed)
        if "replica_group_mesh_axes" in (text := str(attribute)):
            return self._groups(attribute, text)
        return attribute

    def _groups(self, attribute: Any, text: str) -> Any:
        """The groups of a collective that the program has in a `shard_map`, as jax 0.12
        writes.
        """
        mesh = _GROUPS.search(text)
        if mesh is None or mesh[1] not in self.parts:
            return attribute
        refs = []
        for axis in _AXIS_REF.findall(text):
            for name, before, size in merged_parts([axis], self.parts[mesh[1]]):
                # What reads it takes the name of a part for one, and nothing else
                # reads it.
                if size != self.sizes[name]:
                    name += f":({before}){size}"
                refs.append(f'#stablehlo.axis_ref<name = "{name}">')
        return ir.Attribute.parse(
            f"#stablehlo.replica_group_mesh_axes<mesh = @{self.main}, axes = [{', '.join(refs)}]>"
        )

    def _sharding(self, sharding: Any) -> Any:
        mesh = sharding.mesh_or_ref
        if not isinstance(mesh, ir.FlatSymbolRefAttr) or mesh.value not in self.parts:
            return sharding
        parts = self.parts[mesh.value]
        dims = []
        for dim in map(sdy.DimensionShardingAttr, sharding.dimension_shardings):
            axes = self._axes(dim.axes, parts)
            dims.append(
                sdy.DimensionShardingAttr.get(axes, dim.is_closed, dim.priority)
            )
        replicated = self._axes(sharding.replicated_axes, parts)
        unreduced = self._axes(sharding.unreduced_axes, parts)
        return sdy.TensorShardingAttr.get(self.main, dims, replicated, unreduced)

    def _axes(self, axes: Any, parts: dict[str, list[AxisPart]]) -> list[Any]:
        refs = []
        names = [sdy.AxisRefAttr(axis).name for axis in axes]
        for name, before, size in merged_parts(names, parts):
            part = None
            if size != self.sizes[name]:
                part = sdy.SubAxisInfoAttr.get(before, size)
            refs.append(sdy.AxisRefAttr.get(name, part))
        return refs
