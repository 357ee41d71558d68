"""Folds long lists of a program: what its layers have in common, and the calls around each value.

What layers have in common is written once: `blocks_{0..31}/Mlp_0/Dense_0`, 32 times.

jax names the scopes that a program names (`jax.named_scope`, modules, nested jit) and wraps them
in what was done to them: `transpose(jvp(mlp))`. Where a program names none, its functions,
or the lines that call them, are used instead.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence

from shardviz.core.format import Fold, fold
from shardviz.core.program.plan_values import PlannedOp
from shardviz.core.program.report import Collective

_NUMBERED_CALL = re.compile(r" \(\d+\)$")  # of a repeated call: `relu (2)`
_WRAPPED = re.compile(r"(\w+)\((.*)\)")
_WRAPPERS = frozenset(
    ("jit", "pjit", "jvp", "transpose", "vmap", "checkpoint", "remat", "linearize", "partial_eval",
     "custom_jvp", "custom_vjp", "shard_map")
)  # fmt: skip
FEWEST_VALUES = 4  # a call with fewer values has no row of its own
NAMED_SHARE = 1 / 3  # of the operations must be in named scopes, or functions are used
BACKWARD, LOOP = "backward pass", "loop"
Path = tuple[str, ...]

_CONTROL = {"while": "", "body": LOOP, "cond": "loop condition", "closed_call": "",
            "rematted_computation": "computed again", "checkpoint": ""}  # fmt: skip
_NAME = re.compile(r"[A-Za-z][\w.\-]*")


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


def call_paths(ops: Sequence[PlannedOp]) -> list[Path]:
    """The calls around every value, outermost first.

    >>> mlp = {"scope": ("jit(f)", "jvp(mlp)"), "operands": ("x",)}
    >>> ops = [PlannedOp(f"add_{n}", "op", **mlp) for n in range(4)]
    >>> call_paths([*ops, PlannedOp("sum", "op", scope=("jit(f)",), operands=("x",))])
    [('mlp',), ('mlp',), ('mlp',), ('mlp',), ()]
    """
    scopes = [_scope(op) for op in ops]
    inner = [i for i, op in enumerate(ops) if op.kind == "op" and not _is_constant(op)]
    named = sum(1 for i in inner if any(_is_own(part) for part in ops[i].scope[1:]))
    enough = named >= max(1, NAMED_SHARE * len(inner))
    paths = _with_users(ops, scopes if enough else _calls(ops, inner))
    common = _common(paths[i] for i in inner)
    paths = [p[len(common) :] if p[: len(common)] == common else p for p in paths]
    if any(not op.backward for op in ops if op.kind == "op"):
        paths = [(BACKWARD, *p) if op.backward else p for op, p in zip(ops, paths, strict=True)]
    _inline(paths, 0, len(paths), 0)
    return paths


def _scope(op: PlannedOp) -> Path:
    parts = (unwrapped(part) for part in op.scope[1:])
    return tuple(p for part in parts if (p := _CONTROL.get(part, part)) and not p.startswith("_"))


def _is_own(part: str) -> bool:
    """Whether a part of a scope is a name that the program chose: no call of jit, no einsum."""
    if part.startswith(("jit(", "pjit(")) or part in _CONTROL:
        return False
    name = unwrapped(part)
    return _NAME.fullmatch(name) is not None and "jit(" not in part and name not in _CONTROL


def _is_constant(op: PlannedOp) -> bool:
    return op.kind == "op" and not op.operands


def _calls(ops: Sequence[PlannedOp], inner: Sequence[int]) -> list[Path]:
    """The functions that are called, outermost first, with loops where they begin.

    Where a plan does not know their names, it is the lines that call.
    """
    if any(ops[i].calls for i in inner):
        calls = _functions(ops)
    else:
        calls = [tuple(dict.fromkeys(reversed(op.stack)))[:-1] for op in ops]
    loops: dict[Path, list[Path]] = {}
    for i in inner:
        for _, scope in _loops(ops[i]):
            loops.setdefault(scope, []).append(calls[i])
    begins = {scope: len(_common(some)) for scope, some in loops.items()}
    paths = []
    for op, call in zip(ops, calls, strict=True):
        path = list(call)
        # From the innermost out, so that what is inserted first does not move.
        for name, scope in reversed(_loops(op)):
            path.insert(begins.get(scope, 0), name)
        paths.append(tuple(path))
    return paths


def _functions(ops: Sequence[PlannedOp]) -> list[Path]:
    """The functions around every value; one that is called from several lines is counted."""
    callers: dict[Path, list[str]] = {}
    paths = []
    for op in ops:
        path: Path = ()
        for i, name in enumerate(op.calls):
            if name.endswith("comp>") or name == "<genexpr>":
                continue  # comprehensions are not functions to a reader
            above = len(op.calls) - i  # the line of the caller, counted from the innermost
            line = op.stack[above] if above < len(op.stack) else ""
            lines = callers.setdefault((*path, name), [])
            if line not in lines:
                lines.append(line)
            number = lines.index(line) + 1
            path = (*path, name if number == 1 else f"{name} ({number})")
        paths.append(path)
    return paths


def _loops(op: PlannedOp) -> list[tuple[str, Path]]:
    """The loops around a value, outermost first, each with the scope up to it."""
    return [
        (_CONTROL[part], op.scope[: i + 1])
        for i, part in enumerate(op.scope)
        if part in ("body", "cond")
    ]


def _with_users(ops: Sequence[PlannedOp], paths: list[Path]) -> list[Path]:
    """Constants get the path of the value that follows: jax knows the scope of few of them."""
    moved = list(paths)
    for i in range(len(ops) - 2, -1, -1):
        if _is_constant(ops[i]) and ops[i + 1].kind == "op":
            moved[i] = moved[i + 1]
    return moved


def _common(paths: Iterable[Path]) -> Path:
    """What all of the paths begin with."""
    shared: Path | None = None
    for path in paths:
        if shared is None:
            shared = path
        length = 0
        while length < min(len(shared), len(path)) and shared[length] == path[length]:
            length += 1
        shared = shared[:length]
    return shared or ()


def _inline(paths: list[Path], start: int, stop: int, depth: int) -> None:
    """Removes calls of few values from the paths, in place."""
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
