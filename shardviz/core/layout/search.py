"""search() -> Found: which rule wins each dimension, and the spec that comes out of it.

Follows `flax.linen.spmd.logical_to_mesh_axes` and `flax.core.spmd.from_sharding_rules` step by
step; `tests/layout` holds it against both over random tables.
"""

from __future__ import annotations

from typing import NamedTuple

from shardviz.core.errors import RuleError, shown
from shardviz.core.layout.array import read_names
from shardviz.core.layout.rules import Dialect, Rule, Rules
from shardviz.core.layout.spec import MAX_RANK, Spec, is_unconstrained

MEMO_SIZE = 4096


class Found(NamedTuple):
    """What the search found: per dimension the winning rule, and the spec of the winners."""

    winners: tuple[int | None, ...]
    spec: Spec


def search(names: tuple[str | None, ...], rules: Rules, dialect: Dialect) -> Found:
    """The winners, put down by signature: large models have many arrays and few signatures.

    Raises:
        RuleError: for entries that are no names, and for a name that stands twice.
    """
    if len(names) > MAX_RANK:
        read_names(names)  # refuses them, in the words of its subject
    found = _nnx(names, rules) if dialect is Dialect.NNX else _linen(names, rules)
    if len(rules.memo) >= MEMO_SIZE:
        rules.memo.clear()
    rules.memo[names, dialect] = found
    return found


def remembered(names: tuple, rules: Rules, dialect: Dialect) -> Found | None:
    """What was found before for these names, or None."""
    try:
        return rules.memo.get((names, dialect))
    except Exception:  # noqa: BLE001  a foreign __hash__ may raise anything; `search` names it
        return None


def _linen(names: tuple[str | None, ...], rules: Rules) -> Found:
    by_name, entries = rules.by_name, rules.entries
    position: dict[str, int] = {}
    candidates: list[int] = []
    free: list[int] = []
    for dim, name in enumerate(names):
        if isinstance(name, str):
            if name in position:
                raise _twice(name, position[name], dim)
            position[name] = dim
            if name in by_name:  # then it was checked when the rules were made
                candidates += by_name[name]
            else:
                read_names((name,))
        elif name is not None:
            read_names((name,))
            free.append(dim)  # what else can be read is UNCONSTRAINED
    candidates.sort()  # rule order alone is priority
    winners: list[int | None] = [None] * len(names)
    dims: list[tuple[str, ...]] = [()] * len(names)
    used: set[str] = set()
    for index in candidates:
        rule = entries[index]
        dim, axes = position[rule.logical], rule.axes
        if winners[dim] is None and used.isdisjoint(axes):
            winners[dim], dims[dim] = index, axes
            used.update(axes)
            if rule.nested:
                raise _nested(index, rule)
            if rule.free:
                free.append(dim)
    return Found(tuple(winners), Spec.trusted(tuple(dims), frozenset(free)))


def _nnx(names: tuple[str | None, ...], rules: Rules) -> Found:
    winners: list[int | None] = []
    dims: list[tuple[str, ...]] = []
    free: list[int] = []
    for dim, name in enumerate(read_names(names)):
        known = rules.by_name.get(name) if isinstance(name, str) else None
        winner = None if known is None else known[-1]
        winners.append(winner)
        if winner is not None:
            rule = rules.entries[winner]
            if rule.nested:
                raise _nested(winner, rule)
            dims.append(rule.axes)
        else:
            dims.append((name,) if isinstance(name, str) else ())
        if rules.entries[winner].free if winner is not None else is_unconstrained(name):
            free.append(dim)
    return Found(tuple(winners), Spec.trusted(tuple(dims), frozenset(free)))


def _twice(name: str, first: int, second: int) -> RuleError:
    return RuleError(
        f"Logical name {shown(name)} stands at dimensions {first} and {second}; an array can use"
        " each name once. Give one of them a name of its own."
    )


def _nested(index: int, rule: Rule) -> RuleError:
    return RuleError(
        f"Rule {index + 1} ({rule}) leads to a tuple in a tuple, which no PartitionSpec can hold."
        " Write the axes side by side."
    )
