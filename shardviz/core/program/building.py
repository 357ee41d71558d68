"""build_program(): the parts a person gives, made into a Program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from shardviz.core.errors import ProgramError, plural, shown
from shardviz.core.layout.checks import check_size
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.rules import Dialect, Rules
from shardviz.core.layout.spec import Spec
from shardviz.core.program.arguments import program_arrays
from shardviz.core.program.bridge import adopt
from shardviz.core.program.program import Program


def build_program(
    fn: Callable[..., Any],
    args: Sequence[Any],
    mesh: MeshSpec | None,
    rules: Rules | None,
    dialect: Dialect,
    in_specs: Any,
    out_specs: Any,
    donate: Any,
    name: str,
) -> Program:
    """A Program from a function and its arguments in any of the forms that `sv.program` takes.

    Raises:
        ProgramError: where the parts do not fit together.
    """
    if not callable(fn):
        raise ProgramError(f"A program needs a function to run; got {shown(fn)}.")
    arrays, tree, found = program_arrays(args, fn)
    mesh = mesh if mesh is not None else found
    if mesh is None:
        raise ProgramError(
            "A program needs a mesh; got none, and no array's sharding brings one. Give"
            " mesh=sv.mesh(data=4, model=2)."
        )
    if in_specs is not None:
        specs = _spread(in_specs, tree, len(arrays), "in_specs", one=len(args) == 1)
        arrays = tuple(
            a if s is None or a.spec is not None else a.replace(spec=s)
            for a, s in zip(arrays, specs, strict=True)
        )
    positions = _donated(donate, len(args))
    return Program(
        fn,
        arrays,
        mesh,
        rules,
        dialect,
        tree,
        _output_specs(out_specs),
        {"donate": positions} if positions else {},
        name,
    )


def _spread(specs: Any, tree: Any, count: int, what: str, one: bool) -> list[Spec | None]:
    """One Spec a leaf, from a pytree prefix of specs."""
    prefix = (specs,) if one and not isinstance(specs, (tuple, list)) else specs
    prefix = tuple(prefix) if isinstance(prefix, list) else prefix
    arguments = tree.unflatten(range(count))
    try:
        spread = jax.tree.broadcast(prefix, arguments, is_leaf=_is_spec)
        leaves = jax.tree.leaves(spread, is_leaf=_is_spec)
    except ValueError as error:
        first = str(error).strip().splitlines()[0]
        raise ProgramError(
            f"{what} does not match the arguments: {first} Give one spec an argument, or a prefix"
            " of their tree."
        ) from error
    if len(leaves) != count:
        raise ProgramError(
            f"{what} gives {plural(len(leaves), 'spec')} for {plural(count, 'array')}. Give one"
            " spec an argument, or a prefix of their tree."
        )
    return [_as_spec(leaf) for leaf in leaves]


def _is_spec(value: Any) -> bool:
    return value is None or isinstance(value, (Spec, str, jax.sharding.PartitionSpec))


def _as_spec(value: Any) -> Spec | None:
    if value is None or isinstance(value, Spec):
        return value
    if isinstance(value, str):
        return Spec.parse(value)
    if isinstance(value, jax.sharding.PartitionSpec):
        return adopt(value)
    raise ProgramError(f"A spec is text such as P('x', None), or jax's own; got {shown(value)}.")


def _output_specs(specs: Any) -> tuple[Spec, ...] | None:
    if specs is None:
        return None
    leaves = jax.tree.leaves(specs, is_leaf=_is_spec)
    # None stands for "whole" here, as in jit's out_shardings with a PartitionSpec of its own.
    return tuple(_as_spec(leaf) or Spec() for leaf in leaves)


def _donated(donate: Any, count: int) -> tuple[int, ...]:
    given = donate if isinstance(donate, Iterable) and not isinstance(donate, str) else (donate,)
    positions = tuple(check_size(d, "A donated position", ProgramError) for d in given)
    for position in positions:
        if not 0 <= position < count:
            raise ProgramError(
                f"Argument {position} cannot be donated: there are {plural(count, 'argument')},"
                " counted from 0."
            )
    return positions
