"""Whether outputs and shards are where they were predicted to be: layouts and specs compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shardviz.core.backend.bridge import adopt_spec
from shardviz.core.backend.tracing import Output
from shardviz.core.errors import LayoutError
from shardviz.core.format import listed, plural
from shardviz.core.layout.layout import Layout, lay_out, layout_from_indices
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.report import Check


def shards_check(name: str, layout: Layout, array: jax.Array, ids: Mapping[Any, int]) -> Check:
    """The shard indices of a layout, compared with the shards that the devices hold.

    Args:
        name: the name of the array.
        layout: the predicted layout.
        array: the live array.
        ids: jax device to its id in the layout.
    """
    if partial := partial_sums(array):
        return Check(f"{name}: indices", None, partial)
    shards = array.addressable_shards
    title = f"{name}: indices of {plural(len(shards), 'shard')}"
    for shard in shards:
        device = ids.get(shard.device)
        if device is None:
            return Check(title, False, f"A shard is on {shard.device}, outside the mesh.")
        predicted = [(s.start, s.stop) for s in layout.box(device)]
        # Random keys have an index for their words too, after those of their shape.
        found = [s.indices(n)[:2] for s, n in zip(shard.index, array.shape, strict=False)]
        if found != predicted or shard.data.shape != layout.shard_shape:
            return Check(
                title,
                False,
                f"Device {device} holds {_index_text(found)} as {list(shard.data.shape)};"
                f" the layout puts {_index_text(predicted)} there, {list(layout.shard_shape)}.",
            )
    if len(shards) != len([d for d in ids if d.process_index == jax.process_index()]):
        some = f"{plural(len(shards), 'device')} of {len(ids)}"
        if len(shards) == layout.mesh.size:
            return Check(title, True, f"On {some}, as compiled: jax asked for no others.")
        return Check(title, False, f"Only {some} hold it.")
    each = f"{layout.dtype}{list(layout.shard_shape)} each"
    return Check(title, True, f"Every shard is where the layout puts it, {each}.")


def partial_sums(array: jax.Array) -> str | None:
    """What to say of an array whose shards are partial sums; None for any other."""
    axes = getattr(getattr(array.sharding, "spec", None), "unreduced", None)
    if not axes:
        return None
    return (
        f"Every device holds a partial sum, unreduced over {listed(sorted(axes))}; jax gives no"
        " shard indices or values of such an array."
    )


def output_layouts(
    outputs: Sequence[Output], shardings: Sequence[Any], mesh: MeshSpec, ids: Mapping[Any, int]
) -> tuple[dict[str, Layout], list[Check]]:
    """The Layout of every output by name, and a Check for each that has none.

    Args:
        outputs: the outputs.
        shardings: jax's sharding of each, as compiled.
        mesh: the mesh of the program.
        ids: jax device to its id in that mesh, in mesh order.
    """
    layouts: dict[str, Layout] = {}
    without: list[Check] = []
    for output, sharding in zip(outputs, shardings, strict=True):
        try:
            layouts[output.name] = _layout(output, sharding, mesh, ids)
        except LayoutError as error:
            without.append(Check(f"{output.name}: layout", None, str(error)))
    return layouts, without


def spec_checks(
    outputs: Sequence[Output],
    specs: Sequence[Spec | None],
    mesh: MeshSpec,
    layouts: Mapping[str, Layout],
) -> list[Check]:
    """The spec requested for each output, compared with the compiler's layout."""
    return [
        _spec_check(o.name, s, lay_out(o.shape, s, mesh, o.dtype), layouts.get(o.name))
        for o, s in zip(outputs, specs, strict=True)
        if s is not None
    ]


def _spec_check(name: str, wanted: Spec, layout: Layout, found: Layout | None) -> Check:
    title = f"{name}: out_specs"
    if found is None:
        return Check(title, False, f"{wanted} was requested and the blocks differ in shape.")
    same = np.array_equal(layout.groups, found.groups) and layout.shard_shape == found.shard_shape
    how = found.spec if found.spec is not None else "other shard indices"
    return Check(title, same, f"{wanted} was requested and the compiler gives {how}.")


def _layout(output: Output, sharding: Any, mesh: MeshSpec, ids: Mapping[Any, int]) -> Layout:
    if isinstance(sharding, NamedSharding) and _same_axes(sharding.mesh, mesh):
        try:
            return lay_out(output.shape, adopt_spec(sharding.spec), mesh, output.dtype)
        except LayoutError:
            pass  # a compiler may split what does not divide: its shard indices say how
    indices = sharding.devices_indices_map(output.shape)
    by_id = {name: indices[device] or () for device, name in ids.items() if device in indices}
    complete = len(by_id) == mesh.size
    return layout_from_indices(output.shape, output.dtype, by_id, mesh if complete else None)


def _same_axes(mesh: Any, spec: MeshSpec) -> bool:
    return tuple(mesh.axis_names) == spec.axis_names and tuple(mesh.axis_sizes) == spec.axis_sizes


def _index_text(bounds: Sequence[tuple[int, int]]) -> str:
    return "[" + ", ".join(f"{a}:{b}" for a, b in bounds) + "]"
