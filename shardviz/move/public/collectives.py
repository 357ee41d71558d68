"""`sv.movement`: the steps of a collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shardviz.base.collective import Collective
from shardviz.base.errors import ProgramError
from shardviz.base.format import joined, plural, shown
from shardviz.base.parse import check_size, parse_bytes
from shardviz.base.public.adopt import as_mesh, as_topology, optional
from shardviz.base.typing import BytesLike, MeshLike
from shardviz.compiled.report import Report
from shardviz.hardware.topology import Topology

if TYPE_CHECKING:
    from shardviz.base.mesh import MeshSpec
    from shardviz.compiled.stages import Stages
    from shardviz.move.movement import Movement
    from shardviz.plans.plan import Plan


def movement(
    source: Report | Plan | Stages | Collective | str,
    collective: Collective | int | str | None = None,
    *,
    mesh: MeshLike | None = None,
    axes: str | Sequence[str] | None = None,
    devices: int | None = None,
    size: BytesLike | None = None,
    group: int = 0,
    topology: Topology | str | None = None,
) -> Movement:
    """Returns the steps of a collective in one group of devices.

    `sv.movement(report, 0)` shows a collective of a compiled program.
    `sv.movement("all-gather", devices=8, size="8 MiB")` needs no program. `sv.text` and
    `sv.plot` draw the data on every device after each step, and `.execute(values)`
    applies the steps to numbers.

    Args:
        source: a Report, Plan, Stages or Collective; or a kind such as `"all-gather"`.
        collective: the collective of a Report, Plan or Stages, or its index; by default
            the collective that sends the most bytes.
        mesh: the mesh, if `source` is a Collective or a kind.
        axes: the mesh axes to run over, if `source` is a kind; by default all.
        devices: the number of devices, if `source` is a kind and there is no mesh.
        size: the bytes of the array on each device, or text such as `"8 MiB"`, if
            `source` is a kind. The array is the result of the collective; for a
            reduce-scatter, its operand.
        group: the index of the group of devices.
        topology: the slice or cluster that the devices belong to, such as
            `"tpu:v5e:4x4"`. The topology determines torus axes and link rates.
            Defaults to a Report's target.

    Raises:
        ShardvizError: if the source has no collective or the arguments do not fit
            together.

    >>> import shardviz as sv
    >>> print(sv.movement("all-reduce", devices=4, size="4 MiB").steps[3].words)
    Every device sends 1 chunk to the next device; each then holds 2 of 4.
    """
    from shardviz.compiled.stages import Stages
    from shardviz.move.movement import movement_of
    from shardviz.plans.plan import Plan

    grid = optional(as_mesh, mesh)
    slice_or_cluster = optional(as_topology, topology)
    if isinstance(source, Stages):
        source = _report_or_plan(source)
    if isinstance(source, (Report, Plan)):
        shown_collective = chosen_collective(source, collective)
        grid = grid or source.mesh
        # Link rates are known for described hardware only, not for attached devices.
        if slice_or_cluster is None and isinstance(source, Report) and source.roofline:
            if ":" in source.roofline.where:
                slice_or_cluster = Topology.parse(source.roofline.where)
    elif isinstance(source, Collective):
        shown_collective = source
    elif not isinstance(source, str):
        raise ProgramError(
            "sv.movement shows a collective of a Report, Plan or Stages, a Collective,"
            f" or a kind such as 'all-gather'; got {shown(source)}. For a compiled"
            " program, give sv.report(compiled)."
        )
    else:
        return _movement_of_kind(
            source,
            mesh=grid,
            axes=axes,
            devices=devices,
            size=size,
            topology=slice_or_cluster,
            group=group,
        )
    if grid is None:
        raise ProgramError(
            "The devices of a Collective are positions in a mesh: also give mesh=, or"
            " give its Report."
        )
    movement = movement_of(shown_collective, grid, slice_or_cluster, group)
    # A better device order is known only for a whole program.
    order = getattr(getattr(source, "roofline", None), "order", None)
    if order is not None and order.axes == shown_collective.mesh_axes:
        movement = replace(movement, order=order)
    return movement


def _report_or_plan(stages: Stages) -> Report | Plan:
    """Returns the report of some stages, or the plan if there is no valid report."""
    if stages.report is not None and stages.report.ok:
        return stages.report
    if stages.plan is None:
        raise ProgramError(
            "These Stages have neither a plan nor a report, so no collectives. Make"
            " them with sv.stages(program)."
        )
    return stages.plan


def chosen_collective(
    source: Report | Plan, choice: Collective | int | str | None
) -> Collective:
    """Returns the chosen collective of a report or plan.

    Args:
        source: the report or plan.
        choice: a Collective, its index, its name in the compiled module, or the name of
            its value in the plan; None for the collective that sends the most bytes.

    Raises:
        ProgramError: if there is no such collective.
    """
    if isinstance(choice, Collective):
        return choice
    collectives = source.collectives
    # A compile that failed after partitioning still has the partitioner's collectives.
    if collectives is None and isinstance(source, Report):
        collectives = source.partitioned
    if not collectives:
        raise ProgramError(
            f"{source.program} has no collectives, so nothing is sent. Edits that lower"
            " its peak memory: sv.changes(program, goal='memory')."
        )
    if choice is None:
        return max(collectives, key=lambda collective: collective.drawn_bytes)
    if isinstance(choice, str):
        for collective in collectives:
            # `name` and `value` are "" if a collective has none.
            if choice and choice in (collective.name, collective.value):
                return collective
        kind = choice.partition(" ")[0]
        matches = [i for i, c in enumerate(collectives) if c.kind == kind]
        if matches:
            raise ProgramError(
                f"{source.program} has {plural(len(matches), kind)}. Choose by index in"
                f" .collectives, {joined(matches, 'or', 8)}; got {shown(choice)}."
            )
        raise ProgramError(f"{source.program} has no collective {shown(choice)}.")
    index = check_size(choice, "Which collective", ProgramError)
    if not 0 <= index < len(collectives):
        raise ProgramError(
            f"{source.program} has {plural(len(collectives), 'collective')}, counted"
            f" from 0; got {shown(index)}."
        )
    return collectives[index]


def _movement_of_kind(
    kind: str,
    *,
    mesh: MeshSpec | None,
    axes: str | Sequence[str] | None,
    devices: int | None,
    size: BytesLike | None,
    topology: Topology | None,
    group: int,
) -> Movement:
    """Returns the movement of a collective without a program."""
    from shardviz.hardware.interconnect import groups_over
    from shardviz.move.movement import collective_movement, movement_of, shift
    from shardviz.move.movement_steps import PERMUTE, check_kind

    check_kind(kind)
    if size is None:
        raise ProgramError(
            f"How much is sent? With {shown(kind)}, also give size=, such as size='8"
            " MiB'."
        )
    total = parse_bytes(size, "size=", ProgramError)
    for name, place in (("mesh=", mesh), ("topology=", topology)):
        if devices is not None and place is not None:
            raise ProgramError(
                f"{place} has its own devices, so give only one of devices= and {name};"
                " got both."
            )
    if mesh is None:
        if axes is not None or (devices is None) == (topology is None):
            raise ProgramError(
                f"Between which devices? Beside {shown(kind)} give devices=8,"
                " topology=, or mesh= and the axes= of it that it runs over."
            )
        if topology is not None:
            return collective_movement(kind, topology, total)
        count = check_size(devices, "devices=", ProgramError)
        return collective_movement(kind, count, total)
    names = mesh.axis_names
    if isinstance(axes, str):
        names = (axes,)
    elif axes is not None:
        names = tuple(axes)
    if not names or len(set(names)) < len(names):
        raise ProgramError(
            f"A collective runs over mesh axes, each once; got {shown(names)}."
        )
    groups = groups_over(mesh, names)
    collective = Collective(kind, names, total)
    # A permute needs device pairs; without a program, each device sends to the next.
    if kind == PERMUTE:
        collective = shift(groups, names, total)
    return movement_of(collective, mesh, topology, group)
