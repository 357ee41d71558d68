"""The sharding rule of an operation: Shardy's factors, and the same in words.

A rule names every dimension by factors, as einsum does: `[i, k], [k, j] -> [i, j]`. A mesh axis
that splits a factor in one operand or result may split it in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from shardviz.core.format import joined

Tensor = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ShardingRule:
    """A sharding rule; its groups of factors are named as in Shardy's `OpShardingRuleAttr`.

    Attributes:
        operands: per operand, per dimension, its factors, major to minor.
        results: the same for the results.
        sizes: factor to size.
        reduction: factors that are summed, or reduced in another way.
        need_replication: factors whose dimensions must not be split.
        permutation: factors along which shards exchange data.
        blocked_propagation: factors along which no axis is propagated.

    >>> rule = ShardingRule(((("i",), ("k",)), (("k",),)), ((("i",),),), {"i": 4, "k": 2}, ("k",))
    >>> rule.formula
    '[i, k], [k] -> [i]'
    """

    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    sizes: Mapping[str, int] = field(hash=False)
    reduction: tuple[str, ...] = ()
    need_replication: tuple[str, ...] = ()
    permutation: tuple[str, ...] = ()
    blocked_propagation: tuple[str, ...] = ()

    @cached_property
    def formula(self) -> str:
        """The rule as einsum would have it: `[i, k], [k, j] -> [i, j]`."""
        return f"{_tensors(self.operands)} -> {_tensors(self.results)}"

    @property
    def propagates(self) -> bool:
        """Whether any axis can cross the operation: an operand and a result share a factor."""
        return any(self.readers(f) and self.makers(f) for f in self.sizes)

    def readers(self, factor: str) -> tuple[int, ...]:
        """The numbers of the operands that have a factor."""
        return tuple(n for n, t in enumerate(self.operands) if any(factor in d for d in t))

    def makers(self, factor: str) -> tuple[int, ...]:
        """The numbers of the results that have a factor."""
        return tuple(n for n, t in enumerate(self.results) if any(factor in d for d in t))


@lru_cache(maxsize=16384)
def rule_in_words(rule: ShardingRule, operands: tuple[str, ...], reduces: str = "reduces") -> str:
    """A rule in words; `""` for a rule without factors.

    Args:
        rule: the rule.
        operands: the names of the operands.
        reduces: what the operation does with the factors it reduces: `"sums"`.

    >>> x, y = (("i",), ("j",)), (("j",), ("i",))
    >>> rule_in_words(ShardingRule((x,), (y,), {"i": 4, "j": 8}), ("x",))
    '[i, j] -> [j, i]: every dimension from x'
    >>> rule_in_words(ShardingRule((x,), (x[:1],), {"i": 4, "j": 8}, ("j",)), ("x",), "sums")
    '[i, j] -> [i]: i (4) from x; sums over j (8)'
    """
    if not rule.sizes:
        return ""
    parts = [_shared(rule, operands)]
    for factors, phrase in (
        (rule.reduction, f"{reduces} over {{}}"),
        (_new(rule), "adds {}"),
        (_dropped(rule), "leaves out {}"),
        (rule.need_replication, "needs {} not split"),
        (rule.permutation, "shards exchange data along {}"),
        (rule.blocked_propagation, "nothing crosses {}"),
    ):
        if named := [f for f in factors if rule.sizes.get(f, 1) > 1]:
            parts.append(phrase.format(_sized(rule, named)))
    phrases = "; ".join(p for p in parts if p)
    return f"{rule.formula}: {phrases}" if phrases else rule.formula


def _shared(rule: ShardingRule, operands: Sequence[str]) -> str:
    """Which factors of the results come from which operands."""
    sources: dict[tuple[str, ...], list[str]] = {}
    special = {*rule.need_replication, *rule.blocked_propagation}
    for factor, size in rule.sizes.items():
        readers = rule.readers(factor)
        if size > 1 and readers and rule.makers(factor) and factor not in special:
            names = tuple(dict.fromkeys(operands[n] for n in readers if n < len(operands)))
            sources.setdefault(names, []).append(factor)
    kept = sum(len(f) for f in sources.values())
    if len(sources) == 1 and kept == sum(s > 1 for s in rule.sizes.values()):
        return f"every dimension from {joined(next(iter(sources)))}"
    return ", ".join(f"{_sized(rule, f)} from {joined(n)}" for n, f in sources.items())


def _new(rule: ShardingRule) -> list[str]:
    return [f for f in rule.sizes if not rule.readers(f)]


def _dropped(rule: ShardingRule) -> list[str]:
    """The factors of operands that no result has and no other phrase names."""
    named = {*rule.reduction, *rule.need_replication, *rule.permutation, *rule.blocked_propagation}
    return [f for f in rule.sizes if not rule.makers(f) and f not in named]


def _sized(rule: ShardingRule, factors: Sequence[str]) -> str:
    return joined(f"{f} ({rule.sizes[f]})" for f in factors)


def _tensors(tensors: tuple[Tensor, ...]) -> str:
    return ", ".join("[" + ", ".join("".join(d) or "1" for d in t) + "]" for t in tensors)
