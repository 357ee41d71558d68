"""PlanBuilder: collects the values of a plan while PlanReader reads a module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from jaxlib.mlir import ir

from shardviz.base.axis_parts import parent_axis
from shardviz.base.partition_spec import Spec
from shardviz.plans.backend import pipeline
from shardviz.plans.backend.attributes import (
    NOWHERE,
    AttributeCache,
    Call,
    Edge,
    SourceLocation,
    parse_origins,
)
from shardviz.plans.backend.mlir_names import (
    ORIGINS,
    RESULT_ORIGINS,
)
from shardviz.plans.plan_notes import PlanNote
from shardviz.plans.plan_values import Origin, PlannedOp, Step, arrival

# Operation that jax also adds as a helper -> jax functions that use it explicitly.
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
#: Attribute with the number of an operation that was read.
NUMBER = "shardviz.number"


@dataclass(frozen=True)
class BlockContext:
    """The properties that all operations of a block share.

    Attributes:
        call: the location of the call whose callee contains the block.
        calls: the enclosing inlined calls, outermost first.
        scope: the enclosing functions, with repeated calls numbered.
        region: the kind of block, as in PlannedOp.
        looped: whether the block is inside a loop.
        trips: how often the block runs; None if an enclosing loop has unknown length.
        notes: notes for every operation in the block.
        manual: whether the block is inside a `shard_map`.
    """

    call: SourceLocation = NOWHERE
    calls: tuple[Call, ...] = ()
    scope: tuple[str, ...] = ()
    region: str = ""
    looped: bool = False
    trips: int | None = 1
    notes: tuple[PlanNote, ...] = ()
    manual: bool = False

    def scope_of(self, path: str) -> tuple[str, ...]:
        """The functions around an operation, given jax's name of the operation."""
        inner_path, outer = path, self.call.op
        if outer and path.startswith(outer):
            inner_path = path[len(outer) :].lstrip("/")
        return (*self.scope, *inner_path.split("/")[:-1])


_TOP_LEVEL = BlockContext()


@dataclass(frozen=True)
class Place:
    """The properties that all operations of a block with the same MLIR location share.

    Layers that a program repeats have the same locations.

    Attributes:
        location: the location of the operations, relative to `main`.
        context: the context of their block.
        fields: the fields of PlannedOp that depend on the location and the context.
    """

    location: SourceLocation
    context: BlockContext
    fields: Mapping[str, Any]

    @staticmethod
    def of(location: SourceLocation, context: BlockContext) -> Place:
        """The place of operations in a block, with their fields."""
        fields = {
            "kind": "op",
            "op": location.op,
            "source": location.source,
            "stack": location.stack,
            "calls": location.calls,
            "scope": context.scope_of(location.op),
            "region": context.region,
            "manual": context.manual,
            "trips": context.trips if context.looped else None,
            "backward": "transpose(" in location.op,
            "notes": context.notes,
        }
        return Place(location, context, fields)


@dataclass
class ValueBuilder:
    """A PlannedOp under construction.

    Attributes:
        op: the fields so far; `PlanBuilder.finish` adds the last ones.
        origin_names: mesh axis -> Shardy's name of the axis origin.
        steps: the propagation steps that crossed the operation.
    """

    op: PlannedOp
    origin_names: dict[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()


@dataclass
class ReadOp:
    """The results of reading one operation.

    Attributes:
        place: the location of the operation, and the context of its block.
        results: the names of the operation's results.
        arguments: the argument names of the operation's own blocks, if any.
        inside: the context of the operation's own blocks.
    """

    place: Place
    results: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    inside: BlockContext = _TOP_LEVEL

    @property
    def location(self) -> SourceLocation:
        """The location of the operation, relative to `main`."""
        return self.place.location

    @property
    def context(self) -> BlockContext:
        """The context of the enclosing block."""
        return self.place.context


class PlanBuilder:
    """Collects the values of a plan; PlanReader reads the operations.

    Args:
        reserved: names that no operation may get.
        attributes: the cache of the module's attributes.

    Attributes:
        attributes: the cache of the module's attributes.
        read_ops: the ReadOps of all operations; the index is the operation's number.
    """

    def __init__(self, reserved: Iterable[str], attributes: AttributeCache) -> None:
        self.attributes = attributes
        self.read_ops: list[ReadOp] = []
        # Several results of an operation are named name[0], name[1]. Arguments may have
        # such names too.
        self._taken = {name.partition("[")[0] for name in reserved} | {*reserved}
        self._next: dict[str, int] = {}
        self._by_value: dict[Any, str] = {}
        self._by_name: dict[str, ValueBuilder] = {}  # in program order
        self._origins: dict[str, Origin] = {}
        self._origins_of_axes: dict[tuple[str, str | None], Origin] = {}
        # Shardy's name of an origin -> the only axes that it asks for.
        self._axes_of_origins: dict[str, frozenset[str]] = {}
        self._number_type: Any = None

    def place(self, op: ir.Operation, context: BlockContext) -> Place:
        """The place of an operation in a block with this context."""
        return Place.of(context.call.inner(self.attributes.location(op)), context)

    def number(self, op: ir.Operation, place: Place) -> ReadOp:
        """Creates a ReadOp, and stores its number as an attribute that copies keep."""
        if self._number_type is None:
            self._number_type = ir.IntegerType.get_signless(64)
        number = ir.IntegerAttr.get(self._number_type, len(self.read_ops))
        op.attributes[NUMBER] = number
        read = ReadOp(place)
        self.read_ops.append(read)
        return read

    def named(self, values: Iterable[ir.Value]) -> tuple[str, ...]:
        """The plan's names of MLIR values; `""` if unknown."""
        name_of = self._by_value.get
        return tuple([name_of(value, "") for value in values])

    def alias(self, values: Iterable[ir.Value], names: Sequence[str]) -> None:
        """Maps MLIR values to names of existing values of the plan."""
        self._by_value.update(zip(values, names, strict=False))

    def value(self, name: str) -> PlannedOp | None:
        """The value with this name, if it was read already."""
        if name not in self._by_name:
            return None
        return self._by_name[name].op

    def cross(
        self,
        value: ValueBuilder,
        edges: Sequence[Edge],
        operands: Sequence[str],
        results: Sequence[str],
    ) -> None:
        """Adds the propagation steps across an operation to one of its values."""
        if not edges:
            return
        ends = {f"operand-{number}": name for number, name in enumerate(operands)}
        for number, name in enumerate(results):
            ends[f"result-{number}"] = name
        steps = []
        for edge in edges:
            origin = ends.get(edge.source, "")
            # Operands and results can be the same value; skip steps from it to itself.
            to: dict[str, None] = {}
            for target in edge.targets:
                name = ends.get(target, "")
                if name not in ("", origin):
                    to[name] = None
            if origin and to:
                name = value.op.name
                steps.append(Step(edge.number, edge.axis, name, origin, tuple(to)))
        value.steps += tuple(steps)

    def origin(
        self,
        key: str,
        kind: str,
        name: str,
        source: str = "",
        over: tuple[str, ...] | None = None,
    ) -> None:
        """Records the meaning of Shardy's name for an origin.

        If the origin asks only for the axes in `over`, other axes came from elsewhere,
        although Shardy names this origin.
        """
        self._origins[key] = Origin("", kind, name, source)
        if over is not None:
            self._axes_of_origins[key] = frozenset(over)

    def take(self, base: str) -> str:
        """Reserves and returns an unused name: `base`, or `base_1` and so on."""
        number = self._next.get(base, 0)
        while True:
            name = f"{base}_{number}" if number else base
            number += 1
            if name not in self._taken:
                break
        self._next[base] = number
        self._taken.add(name)
        return name

    def add(
        self,
        op: ir.Operation,
        read: ReadOp,
        specs: Sequence[Spec],
        operands: tuple[str, ...],
        **fields: Any,
    ) -> list[ValueBuilder]:
        """Adds a value for each result of an operation.

        Args:
            op: the operation.
            read: the ReadOp of the operation.
            specs: the shardings of the results.
            operands: the names of the operands.
            fields: further fields of PlannedOp, which override the defaults here.
        """
        opcode = fields.get("opcode") or pipeline.name_of(op)
        shared = {**read.place.fields, "opcode": opcode, "operands": operands, **fields}
        name, results = self.take(base_name(shared["op"], opcode)), list(op.results)
        text = self.attributes.text(op, ORIGINS)
        origins = parse_origins(text or self.attributes.text(op, RESULT_ORIGINS))
        tensor_of = self.attributes.tensor_of
        added, result_names = [], []
        for number, value in enumerate(results):
            shape, dtype = tensor_of(value.type) or ((), "token")
            spec, names = None, {}
            if number < len(specs):
                spec = specs[number]
            # If no axis splits a value, Shardy writes an empty spec, or none.
            if spec is None or not (spec.dims or spec.unreduced):
                spec = not_split(shape)
            if number < len(origins):
                names = origins[number]
            shared["name"] = f"{name}[{number}]" if len(results) > 1 else name
            shared["shape"], shared["dtype"], shared["spec"] = shape, dtype, spec
            builder = ValueBuilder(PlannedOp.trusted(shared), names)
            added.append(self.keep(builder, value))
            result_names.append(shared["name"])
        read.results = tuple(result_names)
        return added

    def keep(self, builder: ValueBuilder, value: Any = None) -> ValueBuilder:
        """Adds a value to the plan, and maps the MLIR value to it, if there is one."""
        self._by_name[builder.op.name] = builder
        if value is not None:
            self._by_value[value] = builder.op.name
        return builder

    def finish(self) -> tuple[PlannedOp, ...]:
        """Returns the values in program order, with axis origins and last steps."""
        arrivals: dict[tuple[str, str], Step] = {}
        for builder in self._by_name.values():
            for step in builder.steps:
                for name in step.to:
                    arrivals.setdefault((name, step.axis), step)
        finished = []
        for builder in self._by_name.values():
            op, last, without_name = builder.op, None, []
            origins: dict[str, Origin] = {}
            for axis in all_axes(op.spec):
                step = arrival(arrivals, op.name, axis)
                if step is not None and (last is None or step.number > last):
                    last = step.number
                origin = self._named_origin(axis, builder)
                if origin is None:
                    without_name.append(axis)
                else:
                    origins[axis] = origin
            # Origins named by Shardy come first, then those derived from the steps.
            for axis in without_name:
                origin = self._origin_by_steps(axis, op.name, arrivals)
                if origin is not None:
                    origins[axis] = origin
            # In place: nobody else has these values yet, and a program has thousands.
            vars(op).update(origins=origins, steps=builder.steps, step=last)
            finished.append(op)
        return tuple(finished)

    def _named_origin(self, axis: str, builder: ValueBuilder) -> Origin | None:
        """The origin of an axis according to Shardy's name of the origin, or None."""
        names = builder.origin_names
        name = names.get(axis)
        if name is None:  # sub-axes of an axis can share an origin
            parent = parent_axis(axis)
            for named_axis, origin in names.items():
                if parent_axis(named_axis) == parent:
                    name = origin
                    break
        if name == "self":
            name = f"{builder.op.name}: self"
        asked = self._axes_of_origins.get(name or "")
        if asked is not None and parent_axis(axis) not in asked:
            return None
        if (axis, name) not in self._origins_of_axes:
            origin = self._origins.get(name or "")
            if origin is None:
                return None
            self._origins_of_axes[axis, name] = replace(origin, axis=axis)
        return self._origins_of_axes[axis, name]

    def _origin_by_steps(
        self, axis: str, name: str, arrivals: Mapping[tuple[str, str], Step]
    ) -> Origin | None:
        """The origin of an axis, found by following steps backwards, or None."""
        visited = set[str]()
        while name not in visited and name in self._by_name:
            visited.add(name)
            op = self._by_name[name].op
            step = arrival(arrivals, name, axis)
            if step is not None:
                name = step.origin
            elif op.kind in ("argument", "result"):
                if axis not in all_axes(op.spec):
                    return None
                return Origin(axis, op.kind, name)
            elif op.opcode == "sharding_constraint":
                return Origin(axis, "constraint", (*op.operands, name)[0], op.source)
        return None


@lru_cache(maxsize=4096)
def base_name(path: str, opcode: str) -> str:
    """Names a value after its operation, in jax's words or, for helpers, StableHLO's.

    >>> base_name("jit(f)/jit(relu)/max", "maximum")
    'max'
    >>> base_name("jit(f)/max", "broadcast_in_dim")
    'broadcast_in_dim'
    """
    last = path.rsplit("/", 1)[-1].rstrip(":")  # jax's callbacks end with a colon
    if not last or _CALL.fullmatch(last):
        return opcode
    if last not in _HELPERS.get(opcode, (last,)):
        return opcode
    return last


def all_axes(spec: Spec) -> tuple[str, ...]:
    """The axes of a spec, including unreduced axes."""
    return (*spec.axes, *sorted(spec.unreduced))


@lru_cache(maxsize=4096)
def not_split(shape: tuple[int, ...]) -> Spec:
    """The spec of an unsplit array of this shape."""
    return Spec.trusted(((),) * len(shape))
