"""Reads a propagated module into the values of a plan, in one traversal.

The arguments of a loop body get the names of the loop's results, because Shardy always
gives both the same sharding. In a plan, the results of a loop, of branches and of a
`shard_map` come before the operations inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardviz.base.axis_parts import parent_axis
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.plans.backend import pipeline
from shardviz.plans.backend.attributes import (
    AttributeCache,
    Call,
    SourceLocation,
    named_attribute,
    open_dims,
    parse_axes,
    parse_edge_lists,
    parse_edges,
    parse_origins,
    value_of,
)
from shardviz.plans.backend.before_propagation import (
    OPEN,
    READ_BY_LOOP,
    WRITTEN,
    callee,
    functions_of,
)
from shardviz.plans.backend.builder import (
    BlockContext,
    Place,
    PlanBuilder,
    ReadOp,
    ValueBuilder,
    all_axes,
    not_split,
)
from shardviz.plans.backend.mlir_names import (
    ARGUMENT_ATTRIBUTES,
    ASKED_SHARDING,
    CALL_TARGET,
    CASE,
    CONSTRAINT,
    EDGES,
    FUNCTION_CALL,
    FUNCTION_RETURN,
    IF,
    MANUAL_AXES,
    MANUAL_COMPUTATION,
    OPTIMIZATION_BARRIER,
    ORIGIN_NAME,
    ORIGINS,
    OUT_SHARDINGS,
    RESHARD,
    RESULT_ATTRIBUTES,
    RESULT_EDGES,
    RESULT_ORIGINS,
    SHARDY_RETURN,
    STABLEHLO_RETURN,
    WHILE,
)
from shardviz.plans.backend.trip_counts import trip_count
from shardviz.plans.plan_notes import (
    InsideShardMap,
    IsShardMap,
    NoBody,
    NoShardingRule,
    OpaqueCall,
    PlanNote,
    PythonCall,
    ReplacedCall,
)
from shardviz.plans.plan_values import PlannedOp, ShardingRule

T = TypeVar("T")

_SUMS = {"dot_general", "convolution", "dot"}
#: Target of the custom call for `jax.lax.ragged_all_to_all`.
RAGGED = "ragged_all_to_all"
#: Targets of custom calls that XLA replaces by operations, such as sorts. XLA's compiler
#: for TPUs does so for matrix decompositions.
REPLACED_CALLS = frozenset({
    "ApproxTopK", "Eigh", "LuDecomposition", "ProductOfElementaryHouseholderReflectors",
    "Qr",
})  # fmt: skip
_RETURNS = {FUNCTION_RETURN, STABLEHLO_RETURN, SHARDY_RETURN}


class PlanReader(PlanBuilder):
    """Reads one propagated module into the values of a plan.

    Args:
        module: the module that `pipeline.propagate` returned, with a copy of each
            function for each call.
        lowered: the module before propagation.
        arguments: argument names of the lowered program, in order.
        results: result names of the program, in order.
        mesh: the mesh.
        attributes: the cache of the module's attributes.
    """

    def __init__(
        self,
        module: Any,
        lowered: Any,
        arguments: Sequence[str],
        results: Sequence[str],
        mesh: MeshSpec,
        attributes: AttributeCache,
    ) -> None:
        super().__init__([*arguments, *results], attributes)
        self.mesh = mesh
        self._lowered_main = functions_of(lowered.operation)["main"]
        #: Value name -> constraint spec, for constraints with axes of size 1.
        self.written: dict[str, Spec] = {}
        self._arguments, self._results = arguments, results
        self._functions = functions_of(module)
        # Scope -> call number -> index of the call among those of this scope, from 1.
        self._numbers: dict[tuple[str, ...], dict[int, int]] = {}

    def read(self) -> tuple[PlannedOp, ...]:
        """Returns the values of the module: arguments, operations in order, results."""
        main, context = self._functions["main"], BlockContext()
        self._read_arguments(main)
        block = main.regions[0].blocks[0]
        read = self.number(main, self.place(main, context))
        read.arguments = self.named(block.arguments)
        self._read_results(main, self._block(block, context))
        return self.finish()

    def _block(self, block: ir.Block, context: BlockContext) -> tuple[str, ...]:
        """Reads the operations of a block; returns the names of the returned values."""
        contexts = {context.calls: context}
        places: dict[Any, Place] = {}
        for item in block.operations:
            op = item.operation
            name = op.name
            operands = self.named(op.operands)
            if name in _RETURNS:
                return operands
            location = op.location.attr
            place = places.get(location)
            if place is None:
                calls = self.attributes.calls(op)
                if calls not in contexts:
                    contexts[calls] = self._in_calls(context, calls)
                place = places[location] = self.place(op, contexts[calls])
            read = self.number(op, place)
            _HANDLERS.get(name, PlanReader._read_op)(self, op, read, operands)
            if not read.results:
                read.results = self.named(op.results)
        return ()

    def _in_calls(self, context: BlockContext, calls: tuple[Call, ...]) -> BlockContext:
        """The context of operations that were inlined into a block by these calls."""
        for call in calls[len(context.calls) :]:
            inside = self._in_call(context, call.number, call.location)
            context = replace(inside, calls=(*context.calls, call))
        return context

    def _in_call(
        self, context: BlockContext, number: int, location: SourceLocation
    ) -> BlockContext:
        location = context.call.inner(location)
        scope = (*context.scope_of(location.op), location.op.rsplit("/", 1)[-1])
        numbers = self._numbers.setdefault(scope, {})
        count = numbers.setdefault(number, len(numbers) + 1)
        if count > 1:
            scope = (*scope[:-1], f"{scope[-1]} ({count})")
        return replace(context, call=location, scope=scope)

    # Each method below reads one kind of operation, given the ReadOp and the names of
    # the operands.

    def _read_op(
        self, op: ir.Operation, read: ReadOp, operands: tuple[str, ...]
    ) -> None:
        rule, notes = self.attributes.rule(op), read.context.notes
        opcode = pipeline.name_of(op)
        fields: dict[str, Any] = {"opcode": opcode, "factors": rule}
        if rule and rule.reduction:
            fields["reducer"] = _reducer(op, opcode)
        if opcode == "custom_call":
            target = value_of(op, CALL_TARGET)
            fields["covered"], call_notes = _custom_call(target, rule)
            fields["notes"] = (*notes, *call_notes)
        elif not rule and operands and any(map(self.attributes.tensor, op.results)):
            fields |= {"covered": False, "notes": (*notes, NoShardingRule())}
        values = self.add(op, read, self.attributes.specs(op), operands, **fields)
        edges = parse_edges(self.attributes.text(op, EDGES))
        names = [value.op.name for value in values]
        for value in values:
            self.cross(value, edges, operands, names)

    def _read_call(
        self, op: ir.Operation, read: ReadOp, operands: tuple[str, ...]
    ) -> None:
        """Reads a call that XLA does not inline, and the operations of the callee."""
        function, context = callee(op, self._functions), read.context
        if function is None:
            notes = (NoBody(),)
            self.add(op, read, (), operands, covered=False, notes=notes)
            return
        # Negative, because inlined calls have positive numbers.
        location = self.attributes.location(op)
        inside = self._in_call(context, -len(self.read_ops), location)
        # Inlined calls inside the callee are listed relative to the callee.
        inside = replace(inside, calls=())
        block = function.regions[0].blocks[0]
        self.number(function, self.place(function, context)).inside = inside
        self.read_ops[-1].arguments = operands
        self.alias(block.arguments, operands)
        self.alias(op.results, self._block(block, inside))

    def _read_while(
        self, op: ir.Operation, read: ReadOp, operands: tuple[str, ...]
    ) -> None:
        """Reads a loop: carried values first, then condition and body."""
        values = self.add(op, read, self.attributes.specs(op), ())
        read.arguments = tuple([value.op.name for value in values])
        trips, around = trip_count(op), read.context.trips
        trips = trips * around if trips is not None and around is not None else None
        read.inside = replace(read.context, looped=True, trips=trips)
        returned: tuple[str, ...] = ()
        for region, kind in zip(
            op.regions, ("loop condition", "loop body"), strict=True
        ):
            block = region.blocks[0]
            self.alias(block.arguments, read.arguments)
            returned = self._block(block, replace(read.inside, region=kind))
        self._connect(op, values, list(zip(operands, returned, strict=True)))

    def _read_branches(
        self, op: ir.Operation, read: ReadOp, operands: tuple[str, ...]
    ) -> None:
        """Reads a conditional: results first, then every branch."""
        values = self.add(op, read, self.attributes.specs(op), ())
        read.inside = replace(read.context, region="branch")
        returned = []
        for region in op.regions:
            returned.append(self._block(region.blocks[0], read.inside))
        self._connect(op, values, list(zip(*returned, strict=True)))

    def _read_manual(
        self, op: ir.Operation, read: ReadOp, operands: tuple[str, ...]
    ) -> None:
        """Reads a shard_map: results first, then the body, which has block shapes."""
        over = parse_axes(self.attributes.text(op, MANUAL_AXES))
        specs = self.attributes.specs(op, OUT_SHARDINGS)
        notes = (IsShardMap(over),)
        values = self.add(op, read, specs, operands, opcode="shard_map", notes=notes)
        # Shardy derives the names of some origins from the name of the shard_map.
        key = self.attributes.text(op, ORIGIN_NAME).strip('"')
        base, source = "shard_map", read.location.source
        if values:
            base = values[0].op.name.partition("[")[0]
        for number in range(len(operands)):
            name = f"in_specs[{number}] of {base}"
            self.origin(f"{key}_input: {number}", "manual", name, source, over)
        asked = sdy.TensorShardingPerValueAttr(_before_closing(op, OUT_SHARDINGS))
        for number, value in enumerate(values):
            value.op = value.op.changed(open_dims=open_dims(asked.shardings[number]))
            name = f"out_specs[{number}] of {base}"
            for origin in (f"{key}_output: {number}", f"{value.op.name}: self"):
                self.origin(origin, "manual", name, source, over)
        for note in read.context.notes:
            if isinstance(note, InsideShardMap):
                over = (*note.axes, *over)
        read.arguments = operands
        read.inside = replace(
            read.context,
            call=read.location,
            scope=read.context.scope_of(f"{read.location.op}/"),
            region="manual",
            notes=(InsideShardMap(over),),
            manual=True,
        )
        block = op.regions[0].blocks[0]
        self.alias(block.arguments, operands)
        returned = self._block(block, read.inside)
        self._connect(op, values, [(name,) for name in returned])

    def _read_barrier(
        self, op: ir.Operation, read: ReadOp, operands: tuple[str, ...]
    ) -> None:
        """Reads an optimization barrier, for example of `jax.checkpoint`."""
        values = self.add(op, read, self.attributes.specs(op), operands)
        self._connect(op, values, [(name,) for name in operands])

    def _read_constraint(
        self, op: ir.Operation, read: ReadOp, operands: tuple[str, ...]
    ) -> None:
        """Reads a sharding constraint, or a reshard between functions."""
        specs, location = self.attributes.specs(op, ASKED_SHARDING), read.location
        key = self.attributes.text(op, ORIGIN_NAME).strip('"')
        for_loop, operand = READ_BY_LOOP in op.attributes, self.value(operands[0])
        if operand is not None and specs == (operand.spec,):
            # With Explicit axes, jax adds a constraint for the type of every operation.
            of_type = bool(key) and _is_result_of(operand.op, location.op)
            if of_type:
                self.origin(key, "op", operand.name, operand.source)
            if of_type or for_loop:
                self._keep_written(op, operand.name)
                self.alias(op.results, operands)
                return
        opcode, kind = "reshard", "constraint"
        if key and not for_loop and location.last_part != "shard_map":
            opcode = "sharding_constraint"
        elif not for_loop:  # Shardy's constraint on an operand of a shard_map
            kind = "manual"
        fields: dict[str, Any] = {
            "opcode": opcode,
            "factors": self.attributes.rule(op),
            "open_dims": open_dims(_before_closing(op, ASKED_SHARDING)),
        }
        (value,) = self.add(op, read, specs, operands, **fields)
        self._keep_written(op, value.op.name)
        if key:
            name = operands[0] or value.op.name
            if kind == "manual":
                name = "in_specs of shard_map"
            for origin in (key, f"{value.op.name}: self"):
                self.origin(origin, kind, name, value.op.source)
        edges = parse_edges(self.attributes.text(op, EDGES))
        self.cross(value, edges, operands, (value.op.name,))

    def _keep_written(self, op: ir.Operation, name: str) -> None:
        if WRITTEN in op.attributes:
            text = value_of(op, WRITTEN)
            (self.written[name],) = self.attributes.specs_of(ir.Attribute.parse(text))

    def _connect(
        self,
        op: ir.Operation,
        values: list[ValueBuilder],
        sources: Sequence[tuple[str, ...]],
    ) -> None:
        """Sets origins and steps of results, given the names of their source values."""
        text = self.attributes.text(op, RESULT_ORIGINS)
        origins = _aligned(parse_origins(text), values, set)
        text = self.attributes.text(op, RESULT_EDGES)
        edges = _aligned(parse_edge_lists(text), values, lambda e: {x.axis for x in e})
        for number, value in enumerate(values):
            value.origin_names = dict(origins[number] or {})
            operands = sources[number] if number < len(sources) else ()
            if op.name != MANUAL_COMPUTATION:
                value.op = value.op.changed(operands=operands)
            self.cross(value, edges[number] or (), operands, (value.op.name,))

    def _read_arguments(self, main: ir.Operation) -> None:
        for number, value in enumerate(main.regions[0].blocks[0].arguments):
            name = self._arguments[number] or self.take("token")
            shape, dtype = self.attributes.tensor(value) or ((), "token")
            sharding = named_attribute(main, ARGUMENT_ATTRIBUTES, number)
            (spec,) = self.attributes.specs_of(sharding) or (not_split(shape),)
            origins = self._own_origins(main, ARGUMENT_ATTRIBUTES, number)
            # If the program requests an axis, the argument is the origin, even if
            # Shardy names another one.
            sharding = named_attribute(self._lowered_main, ARGUMENT_ATTRIBUTES, number)
            for requested in self.attributes.specs_of(sharding):
                for axis in requested.axes:
                    if axis in spec.axes:
                        origins[axis] = "self"
            for key in (f"input: {number}", f"{name}: self"):
                self.origin(key, "argument", name)
            fields = {"shape": shape, "dtype": dtype, "spec": spec}
            free = range(len(shape)) if sharding is None else open_dims(sharding)
            op = PlannedOp(name, "argument", **fields, open_dims=tuple(free))
            self.keep(ValueBuilder(op, origins), value)

    def _read_results(self, main: ir.Operation, returned: Sequence[str]) -> None:
        tensors = []
        for number, name in enumerate(returned):
            if self._by_name[name].op.dtype != "token":
                tensors.append((number, self._by_name[name]))
        for name, (number, source) in zip(self._results, tensors, strict=True):
            for key in (f"output: {number}", f"{name}: self"):
                self.origin(key, "result", name)
            returned_op, origins = source.op, {}
            # A result gets the origins of the value that it returns. Where Shardy wrote
            # "self" for that value, use the value's name.
            for axis, origin in source.origin_names.items():
                if origin == "self":
                    origin = f"{returned_op.name}: self"
                origins[axis] = origin
            origins |= self._own_origins(main, RESULT_ATTRIBUTES, number)
            sharding = named_attribute(main, RESULT_ATTRIBUTES, number)
            (spec,) = self.attributes.specs_of(sharding) or (
                not_split(returned_op.shape),
            )
            requested = named_attribute(self._lowered_main, RESULT_ATTRIBUTES, number)
            free = range(len(returned_op.shape))
            if requested is not None:
                free = open_dims(requested)
            op = PlannedOp(
                name,
                "result",
                shape=returned_op.shape,
                dtype=returned_op.dtype,
                spec=spec,
                operands=(returned_op.name,),
                open_dims=tuple(free),
            )
            result = self.keep(ValueBuilder(op, origins))
            edges = named_attribute(main, RESULT_ATTRIBUTES, number, EDGES)
            steps = parse_edges(self.attributes.text_of(edges))
            self.cross(result, steps, (returned_op.name,), (name,))

    def _own_origins(
        self, main: ir.Operation, kind: str, number: int
    ) -> dict[str, str]:
        attribute = named_attribute(main, kind, number, ORIGINS)
        origins = parse_origins(self.attributes.text_of(attribute))
        # A copy, because the caller changes it and parse_origins caches its results.
        return dict(*origins[:1])


_Handler = Callable[[PlanReader, Any, ReadOp, tuple[str, ...]], None]
# MLIR operation -> the method that reads it.
_HANDLERS: dict[str, _Handler] = {
    FUNCTION_CALL: PlanReader._read_call,
    WHILE: PlanReader._read_while,
    CASE: PlanReader._read_branches,
    IF: PlanReader._read_branches,
    OPTIMIZATION_BARRIER: PlanReader._read_barrier,
    MANUAL_COMPUTATION: PlanReader._read_manual,
    RESHARD: PlanReader._read_constraint,
    CONSTRAINT: PlanReader._read_constraint,
}


def argument_names(module: Any, attributes: AttributeCache) -> list[str]:
    """jax's argument names of a lowered program, in order."""
    main = functions_of(module.operation)["main"]
    arguments = main.regions[0].blocks[0].arguments
    return [attributes.location(value).op for value in arguments]


def _before_closing(op: ir.Operation, name: str) -> Any:
    """A sharding attribute as it was before Shardy closed its dimensions."""
    return op.attributes[OPEN if OPEN in op.attributes else name]


def _is_result_of(value: str, constraint: str) -> bool:
    """True if a constraint has the name of a value's operation or enclosing call."""
    inside = (f"{constraint}/", f"{constraint}(")
    return bool(constraint) and (value == constraint or value.startswith(inside))


def _reducer(op: ir.Operation, opcode: str) -> str:
    """The operation that combines values along reduced factors: `add`, `maximum`."""
    if opcode in _SUMS:
        return "add"
    if opcode == "reduce":
        first = next(iter(op.regions[0].blocks[0].operations)).operation.name
        return first.partition(".")[2]
    return ""


def _custom_call(
    target: str, rule: ShardingRule | None
) -> tuple[bool, tuple[PlanNote, ...]]:
    """Whether Shardy decides the sharding of a custom call, and notes on the call."""
    if target == RAGGED:
        return True, ()  # handled as a collective
    if target in REPLACED_CALLS:
        return False, (ReplacedCall(target),)
    note: PlanNote = OpaqueCall(target)
    if "callback" in target:
        note = PythonCall(target)
    if rule is not None and rule.propagates:
        return True, (note,)
    return False, (note, NoShardingRule())


def _aligned(
    entries: Sequence[T], values: Sequence[ValueBuilder], axes: Callable[[T], set[str]]
) -> list[T | None]:
    """Assigns the entries of a list attribute to results; None for no entry.

    jaxlib 0.10 omits empty entries. If the results of the other entries are ambiguous,
    no result gets an entry.
    """
    if len(entries) == len(values):
        return list(entries)
    aligned: list[T | None] = [None] * len(values)
    split = [n for n, value in enumerate(values) if all_axes(value.op.spec)]
    if len(entries) != len(split):
        return aligned
    for number, entry in zip(split, entries, strict=True):
        parents = set(map(parent_axis, all_axes(values[number].op.spec)))
        if not parents.issuperset(map(parent_axis, axes(entry))):
            return [None] * len(values)
        aligned[number] = entry
    return aligned
