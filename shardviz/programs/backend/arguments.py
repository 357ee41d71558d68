"""Arguments of a program: names for all leaves, and their specs."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from shardviz.axis_rules.array_tree import (
    ArrayTree,
    Names,
    TreeLeaf,
    read_leaf,
    short_name,
)
from shardviz.axis_rules.dialects import Dialect, NameDialect
from shardviz.axis_rules.libraries import (
    LeafMetadata,
    foreign_memory,
    spec_of,
    without_metadata,
)
from shardviz.axis_rules.optimizer_state import optimizer_leaves
from shardviz.axis_rules.requests import on_mesh
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec, dtype_name, format_names
from shardviz.base.errors import ProgramError, ShardvizError
from shardviz.base.format import joined, shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.parse import MAX_NAME
from shardviz.base.partition_spec import ResultSpec, Spec
from shardviz.base.typing import PyTree, UserFunction
from shardviz.programs.backend.bridge import adopt_array, adopt_mesh
from shardviz.programs.notes import NoRules
from shardviz.programs.program import Program


def program_arrays(
    args: Sequence[PyTree],
    fn: UserFunction,
    mesh: MeshSpec | None = None,
    rules: Rules | None = None,
    *,
    dialect: NameDialect = Dialect.LINEN,
    names: Sequence[str] | None = None,
    axis_names: Names | None = None,
) -> tuple[tuple[ArraySpec, ...], Any, MeshSpec | None]:
    """Returns the arrays in a function's arguments, their tree, and their mesh.

    An ArraySpec keeps its name if it is unique. Other leaves are named after the
    parameter and their key path, such as `params.w_in` or `layers[0]`. Axis names in a
    library's metadata box become logical names. If they match no rule and the mesh has
    all of them, they are mesh axes, as in flax's `get_sharding`.

    Args:
        args: positional arguments: pytrees of ArraySpecs, ShapeDtypeStructs and arrays.
        fn: the function that takes them.
        mesh: the given mesh; None to use the arrays' mesh.
        rules: the given axis rules.
        dialect: the library whose semantics the rules follow.
        names: names of the arguments; None to use the function's parameter names.
        axis_names: called with name and array for arrays without a sharding or names;
            returns logical names, a PartitionSpec, or None.

    Raises:
        ProgramError: if a leaf isn't an array, or arrays are on different meshes.

    >>> import jax.numpy as jnp
    >>> w = jax.ShapeDtypeStruct((4, 8), jnp.bfloat16)
    >>> arrays, tree, mesh = program_arrays([{"w": w}, w], lambda params, x: x @ params["w"])
    >>> [a.name for a in arrays]
    ['params.w', 'x']
    """
    leaves, tree = leaves_with_paths(tuple(args))
    if names is None:
        names = parameter_names(fn, len(args))
    # Layers may share an ArraySpec name. Such arrays are named after their path.
    counts = Counter(leaf.name for _, leaf, _ in leaves if isinstance(leaf, ArraySpec))
    used_names = {name for name, count in counts.items() if count == 1}
    arrays: list[ArraySpec] = []
    on = None
    for path, leaf, box in leaves:
        name = unique(path_name(str(names[path[0].idx]), path[1:]), used_names)
        if not isinstance(leaf, ArraySpec):
            array = _array(name, leaf)
        else:
            array = leaf if counts[leaf.name] == 1 else leaf.renamed(name)
        used_names.add(array.name)
        arrays.append(array)
        on = _same_mesh(on, leaf if box is None else box.value, array.name)
    if mesh is None:
        mesh = on
    # A separate loop, because axis names may refer to the mesh of a later array.
    for i, (_, leaf, box) in enumerate(leaves):
        value = leaf if box is None else box.value
        by_user = axis_names is not None and is_array(value)
        if (box is None and not by_user) or isinstance(value, ArraySpec):
            continue
        tree_leaf = read_leaf(arrays[i].name, value, box, axis_names)
        if tree_leaf.problem is not None:
            raise ProgramError(f"{arrays[i].name}: {tree_leaf.problem}")
        placed = on_mesh(tree_leaf, mesh, rules, dialect)
        # Names that are mesh axes form a spec; they aren't logical names.
        mesh_axes = tree_leaf.array.spec is None and placed.spec is not None
        logical = None if mesh_axes else placed.logical
        arrays[i] = arrays[i].replace(logical=logical, spec=placed.spec)
    return tuple(arrays), tree, on


def argument_tree(program: Program) -> ArrayTree:
    """Returns a program's arguments by key path, with its optimizer state marked.

    >>> from shardviz.base.mesh import make_mesh
    >>> x = ArraySpec("x", (8,))
    >>> [leaf.array.name for leaf in argument_tree(Program(abs, (x,), make_mesh(data=4))).leaves]
    ['x']
    """
    kinds = [TreeLeaf(array, described=True) for array in program.arrays]
    # A program built from arrays alone has no pytree.
    if program.tree is None:
        paths = [array.name for array in program.arrays]
        return ArrayTree(paths, paths, kinds)
    arguments = jax.tree.unflatten(program.tree, program.arrays)
    names = getattr(program.fn, "names", None)
    if names is None:
        names = parameter_names(program.fn, len(arguments))
    paths = [_slashed(names, path) for path, _, _ in leaves_with_paths(arguments)[0]]
    named: dict[str, None] = {}
    for path in paths:
        named[unique(short_name(path), named.keys())] = None
    return ArrayTree(paths, list(named), kinds, optimizer_leaves(program.tree))


def _slashed(names: Sequence[str], path: Sequence[Any]) -> str:
    """Formats a key path as in audits: `state/params/w`."""
    steps = jax.tree_util.keystr(tuple(path[1:]), simple=True, separator="/")
    text = f"{names[path[0].idx]}/{steps}" if steps else str(names[path[0].idx])
    return "".join(c if c.isprintable() else "?" for c in text)


def leaves_with_paths(
    tree: PyTree,
) -> tuple[list[tuple[Any, Any, LeafMetadata | None]], Any]:
    """Returns every leaf with its key path and the metadata of its flax box, and the
    tree structure including boxes.

    Leaves without a box have None as metadata. Boxes don't appear in the path.

    >>> leaves_with_paths({"w": 1})[0]
    [((DictKey(key='w'),), 1, None)]
    """
    leaves: list[tuple[Any, Any, LeafMetadata | None]] = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_box):
        # Stop at boxes first, to read their names together with the array.
        box = without_metadata(leaf)
        if box is None:
            leaves.append((path, leaf, None))
            continue
        inner = jax.tree_util.tree_leaves_with_path(leaf)
        for steps, value in inner:
            # Names in a box describe one array. If the box has several, they are
            # ignored.
            metadata = box if len(inner) == 1 else None
            leaves.append(((*path, *steps[1:]), value, metadata))
    return leaves, jax.tree.structure(tree)


def _is_box(value: Any) -> bool:
    return without_metadata(value) is not None


def parameter_names(fn: UserFunction, count: int) -> list[str]:
    """Returns the names of a function's first `count` positional arguments.

    >>> parameter_names(lambda x, *rest: x, 3)
    ['x', 'rest[0]', 'rest[1]']
    """
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # some builtins have no signature
        parameters = []
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            for i in range(count - len(names)):
                names.append(f"{parameter.name}[{i}]")
        elif parameter.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
            names.append(parameter.name)
    names += [f"argument_{i}" for i in range(len(names), count)]
    return names[:count]


def path_name(root: str, path: Iterable[object]) -> str:
    """Names a leaf by its key path; unprintable characters become `?`.

    >>> path_name("params", (DictKey("layer"), SequenceKey(0), GetAttrKey("w")))
    'params.layer[0].w'
    """
    name = root + "".join(_step(key) for key in path)
    name = "".join(c if c.isprintable() else "?" for c in name).strip() or root
    # In a long path, the end is more useful than the beginning.
    return name if len(name) <= MAX_NAME - 8 else "…" + name[-(MAX_NAME - 9) :].lstrip()


def name_of_path(text: str) -> str:
    """Names a leaf by jax's text of its key path, as `path_name` names it.

    >>> name_of_path("params['layer'][0].w")
    'params.layer[0].w'
    """
    name = re.sub(r"\['([^'\]]+)'\]", r".\1", text)
    return path_name(name, ())


def unique(name: str, used_names: Collection[str]) -> str:
    """Returns `name`, or `name_2`, `name_3` ... if it is already used.

    >>> unique("w", {"w", "w_2"})
    'w_3'
    """
    tries, candidate = 1, name
    while candidate in used_names:
        tries += 1
        candidate = f"{name}_{tries}"
    return candidate


def _step(key: Any) -> str:
    if isinstance(key, SequenceKey):
        return f"[{key.idx}]"
    if isinstance(key, GetAttrKey):
        return f".{key.name}"
    if isinstance(key, DictKey):
        return f".{key.key}" if isinstance(key.key, str) else f"[{shown(key.key, 20)}]"
    if isinstance(key, FlattenedIndexKey):
        return f"[{key.key}]"
    return str(key)


def is_array(leaf: object) -> bool:
    """True if jax accepts a leaf as an array, because it has a shape and a dtype.

    >>> import numpy as np
    >>> is_array(np.zeros(3)), is_array("train"), is_array(np.float32)
    (True, False, False)
    """
    typed = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    return typed and not isinstance(leaf, type)


def is_number(leaf: object) -> bool:
    """True for a Python number. numpy's float64, a subclass of float, is excluded."""
    return isinstance(leaf, (bool, int, float, complex)) and not hasattr(leaf, "dtype")


def _array(name: str, leaf: Any) -> ArraySpec:
    if is_number(leaf):
        try:
            number_type = jax.typeof(leaf)
        except (OverflowError, ValueError):  # Python prints at most 4,300 digits
            raise ProgramError(
                f"{name} is {shown(leaf, 30)}, which does not fit into jax's integers of"
                " 32 bits."
            ) from None
        # In arithmetic with an array, a weak type adopts the array's type.
        weak = bool(number_type.weak_type)
        return ArraySpec(name, (), None, dtype_name(number_type.dtype), weak_type=weak)
    if not is_array(leaf):
        raise ProgramError(
            f"{name} is not an array: {shown(leaf)}. Give an array, a jax.ShapeDtypeStruct"
            " or sv.array(...); put numbers and flags into the function with"
            " functools.partial."
        )
    return adopt_array(name, leaf)


def _same_mesh(mesh: MeshSpec | None, leaf: object, name: str) -> MeshSpec | None:
    """Returns the mesh of an array, which must match the mesh of earlier arrays."""
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return mesh
    leaf_mesh = adopt_mesh(sharding.mesh)
    if mesh is None or leaf_mesh == mesh:
        return leaf_mesh
    has_same_axes = (
        leaf_mesh.shape == mesh.shape and leaf_mesh.axis_types == mesh.axis_types
    )
    if has_same_axes and not (leaf_mesh.concrete and mesh.concrete):
        # For example, an abstract array from eval_shape and an array on devices.
        return leaf_mesh if leaf_mesh.concrete else mesh
    texts = str(leaf_mesh), str(mesh)
    if texts[0] == texts[1]:
        details = []
        for equal in (leaf_mesh, mesh):
            if leaf_mesh.axis_types != mesh.axis_types:
                details.append(", ".join(equal.axis_types))
            else:
                ids = joined(equal.device_ids.ravel(), "and", 16)
                details.append(f"devices {ids}")
        texts = f"{leaf_mesh}; {details[0]}", f"{mesh}; {details[1]}"
    raise ProgramError(
        f"{name} is on the mesh ({texts[0]}), the arrays before it on ({texts[1]}). shardviz needs"
        " all arrays of a program on one mesh, with the same axes, axis types and order of"
        " devices. Move them to one mesh with jax.device_put."
    )


def is_spec(value: object) -> bool:
    """True for a leaf in a tree of specs: a spec in any form, or None.

    >>> is_spec("data, None"), is_spec(None), is_spec(("data", None))
    (True, True, False)
    """
    # A tuple isn't a spec here, because it may hold one spec per argument.
    return value is None or isinstance(value, (Spec, str, PartitionSpec, Sharding))


def spread(
    prefix: PyTree,
    full: PyTree,
    what: str,
    is_leaf: Callable[[object], bool] = is_spec,
) -> list[Any]:
    """Broadcasts a prefix tree: returns one entry per leaf of `full`.

    Args:
        prefix: a tree of entries, such as specs, that may end above the leaves.
        full: the full tree; its leaves must not be None.
        what: name of the prefix in errors, such as `in_specs`.
        is_leaf: returns True for an entry.

    Raises:
        ProgramError: if the structures differ (with jax's message), or if the prefix
            holds a value that isn't an entry.

    >>> spread({"a": "x", "b": None}, {"a": 1, "b": (2, 3)}, "out_specs")
    ['x', None, None]
    """
    entries: list[Any] = []

    def add(entry: object, below: PyTree) -> None:
        if not is_leaf(entry):
            raise ProgramError(
                f"{what} holds {shown(entry)}. A spec is text such as P('x', None), or"
                " jax's own; None requests nothing."
            )
        # An entry in place of a container applies to all of its leaves.
        entries.extend([entry] * jax.tree.structure(below).num_leaves)

    try:
        jax.tree.map(add, prefix, full, is_leaf=is_leaf)
    except (ValueError, TypeError) as error:
        if isinstance(error, ProgramError):
            raise
        words = " ".join(str(error).replace("tree_map tree", what).split())
        raise ProgramError(
            f"{what} does not have the matching structure. Give one entry for all, or the"
            " same containers with entries in them. An entry in place of a container"
            " applies to everything inside; several arguments form a tuple."
            f" jax says: {words[:300]}"
        ) from None
    return entries


def spec_leaves(specs: PyTree, tree: Any, what: str) -> list[Any]:
    """Broadcasts a prefix of the arguments to one spec per array.

    Args:
        specs: the prefix.
        tree: PyTreeDef of the program's arguments.
        what: name of the prefix in errors, such as `in_specs`.
    """
    # As in jax.jit, a list of specs is read as a tuple of arguments.
    if isinstance(specs, list):
        specs = tuple(specs)
    return spread(specs, tree.unflatten(range(tree.num_leaves)), what)


def with_spec(array: ArraySpec, leaf: Any) -> ArraySpec:
    """Adds a spec, in any form, to an array that has none; None changes nothing."""
    spec = as_spec(leaf)
    if spec is None or array.spec is not None:
        return array
    try:
        return array.replace(spec=spec, memory_kind=foreign_memory(leaf))
    except ShardvizError as error:
        if array.weak_type and not array.shape:  # a number, perhaps of a shape
            raise type(error)(
                f"{array.name} is a number. {error} If it is part of a shape, write"
                " sv.array((32, 64)) or jax.ShapeDtypeStruct((32, 64), 'float32')."
            ) from None
        raise type(error)(f"{array.name}: {error}") from None


def mesh_of_shardings(tree: PyTree) -> MeshSpec | None:
    """Returns the mesh of the first NamedSharding in a tree, or None."""
    for leaf in jax.tree.leaves(tree, is_leaf=is_spec):
        if isinstance(leaf, NamedSharding):
            return adopt_mesh(leaf.mesh)
    return None


def without_rules_note(
    arrays: Sequence[ArraySpec], args: Sequence[PyTree]
) -> list[str]:
    """Returns a note if arrays have flax logical names but the program has no rules."""
    for array, leaf in zip(arrays, jax.tree.leaves(tuple(args)), strict=True):
        named = array.spec is None and any(array.logical or ())
        if named and not isinstance(leaf, ArraySpec):
            return [str(NoRules(array.name, format_names(array.logical)))]
    return []


def spec_tree(specs: PyTree, mesh: MeshSpec | None) -> PyTree:
    """Converts a tree of specs in any form to Specs, each with its memory kind.

    Raises:
        ProgramError: if a leaf isn't a spec, or a spec is on another mesh.
    """
    if specs is None:
        return None

    def converted(leaf: Any) -> Spec | None:
        spec, kind = as_spec(leaf), foreign_memory(leaf)
        # The mesh of jax.jit isn't checked, because a mismatch only causes a note.
        if mesh is not None:
            check_mesh(leaf, mesh, "out_specs")
        if spec is None or kind is None:
            return spec
        marks = spec.unreduced, spec.reduced, spec.unreduced_kind
        return ResultSpec(spec.dims, spec.unconstrained, *marks, memory_kind=kind)

    return jax.tree.map(converted, specs, is_leaf=is_spec)


def check_mesh(leaf: object, mesh: MeshSpec, what: str) -> None:
    """Raises if a sharding's mesh differs from the program's mesh."""
    if not isinstance(leaf, NamedSharding):
        return
    other = adopt_mesh(leaf.mesh)
    if list(other.shape.items()) != list(mesh.shape.items()):
        raise ProgramError(
            f"{what} is on the mesh ({other}), and the program is on ({mesh}). Give a"
            " PartitionSpec, or a NamedSharding on the program's own mesh."
        )


def as_spec(value: object) -> Spec | None:
    """Converts a spec in any form to a Spec; None requests no sharding.

    Raises:
        ProgramError: for other values, and for shardings that name no mesh axes.

    >>> str(as_spec(PartitionSpec("data"))), as_spec(None)
    ("P('data')", None)
    """
    if value is None or isinstance(value, Spec):
        return value
    if isinstance(value, str):
        return Spec.parse(value)
    if isinstance(value, PartitionSpec):
        return spec_of(value)
    if isinstance(value, NamedSharding):
        return spec_of(value.spec)
    raise ProgramError(
        "A spec is text such as P('x', None), or jax's own that names mesh axes; got"
        f" {shown(value)}."
    )
