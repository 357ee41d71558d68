"""The arguments of a program: a name for every leaf, taken from the function and the tree."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from shardviz.core.errors import ProgramError, shown
from shardviz.core.layout.array import ArraySpec, dtype_name
from shardviz.core.layout.checks import MAX_NAME
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.bridge import adopt_array, adopt_mesh


def program_arrays(
    args: Sequence[Any], fn: Callable[..., Any]
) -> tuple[tuple[ArraySpec, ...], Any, MeshSpec | None]:
    """The arrays in the arguments of a function, the tree they form, and the mesh they lie on.

    An ArraySpec keeps its own name. Other leaves are named after the parameter and their place in
    it, such as `params.w_in` or `layers[0]`.

    Args:
        args: the positional arguments: pytrees of ArraySpecs, ShapeDtypeStructs and arrays.
        fn: the function that takes them.

    Raises:
        ProgramError: for a leaf that is no array, and for arrays on different meshes.

    >>> import jax.numpy as jnp
    >>> w = jax.ShapeDtypeStruct((4, 8), jnp.bfloat16)
    >>> arrays, tree, mesh = program_arrays([{"w": w}, w], lambda params, x: x @ params["w"])
    >>> [a.name for a in arrays]
    ['params.w', 'x']
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(tuple(args))
    parameters = parameter_names(fn, len(args))
    taken = {leaf.name for _, leaf in leaves if isinstance(leaf, ArraySpec)}
    arrays, mesh = [], None
    for path, leaf in leaves:
        name = unique(path_name(parameters[path[0].idx], path[1:]), taken)
        array = leaf if isinstance(leaf, ArraySpec) else _array(name, leaf)
        taken.add(array.name)
        arrays.append(array)
        mesh = _same_mesh(mesh, leaf, array.name)
    return tuple(arrays), tree, mesh


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
