"""`sv.movement`: the steps of a collective, or of a reshard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from shardviz.api.adopt import adopt, as_mesh, optional
from shardviz.core.errors import ProgramError
from shardviz.core.format import plural, shown
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import check_size, parse_bytes
from shardviz.core.program.report import Collective, Report

if TYPE_CHECKING:
    from shardviz.core.program.movement import Movement
    from shardviz.core.program.plan import Plan
    from shardviz.core.program.stages import Stages


def movement(
    what: Any,
    which: Any = None,
    *,
    mesh: Any = None,
    axes: Any = None,
    devices: Any = None,
    size: Any = None,
    group: Any = 0,
    algorithm: Any = None,
    topology: Any = None,
) -> Movement:
    """What a collective or a reshard sends, step by step, between the devices of one
    group.

    `sv.movement(report, 0)` takes a collective of a compiled program,
    `sv.movement("all-gather", devices=8, size="8 MiB")` one that is no program's, and
    `sv.movement(before, after)` goes from one Layout of an array to another. `sv.text`
    and `sv.plot` show what every device has after each step, and `.execute(values)`
    applies the steps to numbers.

    Args:
        what: a Report, Plan or Stages; a Collective; the kind of one; or a Layout.
        which: of a Report, Plan or Stages, which collective: its number, or itself; the
            largest where left out. Of a Layout, the Layout that the array goes to.
        mesh: for a Collective or a kind, the mesh.
        axes: for a kind, the mesh axes that it runs over: all where left out.
        devices: for a kind without a mesh, how many devices.
        size: for a kind, the bytes of the array on each device (of the result; of the
            operand for a reduce-scatter), or text such as `"8 MiB"`.
        group: which group of devices, counted from 0.
        algorithm: `"ring"`, `"both directions"`, `"torus"` or `"hosts"`; what suits the
            group where left out.
        topology: the slice or cluster of the devices, `"tpu:v5e:4x4"`, for its axes and
            the rates of its links; of a Report, the one it was compiled for where left
            out.

    Raises:
        ShardvizError: for what has no steps, or arguments that do not fit together.

    >>> movement("all-reduce", devices=4, size="4 MiB").steps[0]
    MovementStep(Every device sends 1 chunk to its right neighbour, which adds its own part: sums \
of 2 of 4 devices.)
    """
    from shardviz.core.program.movement import movement_of, reshard_movement
    from shardviz.core.program.plan import Plan
    from shardviz.core.program.stages import Stages

    what, which = adopt(what), adopt(which)
    grid = optional(as_mesh, mesh)
    if isinstance(what, Layout):
        if not isinstance(which, Layout):
            raise ProgramError(
                "A reshard goes from one Layout to another: sv.movement(before, after);"
                f" got {shown(which)}."
            )
        return reshard_movement(what, which)
    where = optional(_topology, topology)
    if isinstance(what, Stages):
        what = _made_by(what)
    if isinstance(what, (Report, Plan)):
        collective = _chosen(what, which)
        grid = grid or what.mesh
        # Described hardware has the rates of its links; attached devices have none.
        if where is None and isinstance(what, Report) and what.roofline is not None:
            if ":" in what.roofline.where:
                where = Topology.parse(what.roofline.where)
    elif isinstance(what, Collective):
        collective = what
    else:
        return _movement_of_kind(
            what, grid, axes, devices, size, where, group, algorithm
        )
    if grid is None:
        raise ProgramError(
            "A Collective has positions in a mesh: give mesh= beside it, or its Report."
        )
    return movement_of(
        collective, grid, topology=where, group=group, algorithm=algorithm
    )


def _topology(thing: Any) -> Topology:
    if isinstance(thing, Topology):
        return thing
    if isinstance(thing, str):
        return Topology.parse(thing)
    raise ProgramError(
        f"topology= is text such as 'tpu:v5e:4x4', or a Topology; got {shown(thing)}."
    )


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


def _chosen(what: Report | Plan, which: Any) -> Collective:
    """The collective that is meant: the largest where none is named."""
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
    algorithm: Any,
) -> Movement:
    """The movement of a collective that is no program's."""
    from shardviz.core.program.movement import collective_movement, movement_of
    from shardviz.core.program.movement_steps import PERMUTE, check_kind

    check_kind(kind)
    if size is None:
        raise ProgramError(
            f"How much is sent? Give size= beside {shown(kind)}: size='8 MiB'."
        )
    if mesh is None:
        if axes is not None or (devices is None) == (topology is None):
            raise ProgramError(
                f"Between which devices? Beside {shown(kind)} give devices=8,"
                " topology=, or mesh= and the axes= of it that it runs over."
            )
        if topology is None:
            return collective_movement(kind, devices, size, algorithm=algorithm)
        return collective_movement(
            kind,
            topology.device_ids,
            size,
            hosts=topology.process_indices,
            algorithm=algorithm,
            topology=topology,
            rows=np.arange(topology.devices),
        )
    names = mesh.axis_names
    if isinstance(axes, str):
        names = (axes,)
    elif isinstance(axes, Iterable):
        names = tuple(axes)
    elif axes is not None:
        raise ProgramError(
            f"axes= is a mesh axis or a tuple of them; got {shown(axes)}."
        )
    for name in names:
        mesh.require_axis(name)
    if not names or len(set(names)) < len(names):
        raise ProgramError(
            f"A collective runs over mesh axes, each once; got {shown(names)}."
        )
    total = parse_bytes(size, "The collective's size", ProgramError)
    collective = Collective(kind, names, total)
    # A permute needs pairs; without a program, everyone sends to the next.
    if kind == PERMUTE:
        collective = shift_over(mesh, names, total)
    return movement_of(
        collective, mesh, topology=topology, group=group, algorithm=algorithm
    )


def shift_over(mesh: MeshSpec, axes: tuple[str, ...], size: int) -> Collective:
    """The collective-permute that sends to the next device along some axes, around.

    Devices are counted in the order of the mesh, as `jax.lax.ppermute` counts them.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> shift_over(make_mesh(x=3), ("x",), 8).groups
    ((0, 1), (1, 2), (2, 0))
    """
    from shardviz.core.hardware.interconnect import groups_over
    from shardviz.core.program.movement_steps import PERMUTE

    groups = np.sort(groups_over(mesh, axes), axis=1)
    pairs = np.stack([groups, np.roll(groups, -1, axis=1)], axis=-1).reshape(-1, 2)
    return Collective(PERMUTE, axes, size, groups=tuple(map(tuple, pairs.tolist())))
