"""match_rules(): finds the rule that decides each dimension of an array.

The algorithm follows `flax.linen.spmd.logical_to_mesh_axes` and
`flax.core.spmd.from_sharding_rules`; `tests/layout` compares it with these functions on
random tables. `resolution.py` explains why each of the other rules does not decide.
"""

from __future__ import annotations

from typing import NamedTuple

from shardviz.axis_rules.dialects import NameDialect
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import read_names
from shardviz.base.errors import RuleError
from shardviz.base.format import shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec, is_unconstrained

Names = tuple[str | None, ...]
_NO_DIMS: frozenset[int] = frozenset()


class RuleMatches(NamedTuple):
    """The index of each dimension's winning rule, and the resulting spec."""

    winners: tuple[int | None, ...]
    spec: Spec


def match_rules(
    names: Names, rules: Rules, mesh: MeshSpec | None, dialect: NameDialect
) -> RuleMatches:
    """Finds each dimension's winning rule and the resulting spec.

    Args:
        names: the logical names, one per dimension.
        rules: the table.
        mesh: the mesh, needed only if the dialect drops mesh axes of size 1.
        dialect: the library that reads the table.

    Raises:
        RuleError: if an entry of `names` is not a name, or a name occurs twice and the
            dialect does not resolve dimensions independently.
    """
    if dialect.dimensions_apart:
        matches = _each_apart(names, rules, dialect)
    else:
        matches = _by_priority(names, rules, dialect)
    if dialect.drops_size_one and mesh is not None:
        return RuleMatches(matches.winners, without_size_one(matches.spec, mesh))
    return matches


def _by_priority(names: Names, rules: Rules, dialect: NameDialect) -> RuleMatches:
    # This loop creates as few objects as possible, because the Explorer resolves after
    # every edit, and an audit resolves thousands of arrays.
    by_name, entries = rules.by_name, rules.entries
    last_only = dialect.last_repeat_wins
    position: dict[str, int] = {}
    candidates: list[int] = []
    free: list[int] = []
    unknown: list[str] = []
    for dim, name in enumerate(names):
        if name is None:
            continue
        indices = by_name.get(name) if name.__class__ is str else None
        if indices is not None:
            candidates += indices[-1:] if last_only else indices
        else:
            read_names((name,))
            if not isinstance(name, str):
                # This is UNCONSTRAINED: read_names raises for anything else.
                free.append(dim)
                continue
            unknown.append(name)
        if name in position:
            raise RuleError(
                f"Logical name {shown(name)} is at dimensions {position[name]} and"
                f" {dim}; an array can use each name once. Give one of them a name of"
                " its own."
            )
        position[name] = dim
    candidates.sort()  # only the order in the table determines priority
    winners: list[int | None] = [None] * len(names)
    dims: list[tuple[str, ...]] = [()] * len(names)
    used: list[str] = []
    for index in candidates:
        rule = entries[index]
        dim = position[rule.logical]
        if winners[dim] is not None:
            continue
        axes = rule.axes
        for axis in axes:
            if axis in used:
                break
        else:
            winners[dim], dims[dim] = index, axes
            used += axes
            if rule.free:
                free.append(dim)
    if dialect.unknown_name_is_axis:
        for name in unknown:
            if name not in used:
                dims[position[name]] = (name,)
    spec = Spec.trusted(tuple(dims), frozenset(free) if free else _NO_DIMS)
    return RuleMatches(tuple(winners), spec)


def _each_apart(names: Names, rules: Rules, dialect: NameDialect) -> RuleMatches:
    winners: list[int | None] = []
    dims: list[tuple[str, ...]] = []
    free: list[int] = []
    for dim, name in enumerate(read_names(names)):
        winner, axes = None, ()
        if not isinstance(name, str):
            if is_unconstrained(name):
                free.append(dim)
        elif name in rules.by_name:
            winner = rules.by_name[name][-1 if dialect.last_repeat_wins else 0]
            axes = rules.entries[winner].axes
            if rules.entries[winner].free:
                free.append(dim)
        elif dialect.unknown_name_is_axis:
            axes = (name,)
        winners.append(winner)
        dims.append(axes)
    return RuleMatches(tuple(winners), Spec.trusted(tuple(dims), frozenset(free)))


def without_size_one(spec: Spec, mesh: MeshSpec) -> Spec:
    """Removes mesh axes of size 1 from a spec."""
    dims = []
    for axes in spec.dims:
        dims.append(tuple(a for a in axes if mesh.shape.get(a) != 1))
    return spec.with_dims(dims, spec.unconstrained)
