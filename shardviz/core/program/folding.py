"""Folds what the layers of a program have in common: `blocks_{0..31}/Mlp_0/Dense_0`, 32 times."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable

from shardviz.core.format import Fold, fold
from shardviz.core.program.plan_values import PlannedOp
from shardviz.core.program.report import Collective

_NUMBERED_CALL = re.compile(r" \(\d+\)$")  # of a repeated call: `relu (2)`
_WRAPPED = re.compile(r"(\w+)\((.*)\)")
_WRAPPERS = frozenset(
    ("jit", "pjit", "jvp", "transpose", "vmap", "checkpoint", "remat", "linearize", "partial_eval",
     "custom_jvp", "custom_vjp", "shard_map")
)  # fmt: skip


def unwrapped(name: str) -> str:
    """One part of a scope without what jax did to it; `""` where nothing else is left.

    >>> unwrapped("transpose(jvp(mlp))"), unwrapped("jvp()"), unwrapped("jit(relu) (2)")
    ('mlp', '', 'relu (2)')
    """
    number = _NUMBERED_CALL.search(name)
    bare = _NUMBERED_CALL.sub("", name)
    while (found := _WRAPPED.fullmatch(bare)) and found[1] in _WRAPPERS:
        bare = found[2]
    return bare + (number[0] if number and bare else "")


def path_in_words(op: str) -> str:
    """What jax calls an operation, as the program named its parts: without the function itself.

    >>> path_in_words("jit(step)/transpose(jvp(blocks_3))/Mlp_0/dot_general")
    'blocks_3/Mlp_0/dot_general'
    """
    head, _, rest = op.partition("/")
    parts = (unwrapped(part) for part in (rest or head).split("/"))
    return "/".join(part for part in parts if part)


def fold_collectives(collectives: Iterable[Collective]) -> list[Fold[Collective]]:
    """Collectives of one kind, size and line that differ in the numbers of their scopes.

    Returns:
        The folds, those with the most bytes first.

    >>> some = [Collective("all-reduce", ("x",), 64, f"jit(f)/layer_{n}/dot") for n in range(3)]
    >>> [(one.count, one.name) for one in fold_collectives(some)]
    [('3 × ', 'layer_{0..2}/dot')]
    """
    folds = fold(collectives, lambda c: path_in_words(c.op), _sort_of)
    return sorted(folds, key=lambda one: -sum(c.bytes_in_all for c in one.items))


def _sort_of(c: Collective) -> Hashable:
    same = (c.kind, c.mesh_axes, c.bytes_per_device, c.shape, c.trips, c.source, c.phase)
    return (*same, c.is_async, c.rematerialises, len(c.members))


def fold_line(one: Fold[Collective]) -> str:
    """Alike collectives in one line: `32 × 512 MiB all-reduce over model · mlp.py:3 · mlp/dot`.

    >>> one, = fold_collectives([Collective("all-gather", ("x",), 64, f"f/h_{n}") for n in (0, 1)])
    >>> fold_line(one)
    '2 × 64 B all-gather over x · h_{0..1}'
    """
    first = one.items[0]
    over = f" over {' × '.join(first.mesh_axes)}" if first.mesh_axes else ""
    where = "".join(f" · {v}" for v in (first.source, name_of_fold(one)) if v)
    return f"{one.count}{first.amount} {first.kind}{over}{where}"


def name_of_fold(one: Fold[Collective]) -> str:
    """Their operation; of combined ones that of the largest member, and how many others.

    >>> one, = fold_collectives([Collective("all-gather", ("x",), 64, "jit(f)/layer_1/dot")])
    >>> name_of_fold(one)
    'jit(f)/layer_1/dot'
    """
    first = one.items[0]
    name = first.op
    if len(one.items) > 1:
        name = f"{one.name}{', backward' if first.phase == 'backward' else ''}"
    return f"{name} and {len(first.members) - 1:,} more" if first.members else name


def fold_values(ops: Iterable[PlannedOp]) -> list[Fold[PlannedOp]]:
    """The values of a plan: those of one operation, line, type and sharding in all layers as one.

    >>> ops = [PlannedOp(f"blocks[{n}].w", "argument", shape=(8,)) for n in range(32)]
    >>> [one.name for one in fold_values(ops)]
    ['blocks[{0..31}].w']
    """
    return fold(ops, _name_of_value, _sort_of_value)


def _name_of_value(op: PlannedOp) -> str:
    if op.kind != "op":
        return op.name
    *scope, last = path_in_words(op.op).split("/")
    # Where jax adds an operation for another, it has the other's name.
    return "/".join([*scope, last if last in op.name else op.opcode])


def _sort_of_value(op: PlannedOp) -> Hashable:
    same = (op.kind, op.opcode, op.shape, op.dtype, op.spec, op.source, op.backward, op.trips)
    return (*same, op.region, op.note)
