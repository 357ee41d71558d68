"""Public functions that move arrays: `sv.process_rows`, `sv.reshard`, `sv.restore`."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from shardviz.axis_rules.array_tree import ArrayTree, read_tree
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import needed_by
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.base.public.adopt import (
    as_topology,
    children_of,
    layout_of,
)
from shardviz.base.typing import (
    ArrayLike,
    DialectLike,
    DtypeLike,
    MeshLike,
    PyTree,
    RulesLike,
    ShapeLike,
    ShardingLike,
)
from shardviz.hardware.interconnect import device_rows, least_send_seconds
from shardviz.hardware.topology import Topology
from shardviz.hardware.words.hardware import published_rates
from shardviz.move.process_rows import ProcessRows
from shardviz.move.process_rows import process_rows as _process_rows
from shardviz.move.public.layouts import layouts_on, restored_layouts
from shardviz.move.reshard import Reshard, reshard_layouts
from shardviz.move.restore import Restore, plan_restore
from shardviz.programs.program import Program


def process_rows(
    array: Layout | ShapeLike | ArrayLike,
    spec: ShardingLike | None = None,
    mesh: MeshLike | None = None,
    *,
    rules: RulesLike | None = None,
    dtype: DtypeLike | None = None,
    dialect: DialectLike | None = None,
) -> ProcessRows:
    """Computes which rows of an input batch each process must load.

    `jax.make_array_from_process_local_data` expects these rows.

    In the result, `.parts` has the row ranges and the local shape of every process, and
    `.sentences` has the requirements for a data loader.

    Args:
        array: the input batch: a Layout, or a form that `sv.layout` accepts.
        spec, rules, dtype, dialect: as in `sv.layout`.
        mesh: a mesh with the process of every device: `sv.mesh(data=8, processes=2)`,
            or a jax `Mesh` over several processes.

    Raises:
        ShardvizError: if the array cannot be laid out with this spec, or holds partial
            sums.

    >>> import shardviz as sv
    >>> rows = sv.process_rows((256, 512), "data", "data=4, model=2")
    >>> [part.rows for part in rows.parts]
    [((0, 256),)]
    >>> two_hosts = sv.mesh(data=4, model=2, processes=2)
    >>> [part.rows for part in sv.process_rows((256, 512), "data", two_hosts).parts]
    [((0, 128),), ((128, 256),)]
    """
    # A Layout is used unchanged unless `spec` requests another layout.
    if isinstance(array, Layout) and spec is None:
        return _process_rows(array)
    return _process_rows(layout_of(array, spec, mesh, rules, dtype, dialect))


def reshard(
    tree: PyTree,
    from_: PyTree,
    to: PyTree,
    *,
    dialect: DialectLike | None = None,
    topology: Topology | str | None = None,
) -> Reshard:
    """Computes the bytes sent between devices when arrays move to another mesh or spec.

    Nothing is moved or compiled, and no array is read. Devices are identified by their
    ids; the new mesh can have fewer, more or different devices. Bytes that a device
    already has stay there; all other bytes come from the nearest device that has them.
    `from_` and `to` are each one of

    - a mesh, if the arrays have their own shardings or names;
    - `(mesh, rules)`, with rules for logical names or patterns of paths;
    - `(mesh, specs)`, with one spec for all arrays, or a tree of specs that matches the
      tree of arrays or is a prefix of it;
    - a sharding or Layout, a tree of these, or a tree of arrays that have shardings;
    - an Audit.

    Args:
        tree: the arrays, in any form that `sv.audit` accepts.
        from_: the current layout of the arrays; None if they have shardings, like live
            arrays.
        to: the new layout of the arrays.
        dialect: the library whose semantics the rules follow; by default the one that
            `sv.rules` got, otherwise `"linen"`.
        topology: the slice or cluster that the devices belong to, such as
            `"tpu:v5e:4x4"`. The topology determines the hosts and the link rates.

    Returns:
        A Reshard, with `.moves`, `.bytes_between_hosts`, `.peak_bytes_per_device` and
        more. `.left_behind` lists the arrays that are not counted, each with the reason.

    Raises:
        ShardvizError: if `tree`, `from_` or `to` cannot be read, or a device is not
            part of the topology.

    >>> import shardviz as sv
    >>> state = {"w": ((512, 2048), "embed mlp"), "b": ((2048,), "mlp")}
    >>> old = "data=4, model=2", [("mlp", "model")]
    >>> moved = sv.reshard(state, old, ("data=8", [("mlp", "data")]))
    >>> moved.bytes_moved, moved.rows[0].path, moved.peak_bytes_per_device
    (2101248, 'w', 2626560)
    """
    if isinstance(tree, Program):
        with needed_by("sv.reshard"):
            from shardviz.programs.backend import arguments
        if from_ is None and tree.mesh is not None:
            from_ = tree.mesh, tree.rules
        dialect = tree.dialect if dialect is None else dialect
        tree = arguments.argument_tree(tree)
    read = tree
    if not isinstance(tree, ArrayTree):
        read = read_tree(tree, children=children_of)
    # `before` and `after` both follow the order of `read.leaves`.
    before, unused_before = layouts_on(read, from_, dialect, "from_")
    after, unused_after = layouts_on(read, to, dialect, "to")
    arrays = [leaf.array for leaf in read.leaves]
    # Without a topology, the links are unknown, and the hosts come from the meshes.
    if topology is None:
        moved = reshard_layouts(arrays, before, after)
    else:
        moved = _reshard_over_links(arrays, before, after, as_topology(topology))
    return replace(moved, unused_before=unused_before, unused_after=unused_after)


def _reshard_over_links(
    arrays: list[ArraySpec],
    before: list[Layout | str],
    after: list[Layout | str],
    where: Topology,
) -> Reshard:
    """Computes a reshard on a topology's hosts, and its least time on the links."""

    def rows(ids: np.ndarray) -> np.ndarray:
        """Returns each device's position in the topology's order."""
        return device_rows(MeshSpec(("device",), (len(ids),), (), ids), where)

    def hosts(ids: np.ndarray) -> np.ndarray:
        return where.process_indices[rows(ids)]

    moved = reshard_layouts(arrays, before, after, hosts)
    # The sends have one row per pair of devices: sender, receiver, bytes.
    pairs = rows(moved.device_ids)[moved.sends[:, :2]]
    seconds = least_send_seconds(where, np.c_[pairs, moved.sends[:, 2]])
    return replace(moved, link_seconds=seconds, rate_source=published_rates(where))


def restore(
    path: str | os.PathLike[str],
    specs: PyTree = None,
    mesh: MeshLike | None = None,
    *,
    rules: RulesLike = (),
    dialect: DialectLike | None = None,
    step: int | None = None,
) -> Restore:
    """Computes which bytes every process would read to restore an orbax checkpoint.

    Only the checkpoint's metadata is used: no array is read, and jax's backend does not
    start. Reads are counted for orbax's default behaviour: for each distinct shard of
    its devices, a process reads every chunk that the shard overlaps.

    Args:
        path: the folder of a checkpoint, of a step, or of a CheckpointManager.
        specs: the new layout: one PartitionSpec or sharding for all arrays, or a tree
            of them; pairs of a path pattern and a spec; or the tree to restore into, as
            in `sv.audit`. By default, the saved layout.
        mesh: the mesh to restore on, with `processes=` if there are several processes.
            By default, the mesh of the shardings, or the mesh in the checkpoint.
        rules: axis rules, for a tree with logical names; without `specs`, a table of
            paths.
        dialect: the library whose semantics the rules follow; by default the one that
            `sv.rules` got, otherwise `"linen"`.
        step: the step of a CheckpointManager, by default the last one.

    Raises:
        ShardvizError: if there is no finished orbax checkpoint, no mesh, or no such
            step.

    >>> import shardviz as sv
    >>> sv.restore("no/such/folder", "kernel -> P('model')", "model=2")
    Traceback (most recent call last):
        ...
    shardviz.base.errors.ShardvizError: There is no folder 'no/such/folder'. Give the ...
    """
    with needed_by("sv.restore"):
        from shardviz.move.backend import checkpoints
    checkpoint = checkpoints.read_checkpoint(path, step)
    layouts = restored_layouts(checkpoint, specs, mesh, rules, dialect)
    return plan_restore(checkpoint, layouts)
