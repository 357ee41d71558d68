"""The arguments of a program: a name for every leaf, and the specs that were given for
each.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from shardviz.core.backend.bridge import adopt_array, adopt_mesh, adopt_spec
from shardviz.core.errors import ProgramError
from shardviz.core.format import plural, shown
from shardviz.core.layout.array_spec import ArraySpec, dtype_name, format_names
from shardviz.core.layout.array_tree import (
    MAX_DEPTH,
    ArrayTree,
    Names,
    TreeLeaf,
    is_optimizer_state,
    read_leaf,
    short_name,
)
from shardviz.core.layout.libraries import (
    LeafMetadata,
    foreign_memory,
    without_metadata,
)
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import MAX_NAME
from shardviz.core.layout.partition_spec import ResultSpec, Spec
from shardviz.core.layout.rules.requests import on_mesh, request
from shardviz.core.layout.rules.rules import Dialect, Rules
from shardviz.core.program.notes import Note
from shardviz.core.program.program import Program


def program_arrays(
    args: Sequence[Any],
    fn: Callable[..., Any],
    mesh: MeshSpec | None = None,
    rules: Rules | None = None,
    *,
    dialect: Dialect = Dialect.LINEN,
    names: Sequence[str] | None = None,
    axis_names: Names | None = None,
) -> tuple[tuple[ArraySpec, ...], Any, MeshSpec | None]:
    """The arrays in the arguments of a function, the tree they form, and the mesh they
    are on.

    An ArraySpec keeps its own name, unless another has it too. Other leaves are named
    after the parameter and their path in it, such as `params.w_in` or `layers[0]`. The
    names of axes that a library keeps in a box around an array become its logical
    names. Where no rule is for them they are mesh axes, as for flax's `get_sharding`,
    if the mesh has them all.

    Args:
        args: the positional arguments: pytrees of ArraySpecs, ShapeDtypeStructs and
            arrays.
        fn: the function that takes them.
        mesh: the mesh that was given; None for that of the arrays.
        rules: the rules that were given.
        dialect: who reads the rules.
        names: what the arguments are called; None for the names of the function's
            parameters.
        axis_names: called with the name and the array where nothing else says how an
            array is split; it returns logical names, a PartitionSpec, or None.

    Raises:
        ProgramError: for a leaf that is no array, and for arrays on different meshes.

    >>> import jax.numpy as jnp
    >>> w = jax.ShapeDtypeStruct((4, 8), jnp.bfloat16)
    >>> arrays, tree, mesh = program_arrays([{"w": w}, w], lambda params, x: x @ params["w"])
    >>> [a.name for a in arrays]
    ['params.w', 'x']
    """
    check_depth(args)
    leaves, tree = leaves_with_paths(tuple(args))
    parameters: Sequence[str] = (
        parameter_names(fn, len(args)) if names is None else names
    )
    own = Counter(leaf.name for _, leaf, _ in leaves if isinstance(leaf, ArraySpec))
    taken = {name for name, times in own.items() if times == 1}
    arrays, on = [], None
    for path, leaf, box in leaves:
        name = unique(path_name(str(parameters[path[0].idx]), path[1:]), taken)
        if not isinstance(leaf, ArraySpec):
            array = _array(name, leaf)
        else:
            array = leaf if own[leaf.name] == 1 else leaf.renamed(name)
        taken.add(array.name)
        on = _same_mesh(on, leaf if box is None else box.value, array.name)
        value = leaf if box is None else box.value
        says = box is not None or (axis_names is not None and is_array(value))
        arrays.append(
            (array, value if says and not isinstance(value, ArraySpec) else None, box)
        )
    context = (mesh if mesh is not None else on, rules, dialect)
    found = (
        array if value is None
        else _named(array, read_leaf(array.name, value, box, axis_names), *context)
        for array, value, box in arrays
    )  # fmt: skip
    return tuple(found), tree, on


def argument_tree(program: Program) -> ArrayTree:
    """The arrays of a program's arguments by their paths, and which of them an
    optimizer keeps.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> x = ArraySpec("x", (8,))
    >>> [leaf.array.name for leaf in argument_tree(Program(abs, (x,), make_mesh(data=4))).leaves]
    ['x']
    """
    kinds = [TreeLeaf(array, described=True) for array in program.arrays]
    if program.tree is None:
        paths = [array.name for array in program.arrays]
        return ArrayTree(paths, paths, kinds)
    arguments = jax.tree.unflatten(program.tree, program.arrays)
    names = getattr(program.fn, "names", None) or parameter_names(
        program.fn, len(arguments)
    )
    paths = [_slashed(names, path) for path, _, _ in leaves_with_paths(arguments)[0]]
    kept = jax.tree_util.tree_flatten_with_path(arguments, is_leaf=is_optimizer_state)[
        0
    ]
    tops = tuple(
        f"{_slashed(names, path)}/" for path, value in kept if is_optimizer_state(value)
    )
    states = frozenset(i for i, path in enumerate(paths) if f"{path}/".startswith(tops))
    named: dict[str, None] = {}
    for path in paths:
        named[unique(short_name(path), named.keys())] = None
    return ArrayTree(paths, list(named), kinds, states)


def _slashed(names: Sequence[str], path: Sequence[Any]) -> str:
    """A path as audits write it: `state/params/w`."""
    rest = jax.tree_util.keystr(tuple(path[1:]), simple=True, separator="/")
    text = f"{names[path[0].idx]}/{rest}" if rest else str(names[path[0].idx])
    return "".join(c if c.isprintable() else "?" for c in text)


def check_depth(tree: Any) -> None:
    """Refuses containers that nest too deep for jax, such as a list that holds itself.

    A RecursionError inside jax would use up the recursion limit of the whole process.

    Raises:
        ProgramError: for these.
    """
    open_ = [(tree, 0)]
    while open_:
        value, depth = open_.pop()
        if depth > MAX_DEPTH:
            raise ProgramError(
                f"The arguments nest deeper than {MAX_DEPTH} levels, at {shown(value)}. Does a list"
                " hold itself?"
            )
        if isinstance(value, dict):
            open_ += [(inner, depth + 1) for inner in dict.values(value)]
        elif isinstance(value, (list, tuple)):
            kind = list if isinstance(value, list) else tuple
            open_ += [(inner, depth + 1) for inner in kind.__iter__(value)]  # type: ignore[arg-type]


def leaves_with_paths(
    tree: Any,
) -> tuple[list[tuple[Any, Any, LeafMetadata | None]], Any]:
    """Every leaf of a tree with its path, in which no box of flax has a step, and its
    box; and the structure of the tree, boxes included.

    >>> leaves_with_paths({"w": 1})[0]
    [((DictKey(key='w'),), 1, None)]
    """
    found: list[tuple[Any, Any, LeafMetadata | None]] = []
    outer = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_box)[0]
    for path, leaf in outer:
        if not _is_box(leaf):
            found.append((path, leaf, None))
            continue
        inner = jax.tree_util.tree_flatten_with_path(leaf)[0]
        box = without_metadata(leaf)
        for steps, value in inner:
            found.append(((*path, *steps[1:]), value, box if len(inner) == 1 else None))
    return found, jax.tree.structure(tree)


def _is_box(value: Any) -> bool:
    return without_metadata(value) is not None


def _named(
    array: ArraySpec,
    leaf: TreeLeaf,
    mesh: MeshSpec | None,
    rules: Rules | None,
    dialect: Dialect,
) -> ArraySpec:
    """An array with the axes that its box, or a function of the user, names."""
    if leaf.problem is not None:
        raise ProgramError(f"{array.name}: {leaf.problem}")
    found = on_mesh(leaf, mesh, rules, dialect)
    outright = (
        leaf.array.spec is None and found.spec is not None
    )  # the names are mesh axes
    return array.replace(logical=None if outright else found.logical, spec=found.spec)


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
        if parameter.kind in (
            parameter.POSITIONAL_ONLY,
            parameter.POSITIONAL_OR_KEYWORD,
        ):
            names.append(parameter.name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            names.extend(
                f"{parameter.name}[{i}]" for i in range(max(0, count - len(names)))
            )
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


def unique(name: str, taken: Collection[str]) -> str:
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


def is_array(leaf: Any) -> bool:
    """Whether jax takes it as an array: it has a shape and a type of elements.

    >>> is_array(np.zeros(3)), is_array("train"), is_array(np.float32)
    (True, False, False)
    """
    return (
        hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, type)
    )


def _array(name: str, leaf: Any) -> ArraySpec:
    if isinstance(leaf, (bool, int, float, complex)) and not hasattr(leaf, "dtype"):
        return _number(name, leaf)
    if not is_array(leaf):
        raise ProgramError(
            f"{name} is no array: {shown(leaf)}. Give an array, a jax.ShapeDtypeStruct or"
            " sv.array(...); put numbers and flags into the function with functools.partial."
        )
    array = adopt_array(name, leaf)
    if isinstance(leaf, (np.ndarray, np.generic)):
        # What jit does with numpy's 64-bit types where jax is set to 32 bits.
        array = array.replace(
            dtype=dtype_name(jax.dtypes.canonicalize_dtype(leaf.dtype))
        )
    return array


def _number(name: str, value: Any) -> ArraySpec:
    """A Python number as jax.jit takes it: an array without dimensions, of a weak type."""
    try:
        made = jax.typeof(value)
    except (OverflowError, ValueError):  # Python writes no more than 4,300 digits
        raise ProgramError(
            f"{name} is {shown(value, 30)}, which does not fit into jax's integers of 32 bits."
        ) from None
    return ArraySpec(
        name, (), None, dtype_name(made.dtype), weak_type=bool(made.weak_type)
    )


def _same_mesh(mesh: MeshSpec | None, leaf: Any, name: str) -> MeshSpec | None:
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return mesh
    found = adopt_mesh(sharding.mesh)
    if mesh is None or found == mesh:
        return found
    alike = found.shape == mesh.shape and found.axis_types == mesh.axis_types
    if alike and not (found.concrete and mesh.concrete):
        # An abstract array, as eval_shape makes it, beside one that names devices.
        return found if found.concrete else mesh
    also = "" if str(found) != str(mesh) else f", with {_differ(found, mesh)}"
    raise ProgramError(
        f"{name} is on the mesh ({found}), the arrays before it on ({mesh}){also}. A program has"
        " one mesh; put all of its arrays on it."
    )


def _differ(one: MeshSpec, other: MeshSpec) -> str:
    types = one.axis_types != other.axis_types
    return "other axis types" if types else "other devices or in another order"


def is_spec(value: Any) -> bool:
    """Whether it is a leaf of a tree of specs: a spec in any form, or None for no wish.

    >>> is_spec("data, None"), is_spec(None), is_spec(("data", None))
    (True, True, False)
    """
    return value is None or isinstance(value, (Spec, str, PartitionSpec, Sharding))


def spread(
    prefix: Any,
    full: Any,
    what: str,
    names: Sequence[str],
    arguments: Sequence[str] = (),
) -> list[Any]:
    """One entry per leaf of `full`, from a prefix of its tree.

    Args:
        prefix: a tree of specs, which may end above the leaves.
        full: the tree itself, with any leaves but None.
        what: `in_specs` or `out_specs`.
        names: what the leaves of `full` are called.
        arguments: what the arguments are called, where `full` is the tuple of them.

    Raises:
        ProgramError: where the two differ: at which path, what was given and what there
            is.

    >>> spread({"a": "x", "b": None}, {"a": 1, "b": (2, 3)}, "out_specs", ["a", "b[0]", "b[1]"])
    ['x', None, None]
    """
    try:
        return _spread(prefix, full, ())
    except _Mismatch as mismatch:
        raise ProgramError(_words(mismatch, prefix, what, names, arguments)) from None


class _Mismatch(Exception):
    """A prefix and a tree differ at a path."""

    def __init__(self, path: tuple[Any, ...], given: str, there: str) -> None:
        super().__init__(given)
        self.path, self.given, self.there = path, given, there


def _spread(prefix: Any, full: Any, path: tuple[Any, ...]) -> list[Any]:
    if is_spec(prefix):
        return [prefix] * jax.tree.structure(full).num_leaves
    given, given_tree = _children(prefix)
    there, there_tree = _children(full)
    if jax.tree_util.all_leaves([prefix]):
        raise ProgramError(
            f"A spec is text such as P('x', None), or jax's own; got {shown(prefix)}."
        )
    if given_tree != there_tree:
        raise _Mismatch(path, _form(prefix, given), _form(full, there))
    found: list[Any] = []
    for (key, inner), (_, other) in zip(given, there, strict=True):
        found.extend(_spread(inner, other, (*path, *key)))
    return found


def _children(value: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """The children of a node with their keys, and the node's own structure."""
    return jax.tree_util.tree_flatten_with_path(
        value, is_leaf=lambda node: node is not value
    )


def _form(value: Any, children: Sequence[tuple[Any, Any]]) -> str:
    if value is None:
        return "nothing (None)"
    if jax.tree_util.all_leaves([value]):
        return "one array"
    if isinstance(value, dict):
        return f"a dict with {', '.join(shown(k, 20) for k in sorted(value, key=str)) or 'nothing'}"
    return f"a {type(value).__name__} of {len(children)}"


def _words(
    mismatch: _Mismatch,
    prefix: Any,
    what: str,
    names: Sequence[str],
    arguments: Sequence[str],
) -> str:
    count = len(jax.tree.leaves(prefix, is_leaf=is_spec))
    each, takes = ("argument", "the program takes")
    if what == "out_specs":
        each, takes = ("output", "the function returns")
    start = f"{what} has another structure than what {takes}"
    if count != len(names):
        some = ", ".join(names[:8]) + (
            f" and {len(names) - 8} more" if len(names) > 8 else ""
        )
        start = f"{what} gives {plural(count, 'spec')} and {takes} {plural(len(names), 'array')}"
        start += f": {some}" if some else ""
    if not arguments:
        at = path_name("output", mismatch.path)
    elif mismatch.path:
        at = path_name(arguments[int(mismatch.path[0].idx)], mismatch.path[1:])
    else:
        at = f"the arguments ({', '.join(arguments[:8])})"
    return (
        f"{start}. At {at}, {mismatch.given} was given and there is {mismatch.there}. Give one spec"
        f" for all, or the containers of the {each}s with specs in them; a spec in place of a"
        " container counts for all that is in it, and None for no wish."
    )


@dataclass(frozen=True)
class SpecContext:
    """What the spec of an array depends on besides the array and jax.jit."""

    mesh: MeshSpec
    rules: Rules | None
    dialect: Dialect


def with_in_specs(
    arrays: tuple[ArraySpec, ...],
    specs: Any,
    tree: Any,
    parameters: Sequence[str],
    mesh: MeshSpec,
) -> tuple[ArraySpec, ...]:
    """The arrays with the specs of `in_specs`; an array's own spec stays.

    Raises:
        ProgramError: where `in_specs` is no prefix of the arguments, or holds what is
            no spec.
    """
    check_depth(specs)
    prefix = (
        (specs,)
        if len(parameters) == 1 and not isinstance(specs, (tuple, list))
        else specs
    )
    # As jax.jit does. A slice ends, also of a user's own list that does not.
    prefix = tuple(prefix[:]) if isinstance(prefix, list) else prefix
    names = [a.name for a in arrays]
    given = spread(
        prefix, tree.unflatten(range(len(arrays))), "in_specs", names, parameters
    )
    found = []
    for array, leaf in zip(arrays, given, strict=True):
        spec = as_spec(leaf)
        _check_mesh(leaf, mesh, f"in_specs gives {array.name} a sharding")
        if spec is None or array.spec is not None:
            found.append(array)
        else:
            found.append(array.replace(spec=spec, memory_kind=foreign_memory(leaf)))
    return tuple(found)


def with_jit_specs(
    arrays: tuple[ArraySpec, ...],
    shardings: Any,
    tree: Any,
    parameters: Sequence[str],
    context: SpecContext,
) -> tuple[tuple[ArraySpec, ...], list[str]]:
    """The arrays with the `in_shardings` of jax.jit where nothing else was given, and a
    note where both were and differ.
    """
    prefix = tuple(shardings) if isinstance(shardings, list) else shardings
    names = [a.name for a in arrays]
    leaves = spread(
        prefix,
        tree.unflatten(range(len(arrays))),
        "in_shardings of jax.jit",
        names,
        parameters,
    )
    found, notes = [], []
    for array, leaf in zip(arrays, leaves, strict=True):
        spec = as_spec(leaf)
        ruled = array.logical is not None and context.rules is not None
        if spec is None:
            found.append(array)
        elif array.spec is None and not ruled:
            found.append(array.replace(spec=spec, memory_kind=foreign_memory(leaf)))
        else:
            found.append(array)
            own = request(array, context.mesh, context.rules, context.dialect).spec
            if own is not None and not own.equivalent(spec):
                both = (array.name, str(own), str(spec))
                notes.append(str(Note("two in_specs", both)))
    return tuple(found), notes


def out_trees(specs: Any, shardings: Any, mesh: MeshSpec) -> tuple[Any, list[str]]:
    """The tree of Specs for the results, and a note where jax.jit was given another.

    Raises:
        ProgramError: for what is no spec, or another mesh or memory.
    """
    jitted = _spec_tree(shardings, mesh, check=False)
    if specs is None:
        return jitted, []
    given = _spec_tree(specs, mesh)
    if jitted is None or jitted == given:
        return given, []
    return given, [str(Note("two out_specs"))]


def mesh_of_shardings(tree: Any) -> MeshSpec | None:
    """The mesh that the first NamedSharding in a tree is for, or None."""
    for leaf in jax.tree.leaves(tree, is_leaf=is_spec):
        if isinstance(leaf, NamedSharding):
            return adopt_mesh(leaf.mesh)
    return None


def other_mesh_note(jit_mesh: MeshSpec | None, mesh: MeshSpec) -> list[str]:
    """A note where the shardings of jax.jit are for another mesh than the program's."""
    if jit_mesh is None or (jit_mesh.axis_names, jit_mesh.axis_sizes) == (
        mesh.axis_names,
        mesh.axis_sizes,
    ):
        return []
    return [str(Note("mesh of jax.jit", (str(jit_mesh), str(mesh))))]


def without_rules_note(arrays: Sequence[ArraySpec], args: Sequence[Any]) -> list[str]:
    """A note for arrays to which flax gave logical names, where no rules say what these
    mean.

    Args:
        arrays: the arrays of a program without rules.
        args: its arguments, as they were given.
    """
    leaves = jax.tree.leaves(tuple(args))
    named = []
    for array, leaf in zip(arrays, leaves, strict=True):
        if array.spec is None and any(array.logical or ()):
            if not isinstance(leaf, ArraySpec):
                named.append(array)
    if not named:
        return []
    about = f"{named[0].name} ({format_names(named[0].logical)})"
    if len(named) > 1:
        about += f" and {len(named) - 1} more"
    return [str(Note("no rules", (about,)))]


def _spec_tree(specs: Any, mesh: MeshSpec, check: bool = True) -> Any:
    if specs is None:
        return None
    check_depth(specs)

    def converted(leaf: Any) -> Spec | None:
        spec = as_spec(leaf)
        if check:
            _check_mesh(leaf, mesh, "out_specs gives a sharding")
        kind = foreign_memory(leaf)
        if spec is None or kind is None:
            return spec
        return ResultSpec(
            spec.dims,
            spec.unconstrained,
            spec.unreduced,
            spec.reduced,
            memory_kind=kind,
        )

    return jax.tree.map(converted, specs, is_leaf=is_spec)


def _check_mesh(leaf: Any, mesh: MeshSpec, what: str) -> None:
    if not isinstance(leaf, NamedSharding):
        return
    other = adopt_mesh(leaf.mesh)
    if (other.axis_names, other.axis_sizes) != (mesh.axis_names, mesh.axis_sizes):
        raise ProgramError(
            f"{what} on the mesh ({other}), and the program is on ({mesh}). Give a PartitionSpec,"
            " or a NamedSharding on the program's own mesh."
        )


def as_spec(value: Any) -> Spec | None:
    """A spec in any form as a Spec; None for no wish.

    Raises:
        ProgramError: for anything else, and for shardings that name no mesh axes.

    >>> str(as_spec(PartitionSpec("data"))), as_spec(None)
    ("P('data')", None)
    """
    if value is None or isinstance(value, Spec):
        return value
    if isinstance(value, str):
        return Spec.parse(value)
    if isinstance(value, PartitionSpec):
        return adopt_spec(value)
    if isinstance(value, NamedSharding):
        return adopt_spec(value.spec)
    what = "names no mesh axes" if isinstance(value, Sharding) else "is no spec"
    raise ProgramError(
        f"A spec is text such as P('x', None), or jax's own; {shown(value)} {what}."
    )
