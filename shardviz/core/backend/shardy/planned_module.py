"""A planned module together with its plan: what makes a value, what reads it, how it is split.

A function that is called twice is walked twice, since each call pays for its own collectives. The
body of a loop is walked once, and says how often it runs.

The plan is read off one run of Shardy's passes and the collectives off another, so values are
matched: arguments by name, operations by what they are, where they stand, and in which order.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardviz.core.backend.shardy import mlir_text
from shardviz.core.backend.shardy.control_flow import trip_count
from shardviz.core.backend.shardy.mlir_text import AttributeCache, SourceLocation
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_values import PlannedOp

_INSIDE = ("stablehlo.while", "stablehlo.case", "stablehlo.if", "sdy.manual_computation")


@dataclass(eq=False)
class PlacedOperation:
    """One operation where it runs.

    Attributes:
        op: the operation.
        texts: what the module says, read once.
        name: what MLIR calls it: `sdy.all_gather`.
        caller: the call, loop, branch or manual region that it stands in; None in `main`.
        trips: how often it runs, loops around it multiplied; None where one has no known length.
        in_loop: whether a loop is around it.
    """

    op: Any
    texts: AttributeCache
    name: str
    caller: PlacedOperation | None = None
    trips: int | None = 1
    in_loop: bool = False
    _place: SourceLocation | None = None

    @property
    def opcode(self) -> str:
        """The name without its dialect: `all_gather`."""
        return self.name.rpartition(".")[2]

    @property
    def place(self) -> SourceLocation:
        """Its name in jax and the user's lines, told from `main`."""
        if self._place is None:
            self._place = self._placed()
        return self._place

    def _placed(self) -> SourceLocation:
        own = self.texts.place(self.op)
        # Inside of a function names are relative; in a loop's body they are already whole.
        outer = self.caller
        while outer is not None and own.op.startswith(outer.place.op + "/"):
            outer = outer.caller
        if outer is None or own.op.startswith("jit("):
            return own
        return outer.place.inner(own)


@dataclass(frozen=True)
class _Around:
    """What holds for all operations of a region."""

    texts: AttributeCache
    functions: dict[str, Any]
    caller: PlacedOperation | None = None
    trips: int | None = 1
    in_loop: bool = False


def placed_operations(
    module: Any, texts: AttributeCache | None = None
) -> Iterator[PlacedOperation]:
    """Every operation of `main` and of what it calls, in program order.

    Args:
        module: an MLIR module with a public function `main`.
        texts: where what the module says is read, for who reads it too.
    """
    functions = functions_of(module)
    if "main" in functions:
        yield from _regions(functions["main"], _Around(texts or AttributeCache(), functions))


def functions_of(module: Any) -> dict[str, Any]:
    """The functions of a module, by name."""
    tops = [item.operation for item in module.body.operations]
    return {op.attributes["sym_name"].value: op for op in tops if op.name == "func.func"}


def callee(call: Any, functions: dict[str, Any]) -> Any:
    """The function that a `func.call` calls, or None where its body is elsewhere."""
    found = functions.get(call.attributes["callee"].value)
    return found if found is not None and found.regions[0].blocks else None


def _regions(owner: Any, around: _Around) -> Iterator[PlacedOperation]:
    for region in owner.regions:
        for block in region.blocks:
            for view in block.operations:
                op = view.operation
                name = op.name
                caller, trips = around.caller, around.trips
                site = PlacedOperation(op, around.texts, name, caller, trips, around.in_loop)
                yield site
                if name == "func.call" or name in _INSIDE:
                    yield from _inside(site, around)


def _inside(site: PlacedOperation, around: _Around) -> Iterator[PlacedOperation]:
    owner, trips, in_loop = site.op, site.trips, site.in_loop
    if site.name == "func.call":
        owner = callee(site.op, around.functions)
    elif site.name == "stablehlo.while":
        known = trip_count(site.op)
        trips = None if known is None or trips is None else known * trips
        in_loop = True
    if owner is not None:
        yield from _regions(owner, _Around(around.texts, around.functions, site, trips, in_loop))


def maker(value: Any) -> Any:
    """The operation that makes a value, or None for an argument of a block."""
    owner = value.owner
    return None if hasattr(owner, "operations") else getattr(owner, "operation", owner)


def argument_number(value: Any) -> int:
    """Which argument of its block a value is."""
    return value.maybe_downcast().arg_number


# An operation with several results is matched by its first.
_LATER = re.compile(r"\[[1-9]\d*\]$")

Key = tuple[str, tuple[int, ...]]


class Values:
    """The values of a plan, found by sites of the planned module."""

    def __init__(
        self, ops: Sequence[PlannedOp], sites: Sequence[PlacedOperation], texts: AttributeCache
    ) -> None:
        self._texts = texts
        self.by_name = {op.name: op for op in ops}
        self._arguments = [op for op in ops if op.kind == "argument"]
        self._by_label = {_label(op.name): op for op in self._arguments}
        self._readers: dict[str, list[PlannedOp]] = defaultdict(list)
        for op in ops:
            for name in op.operands:
                self._readers[name].append(op)
        self._planned, self._sites = _by_opcode(ops), sites
        self._of_op: dict[str, dict[int, PlannedOp]] = {}

    def of(self, site: PlacedOperation, number: int = 0) -> PlannedOp | None:
        """A result of an operation, or None where the plan has no such."""
        opcode = site.opcode
        if opcode not in self._of_op:
            same = [s for s in self._sites if s.opcode == opcode]
            self._of_op[opcode] = _matched(self._planned[opcode], same)
        first = self._of_op[opcode].get(id(site))
        if first is None or not first.name.endswith("[0]"):
            return first
        return self.by_name.get(f"{first.name.removesuffix('[0]')}[{number}]")

    def readers(self, op: PlannedOp) -> Sequence[PlannedOp]:
        """The values made from one."""
        return self._readers.get(op.name, ())

    def argument(self, value: Any) -> PlannedOp | None:
        """The argument of the program that a value of `main` is."""
        found = self._texts.place(value).op
        number = argument_number(value)
        if found in self._by_label:
            return self._by_label[found]
        return self._arguments[number] if number < len(self._arguments) else None


def _by_opcode(ops: Sequence[PlannedOp]) -> dict[str, list[PlannedOp]]:
    """The operations by what they are called, for those of which anybody asks."""
    found: dict[str, list[PlannedOp]] = defaultdict(list)
    for op in ops:
        if op.kind == "op" and op.opcode != "constant" and not _LATER.search(op.name):
            found[op.opcode.rpartition(".")[2]].append(op)
    return found


def _matched(ops: Sequence[PlannedOp], sites: Sequence[PlacedOperation]) -> dict[int, PlannedOp]:
    """Site to value, for one kind of operation."""
    planned: dict[Key, list[PlannedOp]] = defaultdict(list)
    for op in ops:
        planned[op.source, op.shape].append(op)
    seen: dict[Key, int] = defaultdict(int)
    found = {}
    for site in sites if planned else ():
        key = _key(site)
        if key in planned:
            same = planned[key]
            # Functions that the plan lists once come by again at every call.
            found[id(site)] = same[seen[key] % len(same)]
            seen[key] += 1
    return found


def _key(site: PlacedOperation) -> Key:
    tensor = site.texts.tensor(site.op.results[0]) if len(site.op.results) else None
    return site.place.source, tensor[0] if tensor else ()


def _label(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_")


# What moves data between devices, by Shardy's names, and our word for it.
SHARDY = {
    "sdy.all_gather": "all-gather",
    "sdy.all_reduce": "all-reduce",
    "sdy.reduce_scatter": "reduce-scatter",
    "sdy.all_to_all": "all-to-all",
    "sdy.collective_permute": "collective-permute",
    "sdy.reshard": "collective-permute",  # left over where two meshes order devices differently
}
# These change a sharding and move nothing.
_FREE = ("sdy.all_slice", "sdy.sharded_to_unreduced", "sdy.replicated_to_unreduced")
MOVERS = (*SHARDY, *_FREE)


class PlannedModule:
    """One module that `pipeline.planned` made, with the plan that its values are named by.

    Attributes:
        sites: its operations in the order in which they run.
        at: operation and caller to site.
        functions: its functions, by name.
        values: the values of the plan.
        texts: what the module says, read once.
    """

    def __init__(self, planned: Any, ops: Sequence[PlannedOp], texts: AttributeCache) -> None:
        self.texts = texts
        self.functions = functions_of(planned)
        self.sites = list(placed_operations(planned, texts))
        self.at = {(site.op, site.caller): site for site in self.sites}
        self.values = Values(ops, self.sites, texts)

    def start(self, op: Any) -> Any:
        """The value that a chain of collectives begins with."""
        value = op.operands[0]
        while (made := maker(value)) is not None and made.name in MOVERS:
            value = made.operands[0]
        return value

    def end(self, op: Any, caller: PlacedOperation | None) -> tuple[Any, PlacedOperation | None]:
        """The last of a chain of collectives, and what reads its result."""
        while True:
            uses = list(op.results[0].uses)  # the last use comes first
            following = [u.owner.operation for u in uses if u.owner.operation.name in MOVERS]
            if not following:
                return op, self._reader(uses[-1], caller) if uses else None
            op = following[-1]

    def _reader(self, use: Any, caller: PlacedOperation | None) -> PlacedOperation | None:
        """The operation of a use; where that is a call, the one inside that reads the argument."""
        site = self.at.get((use.owner.operation, caller))
        if site is None or site.name != "func.call":
            return site
        called = callee(site.op, self.functions)
        if called is None:
            return site
        inner = list(called.regions[0].blocks[0].arguments[use.operand_number].uses)
        found = self._reader(inner[-1], site) if inner else None
        return site if found is None or found.name == "func.return" else found

    def site(self, value: Any, caller: PlacedOperation | None) -> PlacedOperation | None:
        """The operation that makes a value, or None for an argument."""
        made = maker(value)
        return None if made is None else self.at.get((made, _home(value, caller)))

    def value(self, value: Any, caller: PlacedOperation | None) -> PlannedOp | None:
        """The plan's value behind an operand."""
        value, caller = self._resolved(value, caller)
        made = self.site(value, caller)
        if made is not None:
            return self.values.of(made, value.maybe_downcast().result_number)
        if caller is None:
            return self.values.argument(value)
        return self.values.of(caller, argument_number(value))  # what a loop carries is its result

    def name(self, value: Any, caller: PlacedOperation | None) -> str:
        """What a value is called: as in the plan, or else as in jax."""
        planned = self.value(value, caller)
        if planned is not None:
            return planned.name
        value, caller = self._resolved(value, caller)
        made = self.site(value, caller) or caller
        if made is not None:
            return last_part(made.place) or made.opcode
        return self.texts.place(value).op or "its operand"

    def _resolved(
        self, value: Any, caller: PlacedOperation | None
    ) -> tuple[Any, PlacedOperation | None]:
        """The same value where it is made: through calls, and before any collective."""
        while True:
            made, caller = maker(value), _home(value, caller)
            if made is None:
                if caller is None or caller.name not in ("func.call", "sdy.manual_computation"):
                    return value, caller
                value, caller = caller.op.operands[argument_number(value)], caller.caller
            elif made.name in MOVERS:
                value = made.operands[0]
            elif made.name == "func.call" and callee(made, self.functions) is not None:
                block = callee(made, self.functions).regions[0].blocks[0]
                number = value.maybe_downcast().result_number
                returned = list(block.operations)[-1].operation
                value, caller = returned.operands[number], self.at[made, caller]
            else:
                return value, caller

    def spec(self, value: Any, caller: PlacedOperation | None) -> Spec:
        """The sharding of a value in the planned module, one entry a dimension."""
        made = maker(value)
        if made is None:
            block = value.owner.owner.operation
            number = argument_number(value)
            if block.name == "func.func":
                text = self.texts.text(block.attributes["arg_attrs"][number])
                found = mlir_text.parse_specs(text)[:1]
            else:
                found = mlir_text.parse_specs(self.texts.attribute(block, "sdy.sharding"))[number:][
                    :1
                ]
        elif made.name in MOVERS:
            found = mlir_text.parse_specs(self.texts.attribute(made, "out_sharding"))[:1]
        else:
            number = value.maybe_downcast().result_number
            found = mlir_text.parse_specs(self.texts.attribute(made, "sdy.sharding"))[number:][:1]
        spec = found[0] if found else Spec()
        rank = len((self.texts.tensor(value) or ((), ""))[0])
        return Spec.trusted((spec.dims + ((),) * rank)[:rank])


def _home(value: Any, caller: PlacedOperation | None) -> PlacedOperation | None:
    """What a value is made in: a loop or branch reads what is made outside of it, too."""
    made = maker(value)
    owner = (value.owner.owner if made is None else made.parent).operation
    while caller is not None and caller.name != "func.call" and caller.op != owner:
        caller = caller.caller
    return caller


def last_part(place: SourceLocation) -> str:
    """The last part of an operation's name in jax: `dot_general`."""
    return place.op.rpartition("/")[2].rstrip(":")  # jax writes some with a colon
