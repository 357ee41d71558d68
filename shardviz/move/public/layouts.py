"""Computes the layouts of a tree of arrays from a mesh, rules, specs or shardings.

`sv.reshard` uses these functions for the old and the new layouts, `sv.restore` for the
restored arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from shardviz.axis_rules.array_tree import (
    MAX_DEPTH,
    ArrayTree,
    TreeLeaf,
    is_array,
    read_leaf,
    read_tree,
)
from shardviz.axis_rules.audit import Audit, audit
from shardviz.axis_rules.dialects import Dialect
from shardviz.axis_rules.libraries import (
    attribute,
    foreign_memory,
    is_partition_spec,
    mesh_of,
    model_arrays,
    named_sharding,
    spec_of,
    without_metadata,
)
from shardviz.axis_rules.requests import Request, request
from shardviz.axis_rules.rule_tables import dialect_of, read_rules
from shardviz.axis_rules.rules import PathRules, Rules, is_pair
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import LayoutError, ShardvizError
from shardviz.base.format import listed, shown
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.base.public.adopt import (
    as_mesh,
    bridge,
    children_of,
    foreign_mesh,
    optional,
)
from shardviz.base.typing import DialectLike, HasShardShape, MeshLike, PyTree, RulesLike
from shardviz.move.restore import (
    SavedArray,
    SavedCheckpoint,
    Wanted,
)
from shardviz.move.words.reshard import no_entry

LayoutSource: TypeAlias = TreeLeaf | Layout | Request | Spec | HasShardShape
"""Anything that defines the layout of one array; jax's shardings among them."""


def layouts_on(
    tree: ArrayTree, side: PyTree, dialect: DialectLike | None, argument: str
) -> tuple[list[Layout | str], tuple[str, ...]]:
    """Returns each array's layout before or after a reshard, or why it has none.

    Also returns the paths in `side` that match no array.

    Args:
        tree: the arrays.
        side: the argument `from_` or `to` of `sv.reshard`.
        dialect: the library whose semantics the rules follow, or None.
        argument: the argument's name, for error messages.
    """
    mesh, rules_or_specs = _mesh_and_specs(side)
    if mesh is not None and (rules_or_specs is None or _is_table(rules_or_specs)):
        reader = dialect_of(rules_or_specs, dialect)
        table = read_rules(rules_or_specs or (), reader)
        rows = _by_rules(tree, mesh, table, reader, argument)
        return [_layout_or_reason(row.array, row, None, {}) for row in rows], ()
    unused: tuple[str, ...] = ()
    if side is None:
        sources: list[LayoutSource | None] = list(tree.kinds)
    else:
        by_path = _sources_by_path(rules_or_specs, specs_as_text=True)
        if by_path is None:
            raise LayoutError(
                f"{argument}= is a mesh, (mesh, rules), (mesh, specs) or a tree of"
                f" shardings; got {shown(rules_or_specs)}."
            )
        if mesh is None and any(isinstance(spec, Spec) for spec in by_path.values()):
            raise LayoutError(
                f"{argument}= has mesh axes but no mesh; got {shown(side)}. Give both:"
                f" {argument}=(mesh, specs)."
            )
        # A spec for a container applies to every array in it.
        entries = [_nearest_path(path, by_path) for path in tree.paths]
        sources = [by_path.get(path) for path in entries]
        # An Audit can be that of a larger tree.
        if not isinstance(side, Audit):
            used = set(entries)
            unused = tuple(path for path in by_path if path not in used)
    meshes: dict[int, MeshSpec | None] = {}
    layouts = []
    for leaf, source in zip(tree.kinds, sources, strict=True):
        if source is None:
            layouts.append(no_entry(argument))
        else:
            layouts.append(_layout_or_reason(leaf.array, source, mesh, meshes))
    return layouts, unused


def _layout_or_reason(
    array: ArraySpec,
    source: LayoutSource | None,
    mesh: MeshSpec | None,
    meshes: dict[int, MeshSpec | None],
) -> Layout | str:
    """Returns the layout of an array, or the error message if it has none."""
    try:
        return _laid_out(array, source, mesh, meshes)
    except ShardvizError as error:
        return str(error)


def _mesh_and_specs(side: PyTree) -> tuple[MeshSpec | None, PyTree]:
    """Splits an argument of `sv.reshard` into its mesh, if any, and its specs."""
    if attribute(side, "device_kind") is not None:
        ids, hosts = np.array([side.id]), np.array([side.process_index])
        return MeshSpec(("device",), (1,), (), ids, hosts, True), Spec()
    first, specs = side, None
    # The type must be exactly tuple, because a named tuple is a tree of arrays.
    if type(side) is tuple and len(side) == 2:
        first, specs = side
    # Text with "=" is a mesh; any other text is a spec.
    if isinstance(first, str) and "=" in first:
        return make_mesh(first), specs
    if attribute(first, "axis_names"):
        mesh = foreign_mesh(first)
        if mesh is not None:
            return mesh, specs
    return None, side


def _is_table(rules: PyTree) -> bool:
    if isinstance(rules, (Rules, PathRules)) or type(rules).__name__ == "LayoutMap":
        return True
    return type(rules) in (list, tuple) and all(map(is_pair, rules))


def _by_rules(
    tree: ArrayTree,
    mesh: MeshSpec,
    rules: Rules | PathRules,
    dialect: Dialect,
    argument: str,
) -> list[Request]:
    """Lays out every array on the mesh, by the rules or by its own spec and names."""
    kinds: dict[int, TreeLeaf] = {}
    for leaf in tree.kinds:
        kinds[id(leaf)] = leaf
        # Rules override the current sharding of arrays that have logical names.
        if len(rules) and not leaf.described:
            if dialect.by_path or leaf.array.logical is not None:
                kinds[id(leaf)] = leaf._replace(array=leaf.array.replace(spec=None))
    alike = tree._replace(kinds=[kinds[id(leaf)] for leaf in tree.kinds])
    rows = []
    for row in audit(alike, rules, mesh, dialect).rows:
        # A live array on one device has a layout but no spec.
        if row.spec is None and argument == "to":
            row = Request(row.array, None, None, None, row.problem)
        if row.layout is None and not row.shape and not row.problem:
            row = request(ArraySpec("array", ()), mesh, None)
        rows.append(row)
    return rows


def _of_row(row: Request) -> Layout:
    """Returns the layout of a row.

    Raises:
        LayoutError: if the row's array cannot be moved.
    """
    if row.spec is not None and row.spec.unreduced:
        raise LayoutError(
            f"It is a partial {row.spec.unreduced_kind} over"
            f" {listed(sorted(row.spec.unreduced))}. Reshard it to a spec without unreduced"
            " axes before it is moved."
        )
    if row.layout is None:
        raise LayoutError(row.problem or "Its sharding over that mesh is unknown.")
    return row.layout


def _laid_out(
    array: ArraySpec,
    source: LayoutSource | None,
    mesh: MeshSpec | None,
    meshes: dict[int, MeshSpec | None],
) -> Layout:
    """Lays out an array by a spec, sharding, layout, audit row or another array.

    Args:
        array: the array; only its shape and dtype are used.
        source: the object that defines the layout, or None.
        mesh: a mesh that overrides the mesh of `source`.
        meshes: cache: `id()` of a jax mesh -> its MeshSpec.

    Raises:
        ShardvizError: if the source is not a valid layout of the array.
    """
    spec, foreign, shape = None, None, array.shape
    layout: Layout | None = None
    if isinstance(source, TreeLeaf):
        spec, foreign, layout = source.array.spec, source.mesh, source.layout
        shape = source.array.shape
    elif isinstance(source, Layout):
        spec, layout, shape = source.spec, source, source.shape
    elif isinstance(source, Request):
        spec, layout, shape = source.spec, _of_row(source), source.shape
    elif isinstance(source, Spec):
        spec = source
    elif source is not None and (named := named_sharding(source)) is not None:
        spec, foreign = named
    elif source is not None:
        layout = bridge().sharding_layout(array.shape, array.dtype, source)
    if isinstance(source, (TreeLeaf, Request)):
        memory = source.array.memory_kind
    else:
        memory = foreign_memory(source)
    if memory is not None:
        raise LayoutError(
            f"Its memory kind is {shown(memory)}, and only copies between the devices'"
            " default memories are counted."
        )
    if shape != array.shape:
        raise LayoutError(
            f"It is {list(array.shape)}, but its sharding is for {list(shape)}."
        )
    if mesh is None and foreign is not None:
        # Reading a mesh with many devices is slow, and most arrays share a mesh.
        if id(foreign) not in meshes:
            meshes[id(foreign)] = mesh_of(foreign)
        mesh = meshes[id(foreign)]
    bare, problem = ArraySpec("array", array.shape, None, array.dtype), None
    if layout is None and spec is not None and mesh is not None:
        row = request(bare.replace(spec=spec), mesh, None)
        layout, problem = row.layout, row.problem
    if layout is None and problem is None:
        raise LayoutError("Its devices and its sharding are unknown.")
    return _of_row(Request(bare, None, spec, layout, problem))


def _sources_by_path(
    tree: PyTree, specs_as_text: bool, path: str = "", depth: int = 0
) -> dict[str, LayoutSource] | None:
    """Returns the layout source of each leaf of a tree, by path.

    Returns None if any leaf is not a layout source.

    Args:
        tree: a spec, sharding, layout, row or Audit, or a tree of these.
        specs_as_text: whether to accept text and tuples of names as specs, and arrays
            as layout sources.
        path: the path of this subtree.
        depth: the depth of this subtree.
    """
    if isinstance(tree, Audit):
        return {row.path: row for row in tree.rows}
    if tree is None:
        # None can be an empty subtree, but not the whole tree.
        return {} if path else None
    # Check for specs before containers, because old jax's PartitionSpec is a tuple.
    if (source := _as_source(tree, path, specs_as_text)) is not None:
        return {path: source}
    if isinstance(tree, dict):
        children: list[tuple[Any, PyTree]] | None = list(tree.items())
    elif hasattr(tree, "_fields"):
        children = list(zip(tree._fields, tree, strict=True))
    elif isinstance(tree, (list, tuple)):
        children = list(enumerate(tree))
    else:
        children = children_of(tree)  # pyright: ignore[reportAssignmentType]
        if children is None and specs_as_text:
            if (model := model_arrays(tree)) is not None:
                return _sources_by_path(model, specs_as_text, path, depth + 1)
    if children is None or depth > MAX_DEPTH:
        return None
    by_path: dict[str, LayoutSource] = {}
    for key, child in children:
        child_path = f"{path}/{key}".lstrip("/")
        below = _sources_by_path(child, specs_as_text, child_path, depth + 1)
        if below is None:
            return None
        by_path |= below
    return by_path


def _as_source(value: Any, path: str, specs_as_text: bool) -> LayoutSource | None:
    """Returns a spec, sharding, layout or array as a source; None for anything else."""
    if isinstance(value, (Spec, Layout, Request)):
        return value
    if is_partition_spec(value):
        return spec_of(value)
    if specs_as_text:
        if isinstance(value, str):
            return Spec.parse(value)
        if _is_spec_tuple(value):
            return Spec.of(*value)
        if is_array(value) or without_metadata(value) is not None:
            return read_leaf(path[-40:] or "array", value)
    if is_array(value):
        return None
    boxes = attribute(value, "devices_indices_map")
    if callable(boxes) or named_sharding(value) is not None:
        return value
    return None


def _is_spec_tuple(value: object) -> bool:
    return type(value) is tuple and bool(value) and all(map(_is_entry, value))


def _is_entry(value: object) -> bool:
    if type(value) is tuple:
        return bool(value) and all(isinstance(name, str) for name in value)
    return value is None or isinstance(value, str)


def _nearest_path(path: str, by_path: Mapping[str, LayoutSource]) -> str:
    """Returns the longest prefix of a path that has an entry, or `""`."""
    while path and path not in by_path:
        path = path.rpartition("/")[0]
    return path


def restored_layouts(
    checkpoint: SavedCheckpoint,
    specs: PyTree,
    mesh: MeshLike | None,
    rules: RulesLike,
    dialect: DialectLike | None,
) -> Wanted:
    """Returns the layouts to restore, from any form of `specs` in `sv.restore`."""
    grid = optional(as_mesh, mesh)
    if specs is None:
        # Without a tree, only a table of paths can decide anything.
        specs = read_rules(rules or (), optional(Dialect.of, dialect))
        if not len(specs):
            return _as_saved(checkpoint, grid)
    reader = dialect_of(specs, dialect)
    if by_path := _sources_by_path(specs, specs_as_text=False):
        return _by_sources(checkpoint, by_path, grid)
    table: Rules | PathRules | RulesLike = rules
    if isinstance(specs, str) or (_is_table(specs) and len(specs)):
        if not reader.by_path:
            reader = Dialect.REGEX
        table = specs
        if not isinstance(specs, Rules):
            table = read_rules(specs, None if isinstance(specs, str) else reader)
        if isinstance(table, Rules):
            raise LayoutError(
                "No rule fires, because a checkpoint keeps no logical names. Also give the"
                " tree that it is restored into, as specs=, with the table as rules=; or"
                " give a table of paths, such as [('.*kernel', P(None, 'model'))]."
            )
        assert isinstance(table, PathRules)
        grid = _first_mesh(grid, table.mesh)
        paths = [array.path for array in checkpoint.arrays]
        kinds = [TreeLeaf(_bare(array)) for array in checkpoint.arrays]
        tree = ArrayTree(paths, paths, kinds)
    else:
        tree = read_tree(specs, None, children_of)
        reader = dialect_of(rules, dialect)
        leaf_meshes = [leaf.mesh for leaf in tree.kinds if leaf.mesh is not None]
        grid = _first_mesh(grid, *map(mesh_of, leaf_meshes))
    # `audit` lays out the arrays both for a table and for a tree.
    rows = audit(tree, table, grid, reader).rows
    row_by_path = dict(zip(tree.paths, rows, strict=True))
    layouts, used_paths = {}, set(checkpoint.others)
    for array in checkpoint.arrays:
        # orbax appends `value` to the path of an array in a flax box such as
        # Partitioned.
        path = array.path
        if path not in row_by_path:
            path = path.removesuffix("/value")
        if path not in row_by_path:
            continue
        used_paths.add(path)
        row = row_by_path[path]
        # Every process reads scalars and numpy arrays in full, unless they have a spec.
        plain = array.kind in ("numpy", "scalar") or not array.shape
        if plain and row.spec is row.layout is row.problem is None:
            row = request(_bare(array, Spec()), grid, None)
        layouts[array.path] = row
    unused = tuple(path for path in row_by_path if path not in used_paths)
    return Wanted(layouts, grid, unused)


def _bare(saved: SavedArray, spec: Spec | None = None) -> ArraySpec:
    return ArraySpec("array", saved.shape, None, saved.dtype, spec)


def _first_mesh(*meshes: MeshSpec | None) -> MeshSpec:
    """Returns the first mesh that is not None.

    Raises:
        LayoutError: if there is none.
    """
    for mesh in meshes:
        if mesh is not None:
            return mesh
    raise LayoutError(
        "A restore needs a mesh; got none, and no sharding brings one. Give"
        " mesh=sv.mesh(data=4, model=2)."
    )


def _as_saved(checkpoint: SavedCheckpoint, mesh: MeshSpec | None) -> Wanted:
    """Returns the saved layouts; numpy and single-device arrays are replicated."""
    arrays = checkpoint.arrays
    if not checkpoint.has_shardings and any(a.kind == "array" for a in arrays):
        raise LayoutError(
            f"{checkpoint.path} does not say how its arrays were split: its file _sharding"
            " is missing. Give specs, a table of paths, or the tree that it is restored"
            " into."
        )
    grid = _first_mesh(mesh, *(array.mesh for array in arrays))
    layouts = {}
    for array in arrays:
        row = Request(_bare(array), None, None, None, None)
        if array.spec is not None:
            row = request(_bare(array, array.spec), mesh or array.mesh or grid, None)
        elif array.kind != "array":
            row = request(_bare(array, Spec()), mesh or grid, None)
        layouts[array.path] = row
    notes = ()
    if mesh is None:
        notes = ("one process",)
    return Wanted(layouts, grid, notes=notes)


def _by_sources(
    checkpoint: SavedCheckpoint,
    by_path: Mapping[str, LayoutSource],
    mesh: MeshSpec | None,
) -> Wanted:
    """Lays out each array by the source at its path, or at a prefix of that path."""
    named = [named_sharding(source) for source in by_path.values()]
    grid = _first_mesh(mesh, *(mesh_of(pair[1]) for pair in named if pair is not None))
    layouts: dict[str, Request] = {}
    meshes: dict[int, MeshSpec | None] = {}
    unused = by_path.keys() - set(checkpoint.others)
    for array in checkpoint.arrays:
        path = _nearest_path(array.path, by_path)
        if path in by_path:
            unused.discard(path)
            # A spec needs a mesh. A sharding has one, which the caller's mesh
            # overrides.
            array_mesh = grid if isinstance(by_path[path], Spec) else mesh
            bare = _bare(array)
            layout = _layout_or_reason(bare, by_path[path], array_mesh, meshes)
            if isinstance(layout, str):
                layouts[array.path] = Request(bare, None, None, None, layout)
            else:
                layouts[array.path] = Request(bare, None, layout.spec, layout, None)
    return Wanted(layouts, grid, tuple(path for path in by_path if path in unused))
