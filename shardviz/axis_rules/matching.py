"""match_rules(): which rule of a table decides each dimension of an array.

Follows `flax.linen.spmd.logical_to_mesh_axes` and `flax.core.spmd.from_sharding_rules`
step by step; `tests/layout` compares it with both over random tables. Why every other
rule does not decide is found afterwards, in `resolution.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from shardviz.axis_rules.rules import Dialect, Rules
from shardviz.base.array_spec import read_names
from shardviz.base.errors import RuleError
from shardviz.base.format import shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec, is_unconstrained

Names = tuple[str | None, ...]
_NO_DIMS: frozenset[int] = frozenset()


class RuleMatches(NamedTuple):
    """The winning rule of each dimension, by index, and the spec of the winners."""

    winners: tuple[int | None, ...]
    spec: Spec


def match_rules(
    names: Names, rules: Rules, mesh: MeshSpec | None, dialect: Dialect
) -> RuleMatches:
    """The winner of each dimension, and the spec that the names become.

    Args:
        mesh: whose axes of size 1 MaxText drops; other dialects never look at it.

    Raises:
        RuleError: for entries that are no names, and for a name that occurs twice (not
            in nnx).
    """
    if dialect is Dialect.NNX:
        return _nnx(names, rules)
    matches = _linen(names, rules)
    if dialect is Dialect.MAXTEXT and mesh is not None:
        return RuleMatches(matches.winners, without_size_one(matches.spec, mesh))
    return matches


def _linen(names: Names, rules: Rules) -> RuleMatches:
    # Explorers resolve after every edit and audits thousands of times: this is the
    # hottest loop of the rules, so it makes as few objects as it can.
    by_name, entries = rules.by_name, rules.entries
    position: dict[str, int] = {}
    candidates: list[int] = []
    free: list[int] = []
    for dim, name in enumerate(names):
        if name is None:
            continue
        known = by_name.get(name) if name.__class__ is str else None
        if known is not None:
            candidates += known
        else:
            read_names((name,))
            if not isinstance(name, str):
                free.append(dim)  # UNCONSTRAINED is the one other entry it accepts
                continue
        if name in position:
            raise RuleError(
                f"Logical name {shown(name)} is at dimensions {position[name]} and"
                f" {dim}; an array can use each name once. Give one of them a name of"
                " its own."
            )
        position[name] = dim
    candidates.sort()  # rule order alone is priority
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
    spec = Spec.trusted(tuple(dims), frozenset(free) if free else _NO_DIMS)
    return RuleMatches(tuple(winners), spec)


def _nnx(names: Names, rules: Rules) -> RuleMatches:
    # Dimension by dimension: nothing here looks at the other ones.
    winners: list[int | None] = []
    dims: list[tuple[str, ...]] = []
    free: list[int] = []
    for dim, name in enumerate(read_names(names)):
        winner, axes = None, ()
        if not isinstance(name, str):
            if is_unconstrained(name):
                free.append(dim)
        elif name not in rules.by_name:
            # flax looks the name up in a dict, and takes the name itself by default.
            axes = (name,)
        else:
            # The dict has the last of several rules for a name.
            winner = rules.by_name[name][-1]
            axes = rules.entries[winner].axes
            if rules.entries[winner].free:
                free.append(dim)
        winners.append(winner)
        dims.append(axes)
    return RuleMatches(tuple(winners), Spec.trusted(tuple(dims), frozenset(free)))


def without_size_one(spec: Spec, mesh: MeshSpec) -> Spec:
    """The spec without mesh axes of size 1, as MaxText leaves it."""
    dims = []
    for axes in spec.dims:
        dims.append(tuple(a for a in axes if mesh.shape.get(a) != 1))
    return Spec(tuple(dims), spec.unconstrained, spec.unreduced, spec.reduced)
