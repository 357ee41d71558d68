"""Builds the values of a plan while a module is read: names, shapes, shardings, origins."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from shardviz.core.backend.shardy import pipeline
from shardviz.core.backend.shardy.attributes import (
    NOWHERE,
    AttributeCache,
    Call,
    Edge,
    SourceLocation,
    parse_origins,
)
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_values import Origin, PlannedOp, Step, parent_axis

# Operations that jax also adds around others, with the names of the functions that mean them.
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
    """What holds for all operations of a block.

    Attributes:
        call: the location of the call that led here.
        calls: the calls around, outermost first, that were inlined.
        scope: the functions around, repeated calls numbered.
        region: as PlannedOp has it.
        looped: whether a loop is around it.
        trips: how often it runs; None where a loop around it is of unknown length.
        note: the note of every operation in it.
        manual: whether a `shard_map` is around it.
    """

    call: SourceLocation = NOWHERE
    calls: tuple[Call, ...] = ()
    scope: tuple[str, ...] = ()
    region: str = ""
    looped: bool = False
    trips: int | None = 1
    note: str = ""
    manual: bool = False

    def scope_of(self, path: str) -> tuple[str, ...]:
        """The functions around an operation, given its name in jax."""
        outer = self.call.op
        rest = path[len(outer) :].lstrip("/") if outer and path.startswith(outer) else path
        return (*self.scope, *rest.split("/")[:-1])


@dataclass
class ValueBuilder:
    """A PlannedOp that is not finished.

    Attributes:
        op: what is known of it.
        origin_names: mesh axis to the name that Shardy gives its origin.
        steps: the steps that crossed its operation.
    """

    op: PlannedOp
    origin_names: dict[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()

    def add_note(self, note: str) -> None:
        """Adds a sentence to the note of the value, where there is one."""
        if note:
            notes = " ".join(filter(None, (self.op.note, note)))
            self.op = PlannedOp.trusted({**self.op.__dict__, "note": notes})


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


class PlanBuilder(ABC):
    """Collects the values of a plan; a subclass reads the operations.

    Args:
        reserved: names that no operation may get.
        attributes: the cache of the module's attributes.

    Attributes:
        attributes: the same.
        groups: number of a group of `shard_alike` to the names of its values.
    """

    def __init__(self, reserved: Iterable[str], attributes: AttributeCache) -> None:
        self.attributes = attributes
        self.groups: dict[str, list[str]] = {}
        self._names = Names(reserved)
        self._by_value: dict[Any, str] = {}
        self._builders: list[ValueBuilder] = []
        self._by_name: dict[str, ValueBuilder] = {}
        self._origins: dict[str, Origin] = {}

    @abstractmethod
    def block(self, block: Any, context: BlockContext) -> tuple[str, ...]:
        """Reads the operations of a block; the names of what it returns."""

    def named(self, values: Any) -> tuple[str, ...]:
        """The names of some values."""
        return tuple([self._by_value.get(v, "") for v in values])

    def alias(self, values: Any, names: Sequence[str]) -> None:
        """Gives MLIR values the names of values of the plan."""
        self._by_value.update(zip(values, names, strict=False))

    def value(self, name: str) -> PlannedOp | None:
        """A value that was read already."""
        return self._by_name[name].op if name in self._by_name else None

    def cross(
        self, value: ValueBuilder, edges: Sequence[Edge], ends: Mapping[tuple[str, int], str]
    ) -> None:
        """Gives a value the steps that crossed its operation.

        Args:
            value: the value.
            edges: the steps, by numbers.
            ends: what these numbers mean: names, as `names_of_ends` gives them.
        """
        steps = [_step(edge, value.op.name, ends) for edge in edges]
        value.steps += tuple([s for s in steps if s is not None])

    def origin(self, key: str, kind: str, name: str, source: str = "") -> None:
        """Records what Shardy means by the name of an origin."""
        self._origins[key] = Origin("", kind, name, source)

    def add(
        self, op: Any, context: BlockContext, specs: Sequence[Spec], **fields: Any
    ) -> list[ValueBuilder]:
        """A value for each result of an operation.

        Args:
            op: the operation.
            context: its block.
            specs: the shardings of its results.
            fields: what it has of PlannedOp's fields beside those that every operation has.
        """
        location = context.call.inner(self.attributes.location(op))
        opcode = fields.pop("opcode", None) or pipeline.name_of(op)
        results = list(op.results)
        name = self._names.take(base_name(location.op, opcode), len(results))
        operands = fields.pop("operands", None)
        shared = {
            "kind": "op",
            "opcode": opcode,
            "op": location.op,
            "source": location.source,
            "stack": location.stack,
            "calls": location.calls,
            "operands": self.named(op.operands) if operands is None else operands,
            "scope": context.scope_of(location.op),
            "region": context.region,
            "manual": context.manual,
            "trips": context.trips if context.looped else None,
            "backward": "transpose(" in location.op,
            "note": context.note,
            **fields,
        }
        origins = self._origin_names(op)
        added = []
        for number, value in enumerate(results):
            own = name if len(results) == 1 else f"{name}[{number}]"
            shape, dtype = self.attributes.tensor(value) or ((), "token")
            spec = specs[number] if number < len(specs) else Spec()
            spec = spec if spec.dims or spec.unreduced else not_split(shape)
            shared |= {"name": own, "shape": shape, "dtype": dtype, "spec": spec}
            names = origins[number] if number < len(origins) else {}
            added.append(self.keep(ValueBuilder(PlannedOp.trusted(shared), names), value))
        return added

    def keep(self, builder: ValueBuilder, value: Any = None) -> ValueBuilder:
        """Adds a value of the plan, and the MLIR value that it is, if there is one."""
        self._builders.append(builder)
        self._by_name[builder.op.name] = builder
        if value is not None:
            self._by_value[value] = builder.op.name
        return builder

    def finish(self, alike: Mapping[str, Sequence[str]]) -> tuple[PlannedOp, ...]:
        """The values in program order, with the origin of every axis and the last step.

        Args:
            alike: the name of a value to those that `shard_alike` splits as it.
        """
        arrivals: dict[tuple[str, str], Step] = {}
        for builder in self._builders:
            for step in builder.steps:
                for name in step.to:
                    arrivals.setdefault((name, step.axis), step)
        search = _OriginSearch({b.op.name: b.op for b in self._builders}, arrivals, alike)
        finished = []
        for builder in self._builders:
            op, axes = builder.op, all_axes(builder.op.spec)
            origins = {a: o for a in axes if (o := self._origin_of(a, builder)) is not None}
            for axis in axes if len(origins) < len(axes) else ():
                if axis not in origins and (found := search.origin(axis, op.name)):
                    origins[axis] = found
            steps = [s for a in axes if (s := _arrival(op.name, a, arrivals)) is not None]
            last = max((s.number for s in steps), default=None)
            fields = {"origins": origins, "steps": builder.steps, "step": last}
            finished.append(PlannedOp.trusted({**op.__dict__, **fields}))
        return tuple(finished)

    def _origin_names(self, op: Any) -> tuple[dict[str, str], ...]:
        for name in ("sdy.sharding_origins", "sdy.result_sharding_origins"):
            if text := self.attributes.text(op, name):
                return parse_origins(text)
        return ()

    def _origin_of(self, axis: str, builder: ValueBuilder) -> Origin | None:
        """The origin of an axis by the name that Shardy gives it, or None."""
        parent, names = parent_axis(axis), builder.origin_names
        name = names.get(axis) or names.get(parent)
        if name is None:  # a part of an axis may come from another part of it
            name = next((n for a, n in names.items() if parent_axis(a) == parent), None)
        if name is None:
            return None
        found = self._origins.get(f"{builder.op.name}: self" if name == "self" else name)
        return None if found is None else _of_axis(axis, found)


@dataclass(frozen=True)
class _OriginSearch:
    """Finds the origins that Shardy does not name, by the steps of the propagation.

    Attributes:
        ops: the values by name.
        arrivals: value and axis to the step that brought it.
        alike: the name of a value to those that `shard_alike` splits as it.
    """

    ops: Mapping[str, PlannedOp]
    arrivals: Mapping[tuple[str, str], Step]
    alike: Mapping[str, Sequence[str]]

    def origin(self, axis: str, name: str) -> Origin | None:
        """The origin of an axis of a value, or None where the steps lead nowhere."""
        seen = set[str]()
        while name not in seen and name in self.ops:
            seen.add(name)
            op = self.ops[name]
            if (step := _arrival(name, axis, self.arrivals)) is not None:
                name = step.origin
            elif op.kind in ("argument", "result"):
                return Origin(axis, op.kind, name) if axis in all_axes(op.spec) else None
            elif op.opcode == "sharding_constraint":
                return Origin(axis, "constraint", (*op.operands, name)[0], op.source)
            else:
                alike = (n for n in self.alike.get(name, ()) if n not in seen)
                name = next((n for n in alike if axis in all_axes(self.ops[n].spec)), name)
        return None


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


def all_axes(spec: Spec) -> tuple[str, ...]:
    """The axes of a spec, those over which it is not summed yet included."""
    return (*spec.axes, *sorted(spec.unreduced))


def not_split(shape: Sequence[int]) -> Spec:
    """The spec of an array that nothing splits."""
    return _not_split(len(shape))


@lru_cache(maxsize=4096)
def _not_split(rank: int) -> Spec:
    return Spec.trusted(((),) * rank)


def names_of_ends(operands: Sequence[str], results: Sequence[str]) -> dict[tuple[str, int], str]:
    """The names of an operation's operands and results, by kind and number as in an Edge."""
    ends = {("operand", n): name for n, name in enumerate(operands)}
    return ends | {("result", n): name for n, name in enumerate(results)}


def _step(edge: Edge, op: str, ends: Mapping[tuple[str, int], str]) -> Step | None:
    """An edge by names; None where it leads from a value to itself."""
    origin = ends.get(edge.source, "")
    to = tuple(dict.fromkeys([n for e in edge.targets if (n := ends.get(e, "")) and n != origin]))
    return Step.trusted(edge.number, edge.axis, op, origin, to) if origin and to else None


@lru_cache(maxsize=4096)
def _of_axis(axis: str, found: Origin) -> Origin:
    return Origin(axis, found.kind, found.name, found.source)


def _arrival(name: str, axis: str, arrivals: Mapping[tuple[str, str], Step]) -> Step | None:
    return arrivals.get((name, axis)) or arrivals.get((name, parent_axis(axis)))
