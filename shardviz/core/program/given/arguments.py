"""The arguments of a program: a name for every leaf, taken from the function and the tree."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from shardviz.core.errors import ProgramError, ShardvizError, shown
from shardviz.core.layout.array import ArraySpec, dtype_name, read_names
from shardviz.core.layout.checks import MAX_NAME
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.rules import Rules
from shardviz.core.layout.spec import Spec
from shardviz.core.layout.tree import Box, padded, unboxed
from shardviz.core.program.bridge import adopt_array, adopt_mesh


def program_arrays(
    args: Sequence[Any],
    fn: Callable[..., Any],
    mesh: MeshSpec | None = None,
    rules: Rules | None = None,
) -> tuple[tuple[ArraySpec, ...], Any, MeshSpec | None]:
    """The arrays in the arguments of a function, the tree they form, and the mesh they lie on.

    An ArraySpec keeps its own name, unless another has it too. Other leaves are named after the
    parameter and their place in it, such as `params.w_in` or `layers[0]`. The names of axes that
    flax keeps in a box around an array become its logical names. Without rules they are mesh axes,
    as for flax's `get_sharding`, where the mesh has them all.

    Args:
        args: the positional arguments: pytrees of ArraySpecs, ShapeDtypeStructs and arrays.
        fn: the function that takes them.
        mesh: the mesh that was given; None for that of the arrays.
        rules: the rules that were given.

    Raises:
        ProgramError: for a leaf that is no array, and for arrays on different meshes.

    >>> import jax.numpy as jnp
    >>> w = jax.ShapeDtypeStruct((4, 8), jnp.bfloat16)
    >>> arrays, tree, mesh = program_arrays([{"w": w}, w], lambda params, x: x @ params["w"])
    >>> [a.name for a in arrays]
    ['params.w', 'x']
    """
    leaves, tree = leaves_with_paths(tuple(args))
    parameters = parameter_names(fn, len(args))
    own = Counter(leaf.name for _, leaf, _ in leaves if isinstance(leaf, ArraySpec))
    taken = {name for name, times in own.items() if times == 1}
    arrays, on = [], None
    for path, leaf, box in leaves:
        name = unique(path_name(parameters[path[0].idx], path[1:]), taken)
        if not isinstance(leaf, ArraySpec):
            array = _array(name, leaf)
        else:
            array = leaf if own[leaf.name] == 1 else leaf.renamed(name)
        taken.add(array.name)
        on = _same_mesh(on, leaf, array.name)
        arrays.append((array, box))
    mesh = mesh if mesh is not None else on
    return tuple(_boxed(a, box, mesh, rules) for a, box in arrays), tree, on


def leaves_with_paths(tree: Any) -> tuple[list[tuple[Any, Any, Box | None]], Any]:
    """Every leaf of a tree with its path, in which no box of flax has a step, and its box; and the
    structure of the tree, boxes included.

    >>> leaves_with_paths({"w": 1})[0]
    [((DictKey(key='w'),), 1, None)]
    """
    found: list[tuple[Any, Any, Box | None]] = []
    outer = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_box)[0]
    for path, leaf in outer:
        if not _is_box(leaf):
            found.append((path, leaf, None))
            continue
        inner = jax.tree_util.tree_flatten_with_path(leaf)[0]
        box = unboxed(leaf)
        for steps, value in inner:
            found.append(((*path, *steps[1:]), value, box if len(inner) == 1 else None))
    return found, jax.tree.structure(tree)


def _is_box(value: Any) -> bool:
    return unboxed(value) is not None


def _boxed(
    array: ArraySpec, box: Box | None, mesh: MeshSpec | None, rules: Rules | None
) -> ArraySpec:
    """An array with the axes that its box names."""
    if box is None or box.axes is None or array.logical is not None:
        return array
    # What eval_shape says under a mesh splits nothing; the box says what is meant.
    bare = array if array.spec is not None and array.spec.axes else array.replace(spec=None)
    axes = padded(box.axes, array.shape)
    try:
        if isinstance(axes, Spec):
            return bare if bare.spec is not None else bare.replace(spec=axes)
        axes = read_names(axes)
        named = [name for name in axes if name is not None]
        outright = rules is None and not box.logical and mesh is not None
        if outright and named and all(name in mesh.axis_names for name in named):  # type: ignore[union-attr]
            return bare if bare.spec is not None else bare.replace(spec=Spec.of(*axes))
        return bare.replace(logical=axes)
    except ShardvizError as error:
        raise ProgramError(f"{array.name}: {error}") from None


def parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    """What the function calls its first `count` positional arguments.

    >>> parameter_names(lambda x, *rest: x, 3)
    ['x', 'rest[0]', 'rest[1]']
    """
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # some builtins have no signature
        parameters = []
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            names.extend(f"{parameter.name}[{i}]" for i in range(max(0, count - len(names))))
    return (names + [f"argument_{i}" for i in range(len(names), count)])[:count]


def path_name(root: str, path: Iterable[Any]) -> str:
    """The name of a leaf: `params.w_in`, `layers[0].w`; control characters become `?`.

    >>> path_name("params", (DictKey("layer"), SequenceKey(0), GetAttrKey("w")))
    'params.layer[0].w'
    """
    name = root + "".join(_step(key) for key in path)
    name = "".join(c if c.isprintable() else "?" for c in name).strip() or root
    # The end of a long path says more than its beginning.
    return name if len(name) <= MAX_NAME - 8 else "…" + name[-(MAX_NAME - 9) :].lstrip()


def unique(name: str, taken: set[str]) -> str:
    """`name`, or `name_2`, `name_3` … where it is taken.

    >>> unique("w", {"w", "w_2"})
    'w_3'
    """
    tries, candidate = 1, name
    while candidate in taken:
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


def _array(name: str, leaf: Any) -> ArraySpec:
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        raise ProgramError(
            f"{name} is no array: {shown(leaf)}. Give an array, a jax.ShapeDtypeStruct or"
            " sv.array(...); put numbers and flags into the function with functools.partial."
        )
    array = adopt_array(name, leaf)
    if isinstance(leaf, (np.ndarray, np.generic)):
        # What jit does with numpy's 64-bit types where jax is set to 32 bits.
        array = array.replace(dtype=dtype_name(jax.dtypes.canonicalize_dtype(leaf.dtype)))
    return array


def _same_mesh(mesh: MeshSpec | None, leaf: Any, name: str) -> MeshSpec | None:
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return mesh
    found = adopt_mesh(sharding.mesh)
    if mesh is not None and found != mesh:
        raise ProgramError(
            f"{name} lies on the mesh ({found}), the arrays before it on ({mesh}). A program has"
            " one mesh; put all of its arrays on it."
        )
    return found
