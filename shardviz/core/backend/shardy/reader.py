"""Reads a propagated module into the values of a plan, with its loops, branches and constraints.

A loop's body reads what the loop carries, so the names of its arguments are those of the loop's
own results, which always have the same sharding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from shardviz.core.backend.shardy import pipeline
from shardviz.core.backend.shardy.attributes import (
    AttributeCache,
    Call,
    defining_op,
    named_attribute,
    parse_axes,
    parse_edge_lists,
    parse_edges,
    parse_origins,
)
from shardviz.core.backend.shardy.before_propagation import CALL, callee, functions_of
from shardviz.core.backend.shardy.builder import (
    BlockContext,
    PlanBuilder,
    ValueBuilder,
    all_axes,
    names_of_ends,
    not_split,
)
from shardviz.core.backend.shardy.estimate_limits import (
    groups_of,
    uncertain_operation,
    windows_of,
)
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_values import TIED, PlannedOp, ShardingRule, parent_axis

_REDUCES = {"add": "sums", "maximum": "takes the maximum", "minimum": "takes the minimum"}
_SUMS = {"dot_general", "convolution", "dot"}
#: What jax calls for `jax.lax.ragged_all_to_all`.
RAGGED = "ragged_all_to_all"
_RETURNS = {"func.return", "stablehlo.return", "sdy.return"}
_KERNELS = {"tpu_custom_call", "mosaic_gpu", "mosaic_gpu_v2", "__gpu$xla.gpu.triton"}
_NO_RULE = "Shardy has no rule for it, so its result gets no sharding from what it reads."


class PlanReader(PlanBuilder):
    """Reads one module.

    Args:
        module: what `pipeline.propagate` gives, with a copy of each function for each call.
        arguments: the names of the arguments of the lowered program, in order.
        results: the names of its results, in order.
        requested: argument name to the spec that the program requests.
        mesh: the mesh.
        attributes: the cache of the module's attributes.
    """

    def __init__(
        self,
        module: Any,
        arguments: Sequence[str],
        results: Sequence[str],
        requested: Mapping[str, Spec],
        mesh: MeshSpec,
        attributes: AttributeCache,
    ) -> None:
        super().__init__([*arguments, *results], attributes)
        self._module, self._requested, self._mesh = module, requested, mesh
        self._arguments, self._results = arguments, results
        self._functions = functions_of(module)
        # Scope to the calls that have it, each with its number among them.
        self._numbers: dict[tuple[str, ...], dict[int, int]] = {}
        self._left = 0  # calls that XLA leaves in place have negative numbers

    def read(self) -> tuple[PlannedOp, ...]:
        """The values of the module: arguments, operations in order, results."""
        main = self._functions["main"]
        self._read_arguments(main)
        returned = self.block(main.regions[0].blocks[0], BlockContext())
        self._read_results(main, returned)
        return self.finish(self._note_alike())

    def block(self, block: Any, context: BlockContext) -> tuple[str, ...]:
        """Reads the operations of a block; the names of what it returns."""
        contexts = {context.calls: context}
        for item in block.operations:
            op = item.operation
            name = op.name
            if name in _RETURNS:
                return self.named(op.operands)
            calls = self.attributes.calls(op)
            if (inside := contexts.get(calls)) is None:
                inside = contexts[calls] = self._in_calls(context, calls)
            if name == CALL:
                self._read_call(op, inside)
            elif (handler := HANDLERS.get(name)) is not None:
                handler(self, op, inside)
            else:
                self._read_op(op, inside)
        return ()

    def _in_calls(self, context: BlockContext, calls: tuple[Call, ...]) -> BlockContext:
        """The context of operations of inlined calls, from that of their block."""
        for call in calls[len(context.calls) :]:
            context = replace(self._in_call(context, call), calls=(*context.calls, call))
        return context

    def _in_call(self, context: BlockContext, call: Call) -> BlockContext:
        location = context.call.inner(call.location)
        scope = (*context.scope_of(location.op), location.op.rsplit("/", 1)[-1])
        numbers = self._numbers.setdefault(scope, {})
        count = numbers.setdefault(call.number, len(numbers) + 1)
        if count > 1:
            scope = (*scope[:-1], f"{scope[-1]} ({count})")
        return replace(context, call=location, scope=scope)

    def _read_call(self, op: Any, context: BlockContext) -> None:
        """A call that XLA leaves in place: the operations of the function, with its values."""
        called = callee(op, self._functions)
        if called is None:
            note = "The function it calls has no body here."
            self.add(op, context, (), covered=False, note=note)
            return
        self._left -= 1
        inside = self._in_call(context, Call(self._left, self.attributes.location(op)))
        inside = replace(inside, calls=())  # seen from the function, as what it holds
        block = called.regions[0].blocks[0]
        self.alias(block.arguments, self.named(op.operands))
        returned = self.block(block, inside)
        self.alias(op.results, returned)

    def _read_op(self, op: Any, context: BlockContext) -> None:
        rule = self.attributes.rule(op)
        operands = self.named(op.operands)
        opcode = pipeline.name_of(op)
        fields: dict[str, Any] = {"opcode": opcode, "factors": rule}
        if rule and rule.reduction:
            fields["reduces"] = _reduces(op, opcode)
        if opcode == "custom_call":
            fields |= _custom_call(op.attributes["call_target_name"].value, rule)
        elif not rule and len(op.operands) and any(self.attributes.tensor(v) for v in op.results):
            fields |= {"covered": False, "note": _NO_RULE}
        values = self.add(op, context, self.attributes.specs(op), operands=operands, **fields)
        self._mark_uncertain(op, values, operands)
        if text := self.attributes.text(op, "sdy.propagation_edges"):
            ends = names_of_ends(operands, [v.op.name for v in values])
            for value in values:
                self.cross(value, parse_edges(text), ends)

    def _mark_uncertain(self, op: Any, values: list[ValueBuilder], operands: Sequence[str]) -> None:
        if op.name == "stablehlo.slice" and _is_used_by(op, "stablehlo.concatenate"):
            return  # a rotation, say: the concatenation is marked
        reads = [value for value in map(self.value, operands) if value is not None]
        windows, groups = windows_of(op, self.attributes), groups_of(op, self.attributes)
        for value in values:
            if found := uncertain_operation(value.op, reads, self._mesh, windows, groups):
                value.op = PlannedOp.trusted({**value.op.__dict__, "uncertain": found})

    def _note_alike(self) -> dict[str, list[str]]:
        """Notes what `shard_alike` splits alike; the name of a value to the others of its group."""
        alike: dict[str, list[str]] = {}
        for group in self.groups.values():
            names = list(dict.fromkeys(group))
            alike |= {name: [n for n in names if n != name] for name in names}
        for name, others in alike.items():
            if others:
                self._by_name[name].add_note(f"{TIED} {' and '.join(others)}.")
        return alike

    def _read_arguments(self, main: Any) -> None:
        for number, value in enumerate(main.regions[0].blocks[0].arguments):
            name = self._arguments[number] or self._names.take("token")
            shape, dtype = self.attributes.tensor(value) or ((), "token")
            specs = self.attributes.specs_of(named_attribute(main, "arg_attrs", number))
            spec = specs[0] if specs else not_split(shape)
            origins = self._own_origins(main, "arg_attrs", number)
            # The program's own request came first, though something else may agree with it.
            requested = self._requested.get(name, Spec())
            origins |= {axis: "self" for axis in requested.axes if axis in spec.axes}
            self.origin(f"input: {number}", "argument", name)
            self.origin(f"{name}: self", "argument", name)
            op = PlannedOp(name, "argument", shape=shape, dtype=dtype, spec=spec)
            self.keep(ValueBuilder(op, origins), value)

    def _read_results(self, main: Any, returned: Sequence[str]) -> None:
        tensors = [n for n, v in enumerate(returned) if self._by_name[v].op.dtype != "token"]
        for name, number in zip(self._results, tensors, strict=True):
            source = self._by_name[returned[number]]
            self.origin(f"output: {number}", "result", name)
            self.origin(f"{name}: self", "result", name)
            # A result that is another value unchanged has no origins of its own.
            inherited = {a: _outside(o, source.op.name) for a, o in source.origin_names.items()}
            specs = self.attributes.specs_of(named_attribute(main, "res_attrs", number))
            op = PlannedOp(
                name,
                "result",
                shape=source.op.shape,
                dtype=source.op.dtype,
                spec=specs[0] if specs else not_split(source.op.shape),
                operands=(source.op.name,),
            )
            own = self._own_origins(main, "res_attrs", number)
            result = self.keep(ValueBuilder(op, inherited | own))
            edges = named_attribute(main, "res_attrs", number, "sdy.propagation_edges")
            ends = names_of_ends((source.op.name,), (name,))
            self.cross(result, parse_edges(self.attributes.text_of(edges)), ends)

    def _own_origins(self, main: Any, kind: str, number: int) -> dict[str, str]:
        attribute = named_attribute(main, kind, number, "sdy.sharding_origins")
        origins = parse_origins(self.attributes.text_of(attribute))
        return dict(origins[0]) if origins else {}


def argument_names(module: Any, attributes: AttributeCache) -> list[str]:
    """What jax calls the arguments of a lowered program, in order."""
    main = next(f for f in module.body.operations if _is_main(f))
    return [attributes.location(v).op for v in main.regions[0].blocks[0].arguments]


def _is_main(item: Any) -> bool:
    return item.operation.name == "func.func" and item.attributes["sym_name"].value == "main"


def _is_used_by(op: Any, name: str) -> bool:
    """Whether an operation of that name reads an operation's result."""
    return any(use.owner.operation.name == name for use in op.results[0].uses)


def _reduces(op: Any, opcode: str) -> str:
    """What an operation does with the factors that it reduces, as a verb."""
    if opcode in _SUMS:
        return "sums"
    if opcode == "reduce":
        first = next(iter(op.regions[0].blocks[0].operations)).operation.name
        return _REDUCES.get(first.partition(".")[2], "reduces")
    return "reduces"


def _custom_call(target: str, rule: ShardingRule | None) -> dict[str, Any]:
    """The fields of a value made by code that neither Shardy nor XLA looks into."""
    if target == RAGGED:
        return {}  # a collective
    note = f"It calls {target}."
    if "callback" in target:
        note = "It calls Python on the host of one device, so its operands are gathered there."
    elif target in _KERNELS:
        note = "It is a Pallas kernel."
    elif target == "ApproxTopK":
        note += (
            " XLA for CPUs sorts instead, before it propagates: expect another sharding and other"
            " collectives there."
        )
    if rule is not None and rule.propagates:
        return {"note": note}
    return {"covered": False, "note": f"{note} {_NO_RULE}"}


def _outside(origin: str, name: str) -> str:
    """What Shardy would call the origin of an axis of the value `name` at another value."""
    return f"{name}: self" if origin == "self" else origin


T = TypeVar("T")
_NUMBER = re.compile(r"dense<(-?\d+)>")


def read_while(plan: PlanBuilder, op: Any, context: BlockContext) -> None:
    """A loop: its carried values first, then condition and body."""
    inits = plan.named(op.operands)
    values = plan.add(op, context, plan.attributes.specs(op), operands=())
    names = [v.op.name for v in values]
    count = trip_count(op)
    trips = None if count is None or context.trips is None else count * context.trips
    inside = replace(context, looped=True, trips=trips)
    condition, body = (region.blocks[0] for region in op.regions)
    for block, region in ((condition, "loop condition"), (body, "loop body")):
        plan.alias(block.arguments, names)
        returned = plan.block(block, replace(inside, region=region))
    _connect(plan, op, values, list(zip(inits, returned, strict=True)))


def read_branches(plan: PlanBuilder, op: Any, context: BlockContext) -> None:
    """A choice between branches: its results first, then every branch."""
    values = plan.add(op, context, plan.attributes.specs(op), operands=())
    inside = replace(context, region="branch")
    returned = [plan.block(region.blocks[0], inside) for region in op.regions]
    _connect(plan, op, values, list(zip(*returned, strict=True)))


def read_manual(plan: PlanBuilder, op: Any, context: BlockContext) -> None:
    """A shard_map: its results first, then its body, whose shapes are those of one shard."""
    operands = plan.named(op.operands)
    over = ", ".join(parse_axes(plan.attributes.text(op, "manual_axes"))) or "no axis"
    note = f"A shard_map over {over}: its body says itself what is sent."
    specs = plan.attributes.specs(op, "out_shardings")
    values = plan.add(op, context, specs, operands=operands, opcode="shard_map", note=note)
    _add_manual_origins(plan, op, values, len(operands))
    block = op.regions[0].blocks[0]
    plan.alias(block.arguments, operands)
    local = f"Inside of a shard_map over {over}: the shape is that of one device's block."
    call = context.call.inner(plan.attributes.location(op))
    scope = context.scope_of(f"{call.op}/")
    inside = replace(context, call=call, scope=scope, region="manual", note=local, manual=True)
    returned = plan.block(block, inside)
    _connect(plan, op, values, [(name,) for name in returned])


def _add_manual_origins(
    plan: PlanBuilder, op: Any, values: Sequence[ValueBuilder], operands: int
) -> None:
    """What Shardy means by the origins that it names after a shard_map."""
    key = plan.attributes.text(op, "sdy.sharding_origin_name").strip('"')
    source = values[0].op.source if values else ""
    base = values[0].op.name.partition("[")[0] if values else "shard_map"
    for number in range(operands):
        plan.origin(f"{key}_input: {number}", "manual", f"in_specs[{number}] of {base}", source)
    for number, value in enumerate(values):
        name = f"out_specs[{number}] of {base}"
        plan.origin(f"{key}_output: {number}", "manual", name, source)
        plan.origin(f"{value.op.name}: self", "manual", name, source)


def read_barrier(plan: PlanBuilder, op: Any, context: BlockContext) -> None:
    """An optimization barrier, such as remat sets: what goes in comes out."""
    operands = plan.named(op.operands)
    values = plan.add(op, context, plan.attributes.specs(op), operands=operands)
    _connect(plan, op, values, [(name,) for name in operands])


def read_group(plan: PlanBuilder, op: Any, context: BlockContext) -> None:
    """One value of a group that is split alike, as `shard_alike` asks for."""
    number = str(op.attributes["group_id"])
    plan.groups.setdefault(number, []).extend(plan.named(op.operands))


def read_constraint(plan: PlanBuilder, op: Any, context: BlockContext) -> None:
    """A constraint in the middle of a program, or a reshard between functions."""
    operands = plan.named(op.operands)
    specs = plan.attributes.specs(op, "sharding")
    key = plan.attributes.text(op, "sdy.sharding_origin_name").strip('"')
    location = context.call.inner(plan.attributes.location(op))
    if not key and location.last_part in ("sharding_constraint", "reshard"):
        key = location.last_part  # a module with groups names no origins
    operand = plan.value(operands[0])
    typed = operand is not None and specs == (operand.spec,)
    if key and operand is not None and typed and _is_result_of(operand.op, location.op):
        # With Explicit axes every operation is followed by the sharding of its type.
        plan.origin(key, "op", operand.name, operand.source)
        plan.alias(op.results, operands)
        return
    for_loop = pipeline.READ_BY_LOOP in op.attributes
    if for_loop and typed:
        plan.alias(op.results, operands)
        return
    rule = plan.attributes.rule(op)
    constrains = bool(key) and location.last_part != "shard_map" and not for_loop
    opcode = "sharding_constraint" if constrains else "reshard"
    fields = {"opcode": opcode, "factors": rule, "operands": operands}
    (value,) = plan.add(op, context, specs, **fields)
    kind, name = "constraint", operands[0] or value.op.name
    if not constrains and not for_loop:  # Shardy asks so for what a shard_map takes
        kind, name = "manual", "in_specs of shard_map"
    for origin in (key, f"{value.op.name}: self") if key else ():
        plan.origin(origin, kind, name, value.op.source)
    edges = parse_edges(plan.attributes.text(op, "sdy.propagation_edges"))
    plan.cross(value, edges, names_of_ends(operands, (value.op.name,)))


def _is_result_of(value: str, constraint: str) -> bool:
    """Whether a constraint belongs to the operation, or the call, that makes a value.

    Args:
        value: what jax calls the operation that makes the value.
        constraint: what jax calls the constraint.
    """
    inside = (f"{constraint}/", f"{constraint}(")
    return bool(constraint) and (value == constraint or value.startswith(inside))


Handler = Callable[[PlanBuilder, Any, BlockContext], None]
HANDLERS: dict[str, Handler] = {
    "stablehlo.while": read_while,
    "stablehlo.case": read_branches,
    "stablehlo.if": read_branches,
    "stablehlo.optimization_barrier": read_barrier,
    "sdy.manual_computation": read_manual,
    "sdy.reshard": read_constraint,
    "sdy.sharding_group": read_group,
    "sdy.sharding_constraint": read_constraint,
}


def trip_count(op: Any) -> int | None:
    """How often a `stablehlo.while` runs its body: known where it counts up to a constant."""
    condition, body = (region.blocks[0] for region in op.regions)
    test = defining_op(_last(condition).operands[0])
    if test is None or test.name != "stablehlo.compare":
        return None
    if " LT" not in str(test.attributes["comparison_direction"]):
        return None
    numbers = {value: number for number, value in enumerate(condition.arguments)}
    counter = numbers.get(test.operands[0])
    if counter is None:
        return None
    limit = _constant(test.operands[1])
    if (carried := numbers.get(test.operands[1])) is not None and _unchanged(body, carried):
        limit = _constant(op.operands[carried])
    start, step = _constant(op.operands[counter]), _stride(body, counter)
    if limit is None or start is None or not step or step < 0:
        return None
    return max(0, -(-(limit - start) // step))


def _stride(body: Any, counter: int) -> int | None:
    """What a loop's body adds to a carried number."""
    made = defining_op(_last(body).operands[counter])
    if made is None or made.name != "stablehlo.add":
        return None
    first, second = made.operands
    argument = body.arguments[counter]
    return _constant(second) if first == argument else (
        _constant(first) if second == argument else None
    )  # fmt: skip


def _unchanged(body: Any, number: int) -> bool:
    return _last(body).operands[number] == body.arguments[number]


def _constant(value: Any) -> int | None:
    made = defining_op(value)
    if made is None or made.name not in ("stablehlo.constant", "sdy.constant"):
        return None
    found = _NUMBER.match(str(made.attributes["value"]))
    return int(found[1]) if found else None


def _last(block: Any) -> Any:
    return list(block.operations)[-1].operation


def _connect(
    plan: PlanBuilder, op: Any, values: list[ValueBuilder], sources: Sequence[Sequence[str]]
) -> None:
    """Gives each result of such an operation its origins and the steps that crossed there.

    Args:
        plan: the plan.
        op: the operation.
        values: its results.
        sources: for each, the names of the values that it may come from.
    """
    origins = parse_origins(plan.attributes.text(op, "sdy.result_sharding_origins"))
    for value, names in zip(values, _aligned(origins, values, set), strict=True):
        value.origin_names = dict(names or {})
    lists = parse_edge_lists(plan.attributes.text(op, "sdy.result_propagation_edges"))
    edges = _aligned(lists, values, lambda edges: {e.axis for e in edges})
    for number, value in enumerate(values):
        names = tuple(sources[number]) if number < len(sources) else ()
        if op.name != "sdy.manual_computation":
            value.op = replace(value.op, operands=names)
        plan.cross(value, edges[number] or (), names_of_ends(names, (value.op.name,)))


def _aligned(
    entries: Sequence[T], values: Sequence[ValueBuilder], axes: Callable[[T], set[str]]
) -> list[T | None]:
    """One entry per result, or None. jaxlib 0.10 leaves out entries that would be empty.

    Where it is not clear which result an entry belongs to, none gets any.
    """
    if len(entries) == len(values):
        return list(entries)
    split = [n for n, v in enumerate(values) if all_axes(v.op.spec)]
    aligned: list[T | None] = [None] * len(values)
    if len(entries) == len(split):
        for number, entry in zip(split, entries, strict=True):
            parents = {parent_axis(a) for a in all_axes(values[number].op.spec)}
            if not {parent_axis(a) for a in axes(entry)} <= parents:
                return [None] * len(values)
            aligned[number] = entry
    return aligned
