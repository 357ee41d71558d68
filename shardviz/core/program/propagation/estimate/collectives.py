"""estimate() -> the collectives that Shardy itself would insert, each with its cause.

An estimate: XLA's partitioner makes its own choices. It costs milliseconds and needs no devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.spec import Spec
from shardviz.core.program.propagation import attributes, pipeline
from shardviz.core.program.propagation.estimate.axes import (
    axes_of_manual,
    bytes_of,
    group_size,
    local_shape,
    moved_axes,
    parents,
    shape_text,
)
from shardviz.core.program.propagation.estimate.causes import (
    CONSTRAINTS,
    Served,
    why_manual,
    why_moved,
    why_reduced,
)
from shardviz.core.program.propagation.estimate.module import (
    SHARDY,
    PlannedModule,
    last_part,
)
from shardviz.core.program.propagation.estimate.walk import Site
from shardviz.core.program.propagation.locations import Place
from shardviz.core.program.propagation.planned import PlannedOp
from shardviz.core.program.propagation.texts import Texts
from shardviz.core.program.report import Collective

# The collectives of `jax.lax` that users write inside of shard_map.
_WRITTEN = {
    "stablehlo.all_gather": "all-gather",
    "stablehlo.all_reduce": "all-reduce",
    "stablehlo.reduce_scatter": "reduce-scatter",
    "stablehlo.all_to_all": "all-to-all",
    "stablehlo.collective_permute": "collective-permute",
}
_KINDS = SHARDY | _WRITTEN
_AXES = {
    "sdy.all_gather": "gathering_axes",
    "sdy.all_reduce": "reduction_axes",
    "sdy.reduce_scatter": "reduce_scatter_axes",
    "sdy.all_to_all": "params",
}
_DIM = re.compile(r"\{([^{}]*)\}")
_SUMS = ("dot_general", "reduce")


def estimate(lowered: Any, ops: Sequence[PlannedOp], mesh: MeshSpec) -> tuple[Collective, ...]:
    """The collectives that Shardy would insert into a lowered program, in program order.

    A function that is called several times counts once a call, the body of a loop once, with its
    trips. What the user wrote inside of `shard_map` counts too. Costs the same on any mesh.

    Args:
        lowered: jax's `Lowered`, or its StableHLO module.
        ops: the values of the plan, to name causes by; may be empty.
        mesh: the mesh that the program was lowered for.

    Raises:
        ProgramError: where jaxlib has no Shardy passes.
        Exception: whatever a pass raises.

    >>> import jax, jax.numpy as jnp
    >>> from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
    >>> from shardviz.core.program.bridge import adopt_mesh
    >>> mesh = AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))
    >>> split = NamedSharding(mesh, PartitionSpec("data"))
    >>> x = jax.ShapeDtypeStruct((64, 8), jnp.float32, sharding=split)
    >>> lowered = jax.jit(jnp.sum).trace(x).lower(lowering_platforms=("cpu",))
    >>> found, = estimate(lowered, (), adopt_mesh(mesh))
    >>> found.kind, found.mesh_axes, found.bytes_per_device, found.group_size
    ('all-reduce', ('data',), 4, 4)
    """
    module = lowered.compiler_ir("stablehlo") if hasattr(lowered, "compiler_ir") else lowered
    return read_estimate(pipeline.planned(module), ops, mesh)


def read_estimate(
    planned: Any, ops: Sequence[PlannedOp], mesh: MeshSpec, texts: Texts | None = None
) -> tuple[Collective, ...]:
    """The collectives of a module that `pipeline.planned` made.

    Args:
        planned: the module.
        ops: the values of the plan, to name causes by.
        mesh: the mesh.
        texts: what was read already of a module that this one is a copy of.
    """
    return tuple(_Reader(planned, ops, mesh, texts or Texts()).collectives())


class _Reader:
    """The collectives of one planned module."""

    def __init__(
        self, planned: Any, ops: Sequence[PlannedOp], mesh: MeshSpec, texts: Texts
    ) -> None:
        self.mesh, self.texts = mesh, texts
        self.module = PlannedModule(planned, ops, texts)
        self.values = self.module.values

    def collectives(self) -> Iterator[Collective]:
        for site in self.module.sites:
            found = []
            if site.name in _WRITTEN:
                found = [self._manual(site)]
            elif site.name in SHARDY:
                found = list(self._shardy(site))
            # XLA takes out what has no elements, and whatever would move it.
            yield from (c for c in found if c.bytes_per_device)

    def _shardy(self, site: Site) -> Iterator[Collective]:
        start = self.module.start(site.op)
        for axes, after in self._parts(site, start):
            named = parents(axes, self.mesh)
            if site.name in ("sdy.all_reduce", "sdy.reduce_scatter"):
                value, place, cause = self._reduced(site, start, named)
            else:
                value, place, cause = self._moved(site, start, named)
            yield self._collective(site, axes, [after], value, place, cause)

    def _parts(self, site: Site, start: Any) -> list[tuple[tuple[str, ...], Spec]]:
        """The collectives that one of Shardy's operations stands for: axes, and spec after it.

        XLA gathers one dimension at a time, the last first, and so it sums over devices.
        """
        before = self.module.spec(site.op.operands[0], site.caller)
        after = self.module.spec(site.op.results[0], site.caller)
        if site.name == "sdy.reshard" and not before.axes and not after.axes:
            return []  # to one device or to others in another order: each has the whole already
        axes = self._axes(site.op, before, after)
        if site.name == "sdy.all_gather":
            return _gathers(self.texts.attribute(site.op, _AXES[site.name]), before)
        made = self.module.site(start, site.caller)
        if site.name != "sdy.all_reduce" or made is None or made.opcode not in _SUMS:
            return [(axes, after)]
        summed = self.module.spec(made.op.operands[0], made.caller)
        dims = [tuple(a for a in dim if a in axes) for dim in reversed(summed.dims)]
        rest = tuple(a for a in axes if not any(a in dim for dim in dims))
        return [(dim, after) for dim in (*dims, rest) if dim]

    def _collective(
        self, site: Site, axes: Sequence[str], specs: Sequence[Spec], value: str, place: Place,
        cause: str,
    ) -> Collective:  # fmt: skip
        kind = _KINDS[site.name]
        if kind == "collective-permute":  # the parts of an axis may overlap
            axes = parents(axes, self.mesh)
        size, total, shapes = group_size(axes, self.mesh), 0, []
        for result, spec in zip(site.op.results, specs, strict=True):
            shape, dtype = self.texts.tensor(result) or ((), "")
            local = local_shape(shape, spec, self.mesh)
            total += bytes_of(local, dtype) * (size if kind == "reduce-scatter" else 1)
            shapes.append(shape_text(local, dtype))
        return Collective(
            kind=kind,
            mesh_axes=parents(axes, self.mesh),
            bytes_per_device=total,
            op=place.op,
            source=place.source,
            in_loop=site.in_loop,
            shape=shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})",
            trips=site.trips,
            stack=place.stack,
            group_size=size,
            value=value,
            cause=cause,
        )

    def _axes(self, op: Any, before: Spec, after: Spec) -> tuple[str, ...]:
        if op.name in _AXES:
            return tuple(dict.fromkeys(attributes.axes(self.texts.attribute(op, _AXES[op.name]))))
        moved = moved_axes(before, after)
        # Another order of the same axes over other devices moves along all of them.
        return moved or tuple(self.mesh.axis_names)

    def _reduced(self, site: Site, start: Any, axes: Sequence[str]) -> tuple[str, Place, str]:
        made = self.module.site(start, site.caller)
        if made is None:
            name = self.module.name(start, site.caller)
            return name, site.place, f"Each device has a part of {name}; here they are summed."
        planned = self.values.of(made)
        name = planned.name if planned else last_part(made.place)
        before = self.module.spec(made.op.operands[0], made.caller)
        scattered = site.name == "sdy.reduce_scatter"
        cause = why_reduced(made, name, axes, before, scattered)
        return (planned.name if planned else ""), made.place, cause

    def _moved(self, site: Site, start: Any, axes: Sequence[str]) -> tuple[str, Place, str]:
        last, target = self.module.end(site.op, site.caller)
        after = self.module.spec(last.results[0], site.caller)
        planned = self.module.value(start, site.caller)
        constraint = self._constraint(planned, after)
        kind, name, value = self._used(target, planned)
        before = self.module.spec(start, site.caller)
        served = Served(self.module.name(start, site.caller), before, after, name, kind, constraint)
        cause = why_moved(_KINDS[site.name], axes, served)
        if constraint is not None:
            return constraint.name, Place.of_lines(constraint.op, constraint.stack), cause
        made = self.module.site(start, site.caller)
        own = made.place if made else site.place
        place = target.place if target is not None and kind == "op" else own
        return value or (planned.name if planned else ""), place, cause

    def _used(self, user: Site | None, made: PlannedOp | None) -> tuple[str, str, str]:
        """What kind of thing uses a value, its name, and its name in the plan."""
        if user is None:
            return "op", "", ""
        planned = self.values.of(user)
        value = planned.name if planned else ""
        name = value or last_part(user.place)
        if user.name == "func.call":
            return "call", name, value
        if user.name == "stablehlo.while":
            return "loop", name, value
        if user.name == "func.return" and user.caller is None:
            results = self.values.readers(made) if made else ()
            return "result", "", next((r.name for r in results if r.kind == "result"), "")
        if user.name.endswith(".return"):
            looped = user.caller is not None and user.caller.name == "stablehlo.while"
            inside = last_part(user.caller.place) if user.caller else "The function"
            return ("loop" if looped else "return"), inside, value
        return "op", name, value

    def _constraint(self, made: PlannedOp | None, after: Spec) -> PlannedOp | None:
        readers = self.values.readers(made) if made else ()
        asked = [r for r in readers if r.opcode.rpartition(".")[2] in CONSTRAINTS]
        return next((r for r in asked if r.spec.equivalent(after)), None)

    def _manual(self, site: Site) -> Collective:
        planned = self.values.of(site)
        axes = axes_of_manual(site.op, self.mesh)
        specs = [self.module.spec(result, site.caller) for result in site.op.results]
        outer = site.caller
        while outer is not None and outer.name != "sdy.manual_computation":
            outer = outer.caller
        cause = why_manual(site, last_part(outer.place) if outer else "the program")
        value = planned.name if planned else ""
        return self._collective(site, axes, specs, value, site.place, cause)


def _gathers(text: str, before: Spec) -> list[tuple[tuple[str, ...], Spec]]:
    """One all-gather a dimension, the last first, with the spec after each."""
    gathered = [attributes.axes(dim) for dim in _DIM.findall(text)]
    dims, found = list(before.dims), []
    for number in reversed(range(len(gathered))):
        if axes := gathered[number]:
            dims[number] = dims[number][: -len(axes)]
            found.append((axes, Spec.trusted(tuple(dims))))
    return found
