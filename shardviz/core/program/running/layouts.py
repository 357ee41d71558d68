"""How the compiler lays out the outputs of a program, told on the program's own mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import NamedSharding

from shardviz.core.errors import LayoutError
from shardviz.core.layout.boxes import layout_from_boxes
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.shards import Layout, lay_out
from shardviz.core.layout.spec import Spec
from shardviz.core.program.bridge import adopt_spec
from shardviz.core.program.compiling.tracing import Output
from shardviz.core.program.report import Check
from shardviz.core.program.running.checks import specs_check


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
    """What was asked for each output against how the compiler lays it out."""
    return [
        specs_check(o.name, s, lay_out(o.shape, s, mesh, o.dtype), layouts.get(o.name))
        for o, s in zip(outputs, specs, strict=True)
        if s is not None
    ]


def _layout(output: Output, sharding: Any, mesh: MeshSpec, ids: Mapping[Any, int]) -> Layout:
    if isinstance(sharding, NamedSharding) and _same_axes(sharding.mesh, mesh):
        try:
            return lay_out(output.shape, adopt_spec(sharding.spec), mesh, output.dtype)
        except LayoutError:
            pass  # a compiler may split what does not divide; its boxes tell
    boxes = sharding.devices_indices_map(output.shape)
    by_id = {name: boxes[device] or () for device, name in ids.items() if device in boxes}
    whole = len(by_id) == mesh.size
    return layout_from_boxes(output.shape, output.dtype, by_id, mesh if whole else None)


def _same_axes(mesh: Any, spec: MeshSpec) -> bool:
    return tuple(mesh.axis_names) == spec.axis_names and tuple(mesh.axis_sizes) == spec.axis_sizes
