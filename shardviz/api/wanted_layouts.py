"""The layouts that a mesh, rules, specs, shardings or another tree give the arrays of a
tree.

`sv.reshard` takes any of these for its two sides, `sv.restore` for what it restores
into.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from shardviz.api.adopt import as_mesh, children_of, foreign_mesh, is_jax
from shardviz.core.errors import (
    LayoutError,
    ShardvizError,
)
from shardviz.core.format import listed, shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.array_tree import (
    MAX_DEPTH,
    ArrayTree,
    TreeLeaf,
    is_array,
    own_sharding,
    read_tree,
)
from shardviz.core.layout.layout import Layout, lay_out
from shardviz.core.layout.libraries import (
    attribute,
    is_partition_spec,
    mesh_of,
    named_sharding,
    spec_of,
)
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.requests import Request, path_requests, request
from shardviz.core.layout.rules.rule_tables import read_rules
from shardviz.core.layout.rules.rules import Dialect, PathRules, Rules, is_pair
from shardviz.core.layout.transfer.checkpoint import SavedArray, SavedCheckpoint
from shardviz.core.layout.transfer.restore import RestoreNote, Wanted
from shardviz.core.layout.trees.audit import Audit, audit


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

    Raises:
        ShardvizError: for anything else.
    """
    if where is None:
        return _each(
            tree,
            [leaf if _placed(leaf) else None for leaf in tree.kinds],
            None,
            argument,
        )
    mesh, more = _mesh_and_more(where)
    table = type(more) in (list, tuple) and all(map(is_pair, more))
    if mesh is not None and (
        more is None or table or isinstance(more, (Rules, PathRules))
    ):
        return _by_rules(tree, mesh, read_rules(more or (), dialect), dialect, argument)
    wishes = _wishes(more, argument)
    if mesh is None and any(isinstance(wish, Spec) for wish in wishes.values()):
        raise LayoutError(
            f"{argument}= says mesh axes and no mesh; got {shown(where)}. Give both:"
            f" {argument}=(mesh, specs)."
        )
    return _each(tree, [_wish_for(path, wishes) for path in tree.paths], mesh, argument)


def _placed(leaf: TreeLeaf) -> bool:
    return leaf.layout is not None or (
        leaf.array.spec is not None and leaf.mesh is not None
    )


def _mesh_and_more(where: Any) -> tuple[MeshSpec | None, Any]:
    """The mesh that is said, if one is, and what is said beside it."""
    if attribute(where, "device_kind") is not None:
        ids, hosts = np.array([where.id]), np.array([where.process_index])
        return MeshSpec(("device",), (1,), (), ids, hosts, True), Spec()
    alone = type(where) is not tuple or len(where) != 2
    first, more = (where, None) if alone else where
    text = isinstance(first, str) and "=" in first
    mesh = make_mesh(first) if text else foreign_mesh(first) if is_mesh(first) else None
    return (None, where) if mesh is None else (mesh, more)


def is_mesh(thing: Any) -> bool:
    """Whether it is a mesh of ours, of jax or of Keras."""
    return isinstance(thing, MeshSpec) or bool(attribute(thing, "axis_names"))


def _by_rules(
    tree: ArrayTree,
    mesh: MeshSpec,
    rules: Rules | PathRules,
    dialect: Dialect,
    argument: str,
) -> list[Layout | str]:
    """What rules say; where there are none, the arrays' own specs and names on that
    mesh.
    """
    kinds: dict[int, TreeLeaf] = {}
    for leaf in tree.kinds:
        named = len(rules) and (dialect.by_path or leaf.array.logical is not None)
        old = named and not leaf.described and leaf.array.spec is not None
        kinds[id(leaf)] = (
            leaf._replace(array=leaf.array.replace(spec=None)) if old else leaf
        )
    found = audit(
        tree._replace(kinds=[kinds[id(k)] for k in tree.kinds]), rules, mesh, dialect
    )
    scalar = request(ArraySpec("array", ()), mesh, None).layout
    layouts: list[Layout | str] = []
    for row in found.rows:
        there = argument == "from_" and row.layout is not None  # an array on one device
        own = row.layout if there else _of_row(row)
        layouts.append(own or scalar or "" if not row.shape else own or _NO_SPEC)
    return layouts


_NO_SPEC = (
    "Nothing says how it is split over that mesh: it has neither a spec nor names."
)
_NOTHING = {
    "from_": "Nothing says on which devices it is, or how it is split over them.",
    "to": "Nothing in to= says where it is to go.",
}


def _of_row(row: Request) -> Layout | str | None:
    """The layout of a row of an Audit, or why it has none; None where nothing says so."""
    if row.layout is not None and row.spec is not None:
        return _without_sums(row.layout)
    return row.problem


def _without_sums(layout: Layout) -> Layout | str:
    sums = () if layout.spec is None else sorted(layout.spec.unreduced)
    if not sums:
        return layout
    return f"It is a partial sum over {listed(sums)}: whoever moves it has to add it up first."


def _each(
    tree: ArrayTree, wishes: list[Any], mesh: MeshSpec | None, argument: str
) -> list[Layout | str]:
    """The layout that each array gets from what is said of it."""
    found: dict[Any, Layout | str] = {}
    meshes: dict[int, MeshSpec | None] = {}
    layouts = []
    for leaf, wish in zip(tree.kinds, wishes, strict=True):
        by_value = isinstance(wish, Spec) or is_jax(
            wish
        )  # of large trees, each has its own
        key = (id(leaf), wish if by_value else id(wish))
        if key not in found:
            found[key] = _one(leaf.array, wish, mesh, meshes) or _NOTHING[argument]
        layouts.append(found[key])
    return layouts


def _one(
    array: ArraySpec,
    wish: Any,
    mesh: MeshSpec | None,
    meshes: dict[int, MeshSpec | None],
) -> Layout | str | None:
    """The layout of an array as a spec, sharding, layout, row or other array says;
    None: unsaid.
    """
    spec, own, layout, shape = None, None, None, array.shape
    if isinstance(wish, TreeLeaf):
        spec, own, layout, shape = (
            wish.array.spec,
            wish.mesh,
            wish.layout,
            wish.array.shape,
        )
    elif isinstance(wish, Layout):
        layout, shape = wish, wish.shape
    elif isinstance(wish, Request):
        layout, shape = _of_row(wish), wish.shape
    elif isinstance(wish, Spec):
        spec = wish
    elif wish is not None and (named := named_sharding(wish)) is not None:
        spec, own = named
        if (kind := attribute(wish, "memory_kind")) not in (None, "device"):
            return f"That sharding is of the memory kind {shown(kind)}: only devices are counted."
    elif wish is not None:
        _, _, layout = own_sharding(_Target(array.shape, array.dtype, wish), False)
    if shape != array.shape:
        return f"It is {list(array.shape)}, and what says how it is split is for {list(shape)}."
    if layout is not None:
        return _without_sums(layout) if isinstance(layout, Layout) else layout
    if mesh is None and own is not None and id(own) not in meshes:
        meshes[id(own)] = mesh_of(own)
    where = meshes.get(id(own)) if mesh is None else mesh
    if spec is None or where is None:
        return None
    try:
        return _without_sums(lay_out(array.shape, spec, where, array.dtype))
    except ShardvizError as error:
        return str(error)


class _Target(NamedTuple):
    """An array of this shape under another sharding."""

    shape: tuple[int, ...]
    dtype: str
    sharding: Any


def _wishes(thing: Any, argument: str) -> dict[str, Any]:
    """Path to what is said of the arrays there and below: specs, shardings, layouts,
    rows, arrays.

    Raises:
        LayoutError: for what says nothing.
    """
    if isinstance(thing, Audit):
        return {row.path: row for row in thing.rows}
    if (one := _as_wish(thing)) is not None:
        return {"": one}
    kept: dict[str, Any] = {}

    def children(value: Any) -> list[tuple[str, Any]] | None:
        wish = _as_wish(value)
        if wish is None:
            return children_of(value)
        name = f"sharding {len(kept)}"
        kept[name] = wish
        return [("", TreeLeaf(ArraySpec(name, ()), described=True))]

    specs = _with_specs(thing)
    try:
        read = read_tree(specs, children=children)
    except LayoutError as error:
        raise LayoutError(
            f"{argument}= is a mesh, (mesh, rules), (mesh, specs) or a tree of shardings; got"
            f" {shown(thing)}."
        ) from error
    # An array says how it is split by itself.
    return {
        path: kept.get(leaf.array.name, leaf)
        for path, leaf in zip(read.paths, read.kinds, strict=True)
    }


def _as_wish(value: Any) -> Any:
    """A spec, a sharding or a layout as it is; None for all else."""
    if isinstance(value, (Spec, Layout, Request)):
        return value
    if isinstance(value, str):
        return Spec.parse(value)
    if is_partition_spec(value):
        return spec_of(value)
    sharding = named_sharding(value) is not None or callable(
        attribute(value, "devices_indices_map")
    )
    return value if sharding else None


def _with_specs(value: Any, depth: int = 0) -> Any:
    """A tree with Specs for texts and tuples of names, which would be read as rows of a
    table.
    """
    if depth > MAX_DEPTH:
        return value  # too deep for a tree of arrays, too, which says so
    if type(value) is dict:
        return {name: _with_specs(inner, depth + 1) for name, inner in value.items()}
    if type(value) is tuple and value and all(_is_entry(entry) for entry in value):
        return Spec.of(*value)
    if type(value) in (list, tuple):
        return type(value)(_with_specs(inner, depth + 1) for inner in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_with_specs(inner, depth + 1) for inner in value))
    if isinstance(value, Layout):  # it has a shape and a dtype, as an array does
        return TreeLeaf(
            ArraySpec("array", value.shape, None, value.dtype), layout=value
        )
    return Spec.parse(value) if isinstance(value, str) else value


def _is_entry(value: Any) -> bool:
    if type(value) is tuple:
        return bool(value) and all(isinstance(name, str) for name in value)
    return value is None or isinstance(value, str)


def _wish_for(path: str, wishes: dict[str, Any]) -> Any:
    """What is said of a path, or of the nearest container above it."""
    while path and path not in wishes:
        path = path.rpartition("/")[0]
    return wishes.get(path)


def wanted_restore(
    checkpoint: SavedCheckpoint, wanted: Any, mesh: Any, rules: Any, dialect: Any
) -> Wanted:
    """How the arrays of a checkpoint are wanted, from any of the forms that
    `sv.restore` takes.

    Raises:
        ShardvizError: for what is none of them, and where there is no mesh.
    """
    grid = None if mesh is None else as_mesh(mesh)
    if wanted is None:
        return _wanted_as_saved(checkpoint, grid)
    specs = spec_leaves(wanted)
    if specs:
        return _wanted_by_specs(checkpoint, specs, grid)
    table = (
        isinstance(wanted, (Rules, PathRules, str))
        or type(wanted).__name__ == "LayoutMap"
    )
    if table or (
        isinstance(wanted, (list, tuple)) and wanted and all(map(is_pair, wanted))
    ):
        return _wanted_by_paths(checkpoint, wanted, grid, Dialect.of(dialect))
    return _wanted_by_tree(checkpoint, wanted, grid, rules, Dialect.of(dialect))


def _bare(saved: SavedArray, spec: Spec | None) -> ArraySpec:
    return ArraySpec("array", saved.shape, None, saved.dtype, spec)


def _grid(given: MeshSpec | None, *others: Any) -> MeshSpec:
    found = given or next(
        (mesh for mesh in map(_as_own, others) if mesh is not None), None
    )
    if found is None:
        raise LayoutError(
            "A restore needs a mesh; got none, and no sharding brings one. Give"
            " mesh=sv.mesh(data=4, model=2)."
        )
    return found


def _as_own(mesh: Any) -> MeshSpec | None:
    return mesh if mesh is None or isinstance(mesh, MeshSpec) else foreign_mesh(mesh)


def _wanted_as_saved(checkpoint: SavedCheckpoint, mesh: MeshSpec | None) -> Wanted:
    """With the specs of the checkpoint; what one device held, or numpy, is not split."""
    if not checkpoint.has_shardings and any(
        a.kind == "array" for a in checkpoint.arrays
    ):
        raise LayoutError(
            f"{checkpoint.path} does not say how its arrays were split: its file _sharding is"
            " missing. Give specs, a table of paths, or the tree that it is restored into."
        )
    grid = _grid(mesh, *(a.mesh for a in checkpoint.arrays))
    found = {}
    for array in checkpoint.arrays:
        known = array.spec is not None or array.device or array.kind != "array"
        own = grid if mesh is not None or array.mesh is None else array.mesh
        bare = _bare(array, array.spec if array.spec is not None else Spec())
        found[array.path] = request(bare, own, None) if known else _no_request(array)
    notes = ()
    if mesh is None:
        notes = (RestoreNote("one process"),)
    return Wanted(found, grid, notes=notes)


def _no_request(array: SavedArray) -> Request:
    return Request(_bare(array, None), None, None, None, None)


def _wanted_by_paths(
    checkpoint: SavedCheckpoint, table: Any, mesh: MeshSpec | None, dialect: Dialect
) -> Wanted:
    reader = dialect if dialect.by_path else Dialect.REGEX
    if not isinstance(table, Rules):
        table = read_rules(table, None if isinstance(table, str) else reader)
    if isinstance(table, Rules):
        raise LayoutError(
            "A checkpoint keeps no logical names for rules to decide on. Give the tree that it is"
            " restored into, and the table as rules=; or a table of paths, such as"
            " [('.*kernel', P(None, 'model'))]."
        )
    grid = _grid(mesh, table.mesh)
    leaves = ((a.path, TreeLeaf(_bare(a, None))) for a in checkpoint.arrays)
    rows = list(path_requests(leaves, grid, table, reader))
    found = dict(zip((a.path for a in checkpoint.arrays), rows, strict=True))
    return Wanted(_with_numbers(checkpoint, found, grid), grid)


def _with_numbers(
    checkpoint: SavedCheckpoint, found: dict[str, Request], mesh: MeshSpec
) -> dict[str, Request]:
    """The requests, where numbers and numpy arrays that nothing splits are held by
    everybody.
    """
    for array in checkpoint.arrays:
        row = found.get(array.path)
        bare = array.kind != "array" or not array.shape
        if (
            bare
            and row is not None
            and row.spec is None
            and row.layout is row.problem is None
        ):
            found[array.path] = request(_bare(array, Spec()), mesh, None)
    return found


def spec_leaves(
    tree: Any, path: str = "", depth: int = 0
) -> list[tuple[str, Spec, Any]] | None:
    """Path, spec and mesh of every leaf of a tree of specs or shardings; None for other
    trees.

    >>> spec_leaves({"w": Spec.of("x"), "b": [Spec()]})
    [('w', P('x'), None), ('b/0', P(), None)]
    """
    if isinstance(tree, Spec) or is_partition_spec(tree):
        return [(path, tree if isinstance(tree, Spec) else spec_of(tree), None)]
    if not is_array(tree) and (named := named_sharding(tree)) is not None:
        return [(path, *named)]
    if isinstance(tree, dict):
        parts = tree.items()
    elif isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields"):
        parts = enumerate(tree)
    else:
        parts = () if tree is None else children_of(tree)
    if parts is None or depth > MAX_DEPTH:
        return None
    found: list[tuple[str, Spec, Any]] = []
    for key, inner in parts:  # only as far as there are specs: what is endless has none
        leaves = spec_leaves(inner, f"{path}/{key}" if path else str(key), depth + 1)
        if leaves is None:
            return None
        found += leaves
    return found


def _wanted_by_specs(
    checkpoint: SavedCheckpoint,
    specs: list[tuple[str, Spec, Any]],
    mesh: MeshSpec | None,
) -> Wanted:
    """Each array by the spec at its path, or at the longest path above it."""
    grid = _grid(mesh, *(own for _, _, own in specs))
    at = {
        path: (spec, _as_own(own) if mesh is None else None)
        for path, spec, own in specs
    }
    found, used = {}, set()
    for array in checkpoint.arrays:
        path = array.path
        while path and path not in at:
            path = path.rpartition("/")[0]
        if path in at:
            spec, own = at[path]
            used.add(path)
            found[array.path] = request(_bare(array, spec), own or grid, None)
    known = {path for path, _ in checkpoint.others}
    return Wanted(found, grid, tuple(path for path in at if path not in used | known))


def _wanted_by_tree(
    checkpoint: SavedCheckpoint,
    tree: Any,
    mesh: MeshSpec | None,
    rules: Any,
    dialect: Dialect,
) -> Wanted:
    """Each array as the leaf at its path; orbax adds `value` for the box that flax puts
    it in.
    """
    arrays = read_tree(tree, None, children_of)
    grid = _grid(
        mesh, *(mesh_of(leaf.mesh) for leaf in arrays.kinds if leaf.mesh is not None)
    )
    rows = dict(
        zip(arrays.paths, audit(arrays, rules, grid, dialect).rows, strict=True)
    )
    found, used = {}, set()
    for array in checkpoint.arrays:
        bare = array.path.removesuffix("/value")
        path = array.path if array.path in rows else bare
        if path in rows:
            used.add(path)
            found[array.path] = rows[path]
    known = {path for path, _ in checkpoint.others}
    missing = tuple(path for path in rows if path not in used | known)
    return Wanted(_with_numbers(checkpoint, found, grid), grid, missing)
