"""Pytree prefixes of specs, matched as `jax.jit` matches `in_shardings` and `out_shardings`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec, Sharding

from shardviz.core.errors import ProgramError, plural, shown
from shardviz.core.layout.spec import Spec
from shardviz.core.program.given.arguments import path_name


def is_spec(value: Any) -> bool:
    """Whether it is a leaf of a tree of specs: a spec in any form, or None for no wish.

    >>> is_spec("data, None"), is_spec(None), is_spec(("data", None))
    (True, True, False)
    """
    return value is None or isinstance(value, (Spec, str, PartitionSpec, Sharding))


def spread(
    prefix: Any, full: Any, what: str, names: Sequence[str], arguments: Sequence[str] = ()
) -> list[Any]:
    """One entry a leaf of `full`, from a prefix of its tree.

    Args:
        prefix: a tree of specs, which may end above the leaves.
        full: the tree itself, with any leaves but None.
        what: `in_specs` or `out_specs`.
        names: what the leaves of `full` are called.
        arguments: what the arguments are called, where `full` is the tuple of them.

    Raises:
        ProgramError: where the two part: at which place, what was given and what there is.

    >>> spread({"a": "x", "b": None}, {"a": 1, "b": (2, 3)}, "out_specs", ["a", "b[0]", "b[1]"])
    ['x', None, None]
    """
    try:
        return _spread(prefix, full, ())
    except _Apart as apart:
        raise ProgramError(_words(apart, prefix, what, names, arguments)) from None


class _Apart(Exception):
    """A prefix and a tree part at a path."""

    def __init__(self, path: tuple[Any, ...], given: str, there: str) -> None:
        super().__init__(given)
        self.path, self.given, self.there = path, given, there


def _spread(prefix: Any, full: Any, path: tuple[Any, ...]) -> list[Any]:
    if is_spec(prefix):
        return [prefix] * jax.tree.structure(full).num_leaves
    given, given_tree = _children(prefix)
    there, there_tree = _children(full)
    if jax.tree_util.treedef_is_leaf(given_tree):
        raise ProgramError(
            f"A spec is text such as P('x', None), or jax's own; got {shown(prefix)}."
        )
    if given_tree != there_tree:
        raise _Apart(path, _form(prefix, given), _form(full, there))
    found: list[Any] = []
    for (key, inner), (_, other) in zip(given, there, strict=True):
        found.extend(_spread(inner, other, (*path, *key)))
    return found


def _children(value: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """The children of a node with their keys, and the node's own structure."""
    return jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)


def _form(value: Any, children: Sequence[tuple[Any, Any]]) -> str:
    if value is None:
        return "nothing (None)"
    if jax.tree_util.all_leaves([value]):
        return "one array"
    if isinstance(value, dict):
        return f"a dict with {', '.join(shown(k, 20) for k in sorted(value, key=str)) or 'nothing'}"
    return f"a {type(value).__name__} of {len(children)}"


def _words(
    apart: _Apart, prefix: Any, what: str, names: Sequence[str], arguments: Sequence[str]
) -> str:
    count = len(jax.tree.leaves(prefix, is_leaf=is_spec))
    each, takes = ("argument", "the program takes")
    if what == "out_specs":
        each, takes = ("output", "the function returns")
    start = f"{what} has another structure than what {takes}"
    if count != len(names):
        some = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        start = f"{what} gives {plural(count, 'spec')} and {takes} {plural(len(names), 'array')}"
        start += f": {some}" if some else ""
    if not arguments:
        place = path_name("output", apart.path)
    elif apart.path:
        place = path_name(arguments[int(apart.path[0].idx)], apart.path[1:])
    else:
        place = f"the arguments ({', '.join(arguments[:8])})"
    return (
        f"{start}. At {place}, {apart.given} was given and there is {apart.there}. Give one spec"
        f" for all, or the containers of the {each}s with specs in them; a spec in place of a"
        " container counts for all that is in it, and None for no wish."
    )
