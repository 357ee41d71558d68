"""A value of a plan while its module is read: what is known so far, with numbers for names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from shardviz.core.backend.shardy.mlir_text import NOWHERE, Edge, SourceLocation
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_values import Origin, PlannedOp, Step, parent_axis

# Operations that jax adds around the one it was asked for, by the names it would ask for them.
_HELPERS = {
    "constant": {"constant"},
    "broadcast_in_dim": {"broadcast_in_dim", "broadcast", "zeros", "full", "empty2"},
    "convert": {"convert_element_type"},
    "reshape": {"reshape", "squeeze", "expand_dims"},
    "sharding_constraint": {"sharding_constraint", "reshard"},
    "reshard": {"reshard"},
    "iota": {"iota"},
    "optimization_barrier": {"optimization_barrier"},
    "transpose": {"transpose"},
    "slice": {"slice", "split", "dynamic_slice"},
}

_CALL = re.compile(r"\w+\(.*\)")


@dataclass(frozen=True)
class BlockContext:
    """Where the operations of a block stand.

    Attributes:
        call: the call that led here, for what its function says of itself.
        scope: the functions around, calls counted.
        region: as PlannedOp has it.
        looped: whether it stands in a loop.
        trips: how often it runs; None where a loop around it is of unknown length.
        note: what holds for everything in here.
        manual: whether it stands in a `shard_map`.
    """

    call: SourceLocation = NOWHERE
    scope: tuple[str, ...] = ()
    region: str = ""
    looped: bool = False
    trips: int | None = 1
    note: str = ""
    manual: bool = False


@dataclass
class ValueBuilder:
    """A PlannedOp in the making.

    Attributes:
        op: what is known of it.
        origins: mesh axis to the name that Shardy gives its origin.
        crossed: the steps that crossed its operation: with the names of the values at both ends.
    """

    op: PlannedOp
    origins: dict[str, str] = field(default_factory=dict)
    crossed: tuple[Step, ...] = ()


class Names:
    """Gives every value a name of its own.

    >>> names = Names(["x"])
    >>> names.take("x"), names.take("dot"), names.take("dot")
    ('x_1', 'dot', 'dot_1')
    """

    def __init__(self, reserved: Iterable[str]) -> None:
        self._taken = set(reserved)
        self._next: dict[str, int] = {}

    def take(self, base: str, count: int = 1) -> str:
        """A name like `base` that is still free, for an operation with `count` results."""
        number = self._next.get(base, 0)
        while self._used(name := f"{base}_{number}" if number else base, count):
            number += 1
        self._next[base] = number + 1
        self._taken.add(name)
        return name

    def _used(self, name: str, count: int) -> bool:
        return name in self._taken or (count > 1 and f"{name}[0]" in self._taken)


@lru_cache(maxsize=4096)
def base_name(path: str, opcode: str) -> str:
    """What jax calls an operation; where it is only a helper of that, what StableHLO calls it.

    >>> base_name("jit(f)/jit(relu)/max", "maximum"), base_name("jit(f)/max", "broadcast_in_dim")
    ('max', 'broadcast_in_dim')
    """
    last = path.rsplit("/", 1)[-1].rstrip(":")  # jax's callbacks end with a colon
    if not last or _CALL.fullmatch(last):
        return opcode
    known = _HELPERS.get(opcode)
    return opcode if known is not None and last not in known else last


def step_of(edge: Edge, op: str, ends: Mapping[tuple[str, int], str]) -> Step | None:
    """An edge with names for numbers; None where it led from a value to itself."""
    origin = ends.get(edge.origin, "")
    to = tuple(dict.fromkeys([n for e in edge.to if (n := ends.get(e, "")) and n != origin]))
    return Step(edge.number, edge.axis, op, origin, to) if origin and to else None


@dataclass(frozen=True)
class Followed:
    """What is needed to follow an axis back.

    Attributes:
        ops: the values by name.
        brought: value and axis to the step that brought it.
        tied: the name of a value to those that are split alike, because they were asked to be.
    """

    ops: Mapping[str, PlannedOp]
    brought: Mapping[tuple[str, str], Step]
    tied: Mapping[str, Sequence[str]]


def finished(
    drafts: list[ValueBuilder],
    known: dict[str, Origin],
    tied: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[PlannedOp, ...]:
    """The values, with the origin of every axis and the step that brought the last.

    Args:
        drafts: in program order.
        known: the names that Shardy gives to origins, and what they are.
        tied: the name of a value to those that are split alike.
    """
    brought: dict[tuple[str, str], Step] = {}
    followed = Followed({draft.op.name: draft.op for draft in drafts}, brought, tied)
    for draft in drafts:
        for step in draft.crossed:
            for name in step.to:
                brought.setdefault((name, step.axis), step)
    made = []
    for draft in drafts:
        axes = all_axes(draft.op.spec)
        origins = {a: o for a in axes if (o := _origin(a, draft, known)) is not None}
        for axis in axes if len(origins) < len(axes) else ():
            if axis not in origins and (o := _followed(axis, draft.op.name, followed)):
                origins[axis] = o
        numbers = [n for a in axes if (n := _number(draft.op.name, a, brought)) is not None]
        steps = {"steps": draft.crossed, "step": max(numbers, default=None)}
        made.append(PlannedOp.trusted({**draft.op.__dict__, "origins": origins, **steps}))
    return tuple(made)


def all_axes(spec: Spec) -> tuple[str, ...]:
    """The axes of a spec, those over which it is not summed yet included."""
    return (*spec.axes, *sorted(spec.unreduced))


def _origin(axis: str, draft: ValueBuilder, known: dict[str, Origin]) -> Origin | None:
    whole = parent_axis(axis)
    name = draft.origins.get(axis) or draft.origins.get(whole)
    if name is None:  # a part of an axis may come from another part of it
        name = next((n for a, n in draft.origins.items() if parent_axis(a) == whole), None)
    if name is None:
        return None
    found = known.get(f"{draft.op.name}: self" if name == "self" else name)
    return None if found is None else _of_axis(axis, found)


def _followed(axis: str, name: str, known: Followed) -> Origin | None:
    """The origin of an axis of which Shardy does not tell: where its steps began."""
    seen = set[str]()
    while name not in seen and name in known.ops:
        seen.add(name)
        op = known.ops[name]
        if (step := _arrival(name, axis, known.brought)) is not None:
            name = step.origin
        elif op.kind in ("argument", "result"):
            return Origin(axis, op.kind, name) if axis in all_axes(op.spec) else None
        elif op.opcode == "sharding_constraint":
            return Origin(axis, "constraint", (*op.operands, name)[0], op.source)
        else:
            tied = (n for n in known.tied.get(name, ()) if n not in seen)
            name = next((n for n in tied if axis in all_axes(known.ops[n].spec)), name)
    return None


@lru_cache(maxsize=4096)
def _of_axis(axis: str, found: Origin) -> Origin:
    return Origin(axis, found.kind, found.name, found.source)


def _number(name: str, axis: str, brought: Mapping[tuple[str, str], Step]) -> int | None:
    step = _arrival(name, axis, brought)
    return None if step is None else step.number


def _arrival(name: str, axis: str, brought: Mapping[tuple[str, str], Step]) -> Step | None:
    return brought.get((name, axis)) or brought.get((name, parent_axis(axis)))


@lru_cache(maxsize=4096)
def _whole(rank: int) -> Spec:
    return Spec.trusted(((),) * rank)


def not_split(shape: Sequence[int]) -> Spec:
    """The spec of an array that nothing splits."""
    return _whole(len(shape))


def ends_of(operands: Sequence[str], results: Sequence[str]) -> dict[tuple[str, int], str]:
    """What the ends of an edge mean: names, by kind and number."""
    ends = {("operand", n): name for n, name in enumerate(operands)}
    return ends | {("result", n): name for n, name in enumerate(results)}


def scope_of(where: BlockContext, path: str) -> tuple[str, ...]:
    """The functions around an operation: those of its call, and what its own name adds."""
    outer = where.call.op
    rest = path[len(outer) :].strip("/") if outer and path.startswith(outer) else path
    return (*where.scope, *rest.split("/")[:-1])
