"""A planned module together with the plan: what makes a value, what reads it, how it is split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardviz.core.layout.spec import Spec
from shardviz.core.program.propagation import attributes
from shardviz.core.program.propagation.estimate.values import Values
from shardviz.core.program.propagation.estimate.walk import (
    Site,
    argument_number,
    callee,
    functions_of,
    maker,
    walk,
)
from shardviz.core.program.propagation.locations import Place
from shardviz.core.program.propagation.planned import PlannedOp
from shardviz.core.program.propagation.texts import Texts

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

    def __init__(self, planned: Any, ops: Sequence[PlannedOp], texts: Texts) -> None:
        self.texts = texts
        self.functions = functions_of(planned)
        self.sites = list(walk(planned, texts))
        self.at = {(site.op, site.caller): site for site in self.sites}
        self.values = Values(ops, self.sites, texts)

    def start(self, op: Any) -> Any:
        """The value that a chain of collectives begins with."""
        value = op.operands[0]
        while (made := maker(value)) is not None and made.name in MOVERS:
            value = made.operands[0]
        return value

    def end(self, op: Any, caller: Site | None) -> tuple[Any, Site | None]:
        """The last of a chain of collectives, and what reads its result."""
        while True:
            uses = list(op.results[0].uses)  # the last use comes first
            following = [u.owner.operation for u in uses if u.owner.operation.name in MOVERS]
            if not following:
                return op, self._reader(uses[-1], caller) if uses else None
            op = following[-1]

    def _reader(self, use: Any, caller: Site | None) -> Site | None:
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

    def site(self, value: Any, caller: Site | None) -> Site | None:
        """The operation that makes a value, or None for an argument."""
        made = maker(value)
        return None if made is None else self.at.get((made, _home(value, caller)))

    def value(self, value: Any, caller: Site | None) -> PlannedOp | None:
        """The plan's value behind an operand."""
        value, caller = self._resolved(value, caller)
        made = self.site(value, caller)
        if made is not None:
            return self.values.of(made, value.maybe_downcast().result_number)
        if caller is None:
            return self.values.argument(value)
        return self.values.of(caller, argument_number(value))  # what a loop carries is its result

    def name(self, value: Any, caller: Site | None) -> str:
        """What a value is called: as in the plan, or else as in jax."""
        planned = self.value(value, caller)
        if planned is not None:
            return planned.name
        value, caller = self._resolved(value, caller)
        made = self.site(value, caller) or caller
        if made is not None:
            return last_part(made.place) or made.opcode
        return self.texts.place(value).op or "its operand"

    def _resolved(self, value: Any, caller: Site | None) -> tuple[Any, Site | None]:
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

    def spec(self, value: Any, caller: Site | None) -> Spec:
        """The sharding of a value in the planned module, one entry a dimension."""
        made = maker(value)
        if made is None:
            block = value.owner.owner.operation
            number = argument_number(value)
            if block.name == "func.func":
                text = self.texts.text(block.attributes["arg_attrs"][number])
                found = attributes.specs(text)[:1]
            else:
                found = attributes.specs(self.texts.attribute(block, "sdy.sharding"))[number:][:1]
        elif made.name in MOVERS:
            found = attributes.specs(self.texts.attribute(made, "out_sharding"))[:1]
        else:
            number = value.maybe_downcast().result_number
            found = attributes.specs(self.texts.attribute(made, "sdy.sharding"))[number:][:1]
        spec = found[0] if found else Spec()
        rank = len((self.texts.tensor(value) or ((), ""))[0])
        return Spec.trusted((spec.dims + ((),) * rank)[:rank])


def _home(value: Any, caller: Site | None) -> Site | None:
    """What a value is made in: a loop or branch reads what is made outside of it, too."""
    made = maker(value)
    owner = (value.owner.owner if made is None else made.parent).operation
    while caller is not None and caller.name != "func.call" and caller.op != owner:
        caller = caller.caller
    return caller


def last_part(place: Place) -> str:
    """The last part of an operation's name in jax: `dot_general`."""
    return place.op.rpartition("/")[2].rstrip(":")  # jax writes some with a colon
