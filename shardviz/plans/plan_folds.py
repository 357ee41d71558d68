"""Folds the repeated values and collectives of a plan, and finds their enclosing calls.

Values that repeat in every layer are listed once: `blocks_{0..31}/Mlp_0/Dense_0`, 32
times. The enclosing calls are the scopes that a program names (`jax.named_scope`,
modules, nested jit). jax adds its transformations to these names, as in
`transpose(jvp(mlp))`. If a program names no scopes, its functions are used instead.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence

from shardviz.base.collective import Collective
from shardviz.base.format import Fold, clause, fold
from shardviz.plans.plan_values import PlannedOp

Path = tuple[str, ...]

# A call with fewer values gets no separate row.
FEWEST_VALUES = 4
# If a smaller share of the operations is in named scopes, functions are used instead.
NAMED_SHARE = 1 / 3
BACKWARD, LOOP = "backward pass", "loop"

# The suffix of a repeated call, as in `relu (2)`.
_NUMBERED_CALL = re.compile(r" \(\d+\)$")
_WRAPPED = re.compile(r"(\w+)\((.*)\)")
_NAME = re.compile(r"[A-Za-z][\w.\-]*")
# Transformations whose names jax wraps around scope names.
_WRAPPERS = frozenset({
    "jit", "pjit", "jvp", "transpose", "vmap", "checkpoint", "remat", "linearize",
    "partial_eval", "custom_jvp", "custom_vjp", "shard_map",
})  # fmt: skip
# Scope components that jax adds for control flow -> their display names.
_CONTROL = {
    "while": "",
    "body": LOOP,
    "cond": "loop condition",
    "closed_call": "",
    "rematted_computation": "computed again",
    "checkpoint": "",
}


def unwrapped(name: str) -> str:
    """Removes jax's transformations from one scope component; `""` if no name remains.

    >>> unwrapped("transpose(jvp(mlp))"), unwrapped("jvp()"), unwrapped("jit(relu) (2)")
    ('mlp', '', 'relu (2)')
    """
    number = _NUMBERED_CALL.search(name)
    bare = _NUMBERED_CALL.sub("", name)
    while True:
        wrapped = _WRAPPED.fullmatch(bare)
        if wrapped is None or wrapped[1] not in _WRAPPERS:
            break
        bare = wrapped[2]
    return f"{bare}{number[0]}" if number and bare else bare


def path_in_words(op: str) -> str:
    """Removes jax's transformations from jax's name of an operation.

    >>> path_in_words("jit(step)/transpose(jvp(blocks_3))/Mlp_0/dot_general")
    'blocks_3/Mlp_0/dot_general'
    """
    # The first component is the outermost jitted function.
    head, _, inner = op.partition("/")
    return "/".join(filter(None, map(unwrapped, (inner or head).split("/"))))


def fold_collectives(collectives: Iterable[Collective]) -> list[Fold[Collective]]:
    """Folds collectives that are equal except for numbers in their scopes.

    Returns:
        The folds, sorted by the bytes that they send, most bytes first.

    >>> ops = [f"jit(f)/layer_{n}/dot" for n in range(3)]
    >>> folds = fold_collectives([Collective("all-reduce", ("x",), 64, op) for op in ops])
    >>> [(one.count, one.name) for one in folds]
    [('3 × ', 'layer_{0..2}/dot')]
    """
    folds = fold(collectives, lambda c: path_in_words(c.op), _collective_key)
    return sorted(folds, key=lambda group: -sum(c.drawn_bytes for c in group.items))


def _collective_key(c: Collective) -> Hashable:
    size = (c.bytes_per_device, c.shape, c.trips, len(c.members))
    return c.kind, c.over, size, c.source, c.phase, c.is_async, c.rematerialises


def fold_line(group: Fold[Collective]) -> str:
    """Formats a fold of collectives in one line, with the bytes that a device sends.

    >>> some = [Collective("all-gather", ("x",), 64, f"f/h_{n}", group_size=2) for n in (0, 1)]
    >>> fold_line(fold_collectives(some)[0])
    '2 × 32 B all-gather over x · h_{0..1}'
    """
    first = group.items[0]
    kind = f"{clause('{} ', first.dtype)}{first.kind}"
    amount = f"{group.count}{first.amount} {kind}{first.over}"
    return " · ".join(filter(None, (amount, first.source, name_of_fold(group))))


def name_of_fold(group: Fold[Collective]) -> str:
    """Names a fold by its operation; if combined, by its largest member's operation.

    >>> op = "jit(f)/layer_1/dot"
    >>> name_of_fold(fold_collectives([Collective("all-gather", ("x",), 64, op)])[0])
    'jit(f)/layer_1/dot'
    """
    first = group.items[0]
    name = first.op
    if len(group.items) > 1:
        name = group.name
        if first.phase == "backward":
            name += ", backward"
    if first.members:
        name += f" and {len(first.members) - 1:,} more"
    return name


def fold_values(ops: Iterable[PlannedOp]) -> list[Fold[PlannedOp]]:
    """Folds values with equal operation, line, type and sharding into one.

    >>> ops = [PlannedOp(f"blocks[{n}].w", "argument", shape=(8,)) for n in range(32)]
    >>> [one.name for one in fold_values(ops)]
    ['blocks[{0..31}].w']
    """
    return fold(ops, _name_of_value, _value_key)


def _name_of_value(op: PlannedOp) -> str:
    if op.kind != "op":
        return op.name
    *scope, last = path_in_words(op.op).split("/")
    # An operation that jax added to implement another one has the other one's name.
    return "/".join([*scope, last if last in op.name else op.opcode])


def _value_key(op: PlannedOp) -> Hashable:
    kind = (op.kind, op.opcode, op.region, op.backward, op.trips)
    return kind, op.shape, op.dtype, op.spec, op.source, op.notes, op.uncertain


def call_paths(ops: Sequence[PlannedOp]) -> list[Path]:
    """Returns the enclosing calls of every value, outermost first.

    >>> mlp = {"scope": ("jit(f)", "jvp(mlp)"), "operands": ("x",)}
    >>> ops = [PlannedOp(f"add_{n}", "op", **mlp) for n in range(4)]
    >>> call_paths([*ops, PlannedOp("sum", "op", scope=("jit(f)",), operands=("x",))])
    [('mlp',), ('mlp',), ('mlp',), ('mlp',), ()]
    """
    # Skip constants, because jax records the scope of only a few.
    inner = [n for n, op in enumerate(ops) if op.kind == "op" and op.operands]
    named = sum(1 for n in inner if any(map(_is_own, ops[n].scope[1:])))
    if named >= max(1, NAMED_SHARE * len(inner)):
        paths = [_scope(op) for op in ops]
    else:
        paths = _functions(ops)
    for number in reversed(range(len(ops) - 1)):
        op, following = ops[number], ops[number + 1]
        # A constant gets the path of the next value.
        if op.kind == following.kind == "op" and not op.operands:
            paths[number] = paths[number + 1]
    common = _common([paths[n] for n in inner])
    has_forward = any(op.kind == "op" and not op.backward for op in ops)
    for number, op in enumerate(ops):
        path = paths[number]
        if path[: len(common)] == common:
            path = path[len(common) :]
        if has_forward and op.backward:
            path = (BACKWARD, *path)
        paths[number] = path
    _inline(paths, 0, len(paths), 0)
    return paths


def _scope(op: PlannedOp) -> Path:
    path = []
    for part in op.scope[1:]:
        name = unwrapped(part)
        name = _CONTROL.get(name, name)
        if name and not name.startswith("_"):
            path.append(name)
    return tuple(path)


def _is_own(part: str) -> bool:
    """True if the program, not jax, chose the name of this scope component."""
    name = unwrapped(part)
    is_name = _NAME.fullmatch(name) is not None and name not in _CONTROL
    return is_name and "jit(" not in part


def _functions(ops: Sequence[PlannedOp]) -> list[Path]:
    """The user's functions around each value, numbered if called from several lines."""
    callers: dict[Path, list[str]] = {}
    paths = []
    for op in ops:
        path: Path = ()
        for number, name in enumerate(op.calls):
            # Users don't see comprehensions as functions.
            if name.endswith("comp>") or name == "<genexpr>":
                continue
            # `op.stack` begins with the innermost line; find the line of this call.
            above = len(op.calls) - number
            line = next(iter(op.stack[above : above + 1]), "")
            lines = callers.setdefault((*path, name), [])
            if line not in lines:
                lines.append(line)
            if lines[0] != line:
                name += f" ({lines.index(line) + 1})"
            path = (*path, name)
        paths.append(path)
    return paths


def _common(paths: Sequence[Path]) -> Path:
    """The common prefix of all paths."""
    shared: list[str] = []
    for parts in zip(*paths, strict=False):
        if len({*parts}) > 1:
            break
        shared.append(parts[0])
    return tuple(shared)


def _inline(paths: list[Path], start: int, stop: int, depth: int) -> None:
    """Removes calls with few values from the paths, in place."""
    at = start
    while at < stop:
        name, end = paths[at][depth : depth + 1], at + 1
        while end < stop and paths[end][depth : depth + 1] == name:
            end += 1
        if name and end - at < FEWEST_VALUES:
            paths[at:end] = [paths[at][:depth]] * (end - at)
        elif name:
            _inline(paths, at, end, depth + 1)
        at = end
