"""Public functions that move arrays: `sv.process_rows`, `sv.reshard`, `sv.restore`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shardviz.axis_rules.array_tree import ArrayTree, read_tree
from shardviz.axis_rules.rules import Dialect
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import needed_by
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.base.public.adopt import (
    as_topology,
    children_of,
    layout_of,
)
from shardviz.hardware.interconnect import device_rows, least_send_seconds
from shardviz.hardware.topology import Topology
from shardviz.hardware.words.hardware import published_rates
from shardviz.move.process_rows import ProcessRows
from shardviz.move.process_rows import process_rows as _process_rows
from shardviz.move.public.wanted_layouts import layouts_on, wanted_restore
from shardviz.move.reshard import Reshard, reshard_layouts
from shardviz.move.restore import Restore, plan_restore
from shardviz.programs.program import Program


def process_rows(
    thing: Any,
    spec: Any = None,
    mesh: Any = None,
    *,
    rules: Any = None,
    dtype: Any = None,
    dialect: Any = "linen",
) -> ProcessRows:
    """Which rows of an array each process loads, for
    `jax.make_array_from_process_local_data`.

    `.parts` has the ranges and the local shape of every process, and `.sentences` what a
    loader has to heed.

    Args:
        thing: an input batch: a Layout, or whatever `sv.layout` takes, as are the others.
        mesh: the mesh, with the process of every device: `sv.mesh(data=8,
            processes=2)`, or a jax `Mesh` of several processes.

    Raises:
        ShardvizError: where the array cannot be laid out so, and for arrays of partial
            sums.

    >>> from shardviz.base.mesh import make_mesh
    >>> found = process_rows((256, 512), "data", make_mesh(data=4, model=2, processes=2))
    >>> [part.rows for part in found.parts]
    [((0, 128),), ((128, 256),)]
    """
    # A Layout as it is, unless a spec says to lay it out anew.
    if not isinstance(thing, Layout) or spec is not None:
        thing = layout_of(thing, spec, mesh, rules, dtype, dialect)
    return _process_rows(thing)


def reshard(
    tree: Any, from_: Any, to: Any, *, dialect: Any = "linen", topology: Any = None
) -> Reshard:
    """Who sends what to whom when arrays move from one mesh and spec to another.

    Nothing is moved or compiled, and no array is read. The devices of either side are
    found by their ids; there may be fewer, more or others. What a device has already
    stays, and the rest comes from the nearest device that has it. `from_` and `to` say
    where the arrays are and are to be, each as one of

    - a mesh: by the arrays' own shardings and names, read on its axes;
    - `(mesh, rules)`: by rules, for arrays with logical names, or by patterns of paths;
    - `(mesh, specs)`: one spec for all, or a tree of them as that of the arrays or a
      prefix of it;
    - a sharding, a Layout, or a tree of these or of arrays that have shardings; or an
      Audit.

    Args:
        tree: the arrays: whatever `sv.audit` takes.
        from_: where they are; None where they say it by themselves, as live arrays do.
        to: where they are to be.
        dialect: who reads rules.
        topology: the slice or cluster of the devices, `"tpu:v5e:4x4"`, for the rates of
            its links, and for its hosts.

    Returns:
        A Reshard: `.moves`, `.bytes_between_hosts`, `.peak_bytes_per_device` and more.
        Arrays that cannot be moved are in `.left_behind`, each with the reason.

    Raises:
        ShardvizError: for a tree or sides that cannot be read, and devices that are not
            those of the topology.

    >>> state = {"w": ((512, 2048), "embed mlp"), "b": ((2048,), "mlp")}
    >>> old = "data=4, model=2", [("mlp", "model")]
    >>> found = reshard(state, old, ("data=8", [("mlp", "data")]))
    >>> found.bytes_moved, found.rows[0].path, found.peak_bytes_per_device
    (2101248, 'w', 2626560)
    """
    reader = Dialect.of(dialect)
    if isinstance(tree, Program):
        with needed_by("sv.reshard"):
            from shardviz.programs.backend import arguments
        if from_ is None and tree.mesh is not None:
            from_ = tree.mesh, tree.rules
        tree = arguments.argument_tree(tree)
    read = tree
    if not isinstance(tree, ArrayTree):
        read = read_tree(tree, children=children_of)
    # Both sides are found for the same arrays, so that they pair up one by one.
    before = layouts_on(read, from_, reader, "from_")
    after = layouts_on(read, to, reader, "to")
    arrays = [leaf.array for leaf in read.leaves]
    # Without a topology the links are unknown, and hosts are those of the meshes.
    if topology is None:
        return reshard_layouts(arrays, before, after)
    return _reshard_over_links(arrays, before, after, as_topology(topology))


def _reshard_over_links(
    arrays: list[ArraySpec],
    before: list[Layout | str],
    after: list[Layout | str],
    where: Topology,
) -> Reshard:
    """A reshard with the hosts of a topology, and the least time that its links need."""

    def rows(ids: np.ndarray) -> np.ndarray:
        """The positions of devices in the topology's order."""
        return device_rows(MeshSpec(("device",), (len(ids),), (), ids), where)

    def hosts(ids: np.ndarray) -> np.ndarray:
        return where.process_indices[rows(ids)]

    moved = reshard_layouts(arrays, before, after, hosts)
    # Of each pair of devices: sender, receiver, bytes.
    pairs = rows(moved.device_ids)[moved.sends[:, :2]]
    seconds = least_send_seconds(where, np.c_[pairs, moved.sends[:, 2]])
    return replace(moved, link_seconds=seconds, rate_source=published_rates(where))


def restore(
    path: Any,
    wanted: Any = None,
    mesh: Any = None,
    *,
    rules: Any = (),
    dialect: Any = "linen",
    step: int | None = None,
) -> Restore:
    """What every process would read to restore an orbax checkpoint, found from its
    metadata alone.

    No array is read, and jax's devices are not started. What is counted is what orbax
    does by default: every process reads, for each distinct shard of its devices, the
    chunks that it meets.

    Args:
        path: the folder of a checkpoint, of a step, or of a CheckpointManager.
        wanted: how it is to be split: a tree of PartitionSpecs or shardings, or one for
            all; pairs of a pattern of paths and a spec; the tree that it is restored
            into, as for `sv.audit`; by default as it was saved.
        mesh: the mesh to restore on; with `processes=` for several. That of the
            shardings, or that it was saved on, where it is left out.
        rules: axis rules, for a tree with logical names.
        dialect: who reads the rules.
        step: which step of a CheckpointManager; the last by default.

    Raises:
        ShardvizError: where there is no finished checkpoint of orbax, no mesh, or no
            such step.

    >>> restore("no/such/folder", "kernel -> P('model')", "model=2")
    Traceback (most recent call last):
        ...
    shardviz.base.errors.ShardvizError: There is no folder 'no/such/folder'. Give that of...
    """
    with needed_by("sv.restore"):
        from shardviz.move.backend import checkpoints
    found = checkpoints.read_checkpoint(path, step)
    return plan_restore(found, wanted_restore(found, wanted, mesh, rules, dialect))
