"""The specs of arguments and results, from where they were given: sv.program, or jax.jit before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from shardviz.core.errors import ProgramError, shown
from shardviz.core.layout.array import ArraySpec, format_names
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.request import request
from shardviz.core.layout.rules import Dialect, Rules
from shardviz.core.layout.spec import Spec
from shardviz.core.program.bridge import adopt_mesh, adopt_spec, foreign_memory
from shardviz.core.program.given.prefixes import is_spec, spread


@dataclass(frozen=True)
class Asked:
    """What is needed to say which spec an array has without those of jax.jit."""

    mesh: MeshSpec
    rules: Rules | None
    dialect: Dialect


def with_in_specs(
    arrays: tuple[ArraySpec, ...], specs: Any, tree: Any, parameters: Sequence[str], mesh: MeshSpec
) -> tuple[ArraySpec, ...]:
    """The arrays with the specs of `in_specs`; an array's own spec stays.

    Raises:
        ProgramError: where `in_specs` is no prefix of the arguments, or holds what is no spec.
    """
    prefix = (specs,) if len(parameters) == 1 and not isinstance(specs, (tuple, list)) else specs
    prefix = tuple(prefix) if isinstance(prefix, list) else prefix  # as jax.jit does
    names = [a.name for a in arrays]
    given = spread(prefix, tree.unflatten(range(len(arrays))), "in_specs", names, parameters)
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
    asked: Asked,
) -> tuple[tuple[ArraySpec, ...], list[str]]:
    """The arrays with the `in_shardings` of jax.jit where nothing else was given, and a note where
    both were and differ.
    """
    prefix = tuple(shardings) if isinstance(shardings, list) else shardings
    names = [a.name for a in arrays]
    leaves = spread(
        prefix, tree.unflatten(range(len(arrays))), "in_shardings of jax.jit", names, parameters
    )
    found, notes = [], []
    for array, leaf in zip(arrays, leaves, strict=True):
        spec = as_spec(leaf)
        ruled = array.logical is not None and asked.rules is not None
        if spec is None:
            found.append(array)
        elif array.spec is None and not ruled:
            found.append(array.replace(spec=spec, memory_kind=foreign_memory(leaf)))
        else:
            found.append(array)
            own = request(array, asked.mesh, asked.rules, asked.dialect).spec
            if own is not None and not own.equivalent(spec):
                notes.append(
                    f"{array.name}: {own} was given to sv.program and {spec} to jax.jit"
                    " (in_shardings); what sv.program was given counts."
                )
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
    return given, [
        "out_specs was given to sv.program and out_shardings to jax.jit, and they differ; what"
        " sv.program was given counts."
    ]


def mesh_of_shardings(tree: Any) -> MeshSpec | None:
    """The mesh that the first NamedSharding in a tree is for, or None."""
    for leaf in jax.tree.leaves(tree, is_leaf=is_spec):
        if isinstance(leaf, NamedSharding):
            return adopt_mesh(leaf.mesh)
    return None


def other_mesh_note(asked: MeshSpec | None, mesh: MeshSpec) -> list[str]:
    """A note where the shardings of jax.jit are for another mesh than the program's."""
    if asked is None or (asked.axis_names, asked.axis_sizes) == (mesh.axis_names, mesh.axis_sizes):
        return []
    return [
        f"The shardings of jax.jit are for the mesh ({asked}); here they are read by the names of"
        f" their axes, on the mesh ({mesh})."
    ]


def without_rules_note(arrays: Sequence[ArraySpec], args: Sequence[Any]) -> list[str]:
    """A note for arrays to which flax gave logical names, where no rules say what these mean.

    Args:
        arrays: the arrays of a program without rules.
        args: its arguments, as they were given.
    """
    leaves = jax.tree.leaves(tuple(args))
    named = [
        array
        for array, leaf in zip(arrays, leaves, strict=True)
        if array.spec is None and any(array.logical or ()) and not isinstance(leaf, ArraySpec)
    ]
    if not named:
        return []
    more = f" and {len(named) - 1} more" if len(named) > 1 else ""
    return [
        f"No rules were given, so logical names split nothing: {named[0].name}"
        f" ({format_names(named[0].logical)}){more}. Give rules to sv.program."
    ]


def _spec_tree(specs: Any, mesh: MeshSpec, check: bool = True) -> Any:
    if specs is None:
        return None

    def converted(leaf: Any) -> Spec | None:
        spec = as_spec(leaf)
        if check:
            _check_mesh(leaf, mesh, "out_specs gives a sharding")
        if kind := foreign_memory(leaf):
            raise ProgramError(
                f"out_specs asks for the memory {kind!r}, and a program here keeps no memory for"
                " its results. Put jax.device_put(y, jax.memory.Space.Host) at the end of the"
                " function, and give a PartitionSpec."
            )
        return spec

    return jax.tree.map(converted, specs, is_leaf=is_spec)


def _check_mesh(leaf: Any, mesh: MeshSpec, what: str) -> None:
    if not isinstance(leaf, NamedSharding):
        return
    asked = adopt_mesh(leaf.mesh)
    if (asked.axis_names, asked.axis_sizes) != (mesh.axis_names, mesh.axis_sizes):
        raise ProgramError(
            f"{what} on the mesh ({asked}), and the program is on ({mesh}). Give a PartitionSpec,"
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
    raise ProgramError(f"A spec is text such as P('x', None), or jax's own; {shown(value)} {what}.")
