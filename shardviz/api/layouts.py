"""Public functions for layouts: meshes, rules, arrays, and which device holds which
bytes.

All of them take jax's own objects, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shardviz.api.adopt import (
    as_mesh,
    as_spec,
    bridge,
    children_of,
    layout_of,
    mesh_in_context,
    optional,
)
from shardviz.api.wanted_layouts import layouts_on, wanted_restore
from shardviz.axis_rules.array_tree import ArrayTree, read_tree
from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.audit import audit as _audit
from shardviz.axis_rules.path_rules import PathResolution, resolve_path
from shardviz.axis_rules.remedies import Remedies
from shardviz.axis_rules.requests import Request
from shardviz.axis_rules.resolution import Resolution
from shardviz.axis_rules.resolution import resolve as _resolve
from shardviz.axis_rules.rule_tables import dialect_of, read_rules
from shardviz.axis_rules.rules import Dialect, PathRules, Rules, is_pair
from shardviz.axis_rules.state_remedies import with_names_of_parameter
from shardviz.base.array_spec import ArraySpec, dtype_name, read_shape
from shardviz.base.errors import LayoutError, ShardvizError, import_optional
from shardviz.base.format import shown
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.base.parse import read_text_file
from shardviz.hardware.interconnect import device_rows, least_send_seconds
from shardviz.hardware.targets import Target
from shardviz.hardware.topology import Topology
from shardviz.hardware.words.hardware import published_rates
from shardviz.move.process_rows import ProcessRows
from shardviz.move.process_rows import process_rows as _process_rows
from shardviz.move.reshard import Reshard, reshard_layouts
from shardviz.move.restore import Restore, plan_restore
from shardviz.programs.program import Program

MAX_JSON = 1 << 25  # bytes; MaxText's record of a model of 671B parameters has 1 MB


def rules(*pairs: Any, dialect: Any = None) -> Rules | PathRules:
    """An ordered table: from logical axis names to mesh axes, or from paths to
    PartitionSpecs.

    Nothing that a file or a text holds is evaluated.

    Args:
        *pairs: pairs such as `("batch", "data")` or `("mlp/.*/kernel", P(None,
            "model"))`, one list or dict of them, typed text, a Keras `LayoutMap`, or
            the path to a file that holds a table: YAML or JSON with
            `logical_axis_rules`, Python source.
        dialect: who is to read it. `"regex"` and `"keras"` read a table of paths;
            without it, one whose right sides are PartitionSpecs is such a table.

    Raises:
        ShardvizError: for pairs, text and files that cannot be read.

    >>> len(rules(("batch", "data"), ("mlp", ("model", "expert")), ("embed", None)))
    3
    >>> print(rules(("mlp/.*/kernel", (None, "model")), dialect="regex"))
    mlp/.*/kernel → P(None, 'model')
    """
    reader = optional(Dialect.of, dialect)
    # One list, text or file in place of pairs one by one.
    if len(pairs) == 1 and not is_pair(pairs[0]):
        return read_rules(pairs[0], reader)
    return read_rules(pairs, reader)


def array(
    name: str, shape: Any, logical: Any = None, dtype: Any = "float32", spec: Any = None
) -> ArraySpec:
    """An array that need not exist.

    Args:
        name: what to call it.
        shape: its global shape, in elements.
        logical: one logical axis name for each dimension, as text or a sequence.
        dtype: its element type.
        spec: a PartitionSpec that wins over any rules.

    Raises:
        ShardvizError: for a shape, dtype, names or spec that no array has.

    >>> array("w", (512, 2048), "embed mlp", dtype="bfloat16").short
    'bf16[512, 2048]'
    """
    own_spec = optional(as_spec, spec)
    return ArraySpec(name, read_shape(shape), logical, dtype, own_spec)


def resolve(
    names: Any,
    rules: Any,
    *,
    mesh: Any = None,
    shape: Any = None,
    dialect: Any = "linen",
) -> Resolution | PathResolution:
    """Logical names to a PartitionSpec, with a verdict for every rule on every
    dimension.

    With a dialect of paths: a path to a PartitionSpec, with a verdict for every
    pattern.

    Args:
        names: one logical name for each dimension, as text or a sequence; None for no
            name. With a dialect of paths, the path, such as `"mlp/0/kernel"`.
        rules: the table.
        mesh: the mesh that the verdicts are checked against.
        shape: the array's shape, for verdicts on sizes that do not divide.
        dialect: who reads the table: `"linen"`, `"nnx"`, `"maxtext"`, `"regex"` or
            `"keras"`.

    Raises:
        ShardvizError: for names or rules that cannot be read, a name that occurs twice,
            and a path that several patterns of a `LayoutMap` match.

    >>> str(resolve(("embed", "mlp"), [("mlp", "model")]).spec)
    "P(None, 'model')"
    >>> str(resolve("mlp/0/kernel", [("kernel", (None, "model"))], dialect="regex").spec)
    "P(None, 'model')"
    """
    # This is called for every array of a model: what is ours already is not read again.
    if mesh is not None and not isinstance(mesh, MeshSpec):
        mesh = as_mesh(mesh)
    reader = dialect_of(rules, dialect)
    if not isinstance(rules, Rules):
        rules = read_rules(rules, reader)
    if isinstance(rules, PathRules):
        sizes = optional(read_shape, shape)
        return resolve_path(names, rules, mesh, sizes, reader)
    return _resolve(names, rules, mesh=mesh, shape=shape, dialect=reader)


def layout(
    thing: Any,
    spec: Any = None,
    mesh: Any = None,
    *,
    rules: Any = None,
    dtype: Any = None,
    dialect: Any = "linen",
) -> Layout:
    """Which part of an array each device holds.

    Args:
        thing: a shape, an ArraySpec, a jax `ShapeDtypeStruct` with a sharding, or a
            live array, also in a box of flax.
        spec: a PartitionSpec as text or jax's own, any jax `Sharding`, a ShardingSpec
            or Parts.
        mesh: the mesh, where `spec` has none.
        rules: axis rules, for an ArraySpec with logical names.
        dtype: the element type, where `thing` has none; float32 by default.
        dialect: who reads the rules.

    Raises:
        ShardvizError: where the array cannot be laid out so, with what would work.

    >>> from shardviz.base.mesh import make_mesh
    >>> layout((512, 2048), "None, model", make_mesh(data=4, model=2)).shard_shape
    (512, 1024)
    """
    return layout_of(thing, spec, mesh, rules, dtype, dialect)


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


def audit(
    tree: Any,
    rules: Any = (),
    mesh: Any = None,
    *,
    dialect: Any = "linen",
    names: Callable[[str, Any], Any] | None = None,
    target: Any = None,
) -> Audit:
    """Many arrays under one rule table: how each is split, and which rules do nothing.

    Of a live array its own sharding counts, then the names that a library keeps beside
    it, then what `names` says. Where none of them says anything, the array's row has no
    spec. Nothing is allocated and no array is read. In a train state every moment of
    the optimizer is paired with its parameter, and `.differences` says where the two
    are held otherwise.

    Args:
        tree: ArraySpecs, `(name, shape, logical)` rows, a tree of a model's parameters,
            live or abstract, a model or variables of flax, equinox, haliax, penzai or
            Keras, the metadata of an orbax checkpoint, a train state or what a step
            returns; or a Program, whose arguments are audited. Also the path of a file
            of MaxText's `named_shardings` or `logical_shardings`, or what it holds.
        rules: the table; an empty one where the arrays say by themselves how they are
            split. Those of a Program where they are left out. For a dialect of paths,
            pairs of a pattern and a spec, or a Keras `LayoutMap`.
        mesh: the mesh; by default that of a Program or of the arrays' own shardings,
            else the one in context, as of `jax.set_mesh`.
        dialect: who reads the table. `"regex"` and `"keras"` match the paths of the
            arrays, joined by `/`. A `LayoutMap` is always read as Keras reads it.
        names: called as `names(path, array)` for arrays that say nothing themselves;
            returns logical names, a PartitionSpec, or None.
        target: described hardware such as `"tpu:v5p:8x8x16"`, with whose memory per
            device the arrays are compared.

    Raises:
        ShardvizError: for a tree, rules, mesh or target that cannot be read, and where
            Keras raises: a path that several patterns of a `LayoutMap` match.

    >>> from shardviz.base.mesh import make_mesh
    >>> rows = [("w", (512, 2048), "embed mlp")]
    >>> audit(rows, [("mlp", "model")], make_mesh(data=4, model=2)).bytes_per_device
    2097152
    """
    # Without a target nothing is compared: an audit is for any hardware.
    capacity, title, count_devices = None, "", None
    if target is not None:
        capacity, title, count_devices = capacity_of(target)
    grid, in_context = None, None
    if mesh is not None:
        grid = as_mesh(mesh, count_devices)
    if _is_json_file(tree):
        tree = _read_json(tree)
    reader = dialect_of(rules, dialect)
    if isinstance(tree, Program):
        arguments = import_optional(
            "shardviz.programs.backend.arguments", "sv.audit", "jax"
        )
        # What is left out is the program's.
        if reader is Dialect.LINEN:
            reader = tree.dialect
        table = read_rules(rules, reader)
        if not len(table) and tree.rules is not None:
            table = tree.rules
        if grid is None:
            grid = tree.mesh
        tree = arguments.argument_tree(tree)
    else:
        table = read_rules(rules, reader)
        if grid is None:
            in_context = mesh_in_context()
    more = names, children_of, capacity, title, in_context
    return _audit(tree, table, grid, reader, *more)


def _topology(thing: Any) -> Topology:
    if isinstance(thing, Topology):
        return thing
    return Topology.parse(thing)


def _is_json_file(tree: Any) -> bool:
    is_text = isinstance(tree, str) and tree.lower().endswith(".json")
    return is_text or isinstance(tree, os.PathLike)


def _read_json(path: Any) -> Any:
    """What a file of JSON holds."""
    try:
        return json.loads(read_text_file(Path(path), MAX_JSON))
    except (ValueError, RecursionError) as error:
        name = shown(str(path))
        raise LayoutError(f"{name} holds no arrays as JSON: {error}") from None


def capacity_of(target: Any) -> tuple[int, str, Callable[[], int]]:
    """The memory of one device of described hardware, in bytes, what it is called, and
    what counts its devices.
    """
    if isinstance(target, Target):
        target = target.topology or target.name
    topology = _topology(target)
    size = topology.chip.device_bytes
    if size is None:
        raise ShardvizError(
            f"The memory of {topology.chip.title} is not published, so that nothing can"
            f" be compared with it; got target={shown(target)}."
        )
    return size, topology.title, lambda: topology.size


def remedies(thing: Any, want: Any, *, dtype: Any = "float32") -> Remedies:
    """The smallest edits of a rule table with which an array is split as you want.

    Lines of the table are moved, added, removed, corrected or changed; or a dimension of
    the array gets a name or a size that divides. Every remedy was checked by resolving
    all known arrays again: none makes one of them impossible to lay out. Where no
    single edit helps, pairs are tried.

    Args:
        thing: what `sv.resolve` returns, or a row of an Audit, of which the other
            arrays are known.
        want: a PartitionSpec or its text; `"split"`, or `"split 1"` for that dimension,
            `"split mlp"` for that of the name; or the most bytes per device, such as
            `"8 MiB"`.
        dtype: the element type of an array of which only a resolution is known.

    Raises:
        ShardvizError: for a wish that cannot be read, or anything but a resolution or
            row.

    >>> table = [("mlp", "model"), ("embed", "model")]
    >>> found = resolve("embed mlp", table, mesh="data=4, model=2", shape=(512, 2048))
    >>> print(remedies(found, "split embed")[2])
    Add the rule embed → data at the end: P('data', 'model'); saves 1.5 MiB per device.
    """
    # Text and numbers are wishes of more kinds than specs.
    wanted = want
    if not isinstance(want, (str, int)):
        wanted = as_spec(want)
    if isinstance(thing, (Resolution, PathResolution)):
        return thing.remedies(wanted, dtype_name(dtype))
    if isinstance(thing, Request):
        return with_names_of_parameter(thing, wanted) or thing.remedies(wanted)
    raise LayoutError(
        "Remedies are found for what sv.resolve returns and for a row of an Audit, as"
        f" audit.rows[0]; got {shown(thing)}."
    )


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
        arguments = import_optional(
            "shardviz.programs.backend.arguments", "sv.reshard", "jax"
        )
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
    return _reshard_over_links(arrays, before, after, _topology(topology))


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


def to_jax(thing: Any) -> Any:
    """jax's own object for a value: a Mesh, PartitionSpec, NamedSharding,
    ShapeDtypeStruct.

    Args:
        thing: a MeshSpec, Spec, Layout, ArraySpec, Resolution, Rules or Program.

    Raises:
        ShardvizError: where there is none.

    >>> to_jax(layout((8,), "data", "data=4")).spec
    P('data',)
    """
    return bridge().to_jax(thing)


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
    reader = import_optional("shardviz.move.backend.checkpoints", "sv.restore", "jax")
    found = reader.read_checkpoint(path, step)
    return plan_restore(found, wanted_restore(found, wanted, mesh, rules, dialect))
