"""A propagated module, read into the values of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardviz.core.backend.shardy import control_flow, mlir_text, rewrites
from shardviz.core.backend.shardy.builder import (
    BlockContext,
    Names,
    ValueBuilder,
    base_name,
    ends_of,
    finished,
    not_split,
    scope_of,
    step_of,
)
from shardviz.core.backend.shardy.estimate_limits import LIMITS, limit_note, windows_of
from shardviz.core.backend.shardy.mlir_text import AttributeCache, source_location
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program import sharding_rule
from shardviz.core.program.plan_values import TIED, Origin, PlannedOp

_REDUCES = {"add": "sums", "maximum": "takes the maximum", "minimum": "takes the minimum"}
_SUMS = {"dot_general", "convolution", "dot"}
_RETURNS = {"func.return", "stablehlo.return", "sdy.return"}
_KERNELS = {"tpu_custom_call", "mosaic_gpu", "mosaic_gpu_v2", "__gpu$xla.gpu.triton"}
_NO_RULE = "Shardy has no rule for it: no sharding crosses it."


class PlanReader:
    """Reads one module.

    Args:
        module: what `pipeline.propagate` gives, with a copy of each function for each call.
        arguments: the names of the arguments of the lowered program, in order.
        results: the names of its results, in order.
        asked: argument name to the spec that was asked for.
        mesh: the mesh.
        texts: where what the module says is read, for who reads it too.
    """

    def __init__(
        self,
        module: Any,
        arguments: Sequence[str],
        results: Sequence[str],
        asked: Mapping[str, Spec],
        mesh: MeshSpec,
        texts: AttributeCache | None = None,
    ) -> None:
        self._module, self._asked, self._mesh = module, asked, mesh
        self.texts = texts or AttributeCache()
        self._arguments, self._results = arguments, results
        self._names = Names([*arguments, *results])
        self._calls: dict[tuple[str, ...], int] = {}
        self._by_value: dict[Any, str] = {}
        self._drafts: list[ValueBuilder] = []
        self._index: dict[str, ValueBuilder] = {}
        self._known: dict[str, Origin] = {}
        self._functions: dict[str, Any] = {}
        self.groups: dict[str, list[str]] = {}  # number of a group to the values split alike

    def read(self) -> tuple[PlannedOp, ...]:
        """The values of the module: arguments, operations in order, results."""
        for item in self._module.body.operations:
            if item.operation.name == "func.func":
                self._functions[_symbol(item.attributes["sym_name"])] = item
        main = self._functions["main"]
        self._read_arguments(main)
        returned = self.block(main.regions[0].blocks[0], BlockContext())
        self._read_results(main, returned)
        return finished(self._drafts, self._known, self._tied())

    def block(self, block: Any, where: BlockContext) -> tuple[str, ...]:
        """Reads the operations of a block; the names of what it returns."""
        for item in block.operations:
            op = item.operation
            name = op.name
            if name in _RETURNS:
                return self.named(op.operands)
            if name == "func.call":
                self._read_call(op, where)
            elif (handler := control_flow.HANDLERS.get(name)) is not None:
                handler(self, op, where)
            else:
                self._read_op(op, where)
        return ()

    def named(self, values: Any) -> tuple[str, ...]:
        """The names of some values."""
        return tuple([self._by_value.get(v, "") for v in values])

    def alias(self, values: Any, names: Sequence[str]) -> None:
        """Values that are other names for values."""
        self._by_value.update(zip(values, names, strict=False))

    def value(self, name: str) -> PlannedOp | None:
        """A value that was read already."""
        return self._index[name].op if name in self._index else None

    def cross(self, draft: ValueBuilder, edges: Sequence[mlir_text.Edge], ends: Mapping) -> None:
        """Gives a value the steps that crossed its operation."""
        steps = [step_of(edge, draft.op.name, ends) for edge in edges]
        draft.crossed += tuple([s for s in steps if s is not None])

    def origin(self, key: str, kind: str, name: str, source: str = "") -> None:
        """Says what Shardy means by the name of an origin."""
        self._known[key] = Origin("", kind, name, source)

    def add(
        self, op: Any, where: BlockContext, specs: Sequence[Spec], **parts: Any
    ) -> list[ValueBuilder]:
        """A value for each result of an operation."""
        at = where.call.inner(self.texts.place(op))
        opcode = parts.pop("opcode", None) or rewrites.name_of(op)
        results = list(op.results)
        name = self._names.take(base_name(at.op, opcode), len(results))
        operands = parts.pop("operands", None)
        shared = {
            "kind": "op",
            "opcode": opcode,
            "op": at.op,
            "source": at.source,
            "stack": at.stack,
            "calls": at.calls,
            "operands": self.named(op.operands) if operands is None else operands,
            "scope": scope_of(where, at.op),
            "region": where.region,
            "manual": where.manual,
            "trips": where.trips if where.looped else None,
            "backward": "transpose(" in at.op,
            "note": where.note,
            **parts,
        }
        origins = self._origins(op)
        made = []
        for number, value in enumerate(results):
            own = name if len(results) == 1 else f"{name}[{number}]"
            shape, dtype = self.texts.tensor(value) or ((), "token")
            spec = specs[number] if number < len(specs) else Spec()
            spec = spec if spec.dims or spec.unreduced else not_split(shape)
            shared |= {"name": own, "shape": shape, "dtype": dtype, "spec": spec}
            found = origins[number] if number < len(origins) else {}
            draft = ValueBuilder(PlannedOp.trusted(shared), found)
            self._keep(draft, value)
            made.append(draft)
        return made

    def _keep(self, draft: ValueBuilder, value: Any = None) -> None:
        self._drafts.append(draft)
        self._index[draft.op.name] = draft
        if value is not None:
            self._by_value[value] = draft.op.name

    def _read_op(self, op: Any, where: BlockContext) -> None:
        rule = self.texts.attribute(op, "sdy.sharding_rule")
        operands = self.named(op.operands)
        opcode = rewrites.name_of(op)
        words = sharding_rule.rule_in_words(rule, operands, _reduces(op, opcode)) if rule else ""
        told = {"opcode": opcode, "rule": words, "factors": rule}
        specs = mlir_text.parse_specs(self.texts.attribute(op, "sdy.sharding"))
        if opcode == "custom_call":
            told |= _called(_symbol(op.attributes["call_target_name"]), rule)
        elif not rule and len(op.operands) and any(self.texts.tensor(v) for v in op.results):
            told |= {"covered": False, "note": _NO_RULE}
        made = self.add(op, where, specs, operands=operands, **told)
        if opcode in LIMITS and operands:
            self._note_limits(op, made, self.value(operands[0]))
        if text := self.texts.attribute(op, "sdy.propagation_edges"):
            ends = ends_of(operands, [d.op.name for d in made])
            for draft in made:
                self.cross(draft, mlir_text.parse_edges(text), ends)

    def _note_limits(self, op: Any, made: list[ValueBuilder], operand: PlannedOp | None) -> None:
        if op.name == "stablehlo.slice" and _used_by(op, "stablehlo.concatenate"):
            return  # a rotation, say: the concatenation tells of it
        windows, indexed = windows_of(op, self.texts), _used_by(op, "stablehlo.reshape")
        for draft in made:
            if words := limit_note(draft.op, operand, self._mesh, windows, indexed):
                note = " ".join(filter(None, (draft.op.note, words)))
                draft.op = replace(draft.op, note=note)

    def _tied(self) -> dict[str, list[str]]:
        """Value to those that `shard_alike` splits as it, of which its note tells."""
        tied: dict[str, list[str]] = {}
        for names in self.groups.values():
            for name in dict.fromkeys(names):
                tied[name] = [n for n in dict.fromkeys(names) if n != name]
        for name, others in tied.items():
            if others:
                draft = self._index[name]
                words = f"{TIED} {' and '.join(others)}."
                note = " ".join(filter(None, (draft.op.note, words)))
                draft.op = replace(draft.op, note=note)
        return tied

    def _read_call(self, op: Any, where: BlockContext) -> None:
        callee = self._functions.get(_symbol(op.attributes["callee"]))
        at = where.call.inner(self.texts.place(op))
        if callee is None or not callee.regions[0].blocks:
            self.add(op, where, (), covered=False, note="The function it calls has no body here.")
            return
        scope = (*scope_of(where, at.op), at.op.rsplit("/", 1)[-1])
        count = self._calls[scope] = self._calls.get(scope, 0) + 1
        if count > 1:
            scope = (*scope[:-1], f"{scope[-1]} ({count})")
        block = callee.regions[0].blocks[0]
        self.alias(block.arguments, self.named(op.operands))
        returned = self.block(block, replace(where, call=at, scope=scope))
        self.alias(op.results, returned)

    def _origins(self, op: Any) -> tuple[dict[str, str], ...]:
        for name in ("sdy.sharding_origins", "sdy.result_sharding_origins"):
            if text := self.texts.attribute(op, name):
                return mlir_text.parse_origins(text)
        return ()

    def _entry(self, given: Sequence[Any], number: int, name: str) -> str:
        """The text of one entry of the dictionary of one argument or result."""
        found = given[number] if number < len(given) else {}
        return self.texts.text(found[name]) if name in found else ""

    def _read_arguments(self, main: Any) -> None:
        given = _dictionaries(main, "arg_attrs")
        for number, value in enumerate(main.regions[0].blocks[0].arguments):
            name = self._arguments[number] or self._names.take("token")
            shape, dtype = self.texts.tensor(value) or ((), "token")
            specs = mlir_text.parse_specs(self._entry(given, number, "sdy.sharding"))
            spec = specs[0] if specs else not_split(shape)
            found = mlir_text.parse_origins(self._entry(given, number, "sdy.sharding_origins"))
            origins = dict(found[0]) if found else {}
            asked = self._asked.get(name, Spec())
            # What was asked for came first, though something else may have asked for it as well.
            origins |= {axis: "self" for axis in asked.axes if axis in spec.axes}
            self.origin(f"input: {number}", "argument", name)
            self.origin(f"{name}: self", "argument", name)
            op = PlannedOp(name, "argument", shape=shape, dtype=dtype, spec=spec)
            self._keep(ValueBuilder(op, origins), value)

    def _read_results(self, main: Any, returned: Sequence[str]) -> None:
        given = _dictionaries(main, "res_attrs")
        tensors = [n for n, v in enumerate(returned) if self._index[v].op.dtype != "token"]
        for name, number in zip(self._results, tensors, strict=True):
            source = self._index[returned[number]]
            self.origin(f"output: {number}", "result", name)
            self.origin(f"{name}: self", "result", name)
            found = mlir_text.parse_origins(self._entry(given, number, "sdy.sharding_origins"))
            # A result that is another value as it stands says nothing of its own.
            inherited = {a: _outside(o, source.op.name) for a, o in source.origins.items()}
            spec = next(
                iter(mlir_text.parse_specs(self._entry(given, number, "sdy.sharding"))), None
            )
            op = PlannedOp(
                name,
                "result",
                shape=source.op.shape,
                dtype=source.op.dtype,
                spec=not_split(source.op.shape) if spec is None else spec,
                operands=(source.op.name,),
            )
            draft = ValueBuilder(op, inherited | (dict(found[0]) if found else {}))
            self._keep(draft)
            steps = mlir_text.parse_edges(self._entry(given, number, "sdy.propagation_edges"))
            self.cross(draft, steps, ends_of((source.op.name,), (name,)))


def _outside(origin: str, name: str) -> str:
    """What Shardy would call the origin of an axis of a value, told from elsewhere."""
    return f"{name}: self" if origin == "self" else origin


def _called(target: str, rule: str) -> dict[str, Any]:
    """What to say of code that neither Shardy nor XLA looks into."""
    call = f"It calls {target}."
    if "callback" in target:
        call = "It calls Python on the host of one device, so it needs its operands whole there."
    elif target in _KERNELS:
        call = "It is a Pallas kernel."
    elif target == "ApproxTopK":
        call += (
            " XLA for CPUs sorts instead, before it propagates: expect another sharding and other"
            " collectives there."
        )
    if rule and not sharding_rule.is_opaque_rule(rule):
        return {"note": call}
    return {"covered": False, "note": f"{call} {_NO_RULE}"}


def argument_names(module: Any) -> list[str]:
    """What jax calls the arguments of a lowered program, in order."""
    main = next(f for f in module.body.operations if _is_main(f))
    return [source_location(str(v.location)).op for v in main.regions[0].blocks[0].arguments]


def _is_main(item: Any) -> bool:
    return item.operation.name == "func.func" and _symbol(item.attributes["sym_name"]) == "main"


def _used_by(op: Any, name: str) -> bool:
    """Whether an operation of that name reads an operation's result."""
    return any(use.owner.operation.name == name for use in op.results[0].uses)


def _symbol(attribute: Any) -> str:
    return attribute.value


def _reduces(op: Any, opcode: str) -> str:
    if opcode in _SUMS:
        return "sums"
    if opcode == "reduce":
        first = next(iter(op.regions[0].blocks[0].operations)).operation.name
        return _REDUCES.get(first.partition(".")[2], "reduces")
    return "reduces"


def _dictionaries(function: Any, name: str) -> list[Any]:
    return list(function.attributes[name]) if name in function.attributes else []
