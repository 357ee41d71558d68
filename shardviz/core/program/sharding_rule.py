"""An operation's sharding rule: Shardy's factors, and what they say in words.

A rule names every dimension by factors, as einsum does: `([i, k], [k, j])->([i, j])`. A mesh axis
that splits a factor in one value may split it in all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

_RULE = re.compile(r"<\((.*?)\)->\((.*?)\)(?: \{(.*?)\})?((?: \w+=\{[^}]*\})*)(, custom)?>$")
_TENSOR = re.compile(r"\[([^\]]*)\]")
_FACTOR = re.compile(r"[a-z](?:_\d+)?")
_SIZE = re.compile(r"([a-z](?:_\d+)?)=(\d+)")
_CLASS = re.compile(r"(\w+)=\{([^}]*)\}")

Tensor = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ShardingRule:
    """A sharding rule.

    Attributes:
        operands: per operand, per dimension, its factors, major to minor.
        results: the same for the results.
        sizes: factor to size.
        reduction: factors that are summed, or reduced in another way.
        whole: factors that need whole dimensions.
        moving: factors along which blocks exchange data.
        blocked: factors that nothing crosses.

    >>> rule = parse("<([i, k], [k, j])->([i, j]) {i=4, j=8, k=2} reduction={k}>")
    >>> rule.operands[1], rule.reduction, rule.sizes["j"]
    ((('k',), ('j',)), ('k',), 8)
    """

    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    sizes: dict[str, int]
    reduction: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    moving: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()

    @cached_property
    def formula(self) -> str:
        """The rule as einsum would have it: `[i, k], [k, j] -> [i, j]`."""
        return f"{_tensors(self.operands)} -> {_tensors(self.results)}"

    def readers(self, factor: str) -> tuple[int, ...]:
        """The numbers of the operands that have a factor."""
        return tuple(n for n, t in enumerate(self.operands) if any(factor in d for d in t))

    def makers(self, factor: str) -> tuple[int, ...]:
        """The numbers of the results that have a factor."""
        return tuple(n for n, t in enumerate(self.results) if any(factor in d for d in t))


@lru_cache(maxsize=4096)
def parse_sharding_rule(text: str) -> ShardingRule | None:
    """The rule that Shardy's text says, or None where it says none."""
    found = _RULE.search(text)
    if found is None:
        return None
    classes = {name: tuple(_FACTOR.findall(names)) for name, names in _CLASS.findall(found[4])}
    return ShardingRule(
        _read(found[1]),
        _read(found[2]),
        {name: int(size) for name, size in _SIZE.findall(found[3] or "")},
        classes.get("reduction", ()),
        classes.get("need_replication", ()),
        classes.get("permutation", ()),
        classes.get("blocked_propagation", ()),
    )


@lru_cache(maxsize=16384)
def rule_in_words(text: str, operands: Sequence[str], reduces: str = "reduces") -> str:
    """A rule in words.

    Args:
        text: as Shardy writes it.
        operands: the names of the operands.
        reduces: what the operation does with the factors it reduces: `"sums"`.

    >>> words("<([i, k], [k, j])->([i, j]) {i=4, j=8, k=2} reduction={k}>", ("x", "w"), "sums")
    '[i, k], [k, j] -> [i, j]: i (4) from x, j (8) from w; sums over k (2)'
    >>> words("<([i, j])->([j, i]) {i=4, j=8}>", ("x",))
    '[i, j] -> [j, i]: every dimension from x'
    """
    rule = parse_sharding_rule(text)
    if rule is None or not rule.sizes:
        return ""
    parts = [_shared(rule, operands)]
    for factors, phrase in (
        (rule.reduction, f"{reduces} over {{}}"),
        (_new(rule), "adds {}"),
        (_lost(rule), "leaves out {}"),
        (rule.whole, "needs {} whole"),
        (rule.moving, "blocks exchange data along {}"),
        (rule.blocked, "nothing crosses {}"),
    ):
        if named := [f for f in factors if rule.sizes.get(f, 1) > 1]:
            parts.append(phrase.format(_sized(rule, named)))
    said = "; ".join(p for p in parts if p)
    return f"{rule.formula}: {said}" if said else rule.formula


def is_opaque_rule(text: str) -> bool:
    """Whether a rule lets nothing through: no factor of an operand is one of a result.

    >>> opaque("<([i])->([j]) {i=4, j=4}, custom>"), opaque("<([i])->([i]) {i=4}>")
    (True, False)
    """
    rule = parse_sharding_rule(text)
    return rule is None or not any(rule.readers(f) and rule.makers(f) for f in rule.sizes)


def _shared(rule: ShardingRule, operands: Sequence[str]) -> str:
    """Which factors of the results come from which operands."""
    sources: dict[tuple[str, ...], list[str]] = {}
    special = {*rule.whole, *rule.blocked}
    for factor, size in rule.sizes.items():
        readers = rule.readers(factor)
        if size > 1 and readers and rule.makers(factor) and factor not in special:
            names = tuple(dict.fromkeys(operands[n] for n in readers if n < len(operands)))
            sources.setdefault(names, []).append(factor)
    kept = sum(len(f) for f in sources.values())
    if len(sources) == 1 and kept == sum(s > 1 for s in rule.sizes.values()):
        return f"every dimension from {_and(next(iter(sources)))}"
    return ", ".join(f"{_sized(rule, f)} from {_and(n)}" for n, f in sources.items())


def _new(rule: ShardingRule) -> list[str]:
    return [f for f in rule.sizes if not rule.readers(f)]


def _lost(rule: ShardingRule) -> list[str]:
    told = {*rule.reduction, *rule.whole, *rule.moving, *rule.blocked}
    return [f for f in rule.sizes if not rule.makers(f) and f not in told]


def _sized(rule: ShardingRule, factors: Sequence[str]) -> str:
    return _and(tuple(f"{f} ({rule.sizes[f]})" for f in factors))


def _and(parts: Sequence[str]) -> str:
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else "".join(parts)


def _tensors(tensors: tuple[Tensor, ...]) -> str:
    return ", ".join("[" + ", ".join("".join(d) or "1" for d in t) + "]" for t in tensors)


def _read(text: str) -> tuple[Tensor, ...]:
    return tuple(
        tuple(tuple(_FACTOR.findall(d)) for d in t.split(", ")) if t else ()
        for t in _TENSOR.findall(text)
    )
