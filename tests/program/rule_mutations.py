"""Every single change of one rule of the gallery's tables, and whether a lock notices it.

What changes is decided by flax: a rule acts on the arguments of these programs alone, so that
where `flax.linen.logical_to_mesh_axes` gives every argument the spec that it had, the program is
the same, and the lock has to hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import flax.linen

import shardviz as sv
from shardviz.advise.lock import Lock
from shardviz.axis_rules.rules import Rule, Rules
from shardviz.gallery import programs, puzzles
from shardviz.programs.program import Program


def mutations(table: Rules, axes: tuple[str, ...]) -> Iterator[tuple[str, Rules]]:
    """What one wrong line makes of a table: gone, misspelt, of another axis, at another place."""
    lines = list(table)
    for at, rule in enumerate(lines):
        before, after = lines[:at], lines[at + 1 :]
        yield f"without {rule}", Rules((*before, *after))
        yield f"{rule} misspelt", Rules((*before, Rule(f"{rule.logical}x", rule.axes), *after))
        for target in ((), *((axis,) for axis in axes), axes[:2]):
            if target != rule.axes:
                changed = Rule(rule.logical, target)
                yield f"{rule} becomes {changed}", Rules((*before, changed, *after))
        for to in range(len(lines)):
            if to != at:
                rest = [*before, *after]
                yield f"{rule} moved to line {to + 1}", Rules((*rest[:to], rule, *rest[to:]))


def programs_by_name() -> dict[str, Program]:
    """The programs and puzzles of the gallery whose arrays have names."""
    found = {name: programs.get(name) for name in programs.names()}
    found |= {name: puzzles.get(name) for name in puzzles.names()}
    return {name: one for name, one in found.items() if one.rules is not None}


def specs_by_flax(program: Program) -> tuple[object, ...]:
    """The spec of every argument, as flax resolves it; an error counts as a spec."""
    found = []
    for array in program.arrays:
        try:
            pairs = program.rules.pairs() if program.rules is not None else ()
            spec = tuple(flax.linen.logical_to_mesh_axes(array.logical, pairs))
            while spec and spec[-1] is None:
                spec = spec[:-1]
            found.append(spec)
        except ValueError as error:
            found.append(str(error))
    return tuple(found)


def verdict(program: Program, lock: Lock, changed: Program) -> str:
    """What the lock says of a changed program, compared with flax."""
    differs = specs_by_flax(program) != specs_by_flax(changed)
    try:
        found = lock.diff(sv.lock(changed, collectives=False))
    except sv.ShardvizError:
        return "refused, as it cannot be laid out" if differs else "REFUSED, AND NOTHING CHANGED"
    if found.same:
        return "MISSED" if differs else "holds: no spec changes"
    return "caught" if differs else "FALSE ALARM"


def sample(every: int) -> list[tuple[Program, str, Rules]]:
    """Every so-many-th mutation of the programs' own tables."""
    found = [
        (program, f"{name}: {words}", table)
        for name, program in programs_by_name().items()
        for words, table in mutations(program.rules or Rules(()), tuple(program.mesh.shape))
    ]
    return list(itertools.islice(found, 0, None, every))
