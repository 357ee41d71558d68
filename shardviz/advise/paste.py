"""Generates code to paste for edits: argument expressions and constraint calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from shardviz.base.partition_spec import Spec
from shardviz.programs.program import Program


class Expression(NamedTuple):
    """An expression that reads a value, and whether code can assign to it.

    >>> Expression("x").replaced("f({})", "f.py:3")
    'x = f(x)  # f.py:3'
    >>> Expression("c[0]", is_assignable=False).replaced("f({})", "")
    'f(c[0])  # for c[0]'
    """

    text: str
    is_assignable: bool = True

    def replaced(self, call: str, comment: str) -> str:
        """Returns code that calls a function on the value and assigns the result."""
        code = call.format(self.text)
        if self.is_assignable:
            return f"{self.text} = {code}" + (f"  # {comment}" if comment else "")
        comments = filter(None, (f"for {self.text}", comment))
        return f"{code}  # " + ", ".join(comments)


def argument_expression(program: Program, name: str) -> Expression:
    """Returns the expression that reads an argument array, such as `batch["y"]`.

    If the pytree of the arguments is unknown, this is the array's name.
    """
    by_name = Expression(name, name.isidentifier())
    if program.tree is None:
        return by_name
    try:
        arguments = program.tree.unflatten([array.name for array in program.arrays])
    # A user's pytree class may reject strings as leaves.
    except Exception:  # noqa: BLE001
        return by_name
    root = re.match(r"[^.\[]*", name)
    for argument in arguments:
        expression = Expression(root[0] if root else name)
        leaf = _expression_of(argument, name, expression)
        if leaf is not None:
            return leaf
    return by_name


def _expression_of(tree: object, name: str, path: Expression) -> Expression | None:
    """Returns the expression that reads a leaf; None if the tree lacks the leaf.

    Args:
        tree: a subtree of an argument, with array names as leaves.
        name: the leaf's name.
        path: the expression that reads `tree`.
    """
    if isinstance(tree, str):
        return path if tree == name else None
    # Items of tuples, and attributes of most classes, cannot be assigned.
    is_assignable = isinstance(tree, (dict, list))
    for step, child in _children(tree):
        child_path = Expression(path.text + step, is_assignable)
        leaf = _expression_of(child, name, child_path)
        if leaf is not None:
            return leaf
    return None


def _children(tree: object) -> list[tuple[str, object]]:
    """Returns (code that reads the child, child) for each child of a tree."""
    children: list[tuple[str, object]] = []
    if isinstance(tree, Mapping):
        for key, child in tree.items():
            step = f'["{key}"]' if isinstance(key, str) else f"[{key!r}]"
            children.append((step, child))
    elif isinstance(tree, (tuple, list)):
        names = getattr(tree, "_fields", None)
        for number, child in enumerate(tree):
            children.append((f".{names[number]}" if names else f"[{number}]", child))
    elif hasattr(tree, "__dict__"):
        for attribute, child in vars(tree).items():
            children.append((f".{attribute}", child))
    return children


def constraint_call(program: Program, spec: Spec) -> tuple[str, str]:
    """Returns the code of a call that constrains a value inside a program.

    Returns:
        The function's name, and the sharding to pass, both as code.
    """
    context, sharding = program.context, str(spec)
    if context is None or context.sees("with_sharding_constraint") is None:
        # jax accepts a bare spec only if a mesh is in context.
        sharding = f"jax.sharding.NamedSharding(mesh, {spec})"
    if set(program.mesh.axis_types) == {"Explicit"}:
        # On Explicit axes with_sharding_constraint only asserts the sharding.
        return "jax.sharding.reshard", sharding
    return "jax.lax.with_sharding_constraint", sharding
