"""`sv.movement`: the steps of a collective."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardviz.base.collective import Collective
from shardviz.base.errors import ProgramError
from shardviz.base.format import plural, shown
from shardviz.base.parse import check_size, parse_bytes
from shardviz.base.public.adopt import as_mesh, optional
from shardviz.compiled.report import Report
from shardviz.hardware.topology import Topology

if TYPE_CHECKING:
    from shardviz.base.mesh import MeshSpec
    from shardviz.compiled.stages import Stages
    from shardviz.move.movement import Movement
    from shardviz.plans.plan import Plan


def movement(
    what: Any,
    which: Any = None,
    *,
    mesh: Any = None,
    axes: Any = None,
    devices: Any = None,
    size: Any = None,
    group: Any = 0,
    topology: Any = None,
) -> Movement:
    """What a collective sends, step by step, in one group of devices.

    `sv.movement(report, 0)` takes a collective of a compiled program, and
    `sv.movement("all-gather", devices=8, size="8 MiB")` one that is no program's.
    `sv.text` and `sv.plot` show what every device has after each step, and
    `.execute(values)` applies the steps to numbers.

    Args:
        what: a Report, Plan or Stages; a Collective; or the kind of one.
        which: of a Report, Plan or Stages, which collective: its number, or itself; the
            largest where left out.
        mesh: for a Collective or a kind, the mesh.
        axes: for a kind, the mesh axes that it runs over: all where left out.
        devices: for a kind without a mesh, how many devices.
        size: for a kind, the bytes of the array on each device (of the result; of the
            operand for a reduce-scatter), or text such as `"8 MiB"`.
        group: which group of devices, counted from 0.
        topology: the slice or cluster of the devices, `"tpu:v5e:4x4"`, for its axes and
            the rates of its links; of a Report, the one it was compiled for where left
            out.

    Raises:
        ShardvizError: for what has no steps, or arguments that do not fit together.

    >>> print(movement("all-reduce", devices=4, size="4 MiB").steps[3].words)
    Every device sends 1 chunk to its right neighbour; each then holds 2 of 4.
    """
    from shardviz.compiled.stages import Stages
    from shardviz.move.movement import movement_of
    from shardviz.plans.plan import Plan

    grid = optional(as_mesh, mesh)
    where = topology
    if isinstance(topology, str):
        where = Topology.parse(topology)
    if isinstance(what, Stages):
        what = _made_by(what)
    if isinstance(what, (Report, Plan)):
        collective = chosen_collective(what, which)
        grid = grid or what.mesh
        # Described hardware has the rates of its links; attached devices have none.
        if where is None and isinstance(what, Report) and what.roofline is not None:
            if ":" in what.roofline.where:
                where = Topology.parse(what.roofline.where)
    elif isinstance(what, Collective):
        collective = what
    else:
        return _movement_of_kind(what, grid, axes, devices, size, where, group)
    if grid is None:
        raise ProgramError(
            "A Collective has positions in a mesh: give mesh= beside it, or its Report."
        )
    made = movement_of(collective, grid, where, group)
    # Only of a program is it known what else an order of devices would change.
    order = getattr(getattr(what, "roofline", None), "order", None)
    if order is not None and order.axes == collective.mesh_axes:
        made = replace(made, order=order)
    return made


def _made_by(stages: Stages) -> Report | Plan:
    """The report of some stages, or the plan where none is good."""
    if stages.report is not None and stages.report.ok:
        return stages.report
    if stages.plan is None:
        raise ProgramError(
            "These Stages have neither a plan nor a report, so no collectives. Make"
            " them with sv.stages(program)."
        )
    return stages.plan


def chosen_collective(what: Report | Plan, which: Any) -> Collective:
    """The collective that is meant: the largest where none is named.

    Args:
        what: what has it.
        which: itself, its number, or its name in the compiled text or as a value of the
            plan; None for the largest.

    Raises:
        ProgramError: where there is none.
    """
    if isinstance(which, Collective):
        return which
    every = what.collectives
    # A compile that failed after the partitioner has its collectives.
    if every is None and isinstance(what, Report):
        every = what.partitioned
    if not every:
        raise ProgramError(f"{what.program} has no collectives, so nothing is sent.")
    if which is None:
        return max(every, key=lambda c: c.bytes_in_all)
    if isinstance(which, str):
        for one in every:
            # A collective of a final module has no value of the plan: "" names none.
            if which and which in (one.name, one.value):
                return one
        raise ProgramError(f"{what.program} has no collective {shown(which)}.")
    number = check_size(which, "Which collective", ProgramError)
    if not 0 <= number < len(every):
        raise ProgramError(
            f"{what.program} has {plural(len(every), 'collective')}, counted from 0; got"
            f" {shown(number)}."
        )
    return every[number]


def _movement_of_kind(
    kind: Any,
    mesh: MeshSpec | None,
    axes: Any,
    devices: Any,
    size: Any,
    topology: Topology | None,
    group: Any,
) -> Movement:
    """The movement of a collective that is no program's."""
    from shardviz.hardware.interconnect import groups_over
    from shardviz.move.movement import collective_movement, movement_of, shift
    from shardviz.move.movement_steps import PERMUTE, check_kind

    check_kind(kind)
    if size is None:
        raise ProgramError(
            f"How much is sent? Give size= beside {shown(kind)}: size='8 MiB'."
        )
    total = parse_bytes(size, "size=", ProgramError)
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
    # A permutation needs pairs; without a program, everyone sends to the next.
    if kind == PERMUTE:
        collective = shift(groups, names, total)
    return movement_of(collective, mesh, topology, group)
