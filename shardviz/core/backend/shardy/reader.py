"""Reads a propagated module into the values of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardviz.core.backend.shardy import control_flow, pipeline
from shardviz.core.backend.shardy.attributes import (
    AttributeCache,
    Call,
    named_attribute,
    parse_edges,
    parse_origins,
)
from shardviz.core.backend.shardy.before_propagation import CALL, callee, functions_of
from shardviz.core.backend.shardy.builder import (
    BlockContext,
    PlanBuilder,
    ValueBuilder,
    names_of_ends,
    not_split,
)
from shardviz.core.backend.shardy.estimate_limits import LIMITS, limit_note, windows_of
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_values import TIED, PlannedOp, ShardingRule

_REDUCES = {"add": "sums", "maximum": "takes the maximum", "minimum": "takes the minimum"}
_SUMS = {"dot_general", "convolution", "dot"}
_RETURNS = {"func.return", "stablehlo.return", "sdy.return"}
_KERNELS = {"tpu_custom_call", "mosaic_gpu", "mosaic_gpu_v2", "__gpu$xla.gpu.triton"}
_NO_RULE = "Shardy has no rule for it: no sharding crosses it."


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
            elif (handler := control_flow.HANDLERS.get(name)) is not None:
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
        if opcode in LIMITS and operands:
            self._note_limits(op, values, self.value(operands[0]))
        if text := self.attributes.text(op, "sdy.propagation_edges"):
            ends = names_of_ends(operands, [v.op.name for v in values])
            for value in values:
                self.cross(value, parse_edges(text), ends)

    def _note_limits(self, op: Any, values: list[ValueBuilder], operand: PlannedOp | None) -> None:
        if op.name == "stablehlo.slice" and _is_used_by(op, "stablehlo.concatenate"):
            return  # a rotation, say: the concatenation has the note
        windows, indexed = windows_of(op, self.attributes), _is_used_by(op, "stablehlo.reshape")
        for value in values:
            value.add_note(limit_note(value.op, operand, self._mesh, windows, indexed))

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
