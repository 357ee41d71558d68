"""Plan: what the propagated stage decided about every value, what an edit changes of it, and how
its values and collectives are folded.

What layers have in common is written once: `blocks_{0..31}/Mlp_0/Dense_0`, 32 times. jax names
the scopes that a program names (`jax.named_scope`, modules, nested jit) and wraps them in what was
done to them: `transpose(jvp(mlp))`. Where a program names none, its functions, or the lines that
call them, are used instead.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any, TypeVar

from shardviz.core.display import Displayed
from shardviz.core.errors import ProgramError
from shardviz.core.format import Fold, bytes_text, fold, plural, shown
from shardviz.core.layout.parse import check_size
from shardviz.core.program.constraints import Constraint
from shardviz.core.program.explanation import (
    Explanation,
    ReplayStep,
    explain_value,
    replay_of,
    values_after,
)
from shardviz.core.program.plan_values import Diagnosis, PlannedOp, Record
from shardviz.core.program.report import Collective

T = TypeVar("T")


@dataclass(frozen=True)
class ValueChange:
    """One value of both plans whose sharding, or the origin of an axis, differs.

    Attributes:
        before, after: the value in each plan.

    >>> from shardviz.core.layout.partition_spec import Spec
    >>> op = PlannedOp("x", "argument", shape=(8,))
    >>> str(ValueChange(op, PlannedOp("x", "argument", shape=(8,), spec=Spec.parse("data"))))
    "x: P() -> P('data')"
    """

    before: PlannedOp
    after: PlannedOp

    @property
    def moved(self) -> bool:
        """Whether the sharding itself changed."""
        return not self.before.spec.equivalent(self.after.spec)

    def __str__(self) -> str:
        name = self.after.name
        if self.moved:
            return f"{name}: {self.before.spec} -> {self.after.spec}"
        old = {a: o for a, o in self.before.origins.items() if self.after.origins.get(a) != o}
        came = [f"{a} came from {o.kind} {o.name}" for a, o in old.items()]
        new = [
            f"{a} comes from {o.kind} {o.name}" for a, o in self.after.origins.items() if a in old
        ]
        return f"{name}: {self.after.spec} as before, but {', '.join(came)}; {', '.join(new)} now"


@dataclass(frozen=True, repr=False)
class PlanDiff(Displayed):
    """What changes from one plan to another.

    Attributes:
        before, after: the plans.
        added, removed: the values that one of them lacks.
        changed: the values whose sharding, or the origin of an axis, changed.
        gained, lost: the collectives that one of them lacks.
        resized: the collectives of another size: before and after.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> plan = Record("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> print(plan_difference(plan, plan))
    Nothing changes.
    """

    before: Record
    after: Record
    added: tuple[PlannedOp, ...] = ()
    removed: tuple[PlannedOp, ...] = ()
    changed: tuple[ValueChange, ...] = ()
    gained: tuple[Collective, ...] = ()
    lost: tuple[Collective, ...] = ()
    resized: tuple[tuple[Collective, Collective], ...] = ()

    @cached_property
    def head(self) -> tuple[str, ...]:
        """What changes in numbers: the mesh, how many collectives and values, the bytes sent."""
        lines = []
        if self.before.mesh != self.after.mesh:
            lines.append(f"Mesh: {self.before.mesh} -> {self.after.mesh}")
        if counts := self._counted():
            lines.append(counts)
        if self.moves:
            before, after = (
                bytes_text(sum(c.sent_in_all for c in plan.collectives))
                for plan in (self.before, self.after)
            )
            lines.append(f"Each device sends {before} before, {after} now.")
        return tuple(lines)

    @cached_property
    def moves(self) -> tuple[str, ...]:
        """The collectives that one side lacks, or has in another size; the largest first."""
        gained, lost = (
            sorted(some, key=lambda c: -c.bytes_in_all) for some in (self.gained, self.lost)
        )
        return (
            *(f"Gained: {c.words}" for c in gained),
            *(f"Lost: {c.words}" for c in lost),
            *(f"Resized: {new.words}, {old.amount} before" for old, new in self.resized),
        )

    @cached_property
    def values(self) -> tuple[str, ...]:
        """The values that changed, are new, or gone; those with another sharding first."""
        return (
            *(str(change) for change in sorted(self.changed, key=lambda c: not c.moved)),
            *(f"New: {_value(op)}" for op in self.added),
            *(f"Gone: {_value(op)}" for op in self.removed),
        )

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The difference, one sentence a line: in numbers, then collectives, then values."""
        for plan, when in ((self.before, "before"), (self.after, "after")):
            if plan.error is not None:
                return (f"There is no plan {when}: {plan.error}",)
        return (*self.head, *self.moves, *self.values) or ("Nothing changes.",)

    def _counted(self) -> str:
        """`3 collectives gained, 1 lost; 12 values changed, 2 new.`, or `""`."""
        kinds = {
            "collective": {"gained": self.gained, "lost": self.lost, "resized": self.resized},
            "value": {"changed": self.changed, "new": self.added, "gone": self.removed},
        }
        sides = []
        for noun, every in kinds.items():
            some = [(word, len(items)) for word, items in every.items() if items]
            if some:
                first = f"{plural(some[0][1], noun)} {some[0][0]}"
                sides.append(", ".join([first, *(f"{count:,} {word}" for word, count in some[1:])]))
        return "; ".join(sides) + "." if sides else ""

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        counts = (
            plural(len(self.changed), "value") + " changed",
            f"{len(self.gained)} collectives gained, {len(self.lost)} lost",
        )
        return f"PlanDiff({self.after.program}: {', '.join(counts)})"


def plan_difference(before: Record, after: Record) -> PlanDiff:
    """What changes from one plan to another.

    Values are matched by their name in jax and their order among those of that name, so that lines
    of the program may move.

    Raises:
        ProgramError: if either is no Plan.
    """
    for plan in (before, after):
        if not isinstance(plan, Record):
            raise ProgramError(
                f"A plan is compared with a plan, made by sv.plan(program); got {shown(plan)}."
            )
    pairs, removed, added = _matched(before.ops, after.ops, _value_key)
    names = {old.name: new.name for old, new in pairs}
    kept, lost, gained = _matched(
        before.collectives,
        after.collectives,
        lambda c: (c.kind, c.mesh_axes, c.op, names.get(c.value, c.value)),
        lambda c: (c.kind, c.mesh_axes, c.op, c.value),
    )
    return PlanDiff(
        before,
        after,
        tuple(added),
        tuple(removed),
        tuple(ValueChange(old, new) for old, new in pairs if _differs(old, new, names)),
        tuple(gained),
        tuple(lost),
        tuple((o, n) for o, n in kept if o.bytes_per_device != n.bytes_per_device),
    )


def _matched(
    old: Sequence[T], new: Sequence[T], key: Any, new_key: Any = None
) -> tuple[list[tuple[T, T]], list[T], list[T]]:
    """What is in both, in order; what only the first has; what only the second has."""
    firsts = [key(item) for item in old]
    seconds = [(new_key or key)(item) for item in new]
    pairs: list[tuple[int, int]] = []
    matcher = SequenceMatcher(None, firsts, seconds, autojunk=False)
    for block in matcher.get_matching_blocks():
        pairs += [(block.a + i, block.b + i) for i in range(block.size)]
    # What changed its position is still the same.
    pairs += _moved(firsts, seconds, pairs)
    lefts, rights = {a for a, _ in pairs}, {b for _, b in pairs}
    return (
        [(old[a], new[b]) for a, b in sorted(pairs)],
        [item for i, item in enumerate(old) if i not in lefts],
        [item for i, item in enumerate(new) if i not in rights],
    )


def _moved(
    firsts: Sequence[Hashable], seconds: Sequence[Hashable], pairs: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    done = list(pairs)
    lefts, rights = {a for a, _ in done}, {b for _, b in done}
    free: dict[Hashable, list[int]] = {}
    for position, name in enumerate(seconds):
        if position not in rights:
            free.setdefault(name, []).append(position)
    return [
        (position, free[name].pop(0))
        for position, name in enumerate(firsts)
        if position not in lefts and free.get(name)
    ]


def _value_key(op: PlannedOp) -> Hashable:
    if op.kind != "op":
        return op.kind, op.name
    _, bracket, index = op.name.partition("[")
    return op.kind, op.opcode, op.op, f"{bracket}{index}", op.region, len(op.shape)


def _differs(old: PlannedOp, new: PlannedOp, names: dict[str, str]) -> bool:
    if not old.spec.equivalent(new.spec):
        return True
    first = {a: (o.kind, names.get(o.name, o.name)) for a, o in old.origins.items()}
    return first != {a: (o.kind, o.name) for a, o in new.origins.items()}


def _value(op: PlannedOp) -> str:
    return f"{op.name}, {op.short}, {op.spec}{f' ({op.source})' if op.source else ''}"


@dataclass(frozen=True, repr=False)
class Plan(Record, Displayed):
    """The propagated stage of a program: every value's sharding, its origin, and an estimate.

    Attributes:
        program, mesh, ops, collectives, error: what a Record holds.
        trace_s, lower_s, propagate_s: seconds of each stage.
        notes: what is not covered, and what was left out.
        diagnosis: for a program that jax refuses on Explicit axes, what it would accept.
        constraints: one Constraint per call in the program that may constrain an array, and array.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.plan_values import PlannedOp
    >>> plan = Plan("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> plan.op("x").shape
    (8,)
    """

    trace_s: float | None = None
    lower_s: float | None = None
    propagate_s: float | None = None
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    constraints: tuple[Constraint, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds in all: trace, lower, propagate."""
        return sum(s or 0.0 for s in (self.trace_s, self.lower_s, self.propagate_s))

    def why(self, value: Any) -> Explanation:
        """Explains one value, step by step: what it requested, and what reached it from where.

        Args:
            value: its name, number, a PlannedOp, or a collective that it causes.

        Raises:
            ProgramError: where the plan has no such value.
        """
        return explain_value(self, self.op(value))

    def replay(self) -> tuple[ReplayStep, ...]:
        """The propagation step by step: which value got which axis on which dimension, and why."""
        return replay_of(self)

    def after(self, step: int) -> Plan:
        """The plan as it stood after a step of the propagation: its pictures and texts show that.

        The collectives are those of the end, so they are left out.

        Args:
            step: the `number` of a ReplayStep; -1 for what was requested, before the first.

        Raises:
            ProgramError: for anything but a whole number, or where there is no plan.
        """
        number = check_size(step, "A step of the propagation", ProgramError)
        if self.error is not None:
            raise ProgramError(f"There is no plan of {self.program}, so it has no steps.")
        when = f"it stood after step {number}" if number >= 0 else "it was requested"
        note = f"As {when}, without collectives: these are those of the end."
        return replace(
            self, ops=values_after(self, number), collectives=(), notes=(note, *self.notes)
        )

    def diff(self, other: Plan) -> PlanDiff:
        """What changes from this plan to another, such as the one after an edit.

        Raises:
            ProgramError: if `other` is no Plan.
        """
        return plan_difference(self, other)

    def __repr__(self) -> str:
        if self.error:
            return f"Plan({self.program}: {self.error})"
        found = plural(len(self.collectives), "collective")
        values = plural(len(self.ops), "value")
        return f"Plan({self.program} on {self.mesh}: {values}, {found} estimated)"


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
    same = (c.kind, c.over, c.bytes_per_device, c.shape, c.trips, c.source, c.phase)
    return (*same, c.is_async, c.rematerialises, len(c.members))


def fold_line(one: Fold[Collective]) -> str:
    """Alike collectives in one line: `32 × 512 MiB all-reduce over model · mlp.py:3 · mlp/dot`.

    >>> one, = fold_collectives([Collective("all-gather", ("x",), 64, f"f/h_{n}") for n in (0, 1)])
    >>> fold_line(one)
    '2 × 64 B all-gather over x · h_{0..1}'
    """
    first = one.items[0]
    over = first.over
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
    return (*same, op.region, op.note, op.uncertain)


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
