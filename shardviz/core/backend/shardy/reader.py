"""Reads a propagated module into the values of a plan.

What has blocks of its own, loops and branches and `shard_map`, is read in `regions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardviz.core.backend.shardy import pipeline
from shardviz.core.backend.shardy.attributes import (
    AttributeCache,
    Call,
    SourceLocation,
    named_attribute,
    parse_edges,
    parse_origins,
)
from shardviz.core.backend.shardy.before_propagation import CALL, callee, functions_of
from shardviz.core.backend.shardy.builder import (
    BlockContext,
    PlanBuilder,
    ValueBuilder,
    not_split,
)
from shardviz.core.backend.shardy.regions import HANDLERS
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_notes import PlanNote
from shardviz.core.program.plan_values import PlannedOp, ShardingRule

_SUMS = {"dot_general", "convolution", "dot"}
#: What jax calls for `jax.lax.ragged_all_to_all`.
RAGGED = "ragged_all_to_all"
_RETURNS = {"func.return", "stablehlo.return", "sdy.return"}
_KERNELS = {"tpu_custom_call", "mosaic_gpu", "mosaic_gpu_v2", "__gpu$xla.gpu.triton"}
_NO_RULE = PlanNote("no rule")


class PlanReader(PlanBuilder):
    """Reads one module.

    Args:
        module: what `pipeline.propagate` gives, with a copy of each function for each
            call.
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
        self._requested, self.mesh = requested, mesh
        self._arguments, self._results = arguments, results
        self._functions = functions_of(module)
        # Scope to the calls that have it, each with its number among them.
        self._numbers: dict[tuple[str, ...], dict[int, int]] = {}

    def read(self) -> tuple[PlannedOp, ...]:
        """The values of the module: arguments, operations in order, results."""
        main, context = self._functions["main"], BlockContext()
        self._read_arguments(main)
        block = main.regions[0].blocks[0]
        self.number(main, context).arguments = self.named(block.arguments)
        self._read_results(main, self.block(block, context))
        return self.finish(self._note_alike())

    def block(self, block: Any, context: BlockContext) -> tuple[str, ...]:
        """Reads the operations of a block; the names of what it returns."""
        contexts = {context.calls: context}
        for item in block.operations:
            op = item.operation
            name = op.name
            if name in _RETURNS:
                return self.named(op.operands)
            # Of one inlined call there are many operations, one after another.
            calls = self.attributes.calls(op)
            inside = contexts.get(calls)
            if inside is None:
                inside = contexts[calls] = self._in_calls(context, calls)
            read = self.number(op, inside)
            handler = HANDLERS.get(name)
            if name == CALL:
                self._read_call(op, inside)
            elif handler is not None:
                handler(self, op, inside)
            else:
                self._read_op(op, inside)
            read.results = self.named(op.results)
        return ()

    def _in_calls(self, context: BlockContext, calls: tuple[Call, ...]) -> BlockContext:
        """The context of operations of inlined calls, from that of their block."""
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

    def _read_call(self, op: Any, context: BlockContext) -> None:
        """A call that XLA leaves in place: the operations of the function."""
        function, operands = callee(op, self._functions), self.named(op.operands)
        if function is None:
            notes = (PlanNote("no body"),)
            self.add(op, context, (), operands=operands, covered=False, notes=notes)
            return
        # Calls that were inlined have positive numbers.
        inside = self._in_call(
            context, -len(self.read_ops), self.attributes.location(op)
        )
        inside = replace(inside, calls=())  # seen from the function, as what it holds
        read = self.number(function, context)
        read.inside, read.arguments = inside, operands
        block = function.regions[0].blocks[0]
        self.alias(block.arguments, operands)
        self.alias(op.results, self.block(block, inside))

    def _read_op(self, op: Any, context: BlockContext) -> None:
        rule = self.attributes.rule(op)
        operands = self.named(op.operands)
        opcode = pipeline.name_of(op)
        fields: dict[str, Any] = {"opcode": opcode, "factors": rule}
        if rule and rule.reduction:
            fields["reducer"] = _reducer(op, opcode)
        if opcode == "custom_call":
            target = op.attributes["call_target_name"].value
            fields["covered"], notes = _custom_call(target, rule)
            fields["notes"] = (*context.notes, *notes)
        elif not rule and operands and any(map(self.attributes.tensor, op.results)):
            fields |= {"covered": False, "notes": (*context.notes, _NO_RULE)}
        specs = self.attributes.specs(op)
        values = self.add(op, context, specs, operands=operands, **fields)
        text = self.attributes.text(op, "sdy.propagation_edges")
        if text:
            names = [v.op.name for v in values]
            for value in values:
                self.cross(value, parse_edges(text), operands, names)

    def _note_alike(self) -> dict[str, list[str]]:
        """Notes what `shard_alike` splits alike.

        Returns:
            The name of a value to the others of its group.
        """
        alike: dict[str, list[str]] = {}
        for group in self.groups.values():
            for name in group:
                alike[name] = [other for other in dict.fromkeys(group) if other != name]
        for name, others in alike.items():
            if others:
                value = self._by_name[name]
                notes = (*value.op.notes, PlanNote("alike", tuple(others)))
                value.op = value.op.changed(notes=notes)
        return alike

    def _read_arguments(self, main: Any) -> None:
        for number, value in enumerate(main.regions[0].blocks[0].arguments):
            name = self._arguments[number] or self._names.take("token")
            shape, dtype = self.attributes.tensor(value) or ((), "token")
            specs = self.attributes.specs_of(named_attribute(main, "arg_attrs", number))
            (spec,) = specs or (not_split(shape),)
            origins = self._own_origins(main, "arg_attrs", number)
            # The program's own request came first, though something else may agree with
            # it.
            for axis in self._requested.get(name, Spec()).axes:
                if axis in spec.axes:
                    origins[axis] = "self"
            self.origin(f"input: {number}", "argument", name)
            self.origin(f"{name}: self", "argument", name)
            op = PlannedOp(name, "argument", shape=shape, dtype=dtype, spec=spec)
            self.keep(ValueBuilder(op, origins), value)

    def _read_results(self, main: Any, returned: Sequence[str]) -> None:
        tensors = []
        for number, name in enumerate(returned):
            if self._by_name[name].op.dtype != "token":
                tensors.append((number, self._by_name[name]))
        for name, (number, source) in zip(self._results, tensors, strict=True):
            self.origin(f"output: {number}", "result", name)
            self.origin(f"{name}: self", "result", name)
            made = source.op
            # A result that is another value unchanged has no origins of its own. What
            # Shardy calls "self" there has the name of that value here.
            origins = {}
            for axis, origin in source.origin_names.items():
                if origin == "self":
                    origin = f"{made.name}: self"
                origins[axis] = origin
            origins |= self._own_origins(main, "res_attrs", number)
            specs = self.attributes.specs_of(named_attribute(main, "res_attrs", number))
            (spec,) = specs or (not_split(made.shape),)
            op = PlannedOp(
                name,
                "result",
                shape=made.shape,
                dtype=made.dtype,
                spec=spec,
                operands=(made.name,),
            )
            result = self.keep(ValueBuilder(op, origins))
            edges = named_attribute(main, "res_attrs", number, "sdy.propagation_edges")
            steps = parse_edges(self.attributes.text_of(edges))
            self.cross(result, steps, (made.name,), (name,))

    def _own_origins(self, main: Any, kind: str, number: int) -> dict[str, str]:
        attribute = named_attribute(main, kind, number, "sdy.sharding_origins")
        origins = parse_origins(self.attributes.text_of(attribute))
        if not origins:
            return {}
        return dict(
            origins[0]
        )  # a copy: it is changed, and parse_origins keeps its own


def argument_names(module: Any, attributes: AttributeCache) -> list[str]:
    """What jax calls the arguments of a lowered program, in order."""
    main = functions_of(module.operation)["main"]
    arguments = main.regions[0].blocks[0].arguments
    return [attributes.location(value).op for value in arguments]


def _reducer(op: Any, opcode: str) -> str:
    """What an operation does with the factors that it reduces: `add`, `maximum`."""
    if opcode in _SUMS:
        return "add"
    if opcode == "reduce":
        first = next(iter(op.regions[0].blocks[0].operations)).operation.name
        return first.partition(".")[2]
    return ""


def _custom_call(
    target: str, rule: ShardingRule | None
) -> tuple[bool, tuple[PlanNote, ...]]:
    """Whether Shardy looks into a call of other code, and the notes on its value."""
    if target == RAGGED:
        return True, ()  # a collective
    note = PlanNote("call", (target,))
    if "callback" in target:
        note = PlanNote("host", (target,))
    elif target in _KERNELS:
        note = PlanNote("kernel", (target,))
    elif target == "ApproxTopK":
        note = PlanNote("approximate top_k", (target,))
    if rule is not None and rule.propagates:
        return True, (note,)
    return False, (note, _NO_RULE)
