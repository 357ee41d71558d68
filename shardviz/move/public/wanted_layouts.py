"""The layouts that a mesh, rules, specs, shardings or another tree give to arrays.

`sv.reshard` takes any of these for its two sides, `sv.restore` for what it restores
into.
"""

from __future__ import annotations

from typing import Any

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
from shardviz.axis_rules.libraries import (
    attribute,
    is_partition_spec,
    mesh_of,
    model_arrays,
    named_sharding,
    spec_of,
    without_metadata,
)
from shardviz.axis_rules.requests import Request, request
from shardviz.axis_rules.rule_tables import dialect_of, read_rules
from shardviz.axis_rules.rules import Dialect, PathRules, Rules, is_pair
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
from shardviz.move.restore import (
    SavedArray,
    SavedCheckpoint,
    Wanted,
)


def layouts_on(
    tree: ArrayTree, where: Any, dialect: Dialect, argument: str
) -> list[Layout | str]:
    """The layout of every array of a tree on one side of a reshard, or why it has none.

    Args:
        tree: the arrays.
        where: None for their own shardings; a mesh; a mesh and rules or specs;
            shardings; an Audit.
        dialect: who reads rules.
        argument: the name of the argument, for messages.
    """
    mesh, more = _mesh_and_more(where)
    if mesh is not None and (more is None or _is_table(more)):
        reader = dialect_of(more, dialect)
        rows = _by_rules(tree, mesh, read_rules(more or (), reader), reader, argument)
        return [_layout_or_why(row.array, row, None, {}) for row in rows]
    if where is None:
        wishes: list[Any] = list(tree.kinds)
    else:
        said = _wishes(more, typed=True)
        if said is None:
            raise LayoutError(
                f"{argument}= is a mesh, (mesh, rules), (mesh, specs) or a tree of"
                f" shardings; got {shown(more)}."
            )
        if mesh is None and any(isinstance(wish, Spec) for wish in said.values()):
            raise LayoutError(
                f"{argument}= says mesh axes and no mesh; got {shown(where)}. Give both:"
                f" {argument}=(mesh, specs)."
            )
        # A spec for a container holds for all that is in it.
        wishes = [said.get(_place(path, said)) for path in tree.paths]
    meshes: dict[int, MeshSpec | None] = {}
    layouts = []
    for leaf, wish in zip(tree.kinds, wishes, strict=True):
        layouts.append(_layout_or_why(leaf.array, wish, mesh, meshes))
    return layouts


def _layout_or_why(
    array: ArraySpec, wish: Any, mesh: MeshSpec | None, meshes: dict[int, Any]
) -> Layout | str:
    """A layout, or the sentence on why there is none: the other arrays still have one."""
    try:
        return _laid_out(array, wish, mesh, meshes)
    except ShardvizError as error:
        return str(error)


def _mesh_and_more(where: Any) -> tuple[MeshSpec | None, Any]:
    """The mesh that is said, if one is, and what is said beside it."""
    if attribute(where, "device_kind") is not None:
        ids, hosts = np.array([where.id]), np.array([where.process_index])
        return MeshSpec(("device",), (1,), (), ids, hosts, True), Spec()
    first, more = where, None
    # Not a named tuple, which is a tree.
    if type(where) is tuple and len(where) == 2:
        first, more = where
    # Text with a size is a mesh; all other text is a spec.
    if isinstance(first, str) and "=" in first:
        return make_mesh(first), more
    if attribute(first, "axis_names"):
        mesh = foreign_mesh(first)
        if mesh is not None:
            return mesh, more
    return None, where


def _is_table(thing: Any) -> bool:
    if isinstance(thing, (Rules, PathRules)) or type(thing).__name__ == "LayoutMap":
        return True
    return type(thing) in (list, tuple) and all(map(is_pair, thing))


def _by_rules(
    tree: ArrayTree,
    mesh: MeshSpec,
    rules: Rules | PathRules,
    dialect: Dialect,
    argument: str,
) -> list[Request]:
    """What rules say; else the arrays' own specs and names, read on that mesh."""
    kinds: dict[int, TreeLeaf] = {}
    for leaf in tree.kinds:
        kinds[id(leaf)] = leaf
        # Rules decide anew on arrays with names, whatever their sharding was.
        if len(rules) and not leaf.described:
            if dialect.by_path or leaf.array.logical is not None:
                kinds[id(leaf)] = leaf._replace(array=leaf.array.replace(spec=None))
    alike = tree._replace(kinds=[kinds[id(leaf)] for leaf in tree.kinds])
    rows = []
    for row in audit(alike, rules, mesh, dialect).rows:
        # A live array on one device has a layout and no spec.
        if row.spec is None and argument == "to":
            row = Request(row.array, None, None, None, row.problem)
        if row.layout is None and not row.shape and not row.problem:
            row = request(ArraySpec("array", ()), mesh, None)
        rows.append(row)
    return rows


def _of_row(row: Request) -> Layout:
    """The layout of a row, if its array can be moved."""
    if row.spec is not None and row.spec.unreduced:
        raise LayoutError(
            f"It is a partial sum over {listed(sorted(row.spec.unreduced))}: whoever moves"
            " it has to add it up first."
        )
    if row.layout is None:
        raise LayoutError(row.problem or "Nothing says how it is split over that mesh.")
    return row.layout


def _laid_out(
    array: ArraySpec, wish: Any, mesh: MeshSpec | None, meshes: dict[int, Any]
) -> Layout:
    """An array as a spec, sharding, layout, row or other array says.

    Args:
        array: its shape and type.
        wish: what is said of it, or None.
        mesh: the mesh that counts, where one is given.
        meshes: those of other libraries that are read already, by their ids.

    Raises:
        ShardvizError: where that is no layout of it.
    """
    spec, own, shape = None, None, array.shape
    layout: Any = None
    if isinstance(wish, TreeLeaf):
        spec, own, layout = wish.array.spec, wish.mesh, wish.layout
        shape = wish.array.shape
    elif isinstance(wish, Layout):
        spec, layout, shape = wish.spec, wish, wish.shape
    elif isinstance(wish, Request):
        spec, layout, shape = wish.spec, _of_row(wish), wish.shape
    elif isinstance(wish, Spec):
        spec = wish
    elif wish is not None and (named := named_sharding(wish)) is not None:
        spec, own = named
        if (kind := attribute(wish, "memory_kind")) not in (None, "device"):
            raise LayoutError(
                f"That sharding is of the memory kind {shown(kind)}: only devices are"
                " counted."
            )
    elif wish is not None:
        layout = bridge().sharding_layout(array.shape, array.dtype, wish)
    if shape != array.shape:
        raise LayoutError(
            f"It is {list(array.shape)}, and what says how it is split is for"
            f" {list(shape)}."
        )
    if mesh is None and own is not None:
        # A mesh of many devices takes long to read, and most arrays share one.
        if id(own) not in meshes:
            meshes[id(own)] = mesh_of(own)
        mesh = meshes[id(own)]
    bare, problem = ArraySpec("array", array.shape, None, array.dtype), None
    if layout is None and spec is not None and mesh is not None:
        row = request(bare.replace(spec=spec), mesh, None)
        layout, problem = row.layout, row.problem
    if layout is None and problem is None:
        raise LayoutError(
            "Nothing says on which devices it is, or how it is split over them."
        )
    return _of_row(Request(bare, None, spec, layout, problem))


def _wishes(
    thing: Any, typed: bool, path: str = "", depth: int = 0
) -> dict[str, Any] | None:
    """Path to what is said of the arrays there and below; None for what says nothing.

    Args:
        thing: a spec, sharding, layout, row or Audit, or a tree of these.
        typed: whether text, tuples of names and arrays say how they are split, too.
        path: where it is in a tree.
        depth: how deep.
    """
    if isinstance(thing, Audit):
        return {row.path: row for row in thing.rows}
    if thing is None:
        # None is an empty part of a tree, but no tree.
        return {} if path else None
    # A spec is asked for before containers, since old jax's is a tuple.
    if (wish := _as_wish(thing, path, typed)) is not None:
        return {path: wish}
    if isinstance(thing, dict):
        parts: Any = list(thing.items())
    elif hasattr(thing, "_fields"):
        parts = list(zip(thing._fields, thing, strict=True))
    elif isinstance(thing, (list, tuple)):
        parts = list(enumerate(thing))
    else:
        parts = children_of(thing)
        if parts is None and typed and (model := model_arrays(thing)) is not None:
            return _wishes(model, typed, path, depth + 1)
    if parts is None or depth > MAX_DEPTH:
        return None
    found: dict[str, Any] = {}
    for key, inner in parts:
        below = _wishes(inner, typed, f"{path}/{key}".lstrip("/"), depth + 1)
        if below is None:
            return None
        found |= below
    return found


def _as_wish(value: Any, path: str, typed: bool) -> Any:
    """A spec, a sharding, a layout or an array; None for all else."""
    if isinstance(value, (Spec, Layout, Request)):
        return value
    if is_partition_spec(value):
        return spec_of(value)
    if typed:
        if isinstance(value, str):
            return Spec.parse(value)
        if type(value) is tuple and value and all(map(_is_entry, value)):
            return Spec.of(*value)
        if is_array(value) or without_metadata(value) is not None:
            return read_leaf(path[-40:] or "array", value)
    if is_array(value):
        return None
    boxes = attribute(value, "devices_indices_map")
    if callable(boxes) or named_sharding(value) is not None:
        return value
    return None


def _is_entry(value: Any) -> bool:
    if type(value) is tuple:
        return bool(value) and all(isinstance(name, str) for name in value)
    return value is None or isinstance(value, str)


def _place(path: str, wishes: dict[str, Any]) -> str:
    """The path, or the nearest container above it, of which something is said."""
    while path and path not in wishes:
        path = path.rpartition("/")[0]
    return path


def wanted_restore(
    checkpoint: SavedCheckpoint, wanted: Any, mesh: Any, rules: Any, dialect: Any
) -> Wanted:
    """How the arrays of a checkpoint are wanted, in any form that `sv.restore` takes."""
    grid, reader = optional(as_mesh, mesh), dialect_of(wanted, dialect)
    if wanted is None:
        return _wanted_as_saved(checkpoint, grid)
    if wishes := _wishes(wanted, typed=False):
        return _wanted_by_wishes(checkpoint, wishes, grid)
    if isinstance(wanted, str) or (_is_table(wanted) and len(wanted)):
        if not reader.by_path:
            reader = Dialect.REGEX
        rules = wanted
        if not isinstance(wanted, Rules):
            rules = read_rules(wanted, None if isinstance(wanted, str) else reader)
        if isinstance(rules, Rules):
            raise LayoutError(
                "A checkpoint keeps no logical names for rules to decide on. Give the tree"
                " that it is restored into, and the table as rules=; or a table of paths,"
                " such as [('.*kernel', P(None, 'model'))]."
            )
        grid = _grid(grid, rules.mesh)
        paths = [array.path for array in checkpoint.arrays]
        kinds = [TreeLeaf(_bare(array)) for array in checkpoint.arrays]
        tree = ArrayTree(paths, paths, kinds)
    else:
        tree = read_tree(wanted, None, children_of)
        brought = [leaf.mesh for leaf in tree.kinds if leaf.mesh is not None]
        grid = _grid(grid, *map(mesh_of, brought))
    # From here on a table and a tree are alike: an audit read both.
    rows = audit(tree, rules, grid, reader).rows
    by_path = dict(zip(tree.paths, rows, strict=True))
    found, used = {}, set(checkpoint.others)
    for array in checkpoint.arrays:
        # orbax adds `value` for the box that flax puts an array in.
        path = array.path
        if path not in by_path:
            path = path.removesuffix("/value")
        if path not in by_path:
            continue
        used.add(path)
        row = by_path[path]
        # Numbers and numpy arrays that nothing splits are held by everybody.
        plain = array.kind in ("numpy", "scalar") or not array.shape
        if plain and row.spec is row.layout is row.problem is None:
            row = request(_bare(array, Spec()), grid, None)
        found[array.path] = row
    return Wanted(found, grid, tuple(path for path in by_path if path not in used))


def _bare(saved: SavedArray, spec: Spec | None = None) -> ArraySpec:
    return ArraySpec("array", saved.shape, None, saved.dtype, spec)


def _grid(*meshes: MeshSpec | None) -> MeshSpec:
    """The first mesh that there is."""
    for mesh in meshes:
        if mesh is not None:
            return mesh
    raise LayoutError(
        "A restore needs a mesh; got none, and no sharding brings one. Give"
        " mesh=sv.mesh(data=4, model=2)."
    )


def _wanted_as_saved(checkpoint: SavedCheckpoint, mesh: MeshSpec | None) -> Wanted:
    """With the specs of the checkpoint; what one device held, or numpy, is not split."""
    arrays = checkpoint.arrays
    if not checkpoint.has_shardings and any(a.kind == "array" for a in arrays):
        raise LayoutError(
            f"{checkpoint.path} does not say how its arrays were split: its file _sharding"
            " is missing. Give specs, a table of paths, or the tree that it is restored"
            " into."
        )
    grid = _grid(mesh, *(array.mesh for array in arrays))
    found = {}
    for array in arrays:
        row = Request(_bare(array), None, None, None, None)
        if array.spec is not None:
            row = request(_bare(array, array.spec), mesh or array.mesh or grid, None)
        elif array.kind != "array":
            row = request(_bare(array, Spec()), mesh or grid, None)
        found[array.path] = row
    notes = ()
    if mesh is None:
        notes = ("one process",)
    return Wanted(found, grid, notes=notes)


def _wanted_by_wishes(
    checkpoint: SavedCheckpoint, wishes: dict[str, Any], mesh: MeshSpec | None
) -> Wanted:
    """Each array by the spec at its path, or at the longest path above it."""
    brought = [named_sharding(wish) for wish in wishes.values()]
    grid = _grid(mesh, *(mesh_of(named[1]) for named in brought if named is not None))
    found: dict[str, Request] = {}
    meshes: dict[int, Any] = {}
    unused = wishes.keys() - set(checkpoint.others)
    for array in checkpoint.arrays:
        path = _place(array.path, wishes)
        if path in wishes:
            unused.discard(path)
            own = mesh
            if isinstance(wishes[path], Spec):
                own = grid
            bare = _bare(array)
            layout = _layout_or_why(bare, wishes[path], own, meshes)
            if isinstance(layout, str):
                found[array.path] = Request(bare, None, None, None, layout)
            else:
                found[array.path] = Request(bare, None, layout.spec, layout, None)
    return Wanted(found, grid, tuple(path for path in wishes if path in unused))
